"""D = alpha * A @ B + beta * C with few rows or columns and a k that is not short, at the rate of reading A or B.

The long matrix is read once, in vectors, straight into registers; the other one goes through shared memory. The kernel
computes few columns. For few rows it computes D's transpose, and the host exchanges A and B. If the long side has too
few rows to fill the GPU, split-K divides k over SPLIT_K blocks, and a second launch adds their partial sums in fixed
order. That launch also applies an epilogue.
"""

from __future__ import annotations

from matmill.arch import Arch, get
from matmill.config import Columns, Config, Tiles
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.shared.exchange import as_bound, as_launched, exchanged
from matmill.kernels.shared.tiled import STRIDED, strided_values, why_not_extents
from matmill.kernels.splitk import SPLITK_REDUCE, split_bytes, splits, why_not_precision, why_not_split
from matmill.kernels.thin.cost import explain, least
from matmill.kernels.thin.tiles import MOST_FEW, TILE, WARPS, rows_of_block, shapes, why_not, why_not_few
from matmill.launch import Argument
from matmill.lowering import is_long
from matmill.parameters import Parameters
from matmill.problem import Gemm

#: The shortest k: with a shorter one, a lane has too few terms to be worth the sums over lanes.
_LEAST_K = 128
#: The fewest chunks of B in a split-K slice: the first one is waited for.
_LEAST_CHUNKS = 2

#: Strides of the partial sums for D before the exchange, which are packed row-major.
_PARAMETERS = Parameters((*STRIDED.fields, ("p_row", "Index"), ("p_column", "Index")))


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering: the tiles, without and (for few of them) with split-K.

    There is none for products without a short side, with a short k, or with few outputs and a long k, which the inner
    kernel takes. There is only one if the kernel lacks the precision, so that the reason is given once.
    """
    return _among(problem, arch, None).configs


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    if min(problem.m, problem.n) > MOST_FEW or problem.k < _LEAST_K or _by_inner(problem):
        return Columns(())
    swap = problem.m < problem.n
    launched = exchanged(problem) if swap else problem
    tiled = shapes(launched, arch, tiles)
    if why_not_precision(problem, promotes=True) is not None:
        pairs = [(0, 1)][: len(tiled)]
    else:
        each = enumerate(tiled.configs)
        pairs = [(row, slices) for row, config in each for slices in _slices(launched, config, arch)]
    rows, slices = [row for row, _ in pairs], [count for _, count in pairs]
    return tiled.take(rows, SPLIT_K=slices, EXCHANGED=[int(swap)] * len(rows))


def _by_inner(problem: Gemm) -> bool:
    """Tell whether the inner kernel takes the product, or a kernel of 8-bit integers, which this one would widen."""
    return problem.dtype.itemsize == 1 or (is_long(problem) and not problem.dtype.is_integer)


def _slices(launched: Gemm, config: Config, arch: Arch) -> list[int]:
    """List numbers of slices worth considering: one, those that fill a wave, and those that leave fewer SMs idle."""
    chunks = ceil_div(launched.k, config["BK"])
    blocks = ceil_div(launched.m, rows_of_block(config)) * launched.batch
    counts = splits(blocks, chunks // _LEAST_CHUNKS, config["BLOCKS_PER_SM"], arch)
    return sorted({ceil_div(chunks, ceil_div(chunks, slices)) for slices in counts})


def _geometry(problem: Gemm, config: Config) -> Geometry:
    launched = as_launched(problem, config)
    return Geometry(
        grid=(ceil_div(launched.m, rows_of_block(config)), problem.batch, config["SPLIT_K"]),
        block=(WARPS * 32, 1, 1),
    )


def _arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    launched = as_launched(problem, config)
    p_row, p_column = (1, launched.m) if config["EXCHANGED"] else (launched.n, 1)
    values = strided_values(launched, as_bound(operands, config))
    return _PARAMETERS.pack(problem.dtype, **values, p_row=p_row, p_column=p_column)


def _why_not(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    return (
        why_not_precision(problem, promotes=True)
        or why_not_few(problem)
        or why_not_extents(problem)
        or why_not(as_launched(problem, config), config)
        or why_not_split(problem, config)
    )


_PROBLEM = Gemm(m=14336, n=1, k=4096)

THIN: Kernel[Gemm] = Kernel(
    entry="thin",
    package=__name__,
    config=shapes(_PROBLEM, get("h200")).config(0).launched(SPLIT_K=1, EXCHANGED=0),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    after=SPLITK_REDUCE,
    workspace_bytes=split_bytes,
    pdl=True,
    parameters=_PARAMETERS,
)

PRODUCTION: Production[Gemm] = Production(THIN, space, explain, TILE, _among, least=least)
