"""Passes over the banks of shared memory for the inner kernel's reads of a stage, lane by lane.

``kernels/inner/fragments.cuh`` and ``simt.cuh`` define each thread's reads; ``matmill.emulator.memory.banks`` has the
rule for passes. The host chooses the pitches of stages for few passes, and the cost model counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.kernels.shared.tensor_cores import TF32_PRODUCTS
from matmill.problem import Gemm

VECTOR_BYTES = 16

#: Modes of reading a matrix's rows (of E) or columns (of F), as in fragments.cuh.
ALONG_K, PACKED, STRIDED, SHIFTED = range(4)

#: Schedulers per SM; outputs of one MMA instruction, 16 x 8.
SCHEDULERS, MMA_OUTPUTS = 4, 128

_LANES, _ROW, _WORD = 32, 128, 4  # lanes of a warp; bytes per clock of all banks; bytes of a bank
#: Slots of a lane per row or column to split two float32, of two k's, into two tf32 each, and to copy them. Integer
#: instructions take two.
_SPLIT, _COPIED = 12, 8
#: The fewest outputs for which a block reorders its sums.
_MANY = 1024
#: Row (or column) and group of k's of each lane when a warp loads fragments for MMA (``mma.cuh``).
_FRAGMENT = tuple((lane // 4, lane % 4) for lane in range(_LANES))


def k_groups(config: Config) -> int:
    """Return the k-groups of a block, each with its own stages (``kernels/inner/k_groups.cuh``)."""
    return config["U"] if config["MMA"] else 1


def groups(config: Config) -> int:
    """Return the groups of S threads in a block, each with its own k's."""
    return config["BS"] // config["S"]


def outputs_of(config: Config) -> int:
    """Return the sums of a thread; on tensor cores these are 4 for each 16 x 8 outputs of its warp."""
    if not config["MMA"]:
        return config["TM"] * config["TN"]
    return 4 * mma_tiles(config, diagonal=triangle(config))


def triangle(config: Config) -> bool:
    """Tell whether one thread (one warp on tensor cores) has a whole Gram matrix, and sums only half of it."""
    return config["GRAM"] == 1 and config["DOWN"] == 1


def remainder(config: Config) -> tuple[int, int]:
    """Return the most remainder rows of E and columns of F of a warp, outside the MMA tiles (``remainder.cuh``)."""
    if not config["MMA"]:
        return 0, 0
    rows = config["M"] - 8 * config["TM"] * config["DOWN"]
    columns = config["N"] - 8 * config["TN"] * config["ACROSS"]
    return ceil_div(max(0, rows), config["DOWN"]), ceil_div(max(0, columns), config["ACROSS"])


def remainder_sums(config: Config) -> int:
    """Return the sums of a lane for the :func:`remainder`'s rows and columns, with its tile's and with each other."""
    rows, columns = remainder(config)
    return config["TM"] * columns + config["TN"] * rows + rows * columns


def mma_tiles(config: Config, *, diagonal: bool) -> int:
    """Return the MMA tiles of 16 x 8 outputs in a warp's tile.

    On a Gram matrix's diagonal only tiles on and above the diagonal count.

    >>> mma_tiles(Config.of(TM=8, TN=8), diagonal=True), mma_tiles(Config.of(TM=8, TN=8), diagonal=False)
    (20, 32)
    """
    rows, columns = config["TM"] // 2, config["TN"]
    return rows * columns - (rows * (rows - 1) if diagonal else 0)


