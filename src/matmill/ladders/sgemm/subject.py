"""The problems of the SGEMM ladder."""

from __future__ import annotations

from dataclasses import replace

from matmill.bench.libraries.gemm import cublas_of_copies
from matmill.bench.problems.options import EmulatorLimit
from matmill.ladders.runner.ladder import PRODUCT_SIZES, SMALLER, Ladder, float32_product
from matmill.ladders.runner.subject import ARITHMETIC, Subject, counted_columns
from matmill.ladders.sgemm.rungs import SGEMM as SGEMM_RUNGS
from matmill.precision import UNIT
from matmill.problem import Gemm
from matmill.reference import relative_bound

FLOAT32: Subject[Gemm] = replace(
    ARITHMETIC,
    by_arch=True,
    counted=("ffma", "hmma", *counted_columns("ffma")[1:]),
    counted_async=("wgmma", "operands", "TMA loads", "bytes loaded", "mbarrier waits"),
    error_bound=lambda problem: relative_bound(problem.k, UNIT) / UNIT,
)

LADDER: Ladder[Gemm] = Ladder(
    name="sgemm",
    rungs=SGEMM_RUNGS,
    subject=FLOAT32,
    problem=float32_product,
    sizes=PRODUCT_SIZES,
    # some minutes on two cores
    too_long=EmulatorLimit(200_000_000, 6.0e-6, "--m, --n, --k", SMALLER),
    options=frozenset({"sweep"}),
    libraries=cublas_of_copies,
    short=(
        "uncoalesced",
        "naive",
        "shared(32)",
        "register-tile",
        "conflict-free(128)",
        "vectorized",
        "async-copy",
        "tuned",
    ),
    as_on_gpu=True,
    groups={"": "FMA", "tf32x3": "float32 in pieces on tensor cores"},
)
