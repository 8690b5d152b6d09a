"""The inner ladder: D = alpha * E @ F + beta * C with few outputs and a long k, from the paper's PHVM to one pass."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.inner.basic import BASIC
from matmill.ladder.inner.gram import GRAM
from matmill.ladder.inner.one_pass import ONE_PASS
from matmill.ladder.inner.phvm import PHVM
from matmill.ladder.inner.two_stage import TWO_STAGE
from matmill.ladder.inner.vectorized import VECTORIZED
from matmill.problem import Gemm

INNER: tuple[Rung[Gemm], ...] = (BASIC, PHVM, ONE_PASS, VECTORIZED, TWO_STAGE, GRAM)
