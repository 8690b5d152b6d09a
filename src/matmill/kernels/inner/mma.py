"""Configurations that multiply on matrix units (``include/matmill/inner/mma.cuh``): for what multiply-adds hold up.

A warp's tile, how many warps side by side and one above the other make up D, how many such groups share a block's k's,
and what a stage holds make a configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd

from matmill.arch import Arch
from matmill.config import Config
from matmill.cost.inner_passes import (
    ALONG_K,
    FRAGMENTS,
    SCHEDULERS,
    SHIFTED,
    STRIDED,
    VECTOR_BYTES,
    Fragments,
    border,
    border_sums,
    busiest,
    lies_along_k,
    on_diagonal,
    outputs_of,
    teams,
    triangle,
    unit_slots,
    units_of,
)
from matmill.kernel import ceil_div
from matmill.kernels.inner.stages import LEAST_COPY, with_stages
from matmill.problem import Gemm
from matmill.tiling.mma import ELEMENT_BYTES

#: Of the time that memory takes at best, what multiply-adds must take; and the fewest outputs in 16 bits,
#: whose widening takes as long as their multiply-adds.
_LEAST_MULTIPLIES, _FEWEST = 0.25, 48
#: Lines of a lane in a fragment of E and of F, and lanes that share those.
_E_LINES, _LANES, _WARP = 2, 8, 32
#: Bytes of float32 and of float64.
_SINGLE, _DOUBLE = 4, 8
#: Registers of a thread for addresses and counters.
_OTHERS, _OTHERS_OF_DOUBLES, _OF_BORDER = 40, 52, 24
#: And of float32 where teams load lines that do not lie along k.
_OF_TURNED_TEAMS = 40
#: And for each 16-bit line that begins anywhere, by the k's that are loaded at once (of few, more is loaded ahead), and
#: for each beside such that does not lie along k.
_OF_SHIFTED, _OF_TURNED = {4: 3, 8: 2}, 2
#: Tiles to consider, and how much more than the least burden the last of them may be.
_TILES, _MOST_BURDEN = 3, 1.3
#: Cycles in which a scheduler issues nothing else, per instruction of the matrix units on an H200; and those for which
#: one on float64 keeps them busy, while others are issued.
_HELD, _BUSY = 7.0, 32.0
#: Warps of a block and of a multiprocessor.
_MOST_WARPS, _WARPS = 16, (8, 12, 16)
#: Stages; bytes of a multiprocessor's that may be under way, and of a line's part of a stage.
_STAGES, _FLIGHT, _LINE = 3, (25_000, 125_000), 64
#: Steps of a group in a stage, and registers that the compiler takes to load for several at once.
_AHEAD = {2: 0, 4: 16}
#: Bytes of a line that a lane loads of a stage, at most: more is more code, and more registers than were thought of.
#: And where nothing else is left for float64, and of Gram matrices of float32, whose stages have half the lines.
_MOST_LOADED = 32, 64
#: Sums of a lane beyond which the compiler has no registers for two products of float32 in a chain.
_MOST_CHAINED = 64
_MOST_TEAMS = 15
#: Rows, or columns, of float32 that may lie beyond the tiles (``border.cuh``).
_MOST_BORDER = 4
#: Bytes on which lines start, and sides above which 16-bit products that do not lie along k are left to tiles: on an
#: H200 (2026-11-22) 64 x 64 x 1562560 took 1.09 times as long there as on the units here, 80 x 80 0.96 times, 96 x 96
#: 1.01, 112 x 112 0.95, 128 x 128 0.75; but 65 x 65 and 127 x 127, whose lines start anywhere, 2.2 and 2.1 times.
_ALIGNED, _NARROW = 8, 64

#: Mode, lines, width of E and of F, and whether lines that begin anywhere may be copied by whole vectors.
Lies = tuple[int, int, int, bool]


def units(problem: Gemm, arch: Arch, lies: tuple[Lies, Lies]) -> Iterator[Config]:
    """Those worth considering, without a grid."""
    if why_not_tensor_cores(problem, arch) is not None or not _bound(problem, arch) or _tiled(problem, lies):
        return
    if not all(_copies(one, problem.dtype.itemsize) for one in lies):
        return
    tiles = list(_tiles(problem, arch, lies))
    if problem.gram and problem.dtype.name == "float32":
        yield from _of_tiles(problem, arch, lies, tiles, _MOST_LOADED[1])
        return
    for most in _MOST_LOADED[: 2 if problem.dtype.name == "float64" else 1]:
        found = list(_of_tiles(problem, arch, lies, tiles, most))
        if found:  # or float64's triangles of small tiles would have too little under way
            yield from found
            return


def _of_tiles(
    problem: Gemm, arch: Arch, lies: tuple[Lies, Lies], tiles: list[Config], most_loaded: int
) -> Iterator[Config]:
    for copies, v in _ways(problem, lies):
        chained = v * problem.dtype.itemsize == VECTOR_BYTES and problem.dtype.name == "float32"
        for tile in tiles:
            if chained and outputs_of(tile) + border_sums(tile) > _MOST_CHAINED:
                continue
            yield from _launched(problem, arch, _read(problem, tile.replace(V=v, **copies)), most_loaded)


def why_not_tensor_cores(problem: Gemm, arch: Arch) -> str | None:
    """Why the matrix units of ``arch`` do not multiply the problem's elements, or None."""
    if problem.dtype.name == "float64" and "float64" not in arch.matrix_flops:
        return f"{arch.title} has no matrix units for float64"
    if arch.capability < (8, 0):
        return f"mma.sync on tf32 and bfloat16 needs compute capability 8.0: {arch.title} is older"
    return None


