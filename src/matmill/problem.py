"""Frozen descriptions of problems: shapes, strides, element types and alignments, without addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from matmill.dtypes import F32, DType

Strides = tuple[int, int]

#: Activations that an epilogue may apply, in the order of their numbers (from 1) in
#: ``include/matmill/dtype/activation.cuh``.
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
#: Precisions in which tensor cores may multiply float32 elements as sums of two pieces, and the methods of each:
#: pieces of float16 or of tf32, of whose four products the three largest are added. FMA is always allowed.
SPLIT_METHODS: dict[str, tuple[str, ...]] = {
    "fp16x3": ("fp16x3",),
    "tf32x3": ("tf32x3",),
    "float32_tensor": ("fp16x3", "tf32x3"),
}
#: Modes of summation: as usual for the type; with every 128 of k promoted to a separate float32 sum; with float32
#: elements rounded to tf32 for tensor cores; or in pieces.
PRECISIONS = ("default", "high", "tf32", *SPLIT_METHODS)


@dataclass(frozen=True)
class Epilogue:
    """The end of a product: ``alpha * A @ B + beta * C`` plus a bias, then an activation, before it is rounded.

    ``bias`` is ``"row"`` for n elements, one for each column, ``"column"`` for m elements, one for each row, or None.
    ``bias_stride`` is its stride in elements. It has A's type. ``activation`` is one of :data:`ACTIVATIONS`, or None.
    """

    bias: str | None = None
    bias_stride: int = 1
    activation: str | None = None

    @property
    def constants(self) -> dict[str, int]:
        """The epilogue as constants of device code.

        >>> Epilogue("row", activation="gelu").constants
        {'BIAS': 1, 'ACTIVATION': 2}
        """
        return {
            "BIAS": 0 if self.bias is None else 1 + ("row", "column").index(self.bias),
            "ACTIVATION": 0 if self.activation is None else 1 + ACTIVATIONS.index(self.activation),
        }


#: No epilogue: round and store.
NO_EPILOGUE = Epilogue()


@dataclass(frozen=True)
class Gemm:
    """D = alpha * A @ B + beta * C for A (m, k), B (k, n), C and D (m, n), over ``batch`` independent products.

    Strides are (row, column) in elements and may be zero or negative; ``None`` means packed row-major. ``*_batch`` is
    the distance in elements between two products' matrices: zero for a matrix that all products share, ``None`` for
    matrices packed one after the other. ``*_align`` is the largest power of two in bytes (at most 16) that divides the
    address of every row or column start: it tells kernels whether 16-byte loads are legal. ``*_start_align`` is the
    alignment of each product's first element, if that is more. ``base_align`` is the one of the first product's
    elements in A, B and D. ``has_c`` is False where beta is 0: C is then neither read nor required. With ``gram`` B is
    the transpose of A in the same memory: its strides are A's, swapped. Scalars are arguments, not part of the problem.
    ``out_dtype`` is the type of C and D, if it differs from that of A and B. ``precision`` is one of
    :data:`PRECISIONS`. With ``slice_k`` sums are batch-invariant: slices of so many terms of k are each summed from
    zero, and then added in their order (:mod:`matmill.invariant`). 0 leaves the order to the kernel. ``conjugates``
    names those of A, B and C whose conjugates are meant, of complex elements, such as ``"ab"``.

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
    base_align: int | None = None
    epilogue: Epilogue = NO_EPILOGUE
    out_dtype: DType | None = None
    precision: str = "default"
    slice_k: int = 0
    conjugates: str = ""

    @property
    def d_dtype(self) -> DType:
        """The type of C and D."""
        return self.out_dtype or self.dtype

    @property
    def plain(self) -> bool:
        """True without epilogue: D has the type of A and B, and is summed with the default precision or by FMA."""
        usual = self.precision == "default" or bool(self.split_methods)
        return self.epilogue == NO_EPILOGUE and self.d_dtype is self.dtype and usual

    @property
    def split_methods(self) -> tuple[str, ...]:
        """Methods by which tensor cores may multiply the elements in pieces: see :data:`SPLIT_METHODS`.

        >>> Gemm(2, 3, 4, precision="tf32x3").split_methods
        ('tf32x3',)
        """
        return SPLIT_METHODS.get(self.precision, ())

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiply and an add per term, four of each per complex one."""
        return (2 if self.dtype.part is None else 8) * self.batch * self.m * self.n * self.k

    @cached_property
    def least_bytes(self) -> int:
        """Bytes of compulsory traffic: every input read once, every output written once.

        An input that all products of the batch share counts once; so do A and B in the same memory.
        """
        counts = [1 if stride == 0 else self.batch for stride in self.batch_strides]
        b = 0 if self.gram else self.k * self.n
        sizes = (self.m * self.k, b, self.m * self.n if self.has_c else 0, self.m * self.n)
        nbytes = (self.dtype.itemsize, self.dtype.itemsize, self.d_dtype.itemsize, self.d_dtype.itemsize)
        return sum(count * size * each for count, size, each in zip(counts, sizes, nbytes, strict=True))

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

    @cached_property
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
    """The layout of one operand of a :class:`Geam`: (row, column) strides in elements, in the result's order.

    ``batch`` is the distance between two matrices of the batch. ``align`` is the largest power of two in bytes (at most
    16) that divides the address of every contiguous run's start (row or column). ``relative_align`` is the same for the
    distance in memory between this operand's elements and the result's elements at the same row and column.
    ``conjugate`` says that the conjugates of complex elements are meant.
    """

    strides: Strides
    batch: int = 0
    align: int = 16
    relative_align: int = 16
    conjugate: bool = False

    @property
    def transposed(self) -> bool:
        """True if the column is the contiguous dimension, or at least the one with the smaller stride."""
        row, column = self.strides
        return abs(row) < abs(column) != 1


@dataclass(frozen=True)
class Geam:
    """The transpose-add problem D = alpha * X + beta * Y, element by element, for ``batch`` matrices of m x n.

    The name is that of BLAS extensions (cuBLAS: geam). X and Y may have any strides; those of a transposed operand are
    swapped. ``y`` is None where beta is 0. With ``plain`` there is no Y and alpha is 1: D is then X, bit by bit.

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
    def y_transposed(self) -> bool:
        """True if Y is transposed and X is not."""
        return self.y is not None and self.y.transposed and not self.x.transposed

    @property
    def transposed_first(self) -> Geam:
        """The same problem with X and Y exchanged if only Y is transposed: kernels transpose their first operand.

        >>> Geam(4, 6, F32, View((6, 1)), View((1, 4)), View((6, 1))).transposed_first.x
        View(strides=(1, 4), batch=0, align=16, relative_align=16, conjugate=False)
        """
        return replace(self, x=self.y, y=self.x) if self.y is not None and self.y_transposed else self

    @property
    def least_bytes(self) -> int:
        """Bytes of compulsory traffic: every operand once."""
        return (2 if self.y is None else 3) * self.batch * self.m * self.n * self.dtype.itemsize

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch != 1 else ""
        return f"{times}{self.m}x{self.n} {self.dtype.name}"


