"""Shapes and strides to problems that kernels take: pure arithmetic, no memory and no device.

An operation on arrays of any shape becomes a few :class:`SubProblem` objects, each one problem at one or more offsets.
Dimensions with regular strides in all operands collapse into one. Offsets that do not fit in a grid are looped over.
"""

from __future__ import annotations

from matmill.lowering.axes import MOST_BATCHES, Offsets, Shape, SubProblem, check_broadcast
from matmill.lowering.gemm import NARROW, gemm_epilogue, gemm_shape, is_long, lower_gemm, split_batch
from matmill.lowering.transpose import lower_transpose, many_small, transpose_shape

__all__ = [
    "MOST_BATCHES",
    "NARROW",
    "Offsets",
    "Shape",
    "SubProblem",
    "check_broadcast",
    "gemm_epilogue",
    "gemm_shape",
    "is_long",
    "lower_gemm",
    "lower_transpose",
    "many_small",
    "split_batch",
    "transpose_shape",
]
