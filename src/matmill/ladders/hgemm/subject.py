"""The products of the hgemm ladder: packed row-major matrices of 16-bit floats, and the check of results."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from matmill.bench.libraries.blas import CupyProduct, TorchProduct
from matmill.bench.libraries.gemm import half_peers
from matmill.bench.problems.error_bounds import matrix_limit
from matmill.bench.problems.inputs import Array, Inputs, InputsBySize, alignment
from matmill.bench.problems.options import EmulatorLimit, ProblemOptions
from matmill.choose import choose
from matmill.dtypes import BF16, F16, DType
from matmill.kernel import Kernel
from matmill.kernels.hgemm import HGEMM as HGEMM_KERNEL
from matmill.ladders.hgemm.rungs import HGEMM as HGEMM_RUNGS
from matmill.ladders.runner.ladder import PRODUCT_SIZES, SMALLER, Ladder, by, production
from matmill.ladders.runner.subject import ARITHMETIC, TENSOR_CORE_PEAK, Subject, counted_columns
from matmill.problem import Gemm
from matmill.reference import Check, answer, excess

#: Element types that the tensor cores of every GPU since Ampere multiply, the default first.
HALVES: dict[str, DType] = {dtype.name: dtype for dtype in (F16, BF16)}
#: (m, n, k) of a run without sizes: the least that every rung takes, with two steps of the longest k.
EMULATED = (256, 256, 128)

_ROWS = 256  # rows of a result that are compared at a time


def product_of_options(options: ProblemOptions, default: tuple[int, int, int]) -> Gemm:
    """Return the product that the options describe.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name of a type.
    """
    dtype = options.element_type(HALVES, F16)
    return half_product(*options.square(default), dtype)


def half_product(m: int, n: int, k: int, dtype: DType = F16) -> Gemm:
    """Return the product of packed matrices, with rows aligned as their lengths allow.

    >>> result = half_product(1000, 1000, 1001)
    >>> result.a_align, result.b_align
    (2, 16)
    """
    return Gemm(
        m=m,
        n=n,
        k=k,
        dtype=dtype,
        a_align=alignment(m, k, dtype),
        b_align=alignment(k, n, dtype),
        d_align=alignment(m, n, dtype),
    )


def resized(problem: Gemm, m: int, n: int, k: int) -> Gemm:
    """Return the product with other sizes."""
    return half_product(m, n, k, problem.dtype)


def described(problem: Gemm) -> dict[str, Any]:
    """Return a record's sizes and element type, which :func:`restored` reads."""
    return {"m": problem.m, "n": problem.n, "k": problem.k, "dtype": problem.dtype.name}


def restored(record: Mapping[str, Any]) -> Gemm:
    """Return the product that a record describes.

    >>> problem = half_product(30, 50, 20, BF16)
    >>> restored(described(problem)) == problem
    True
    """
    return half_product(record["m"], record["n"], record["k"], HALVES[record["dtype"]])


@dataclass(frozen=True)
class HalfInputs(Inputs):
    """A and B of 16-bit floats, and the check of a product by the type of its sums."""

    @cached_property
    def _right(self) -> tuple[Array, Array, Array]:
        """The product in float64, and the norms of the rows of A and of the columns of B."""
        rows, columns = (
            np.sqrt(np.sum(np.square(matrix, dtype=np.float32), axis, np.float64))
            for axis, matrix in ((1, self.a), (0, self.b))
        )
        return answer(self.a, self.b), rows, columns

    def check(self, actual: Array, *, acc16: bool = False) -> Check:
        """Compare ``actual`` with the product, element by element; ``acc16`` says that its sums were float16.

        Rows are compared in blocks, by several threads.
        """
        expected, rows, columns = self._right
        problem = self.problem
        if actual.shape != expected.shape or actual.dtype != problem.dtype.numpy:
            return Check(ok=False, error_ratio=float("inf"))

        def worst(start: int) -> float:
            part = slice(start, start + _ROWS)
            walk = np.outer(rows[part], columns) / np.sqrt(problem.k)
            limit = matrix_limit(expected[part], walk, problem.k, problem.dtype, acc16=acc16)
            return excess(actual[part], expected[part], limit)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            ratio = max(pool.map(worst, range(0, problem.m, _ROWS)))
        return Check(ok=ratio <= 1.0, error_ratio=ratio)


def _by_its_sums(inputs: HalfInputs, maker: Kernel[Gemm] | TorchProduct | CupyProduct, actual: Array) -> Check:
    acc16 = ("ACC16", 1) in maker.config.constants if isinstance(maker, Kernel) else maker.acc16
    return inputs.check(actual, acc16=acc16)


MATRIX: Subject[Gemm] = replace(
    ARITHMETIC,
    limit_name=TENSOR_CORE_PEAK,
    peak=lambda problem, arch: arch.matrix_flops.get(problem.dtype.name),
    inputs=partial(InputsBySize, kind=HalfInputs),
    resized=resized,
    by_arch=True,
    record=described,
    problem=restored,
    counted=counted_columns("hmma"),
    counted_async=("wgmma", "operands", "TMA loads", "bytes loaded", "TMA stores", "bytes stored", "mbarrier waits"),
    check=_by_its_sums,
)

LADDER: Ladder[Gemm] = Ladder(
    name="hgemm",
    rungs=HGEMM_RUNGS,
    subject=MATRIX,
    problem=product_of_options,
    sizes={"gpu": PRODUCT_SIZES["gpu"], "emulator": EMULATED},
    production=production(
        HGEMM_KERNEL,
        choose,
        changes="What matmill.matmul runs: float32-sums' pipeline for operands of any layout and batches of "
        "them, with the tile and the split of k that the cost model chooses.",
        predicts="The rungs' best with float32 sums, at every size, type and layout.",
    ),
    options=frozenset({"dtype", "sweep"}),
    help="C = A B of 16-bit floats on the tensor cores. Sizes default to m, n, k "
    f"{by(PRODUCT_SIZES['gpu'])} on a GPU and {by(EMULATED)} emulated, --dtype "
    f"({' or '.join(HALVES)}) to {F16.name}. Of float16, the rungs below float32-sums sum in float16, as the "
    "ladder's source does, and are checked as such. Percentages refer to the tensor cores' rate by the data sheet, "
    "with float32 sums.",
    # some minutes on two cores
    too_long=EmulatorLimit(200_000_000, 3.6e-6, "--m, --n, --k", SMALLER),
    libraries=half_peers,
    short=(
        "hierarchical",
        "vectorized",
        "swizzled",
        "multistage",
        "epilogue",
        "wgmma",
        "warp-specialised",
        "tma-store",
    ),
    as_on_gpu=True,
    groups={"": "mma.sync", "wgmma": "wgmma"},
)
