"""Boxes of tensor maps: the bytes of global memory that TMA copies, and their positions in shared memory.

PTX ISA, "Tensors" and "cp.async.bulk.tensor". A box is copied row by row: a row is contiguous in the tensor and has
``box[0]`` elements. In shared memory rows follow each other densely. With a swizzle the distance of rows is the
swizzle's bytes, and their 16-byte chunks are exchanged by bits 7 to 9 of their address. All functions take many boxes
at once, one for each copy.

Elements outside the tensor are filled by loads, and skipped by stores and reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.atomic import REDUCED, check_reduction, reduced
from matmill.emulator.arith.tf32 import to_tf32
from matmill.emulator.memory.banks import PASS_BYTES, SECTOR_BYTES
from matmill.errors import ArgumentError, EmulationError
from matmill.launch import TensorMap
from matmill.tensor_map import ELEMENTS

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Flags = NDArray[np.bool_]

#: The alignment of a box's address in shared memory.
SHARED_ALIGN = 128
_CHUNK = 16
_MOST_BYTES = 227 * 1024
# The NaN of each 16 bits of an element, whatever its type: measured on an H200.
_NAN_FILL = 0x7FF7
#: The types of reductions, by element. It was not measured whether float32 keeps subnormals.
_REDUCED_AS = {
    "uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64", "float16": "f16", "bfloat16": "bf16",
    "float32": "f32", "float32_ftz": "f32.ftz", "float64": "f64",
}  # fmt: skip


@dataclass(frozen=True)
class _BoxRows:
    """The rows of a tensor's boxes: their indices along each outer dimension, and their distances from the first row.

    A row has ``nbytes``, and in shared memory rows are ``pitch`` bytes apart.
    """

    indices: tuple[Offsets, ...]
    offsets: Offsets
    strides: Offsets
    nbytes: int
    pitch: int

    @property
    def count(self) -> int:
        return len(self.offsets)


@lru_cache(maxsize=256)
def _rows(tensor: TensorMap) -> _BoxRows:
    """Return the rows of a tensor's boxes. Raises ``EmulationError`` for boxes whose copies are not fully known."""
    _check_known(tensor)
    itemsize = ELEMENTS[tensor.element].itemsize
    along = zip(tensor.box[1:], tensor.element_strides[1:], strict=True)
    indices = tuple(np.arange(0, extent, step) for extent, step in along)
    nbytes = tensor.box[0] * itemsize
    pitch = tensor.swizzle or nbytes
    total = prod(map(len, indices)) * pitch
    if total > _MOST_BYTES:
        raise ArgumentError(
            argument=tensor.pointer.name,
            got=f"a box of {total} bytes",
            wanted=f"at most {_MOST_BYTES}, the shared memory of a block",
            fix="Copy several smaller boxes.",
        )
    offsets = np.zeros(1, np.int64)
    for index, stride in zip(indices, tensor.strides, strict=True):
        offsets = (index[:, None] * stride + offsets).reshape(-1)
    return _BoxRows(indices, offsets, np.array((itemsize, *tensor.strides), np.int64), nbytes, pitch)


def _check_known(tensor: TensorMap) -> None:
    if tensor.interleave:
        raise EmulationError(
            argument=tensor.pointer.name,
            got=f"an interleave of {tensor.interleave} bytes",
            wanted="none",
            fix="How interleaved boxes are stored is not documented well enough to emulate them.",
        )


