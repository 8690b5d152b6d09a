"""From shapes and strides to problems that kernels take: pure arithmetic, no memory and no device.

An operation on arrays of any shape becomes a few :class:`Stage` s, each one problem launched at one or more places:
dimensions that lie regularly in all operands collapse into one, and what a grid cannot hold is looped over.
"""

from __future__ import annotations

from matmill.lowering.axes import MOST_BATCHES, Offsets, Shape, Stage, check_broadcast
from matmill.lowering.gemm import NARROW, is_long, lower, result_shape
from matmill.lowering.transpose import lower_sum, many_small, sum_shape

__all__ = [
    "MOST_BATCHES",
    "NARROW",
    "Offsets",
    "Shape",
    "Stage",
    "check_broadcast",
    "is_long",
    "lower",
    "lower_sum",
    "many_small",
    "result_shape",
    "sum_shape",
]
