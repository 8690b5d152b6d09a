"""Tiles of the kernel for few rows or columns in ``kernels/thin``: the host's side of its arithmetic.

The kernel computes a product with few columns: one with few rows is computed with A and B exchanged
(:func:`~matmill.kernels.shared.exchange.exchanged`). A, which is then the long matrix, is read in vectors along the
dimension in which it is contiguous, by 8 warps that share its rows and k among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.dtypes import DType
from matmill.kernel import ceil_div
from matmill.kernels.shared.tiled import LONGEST, VECTOR_BYTES
from matmill.problem import Gemm

#: The constants that tell one tile from another, of those that a problem allows.
TILE = ("ROWS", "WARPS_K")
#: The most columns, and the warps of a block.
MOST_FEW, WARPS = 16, 8
#: Bytes of each of the two buffers for B, and the most k's in it. One is filled while a batch is multiplied with the
#: other.
_BUFFER_BYTES, _MOST_BK = 16384, 1024
#: The most registers for sums if A is read along k and if it is not (which takes more addresses), and for the elements
#: of A that are loaded at a time: two such batches are held.
_MOST_SUMS, _LOADED = {1: 64, 0: 32}, 16
#: The most 16-bit numbers of A that are widened at a time for contiguous rows, and the most together with sums.
_MOST_WIDENED, _MOST_HELD = 16, 56
#: Sums beyond which half as much is loaded at a time.
_MANY_SUMS = 48
#: The most loads of a lane at a time if they have less than 16 bytes, and the most k's of a run for contiguous rows.
_MOST_LOADS, _MOST_RUN = 16, 8
#: Registers for addresses and counters, and for reads of a column that the compiler issues early: measured in machine
#: code for sm_90a.
_OTHERS, _AHEAD, _MOST_AHEAD = 18, 6, 36
#: Blocks per SM: all tiles here fit in the registers of two, or of four, and so have enough bytes in flight.
_BLOCKS = (2, 4)
_CACHE_LINE, _WARP = 128, 32


def few(problem: Gemm) -> int:
    """Return the columns for which the kernel is compiled, a power of two.

    >>> few(Gemm(m=3, n=5000, k=300)), few(Gemm(m=5000, n=9, k=300))
    (4, 16)
    """
    return 1 << (min(problem.m, problem.n) - 1).bit_length()


def along_k(launched: Gemm) -> bool:
    """Tell whether A is read along k, not along its rows, in a problem with few columns."""
    row, column = launched.a_row_col
    return abs(column) <= abs(row)


def vector(launched: Gemm) -> int:
    """Return the elements of the widest vectors that A's strides and alignment allow, a power of two.

    >>> vector(Gemm(m=404, n=3, k=2156)), vector(Gemm(m=404, n=3, k=2157, a_align=4))
    (4, 1)
    """
    row, column = launched.a_row_col
    inner, outer = (column, row) if along_k(launched) else (row, column)
    extent, count = (launched.k, launched.m) if along_k(launched) else (launched.m, launched.k)
    return _width(launched, (inner, outer), (extent, count), launched.a_align)


def _width(launched: Gemm, strides: tuple[int, int], extents: tuple[int, int], align: int) -> int:
    """Return the elements of vectors along the first dimension; they divide its extent."""
    size = launched.dtype.itemsize
    inner, outer = strides
    extent, count = extents
    if inner != 1:
        return 1
    # Alignments ignore runs that are one element apart.
    aligned = gcd(align, outer * size) if count > 1 else align
    return gcd(VECTOR_BYTES // size, max(1, aligned // size), extent)


def shapes(launched: Gemm, arch: Arch, tiles: Tiles | None = None) -> Columns:
    """Return the tiles worth considering for a problem with few columns: rows of a lane, and warps that divide k.

    With ``tiles`` they are those of it that are among these.
    """
    b_row, b_column = launched.b_row_col
    b_along_k = abs(b_row) <= abs(b_column) or launched.n == 1
    # Chunks of B are powers of two of k's, and none is larger.
    least_k = 1 << min(launched.k, _MOST_BK).bit_length() - 1 if launched.k else 0
    facts = _Facts(
        launched.dtype,
        few(launched),
        vector(launched),
        int(along_k(launched)),
        least_k,
        int(b_along_k),
        _b_vector(launched) if b_along_k else 1,
        arch.registers_per_sm,
    )
    return _shapes(facts, tiles)


class _Facts(NamedTuple):
    """All that tiles depend on: ``least_k`` is the largest power of two up to k, of those that matter."""

    dtype: DType
    few: int
    width: int
    by_k: int
    least_k: int
    b_along_k: int
    b_vec: int
    registers: int


@lru_cache(maxsize=1024)
def _shapes(facts: _Facts, tiles: Tiles | None) -> Columns:
    return Columns(tuple(_tiles(facts))).having(TILE, tiles)


def _tiles(facts: _Facts) -> Iterator[Config]:
    size, sums = facts.dtype.itemsize, facts.dtype.accumulator.itemsize
    number, width, by_k = facts.few, facts.width, facts.by_k
    most_rows = max(1, _MOST_SUMS[by_k] * 4 // (sums * number))
    if facts.dtype.is_integer and sums * number >= 4 * VECTOR_BYTES:  # products of integers take registers too
        most_rows = min(most_rows, 1 + by_k)
    most_bk = min(_MOST_BK, _BUFFER_BYTES // (sums * number))
    for warps_k in (1, 2, 4, 8):
        if not by_k:
            rows = min(width, most_rows)
            run = min(_MOST_RUN, _LOADED * 4 // (rows * size))
            runs = 1
            if size < sums and rows * run > _MOST_WIDENED:
                run, runs = _MOST_WIDENED // rows, rows * run // _MOST_WIDENED
            lanes_k = max(1, _WARP * rows * size // _CACHE_LINE)
            tiles = [Config.of(ROWS=rows, RUN=run, RUNS=runs, LANES_K=lanes_k, WARPS_K=warps_k, A_ALONG_K=0)]
        else:
            tiles = []
            for rows in (rows for rows in _rows(number) if rows <= most_rows):
                bound = _LOADED // 2 if rows * number * sums > 4 * _MANY_SUMS else _LOADED
                loads = min(_MOST_LOADS, bound * 4 // (width * size)) // rows
                runs = max(1, min(loads, most_bk // (warps_k * _WARP * width)))
                tiles.append(Config.of(ROWS=rows, RUN=width, RUNS=runs, LANES_K=_WARP, WARPS_K=warps_k, A_ALONG_K=1))
        for tile in tiles:
            held = tile["ROWS"] * (number + tile["RUN"])
            if batch(tile) <= most_bk and (size == sums or held <= _MOST_HELD):
                yield _completed(tile.replace(FEW=number), facts, most_bk)


def _rows(number: int) -> tuple[int, ...]:
    """Return rows per lane worth considering: with many columns, two or more rows share a read from shared memory."""
    return (1, 2, 4) if number < MOST_FEW // 2 else (2, 4)


def batch(config: Configs) -> Any:
    """Return the k's that a block's warps take at a time."""
    return config["WARPS_K"] * config["LANES_K"] * config["RUN"] * config["RUNS"]


def _completed(tile: Config, facts: _Facts, most_bk: int) -> Config:
    """Return ``tile`` with its chunks of B, and as many blocks per SM as registers allow."""
    bk = batch(tile)
    while 2 * bk <= min(most_bk, max(bk, facts.least_k)):
        bk *= 2
    config = tile.replace(BK=bk, B_ALONG_K=facts.b_along_k, B_VEC=facts.b_vec)
    needed = ceil_div(registers(config, facts.dtype.itemsize, facts.dtype.accumulator.itemsize), 8) * 8
    least, most = _BLOCKS
    return config.replace(BLOCKS_PER_SM=max(least, min(most, facts.registers // (needed * WARPS * _WARP))))


def _b_vector(launched: Gemm) -> int:
    """Return the elements of the widest copies of B along k; 16-bit elements are converted one by one."""
    if launched.dtype.wider is not None:
        return 1
    return _width(launched, launched.b_row_col, (launched.k, launched.n), launched.b_align)


def registers(config: Config, size: int, sums: int) -> int:
    """Return an estimate of a thread's registers: sums, two batches of A, a widened run of A, a run of B, addresses."""
    words = sums // 4
    rows, run = config["ROWS"], config["RUN"]
    wide = run if config["A_ALONG_K"] else rows
    loads = rows * run * config["RUNS"] // wide
    loaded = 2 * loads * ceil_div(wide * size, 4)
    widened = rows * run * words if size < sums else 0
    copied = config["FEW"] * config["BK"] // (WARPS * _WARP) if size < sums else 0
    ahead = min(_AHEAD * config["FEW"], _MOST_AHEAD) + min(run * words, 4) + (3 * rows if wide == 1 else 0)
    return rows * config["FEW"] * words + loaded + widened + copied + ahead + _OTHERS