@dataclass(frozen=True, eq=False)
class Boxes:
    """``n`` boxes of one tensor map, and their parts inside the tensor.

    ``starts`` are the addresses of the first byte of each row that is inside (int64[n, rows], meaningless where
    ``inside``, bool[n, rows], is false). ``skip`` and ``length`` (int64[n]) are the bytes of a row before its part
    inside, and of that part: they are the same for all rows of a box.
    """

    tensor: TensorMap
    starts: Offsets
    inside: Flags
    skip: Offsets
    length: Offsets

    @classmethod
    def of(cls, tensor: TensorMap, coordinates: NDArray[np.signedinteger]) -> Boxes:
        """Return the boxes at these coordinates: integers[n, rank], elements, the contiguous dimension first.

        ``tensor`` is a result of ``decode``. Raises :class:`~matmill.errors.ArgumentError` for coordinates of another
        rank, for a first one that is not a multiple of 16 bytes, and for boxes larger than shared memory,
        :class:`~matmill.errors.EmulationError` for interleaved tensors.
        """
        at = np.asarray(coordinates, np.int64)
        if at.ndim != 2 or at.shape[1] != len(tensor.sizes):
            raise ArgumentError(
                argument=tensor.pointer.name,
                got=f"{at.shape[-1]} coordinates",
                wanted=f"{len(tensor.sizes)}, the dimensions of the map",
                fix="Use the form of the instruction (.1d to .5d) that the map was made for.",
            )
        rows, itemsize = _rows(tensor), ELEMENTS[tensor.element].itemsize
        odd = at[:, 0] * itemsize % _CHUNK != 0
        if odd.any():
            raise ArgumentError(
                argument=tensor.pointer.name,
                got=f"a box at {tuple(at[odd][0].tolist())}",
                wanted=f"a first coordinate that is a multiple of {_CHUNK // itemsize}: {_CHUNK} bytes",
                fix="A GPU stops the kernel with an illegal instruction: begin the box at a multiple.",
            )
        first = np.maximum(-at[:, 0], 0)
        length = np.maximum(np.minimum(tensor.sizes[0] - at[:, 0], tensor.box[0]) - first, 0)
        starts = tensor.pointer.address + first * itemsize + at @ rows.strides
        inside = (length > 0)[:, None]
        for i, indices in enumerate(rows.indices, 1):
            along = at[:, i : i + 1] + indices
            fits = (along >= 0) & (along < tensor.sizes[i])
            inside = (fits[:, :, None] & inside[:, None, :]).reshape(len(at), -1)
        return cls(tensor, starts[:, None] + rows.offsets, inside, first * itemsize, length * itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of each box in shared memory, including elements outside the tensor: the count for its mbarrier."""
        return _rows(self.tensor).count * self.row_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the first to the last byte of a box: those of ``nbytes``, and gaps between."""
        return _rows(self.tensor).count * _rows(self.tensor).pitch

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return _rows(self.tensor).nbytes

    @property
    def wavefronts(self) -> int:
        """Passes over the banks of shared memory for each box, 128 bytes at a time: the fewest possible."""
        return -(-self.nbytes // PASS_BYTES)

    def global_bytes(self) -> Offsets:
        """Return the bytes of each box inside the tensor: int64[n]."""
        return np.asarray(np.count_nonzero(self.inside, axis=1) * self.length)

    def hull(self) -> tuple[Offsets, Offsets]:
        """Return the lowest address of each box, and the end of its highest row (int64[n]).

        They are equal if no element is inside.
        """
        limits = np.iinfo(np.int64)
        low = np.where(self.inside, self.starts, limits.max).min(axis=1)
        high = np.where(self.inside, self.starts + self.length[:, None], limits.min).max(axis=1)
        empty = ~self.inside.any(axis=1)
        return np.where(empty, self.tensor.pointer.address, low), np.where(empty, self.tensor.pointer.address, high)

    def ranges(self, box: int) -> tuple[Offsets, Offsets]:
        """Return the global bytes of one box: starts and ends of the fewest ranges, in the order of addresses."""
        starts = np.sort(self.starts[box][self.inside[box]])
        ends = starts + self.length[box]
        apart = starts[1:] > np.maximum.accumulate(ends)[:-1]
        return starts[np.r_[True, apart][: len(starts)]], ends[np.r_[apart, True][: len(ends)]]

    def sectors(self) -> Offsets:
        """Return the distinct 32-byte sectors of global memory that each box touches: int64[n]."""
        first = np.where(self.inside, self.starts // SECTOR_BYTES, -1)
        last = np.where(self.inside, (self.starts + self.length[:, None] - 1) // SECTOR_BYTES, -2)
        if (first[:, 1:] < first[:, :-1]).any():
            order = np.argsort(first, axis=1)
            first, last = np.take_along_axis(first, order, axis=1), np.take_along_axis(last, order, axis=1)
        # A sector counts for the first of the rows that touch it.
        fresh = first.copy()
        fresh[:, 1:] = np.maximum(first[:, 1:], np.maximum.accumulate(last, axis=1)[:, :-1] + 1)
        counts: Offsets = np.maximum(last - fresh + 1, 0).sum(axis=1)
        return counts

    def take(self, which: NDArray[np.int64] | Flags) -> Boxes:
        """Return the boxes ``which``."""
        return Boxes(self.tensor, self.starts[which], self.inside[which], self.skip[which], self.length[which])

    def stored(self) -> Boxes:
        """Return the boxes that a store writes: each row in whole 16 bytes, even after the tensor's last element.

        Observed on an H200 (2026-11-23): for rows of 73 elements of 16 bits 80 were written, and for rows of one
        element 8. Loads fill with zeros from the first element outside on.
        """
        whole = -(-(self.skip + self.length) // _CHUNK) * _CHUNK - self.skip
        return replace(self, length=np.where(self.length > 0, whole, 0))

    def parts(self) -> Iterator[tuple[Flags, int, int]]:
        """Yield rows with equal parts: bool[n, rows], the bytes of each to skip, and those to take."""
        if (self.skip == self.skip[0]).all() and (self.length == self.length[0]).all():
            cuts = [(int(self.skip[0]), int(self.length[0]))]
        else:
            cuts = sorted(set(zip(self.skip.tolist(), self.length.tolist(), strict=True)))
        for skip, length in cuts:
            if length:
                alike = (self.skip == skip) & (self.length == length)
                yield self.inside & alike[:, None], skip, length


def check_store(tensor: TensorMap, coordinates: NDArray[np.signedinteger]) -> None:
    """Raise ``ArgumentError`` for a negative coordinate, which PTX allows only for loads."""
    negative = (coordinates < 0).any(axis=1)
    if negative.any():
        raise ArgumentError(
            argument=tensor.pointer.name,
            got=f"a store at {tuple(coordinates[negative][0].tolist())}",
            wanted="coordinates of at least 0",
            fix="Only loads may start before the tensor: begin inside it and let the end be cut off.",
        )


def check_box_reduction(tensor: TensorMap, operation: str) -> None:
    """Raise ``ArgumentError`` for a reduction that PTX lacks for the tensor's elements."""
    check_reduction(operation, _reduced_as(tensor))


def _reduced_as(tensor: TensorMap) -> str:
    return _REDUCED_AS.get(tensor.element, tensor.element)


def read_global(memory: Bytes, start: int, boxes: Boxes) -> Bytes:
    """Return the bytes of a load: uint8[n, nbytes], rows in their order, before the swizzle.

    ``memory`` (contiguous) has the bytes from address ``start`` on, including each box's hull, which the caller has
    checked. tf32 elements are rounded to nearest even.
    """
    shape = (*boxes.inside.shape, boxes.row_bytes)
    whole = bool(boxes.inside.all()) and bool((boxes.length == boxes.row_bytes).all())
    contents: Bytes = np.empty(shape, np.uint8)
    if not whole:
        contents.view(np.uint16).fill(_NAN_FILL if boxes.tensor.nan_fill else 0)
    for rows, skip, length in boxes.parts():
        loaded = _runs(memory, length)[boxes.starts[rows] - start].view(np.uint8).reshape(-1, length)
        if boxes.tensor.element.startswith("tfloat32"):
            loaded = (to_tf32(loaded.view(np.float32), "rn") & np.uint32(0xFFFFE000)).view(np.uint8)
        if whole:
            contents = loaded
        else:
            contents[rows, skip : skip + length] = loaded
    return contents.reshape(len(boxes.inside), -1)


def write_global(memory: Bytes, start: int, boxes: Boxes, contents: Bytes) -> None:
    """Store the elements inside the tensor; ``contents`` are from :func:`read_shared`."""
    rows_of = contents.reshape(*boxes.inside.shape, boxes.row_bytes)
    for rows, skip, length in boxes.parts():
        stored = np.ascontiguousarray(rows_of[rows, skip : skip + length])
        _runs(memory, length)[boxes.starts[rows] - start] = stored.view(f"V{length}").reshape(-1)


def reduce_global(memory: Bytes, start: int, boxes: Boxes, contents: Bytes, operation: str) -> None:
    """Combine the elements inside the tensor with memory: one box after another, each element separately.

    Raises :class:`~matmill.errors.ArgumentError` for an operation that PTX lacks for the elements.
    """
    kind = _reduced_as(boxes.tensor)
    check_reduction(operation, kind)
    word = np.dtype(REDUCED[kind])
    target = memory[: len(memory) - len(memory) % word.itemsize].view(word)
    rows_of = contents.reshape(*boxes.inside.shape, boxes.row_bytes)
    for box, inside in enumerate(boxes.inside):
        skip, length = int(boxes.skip[box]), int(boxes.length[box])
        firsts = boxes.starts[box][inside] - start
        values = np.ascontiguousarray(rows_of[box][inside, skip : skip + length]).view(word)
        # Rows overlap if a stride is shorter than the box: then an element is combined more than once.
        overlap = bool((np.diff(np.sort(firsts)) < length).any())
        for rows in range(len(firsts)) if overlap else (slice(None),):
            index = np.atleast_1d(firsts[rows] // word.itemsize)[:, None] + np.arange(length // word.itemsize)
            target[index] = reduced(operation, kind, target[index], np.atleast_2d(values[rows]))


def write_shared(shared: Bytes, base: Offsets, boxes: Boxes, address: Offsets, contents: Bytes) -> None:
    """Write boxes to shared memory, swizzled.

    ``address`` (int64[n], multiples of 128) are shared addresses, and ``base`` (int64[n], multiples of 16) the indices
    in ``shared`` of address 0 of each block. All written bytes are between ``address`` and ``address + shared_bytes``,
    whatever the swizzle. For a multicast, repeat the boxes and the contents for each receiver.
    """
    shared.view("V16")[shared_chunks(base, boxes, address)] = contents.view("V16")


def read_shared(shared: Bytes, base: Offsets, boxes: Boxes, address: Offsets) -> Bytes:
    """Return the bytes of a store or a reduction from shared memory: uint8[n, nbytes]; inverts :func:`write_shared`."""
    return shared.view("V16")[shared_chunks(base, boxes, address)].view(np.uint8)


def shared_chunks(base: Offsets, boxes: Boxes, address: Offsets) -> Offsets:
    """Return the position of each 16-byte chunk of boxes in ``shared`` (see :func:`write_shared`), counted in chunks.

    The result is int64[n, c].
    """
    if (address % SHARED_ALIGN).any():
        raise ArgumentError(
            argument=boxes.tensor.pointer.name,
            got=f"shared address {int(address[address % SHARED_ALIGN != 0][0])}",
            wanted=f"a multiple of {SHARED_ALIGN}",
            fix="Declare the tile with __align__(128), or 1024 where it is swizzled.",
        )
    rows = _rows(boxes.tensor)
    within = np.arange(rows.count)[:, None] * (rows.pitch // _CHUNK) + np.arange(rows.nbytes // _CHUNK)
    chunk = address[:, None] // _CHUNK + within.reshape(-1)
    if boxes.tensor.swizzle:
        chunk ^= chunk >> 3 & (boxes.tensor.swizzle // _CHUNK - 1)
    chunk += (base // _CHUNK)[:, None]
    return chunk


def _runs(memory: Bytes, length: int) -> NDArray[np.void]:
    """Return the ``length`` bytes from each byte of memory on, as one item each."""
    return np.ndarray((max(len(memory) - length + 1, 0),), f"V{length}", memory, strides=(1,))
