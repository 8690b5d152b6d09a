"""Passes over the banks of shared memory that the inner kernel's reads of a stage take, lane by lane.

What a thread reads, and where, is of ``include/matmill/inner/fragments.cuh`` and ``simt.cuh``; what that costs is the
rule of ``matmill.emulator.memory.banks``. The host chooses the pitches of stages by it; the cost model counts by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from matmill.config import Config
from matmill.kernel import ceil_div
from matmill.problem import Gemm

VECTOR_BYTES = 16

#: How a matrix's lines are read, as in lines.cuh.
ALONG_K, PACKED, STRIDED, SHIFTED = range(4)

#: Of a multiprocessor; and outputs of an instruction of the matrix units, 16 x 8.
SCHEDULERS, UNIT_OUTPUTS = 4, 128

_LANES, _ROW, _WORD = 32, 128, 4  # of a warp; bytes that all banks deliver at once; bytes of a bank
#: Slots of a lane per line to split two float32, of two k's, into two of tf32 each, and to copy those. Integer
#: instructions take two.
_SPLIT, _COPIED = 12, 8
#: Outputs of which a block's sums are put in order.
_MANY = 1024
#: Taker of lines and group of k's of each lane of a warp that loads for the matrix units (``units.cuh``).
_FRAGMENT = tuple((lane // 4, lane % 4) for lane in range(_LANES))


def teams(config: Config) -> int:
    """Teams of threads, with stages of their own, into which a block falls (``include/matmill/inner/k_groups.cuh``)."""
    return config["U"] if config["UNITS"] else 1


def groups(config: Config) -> int:
    """Groups of S threads in a block, each with k's of its own."""
    return config["BS"] // config["S"]


def outputs_of(config: Config) -> int:
    """Sums of a thread: on the matrix units 4 of each unit of 16 x 8 outputs that its warp makes."""
    if not config["UNITS"]:
        return config["TM"] * config["TN"]
    return 4 * units_of(config, diagonal=triangle(config))


def triangle(config: Config) -> bool:
    """Whether one thread, or on the matrix units one warp, has a whole Gram matrix, of which it sums but one half."""
    return config["GRAM"] == 1 and config["DOWN"] == 1


def border(config: Config) -> tuple[int, int]:
    """Rows of E and columns of F beyond the tiles of the matrix units that each warp has (``border.cuh``), at most."""
    if not config["UNITS"]:
        return 0, 0
    rows = config["M"] - 8 * config["TM"] * config["DOWN"]
    columns = config["N"] - 8 * config["TN"] * config["ACROSS"]
    return ceil_div(max(0, rows), config["DOWN"]), ceil_div(max(0, columns), config["ACROSS"])


def border_sums(config: Config) -> int:
    """Sums of a lane of those lines, with its tile's and with each other."""
    rows, columns = border(config)
    return config["TM"] * columns + config["TN"] * rows + rows * columns


def units_of(config: Config, *, diagonal: bool) -> int:
    """Units of 16 x 8 outputs of a warp's tile: of a tile on a Gram matrix's diagonal those on and above that.

    >>> units_of(Config.of(TM=8, TN=8), diagonal=True), units_of(Config.of(TM=8, TN=8), diagonal=False)
    (20, 32)
    """
    rows, columns = config["TM"] // 2, config["TN"]
    return rows * columns - (rows * (rows - 1) if diagonal else 0)


