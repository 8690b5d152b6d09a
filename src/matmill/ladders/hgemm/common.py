"""The host code that rungs of the HGEMM ladder share: parameters, why_not, launch shapes, and the type of the sums.

Every rung computes D = alpha * A @ B + beta * C on packed row-major matrices of 16-bit elements, with the parameters
``(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k, float alpha, float beta)``. If
beta is 0, C is not read. With the constant ``ACC16`` sums are float16, as in the blog; otherwise they are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import BF16, F16
from matmill.kernel import GemmOperands, Geometry, Kernel, Rung, ceil_div, multiples
from matmill.kernels.hgemm.tiles import threads
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES, why_not_tensor_cores
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.launch import Argument
from matmill.problem import Gemm

#: The most 32-bit sums that a lane's registers hold of a tile: those of 64 x 64 outputs of a warp.
_MOST_SUMS = 128


def arguments(problem: Gemm, _config: Config, operands: GemmOperands) -> tuple[Argument, ...]:
    """Return the parameters of every rung, in order."""
    return (
        operands.a,
        operands.b,
        operands.c,
        operands.d,
        np.int32(problem.m),
        np.int32(problem.n),
        np.int32(problem.k),
        np.float32(operands.alpha),
        np.float32(operands.beta),
    )


def packed(problem: Gemm, config: Config, arch: Arch) -> str | None:
    """Return ``why_not_config`` of every rung: one product of packed 16-bit matrices that the tensor cores take."""
    return why_not_tensor_cores(problem, arch, acc16=bool(config["ACC16"])) or why_not_packed(problem)


def why_not_packed(problem: Gemm) -> str | None:
    """Return why the problem is not one product of packed matrices, or None."""
    if not problem.plain:
        return "rungs have no bias, activation, other type of D or other precision"
    if problem.batch != 1:
        return f"a batch of {problem.batch} is not one product"
    given = {"A": problem.a_row_col, "B": problem.b_row_col, "D": problem.d_row_col}
    if problem.has_c:
        given["C"] = problem.c_row_col
    for name, strides in given.items():
        columns = problem.k if name == "A" else problem.n
        if strides != (columns, 1):
            return f"strides {strides} of {name} are not those of a packed matrix, {(columns, 1)}"
    return None


def why_not_aligned(problem: Gemm) -> str | None:
    """Return which matrix has rows that do not start on 16 bytes, or None."""
    for name, align in (("A", problem.a_align), ("B", problem.b_align), ("D", problem.d_align)):
        if align < VECTOR_BYTES:
            return f"rows of {name} start at multiples of {align} bytes, not of {VECTOR_BYTES}"
    return None


def tiled(*, asynchronous: bool = False) -> Callable[[Gemm, Config, Arch], str | None]:
    """Return ``why_not_config`` of a rung that takes only whole tiles.

    It needs sizes in multiples of BM, BN and BK, and rows on 16 bytes. ``asynchronous`` rungs use cp.async, which
    Turing lacks.
    """

    def why_not(problem: Gemm, config: Config, arch: Arch) -> str | None:
        reason = packed(problem, config, arch)
        if reason is not None:
            return reason
        if asynchronous and arch.capability < (8, 0):
            return f"cp.async needs compute capability 8.0: {arch.name} has {'.'.join(map(str, arch.capability))}"
        sizes = multiples(config["BM"], config["BN"], config["BK"])
        return why_not_aligned(problem) or sizes(problem, config, arch)

    return why_not


def block_per_tile(problem: Gemm, config: Config) -> Geometry:
    """Return one block for each BM x BN tile of D; x runs along columns."""
    return Geometry(
        grid=(ceil_div(problem.n, config["BN"]), ceil_div(problem.m, config["BM"]), 1),
        block=(threads(config), 1, 1),
        dynamic_shared=config["SHARED_BYTES"],
    )


def staged(*, acc16: int = 1, stages: int = 1, **constants: int) -> Config:
    """Return a rung's constants, with float16 sums by default, and the shared memory of ``stages`` tiles of A and B."""
    elements = stages * (constants["BM"] + constants["BN"]) * constants["BK"]
    return Config.of(ACC16=acc16, STAGES=stages, SHARED_BYTES=elements * ELEMENT_BYTES, **constants)


def widened(config: Config) -> Config:
    """Return the rung with float32 sums, in a tile half as wide if sums of twice the size would not fit.

    >>> config = staged(BM=256, BN=256, BK=32, WARPS_M=2, WARPS_N=4)
    >>> wide = widened(config)
    >>> (config["BN"], config["SHARED_BYTES"]), (wide["ACC16"], wide["BN"], wide["SHARED_BYTES"])
    ((256, 32768), (0, 128, 24576))
    """
    constants = dict(config.constants)
    for computed in ("ACC16", "SHARED_BYTES"):
        constants.pop(computed)
    stages = constants.pop("STAGES")
    if config["BM"] * config["BN"] // threads(config) > _MOST_SUMS:
        constants["BN"] //= 2
    return staged(acc16=0, stages=stages, **constants)


def narrow_or_wide(narrow: Config, wide: Config | None = None) -> Callable[[Gemm, Arch], Config]:
    """Return the constants for a problem: float16 sums as in the blog, float32 ones for bfloat16."""
    widest = wide or widened(narrow)

    def tune(problem: Gemm, _arch: Arch) -> Config:
        return narrow if problem.dtype is F16 else widest

    return tune


def in_float32(rung: Rung[Gemm]) -> Rung[Gemm]:
    """Return the rung with float32 sums for every problem: with its constants for bfloat16."""

    def tune(problem: Gemm, arch: Arch) -> Config:
        return rung.kernel_for(replace(problem, dtype=BF16), arch).config

    return replace(rung, tune=tune)


def kernel(
    entry: str, file: str, config: Config, why_not: Callable[[Gemm, Config, Arch], str | None] | None = None
) -> Kernel[Gemm]:
    """Return the descriptor of a rung's kernel that takes whole tiles."""
    return Kernel(
        entry=entry,
        package="matmill.ladders.hgemm",
        file=file,
        config=config,
        geometry=block_per_tile,
        arguments=arguments,
        why_not_config=why_not or tiled(),
    )
