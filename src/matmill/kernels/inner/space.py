"""Tiles, loads and launches of the inner kernel worth considering for a problem, and what makes one legal.

What follows from a problem's layout alone (:func:`layouts`) is worked out once; a configuration is a tile per thread,
a way to read (direct or staged, see ``include/matmill/inner/simt.cuh``) and a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd

from matmill.arch import Arch
from matmill.config import Config
from matmill.cost.inner_passes import ALONG_K, PACKED, SHIFTED, STRIDED, VECTOR_BYTES, teams, width_of
from matmill.kernel import ceil_div
from matmill.kernels.inner.mma import against_units, units
from matmill.kernels.inner.stages import LEAST_COPY, with_stages
from matmill.layout import NARROW, is_long
from matmill.problem import Gemm
from matmill.tiling.mma import LARGEST, no_unit
from matmill.tiling.split_k import MOST_ADDED_BY_ONE, padded_bytes

#: Registers that a thread may spend on sums, on one k of its lines, and on all that it has loaded.
_MOST_SUMS, _MOST_PER_K, _MOST_LOADED = 128, 48, 128
#: Sums where one thread has a whole Gram matrix: 16 x 16 numbers of 4 bytes.
_MOST_ALONE = 136
#: The same where loads of several rounds are under way at once, and registers for addresses and counters.
_MOST_AT_ONCE, _OTHERS = 96, 52
#: All of a thread's together, where there is a choice.
_MOST_REGISTERS = 240
_THREADS = (128, 256)
#: Rows of tiles of a Gram matrix: of 3, 5, 7, ... the tiles on and above the diagonal nearly fill a power of two; of
#: powers of two they fill half of the square, whose reads are merged.
_GRAM_DOWN = (1, 2, 3, 4, 5, 7, 8, 10, 15, 16, 22)
#: Bytes of a stage that is worth a barrier and still leaves room for others, and of a line's part of it.
_STAGE, _LINE = (4096, 32768), 64
#: Bytes of partial sums that the last block adds as soon as a second launch would.
_SOON_ADDED = 8192
#: Threads of a warp, bytes of a line of L1, and more rows than a warp should read in shorter runs.
_WARP, _L1_LINE, _MANY = 32, 128, 32
#: Lines of a whole Gram matrix, in one thread's hands, that are read from a stage although they are aligned.
_MOST_PLACES = 12
#: Threads per multiprocessor, two warps for each of its schedulers: else one that waits for a stage leaves it idle.
_LEAST_RESIDENT = 256
#: Stages of a block whose partial sums may take longer than they do.
_FEW_STAGES = 8
#: Pieces that a thread takes of a stage, and copies that it issues, at most.
_MOST_PIECES, _MOST_COPIES = 8, 32


@dataclass(frozen=True)
class Layout:
    """How one matrix lies: its mode, its lines, and the most elements that a copy or a load may take at once.

    ``shifts`` says that lines of which k is contiguous may begin anywhere, but none before 16 aligned bytes that are
    the matrix's own: whole vectors may then be copied from where they are aligned (mode SHIFTED).
    """

    mode: int
    lines: int
    width: int
    shifts: bool = False

    @property
    def along_k(self) -> bool:
        """Whether k is contiguous."""
        return self.mode == ALONG_K


def layouts(problem: Gemm) -> tuple[Layout, Layout]:
    """Layouts of E and of F, whose lines are E's rows and F's columns."""
    e_row, e_k = problem.a_row_col
    f_k, f_column = problem.b_row_col
    size = problem.dtype.itemsize
    e_aligns = (problem.a_align, problem.a_start_align or problem.a_align)
    f_aligns = (problem.b_align, problem.b_start_align or problem.b_align)
    e_batch, f_batch, *_ = problem.batch_strides
    e = _layout(problem.m, (e_row, e_k, e_batch), e_aligns, size)
    return e, e if problem.gram else _layout(problem.n, (f_column, f_k, f_batch), f_aligns, size)


def _layout(lines: int, strides: tuple[int, int, int], aligns: tuple[int, int], size: int) -> Layout:
    """The layout of ``lines`` lines by their (line, k, batch) strides and (every line's, the first's) alignments."""
    line_stride, k_stride, batch_stride = strides
    align, start = aligns
    if k_stride == 1:
        shifts = start % VECTOR_BYTES == 0 and min(line_stride, batch_stride) >= 0
        # Lines one element apart, of a single k, have starts that ``align`` does not speak of.
        aligned = gcd(align, line_stride * size) if lines > 1 else start
        return Layout(ALONG_K, lines, aligned // size or 1, shifts)
    if line_stride != 1 and lines > 1:
        return Layout(STRIDED, lines, 1)
    if k_stride == lines:
        return Layout(PACKED, lines, start // size or 1)
    return Layout(STRIDED, lines, gcd(align // size or 1, lines))


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Every configuration worth considering for ``problem`` on ``arch``; none where m or n is too large."""
    if not (problem.m <= NARROW and problem.n <= NARROW):
        return ()
    found: dict[Config, None] = {}
    for config in _configs(problem, arch):
        for gs in _grids(problem, config, arch):
            for last in _adders(problem, config.launched(GS=gs)):
                found[config.launched(GS=gs, LAST=last)] = None
    return tuple(found)


