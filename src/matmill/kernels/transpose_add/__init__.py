"""The transpose+add kernel: D = alpha * X + beta * Y in one pass, for operands that lie along D's rows or across them.

X and Y are A and B of the operands; a problem's rows are those of D. Where D's columns are contiguous rather than its
rows, the problem is given with rows and columns changed over (:func:`matmill.lowering.lower_transpose`).
"""

from __future__ import annotations

from matmill.kernel import Kernel
from matmill.problem import Geam
from matmill.tiling.transpose import kernel

TRANSPOSE_ADD: Kernel[Geam] = kernel("transpose_add", __name__)
