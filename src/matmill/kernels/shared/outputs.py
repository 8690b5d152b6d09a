"""The arguments that kernels which make outputs of sums have in common: C and D, the workspace and the counter."""

from __future__ import annotations

from matmill.dtypes import DType
from matmill.kernel import GemmOperands
from matmill.launch import Pointer, Struct, Value
from matmill.problem import Gemm

#: C and D of a kernel that makes outputs of sums: pointers, strides in elements, and the scalars, as wide as the sums.
OUTPUT_FIELDS = {
    "c_row": "Index",
    "c_column": "Index",
    "c_batch": "Index",
    "d_row": "Index",
    "d_column": "Index",
    "d_batch": "Index",
    "alpha": "Acc",
    "beta": "Acc",
}


def output_values(problem: Gemm, operands: GemmOperands) -> dict[str, Value | float]:
    """Give the values of :data:`OUTPUT_FIELDS`."""
    _, _, c_batch, d_batch = problem.batch_strides
    strides = (*problem.c_row_col, c_batch, *problem.d_row_col, d_batch)
    return dict(zip(OUTPUT_FIELDS, (*strides, operands.alpha, operands.beta), strict=True))


def complex_factor(dtype: DType, real: float, imaginary: float, *, conjugate: bool = False) -> Struct:
    """Return a factor of complex elements, or of their conjugates, as ``dtype/complex.cuh`` defines it."""
    part = dtype.part or dtype
    return Struct.of(*map(part.scalar, (real, imaginary, -1.0 if conjugate else 1.0)))


def workspace(operands: GemmOperands) -> Pointer:
    """Point to the partial sums, or to null where there are none; ``Kernel.steps`` refuses one that is missing."""
    return operands.workspace or Pointer("no workspace", 0)


def counter(operands: GemmOperands) -> Pointer:
    """Point to the word in which blocks count themselves, or to null where a second launch adds partial sums."""
    return operands.counter or Pointer("no counter", 0)
