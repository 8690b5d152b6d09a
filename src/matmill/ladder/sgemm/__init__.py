"""The SGEMM ladder: C = alpha * A @ B + beta * C in float32, from three nested loops to the library's level."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.sgemm.naive import NAIVE
from matmill.problem import Gemm

SGEMM: tuple[Rung[Gemm], ...] = (NAIVE,)
