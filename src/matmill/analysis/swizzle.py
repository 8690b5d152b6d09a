"""Layouts of a matrix in shared memory, and the cost of a warp's access to its elements.

A layout is row-major, padded, or swizzled. A swizzle permutes the elements inside row-major blocks by exclusive or, so
that no memory is lost to padding. ``Swizzle(bits, base, shift)`` is the family of CuTe
(https://github.com/NVIDIA/cutlass, ``cute/swizzle.hpp``), counted in elements: ``bits`` bits from bit ``base + shift``
up are added, without carry, to as many bits from bit ``base`` up. The hardware's own modes are members of it in bytes
(PTX ISA, "Tensor Swizzling Modes"): 128B is (3, 4, 3), 64B is (2, 4, 3), 32B is (1, 4, 3), over panels of 128, 64 or 32
bytes; wider matrices have several panels, one after the other.

Wavefronts are counted by :mod:`matmill.emulator.memory.banks`, whose rules are from an H200's counters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import DType
from matmill.emulator.memory.banks import LANES, PASS_BYTES, WORD_BYTES, ldmatrix_wavefronts, shared_wavefronts
from matmill.errors import ArgumentError, unknown_name

Array = NDArray[np.int64]
Offset = TypeVar("Offset", int, Array)

BANKS = PASS_BYTES // WORD_BYTES
VECTOR_BYTES = 16
#: A request of each access, lane by lane.
ACCESSES = {
    "row": "lane i takes element (r, c + i): 32 neighbours of a row",
    "column": "lane i takes element (r + i, c): 32 elements down a column",
    "vec16": "lane i takes the i-th of 32 vectors of 16 bytes, counted along the rows, row by row",
    "ldmatrix": "lanes 8 m to 8 m + 7 name the 16-byte rows of 8x8 matrix m (x4), counted down the columns",
}
#: The hardware's modes: bytes of a panel's row, and the swizzle in bytes.
MODES = {"128B": (128, (3, 4, 3)), "64B": (64, (2, 4, 3)), "32B": (32, (1, 4, 3))}
#: The most bits: more than those that number the banks cannot help.
_MOST_BITS = 5
#: A limit above the shared memory of a block on every GPU.
_MOST_BYTES = 1 << 18
_SCREEN = 16
_MATRIX_ROWS, _MATRICES = 8, 4


@dataclass(frozen=True)
class Swizzle:
    """``offset ^ ((offset & mask) >> shift)``, offsets in elements; a negative shift moves the other way.

    >>> toy = Swizzle(2, 0, 2)
    >>> bin(toy.mask), [toy(i) for i in range(8)]
    ('0b1100', [0, 1, 2, 3, 5, 4, 7, 6])

    Raises :class:`~matmill.errors.ArgumentError` for negative bits or base, and for a shift below the bits: source
    and target would overlap, and two elements could meet.
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise ArgumentError(
                argument="swizzle",
                got=f"{self}",
                wanted="bits and base of 0 or more, and a shift of at least as many positions as bits",
                fix="For rows of 64 two-byte elements and ldmatrix take 3,3,3.",
            )

    @property
    def mask(self) -> int:
        """The bits that the swizzle reads."""
        return (1 << self.bits) - 1 << self.base + max(0, self.shift)

    @property
    def width(self) -> int:
        """The number of low bits that the swizzle uses: it repeats every ``2 ** width`` elements."""
        return self.base + self.bits + abs(self.shift) if self.bits else 0

    def __call__(self, offset: Offset) -> Offset:
        """Return the offset of the element with that row-major offset."""
        read = offset & self.mask
        return offset ^ (read >> self.shift if self.shift >= 0 else read << -self.shift)

    def __str__(self) -> str:
        return f"{self.bits},{self.base},{self.shift}"