def _configs(problem: Gemm, arch: Arch) -> Iterator[Config]:
    """Those worth considering, without a grid."""
    e, f = layouts(problem)
    for tile in _tiles(problem):
        staged = tuple(_staged(problem, arch, tile, e, f))
        direct = _direct(problem, arch, tile, e, f)
        if staged:
            direct = (config for config in direct if not _scattered(config, problem))
        yield from (*direct, *staged)
    yield from units(problem, arch, ((e.mode, e.lines, e.width, e.shifts), (f.mode, f.lines, f.width, f.shifts)))


def space_where_long(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """:func:`space` where k is long, or no other kernel takes the element type.

    This kernel is compiled anew for every m and n. The kernels of tiles are not, and are as fast where k is short; the
    one of 16-bit types needs matrix units.
    """
    alone = problem.dtype.wider is not None and no_unit(problem, LARGEST, arch) is not None
    return space(problem, arch) if alone or is_long(problem) else ()


def _tiles(problem: Gemm) -> Iterator[Config]:
    """Tiles of a thread and how many of them share a k: whatever fits in registers, the largest few."""
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
            most = _MOST_ALONE if gram and down == 1 else _MOST_SUMS
            if sums * size <= most and (tm + tn) * size <= _MOST_PER_K and sharing <= 256:
                config = Config.of(M=m, N=n, TM=tm, TN=tn, DOWN=down, ACROSS=across, S=sharing, GRAM=int(gram), UNITS=0)
                fitting.append((_burden(config), config))
    fitting.sort(key=lambda pair: pair[0])
    least = fitting[0][0] if fitting else 0.0
    yield from (config for burden, config in fitting[:6] if burden <= 2 * least)


def _burden(tile: Config) -> float:
    """Issue slots per k of all threads that share one: multiply-adds, padding among them, and reads."""
    return tile["S"] * (tile["TM"] * tile["TN"] + 1.0 * (tile["TM"] + tile["TN"]))


def _direct(problem: Gemm, arch: Arch, tile: Config, e: Layout, f: Layout) -> Iterator[Config]:
    size = problem.dtype.itemsize
    alone = _alone(tile)
    for v in sorted(_lengths(tile, e, f, VECTOR_BYTES // size)):
        modes = _read_as("E", e, tile["DOWN"], tile["TM"], v) | _read_as("F", f, tile["ACROSS"], tile["TN"], v)
        loaded = _registers(tile["TM"] * v, modes["E_WIDTH"], size)
        loaded += 0 if alone else _registers(tile["TN"] * v, modes["F_WIDTH"], size)
        if loaded > _MOST_LOADED:
            continue
        at_once = min(_MOST_AT_ONCE, _MOST_REGISTERS - _needed(tile, problem))
        rounds = [u for u in (1, 2, 4, 8, 16) if u == 1 or u * loaded <= at_once]
        for u, bs in product(rounds, _THREADS):
            if bs >= tile["S"]:
                config = tile.replace(V=v, U=u, BS=bs, BK=0, STAGES=0, **modes)
                yield _resident(config, problem, arch, u * loaded)


def _scattered(config: Config, problem: Gemm) -> bool:
    """Whether a warp reads less than a line of L1 of each of many rows: 128 of them take twice as long as staged."""
    run = max(1, _WARP // config["S"]) * config["V"] * problem.dtype.itemsize
    many = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    return run < _L1_LINE and any(n > _MANY and config[f"{name}_MODE"] == ALONG_K for name, n in many.items())


def _lengths(tile: Config, e: Layout, f: Layout, full: int) -> set[int]:
    """How many k's a thread may take at a time where it loads them itself."""
    along = {layout.width for layout in (e, f) if layout.along_k}
    # As many as the loads along k take at once, so that neighbouring threads read neighbouring bytes.
    lengths = {min(along, default=1)}
    if len(along) > 1 or _packed(e, tile["DOWN"]) or _packed(f, tile["ACROSS"]):
        lengths.add(full)
    return lengths


def _read_as(name: str, layout: Layout, takers: int, count: int, v: int) -> dict[str, int]:
    """Mode, width and group of loads straight into registers of a thread that takes ``count`` lines and ``v`` k's."""
    if layout.along_k:
        mode, width, group = ALONG_K, min(v, layout.width), 1
    elif _packed(layout, takers):
        mode, width, group = PACKED, gcd(layout.width, v * layout.lines), 1
    else:
        mode = STRIDED
        width = group = gcd(layout.width, count, layout.lines)
    return {f"{name}_MODE": mode, f"{name}_WIDTH": width, f"{name}_GROUP": group}


def _registers(elements: int, width: int, size: int) -> int:
    """Registers that hold ``elements`` loaded ``width`` at a time: at least one for each load."""
    return ceil_div(elements, width) * ceil_div(width * size, 4)


def _alone(config: Config) -> bool:
    """Whether one thread has a whole Gram matrix: it then reads its lines once and sums the triangle."""
    return bool(config["GRAM"]) and config["DOWN"] == 1


def _packed(layout: Layout, takers: int) -> bool:
    return layout.mode == PACKED and takers == 1


def _copied_as(name: str, layout: Layout, count: int, size: int) -> list[dict[str, int]]:
    """Mode, width and group of copies to stages from which a thread takes ``count`` lines, in every legal way."""
    full = VECTOR_BYTES // size
    mode, width = layout.mode, layout.width
    if mode == PACKED and width >= full and layout.lines in {full << i for i in range(6)}:
        mode, width = STRIDED, full  # k's of whole vectors, which a pitch spreads over the banks
    ways = [(mode, width)] if width * size >= LEAST_COPY else []
    if layout.along_k and layout.shifts and width < full:
        ways.append((SHIFTED, full))
    group = 1 if layout.along_k else gcd(full, count, layout.lines)
    return [{f"{name}_MODE": mode, f"{name}_WIDTH": width, f"{name}_GROUP": group} for mode, width in ways]


def _staged(problem: Gemm, arch: Arch, tile: Config, e: Layout, f: Layout) -> Iterator[Config]:
    size = problem.dtype.itemsize
    full = VECTOR_BYTES // size
    if _alone(tile) and tile["TM"] > _MOST_PLACES and e.width >= full:
        return  # the places of so many lines go to local memory; loads of whole vectors need none
    e_ways, f_ways = _copied_as("E", e, tile["TM"], size), _copied_as("F", f, tile["TN"], size)
    if not e_ways or not f_ways:
        return
    # Both as they lie, or whatever can be shifted.
    for copies in ({**e_ways[0], **f_ways[0]}, {**e_ways[-1], **f_ways[-1]})[: max(len(e_ways), len(f_ways))]:
        shifted = SHIFTED in {copies["E_MODE"], copies["F_MODE"]}
        for v in {1} if shifted else sorted({full, max(1, full // 2)}):
            yield from _copied(problem, arch, tile.replace(V=v, **copies))


def _copied(problem: Gemm, arch: Arch, read: Config) -> Iterator[Config]:
    """Stages from which ``read`` says how threads read."""
    size, v = problem.dtype.itemsize, read["V"]
    loaded = _registers(read["TM"] * v, width_of(read, "E", problem.m, size), size)
    loaded += 0 if _alone(read) else _registers(read["TN"] * v, width_of(read, "F", problem.n, size), size)
    if loaded > min(_MOST_LOADED, _MOST_REGISTERS - _needed(read, problem)):
        return
    for bs, bk, stages in product(_THREADS, (16, 32, 64, 128, 256, 512), (3, 4)):
        config = read.replace(U=0, BS=bs, BK=bk, STAGES=stages)
        if _worth_a_stage(config, problem):
            config = _resident(config, problem, arch, loaded)
            fits = config["SHARED_BYTES"] <= arch.shared_per_block
            if fits and bs * config["BLOCKS_PER_SM"] >= _LEAST_RESIDENT:
                yield config


def _worth_a_stage(config: Config, problem: Gemm) -> bool:
    size, bs, bk = problem.dtype.itemsize, config["BS"], config["BK"]
    if bs < config["S"]:
        return False
    lines = {"E": problem.m, "F": 0 if problem.gram else problem.n}
    copies = sum(count * bk // config[f"{name}_WIDTH"] for name, count in lines.items())
    pieces, rest = divmod(bk, config["V"] * (bs // config["S"]))
    return (
        not rest
        and pieces <= _MOST_PIECES
        and _STAGE[0] <= sum(lines.values()) * bk * size <= _STAGE[1]
        and bk * size >= _LINE
        and copies <= _MOST_COPIES * bs
    )


def _resident(config: Config, problem: Gemm, arch: Arch, loaded: int) -> Config:
    """``config`` with its shared memory, and with as many blocks per multiprocessor as registers and that allow."""
    config = with_stages(config, problem)
    registers = min(255, _needed(config, problem) + loaded)
    by_registers = arch.registers_per_sm // (-(-registers // 8) * 8 * config["BS"])
    by_shared = arch.shared_per_sm // max(1, config["SHARED_BYTES"] + arch.shared_reserved)
    most = max(1, min(by_registers, by_shared, arch.threads_per_sm // config["BS"], arch.blocks_per_sm))
    return config.replace(BLOCKS_PER_SM=most)


def _needed(tile: Config, problem: Gemm) -> int:
    """Registers of a thread apart from what it has loaded: sums, one k of 16-bit lines widened, addresses."""
    sums = tile["TM"] * (tile["TM"] + 1) // 2 if _alone(tile) else tile["TM"] * tile["TN"]
    widened = tile["TM"] + tile["TN"] if problem.dtype.wider is not None else 0
    return sums * problem.dtype.accumulator.itemsize // 4 + widened + _OTHERS


def _grids(problem: Gemm, config: Config, arch: Arch) -> Iterator[int]:
    """Blocks per product: one, a few, or as many as the GPU holds at once; no more than there is work for.

    One or two for each multiprocessor may be faster than as many as fit: too many bytes in flight crowd memory. Those
    that multiply on matrix units are made to fit, so that all of them are taken where k is long.
    """
    most = max(1, ceil_div(problem.k, block_terms(config)))
    resident = max(1, arch.sms * config["BLOCKS_PER_SM"] // problem.batch)
    if config["UNITS"] and most >= _FEW_STAGES * resident:
        yield resident
        return
    counts = {1, resident, *(max(1, arch.sms * part // (4 * problem.batch)) for part in (1, 2, 4, 8))}
    counts = {count for count in counts if count <= resident}
    yield from sorted({min(most, count) for count in counts})


def _adders(problem: Gemm, config: Config) -> tuple[int, ...]:
    """Who may add the partial sums: the last block (1), a second launch (0)."""
    sums = padded_bytes(problem, config)
    if config["GS"] == 1 or sums > MOST_ADDED_BY_ONE:
        return (0,)
    return (1,) if sums <= _SOON_ADDED else (1, 0)


def block_terms(config: Config) -> int:
    """Terms of k that a block takes at a time."""
    return config["BK"] * teams(config) or config["V"] * config["BS"] // config["S"]


def against(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Why the constants do not fit the problem, or None."""
    checks = (_wrong_sizes, _wrong_loads, _wrong_launch)
    reason = next(filter(None, (check(problem, config) for check in checks)), None)
    if reason is None and config["UNITS"]:
        reason = against_units(problem, config, arch)
    return reason or (None if arch.compiles else f"{arch.title} is older than the compiler")


def _wrong_sizes(problem: Gemm, config: Config) -> str | None:
    if not (1 <= problem.m <= NARROW and 1 <= problem.n <= NARROW):
        return f"{problem.m} x {problem.n} outputs are more than {NARROW} x {NARROW}, or none"
    if (config["M"], config["N"], config["GRAM"]) != (problem.m, problem.n, int(problem.gram)):
        return f"constants for {config['M']} x {config['N']} outputs, gram {config['GRAM']}"
    return None


def _wrong_loads(problem: Gemm, config: Config) -> str | None:
    size = problem.dtype.itemsize
    for name, layout in zip("EF", layouts(problem), strict=True):
        mode, width = config[f"{name}_MODE"], config[f"{name}_WIDTH"]
        if mode == SHIFTED:
            if not (layout.shifts and config["BK"] and (config["V"] == 1 or config["UNITS"])):
                return (
                    f"{name}_MODE = {mode} needs stages, V = 1 or units, and a matrix that begins at an aligned vector"
                )
            continue
        if mode != layout.mode and not (mode == STRIDED and layout.mode == PACKED):
            return f"{name}_MODE = {mode} is not how {name} lies"
        if width > layout.width:
            return f"{name}_WIDTH = {width} needs lines aligned to {width * size} bytes"
        if config["BK"] and width * size < LEAST_COPY:
            return f"{name}_WIDTH = {width}: cp.async copies at least {LEAST_COPY} bytes"
    return None


def _wrong_launch(problem: Gemm, config: Config) -> str | None:
    needed = with_stages(config, problem)
    for name in ("E_PITCH", "F_PITCH", "SHARED_BYTES"):
        if needed[name] != config[name]:
            return f"{name} = {config[name]}, and the device needs {needed[name]}"
    if config["LAST"] and not (config["GS"] > 1 and padded_bytes(problem, config) <= MOST_ADDED_BY_ONE):
        return f"LAST = 1: one block adds 1 to {MOST_ADDED_BY_ONE} bytes of partial sums, of GS = {config['GS']} blocks"
    return None if config["GS"] >= 1 else f"GS = {config['GS']} blocks"