def on_diagonal(config: Config, fragment: Fragments) -> list[bool]:
    """Return for each warp of a group on tensor cores whether it has half a tile, on a Gram matrix's diagonal.

    Such warps are spread over the schedulers, to which warps are assigned round-robin (``MmaMainloop::tile_of``).

    >>> [int(there) for there in on_diagonal(Config.of(GRAM=1, DOWN=4, S=320), FRAGMENTS[4])]
    [1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    """
    down = config["DOWN"] if triangle(config) or (config["GRAM"] and fragment.parts > 1) else 0
    rounds = (divmod(warp, SCHEDULERS) for warp in range(config["S"] // _LANES))
    return [scheduler < 2 and 2 * index + scheduler < down for index, scheduler in rounds]


def width_of(config: Config, name: str, extent: int, size: int) -> int:
    """Return the elements that a thread loads at once from a stage of ``name`` with ``extent`` rows or columns."""
    mode = config[f"{name}_MODE"]
    if by_word(config, name):
        return _WORD // size
    if k_contiguous(config, name):
        return config["V"]
    if mode == PACKED and config["ACROSS" if name == "F" else "DOWN"] == 1:
        return gcd(VECTOR_BYTES // size, config["V"] * extent)  # V k's of the whole matrix are one run
    return config[f"{name}_GROUP"]


def by_word(config: Config, name: str) -> bool:
    """Tell whether lanes load the words that hold unaligned 16-bit numbers (``fragments.cuh``)."""
    return config[f"{name}_MODE"] == SHIFTED and config["V"] > 1


def k_contiguous(config: Config, name: str) -> bool:
    """Tell whether k is contiguous in matrix ``name``, aligned or not."""
    return config[f"{name}_MODE"] in {ALONG_K, SHIFTED}


@dataclass(frozen=True)
class Fragments:
    """A warp's product of 16 x 8 outputs on tensor cores: its instructions (``parts``) and k's (``length``).

    ``adds`` is a lane's number of additions per row and column that add a short sum to the long one.
    """

    parts: int
    length: int
    adds: int


#: By bytes per element: 16-bit types, float32, and float64, whose MMA adds to the long sum itself.
FRAGMENTS = {2: Fragments(parts=1, length=16, adds=2), 4: Fragments(TF32_PRODUCTS, 8, 2), 8: Fragments(1, 8, 0)}


def mma_slots(config: Config, fragment: Fragments, *, diagonal: bool, chain: float = 1) -> float:
    """Return the issue slots of a lane for one fragment of k: products, additions, splitting, the remainder.

    ``chain`` products make one short sum. On the ``diagonal``, rows are also columns, and are copied.
    """
    tiles = mma_tiles(config, diagonal=diagonal)
    split = _SPLIT * config["TM"] + (_COPIED * config["TM"] if diagonal else _SPLIT * config["TN"])
    plain = 2 * remainder_sums(config) + sum(remainder(config))  # FMAs of two k's, and their loads
    return fragment.parts * tiles + 2 * fragment.adds * tiles / chain + (split if fragment.parts > 1 else 0) + plain


def busiest(diagonal: list[bool], warps: int, whole: float, half: float) -> float:
    """Return the cost of the busiest scheduler's ``warps``, if a whole tile costs ``whole`` and half a tile ``half``.

    Warps come in groups; ``diagonal`` (:func:`on_diagonal`) says which warps of a group have half a tile.
    """
    each = [half if there else whole for there in diagonal]
    return max(sum(each[w % len(each)] for w in range(first, warps, SCHEDULERS)) for first in range(SCHEDULERS))


def packed(config: Config) -> bool:
    """Tell whether a block has so many outputs that it reorders its sums before it writes them (``packed_sums.cuh``).

    Shared memory is reserved for that only with tensor cores; other configs with so many outputs usually have enough.
    """
    return config["M"] * config["N"] >= _MANY


def last_block(config: Config, itemsize: int) -> tuple[int, int]:
    """Return the vectors of a block's sums, and the threads side by side that read them (``last_block.cuh``).

    ``itemsize`` is a sum's, in bytes.
    """
    vectors = ceil_div(config["M"] * config["N"] * itemsize, VECTOR_BYTES)
    # Three vectors get a fourth, idle thread, so that a warp reads whole rows of them.
    return vectors, 4 if vectors == 3 else min(vectors, config["BS"])


def at_once(ways: int, threads: int, blocks: int) -> int:
    """Return the loads in flight of a thread of the last block if ``ways`` share an output (``last_block.cuh``).

    A block has ``threads`` threads, an SM ``blocks`` blocks.

    >>> [at_once(16, 256, blocks) for blocks in (1, 2, 3, 4)]
    [9, 17, 8, 6]
    """
    registers = 255 if threads * blocks <= 256 else 65536 // (threads * blocks) // 8 * 8
    return max(6, min(ceil_div(132 * blocks, ways), 16 if ways == 1 else 32, (registers - 48) // 4))


@dataclass(frozen=True)
class Reads:
    """A thread's loads of matrix ``name`` from a stage: ``width`` elements of ``size`` bytes each.

    ``late`` is for unaligned rows or columns that are read by words, ``v`` elements at a time: it is the number of
    elements by which their offset from an aligned vector grows from one to the next.
    """

    name: str
    size: int
    width: int
    group: int
    v: int
    along_k: bool
    square: tuple[int, int, int, int]
    mma: bool
    late: int | None

    @classmethod
    def of(cls, config: Config, name: str, problem: Gemm) -> Reads:
        """Return the loads of ``problem``'s E or F."""
        first, extent = name == "E" or problem.gram, problem.m if name == "E" else problem.n
        stride, size = problem.a_row_col[0] if first else problem.b_row_col[1], problem.dtype.itemsize
        late = stride % (VECTOR_BYTES // size) if by_word(config, name) else None
        return cls(
            name,
            size,
            width_of(config, name, extent, size),
            config[f"{name}_GROUP"],
            config["V"],
            k_contiguous(config, name),
            (config["DOWN"], config["ACROSS"], config["S"], config["GRAM"]),
            bool(config["MMA"]),
            late,
        )

    @property
    def per_element(self) -> float:
        """Loads per element: reading ``v`` elements by words takes one word more than they fill."""
        return 1 / self.width + (0 if self.late is None else 1 / self.v)

    def passes(self, pitch: int) -> float:
        """Return the passes of one such load of a warp if rows (or k's) are ``pitch`` elements apart."""
        taker, group = (pitch, self.v) if self.along_k else (self.group, self.v * pitch)
        apart = (taker * self.size, group * self.size, self.width * self.size)
        if self.mma:
            return float(_passes_of(_FRAGMENT, apart, (self.late or 0) * self.size))
        return _passes(self.square, self.name, apart)


@cache
def _passes(square: tuple[int, int, int, int], name: str, apart: tuple[int, int, int]) -> float:
    """Return the average passes of a warp.

    ``apart`` has distances in bytes, from one thread's rows to the next thread's and from one group of S threads to the
    next, and the bytes of a load.

    >>> _passes((2, 2, 4, 0), "E", (528, 16, 16)), _passes((2, 2, 4, 0), "E", (576, 16, 16))
    (4.0, 2.0)
    """
    s = square[2]
    warps = max(1, s // _LANES)
    count = 0
    for warp in range(warps):
        threads = range(warp * _LANES, (warp + 1) * _LANES)
        count += _passes_of(tuple((tile_of(t % s, *square)[name == "F"], t // s) for t in threads), apart)
    return count / warps


@cache
def _passes_of(lanes: tuple[tuple[int, int], ...], apart: tuple[int, int, int], late: int = 0) -> int:
    """Return the passes of a warp whose ``lanes`` are (taker, group).

    Each row starts ``late`` bytes later than the one before.

    >>> [_passes_of(_FRAGMENT, (2 * pitch, 16, 4), late=2) for pitch in (264, 272, 288)]
    [2, 2, 1]
    """
    taker_bytes, group_bytes, width = apart
    starts = [
        taker * taker_bytes + group * group_bytes + taker * late % VECTOR_BYTES // _WORD * _WORD
        for taker, group in lanes
    ]
    paired = width > _WORD and any(all(starts[i] == starts[i ^ bit] for i in range(_LANES)) for bit in (1, 2))
    together = min(_LANES, _ROW // max(width, _WORD) * (2 if paired else 1))
    count = 0
    for first in range(0, _LANES, together):
        words = {(start + at) // _WORD for start in starts[first : first + together] for at in range(0, width, _WORD)}
        banks = [word % (_ROW // _WORD) for word in words]
        count += max(map(banks.count, banks))
    return count


def tile_of(s: int, down: int, across: int, threads: int, gram: int) -> tuple[int, int]:
    """Return tile row and column of thread ``s`` of ``threads``, as ``SimtMainloop::tile_of`` in inner/simt.cuh does.

    >>> [tile_of(s, 3, 3, 8, 1) for s in range(6)]
    [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    """
    if gram and down * across > threads:
        upper = [(i, j) for i in range(down) for j in range(i, down)]
        return upper[s] if s < len(upper) else (0, 0)
    if down % 2 == 0 and across % 2 == 0:
        return s // 2 % 2 + s // (2 * across) * 2, s % 2 + s // 4 % (across // 2) * 2
    if down % 2 == 0:
        return s % 2 + s // (2 * across) * 2, s // 2 % across
    return divmod(s, across)
