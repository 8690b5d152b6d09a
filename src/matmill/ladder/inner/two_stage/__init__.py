"""Partial sums per block and a second launch in place of atomics: the same bits in every run."""

from __future__ import annotations

from matmill.kernel import Kernel, Rung
from matmill.ladder.documents import OURS
from matmill.ladder.inner.common import REDUCE_PARTIALS, fixed_size_arguments, gs_blocks, partials_bytes
from matmill.ladder.inner.vectors import DEFAULT, tune, wide_loads
from matmill.problem import Gemm

TWO_STAGE: Rung[Gemm] = Rung(
    name="two-stage",
    source=OURS,
    changes="Each block writes its m * n sums to a workspace of GS * m * n numbers; a second launch adds those of each "
    "output in fixed order. No atomics, and nothing to clear first.",
    predicts="Two launches instead of three, and 0 atomics. The workspace costs 2 * 4 * GS * m * n bytes: 68 KB for "
    "8 x 8 outputs and 132 blocks, 0.014 us of bandwidth, all of it in L2. For long k the same time as before; the "
    "same inputs give the same bits.",
    kernel=Kernel(
        entry="two_stage",
        package=__name__,
        config=DEFAULT,
        geometry=gs_blocks,
        arguments=fixed_size_arguments,
        why_not_config=wide_loads,
        after=(REDUCE_PARTIALS,),
        workspace_bytes=partials_bytes,
    ),
    tune=tune,
)