@dataclass(frozen=True)
class ComplexCopy:
    """D = X, element by element, for ``batch`` matrices of complex elements, whose parts have the type ``dtype``.

    Strides are those of rows, columns and the batch, in complex elements. ``conjugate`` takes the conjugates
    of the elements, which are then multiplied by the call's scalar of the name ``scale``, ``"alpha"`` or ``"beta"``, if
    that is complex; a real one is left to the product.

    With ``block`` each element x = (re, im) becomes a 2 x 2 block of reals: its first row is where the element would
    be, its second one ``second`` complex elements behind. The rows of ``"rows"`` are (re, im) and (-im, re), those of
    ``"columns"`` are (re, -im) and (im, re). ``negate`` changes the sign of what meets the imaginary part of the other
    factor.

    >>> ComplexCopy(4, 6, F32, (6, 1, 24), (12, 1, 48), block="rows", second=6).least_bytes
    576
    """

    rows: int
    columns: int
    dtype: DType
    x_strides: tuple[int, int, int]
    d_strides: tuple[int, int, int]
    batch: int = 1
    block: str = ""
    second: int = 0
    conjugate: bool = False
    negate: bool = False
    scale: str = ""

    @property
    def least_bytes(self) -> int:
        """Bytes of compulsory traffic: every element read once, and written once, or twice as a block."""
        return (3 if self.block else 2) * self.batch * self.rows * self.columns * 2 * self.dtype.itemsize

    def __str__(self) -> str:
        times = f"{self.batch} x " if self.batch != 1 else ""
        return f"{times}{self.rows}x{self.columns} complex elements of {self.dtype.name}"


@dataclass(frozen=True)
class Grouped:
    """D = alpha * A @ B for ``groups`` groups along the rows of A and D, or with ``terms`` along k.

    Where a group ends is known on the device alone. ``whole`` has the extents of all groups together, and a batch of as
    many products as there are groups, in which what all groups share has the stride 0. ``words`` are those of 32 bits
    of an end.

    >>> rows = Grouped(Gemm(1000, 64, 32, batch=8, a_batch=0, d_batch=0), 8)
    >>> str(rows), rows.typical.m
    ('8 groups along m of 1000x64x32 float32', 125)
    """

    whole: Gemm
    groups: int
    words: int = 1
    terms: bool = False

    @property
    def dtype(self) -> DType:
        """The type of all elements."""
        return self.whole.dtype

    @cached_property
    def typical(self) -> Gemm:
        """A batch of as many products as there are groups, each of a mean group: what the choice of a tile is for."""
        whole, count = self.whole, max(1, self.groups)
        if self.terms:
            k = -(-whole.k // count)
            return replace(whole, k=k, batch=count, a_batch=k * whole.m, b_batch=k * whole.n)
        m = -(-whole.m // count) or 1
        return replace(whole, m=m, batch=count, a_batch=m * whole.k, d_batch=m * whole.n)

    @cached_property
    def layout(self) -> Gemm:
        """The alignments that hold for every group, which may start anywhere in the shared dimension."""
        whole, size = self.whole, self.whole.dtype.itemsize
        a = size if whole.a_row_col[int(self.terms)] == 1 else whole.a_align
        if self.terms:
            return replace(whole, a_align=a, b_align=size if whole.b_row_col[0] == 1 else whole.b_align)
        return replace(whole, a_align=a, d_align=size if whole.d_row_col[0] == 1 else whole.d_align)

    def __str__(self) -> str:
        return f"{self.groups} groups along {'k' if self.terms else 'm'} of {replace(self.whole, batch=1)}"


@dataclass(frozen=True)
class Listed:
    """D = alpha * A @ B + beta * C for each group of a list of matrices.

    ``typical`` is a batch of as many products, each of a mean group. ``layout`` has strides, alignments and divisors of
    the extents that hold for every group, which copies depend on. ``groups`` are the entries of the kernel's table, in
    bytes, without those whose D is empty.
    """

    typical: Gemm
    layout: Gemm
    groups: bytes

    @property
    def dtype(self) -> DType:
        """The type of all elements."""
        return self.typical.dtype

    def __str__(self) -> str:
        return f"{self.typical.batch} groups of about {replace(self.typical, batch=1)}"
