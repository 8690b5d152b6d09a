"""Tiles, loads and launches of the inner kernel worth considering for a problem, and their legality.

:func:`layouts` depends only on a problem's strides. A configuration is a tile per thread, a way to read (direct or
staged, see ``kernels/inner/simt.cuh``) and a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import gcd

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.kernel import ceil_div
from matmill.kernels.inner.mma import mma_configs, why_not_mma
from matmill.kernels.inner.passes import ALONG_K, PACKED, SHIFTED, STRIDED, VECTOR_BYTES, k_groups, triangle, width_of
from matmill.kernels.inner.stages import LEAST_COPY, Layout, with_stages
from matmill.kernels.shared.tensor_cores import why_not_tensor_cores
from matmill.kernels.splitk import MOST_ADDED_BY_ONE, needs_epilogue, padded_bytes, why_not_precision
from matmill.lowering import NARROW, is_long
from matmill.problem import Gemm

#: The most registers of a thread for sums, for one k of its rows and columns, and for all loaded elements.
_MOST_SUMS, _MOST_PER_K, _MOST_LOADED = 128, 48, 128
#: The most sums of a thread that has a whole Gram matrix: 16 x 16 numbers of 4 bytes.
_MOST_OF_GRAM = 136
#: The most registers if loads of several rounds are in flight at once, and registers for addresses and counters.
_MOST_AT_ONCE, _OTHERS = 96, 52
#: The most registers of a thread altogether, if there is a choice.
_MOST_REGISTERS = 240
_THREADS = (128, 256)
#: Rows of tiles of a Gram matrix. With 3, 5, 7, ... rows the tiles on and above the diagonal nearly fill a power of
#: two; with a power of two they fill half of the square, whose reads are merged.
_GRAM_DOWN = (1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 22)
#: Bytes of a stage, at least to be worth a barrier and at most to leave memory for others; and the fewest bytes of a
#: run in it.
_STAGE, _RUN = (4096, 32768), 64
#: Bytes of partial sums up to which the last block adds as fast as a second launch.
_SOON_ADDED = 8192
#: Threads of a warp, bytes of a cache line, and the most rows that a warp should read in runs below a cache line.
_WARP, _CACHE_LINE, _MANY = 32, 128, 32
#: The most rows of a Gram matrix that one thread reads whole from a stage although they are aligned.
_MOST_ROWS = 12
#: The fewest threads per SM, two warps per scheduler: with fewer, a warp that waits for a stage idles its scheduler.
_LEAST_RESIDENT = 256
#: Stages per block below which the reduction may take longer than they do.
_FEW_STAGES = 8
#: The most pieces of a stage per thread, and the most copies that it issues.
_MOST_PIECES, _MOST_COPIES = 8, 32


def layouts(problem: Gemm) -> tuple[Layout, Layout]:
    """Return the layouts of E and F."""
    e_row, e_k = problem.a_row_col
    f_k, f_column = problem.b_row_col
    size = problem.dtype.itemsize
    e_aligns = (problem.a_align, problem.a_start_align or problem.a_align)
    f_aligns = (problem.b_align, problem.b_start_align or problem.b_align)
    e_batch, f_batch, *_ = problem.batch_strides
    e = _layout(problem.m, (e_row, e_k, e_batch), e_aligns, size)
    return e, e if problem.gram else _layout(problem.n, (f_column, f_k, f_batch), f_aligns, size)


def _layout(extent: int, strides: tuple[int, int, int], aligns: tuple[int, int], size: int) -> Layout:
    """Return the layout for (row, k, batch) strides and (every, first) row alignments; F's columns count as rows."""
    row_stride, k_stride, batch_stride = strides
    align, start = aligns
    if k_stride == 1:
        shifts = start % VECTOR_BYTES == 0 and min(row_stride, batch_stride) >= 0
        # ``align`` ignores rows that are one element apart, as with a single k.
        aligned = gcd(align, row_stride * size) if extent > 1 else start
        return Layout(ALONG_K, extent, aligned // size or 1, shifts)
    if row_stride != 1 and extent > 1:
        return Layout(STRIDED, extent, 1)
    if k_stride == extent:
        return Layout(PACKED, extent, start // size or 1)
    return Layout(STRIDED, extent, gcd(align // size or 1, extent))


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering for ``problem`` on ``arch``; none where m or n is too large."""
    return _among(problem, arch, None).configs


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    if not (problem.m <= NARROW and problem.n <= NARROW):
        return Columns(())
    if why_not_precision(problem, promotes=True) is not None:  # a single one, so that the reason is given once
        configs = (config.launched(SPLIT_K=1, LAST_BLOCK=0) for config in _configs(problem, arch, tiles))
        return Columns(tuple(islice(configs, 1)))
    tiled = Columns(tuple(dict.fromkeys(_configs(problem, arch, tiles))))
    every = [
        (row, slices, last)
        for row, config in enumerate(tiled.configs)
        for slices in _grids(problem, config, arch)
        for last in _adders(problem, config.launched(SPLIT_K=slices))
    ]
    rows, counts, adders = zip(*every, strict=True) if every else ((), (), ())
    return tiled.take(rows, SPLIT_K=counts, LAST_BLOCK=adders)


def _configs(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Iterator[Config]:
    """Yield the configurations worth considering, without a grid."""
    e, f = layouts(problem)
    for tile in _tiles(problem):
        staged = tuple(_staged(problem, arch, tile, e, f, tiles))
        for config in _direct(problem, arch, tile, e, f, tiles):
            if not _scattered(config, problem) or not any(_staged(problem, arch, tile, e, f, None)):
                yield config
        yield from staged
    yield from mma_configs(problem, arch, (e, f), tiles)


def among_where_long(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space` if k is long, or if no other kernel takes the element type.

    This kernel is compiled for every m and n. The tiled kernels are not, and are as fast for short k; the one for
    16-bit types needs tensor cores. It sums no integers.
    """
    if problem.dtype.is_integer:
        return Columns(())
    only_one = problem.dtype.wider is not None and why_not_tensor_cores(problem, arch) is not None
    return _among(problem, arch, tiles) if only_one or is_long(problem) else Columns(())


def _tiles(problem: Gemm) -> Iterator[Config]:
    """Yield tiles of a thread and the number of threads that share a k: the largest few that fit in registers."""
    m, n, gram = problem.m, problem.n, problem.gram
    size = problem.dtype.accumulator.itemsize // 4
    powers = [1 << i for i in range(8)]
    fitting = []
    for down in _GRAM_DOWN if gram else powers:
        for across in [down] if gram else powers:
            tm, tn = ceil_div(m, down), ceil_div(n, across)
            if down >= 2 * m or across >= 2 * n or (gram and down > m):
                continue
            tiles = down * (down + 1) // 2 if gram else down * across
            sharing = 1 << (tiles - 1).bit_length()
            sums = tm * (tm + 1) // 2 if gram and down == 1 else tm * tn
            most = _MOST_OF_GRAM if gram and down == 1 else _MOST_SUMS
            if sums * size <= most and (tm + tn) * size <= _MOST_PER_K and sharing <= 256:
                config = Config.of(M=m, N=n, TM=tm, TN=tn, DOWN=down, ACROSS=across, S=sharing, GRAM=int(gram), MMA=0)
                fitting.append((_burden(config), config))
    fitting.sort(key=lambda pair: pair[0])
    least = fitting[0][0] if fitting else 0.0
    yield from (config for burden, config in fitting[:6] if burden <= 2 * least)


def _burden(tile: Config) -> float:
    """Return the issue slots per k of all threads that share a k: FMAs, padding included, and reads."""
    return tile["S"] * (tile["TM"] * tile["TN"] + 1.0 * (tile["TM"] + tile["TN"]))


def _direct(  # noqa: PLR0917 — as _staged has them
    problem: Gemm, arch: Arch, tile: Config, e: Layout, f: Layout, tiles: Tiles | None
) -> Iterator[Config]:
    size = problem.dtype.itemsize
    for v in sorted(_lengths(tile, e, f, VECTOR_BYTES // size)):
        modes = _read_as("E", e, tile["DOWN"], tile["TM"], v) | _read_as("F", f, tile["ACROSS"], tile["TN"], v)
        loaded = _registers(tile["TM"] * v, modes["E_WIDTH"], size)
        loaded += 0 if triangle(tile) else _registers(tile["TN"] * v, modes["F_WIDTH"], size)
        if loaded > _MOST_LOADED:
            continue
        at_once = min(_MOST_AT_ONCE, _MOST_REGISTERS - _needed(tile, problem))
        rounds = [u for u in (1, 2, 4, 8, 16) if u == 1 or u * loaded <= at_once]
        for u, bs in product(rounds, _THREADS):
            if bs >= tile["S"] and (tiles is None or (0, v, u, bs, 0, 0) in tiles):
                config = tile.replace(V=v, U=u, BS=bs, BK=0, STAGES=0, **modes)
                yield _resident(config, problem, arch, u * loaded)


def _scattered(config: Config, problem: Gemm) -> bool:
    """Tell whether a warp reads less than a cache line from each of many rows.

    Runs from 128 rows take twice as long as staged ones.
    """
    run = max(1, _WARP // config["S"]) * config["V"] * problem.dtype.itemsize
    many = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    return run < _CACHE_LINE and any(n > _MANY and config[f"{name}_MODE"] == ALONG_K for name, n in many.items())


def _lengths(tile: Config, e: Layout, f: Layout, full: int) -> set[int]:
    """Return the numbers of k's that a thread may take at a time if it loads straight into registers."""
    along = {layout.width for layout in (e, f) if layout.along_k}
    # As many as a load along k has, so that neighbouring threads read neighbouring bytes.
    lengths = {min(along, default=1)}
    if len(along) > 1 or _packed(e, tile["DOWN"]) or _packed(f, tile["ACROSS"]):
        lengths.add(full)
    return lengths


def _read_as(name: str, layout: Layout, takers: int, count: int, v: int) -> dict[str, int]:
    """Return mode, width and group of the loads into registers, for a thread's ``count`` rows (columns), ``v`` k's."""
    if layout.along_k:
        mode, width, group = ALONG_K, min(v, layout.width), 1
    elif _packed(layout, takers):
        mode, width, group = PACKED, gcd(layout.width, v * layout.extent), 1
    else:
        mode = STRIDED
        width = group = gcd(layout.width, count, layout.extent)
    return {f"{name}_MODE": mode, f"{name}_WIDTH": width, f"{name}_GROUP": group}


def _registers(elements: int, width: int, size: int) -> int:
    """Return the registers for ``elements`` that are loaded ``width`` at a time: at least one per load."""
    return ceil_div(elements, width) * ceil_div(width * size, 4)


def _packed(layout: Layout, takers: int) -> bool:
    return layout.mode == PACKED and takers == 1


def _copied_as(name: str, layout: Layout, count: int, size: int) -> list[dict[str, int]]:
    """Return mode, width and group of possible copies to stages; a thread takes ``count`` rows or columns of these."""
    full = VECTOR_BYTES // size
    mode, width = layout.mode, layout.width
    if mode == PACKED and width >= full and layout.extent in {full << i for i in range(6)}:
        mode, width = STRIDED, full  # k's of whole vectors, spread over the banks by a pitch
    ways = [(mode, width)] if width * size >= LEAST_COPY else []
    if layout.along_k and layout.shifts and width < full:
        ways.append((SHIFTED, full))
    group = 1 if layout.along_k else gcd(full, count, layout.extent)
    return [{f"{name}_MODE": mode, f"{name}_WIDTH": width, f"{name}_GROUP": group} for mode, width in ways]


def _staged(  # noqa: PLR0917 — a tile on both layouts
    problem: Gemm, arch: Arch, tile: Config, e: Layout, f: Layout, tiles: Tiles | None
) -> Iterator[Config]:
    size = problem.dtype.itemsize
    full = VECTOR_BYTES // size
    if triangle(tile) and tile["TM"] > _MOST_ROWS and e.width >= full:
        return  # the addresses of so many rows would spill; loads of whole vectors need none
    e_ways, f_ways = _copied_as("E", e, tile["TM"], size), _copied_as("F", f, tile["TN"], size)
    if not e_ways or not f_ways:
        return
    # Both unshifted, or every one shifted that can be.
    for copies in ({**e_ways[0], **f_ways[0]}, {**e_ways[-1], **f_ways[-1]})[: max(len(e_ways), len(f_ways))]:
        shifted = SHIFTED in {copies["E_MODE"], copies["F_MODE"]}
        for v in {1} if shifted else sorted({full, max(1, full // 2)}):
            yield from _copied(problem, arch, tile.replace(V=v, **copies), tiles)


def _copied(problem: Gemm, arch: Arch, read: Config, tiles: Tiles | None) -> Iterator[Config]:
    """Yield ``read``, the way that threads read from stages, with its stages."""
    size, v = problem.dtype.itemsize, read["V"]
    loaded = _registers(read["TM"] * v, width_of(read, "E", problem.m, size), size)
    loaded += 0 if triangle(read) else _registers(read["TN"] * v, width_of(read, "F", problem.n, size), size)
    if loaded > min(_MOST_LOADED, _MOST_REGISTERS - _needed(read, problem)):
        return
    for bs, bk, stages in product(_THREADS, (16, 32, 64, 128, 256, 512), (3, 4)):
        if tiles is not None and (0, v, 0, bs, bk, stages) not in tiles:
            continue
        if _worth_a_stage(read, problem, bs, bk):
            config = _resident(read.replace(U=0, BS=bs, BK=bk, STAGES=stages), problem, arch, loaded)
            fits = config["SHARED_BYTES"] <= arch.shared_per_block
            if fits and bs * config["BLOCKS_PER_SM"] >= _LEAST_RESIDENT:
                yield config


def _worth_a_stage(config: Config, problem: Gemm, bs: int, bk: int) -> bool:
    size = problem.dtype.itemsize
    if bs < config["S"]:
        return False
    rows = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    copies = sum(count * bk // config[f"{name}_WIDTH"] for name, count in rows.items())
    pieces, rest = divmod(bk, config["V"] * (bs // config["S"]))
    return (
        not rest
        and pieces <= _MOST_PIECES
        and _STAGE[0] <= sum(rows.values()) * bk * size <= _STAGE[1]
        and bk * size >= _RUN
        and copies <= _MOST_COPIES * bs
    )


def _resident(config: Config, problem: Gemm, arch: Arch, loaded: int) -> Config:
    """Return ``config`` with its shared memory, and with as many blocks per SM as fit in it and in the registers."""
    config = with_stages(config, problem)
    registers = min(255, _needed(config, problem) + loaded)
    by_registers = arch.registers_per_sm // (-(-registers // 8) * 8 * config["BS"])
    by_shared = arch.shared_per_sm // max(1, config["SHARED_BYTES"] + arch.shared_reserved)
    most = max(1, min(by_registers, by_shared, arch.threads_per_sm // config["BS"], arch.blocks_per_sm))
    return config.replace(BLOCKS_PER_SM=most)


def _needed(tile: Config, problem: Gemm) -> int:
    """Return the registers of a thread besides loaded elements: sums, one k of widened 16-bit numbers, addresses."""
    sums = tile["TM"] * (tile["TM"] + 1) // 2 if triangle(tile) else tile["TM"] * tile["TN"]
    words = problem.dtype.accumulator.itemsize // 4
    widened = tile["TM"] + tile["TN"] if problem.dtype.wider is not None else 0
    return (sums + widened) * words + _OTHERS


def _grids(problem: Gemm, config: Config, arch: Arch) -> Iterator[int]:
    """Yield blocks per product: one, a few, or as many as the GPU holds at once, but no more than there is work for.

    One or two per SM may be faster than as many as fit: too many bytes in flight slow memory down. Configurations for
    tensor cores are sized to avoid that, so they use all blocks for long k.
    """
    most = max(1, ceil_div(problem.k, block_terms(config)))
    resident = max(1, arch.sms * config["BLOCKS_PER_SM"] // problem.batch)
    if config["MMA"] and most >= _FEW_STAGES * resident:
        yield resident
        return
    counts = {1, resident, *(max(1, arch.sms * part // (4 * problem.batch)) for part in (1, 2, 4, 8))}
    counts = {count for count in counts if count <= resident}
    yield from sorted({min(most, count) for count in counts})


def _adders(problem: Gemm, config: Config) -> tuple[int, ...]:
    """Return what may add the partial sums: the last block (1) or a second launch (0)."""
    sums = padded_bytes(problem, config)
    if config["SPLIT_K"] == 1 or sums > MOST_ADDED_BY_ONE or needs_epilogue(problem):
        return (0,)
    return (1,) if sums <= _SOON_ADDED else (1, 0)


def block_terms(config: Config) -> int:
    """Return the k's that a block takes at a time."""
    return config["BK"] * k_groups(config) or config["V"] * config["BS"] // config["S"]


def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return why the constants do not fit the problem, or None."""
    if problem.dtype.is_integer:
        return f"the kernel sums floats, not {problem.dtype.name}"
    checks = (_why_not_sizes, _why_not_loads, _why_not_launch)
    reason = why_not_precision(problem, promotes=True) or next(
        filter(None, (check(problem, config) for check in checks)), None
    )
    if reason is None and config["MMA"]:
        reason = why_not_mma(problem, config, arch)
    return reason or (None if arch.compiles else f"{arch.title} is older than the compiler")


def _why_not_sizes(problem: Gemm, config: Config) -> str | None:
    if not (1 <= problem.m <= NARROW and 1 <= problem.n <= NARROW):
        return f"{problem.m} x {problem.n} outputs are more than {NARROW} x {NARROW}, or none"
    if (config["M"], config["N"], config["GRAM"]) != (problem.m, problem.n, int(problem.gram)):
        return f"constants for {config['M']} x {config['N']} outputs, gram {config['GRAM']}"
    return None


def _why_not_loads(problem: Gemm, config: Config) -> str | None:
    size = problem.dtype.itemsize
    for name, layout in zip("EF", layouts(problem), strict=True):
        mode, width = config[f"{name}_MODE"], config[f"{name}_WIDTH"]
        if mode == SHIFTED:
            if not (layout.shifts and config["BK"] and (config["V"] == 1 or config["MMA"])):
                return (
                    f"{name}_MODE = {mode} needs stages, V = 1 or tensor cores, and a matrix that starts at an aligned "
                    "vector"
                )
            continue
        if mode != layout.mode and not (mode == STRIDED and layout.mode == PACKED):
            return f"{name}_MODE = {mode} is not the layout of {name}"
        if width > layout.width:
            return f"{name}_WIDTH = {width} needs rows or columns aligned to {width * size} bytes"
        if config["BK"] and width * size < LEAST_COPY:
            return f"{name}_WIDTH = {width}: cp.async copies at least {LEAST_COPY} bytes"
    return None


def _why_not_launch(problem: Gemm, config: Config) -> str | None:
    needed = with_stages(config, problem)
    for name in ("E_PITCH", "F_PITCH", "SHARED_BYTES"):
        if needed[name] != config[name]:
            return f"{name} = {config[name]}, and the device needs {needed[name]}"
    if config["LAST_BLOCK"] and not (config["SPLIT_K"] > 1 and padded_bytes(problem, config) <= MOST_ADDED_BY_ONE):
        most, blocks = MOST_ADDED_BY_ONE, config["SPLIT_K"]
        return f"LAST_BLOCK = 1: one block adds 1 to {most} bytes of partial sums, of SPLIT_K = {blocks} blocks"
    if config["LAST_BLOCK"] and needs_epilogue(problem):
        return "LAST_BLOCK = 1: the last block applies no epilogue"
    return None if config["SPLIT_K"] >= 1 else f"SPLIT_K = {config['SPLIT_K']} blocks"
