"""D = activation(alpha * A @ B + beta * C + bias) on Hopper's tensor cores, by a persistent, warp-specialised kernel.

For float16 and bfloat16 of any layout, and where the caller allows it for float32 rounded to tf32 or split into pieces.
Sums are float32 and rounded once. Operands come by TMA: a matrix whose rows do not start on 16 bytes is repacked by a
launch before the product, or its elements are shifted on their way to registers. Where D has too few tiles to occupy
the GPU, split-K gives each tile to several blocks: to those of a cluster, the first of which adds the sums of all, or
to any, whose partial sums a second launch adds. The order is fixed. D's transpose may be what is computed
(``kernels/wgmma/tiles.py``, ``exchanged``).
"""

from __future__ import annotations

from dataclasses import replace

from matmill.arch import Arch, get
from matmill.config import Config
from matmill.dtypes import F16
from matmill.kernel import AuxLaunch, GemmOperands, Geometry, Kernel, Production
from matmill.kernels.pieces import SPLIT, Pieces, method
from matmill.kernels.repack import REPACK, rewrite, why_not_repack, workspace_bytes
from matmill.kernels.shared.exchange import as_bound, as_launched
from matmill.kernels.shared.outputs import workspace
from matmill.kernels.splitk import SPLITK_REDUCE, why_not_split
from matmill.kernels.wgmma.cost import explain, least
from matmill.kernels.wgmma.maps import tensor_maps
from matmill.kernels.wgmma.space import TILE, among, space
from matmill.kernels.wgmma.tiles import (
    SHAPES,
    cluster_blocks,
    clusters_at_once,
    configured,
    runs,
    shared_work_tiles,
    sums_in_slices,
    threads,
    why_not,
    work_tiles,
)
from matmill.launch import Argument, Pointer
from matmill.parameters import Parameters
from matmill.precision import deepest
from matmill.problem import Gemm

_PARAMETERS = Parameters.of(
    a_map="matmill::TensorMap",
    b_map="matmill::TensorMap",
    d_map="matmill::TensorMap",
    A="const void*",
    B="const void*",
    C="const void*",
    D="void*",
    workspace="void*",
    bias="const Scalar*",
    m="int",
    n="int",
    k="int",
    slices="int",
    batch="int",
    a_batched="int",
    b_batched="int",
    a_pitch="Index",
    a_row="Index",
    a_column="Index",
    a_batch="Index",
    b_row="Index",
    b_column="Index",
    b_batch="Index",
    c_row="Index",
    c_column="Index",
    c_batch="Index",
    d_row="Index",
    d_column="Index",
    d_batch="Index",
    bias_stride="Index",
    alpha="float",
    beta="float",
    b_exponents="Index",
    deepest="float",
)


def _geometry(problem: Gemm, config: Config) -> Geometry:
    cluster = cluster_blocks(config)
    clusters = work_tiles(as_launched(problem, config), config)
    if config["CLUSTER_K"] == 1:
        clusters = min(clusters, int(clusters_at_once(config["SMS"], cluster)))
    return Geometry(
        grid=(clusters * cluster, 1, 1),
        block=(threads(config), 1, 1),
        dynamic_shared=max(config["SHARED_BYTES"], config.get("AGAIN_SHARED_BYTES", 0)),
        cluster=(cluster, 1, 1),
    )


def _rewrite(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Gemm, GemmOperands]:
    launched, bound = as_launched(problem, config), as_bound(operands, config)
    if config["PIECES"]:  # tensor maps have the pieces: A and B remain what they are
        return launched, bound
    return rewrite(launched, config, bound)


def _arguments(problem: Gemm, config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    a_batch, b_batch, c_batch, d_batch = problem.batch_strides
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    c_row, c_column = problem.c_row_col
    d_row, d_column = problem.d_row_col
    if config["PARTIAL_SUMS"]:  # of the problem before the exchange, packed row-major
        d_row, d_column = (1, problem.m) if config["EXCHANGED"] else (problem.n, 1)
    a_map, b_map, d_map = tensor_maps(problem, config, operands)
    offset = Pieces.of(problem, method(config)).exponents_between if config["PIECES"] else 0
    return _PARAMETERS.pack(
        problem.dtype,
        a_map=a_map,
        b_map=b_map,
        d_map=d_map,
        A=operands.a,
        B=operands.b,
        C=operands.c,
        D=operands.d,
        workspace=workspace(operands),
        bias=operands.bias or Pointer("no bias", 0),
        m=problem.m,
        n=problem.n,
        k=problem.k,
        slices=config["SPLIT_K"] * config["CLUSTER_K"],
        batch=problem.batch,
        a_batched=int(problem.batch > 1 and a_batch != 0),
        b_batched=int(problem.batch > 1 and b_batch != 0),
        a_pitch=runs(problem, "A").pitch,
        a_row=a_row,
        a_column=a_column,
        a_batch=a_batch,
        b_row=b_row,
        b_column=b_column,
        b_batch=b_batch,
        c_row=c_row,
        c_column=c_column,
        c_batch=c_batch,
        d_row=d_row,
        d_column=d_column,
        d_batch=d_batch,
        bias_stride=problem.epilogue.bias_stride,
        alpha=operands.alpha,
        beta=operands.beta,
        b_exponents=offset,
        deepest=deepest(problem.k),
    )


def _why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
    return (
        why_not(problem, config, arch)
        or why_not_split(problem, config)
        or why_not_repack(as_launched(problem, config), config)
    )


def _workspace_bytes(problem: Gemm, config: Config) -> int:
    launched = as_launched(problem, config)
    return Pieces.of(launched, method(config)).nbytes if config["PIECES"] else workspace_bytes(launched, config)


def _of_launched(launch: AuxLaunch[Gemm]) -> AuxLaunch[Gemm]:
    """Return a launch that gets the problem and the operands as they are launched."""
    constants = launch.constants
    return replace(
        launch,
        geometry=lambda problem, config: launch.geometry(as_launched(problem, config), config),
        arguments=lambda problem, config, operands: launch.arguments(
            as_launched(problem, config), config, as_bound(operands, config)
        ),
        constants=constants and (lambda problem, config: constants(as_launched(problem, config), config)),
    )


WGMMA: Kernel[Gemm] = Kernel(
    entry="wgmma_gemm",
    package=__name__,
    config=configured(SHAPES[0], Gemm(m=128, n=256, k=64, dtype=F16), get("h200")),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=_why_not,
    before=(_of_launched(REPACK), _of_launched(SPLIT)),
    after=SPLITK_REDUCE,
    workspace_bytes=_workspace_bytes,
    rewrite=_rewrite,
    pdl=True,
    parameters=_PARAMETERS,
    instruction="wgmma",
    work_tiles=shared_work_tiles,
    sums_in_slices=sums_in_slices,
)

PRODUCTION: Production[Gemm] = Production(WGMMA, space, explain, TILE, among, least=least)
