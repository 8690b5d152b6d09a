"""The inner kernel: products of at most 128 rows of E and columns of F along any k, at memory speed.

E and F are A and B of the problem. k is split over SPLIT_K blocks. If there are several, the last block to finish
(LAST_BLOCK = 1) or a second launch adds the partial sums in the workspace in fixed order. The second launch also
applies an epilogue.
"""

from __future__ import annotations

from dataclasses import replace

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, Production, always
from matmill.kernels.inner.cost import explain, least
from matmill.kernels.inner.mma import TILE
from matmill.kernels.inner.space import among_where_long, space, why_not
from matmill.kernels.shared.outputs import OUTPUT_FIELDS, counter, output_values, workspace
from matmill.kernels.splitk import (
    ACCUMULATE_PARTIAL,
    REDUCE_TOTALS,
    leaves_partials,
    padded_bytes,
    partials_bytes,
    splitk_reduce,
    sums_bytes,
)
from matmill.launch import Argument
from matmill.parameters import Parameters
from matmill.problem import Gemm

__all__ = ["INNER", "piece", "space", "total"]


def _geometry(problem: Gemm, config: Config) -> Geometry:
    return Geometry(
        grid=(config["SPLIT_K"], problem.batch, 1),
        block=(config["BS"], 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
        resident=config["BLOCKS_PER_SM"],
    )


def _arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    a_batch, b_batch, *_ = problem.batch_strides
    (e_row, e_k), (f_k, f_column) = problem.a_row_col, problem.b_row_col
    return _PARAMETERS.pack(
        problem.dtype,
        E=operands.a,
        F=operands.b,
        C=operands.c,
        D=operands.d,
        workspace=workspace(operands),
        counter=counter(operands),
        k=problem.k,
        e_row=e_row,
        e_k=e_k,
        e_batch=a_batch,
        f_k=f_k,
        f_column=f_column,
        f_batch=b_batch,
        **output_values(problem, operands),
    )


#: Strides are in elements.
_PARAMETERS = Parameters.of(
    E="const Scalar*",
    F="const Scalar*",
    C="const Scalar*",
    D="Scalar*",
    workspace="Acc*",
    counter="unsigned*",
    k="Index",
    e_row="Index",
    e_k="Index",
    e_batch="Index",
    f_k="Index",
    f_column="Index",
    f_batch="Index",
    **OUTPUT_FIELDS,
)


def _workspace_bytes(problem: Gemm, config: Config) -> int:
    """Return the bytes of the partial sums. A single block writes D of a plain problem directly."""
    if not leaves_partials(problem, config):
        return 0
    return padded_bytes(problem, config) if config["LAST_BLOCK"] else partials_bytes(problem, config)


_PROBLEM = Gemm(m=3, n=3, k=100_000, b_strides=(1, 100_000))

INNER: Kernel[Gemm] = Kernel(
    entry="inner",
    package=__name__,
    config=Config.of(
        M=3,
        N=3,
        TM=3,
        TN=3,
        DOWN=1,
        ACROSS=1,
        S=1,
        GRAM=0,
        MMA=0,
        V=4,
        U=2,
        BS=256,
        BK=0,
        STAGES=0,
        BLOCKS_PER_SM=2,
        E_MODE=0,
        E_WIDTH=4,
        E_GROUP=1,
        E_PITCH=0,
        F_MODE=0,
        F_WIDTH=4,
        F_GROUP=1,
        F_PITCH=0,
        SHARED_BYTES=1024,
    ).launched(SPLIT_K=98, LAST_BLOCK=0),
    geometry=_geometry,
    arguments=_arguments,
    why_not_config=why_not,
    after=(splitk_reduce(needed=leaves_partials),),
    workspace_bytes=_workspace_bytes,
    last_block_reduces=lambda _problem, config: config["LAST_BLOCK"] == 1,
    pdl=True,
    parameters=_PARAMETERS,
)


def piece(kernel: Kernel[Gemm]) -> Kernel[Gemm]:
    """Return ``kernel`` for one piece of k: it adds the piece's sums to the totals at D.

    D is a packed array of m x n sums in the accumulator's type, which start as zeros. alpha, beta and C are not read.
    """
    return replace(kernel, after=(ACCUMULATE_PARTIAL,), workspace_bytes=partials_bytes, last_block_reduces=None)


def total(kernel: Kernel[Gemm]) -> Kernel[Gemm]:
    """Return the launch after the last :func:`piece`: it computes D from the totals, which are its workspace."""
    reduce = REDUCE_TOTALS

    def arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
        return reduce.arguments(problem, kernel.config, operands)

    return Kernel(
        entry=reduce.entry,
        package=reduce.package,
        config=reduce.config,
        geometry=reduce.geometry,
        arguments=arguments,
        why_not_config=always,
        workspace_bytes=sums_bytes,
        parameters=reduce.parameters,
    )


PRODUCTION: Production[Gemm] = Production.of(INNER, among_where_long, explain, TILE, least=least)
