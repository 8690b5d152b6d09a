"""Mistakes that people have reported of their kernels, each found, and its repair silent and right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import matmill

N = 256


@dataclass(frozen=True)
class Mistake:
    """A kernel ``k(const float* x, float* y, int n)`` of ``grid`` blocks: wrong and repaired, with a part of the message.

    Both kernels leave ``y[i]``, of every thread i, as ``answer`` has it. ``kind`` is the finding's.
    """

    kind: str
    wrong: str
    right: str
    text: str
    answer: Any
    grid: int = 1
    block: int = 64
    settings: dict[str, Any] = field(default_factory=dict)

    def report(self, body: str, **settings: Any) -> tuple[matmill.testing.report.LaunchReport, Any]:
        """Return the report of a body, and y."""
        x, y = np.arange(1, N + 1, dtype=np.float32), np.full(N, -1, np.float32)
        source = f"{HEAD}__global__ void k(const float* x, float* y, int n) {{\n  const int t = threadIdx.x;\n{body}\n}}\n"
        report = matmill.emulate(source, "k", self.grid, self.block, x, y, 40, **self.settings, **settings)
        return report, y[: self.grid * self.block]


HEAD = """#include <cooperative_groups.h>
"""
MISTAKES = {
    "__ldg of what the launch wrote": Mistake(
        kind="read-only-cache",
        wrong="y[t + 64] = t;\n__syncthreads();\ny[t] = __ldg(y + 127 - t);",
        right="y[t + 64] = t;\n__syncthreads();\ny[t] = y[127 - t];",
        text="reads 4 bytes at y[127] through the read-only cache, which does not see the stores of this launch "
        "(kernel.cu:4)",
        answer=np.arange(64)[::-1],
    ),
    "__ldg of what an atomic wrote": Mistake(
        kind="read-only-cache",
        wrong="atomicExch(y + t + 64, 3.0f);\n__syncthreads();\ny[t] = __ldg(y + 127 - t);",
        right="atomicExch(y + t + 64, 3.0f);\n__syncthreads();\ny[t] = y[127 - t] + 0 * __ldg(x + t);",
        text="(kernel.cu:4)",
        answer=np.full(64, 3),
    ),
    "__ldg before the store": Mistake(
        kind="read-only-cache",
        wrong="y[t] = 2;\nfor (int i = 0; i < 2; i++) { float4 v = __ldg((const float4*)y); y[t] = v.x; __syncthreads(); }",
        right="y[t] = 2 + 0 * __ldg(y + t);",
        text="reads 16 bytes at y[0]",
        answer=np.full(64, 2),
        block=32,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_mistake_is_found(name: str) -> None:
    mistake = MISTAKES[name]
    report, _ = mistake.report(mistake.wrong)
    assert mistake.kind in {hazard.kind for hazard in report.hazards}
    assert any(mistake.text in hazard.message for hazard in report.hazards if hazard.kind == mistake.kind)


@pytest.mark.parametrize("name", MISTAKES)
def test_the_repair_is_silent_and_right(name: str) -> None:
    mistake = MISTAKES[name]
    report, y = mistake.report(mistake.right)
    assert report.hazards == ()
    np.testing.assert_array_equal(y, np.broadcast_to(mistake.answer, 64)[: len(y)])
