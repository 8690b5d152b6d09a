"""The production kernel as the last row of a ladder's run: no rung that teaches, but what the rungs lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matmill.arch import Arch
from matmill.choose import choose
from matmill.errors import IllegalConfigError
from matmill.kernel import Kernel, Rung
from matmill.kernels.inner import INNER
from matmill.ladder.documents import OURS
from matmill.problem import Gemm
from matmill.registry import LADDERS


@dataclass(frozen=True)
class Chosen(Rung[Gemm]):
    """What matmill would run, kernel and constants, for a problem on an arch."""

    def kernel_for(self, problem: Gemm, arch: Arch) -> Kernel[Gemm]:
        """The choice, or, where there is none, a kernel that says why not."""
        try:
            return choose(problem, arch).kernel
        except IllegalConfigError:
            return self.kernel


PRODUCTION = Chosen(
    name="production",
    source=OURS,
    changes="What matmill.inner runs: tile, loads and launch as the cost model chooses them for the product.",
    predicts="The rungs' best, at every size, type and layout.",
    kernel=INNER,
)

_AFTER = {"inner": (PRODUCTION,)}


def rows_of(ladder: str) -> tuple[Any, ...]:
    """The rungs of a ladder, and the production kernel after those of the ladder that leads to one.

    >>> [row.name for row in rows_of("inner")][-2:]
    ['gram', 'production']
    """
    return (*LADDERS[ladder], *_AFTER.get(ladder, ()))