@dataclass(frozen=True)
class SharedLayout:
    """A matrix of ``rows`` by ``columns`` in shared memory.

    Offsets are in elements from an address that is a multiple of 1024.

    ``pad`` elements follow every row. ``panel`` is the width of panels in columns, or 0 if whole rows follow each
    other. ``name`` is the layout's name on the command line.
    """

    rows: int
    columns: int
    dtype: DType
    swizzle: Swizzle = Swizzle(0, 0, 0)
    pad: int = 0
    panel: int = 0
    name: str = "none"

    @property
    def bytes(self) -> int:
        """Bytes of shared memory for the matrix, padding included."""
        return self.rows * (self.columns + self.pad) * self.dtype.itemsize

    def offset(self, row: Array, column: Array) -> Array:
        """Return the offsets of elements, of the shape that ``row`` and ``column`` broadcast to."""
        if self.panel:
            plain = (column // self.panel * self.rows + row) * self.panel + column % self.panel
        else:
            plain = row * (self.columns + self.pad) + column
        return self.swizzle(plain)

    def offsets(self) -> Array:
        """Return int64[rows, columns]: the offset of every element.

        >>> from matmill.dtypes import F32
        >>> layout(4, 4, F32, "2,0,2").offsets().tolist()
        [[0, 1, 2, 3], [5, 4, 7, 6], [10, 11, 8, 9], [15, 14, 13, 12]]
        """
        return self.offset(np.arange(self.rows)[:, None], np.arange(self.columns)[None, :])


@dataclass(frozen=True, eq=False)
class Requests:
    """All warp-wide requests of an access over a matrix, of ``width`` bytes per lane.

    ``rows`` and ``columns`` are int64[n, 32]: the (first) element of each lane; ``active`` bool[n, 32].
    """

    access: str
    rows: Array
    columns: Array
    active: NDArray[np.bool_]
    width: int

    def first(self, count: int) -> Requests:
        """Return the first ``count`` requests."""
        return Requests(self.access, self.rows[:count], self.columns[:count], self.active[:count], self.width)

    def wavefronts(self, addresses: Array, *, store: bool = False) -> tuple[Array, Array]:
        """Return the actual and ideal wavefronts of every request; lanes access ``addresses`` (bytes, int64[n, 32])."""
        if self.access == "ldmatrix":
            return ldmatrix_wavefronts(addresses, _MATRICES)
        return shared_wavefronts(addresses, self.active, self.width, store=store)


@dataclass(frozen=True, eq=False)
class AccessCost:
    """Wavefronts of every request of an access: int64[n] each."""

    actual: Array
    ideal: Array

    @property
    def worst(self) -> int:
        """The first of the requests with the most wavefronts beyond the ideal."""
        return int(np.argmax(self.actual - self.ideal))

    @property
    def conflicts(self) -> int:
        """Wavefronts beyond the ideal, of all requests."""
        return int((self.actual - self.ideal).sum())


def layout(rows: int, columns: int, dtype: DType, text: str = "none", argument: str = "swizzle") -> SharedLayout:
    """Return the layout that ``text`` names: ``none``, ``pad:N``, ``B,M,S``, ``128B``, ``64B`` or ``32B``.

    Raises :class:`~matmill.errors.ArgumentError` for a matrix that exceeds shared memory or does not fit the hardware's
    mode, and for an invalid swizzle or one that leaves the matrix.
    """
    plain = SharedLayout(rows, columns, dtype)
    _check_size(plain)
    if text == "none":
        return plain
    if re.fullmatch(r"pad:[0-9]{1,9}", text):
        padded = SharedLayout(rows, columns, dtype, pad=int(text[4:]), name=text)
        _check_size(padded)
        return padded
    if text.upper() in MODES:
        return _hardware(plain, text.upper())
    if not re.fullmatch(r"[0-9]{1,3},[0-9]{1,3},-?[0-9]{1,3}", text):
        raise ArgumentError(
            argument=argument,
            got=repr(text),
            wanted="B,M,S (bits, base, shift), pad:N, none, 128B, 64B or 32B",
            fix="For rows of 64 two-byte elements and ldmatrix take 3,3,3.",
        )
    bits, base, shift = map(int, text.split(","))
    swizzle = Swizzle(bits, base, shift)
    _check_inside(plain, swizzle, argument)
    return SharedLayout(rows, columns, dtype, swizzle, name=str(swizzle))


def requests(rows: int, columns: int, dtype: DType, access: str) -> Requests:
    """Return the requests with which warps access all of a matrix once, by one of :data:`ACCESSES`.

    Raises :class:`~matmill.errors.UnknownNameError`, and :class:`~matmill.errors.ArgumentError` for a matrix that does
    not consist of whole vectors or 8x8 matrices.
    """
    if access not in ACCESSES:
        raise unknown_name("access", access, ACCESSES)
    if access == "row":
        start, lane = np.divmod(np.arange(-(-columns // LANES) * LANES), LANES)
        across = np.tile(start * LANES + lane, rows).reshape(-1, LANES)
        down = np.repeat(np.arange(rows), len(start) // LANES)[:, None] + np.zeros(LANES, np.int64)
        return _requests(access, down, across, across < columns, dtype.itemsize)
    if access == "column":
        down = np.tile(np.arange(-(-rows // LANES) * LANES), columns).reshape(-1, LANES)
        across = np.repeat(np.arange(columns), len(down) // columns)[:, None] + np.zeros(LANES, np.int64)
        return _requests(access, down, across, down < rows, dtype.itemsize)
    vector = VECTOR_BYTES // dtype.itemsize
    if access == "vec16":
        _check_cut(rows, columns, dtype, columns % vector == 0, f"rows of whole 16-byte vectors of {vector} elements")
        per_row = columns // vector
        index = np.arange(-(-rows * per_row // LANES) * LANES).reshape(-1, LANES)
        down, piece = np.divmod(index, per_row)
        return _requests(access, down, piece * vector, down < rows, VECTOR_BYTES)
    tall, wide = rows // _MATRIX_ROWS, columns // vector
    fits = rows % _MATRIX_ROWS == 0 and columns % vector == 0 and tall * wide % _MATRICES == 0
    wanted = f"matrices of 8 rows by {vector} columns (16 bytes), a multiple of 4 of them"
    _check_cut(rows, columns, dtype, fits, wanted)
    piece, down = np.divmod(np.arange(rows * wide).reshape(-1, LANES), rows)
    return _requests(access, down, piece * vector, np.ones(down.shape, np.bool_), VECTOR_BYTES)


def addresses(layout: SharedLayout, accesses: Requests, argument: str = "swizzle") -> Array:
    """Return int64[n, 32]: the byte offset of each lane in ``layout``; 0 for idle lanes.

    Raises :class:`~matmill.errors.ArgumentError` if a lane's 16 bytes are not contiguous and aligned.
    """
    rows, columns = np.where(accesses.active, accesses.rows, 0), np.where(accesses.active, accesses.columns, 0)
    first = layout.offset(rows, columns)
    size = layout.dtype.itemsize
    elements = accesses.width // size
    apart = [(layout.offset(rows, columns + i) != first + i).any() for i in range(1, elements)]
    if any(apart) or (first * size % accesses.width).any():
        raise ArgumentError(
            argument=argument,
            got=f"{layout.name} with {accesses.access}",
            wanted=f"a layout that keeps 16 bytes ({elements} elements of a row) together and aligned",
            fix=f"Take a base of {elements.bit_length() - 1} or more, or padding by a multiple of {elements}.",
        )
    return first * size


def cost(layout: SharedLayout, access: str) -> AccessCost:
    """Return the cost of an access to all of a matrix, request by request.

    >>> from matmill.dtypes import F16
    >>> [int(cost(layout(64, 64, F16, name), "ldmatrix").actual[0]) for name in ("none", "pad:8", "3,3,3", "128B")]
    [32, 4, 4, 4]
    """
    accesses = requests(layout.rows, layout.columns, layout.dtype, access)
    return AccessCost(*accesses.wavefronts(addresses(layout, accesses)))


def search(rows: int, columns: int, dtype: DType, access: str) -> SharedLayout | None:
    """Return the smallest swizzle without conflicts, or None if none of up to five bits avoids them.

    The smallest has the fewest bits; among those the largest base, which keeps the longest runs contiguous; then the
    shortest shift. A layout without any swizzle has zero bits.

    >>> from matmill.dtypes import F16, F32
    >>> str(search(64, 64, F16, "ldmatrix").swizzle), str(search(32, 32, F32, "column").swizzle)
    ('3,3,3', '5,0,5')
    """
    accesses = requests(rows, columns, dtype, access)
    plain = SharedLayout(rows, columns, dtype)
    _check_size(plain)
    offsets = addresses(plain, accesses) // dtype.itemsize
    least = (accesses.width // dtype.itemsize).bit_length() - 1
    screen = accesses.first(_SCREEN)
    for swizzle in _candidates(rows * columns, least):
        some = screen.wavefronts(swizzle(offsets[:_SCREEN]) * dtype.itemsize)
        if (
            AccessCost(*some).conflicts == 0
            and AccessCost(*accesses.wavefronts(swizzle(offsets) * dtype.itemsize)).conflicts == 0
        ):
            return SharedLayout(rows, columns, dtype, swizzle, name=str(swizzle) if swizzle.bits else "none")
    return None


def smallest_pad(rows: int, columns: int, dtype: DType, access: str) -> SharedLayout | None:
    """Return the least padding without conflicts, up to a whole pass of 128 bytes, or None.

    >>> from matmill.dtypes import F16
    >>> smallest_pad(64, 64, F16, "ldmatrix").name
    'pad:8'
    """
    accesses = requests(rows, columns, dtype, access)
    step = accesses.width // dtype.itemsize
    for pad in range(0, PASS_BYTES // dtype.itemsize + 1, step):
        layout = SharedLayout(rows, columns, dtype, pad=pad, name=f"pad:{pad}" if pad else "none")
        if AccessCost(*accesses.wavefronts(addresses(layout, accesses))).conflicts == 0:
            return layout
    return None


def words(layout: SharedLayout) -> tuple[Array, Array]:
    """Return the contents of each word: row and column of its first element, int64[lines, 32] each; -1 for padding.

    A line is one row of the 32 banks: 128 bytes.
    """
    size = layout.dtype.itemsize
    start = (layout.offsets() * size).ravel()
    lines = -(-layout.bytes // PASS_BYTES)
    cells = np.full((2, lines * BANKS), -1, dtype=np.int64)
    order = np.argsort(-start)  # of several elements in a word, the one with the lowest address is written last
    row, column = np.divmod(order, layout.columns)
    for word in range(max(1, size // WORD_BYTES)):
        cells[:, start[order] // WORD_BYTES + word] = row, column
    return cells[0].reshape(lines, BANKS), cells[1].reshape(lines, BANKS)


def touched(layout: SharedLayout, access: str, index: int) -> NDArray[np.bool_]:
    """Return bool[lines, 32]: the words that request ``index`` of an access reads."""
    accesses = requests(layout.rows, layout.columns, layout.dtype, access)
    start = addresses(layout, accesses)[index][accesses.active[index]] // WORD_BYTES
    wanted = np.zeros(-(-layout.bytes // PASS_BYTES) * BANKS, dtype=np.bool_)
    for word in range(max(1, accesses.width // WORD_BYTES)):
        wanted[start + word] = True
    return wanted.reshape(-1, BANKS)


def _requests(access: str, rows: Array, columns: Array, active: NDArray[np.bool_], width: int) -> Requests:
    return Requests(access, rows.astype(np.int64), columns.astype(np.int64), active, width)


def _candidates(elements: int, least_base: int) -> list[Swizzle]:
    """Return the swizzles that stay inside a matrix of so many elements, the smallest first."""
    swizzles = [Swizzle(0, 0, 0)]
    for bits in range(1, _MOST_BITS + 1):
        for base in range(elements.bit_length(), least_base - 1, -1):
            others = (Swizzle(bits, base, shift) for shift in range(bits, elements.bit_length()))
            swizzles += [swizzle for swizzle in others if _fits(swizzle, elements)]
    return swizzles


def _fits(swizzle: Swizzle, elements: int) -> bool:
    """Tell whether a swizzle stays inside a matrix of so many elements."""
    if swizzle.bits == 0:
        return True
    moved = swizzle.base + swizzle.bits if swizzle.shift > 0 else swizzle.width
    return 1 << swizzle.width - 1 < elements and elements % (1 << moved) == 0


def _hardware(plain: SharedLayout, mode: str) -> SharedLayout:
    """Return the matrix in panels of a hardware mode."""
    span, (bits, base, shift) = MODES[mode]
    size = plain.dtype.itemsize
    if plain.columns * size % span:
        raise ArgumentError(
            argument="shape",
            got=f"rows of {plain.columns * size} bytes for {mode}",
            wanted=f"rows of a multiple of {span} bytes",
            fix=f"{mode} swizzles panels that are {span} bytes wide: take multiples of {span // size} columns.",
        )
    swizzle = Swizzle(bits, base - (size.bit_length() - 1), shift)
    return SharedLayout(plain.rows, plain.columns, plain.dtype, swizzle, panel=span // size, name=mode)


def _check_inside(plain: SharedLayout, swizzle: Swizzle, argument: str) -> None:
    elements = plain.rows * plain.columns
    if not _fits(swizzle, elements):
        raise ArgumentError(
            argument=argument,
            got=f"{swizzle}, which moves elements by bits up to bit {swizzle.width - 1}",
            wanted=f"bits of the {elements} offsets of a {plain.rows}x{plain.columns} matrix, in whole blocks",
            fix="Take a smaller base or shift, or a matrix whose size is a multiple of a larger power of two.",
        )


def _check_cut(rows: int, columns: int, dtype: DType, fits: bool, wanted: str) -> None:  # noqa: FBT001 — the result of the check
    if not fits:
        raise ArgumentError(
            argument="shape",
            got=f"{rows}x{columns} {dtype.name}",
            wanted=wanted,
            fix="Take a larger tile, or --access row or column.",
        )


def _check_size(layout: SharedLayout) -> None:
    if layout.rows < 1 or layout.columns < 1 or layout.bytes > _MOST_BYTES:
        raise ArgumentError(
            argument="shape",
            got=f"{layout.rows}x{layout.columns} {layout.dtype.name}, {layout.bytes} bytes",
            wanted=f"at least one row and column, and at most {_MOST_BYTES} bytes",
            fix="Take a tile that fits in shared memory.",
        )
