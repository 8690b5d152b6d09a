"""D = activation(alpha * A @ B + beta * C + bias) for a short k: all of it is staged in shared memory at once.

Three kinds of products have such work tiles: batches of small matrices, several per work tile; products of a tall and a
small matrix, where rows of A stream past a B that stays; and outer products with a small k. Packed batches are copied,
and stored, as one contiguous run of memory, whatever the size of one matrix. float32 and float64 are summed by FMAs, 16
bits on tensor cores.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from typing import Any

from matmill.arch import Arch
from matmill.config import Columns, Config, Configs, Tiles
from matmill.dtypes import ALL, BF16, F32
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.model import larger, smaller
from matmill.kernels.shared.outputs import OUTPUT_FIELDS, output_values
from matmill.kernels.shared.tiled import why_not_extents
from matmill.kernels.short_k.cost import explain, least
from matmill.kernels.short_k.tiles import (
    MOST_COPIES,
    WorkTile,
    configured,
    constants_of,
    division_multiplier,
    keeps_b,
    shape_of,
    sizes,
    staging,
    tiled,
)
from matmill.kernels.splitk import why_not_precision
from matmill.launch import Argument, Pointer
from matmill.lowering import is_long
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: The constants that tell one configuration from others, of those that a problem allows.
TILE = ("TM", "TN", "THREADS", "STAGES")
#: The longest k. For a longer one a pipeline along k is as fast.
LONGEST_K = 512
#: The most rows or columns of products of a batch that are computed whole.
_WHOLE = 128
#: Bytes of A and B in a work tile of several products, about.
_STAGES = (4096, 8192, 16384, 32768)
#: Rows and columns of work tiles.
_ROWS, _TILES = (16, 32, 64, 128, 256), ((16, 32), (32, 32), (32, 64), (64, 64), (128, 64))
#: Rows and columns of a thread (of a warp for 16 bits), and the registers of a thread, by bytes of an element.
_THREAD_TILES: dict[int, tuple[tuple[int, int, int], ...]] = {
    2: ((16, 8, 64), (16, 32, 96), (32, 32, 128)),
    4: ((1, 1, 56), (4, 1, 72), (1, 4, 64), (4, 4, 80), (4, 8, 112), (8, 8, 168)),
    8: ((1, 1, 56), (4, 1, 88), (2, 2, 80), (4, 4, 128)),
}
#: Threads of a block, and the most blocks per SM.
_THREADS, _MOST_BLOCKS = (64, 128, 256), 8
#: The most work tiles: the kernel counts in 32 bits, one tile beyond the last.
_MOST_TILES = 2**31 - 2**16
#: The first compute capability whose tensor cores take bfloat16.
_BFLOAT = (8, 0)
_WARP = 32
#: Configurations that are made one by one: arrays of so few take longer.
_FEW = 4
_OPERAND = {
    "pitch": "int",
    "width": "int",
    "product": "int",
    "run_copies": "int",
    "copies_magic": "unsigned",
    "runs": "int",
    "beyond": "Index",
}
_PARAMETERS = Parameters.of(
    A="const Scalar*",
    B="const Scalar*",
    C="const void*",
    D="void*",
    bias="const Scalar*",
    m="int",
    n="int",
    k="int",
    batch="int",
    group="int",
    bm="int",
    bn="int",
    tiles_down="int",
    tiles_across="int",
    tiles="int",
    tiles_across_magic="unsigned",
    tiles_down_magic="unsigned",
    step_across="int",
    step_down="int",
    step_group="int",
    units_down="int",
    units_across="int",
    units_magic="unsigned",
    across_magic="unsigned",
    d_pitch="int",
    d_step="int",
    d_product="int",
    d_stores="int",
    d_stores_magic="unsigned",
    stage_elements="int",
    b_first="int",
    d_first="int",
    keep_b="int",
    a_row="Index",
    a_column="Index",
    a_batch="Index",
    b_row="Index",
    b_column="Index",
    b_batch="Index",
    **{f"{name}_{field}": kind for name in "ab" for field, kind in _OPERAND.items()},
    **OUTPUT_FIELDS,
    bias_stride="Index",
)


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering: work tiles by a thread's rows and columns, with one and two stages.

    They are work tiles, with one and two stages, by the rows and columns of a thread.

    If the kernel lacks the elements or the precision there is only one, so that the reason is given once. There is none
    if another kernel is better for the problem: one with a long k, with k = 0, or with few outputs and a k that is long
    in comparison.
    """
    return _among(problem, arch, None).configs


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    if problem.dtype.name not in ALL or not 0 < problem.k <= LONGEST_K or (is_long(problem) and problem.batch == 1):
        return Columns(())
    if _why_not_elements(problem, arch) is not None:
        reasons = islice(_shapes(problem, arch), 1)
        return Columns(tuple(configured(shape, problem).launched(BLOCKS=arch.sms) for shape in reasons))
    shapes = list(_shapes(problem, arch, tiles))
    if not shapes:
        return Columns(())
    if len(shapes) <= _FEW:
        return Columns(tuple(_each(problem, shapes, arch)))
    columns = tiled(problem, shapes)
    return columns.launched(BLOCKS=_blocks(problem, columns, arch))


