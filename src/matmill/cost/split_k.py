"""What it costs to split k over blocks: the launch that adds the sums of the parts."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.kernel import ceil_div
from matmill.problem import Gemm

#: Seconds that a second launch right behind the first adds, and of each step in which its threads add STEP_PARTS parts.
#: Estimates on the safe side, not fitted yet: k is split where that gains more than they may be wrong by.
SECOND, SECOND_STEP, STEP_PARTS = 2.5e-6, 0.3e-6, 64
#: Bytes that L2 delivers to each multiprocessor per clock: an estimate, as in the inner kernel's model.
L2_BYTES = 32.0


def second(problem: Gemm, parts: int, arch: Arch) -> float:
    """Seconds of the launch that adds ``parts`` sums per output, through L2, and makes D; 0 where there is one part."""
    if parts == 1:
        return 0.0
    moved = parts * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
    return SECOND + SECOND_STEP * ceil_div(parts, STEP_PARTS) + moved / (L2_BYTES * arch.sms * arch.boost_hz)
