"""Frozen descriptions of what is to be computed, apart from where the data lies."""

from __future__ import annotations

from dataclasses import dataclass, replace

from matmill.dtypes import F32, DType

Strides = tuple[int, int]


@dataclass(frozen=True)
class Gemm:
    """D = alpha * A @ B + beta * C for A (m, k), B (k, n), C and D (m, n), over ``batch`` independent products.

    Strides are (row, column) in elements and may be zero or negative; ``None`` means packed row-major. ``*_batch`` is
    the distance in elements between two products' matrices: zero where all products share one, ``None`` where the
    matrices are packed one behind the other.
    ``*_align`` is the largest power of two in bytes (at most 16) that divides the address of every row or column
    start, so that a kernel knows whether 16-byte loads are legal; ``*_start_align`` is that of the first element alone,
    where it is known to be more. ``has_c`` is False where beta is 0: C is then neither read nor required. ``gram`` says
    that B is the transpose of A in the same memory: B's strides are then A's, swapped. ``alpha_one`` and ``beta_one``
    are not part of the problem: scalars are arguments.

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
    c_strides: Strides | None = None
    d_strides: Strides | None = None
    a_batch: int | None = None
    b_batch: int | None = None
    c_batch: int | None = None
    d_batch: int | None = None
    a_align: int = 16
    b_align: int = 16
    d_align: int = 16
    has_c: bool = False
    gram: bool = False
    a_start_align: int | None = None
    b_start_align: int | None = None

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add per term."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def least_bytes(self) -> int:
        """Bytes that must move at the least: every input read once, every output written once.

        An input that all products of the batch share counts once, and so do A and B where they are the same memory.
        """
        counts = [1 if stride == 0 else self.batch for stride in self.batch_strides]
        b = 0 if self.gram else self.k * self.n
        sizes = (self.m * self.k, b, self.m * self.n if self.has_c else 0, self.m * self.n)
        return sum(count * size for count, size in zip(counts, sizes, strict=True)) * self.dtype.itemsize

    @property
    def a_row_col(self) -> Strides:
        """Row and column stride of A in elements."""
        return self.a_strides or (self.k, 1)

    @property
    def b_row_col(self) -> Strides:
        """Row and column stride of B in elements."""
        if self.gram:
            row, column = self.a_row_col
            return column, row
        return self.b_strides or (self.n, 1)

    @property
    def c_row_col(self) -> Strides:
        """Row and column stride of C in elements; zero where there is no C."""
        return (self.c_strides or (self.n, 1)) if self.has_c else (0, 0)

    @property
    def d_row_col(self) -> Strides:
        """Row and column stride of D in elements."""
        return self.d_strides or (self.n, 1)

    @property
    def batch_strides(self) -> tuple[int, int, int, int]:
        """Elements from one product's matrix to the next one's, for A, B, C and D; zero for C where there is none.

        >>> Gemm(m=2, n=3, k=4, batch=5, b_batch=0).batch_strides
        (8, 0, 0, 6)
        """
        packed_c = self.m * self.n if self.has_c else 0
        a_batch = self.m * self.k if self.a_batch is None else self.a_batch
        return (
            a_batch,
            (a_batch if self.gram else self.k * self.n) if self.b_batch is None else self.b_batch,
            packed_c if self.c_batch is None or not self.has_c else self.c_batch,
            self.m * self.n if self.d_batch is None else self.d_batch,
        )

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch != 1 else ""
        return f"{times}{self.m}x{self.n}x{self.k} {self.dtype.name}"


@dataclass(frozen=True)
class View:
    """How one operand of a :class:`Geam` lies: (row, column) strides in elements as the result counts rows and columns.

    ``batch`` is the distance between two matrices of the batch. ``align`` is the largest power of two in bytes (at most
    16) that divides the address of every line along the dimension in which elements are neighbours, ``beside`` that of
    the distance from the result's element of the same row and column to this operand's, for every element.
    """

    strides: Strides
    batch: int = 0
    align: int = 16
    beside: int = 16

    @property
    def crossed(self) -> bool:
        """Whether elements are nearer to each other down the columns than along the rows, where they do not touch."""
        row, column = self.strides
        return abs(row) < abs(column) != 1


@dataclass(frozen=True)
class Geam:
    """D = alpha * X + beta * Y, element by element, for ``batch`` matrices of m rows and n columns.

    X and Y lie any way: a transposed operand is one with swapped strides. ``y`` is None where beta is 0. ``plain`` says
    that there is no Y and alpha is 1: D is then X bit by bit. BLAS extensions call the operation geam.

    >>> Geam(4, 6, F32, View((1, 4)), View((6, 1)), View((6, 1))).least_bytes
    288
    """

    m: int
    n: int
    dtype: DType
    x: View
    y: View | None
    d: View
    batch: int = 1
    plain: bool = False

    @property
    def y_turned(self) -> bool:
        """Whether it is Y that lies across D's rows, and X along them."""
        return self.y is not None and self.y.crossed and not self.x.crossed

    @property
    def turned_first(self) -> Geam:
        """The same with X and Y exchanged where Y is the one that lies across D's rows: what kernels turn comes first.

        >>> Geam(4, 6, F32, View((6, 1)), View((1, 4)), View((6, 1))).turned_first.x
        View(strides=(1, 4), batch=0, align=16, beside=16)
        """
        return replace(self, x=self.y, y=self.x) if self.y is not None and self.y_turned else self

    @property
    def least_bytes(self) -> int:
        """Bytes that must move at the least: every operand once."""
        return (2 if self.y is None else 3) * self.batch * self.m * self.n * self.dtype.itemsize

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch != 1 else ""
        return f"{times}{self.m}x{self.n} {self.dtype.name}"