def on_diagonal(config: Config, made: Fragments) -> list[bool]:
    """Of each warp of a group on the matrix units, whether it makes but one half of a tile on a Gram matrix's diagonal.

    Such warps are spread over the schedulers, which take warps in turns (``MmaMainloop::tile_of``).

    >>> [int(there) for there in on_diagonal(Config.of(GRAM=1, DOWN=4, S=320), FRAGMENTS[4])]
    [1, 1, 0, 0, 1, 1, 0, 0, 0, 0]
    """
    down = config["DOWN"] if triangle(config) or (config["GRAM"] and made.parts > 1) else 0
    turns = (divmod(warp, SCHEDULERS) for warp in range(config["S"] // _LANES))
    return [scheduler < 2 and 2 * turn + scheduler < down for turn, scheduler in turns]


def width_of(config: Config, name: str, lines: int, size: int) -> int:
    """Elements that a thread loads at once from a stage of matrix ``name``, of ``lines`` lines."""
    mode = config[f"{name}_MODE"]
    if by_word(config, name):
        return _WORD // size
    if lies_along_k(config, name):
        return config["V"]
    if mode == PACKED and config["ACROSS" if name == "F" else "DOWN"] == 1:
        return gcd(VECTOR_BYTES // size, config["V"] * lines)  # all lines of V k's are one run
    return config[f"{name}_GROUP"]


def by_word(config: Config, name: str) -> bool:
    """Whether lanes load 16-bit numbers of lines that begin anywhere by the words that hold them (``lines.cuh``)."""
    return config[f"{name}_MODE"] == SHIFTED and config["V"] > 1


def lies_along_k(config: Config, name: str) -> bool:
    """Whether k is contiguous in matrix ``name``, wherever its lines begin: it is then read line by line."""
    return config[f"{name}_MODE"] in {ALONG_K, SHIFTED}


@dataclass(frozen=True)
class Fragments:
    """A warp's product of 16 x 8 outputs on the matrix units: its instructions (``parts``) and k's (``length``).

    ``adds`` are a lane's plain additions for each of its rows and columns, which bring a short sum to the long one.
    """

    parts: int
    length: int
    adds: int


#: By the bytes of an element: of 16 bits, of float32, and of float64, whose units add to the long sum themselves.
FRAGMENTS = {2: Fragments(parts=1, length=16, adds=2), 4: Fragments(3, 8, 2), 8: Fragments(1, 8, 0)}


def unit_slots(config: Config, made: Fragments, *, diagonal: bool, chain: float = 1) -> float:
    """Issue slots of a lane for a fragment's k's: products, their sums' way to the long ones, splitting, the border.

    ``chain`` products come to one sum. On the ``diagonal`` rows are columns too, and copied.
    """
    units = units_of(config, diagonal=diagonal)
    split = _SPLIT * config["TM"] + (_COPIED * config["TM"] if diagonal else _SPLIT * config["TN"])
    plain = 2 * border_sums(config) + sum(border(config))  # of two k's: multiply-adds, and loads of theirs
    return made.parts * units + 2 * made.adds * units / chain + (split if made.parts > 1 else 0) + plain


def busiest(diagonal: list[bool], warps: int, whole: float, half: float) -> float:
    """The cost of those of ``warps`` that the busiest scheduler has: of ``whole`` tiles, and ``half`` ones.

    They come in groups, of whose warps :func:`on_diagonal` says which have half a tile.
    """
    each = [half if there else whole for there in diagonal]
    return max(sum(each[w % len(each)] for w in range(first, warps, SCHEDULERS)) for first in range(SCHEDULERS))


def packed(config: Config) -> bool:
    """Whether a block has so many outputs that it puts its sums in order before it writes them (``packed_sums.cuh``).

    Room for that is made for the matrix units; others, of so many outputs, have it as a rule.
    """
    return config["M"] * config["N"] >= _MANY


def last_block(config: Config, itemsize: int) -> tuple[int, int]:
    """Vectors of a block's sums, and threads side by side with which the last block reads them (``last_block.cuh``).

    ``itemsize`` is that of a sum, in bytes.
    """
    places = ceil_div(config["M"] * config["N"] * itemsize, VECTOR_BYTES)
    # Three take a fourth thread that idles, so that a warp has whole rows of them.
    return places, 4 if places == 3 else min(places, config["BS"])


def at_once(ways: int, threads: int, blocks: int) -> int:
    """Vectors that a thread of the last block has under way where ``ways`` share an output's (``last_block.cuh``).

    ``threads`` are those of a block, of which a multiprocessor has ``blocks``.

    >>> [at_once(16, 256, blocks) for blocks in (1, 2, 3, 4)]
    [9, 17, 8, 6]
    """
    registers = 255 if threads * blocks <= 256 else 65536 // (threads * blocks) // 8 * 8
    return max(6, min(ceil_div(132 * blocks, ways), 16 if ways == 1 else 32, (registers - 48) // 4))


@dataclass(frozen=True)
class Reads:
    """A thread's loads of matrix ``name`` from a stage: ``width`` elements of ``size`` bytes each.

    ``late`` is how many elements after an aligned vector a line of the matrix begins for each line before it, where
    lines begin anywhere and are read by the words of ``v`` neighbours.
    """

    name: str
    size: int
    width: int
    group: int
    v: int
    linewise: bool
    square: tuple[int, int, int, int]
    units: bool
    late: int | None

    @classmethod
    def of(cls, config: Config, name: str, problem: Gemm) -> Reads:
        """Those of ``problem``'s E or F."""
        first, lines = name == "E" or problem.gram, problem.m if name == "E" else problem.n
        stride, size = problem.a_row_col[0] if first else problem.b_row_col[1], problem.dtype.itemsize
        late = stride % (VECTOR_BYTES // size) if by_word(config, name) else None
        return cls(
            name,
            size,
            width_of(config, name, lines, size),
            config[f"{name}_GROUP"],
            config["V"],
            lies_along_k(config, name),
            (config["DOWN"], config["ACROSS"], config["S"], config["GRAM"]),
            bool(config["UNITS"]),
            late,
        )

    @property
    def per_element(self) -> float:
        """Loads for each element: of ``v`` neighbours by words one more than they fill."""
        return 1 / self.width + (0 if self.late is None else 1 / self.v)

    def passes(self, pitch: int) -> float:
        """Passes that one such load of a warp takes where lines, or k's, lie ``pitch`` elements apart."""
        taker, group = (pitch, self.v) if self.linewise else (self.group, self.v * pitch)
        apart = (taker * self.size, group * self.size, self.width * self.size)
        if self.units:
            return float(_passes_of(_FRAGMENT, apart, (self.late or 0) * self.size))
        return _passes(self.square, self.name, apart)


@cache
def _passes(square: tuple[int, int, int, int], name: str, apart: tuple[int, int, int]) -> float:
    """Of a warp, in the mean.

    ``apart`` are bytes from taker to taker of lines and from one group of S threads to the next, and of a load.

    >>> _passes((2, 2, 4, 0), "E", (528, 16, 16)), _passes((2, 2, 4, 0), "E", (576, 16, 16))
    (4.0, 2.0)
    """
    s = square[2]
    warps = max(1, s // _LANES)
    found = 0
    for warp in range(warps):
        threads = range(warp * _LANES, (warp + 1) * _LANES)
        found += _passes_of(tuple((tile_of(t % s, *square)[name == "F"], t // s) for t in threads), apart)
    return found / warps


@cache
def _passes_of(lanes: tuple[tuple[int, int], ...], apart: tuple[int, int, int], late: int = 0) -> int:
    """Those of a warp whose lanes are given as taker and group; each line begins ``late`` bytes later than the last.

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
    """Tile row and column of thread ``s`` of ``threads``, as ``SimtMainloop::tile_of`` in inner/simt.cuh has it.

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
