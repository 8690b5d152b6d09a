"""Configurations of the inner kernel on tensor cores (``kernels/inner/mma.cuh``), for problems that FMAs would limit.

A configuration is a warp's tile, the rows and columns of warps that cover D, the groups that share a block's k's, and
the size of a stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd

from matmill.arch import Arch
from matmill.config import Config, Tiles
from matmill.dtypes import F32_IN_F64
from matmill.kernel import ceil_div
from matmill.kernels.inner.passes import (
    ALONG_K,
    FRAGMENTS,
    SCHEDULERS,
    SHIFTED,
    STRIDED,
    VECTOR_BYTES,
    Fragments,
    busiest,
    k_contiguous,
    k_groups,
    mma_slots,
    mma_tiles,
    on_diagonal,
    outputs_of,
    remainder,
    remainder_sums,
    triangle,
)
from matmill.kernels.inner.stages import LEAST_COPY, Layout, with_stages
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES
from matmill.problem import Gemm

#: The least time of FMAs as a share of memory's best time, and the fewest outputs of 16-bit types: with fewer, widening
#: takes as long as multiplying.
_LEAST_MULTIPLIES, _FEWEST = 0.25, 48
#: Rows of E per lane in a fragment, lanes that share E's rows (and F's columns), and lanes of a warp.
_E_ROWS, _LANES, _WARP = 2, 8, 32
#: Bytes of float32 and of float64.
_SINGLE, _DOUBLE = 4, 8
#: Registers of a thread for addresses and counters, the same with float64, and additional ones for a remainder.
_OTHERS, _OTHERS_FLOAT64, _FOR_REMAINDER = 40, 52, 24
#: Additional registers for float32 if k-groups load columns of F and k is not contiguous.
_FOR_TRANSPOSED_K_GROUPS = 40
#: Additional registers for each unaligned 16-bit row or column, by the k's per load (with few, more is loaded ahead),
#: and for each further row or column that is not contiguous along k.
_FOR_SHIFTED, _FOR_TRANSPOSED = {4: 3, 8: 2}, 2
#: The most tiles to consider, and the largest burden of the last one relative to the least burden.
_TILES, _MOST_BURDEN = 3, 1.3
#: Cycles per MMA in which a scheduler of an H200 issues nothing else; and the cycles for which an MMA on float64 keeps
#: the tensor core busy, while other instructions are issued.
_HELD, _BUSY = 7.0, 32.0
#: The most warps of a block, and numbers of warps of an SM.
_MOST_WARPS, _WARPS = 16, (8, 12, 16)
#: Stages; bytes in flight on an SM; and the fewest bytes of a contiguous run in a stage.
_STAGES, _FLIGHT, _RUN = 3, (25_000, 125_000), 64
#: Steps of a group in a stage, and registers that the compiler needs to load several ahead.
_AHEAD = {2: 0, 4: 16}
#: The most bytes of a row that a lane loads from a stage: more would need more code, and more registers than the model
#: counts. The second limit is for float64 where nothing else remains, and for Gram matrices of float32 (half as many
#: rows).
_MOST_LOADED = 32, 64
#: The most sums of a lane for which the compiler has registers to chain two float32 products.
_MOST_CHAINED = 64
_MOST_K_GROUPS = 15
#: The most remainder rows, or columns, of float32 (``remainder.cuh``).
_MOST_REMAINDER = 4
#: Alignment in bytes, and the longest side of 16-bit products with k not contiguous; longer ones use the 16-bit
#: kernel's tiles: on an H200 (2026-11-22) 64 x 64 x 1562560 took 1.09 times as long there as here, 80 x 80 0.96 times,
#: 96 x 96 1.01, 112 x 112 0.95, 128 x 128 0.75; but 65 x 65 and 127 x 127, whose rows are unaligned, 2.2 and 2.1 times.
_ALIGNED, _NARROW = 8, 64


#: The constants that tell one configuration from others of the same m and n.
TILE = ("MMA", "V", "U", "BS", "BK", "STAGES")


def mma_configs(
    problem: Gemm, arch: Arch, layouts: tuple[Layout, Layout], among: Tiles | None = None
) -> Iterator[Config]:
    """Yield the configurations worth considering, without a grid; ``layouts`` are those of E and F.

    With ``among`` only those with such constants (:data:`TILE`) are completed.
    """
    if among is not None and not any(tile[0] for tile in among):
        return
    if why_not_tensor_cores(problem, arch) is not None or not _bound(problem, arch) or _tiled(problem, layouts):
        return
    if not all(_copies(one, problem.dtype.itemsize) for one in layouts):
        return
    tiles = list(_tiles(problem, arch, layouts))
    if problem.gram and problem.dtype.name == "float32":
        yield from _of_tiles(problem, arch, layouts, tiles, _MOST_LOADED[1], among)
        return
    for most in _MOST_LOADED[: 2 if problem.dtype.name == "float64" else 1]:
        configs = list(_of_tiles(problem, arch, layouts, tiles, most, among))
        others = among is not None and any(_of_tiles(problem, arch, layouts, tiles, most, None))
        if configs or others:  # small float64 triangles need the second limit to have enough bytes in flight
            yield from configs
            return


def _of_tiles(  # noqa: PLR0917 — tiles in all ways
    problem: Gemm,
    arch: Arch,
    layouts: tuple[Layout, Layout],
    tiles: list[Config],
    most_loaded: int,
    among: Tiles | None,
) -> Iterator[Config]:
    for copies, v in _ways(problem, layouts):
        chained = v * problem.dtype.itemsize == VECTOR_BYTES and problem.dtype.name == "float32"
        for tile in tiles:
            if chained and outputs_of(tile) + remainder_sums(tile) > _MOST_CHAINED:
                continue
            yield from _launched(problem, arch, _read(problem, tile.replace(V=v, **copies)), most_loaded, among)


def why_not_tensor_cores(problem: Gemm, arch: Arch) -> str | None:
    """Return why the tensor cores of ``arch`` cannot multiply the problem's elements, or None."""
    if problem.dtype is F32_IN_F64:
        return f"no tensor core multiplies {problem.dtype.name}"
    if problem.dtype.name == "float64" and "float64" not in arch.matrix_flops:
        return f"{arch.title} has no tensor cores for float64"
    if arch.capability < (8, 0):
        return f"mma.sync on tf32 and bfloat16 needs compute capability 8.0: {arch.title} is older"
    return None