def _bound(problem: Gemm, arch: Arch) -> bool:
    """Whether multiply-adds take long enough, compared with memory."""
    lines = problem.m if problem.gram else problem.m + problem.n
    outputs = problem.m * problem.n * (0.5 if problem.gram else 1.0)
    if problem.dtype.wider is not None:
        return outputs >= _FEWEST
    memory = lines * problem.dtype.itemsize / arch.dram_bytes_per_s
    return 2 * outputs / arch.peak(problem.dtype.name) >= _LEAST_MULTIPLIES * memory


def _tiled(problem: Gemm, lies: tuple[Lies, Lies]) -> bool:
    """Whether tiles of the kernel for 16 bits are as fast: of wide matrices that are aligned and do not lie along k."""
    turned = any(mode != ALONG_K for mode, *_ in lies)
    aligned = min(problem.a_align, problem.b_align) >= _ALIGNED
    return problem.dtype.wider is not None and turned and aligned and min(problem.m, problem.n) > _NARROW


def _side_by_side(problem: Gemm, lies: tuple[Lies, Lies]) -> int:
    """Columns of F that a lane takes together: pairs of 16-bit columns that do not lie along k are loaded as one."""
    (_mode, *_), (mode, lines, *_) = lies
    return 2 if problem.dtype.wider is not None and mode != ALONG_K and lines % 2 == 0 else 1


def _tiles(problem: Gemm, arch: Arch, lies: tuple[Lies, Lies]) -> Iterator[Config]:
    """Tiles of a warp, those of the least burden: a scheduler's cycles for the fragments' k's of all warps."""
    m, n, gram = problem.m, problem.n, problem.gram
    side_by_side = _side_by_side(problem, lies)
    e_mode, f_mode = (_copies(one, problem.dtype.itemsize)[-1][0] for one in lies)
    made = FRAGMENTS[problem.dtype.itemsize]
    found = []
    bordered = problem.dtype.name == "float32" and not gram
    for down, across in product(range(1, 9), range(1, 17)):
        if gram and down != across:
            continue
        rows = _lines(m, _E_LINES, down, bordered=bordered)
        columns = rows if gram and down > 1 else _lines(n, side_by_side, across, bordered=bordered)
        for tm, tn in product(rows, columns):
            tile = Config.of(
                M=m,
                N=n,
                TM=tm,
                TN=tn,
                DOWN=down,
                ACROSS=across,
                S=_WARP * _warps(down, across, gram=gram),
                GRAM=int(gram),
                UNITS=1,
                V=4 if problem.dtype.wider is not None else 2,
                U=0,
                E_MODE=e_mode,
                F_MODE=f_mode,
                E_GROUP=0,
                F_GROUP=0,
            )
            if _fits(tile, problem, arch):
                found.append((_burden(tile, problem.dtype.name, made), tile))
    found.sort(key=lambda pair: pair[0])
    yield from (tile for burden, tile in found[:_TILES] if burden <= _MOST_BURDEN * found[0][0])


