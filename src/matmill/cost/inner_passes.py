"""Passes over the banks of shared memory that the inner kernel's reads of a stage take, lane by lane.

What a thread reads, and where, is of ``include/matmill/inner/lines.cuh`` and ``product.cuh``; what that costs is the
rule of ``matmill.emulator.banks``. The host chooses the pitches of stages by it, and the cost model counts by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

from matmill.config import Config

VECTOR_BYTES = 16

#: How a matrix's lines are read, as in lines.cuh.
ALONG_K, PACKED, STRIDED, SHIFTED = range(4)

_LANES, _ROW, _WORD = 32, 128, 4  # of a warp; bytes that all banks deliver at once; bytes of a bank


@dataclass(frozen=True)
class Reads:
    """A thread's loads of matrix ``name`` from a stage: ``width`` elements of ``size`` bytes each."""

    name: str
    size: int
    width: int
    group: int
    v: int
    linewise: bool
    square: tuple[int, int, int, int]

    @classmethod
    def of(cls, config: Config, name: str, lines: int, size: int) -> Reads:
        """Those of a matrix of ``lines`` lines."""
        mode, v, group = config[f"{name}_MODE"], config["V"], config[f"{name}_GROUP"]
        square = (config["DOWN"], config["ACROSS"], config["S"], config["GRAM"])
        linewise, width = mode in {ALONG_K, SHIFTED}, group
        if linewise:
            width = v
        elif mode == PACKED and square[name == "F"] == 1:
            width = gcd(VECTOR_BYTES // size, v * lines)  # all lines of V k's are one run
        return cls(name, size, width, group, v, linewise, square)

    def passes(self, pitch: int) -> int:
        """Passes that one such load of a warp takes where lines, or k's, lie ``pitch`` elements apart."""
        taker, group = (pitch, self.v) if self.linewise else (self.group, self.v * pitch)
        return _passes(self.square, self.name, taker * self.size, group * self.size, self.width * self.size)


@cache
def _passes(square: tuple[int, int, int, int], name: str, taker_bytes: int, group_bytes: int, width: int) -> int:
    """Takers of lines read ``taker_bytes`` apart, groups of S threads ``group_bytes``, ``width`` bytes each.

    >>> _passes((2, 2, 4, 0), "E", 528, 16, 16), _passes((2, 2, 4, 0), "E", 576, 16, 16)
    (4, 2)
    """
    s = square[2]
    takers = [tile_of(lane % s, *square)[name == "F"] for lane in range(_LANES)]
    starts = [taker * taker_bytes + lane // s * group_bytes for lane, taker in enumerate(takers)]
    paired = width > _WORD and any(all(starts[i] == starts[i ^ bit] for i in range(_LANES)) for bit in (1, 2))
    together = min(_LANES, _ROW // max(width, _WORD) * (2 if paired else 1))
    count = 0
    for first in range(0, _LANES, together):
        words = {(start + at) // _WORD for start in starts[first : first + together] for at in range(0, width, _WORD)}
        banks = [word % (_ROW // _WORD) for word in words]
        count += max(map(banks.count, banks))
    return count


def tile_of(s: int, down: int, across: int, threads: int, gram: int) -> tuple[int, int]:
    """Tile row and column of thread ``s`` of ``threads``, as ``InnerProduct::tile_of`` in product.cuh has it.

    >>> [tile_of(s, 3, 3, 8, 1) for s in range(6)]
    [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    """
    if gram and down * across > threads:
        upper = [(i, j) for i in range(down) for j in range(i, down)]
        return upper[s] if s < len(upper) else (0, 0)
    if down > 1 and across > 1:
        return s // 2 % 2 + s // (2 * across) * 2, s % 2 + s // 4 % (across // 2) * 2
    return (s if down > 1 else 0), (s if across > 1 else 0)
