"""A production kernel as the last row of a ladder's run: no rung that teaches, but what the rungs lead to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matmill.arch import Arch
from matmill.choose import Choice, choose, choose_transpose_add
from matmill.errors import IllegalConfigError
from matmill.kernel import Kernel, P, Rung
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.inner import INNER
from matmill.kernels.transpose_add import TRANSPOSE_ADD
from matmill.ladder.documents import OURS
from matmill.registry import LADDERS


@dataclass(frozen=True)
class Chosen(Rung[P]):
    """What matmill would run, kernel and constants, for a problem on an arch."""

    choose: Callable[[P, Arch], Choice[P]] = field(kw_only=True)

    def kernel_for(self, problem: P, arch: Arch) -> Kernel[P]:
        """The choice, or, where there is none, a kernel that says why not."""
        try:
            return self.choose(problem, arch).kernel
        except IllegalConfigError:
            return self.kernel


PRODUCTION = Chosen(
    name="production",
    source=OURS,
    changes="What matmill.inner runs: tile, loads and launch as the cost model chooses them for the product.",
    predicts="The rungs' best, at every size, type and layout.",
    kernel=INNER,
    choose=choose,
)
HALF = Chosen(
    name="production",
    source=OURS,
    changes="What matmill.matmul runs: float32-sums' pipeline for operands that lie any way and batches of them, with "
    "the tile and the parts of k that the cost model chooses.",
    predicts="The rungs' best with float32 sums, at every size, type and layout.",
    kernel=HGEMM,
    choose=choose,
)
SUM = Chosen(
    name="production",
    source=OURS,
    changes="What matmill.transpose_add runs: shifted's kernel for operands that lie any way and batches of them, with "
    "the tile and launch that the cost model chooses.",
    predicts="The rungs' best, at every size, type and alignment.",
    kernel=TRANSPOSE_ADD,
    choose=choose_transpose_add,
)

_AFTER: dict[str, tuple[Rung[Any], ...]] = {"hgemm": (HALF,), "inner": (PRODUCTION,), "transpose_add": (SUM,)}


def rows_of(ladder: str) -> tuple[Any, ...]:
    """The rungs of a ladder, and the production kernel after those of the ladder that leads to one.

    >>> [row.name for row in rows_of("inner")][-2:]
    ['gram', 'production']
    """
    return (*LADDERS[ladder], *_AFTER.get(ladder, ()))