def _bound(problem: Gemm, arch: Arch) -> bool:
    """Tell whether FMAs take long enough, relative to memory."""
    rows = problem.m if problem.gram else problem.m + problem.n
    outputs = problem.m * problem.n * (0.5 if problem.gram else 1.0)
    if problem.dtype.wider is not None:
        return outputs >= _FEWEST
    memory = rows * problem.dtype.itemsize / arch.dram_bytes_per_s
    return 2 * outputs / arch.peak(problem.dtype.name) >= _LEAST_MULTIPLIES * memory


def _tiled(problem: Gemm, layouts: tuple[Layout, Layout]) -> bool:
    """Tell whether the 16-bit kernel's tiles are as fast: for wide, aligned matrices whose k is not contiguous."""
    transposed = not all(one.along_k for one in layouts)
    aligned = min(problem.a_align, problem.b_align) >= _ALIGNED
    return problem.dtype.wider is not None and transposed and aligned and min(problem.m, problem.n) > _NARROW


def _side_by_side(problem: Gemm, layouts: tuple[Layout, Layout]) -> int:
    """Return the columns of F that a lane loads together: pairs of 16-bit columns if k is not contiguous."""
    _, f = layouts
    return 2 if problem.dtype.wider is not None and not f.along_k and f.extent % 2 == 0 else 1


