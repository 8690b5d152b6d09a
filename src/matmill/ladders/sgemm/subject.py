"""The problems of the SGEMM ladder."""

from __future__ import annotations

from matmill.bench.libraries.gemm import cublas_of_copies
from matmill.bench.problems.options import EmulatorLimit
from matmill.ladders.runner.ladder import PRODUCT_SIZES, SMALLER, Ladder, float32_product
from matmill.ladders.runner.subject import ARITHMETIC
from matmill.ladders.sgemm.rungs import SGEMM as SGEMM_RUNGS
from matmill.problem import Gemm

LADDER: Ladder[Gemm] = Ladder(
    name="sgemm",
    rungs=SGEMM_RUNGS,
    subject=ARITHMETIC,
    problem=float32_product,
    sizes=PRODUCT_SIZES,
    # some minutes on two cores
    too_long=EmulatorLimit(200_000_000, 3.4e-6, "--m, --n, --k", SMALLER),
    options=frozenset({"sweep"}),
    libraries=cublas_of_copies,
)
