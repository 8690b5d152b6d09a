"""D = alpha * A @ B + beta * C on the plain FMA units, for any sizes, strides and alignments.

Elements are float32, float64, or integers of 32 or 64 bits, whose sums wrap around.

The production twin of the SGEMM ladder's last rung: both are built on ``kernels/gemm/simt.cuh``. Where D
has too few tiles to occupy the GPU and k is long, split-K gives each tile to SPLIT_K blocks, and a second launch adds
their partial sums in fixed order. That launch is also the one that applies an epilogue.
"""

from __future__ import annotations

from matmill.arch import Arch
from matmill.config import Columns, Config, Tiles
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, ceil_div
from matmill.kernels.gemm.cost import explain, least
from matmill.kernels.gemm.tiles import TILE, TILES, shapes, threads, why_not, with_vector_widths
from matmill.kernels.shared.tiled import STRIDED, geometry, strided_values, tile_count, work_tiles
from matmill.kernels.splitk import SPLITK_REDUCE, split_bytes, splits, why_not_precision, why_not_split
from matmill.launch import Argument
from matmill.lowering import is_long
from matmill.problem import Gemm

#: The fewest k-steps of a split-K slice: the first two fill the pipeline.
_LEAST_STEPS = 4
#: Split-K slices that balance the work of the SMs: the most tiles per SM for which they are considered, the most
#: slices, and the largest share of the time with fewer slices that they may take, as each adds partial sums.
_FEW_TILES, _MOST_EVEN, _WORTH = 2, 8, 0.95
#: With a long k, tiles of 128 x 128 need more rows or columns than this to be well filled. Smaller tiles, which copy
#: two operands along k element by element, take a third longer than the inner kernel.
_NARROWEST = 96
#: Tiles with 64 rows by element size, of those that compile in the least time, for products whose own tile is not
#: compiled.
_GENERAL = {4: next(one for one in TILES[4] if (one["BM"], one["SLICES"]) == (64, 4)), 8: TILES[8][1]}


def space(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return every configuration worth considering: the tile shapes, without and (for few tiles) with split-K.

    There is only one if the kernel lacks the precision, so that the reason is given once.
    """
    return _among(problem, arch, None).configs


def _among(problem: Gemm, arch: Arch, tiles: Tiles | None) -> Columns:
    """Return :func:`space`, or its configurations that have one of ``tiles``."""
    tiled = shapes(problem, tiles)
    if why_not_precision(problem, promotes=True) is not None:
        return tiled.take([0][: len(tiled)], SPLIT_K=[1][: len(tiled)])
    return sliced(tiled, problem, arch)


def sliced(tiled: Columns, problem: Gemm, arch: Arch) -> Columns:
    """Return tile shapes without and, for few tiles, with split-K."""
    pairs = [
        (row, slices)
        for row, config in enumerate(tiled.configs)
        for slices in _slices(
            tile_count(problem, config) * problem.batch, ceil_div(problem.k, config["BK"]), config, arch
        )
    ]
    return tiled.take([row for row, _ in pairs], SPLIT_K=[slices for _, slices in pairs])


def _slices(blocks: int, steps: int, config: Config, arch: Arch) -> list[int]:
    """List numbers of slices worth considering: one, those that fill a wave, and those that leave fewer SMs idle.

    If tiles are more than half of the SMs, one wave has no room for two slices of each, but two waves may have room for
    three: 80 tiles take 132 SMs as long as one tile, and 240 thirds of them two thirds of that. Slices without a k-step
    are omitted: they would only store zeros.

    >>> from matmill.arch import get
    >>> from matmill.kernels.gemm.tiles import tile
    >>> one = tile(128, 256, 8, 16, 8, 2, 4)
    >>> _slices(80, 512, one, get("h200")), _slices(2, 1024, one, get("h200"))
    ([1, 3, 8], [1, 64])
    """
    most = steps // _LEAST_STEPS
    counts = splits(blocks, most, config["BLOCKS_PER_SM"], arch)
    if arch.sms // _MOST_EVEN < blocks < _FEW_TILES * arch.sms:
        least = float(ceil_div(blocks, arch.sms))
        for slices in range(2, min(_MOST_EVEN, most) + 1):
            share = ceil_div(blocks * slices, arch.sms) / slices
            if share <= _WORTH * least:
                counts.append(slices)
                least = share
    return sorted({ceil_div(steps, ceil_div(steps, slices)) if slices > 1 else 1 for slices in counts})


def _where_wide(problem: Gemm, arch: Arch, tiles: Tiles | None = None) -> Columns:
    """Return :func:`space`, or nothing for products of few outputs and a long k.

    The inner kernel takes all of these but the widest, and those of integers.
    """
    narrow = is_long(problem) and max(problem.m, problem.n) <= _NARROWEST and not problem.dtype.is_integer
    return Columns(()) if narrow else _among(problem, arch, tiles)


def general(problem: Gemm, _arch: Arch) -> Config | None:
    """Return a tile of middling size whose copies are element by element: it takes all layouts of an element type."""
    dtype = problem.dtype
    if dtype.itemsize not in _GENERAL or dtype.itemsize != dtype.accumulator.itemsize:
        return None
    unaligned = Gemm(1, 1, 1, dtype, a_align=dtype.itemsize, b_align=dtype.itemsize, d_align=dtype.itemsize)
    return with_vector_widths(_GENERAL[dtype.itemsize], unaligned).launched(SPLIT_K=1)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return geometry(problem, config, int(threads(config)))


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    return STRIDED.pack(problem.dtype, **strided_values(problem, operands))


def _why_not(problem: Gemm, config: Config, _arch: Arch) -> str | None:
    return why_not_precision(problem, promotes=True) or why_not(problem, config) or why_not_split(problem, config)


GEMM: Kernel[Gemm] = Kernel(
    entry="gemm",
    package=__name__,
    config=with_vector_widths(TILES[4][0], Gemm(m=128, n=256, k=8)).launched(SPLIT_K=1),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    after=SPLITK_REDUCE,
    workspace_bytes=split_bytes,
    pdl=True,
    parameters=STRIDED,
    instruction="fma",
    work_tiles=work_tiles,
)

PRODUCTION: Production[Gemm] = Production.of(GEMM, _where_wide, explain, TILE, general, least=least)