def _tiles(problem: Gemm, arch: Arch, layouts: tuple[Layout, Layout]) -> Iterator[Config]:
    """Yield the warp tiles with the least burden: a scheduler's cycles per fragment of k, for all its warps."""
    m, n, gram = problem.m, problem.n, problem.gram
    side_by_side = _side_by_side(problem, layouts)
    e_mode, f_mode = (_copies(one, problem.dtype.itemsize)[-1][0] for one in layouts)
    fragment = FRAGMENTS[problem.dtype.itemsize]
    result = []
    with_remainder = problem.dtype.name == "float32" and not gram
    for down, across in product(range(1, 9), range(1, 17)):
        if gram and down != across:
            continue
        rows = _per_lane(m, _E_ROWS, down, with_remainder=with_remainder)
        columns = rows if gram and down > 1 else _per_lane(n, side_by_side, across, with_remainder=with_remainder)
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
                MMA=1,
                V=4 if problem.dtype.wider is not None else 2,
                U=0,
                E_MODE=e_mode,
                F_MODE=f_mode,
                E_GROUP=0,
                F_GROUP=0,
            )
            if _fits(tile, problem, arch):
                result.append((_burden(tile, problem.dtype.name, fragment), tile))
    result.sort(key=lambda pair: pair[0])
    yield from (tile for burden, tile in result[:_TILES] if burden <= _MOST_BURDEN * result[0][0])


def _fits(tile: Config, problem: Gemm, arch: Arch) -> bool:
    """Tell whether a block may have the tile's warps, and an SM has registers for the fewest warps."""
    warps, needed = tile["S"] // _WARP, _registers(tile, problem.dtype.itemsize)
    return warps <= _MOST_WARPS and needed <= _most_registers(arch, min(_counts(warps)))


def _per_lane(count: int, together: int, takers: int, *, with_remainder: bool) -> list[int]:
    """Return the rows or columns per lane if ``takers`` warps share ``count``, with the smallest remainder.

    The list is empty if fewer warps have the same tiles.

    >>> [_per_lane(65, *asked, with_remainder=True) for asked in ((2, 1), (1, 3), (1, 8))]
    [[10, 8], [3], [1]]
    """
    share = together * _LANES * takers
    covering, left = together * ceil_div(count, share), count % share
    counts = [covering] if ceil_div(count, _LANES * covering) == takers else []
    if with_remainder and 0 < left <= _MOST_REMAINDER < share <= count:
        counts.append(covering - together)
    return counts


def _warps(down: int, across: int, *, gram: bool) -> int:
    """Return the warps of a group. A Gram matrix has only tiles on and above the diagonal."""
    return down * (down + 1) // 2 if gram else down * across


def _burden(tile: Config, dtype: str, fragment: Fragments) -> float:
    """Return the cycles of the busiest scheduler for one fragment of k of a group's warps.

    It has 3 of 12 warps, and 3 of 10.
    """
    cycles = []
    for diagonal in (False, True):
        slots = mma_slots(tile, fragment, diagonal=diagonal)
        instructions = fragment.parts * mma_tiles(tile, diagonal=diagonal)
        if fragment.parts == 1:
            slots += tile["TM"] + (0 if diagonal else tile["TN"])
        held = max(slots, _BUSY * instructions) if dtype == "float64" else slots + (_HELD - 1) * instructions
        cycles.append(held)
    halves = on_diagonal(tile, fragment)
    own = len(halves)
    return min(busiest(halves, count, *cycles) * own / count for count in _counts(own))


