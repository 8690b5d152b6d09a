"""Configurations whose threads read ahead (``include/matmill/inner/ahead.cuh``): for products bound by multiply-adds.

Tiles need not be as many as a power of two: a team of threads is as many groups of one thread per tile as fit, and few
threads may be left over. A thread's tile, how it reads, the threads of a multiprocessor that its registers allow, and
how these fall into blocks and teams make a configuration.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd, lcm

from matmill.arch import Arch
from matmill.config import Config
from matmill.cost.inner_passes import ALONG_K, TURNED, VECTOR_BYTES, groups, teams
from matmill.kernel import ceil_div
from matmill.kernels.inner.stages import with_stages
from matmill.layout import NARROW
from matmill.problem import Gemm

#: Of the time that memory takes at best, what multiply-adds must take: from 48 x 48 on, on an H200.
_LEAST_MULTIPLIES = 0.8
#: Sums of a thread, which take registers, and elements that it loads per multiply-add.
_MOST_SUMS, _MOST_LOADED = 144, 0.3
#: Threads of a warp, and the share of a team's that must have tiles.
_WARP, _LEAST_USED = 32, 0.9
#: Tiles to consider, how much more than the least burden the last of them may be, and how much longer than wide one.
_TILES, _MOST_BURDEN, _SLIMMEST = 5, 1.2, 5
#: Registers for addresses and counters; all of a thread's, beyond which the compiler has too little choice: of its 255
#: the products that were estimated to need 238 and more were 5% to 10% slower than without reading ahead.
_OTHERS, _MOST_REGISTERS = 28, 232
#: Threads of a block and blocks of a multiprocessor, the most threads first, and how many registers more than there are
#: a thread may be estimated to need.
_BLOCKS, _SLACK = ((128, 3), (128, 2), (256, 1)), 4
#: Multiply-adds in the machine code of a stage: a barrier's worth, and no more than an instruction cache holds.
_CODE = (650, 1300)
#: Stages, and bytes of a multiprocessor's that may be under way.
_STAGES, _FLIGHT = (2, 3, 4), (30_000, 140_000)
_MOST_TEAMS = 15
#: What a stage's k's must be a multiple of where a matrix has lines along k, whole sectors; and how many there must be
#: unless all of them that there are is one that is turned.
_RUN, _LEAST_RUN = 8, 16
#: Elements of a vector, and issue slots of a load: its own, and those that shared memory keeps warps waiting.
_FULL, _LOAD = VECTOR_BYTES // 4, 3

#: Mode, lines and width of E and of F.
Modes = tuple[tuple[int, int, int], tuple[int, int, int]]


def ahead(problem: Gemm, arch: Arch, modes: Modes) -> Iterator[Config]:
    """Those worth considering, without a grid.

    For float32 alone: float64 takes twice the registers, and 16-bit types have matrix units.
    """
    if problem.gram or problem.dtype.name != "float32" or not _bound(problem, arch):
        return
    tiles = _tiles(problem, modes)
    for copies, v in _ways(modes):
        found = ((burden, _read(problem, tile.replace(V=v, **copies))) for burden, tile in tiles)
        fitting = [(burden, read, blocks) for burden, read in found if (blocks := _blocks(arch, read))]
        for burden, read, blocks in fitting[:_TILES]:
            if burden <= _MOST_BURDEN * fitting[0][0]:
                yield from _launched(problem, arch, read, blocks)


def _bound(problem: Gemm, arch: Arch) -> bool:
    """Whether multiply-adds take long enough, compared with memory."""
    multiplies = 2 * problem.m * problem.n / arch.peak(problem.dtype.name)
    memory = (problem.m + problem.n) * problem.dtype.itemsize / arch.dram_bytes_per_s
    return multiplies >= _LEAST_MULTIPLIES * memory


def _tiles(problem: Gemm, modes: Modes) -> list[tuple[float, Config]]:
    """Tiles by their burden: lanes' issue slots per k for multiply-adds, padding among them, and loads."""
    m, n = problem.m, problem.n
    e_along, f_along = (mode == ALONG_K and width == _FULL for mode, _, width in modes)
    found = []
    for down, across in product(range(2, m // 2), range(2, n // 2)):
        tm, tn = ceil_div(m, down), ceil_div(n, across)
        threads = down * across
        fewer = ceil_div(m, tm) < down or ceil_div(n, tn) < across  # have the same tiles
        if fewer or max(tm, tn) > _SLIMMEST * min(tm, tn) or tm * tn > _MOST_SUMS or tm + tn > _MOST_LOADED * tm * tn:
            continue
        if (team := _team(threads)) is None:
            continue
        loads = tm / (_FULL if e_along else gcd(_FULL, tm, m)) + tn / (_FULL if f_along else gcd(_FULL, tn, n))
        burden = (tm * tn + _LOAD * loads) * team / (team // threads)
        found.append((burden, Config.of(M=m, N=n, TM=tm, TN=tn, DOWN=down, ACROSS=across, S=threads, GRAM=0)))
    return sorted(found, key=lambda pair: pair[0])


def _team(threads: int) -> int | None:
    """The smallest team of groups of ``threads`` in which few are left over; None where there is none.

    A warp has threads of one group, or whole groups: those of others would read other k's, whose banks meet.
    """
    if _WARP % threads == 0:
        return _WARP
    team = ceil_div(threads, _WARP) * _WARP
    return team if threads >= _LEAST_USED * team else None


def _ways(modes: Modes) -> Iterator[tuple[dict[str, int], int]]:
    """How matrices are copied, without groups, and how many k's a thread loads at once of those copied along k.

    A matrix whose k is contiguous is copied along k, or turned on the way, one element at a time. Two of them are not
    turned where that can be helped: L1 then takes as long as the multiply-adds.
    """
    both = all(mode == ALONG_K for mode, *_ in modes)
    choices = []
    for mode, _, width in modes:
        along = [(ALONG_K, width)] if width == _FULL else []
        turned = [] if both and along else [(TURNED, 1)]
        choices.append([*along, *turned] if mode == ALONG_K else [(mode, width)])
    for (e_mode, e_width), (f_mode, f_width) in product(*choices):
        copies = {"E_MODE": e_mode, "E_WIDTH": e_width, "F_MODE": f_mode, "F_WIDTH": f_width}
        for v in (1, _FULL) if ALONG_K in {e_mode, f_mode} else (1,):
            yield copies, v


def _read(problem: Gemm, tile: Config) -> Config:
    """``tile`` with the lines of a load: one where they lie along k, else as many as lie side by side in a vector."""
    lines = {"E": (tile["TM"], problem.m), "F": (tile["TN"], problem.n)}
    groups_of = {
        f"{name}_GROUP": 1 if tile[f"{name}_MODE"] == ALONG_K else gcd(_FULL, *counts) for name, counts in lines.items()
    }
    return tile.replace(**groups_of)


def _blocks(arch: Arch, read: Config) -> list[tuple[int, int]]:
    """Threads of a block and blocks of a multiprocessor: as many threads as registers allow, in every way."""
    tm, tn, v = read["TM"], read["TN"], read["V"]
    loaded = (tm * v if refilled(read) else 2 * tm) + 2 * tn * (v if read["F_MODE"] == ALONG_K else 1)
    needed = tm * tn + loaded + _OTHERS - _SLACK
    threads = next((bs * b for bs, b in _BLOCKS if needed <= _most_registers(arch, bs * b)), 0)
    return [(bs, b) for bs, b in _BLOCKS if bs * b == threads and bs >= read["S"]]


def _launched(problem: Gemm, arch: Arch, read: Config, blocks: list[tuple[int, int]]) -> Iterator[Config]:
    """Teams and stages of ``blocks``."""
    for bs, count in blocks:
        smallest, whole = _team(read["S"]) or bs, bs // read["S"] * read["S"] >= _LEAST_USED * bs
        for team in sorted({smallest, bs} if whole else {smallest}):
            if bs % team:
                continue
            for bk, stages in product(_stage_lengths(read, team), _STAGES):
                config = read.replace(U=bs // team, BS=bs, BK=bk, STAGES=stages, BLOCKS_PER_SM=count)
                config = with_stages(config, problem)
                flight = (problem.m + problem.n) * problem.dtype.itemsize * bk * (stages - 1) * (bs // team) * count
                fits = (config["SHARED_BYTES"] + arch.shared_reserved) * count <= arch.shared_per_sm
                if fits and config["SHARED_BYTES"] <= arch.shared_per_block and _FLIGHT[0] <= flight <= _FLIGHT[1]:
                    yield config


def _most_registers(arch: Arch, threads: int) -> int:
    """Of each of so many threads of a multiprocessor."""
    return min(_MOST_REGISTERS, arch.registers_per_sm // threads // 8 * 8)


def _stage_lengths(read: Config, team: int) -> list[int]:
    """The two longest stages, in terms of k, that fit the instruction cache."""
    unit, sums = steps_unit(read), read["TM"] * read["TN"]
    modes = [read[f"{name}_MODE"] for name in "EF"]
    run = _RUN if {ALONG_K, TURNED} & set(modes) else 1
    least = _LEAST_RUN if ALONG_K in modes or modes == [TURNED, TURNED] else run
    fitting = range(-(-_CODE[0] // (unit * sums)) * unit, _CODE[1] // sums + 1, unit)
    lengths = [steps * (team // read["S"]) for steps in fitting]
    return [bk for bk in lengths if bk % run == 0 and bk >= least][-2:]


def refilled(config: Config) -> bool:
    """Whether a thread loads a line of E again as soon as it is multiplied, as ahead.cuh has it."""
    return config["E_MODE"] == ALONG_K and (config["V"] > 1 or config["TM"] <= config["TN"])


def steps_unit(config: Config) -> int:
    """What the steps of a stage must be a multiple of: whole pieces, and sets of registers that take turns."""
    f_steps = config["V"] if config["F_MODE"] == ALONG_K else 1
    return lcm(config["V"], 2 * f_steps, 1 if refilled(config) else 2)


def against_ahead(config: Config) -> str | None:
    """Why a block cannot fall into teams that read ahead in such stages, or None."""
    own, left = divmod(config["BS"], teams(config))
    if left or own % _WARP or own < config["S"] or teams(config) > _MOST_TEAMS:
        return f"BS = {config['BS']} threads: not U = {config['U']} teams of S = {config['S']} and more, in whole warps"
    if config["GRAM"] or min(config["DOWN"], config["ACROSS"]) < 2 or max(config["M"], config["N"]) > NARROW:
        return "reading ahead needs some rows and some columns of tiles, and no Gram matrix"
    in_team, unit = groups(config) // teams(config), steps_unit(config)
    if config["BK"] % (in_team * unit):
        return f"BK = {config['BK']} is not a multiple of {unit} steps of {in_team} groups"
    return None if config["STAGES"] >= 2 else f"STAGES = {config['STAGES']}: one lands while another is multiplied"