def _fits(tile: Config, problem: Gemm, arch: Arch) -> bool:
    """Whether a block may have its warps, and as many as make a multiprocessor's least have their registers."""
    warps, needed = tile["S"] // _WARP, _registers(tile, problem.dtype.itemsize)
    return warps <= _MOST_WARPS and needed <= _most_registers(arch, min(_counts(warps)))


def _lines(count: int, together: int, takers: int, *, bordered: bool) -> list[int]:
    """Of a lane, where ``takers`` warps share ``count``: as many as cover them, or those that leave a border of few.

    None where fewer warps have the same tiles.

    >>> [_lines(65, 2, 1, bordered=True), _lines(65, 1, 3, bordered=True), _lines(65, 1, 8, bordered=True)]
    [[10, 8], [3], [1]]
    """
    share = together * _LANES * takers
    covering, left = together * ceil_div(count, share), count % share
    found = [covering] if ceil_div(count, _LANES * covering) == takers else []
    if bordered and 0 < left <= _MOST_BORDER < share <= count:
        found.append(covering - together)
    return found


def _warps(down: int, across: int, *, gram: bool) -> int:
    """Of a group: a Gram matrix has tiles on and above the diagonal alone."""
    return down * (down + 1) // 2 if gram else down * across


def _burden(tile: Config, dtype: str, made: Fragments) -> float:
    """Cycles of the busiest scheduler for a fragment's k's of a group's warps: of 12 warps it has 3, of 10 as many."""
    cycles = []
    for diagonal in (False, True):
        slots, instructions = unit_slots(tile, made, diagonal=diagonal), made.parts * units_of(tile, diagonal=diagonal)
        if made.parts == 1:
            slots += tile["TM"] + (0 if diagonal else tile["TN"])
        held = max(slots, _BUSY * instructions) if dtype == "float64" else slots + (_HELD - 1) * instructions
        cycles.append(held)
    halves = on_diagonal(tile, made)
    own = len(halves)
    return min(busiest(halves, count, *cycles) * own / count for count in _counts(own))