def _counts(own: int) -> list[int]:
    """Return possible numbers of warps per SM, in whole groups of ``own``."""
    return [warps for warps in _WARPS if warps % own == 0] or [max(1, _WARPS[-1] // own) * own]


def _registers(tile: Config, size: int) -> int:
    """Return the registers of a thread: for sums, short sums, the fragments being multiplied and those being loaded.

    16-bit numbers that are loaded one by one need a register each until they are paired. Unaligned ones need one word
    more than they fill, and their offset.
    """
    tn, sums = tile["TN"], outputs_of(tile)
    loaded = {"E": tile["TM"], "F": 0 if triangle(tile) else tn}
    count = sum(loaded.values())
    if size == _DOUBLE:
        return 2 * sums + 8 * count + _OTHERS_FLOAT64
    if size == _SINGLE:
        sums += 16 if triangle(tile) else 0  # rows are copied to serve as columns
        left = sum(remainder(tile))
        sums += 6 * left + remainder_sums(tile) + (_FOR_REMAINDER if left else 0)
        sums += 8 if tile["V"] * size == VECTOR_BYTES else 0  # the second product of a row
        of_groups = k_groups(tile) > 1 and not (tile["GRAM"] or k_contiguous(tile, "F"))
        return sums + 8 * tn + 8 + 4 * count + _OTHERS + (_FOR_TRANSPOSED_K_GROUPS if of_groups else 0)
    transposed = {name: n for name, n in loaded.items() if not k_contiguous(tile, name)}
    one_by_one = sum(n for name, n in transposed.items() if tile[f"{name}_GROUP"] == 1)
    shifted = sum(n for name, n in loaded.items() if tile[f"{name}_MODE"] == SHIFTED)
    sums += _FOR_SHIFTED[tile["V"]] * shifted + (_FOR_TRANSPOSED * sum(transposed.values()) if shifted else 0)
    return sums + 4 * tn + tile["V"] * (count + one_by_one) + _OTHERS


def _ways(problem: Gemm, layouts: tuple[Layout, Layout]) -> Iterator[tuple[dict[str, int], int]]:
    """Yield the ways to copy the matrices, without groups, each with the numbers of k's that a lane may load."""
    size = problem.dtype.itemsize
    e_ways, f_ways = (_copies(one, size) for one in layouts)
    # Both unshifted, or every one shifted that can be.
    for (e_mode, e_width), (f_mode, f_width) in dict.fromkeys([(e_ways[0], f_ways[0]), (e_ways[-1], f_ways[-1])]):
        copies = {"E_MODE": e_mode, "E_WIDTH": e_width, "F_MODE": f_mode, "F_WIDTH": f_width}
        for v in _lengths(size, {e_mode, f_mode}):
            yield copies, v


def _copies(layout: Layout, size: int) -> list[tuple[int, int]]:
    """Return mode and width of copies of one matrix: unshifted, and in whole vectors."""
    full, width = VECTOR_BYTES // size, layout.width
    if layout.along_k:
        ways = [(ALONG_K, width)] + ([(SHIFTED, full)] if layout.shifts and width < full else [])
    else:
        whole = layout.extent % full == 0 and width % full == 0
        ways = [(STRIDED, full) if whole else (layout.mode, width)]
    return [way for way in ways if way[1] * size >= LEAST_COPY]


def _lengths(size: int, modes: set[int]) -> tuple[int, ...]:
    """Return the numbers of k's that a lane may load at once."""
    if size == ELEMENT_BYTES:
        return (4, 8)
    if SHIFTED in modes:
        return (1,)
    several = (2, 4) if size == _SINGLE else (2,)
    return several if modes == {ALONG_K} else (1, *several)


def _read(problem: Gemm, tile: Config) -> Config:
    """Return ``tile`` with the rows (or columns) per load: one if k is contiguous, else as many as a vector holds."""
    counts: dict[str, tuple[int, ...]] = {"E": (tile["TM"], problem.m), "F": (tile["TN"], problem.n)}
    if problem.gram:  # both are read from E's stage
        counts = dict.fromkeys("EF", (tile["TM"], tile["TN"], problem.m))
    return tile.replace(
        **{
            f"{name}_GROUP": 1 if k_contiguous(tile, name) else gcd(VECTOR_BYTES // problem.dtype.itemsize, *numbers)
            for name, numbers in counts.items()
        }
    )


def _launched(problem: Gemm, arch: Arch, read: Config, most_loaded: int, among: Tiles | None) -> Iterator[Config]:
    """Yield ``read`` with groups, stages and blocks."""
    size = problem.dtype.itemsize
    row = (problem.m if problem.gram else problem.m + problem.n) * size
    own = read["S"] // _WARP
    for warps, blocks in product(_counts(own), (1, 2)):
        groups, left = divmod(warps, own * blocks)
        if left or not 0 < groups <= _MOST_K_GROUPS:
            continue
        most = _most_registers(arch, warps, blocks)
        for count in sorted({1, groups}):
            needed = _registers(read.replace(U=count), size)
            for steps, taken in _AHEAD.items():
                if needed + taken > most or steps * read["V"] * size > most_loaded:
                    continue
                bk = steps * _step(read) * groups // count
                if among is not None and (1, read["V"], count, groups * read["S"], bk, _STAGES) not in among:
                    continue
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
    """Return the fewest bytes of a contiguous run in a stage, for contiguous k.

    Twice as many if runs start inside sectors, and for k-groups, which load theirs at different times: with runs of 64
    bytes they took 1.5 times as long.
    """
    along = [name for name in "EF" if k_contiguous(config, name)]
    cut = any(config[f"{name}_WIDTH"] * size < VECTOR_BYTES for name in along)
    return 2 * _RUN if cut or (along and k_groups(config) > 1) else _RUN


def _most_registers(arch: Arch, warps: int, blocks: int = 1) -> int:
    """Return the most registers of a thread if so many warps, in so many blocks, share an SM's schedulers."""
    each = blocks * ceil_div(warps // blocks, SCHEDULERS)
    return min(255, arch.registers_per_sm // SCHEDULERS // (_WARP * each) // 8 * 8)


def _step(config: Config) -> int:
    """Return the k's that a group multiplies in one step."""
    return 4 * config["V"] * (2 if config["V"] == 1 else 1)


def why_not_mma(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return why a block cannot multiply with ``config`` on the tensor cores of ``arch``, or None."""
    return why_not_tensor_cores(problem, arch) or _why_not_warps(problem, config) or _why_not_stages(problem, config)


def _why_not_warps(problem: Gemm, config: Config) -> str | None:
    down, across, tm, tn, bs = (config[name] for name in ("DOWN", "ACROSS", "TM", "TN", "BS"))
    warps = _warps(down, across, gram=problem.gram)
    if not 1 <= config["U"] <= _MOST_K_GROUPS:
        return f"U = {config['U']}: not 1 to {_MOST_K_GROUPS} k-groups"
    if config["S"] != _WARP * warps or bs % (config["S"] * config["U"]) or tm % _E_ROWS:
        return f"BS = {bs} threads: not U k-groups of groups of {warps} warps, with an even TM"
    left = max(problem.m - _LANES * tm * down, problem.n - _LANES * tn * across)
    if left > (0 if problem.gram or problem.dtype.name != "float32" else _MOST_REMAINDER):
        return f"warps' tiles of {_LANES * tm} x {_LANES * tn} do not cover D"
    if config["GRAM"] and (down != across or (down > 1 and tm != tn)):
        return f"{down} x {across} tiles of {_LANES * tm} x {_LANES * tn}: not those of a Gram matrix"
    return None


def _why_not_stages(problem: Gemm, config: Config) -> str | None:
    modes, v, threads = {config["E_MODE"], config["F_MODE"]}, config["V"], config["BS"] // k_groups(config)
    if v not in _lengths(problem.dtype.itemsize, modes):
        return f"V = {v}: lanes load fours of 16-bit matrices, and of others one k where rows or columns are unaligned"
    if any(config[f"{name}_MODE"] == SHIFTED and threads < n for name, n in (("E", problem.m), ("F", problem.n))):
        return f"k-groups of {threads} threads: fewer than unaligned rows or columns"
    if _read(problem, config) != config:
        return "E_GROUP, F_GROUP: not the rows or columns of a load"
    if config["STAGES"] <= 1:
        return f"STAGES = {config['STAGES']}: one is loaded while another is multiplied"
    step = 2 * _step(config) * threads // config["S"]
    return None if config["BK"] and config["BK"] % step == 0 else f"BK = {config['BK']} is not a multiple of {step}"