def rows_of_block(config: Configs) -> Any:
    """Return the rows of D that a block computes."""
    return WARPS // config["WARPS_K"] * (_WARP // config["LANES_K"]) * config["ROWS"]


def why_not_few(problem: Gemm) -> str | None:
    """Return why a product does not have few rows or columns, or None."""
    side = min(problem.m, problem.n)
    if not 1 <= side <= MOST_FEW:
        return f"{problem.m} x {problem.n} outputs have more than {MOST_FEW} rows and columns, or none"
    return None


def why_not(launched: Gemm, config: Config) -> str | None:
    """Return why the tile cannot compute a problem with few columns, or None."""
    if launched.k > LONGEST - config["BK"]:
        return f"k = {launched.k} > {LONGEST - config['BK']}"
    if config["FEW"] < launched.n:
        return f"constants for {config['FEW']} of {launched.n} rows or columns"
    widest = vector(launched)
    width = config["RUN"] if config["A_ALONG_K"] else config["ROWS"]
    other_way = config["A_ALONG_K"] != int(along_k(launched)) and width > 1
    if config["B_VEC"] > _b_vector(launched):
        return f"copies of {config['B_VEC']} elements need aligned, contiguous columns or rows along k"
    if other_way or width > widest:
        return f"vectors of {width} elements need aligned, contiguous rows in multiples of {width} elements"
    return None