def _counts(own: int) -> list[int]:
    """Warps of a multiprocessor, in whole groups of ``own``."""
    return [warps for warps in _WARPS if warps % own == 0] or [max(1, _WARPS[-1] // own) * own]


def _registers(tile: Config, size: int) -> int:
    """Of a thread: sums, short sums, the fragments that are multiplied and those that are loaded meanwhile.

    Of 16-bit lines that are loaded one by one, numbers have a register each until they are one of a pair. Those that
    begin anywhere have a word more than they fill, and what says how late it is.
    """
    tn, sums = tile["TN"], outputs_of(tile)
    loaded = {"E": tile["TM"], "F": 0 if triangle(tile) else tn}
    lines = sum(loaded.values())
    if size == _DOUBLE:
        return 2 * sums + 8 * lines + _OTHERS_OF_DOUBLES
    if size == _SINGLE:
        sums += 16 if triangle(tile) else 0  # rows are copied to be columns
        beyond = sum(border(tile))
        sums += 6 * beyond + border_sums(tile) + (_OF_BORDER if beyond else 0)
        sums += 8 if tile["V"] * size == VECTOR_BYTES else 0  # a row's second product
        turned_teams = teams(tile) > 1 and not (tile["GRAM"] or lies_along_k(tile, "F"))
        return sums + 8 * tn + 8 + 4 * lines + _OTHERS + (_OF_TURNED_TEAMS if turned_teams else 0)
    turned = {name: n for name, n in loaded.items() if not lies_along_k(tile, name)}
    alone = sum(n for name, n in turned.items() if tile[f"{name}_GROUP"] == 1)
    begin_anywhere = sum(n for name, n in loaded.items() if tile[f"{name}_MODE"] == SHIFTED)
    sums += _OF_SHIFTED[tile["V"]] * begin_anywhere + (_OF_TURNED * sum(turned.values()) if begin_anywhere else 0)
    return sums + 4 * tn + tile["V"] * (lines + alone) + _OTHERS


def _ways(problem: Gemm, lies: tuple[Lies, Lies]) -> Iterator[tuple[dict[str, int], int]]:
    """How matrices are copied, without groups, and how many k's a lane loads at once."""
    size = problem.dtype.itemsize
    e_ways, f_ways = (_copies(one, size) for one in lies)
    # Both as they lie, or whatever can be shifted.
    for (e_mode, e_width), (f_mode, f_width) in dict.fromkeys([(e_ways[0], f_ways[0]), (e_ways[-1], f_ways[-1])]):
        copies = {"E_MODE": e_mode, "E_WIDTH": e_width, "F_MODE": f_mode, "F_WIDTH": f_width}
        for v in _lengths(size, {e_mode, f_mode}):
            yield copies, v


def _copies(lie: Lies, size: int) -> list[tuple[int, int]]:
    """Mode and width of copies of one matrix: as it lies, and by whole vectors."""
    mode, lines, width, shifts = lie
    full = VECTOR_BYTES // size
    if mode == ALONG_K:
        ways = [(ALONG_K, width)] + ([(SHIFTED, full)] if shifts and width < full else [])
    else:
        whole = lines % full == 0 and width % full == 0
        ways = [(STRIDED, full) if whole else (mode, width)]
    return [way for way in ways if way[1] * size >= LEAST_COPY]


def _lengths(size: int, modes: set[int]) -> tuple[int, ...]:
    """How many k's a lane loads at once."""
    if size == ELEMENT_BYTES:
        return (4, 8)
    if SHIFTED in modes:
        return (1,)
    several = (2, 4) if size == _SINGLE else (2,)
    return several if modes == {ALONG_K} else (1, *several)


def _read(problem: Gemm, tile: Config) -> Config:
    """``tile`` with the lines of a load: one where they lie along k, else as many as lie side by side in a vector."""
    counts: dict[str, tuple[int, ...]] = {"E": (tile["TM"], problem.m), "F": (tile["TN"], problem.n)}
    if problem.gram:  # both are read from E's stage
        counts = dict.fromkeys("EF", (tile["TM"], tile["TN"], problem.m))
    return tile.replace(
        **{
            f"{name}_GROUP": 1 if lies_along_k(tile, name) else gcd(VECTOR_BYTES // problem.dtype.itemsize, *numbers)
            for name, numbers in counts.items()
        }
    )


def _launched(problem: Gemm, arch: Arch, read: Config, most_loaded: int) -> Iterator[Config]:
    """Groups, stages and blocks."""
    size = problem.dtype.itemsize
    row = (problem.m if problem.gram else problem.m + problem.n) * size
    own = read["S"] // _WARP
    for warps, blocks in product(_counts(own), (1, 2)):
        groups, left = divmod(warps, own * blocks)
        if left or not 0 < groups <= _MOST_TEAMS:
            continue
        most = _most_registers(arch, warps, blocks)
        for count in sorted({1, groups}):
            needed = _registers(read.replace(U=count), size)
            for steps, taken in _AHEAD.items():
                if needed + taken > most or steps * read["V"] * size > most_loaded:
                    continue
                bk = steps * _step(read) * groups // count
                config = read.replace(U=count, BS=groups * read["S"], BK=bk, STAGES=_STAGES, BLOCKS_PER_SM=blocks)
                if why_not_mma(problem, config, arch) is not None:
                    continue
                config = with_stages(config, problem)
                shared = config["SHARED_BYTES"]
                flight = row * bk * count * (_STAGES - 1) * blocks
                if (
                    bk * size >= _least_run(config, size)
                    and shared <= arch.shared_per_block
                    and (shared + arch.shared_reserved) * blocks <= arch.shared_per_sm
                    and _FLIGHT[0] <= flight <= _FLIGHT[1]
                ):
                    yield config


def _least_run(config: Config, size: int) -> int:
    """Bytes of a line's part of a stage, where lines lie along k.

    Twice as many where parts begin in the middle of sectors. Teams, which ask for theirs each at a time of its own,
    took 1.5 times as long with parts of 64 bytes.
    """
    along = [name for name in "EF" if lies_along_k(config, name)]
    cut = any(config[f"{name}_WIDTH"] * size < VECTOR_BYTES for name in along)
    return 2 * _LINE if cut or (along and teams(config) > 1) else _LINE


def _most_registers(arch: Arch, warps: int, blocks: int = 1) -> int:
    """Of a thread where so many warps, in so many blocks, share a multiprocessor, whose schedulers have their own."""
    each = blocks * ceil_div(warps // blocks, SCHEDULERS)
    return min(255, arch.registers_per_sm // SCHEDULERS // (_WARP * each) // 8 * 8)


def _step(config: Config) -> int:
    """Terms of k that a group multiplies at a time."""
    return 4 * config["V"] * (2 if config["V"] == 1 else 1)


def why_not_mma(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Why a block cannot multiply so on the matrix units of ``arch``, or None."""
    return why_not_tensor_cores(problem, arch) or _why_not_warps(problem, config) or _why_not_stages(problem, config)


def _why_not_warps(problem: Gemm, config: Config) -> str | None:
    down, across, tm, tn, bs = (config[name] for name in ("DOWN", "ACROSS", "TM", "TN", "BS"))
    warps = _warps(down, across, gram=problem.gram)
    if not 1 <= config["U"] <= _MOST_TEAMS:
        return f"U = {config['U']}: not 1 to {_MOST_TEAMS} teams"
    if config["S"] != _WARP * warps or bs % (config["S"] * config["U"]) or tm % _E_LINES:
        return f"BS = {bs} threads: not U teams of groups of {warps} warps, with an even TM"
    beyond = max(problem.m - _LANES * tm * down, problem.n - _LANES * tn * across)
    if beyond > (0 if problem.gram or problem.dtype.name != "float32" else _MOST_BORDER):
        return f"warps' tiles of {_LANES * tm} x {_LANES * tn} do not cover D"
    if config["GRAM"] and (down != across or (down > 1 and tm != tn)):
        return f"{down} x {across} tiles of {_LANES * tm} x {_LANES * tn}: not those of a Gram matrix"
    return None


def _why_not_stages(problem: Gemm, config: Config) -> str | None:
    modes, v, team = {config["E_MODE"], config["F_MODE"]}, config["V"], config["BS"] // teams(config)
    if v not in _lengths(problem.dtype.itemsize, modes):
        return f"V = {v}: lanes load fours of 16-bit matrices, and of others one k where lines begin anywhere"
    if any(config[f"{name}_MODE"] == SHIFTED and team < lines for name, lines in (("E", problem.m), ("F", problem.n))):
        return f"teams of {team} threads: fewer than lines that begin anywhere"
    if _read(problem, config) != config:
        return "E_GROUP, F_GROUP: not the lines of a load"
    if config["STAGES"] <= 1:
        return f"STAGES = {config['STAGES']}: one lands while another is multiplied"
    step = 2 * _step(config) * team // config["S"]
    return None if config["BK"] and config["BK"] % step == 0 else f"BK = {config['BK']} is not a multiple of {step}"
