"""The cost of split-K: the launch that adds the partial sums."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.kernel import ceil_div
from matmill.kernels.splitk import needs_epilogue
from matmill.problem import Gemm

#: Seconds that a second launch right after the first adds, and of each step in which its threads add STEP_SLICES
#: slices.
SECOND, SECOND_STEP, STEP_SLICES = 3.0e-6, 0.3e-6, 64
#: Bytes of partial sums that an SM stores or loads per clock. This and SECOND were fitted by hand to the 107 split
#: configurations of the kernels gemm and thin in ``benchmarks/results/shapes_h200.json`` and ``thin_h200.json``: L2
#: alone would be four times as fast, but all blocks store at once, after their last FMA.
BYTES_PER_CYCLE = 10.0


def second(problem: Gemm, slices: int, arch: Arch) -> float:
    """Seconds of storing ``slices`` partial sums per output, and of the launch that adds them and makes D.

    They go through L2 twice: blocks store them after their last FMA, and the launch reads them. There are none for one
    slice of a problem without an epilogue.
    """
    if slices == 1 and not needs_epilogue(problem):
        return 0.0
    moved = 2 * slices * problem.batch * problem.m * problem.n * problem.dtype.accumulator.itemsize
    return SECOND + SECOND_STEP * ceil_div(slices, STEP_SLICES) + moved / (BYTES_PER_CYCLE * arch.sms * arch.boost_hz)