def _each(problem: Gemm, shapes: Sequence[WorkTile], arch: Arch) -> Iterator[Config]:
    """Yield the configurations of work tiles, each once, as :func:`tiled` does for many."""
    staged = 1
    for shape in shapes:
        if shape.direct and not staged:  # as the one before
            continue
        compiled, launched = constants_of(problem, shape)
        staged = compiled["D_STAGED"]
        blocks = _blocks(problem, {**compiled, **launched}, arch)
        yield Config.of(**compiled).launched(**launched, BLOCKS=blocks)


def _blocks(problem: Gemm, config: Configs | Mapping[str, int], arch: Arch) -> Any:
    """Return the blocks that are resident on all SMs together: persistent ones."""
    shared = arch.shared_per_sm // (sizes(problem, config).nbytes + arch.shared_reserved)
    return arch.sms * larger(1, smaller(config["BLOCKS_PER_SM"], shared))


def _shapes(problem: Gemm, arch: Arch, among: Tiles | None = None) -> Iterator[WorkTile]:
    """Yield work tiles with the rows and columns of a thread, or those with constants (:data:`TILE`) ``among`` some."""
    (least_rows, least_columns, _), *_ = _THREAD_TILES[problem.dtype.itemsize]
    work_tiles = []
    for group, bm, bn in dict.fromkeys(_work_tiles(problem, arch)):
        tiles = ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * ceil_div(problem.batch, group)
        work_tiles.append((group, bm, bn, tiles, 2 * max(bm, least_rows), 2 * max(bn, least_columns)))
    considered = _thread_tiles(problem.dtype.itemsize, among)
    for (tm, tn, registers), (group, bm, bn, tiles, most_rows, most_columns) in product(considered, work_tiles):
        # One output per thread is for few outputs, or for one column.
        if tm >= most_rows or tn >= most_columns or (tm * tn == 1 and tiles > arch.sms and bn > 1):
            continue
        count = group * ceil_div(bm, tm) * ceil_div(bn, tn) * (_WARP if problem.dtype.itemsize == 2 else 1)
        threads = _THREADS[bisect_left(_THREADS, count, hi=len(_THREADS) - 1)]
        blocks = min(_MOST_BLOCKS, arch.registers_per_sm // (registers * threads))
        if among is None or (tm, tn, threads, 1) in among:
            yield WorkTile(group, bm, bn, tm, tn, threads, 1, blocks)
            if tiles <= arch.sms:
                yield WorkTile(group, bm, bn, tm, tn, threads, 1, blocks, direct=True)
        if among is None or (tm, tn, threads, 2) in among:
            # Two stages if a block has another work tile to copy.
            if tiles > arch.sms:
                yield WorkTile(group, bm, bn, tm, tn, threads, 2, blocks)
            if keeps_b(problem, bn):
                yield WorkTile(group, bm, bn, tm, tn, threads, 2, blocks, by_runs=True)


@lru_cache(maxsize=1024)
def _thread_tiles(size: int, among: Tiles | None) -> list[tuple[int, int, int]]:
    """Return the rows, columns and registers of a thread that are considered for elements of so many bytes."""
    return [own for own in _THREAD_TILES[size] if among is None or any(own[:2] == tile[:2] for tile in among)]


def _work_tiles(problem: Gemm, arch: Arch) -> Iterator[tuple[int, int, int]]:
    """Yield products, rows and columns of work tiles."""
    m, n, size = problem.m, problem.n, problem.dtype.itemsize
    if problem.batch > 1 and max(m, n) <= _WHOLE:
        one = max(1, (m + n) * problem.k * size)
        most = ceil_div(problem.batch, arch.sms)
        for wanted in _STAGES:
            group = max(1, min(wanted // one, most))
            # Groups of 8 start on 16 bytes, whatever the size of one product.
            yield (group // 8 * 8 or group, m, n)
        return
    if n <= _WHOLE:
        yield from ((1, min(rows, m), n) for rows in _large_enough(m, arch))
    if m <= _WHOLE < n:
        yield from ((1, m, min(columns, n)) for columns in _large_enough(n, arch))
    if min(m, n) > _ROWS[0]:
        tiles = [(min(rows, m), min(columns, n)) for rows, columns in _TILES]
        few = [(bm, bn) for bm, bn in tiles if ceil_div(m, bm) * ceil_div(n, bn) <= bm * bn * arch.sms // 32]
        yield from ((1, bm, bn) for bm, bn in few or tiles[-1:])


def _large_enough(extent: int, arch: Arch) -> list[int]:
    """Omit rows (or columns) of work tiles that would split ``extent`` into too many, but keep the largest."""
    return [rows for rows in _ROWS if ceil_div(extent, rows) <= 2 * rows * arch.sms] or [_ROWS[-1]]


def _geometry(problem: Gemm, config: Config) -> Geometry:
    own = sizes(problem, config)
    return Geometry(
        grid=(min(own.work_tiles, config["BLOCKS"]), 1, 1), block=(config["THREADS"], 1, 1), dynamic_shared=own.nbytes
    )


def _operand_values(problem: Gemm, config: Config) -> dict[str, int]:
    own = staging(problem, config)
    values: dict[str, int] = {}
    for name, part in (("a", own.a), ("b", own.b)):
        values |= {
            f"{name}_pitch": part.pitch,
            f"{name}_width": part.width,
            f"{name}_product": part.product,
            f"{name}_run_copies": part.run_copies,
            f"{name}_copies_magic": division_multiplier(part.run_copies),
            f"{name}_runs": part.runs,
            f"{name}_beyond": part.batch_gap,
        }
    if keeps_b(problem, config["BN"]):
        values["b_product"] = 0
    return values


def _arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    own = staging(problem, config)
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    a_batch, b_batch, _, _ = problem.batch_strides
    stores = ceil_div(config["BN"], config["D_WIDTH"])
    step = min(own.sizes.work_tiles, config["BLOCKS"])  # from a block's work tile to its next one
    return _PARAMETERS.pack(
        problem.dtype,
        A=operands.a,
        B=operands.b,
        C=operands.c,
        D=operands.d,
        bias=operands.bias or Pointer("no bias", 0),
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        group=config["PRODUCTS"],
        bm=config["BM"],
        bn=config["BN"],
        tiles_down=own.sizes.tiles_down,
        tiles_across=own.sizes.tiles_across,
        tiles=own.sizes.work_tiles,
        tiles_across_magic=division_multiplier(own.sizes.tiles_across),
        tiles_down_magic=division_multiplier(own.sizes.tiles_down),
        step_across=step % own.sizes.tiles_across,
        step_down=step // own.sizes.tiles_across % own.sizes.tiles_down,
        step_group=step // own.sizes.tiles_across // own.sizes.tiles_down,
        units_down=own.sizes.units_down,
        units_across=own.sizes.units_across,
        units_magic=division_multiplier(own.sizes.units_down * own.sizes.units_across),
        across_magic=division_multiplier(own.sizes.units_across // (2 if config["QUADS"] else 1)),
        d_pitch=own.d_pitch,
        d_step=own.d_step,
        d_product=own.d_product,
        d_stores=stores,
        d_stores_magic=division_multiplier(stores),
        stage_elements=own.sizes.stage_elements,
        b_first=own.b_first,
        d_first=own.sizes.d_first,
        keep_b=int(keeps_b(problem, config["BN"])),
        a_row=a_row,
        a_column=a_column,
        a_batch=a_batch,
        b_row=b_row,
        b_column=b_column,
        b_batch=b_batch,
        bias_stride=problem.epilogue.bias_stride,
        **_operand_values(problem, config),
        **output_values(problem, operands),
    )


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    missing = _why_not_elements(problem, arch)
    if missing is not None:
        return missing
    if problem.k > LONGEST_K:
        return f"k = {problem.k} > {LONGEST_K}"
    if constants_of(problem, shape_of(config))[0] != dict(config.constants):
        return "the constants are those of other strides or alignments"
    own = staging(problem, config)
    copies = max(own.sizes.a_copies, own.sizes.b_copies)
    most = max(copies, config["PRODUCTS"] * own.sizes.units_down * own.sizes.units_across)
    if most > MOST_COPIES:
        return f"a work tile has {most} > {MOST_COPIES} copies or units of outputs"
    return f"{own.sizes.work_tiles} > {_MOST_TILES} work tiles" if own.sizes.work_tiles > _MOST_TILES else None


def _why_not_elements(problem: Gemm, arch: Arch) -> str | None:
    size = problem.dtype.itemsize
    if problem.dtype.is_integer:
        return f"the kernel sums floats, not {problem.dtype.name}"
    if problem.dtype is BF16 and arch.capability < _BFLOAT:
        has = ".".join(map(str, arch.capability))
        return f"tensor cores take bfloat16 from compute capability 8.0 on: {arch.name} has {has}"
    return why_not_precision(problem, promotes=size > 2) or why_not_extents(problem)


SHORT_K: Kernel[Gemm] = Kernel(
    entry="short_k",
    package=__name__,
    config=configured(WorkTile(1, 64, 64, 8, 8, blocks_per_sm=3), Gemm(m=128, n=128, k=32, dtype=F32)).launched(
        BLOCKS=396
    ),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    pdl=True,
    parameters=_PARAMETERS,
    work_tiles=lambda problem, config: (sizes(problem, config).work_tiles, 1),
    sums_in_slices=lambda problem, _config: problem.slice_k >= problem.k,
)

PRODUCTION: Production[Gemm] = Production(SHORT_K, space, explain, TILE, _among, least=least)
