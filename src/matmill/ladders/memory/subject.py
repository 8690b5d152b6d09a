"""The problems of the memory ladder."""

from __future__ import annotations

from matmill.bench.problems.options import EmulatorLimit
from matmill.ladders.memory.rungs import MEMORY as MEMORY_RUNGS
from matmill.ladders.runner.ladder import PRODUCT_SIZES, SMALLER, Ladder, float32_product
from matmill.ladders.runner.subject import ARITHMETIC
from matmill.problem import Gemm

LADDER: Ladder[Gemm] = Ladder(
    name="memory",
    rungs=MEMORY_RUNGS,
    subject=ARITHMETIC,
    problem=float32_product,
    sizes=PRODUCT_SIZES,
    too_long=EmulatorLimit(2_000_000_000, 1.7e-7, "--m, --n, --k", SMALLER),
)
