"""The transpose-add kernel: D = alpha * X + beta * Y in one pass, with X and Y transposed or not.

X and Y are A and B of the operands; a problem's rows are those of D. Where D's columns are contiguous rather than its
rows, rows and columns of the problem are exchanged (:func:`matmill.lowering.lower_transpose`).
"""

from __future__ import annotations

from matmill.kernel import Kernel, Production
from matmill.kernels.transpose.cost import explain
from matmill.kernels.transpose.tiles import general, kernel, space
from matmill.problem import Geam

TRANSPOSE_ADD: Kernel[Geam] = kernel("transpose_add", __name__)

PRODUCTION: Production[Geam] = Production(TRANSPOSE_ADD, space, explain, general=general)
