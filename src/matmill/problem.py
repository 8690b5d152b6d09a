"""Frozen descriptions of what is to be computed, apart from where the data lies."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.dtypes import F32, DType

Strides = tuple[int, int]


@dataclass(frozen=True)
class Gemm:
    """D = alpha * A @ B + beta * C for A (m, k), B (k, n), C and D (m, n), over ``batch`` independent products.

    Strides are (row, column) in elements and may be zero or negative; ``None`` means packed row-major.
    ``*_align`` is the largest power of two in bytes (at most 16) that divides the address of every row or column
    start, so that a kernel knows whether 16-byte loads are legal. ``has_c`` is False where beta is 0: C is then
    neither read nor required. ``alpha_one`` and ``beta_one`` are not part of the problem: scalars are arguments.

    >>> Gemm(m=2, n=3, k=4).flops
    48
    """

    m: int
    n: int
    k: int
    dtype: DType = F32
    batch: int = 1
    a_strides: Strides | None = None
    b_strides: Strides | None = None
    d_strides: Strides | None = None
    a_align: int = 16
    b_align: int = 16
    d_align: int = 16
    has_c: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add per term."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes that must move at the least: every input read once, every output written once."""
        mn = self.m * self.n
        elements = self.m * self.k + self.k * self.n + mn * (2 if self.has_c else 1)
        return self.batch * elements * self.dtype.itemsize

    @property
    def a_row_col(self) -> Strides:
        """Row and column stride of A in elements."""
        return self.a_strides or (self.k, 1)

    @property
    def b_row_col(self) -> Strides:
        """Row and column stride of B in elements."""
        return self.b_strides or (self.n, 1)

    @property
    def d_row_col(self) -> Strides:
        """Row and column stride of D in elements."""
        return self.d_strides or (self.n, 1)

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch != 1 else ""
        return f"{times}{self.m}x{self.n}x{self.k} {self.dtype.name}"
