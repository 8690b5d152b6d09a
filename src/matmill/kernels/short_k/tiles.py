"""Work tiles of the kernel in ``kernels/short_k``: the host's side of its arithmetic.

A work tile is PRODUCTS whole products of a batch, or BM x BN outputs of one product. All of k of its rows of A and
columns of B is staged in shared memory. An operand is copied in *runs*: its rows or its columns, whichever are
contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from matmill.config import Config
from matmill.dtypes import DType
from matmill.kernel import ceil_div
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.memo import of_each_problem
from matmill.problem import Gemm

#: The limit of a copy's indices: ``Divisor`` in copy.cuh divides 16-bit numbers.
MOST_COPIES = 2**16 - 1
#: Bytes of a store in place of which rows of D leave in vectors, those of the shortest such row, and the threads that
#: store it. In place of halves of vectors, and for rows that are mostly ends, vectors take more sectors.
_NARROW, _LONG_ROW, _ROW_LANES = 4, 128, 8


def division_multiplier(divisor: int) -> int:
    """Return the multiplier by which ``Divisor`` divides numbers below 2**16, in 32 bits; 0 for 1.

    >>> divisors, numbers = (2, 17, 100, 65535, 65536, 10**6), (0, 1, 99, 100, 65535)
    >>> all(n * division_multiplier(d) >> 32 == n // d for d in divisors for n in numbers)
    True
    """
    return 0 if divisor == 1 else ceil_div(2**32, divisor)


@dataclass(frozen=True)
class OperandTile:
    """The part of A (rows) or B (columns) that a work tile needs: ``count`` in each of ``products``, over all of k.

    ``outer`` is the stride between two rows or columns, ``along_k`` the one between two k, ``batch`` the one between
    products, all in elements. The matrix has ``total`` rows or columns, each aligned to ``align`` bytes, the first of
    all to ``base``.
    """

    outer: int
    along_k: int
    batch: int
    total: int
    count: int
    products: int
    k: int
    size: int
    align: int
    base: int

    @property
    def k_inner(self) -> bool:
        """True if runs go along k."""
        if self.along_k == 1 or self.outer == 1:
            return self.along_k == 1 and (self.k > 1 or self.outer != 1)
        return abs(self.along_k) <= abs(self.outer)

    @property
    def length(self) -> int:
        """Elements per run."""
        return self.k if self.k_inner else self.count

    @property
    def runs(self) -> int:
        """Runs per product."""
        return self.count if self.k_inner else self.k

    @property
    def batch_gap(self) -> int:
        """Elements between the end of a product's last run, with its stride, and the next product."""
        return self.batch - self.runs * (self.outer if self.k_inner else self.along_k)

    @property
    def vector(self) -> int:
        """Elements per 16 bytes."""
        return VECTOR_BYTES // self.size

    @property
    def width(self) -> int:
        """The most elements that one copy of a run may have."""
        if (self.along_k if self.k_inner else self.outer) != 1:
            return 1
        width, whole = self.vector, self.k if self.k_inner else self.total
        while width > 1 and (self.align % (width * self.size) or whole % width or self.length % width):
            width //= 2
        return width

    @property
    def contiguous(self) -> bool:
        """True if the part of every work tile is contiguous, in a matrix that starts on 16 bytes."""
        stride, element = (self.outer, self.along_k) if self.k_inner else (self.along_k, self.outer)
        if (element != 1 and self.length > 1) or (stride != self.length and self.runs > 1):
            return False
        if not self.k_inner and self.count < self.total:
            return False
        if self.products > 1 and self.batch != self.runs * self.length:
            return False
        return self.base % VECTOR_BYTES == 0 and self.batch >= 0

    @property
    def start_multiple(self) -> int:
        """A divisor of each work tile's start, in elements and at most a vector, if the matrix starts on 16 bytes."""
        steps = (self.batch * self.products, 0 if self.count == self.total else self.count * self.outer)
        return gcd(self.vector, *steps)


@dataclass(frozen=True)
class StagedTile:
    """The copies of an operand's part of a work tile and its layout in shared memory, in elements.

    ``width`` elements are copied at once. ``pitch`` is the distance between runs, ``product`` that between products.
    ``start_multiple``, at most a vector, divides the part's first element: a part copied as one run keeps its offset
    from a 16-byte boundary.
    """

    k_inner: bool
    contiguous: bool
    start_multiple: int
    width: int
    pitch: int
    product: int
    runs: int
    run_copies: int
    elements: int

    @classmethod
    def of(cls, side: OperandTile, *, by_runs: bool) -> StagedTile:
        """Return a layout with 16-byte copies if possible: of each run, else of all as one run unless ``by_runs``."""
        vector = side.vector
        contiguous = not by_runs and side.width < vector and side.contiguous
        width = vector if contiguous else side.width
        # Runs start on vectors, an odd number of them apart, so that neighbouring runs start in different banks.
        vectors = ceil_div(side.length, vector)
        pitch = side.length if contiguous else (vectors + (vectors + 1) % 2) * vector
        product = side.runs * pitch
        start = side.start_multiple if contiguous else vector
        elements = ceil_div(side.products * product + (vector - 1) * (start < vector), vector) * vector
        copies = ceil_div(side.length, width)
        return cls(side.k_inner, contiguous, start, width, pitch, product, side.runs, copies, elements)

    def constants(self, name: str, side: OperandTile, tile: int) -> dict[str, int]:
        """Return the constants of the device code; ``tile`` is a thread's rows or columns."""
        aligned = gcd(self.start_multiple, self.pitch, self.product)
        if side.size == 2:  # whole vectors, or pairs along k in one word
            pairs = self.k_inner and aligned % 2 == 0
            vec = side.vector if self.width == side.vector and not self.contiguous else 2 if pairs else 1
        else:
            vec = side.vector if aligned % side.vector == 0 and (self.k_inner or tile % side.vector == 0) else 1
        return {
            f"{name}_K_INNER": int(self.k_inner),
            f"{name}_ONE_RUN": int(self.contiguous),
            f"{name}_SHIFTED": int(self.start_multiple < side.vector),
            f"{name}_IRREGULAR": int(side.products > 1 and side.batch_gap != 0 and not self.contiguous),
            f"{name}_WIDTH": self.width,
            f"{name}_VEC": vec,
        }

    def copies(self, side: OperandTile) -> int:
        """Return the number of copies of a work tile."""
        total = side.products * side.runs * side.length
        return ceil_div(total, self.width) if self.contiguous else side.products * side.runs * self.run_copies


@dataclass(frozen=True)
class WorkTile:
    """A work tile and how it is computed: products, rows and columns; those of a thread or warp; threads; stages.

    With ``by_runs`` rows or columns are copied one by one, padded, even if all of them are one run of memory.
    ``direct`` stores D from registers.
    """

    group: int
    bm: int
    bn: int
    tm: int
    tn: int
    threads: int = 128
    stages: int = 2
    blocks_per_sm: int = 4
    by_runs: bool = False
    direct: bool = False


def keeps_b(problem: Gemm, bn: int) -> bool:
    """Tell whether all work tiles have the same B."""
    return bn >= problem.n and (problem.batch == 1 or problem.batch_strides[1] == 0)


def sides(problem: Gemm, group: int, bm: int, bn: int) -> tuple[OperandTile, OperandTile]:
    """Return a work tile's parts of A and B."""
    (a_row, a_column), (b_row, b_column) = problem.a_row_col, problem.b_row_col
    a_batch, b_batch, _, _ = problem.batch_strides if problem.batch > 1 else (0, 0, 0, 0)
    size, base = problem.dtype.itemsize, problem.base_align or 1
    products = 1 if keeps_b(problem, bn) else group
    a_base, b_base = max(base, problem.a_align), max(base, problem.b_align)
    return (
        OperandTile(a_row, a_column, a_batch, problem.m, bm, group, problem.k, size, problem.a_align, a_base),
        OperandTile(b_column, b_row, b_batch, problem.n, bn, products, problem.k, size, problem.b_align, b_base),
    )


class Parts(NamedTuple):
    """A work tile's parts of A and B, and their layouts in shared memory."""

    sides: tuple[OperandTile, OperandTile]
    a: StagedTile
    b: StagedTile


@of_each_problem
def parts(problem: Gemm, group: int, bm: int, bn: int, by_runs: bool) -> Parts:  # noqa: FBT001 — kept by position
    """Return the parts of a work tile of so many products, rows and columns."""
    own = sides(problem, group, bm, bn)
    return Parts(own, *(StagedTile.of(side, by_runs=by_runs) for side in own))


def _d_one_run(problem: Gemm, shape: WorkTile) -> bool:
    """Tell whether the outputs of every work tile are contiguous in D, and D starts on 16 bytes."""
    d_row, d_column = problem.d_row_col
    m, n = problem.m, problem.n
    rows = (n == d_row or m == 1) and (d_column == 1 or n == 1) and shape.bn >= n
    columns = (m == d_column or n == 1) and (d_row == 1 or m == 1) and shape.bm >= m and shape.bn >= n
    if not (rows or columns) or max(problem.base_align or 1, problem.d_align) % VECTOR_BYTES:
        return False
    return shape.group == 1 or problem.batch_strides[3] == m * n


def _d_shifted(problem: Gemm, shape: WorkTile) -> bool:
    """Tell whether some work tile that is one run of D does not start on 16 bytes."""
    batch = problem.batch_strides[3] if problem.batch > shape.group else 0
    steps = (batch * shape.group, problem.d_row_col[0] * shape.bm * (shape.bm < problem.m))
    return any(step * problem.d_dtype.itemsize % VECTOR_BYTES for step in steps)


def _d_width(problem: Gemm, most: int, columns: int) -> int:
    """Return the most elements of a row of D, at most ``most``, that are stored at once if a tile has ``columns``."""
    if problem.d_row_col[1] != 1:
        return 1
    width, size = most, problem.d_dtype.itemsize
    while width > 1 and (problem.d_align % (width * size) or problem.n % width or columns % width):
        width //= 2
    return width


@of_each_problem
def _operand_constants(  # noqa: PLR0917 — kept by position
    problem: Gemm,
    group: int,
    bm: int,
    bn: int,
    tm: int,
    tn: int,
    by_runs: bool,  # noqa: FBT001 — as above
) -> dict[str, int]:
    """Return the constants of A, of B and of the epilogue."""
    (a, b), staged_a, staged_b = parts(problem, group, bm, bn, by_runs)
    constants = {
        **staged_a.constants("A", a, tm),
        **staged_b.constants("B", b, tn),
        **problem.epilogue.constants,
        "FLOAT32_D": int(problem.d_dtype is not problem.dtype),
        "HAS_C": int(problem.has_c),
        "KEEP_B": int(keeps_b(problem, bn)),
    }
    reach = (("A", problem.m), ("B", problem.n))
    constants["FILL"] = int(
        problem.dtype.itemsize > 2
        and any(not constants[f"{name}_K_INNER"] and total % constants[f"{name}_VEC"] for name, total in reach)
    )
    return constants


def configured(shape: WorkTile, problem: Gemm) -> Config:
    """Return the constants of a work tile for a problem."""
    constants = _operand_constants(problem, shape.group, shape.bm, shape.bn, shape.tm, shape.tn, shape.by_runs)
    columns, size = columns_at_once(problem.dtype, constants), problem.d_dtype.itemsize
    stored = _d_width(problem, min(columns, VECTOR_BYTES // size), columns)
    if shape.direct or stored * size == VECTOR_BYTES:
        staged, width = 0, 1
    elif _d_one_run(problem, shape):
        staged, width = 1, 1
    elif shape.group == 1 and problem.d_row_col[1] == 1:
        staged, width = 2, _d_width(problem, VECTOR_BYTES // size, shape.bn)
        if width * size <= _NARROW and shape.bn * size >= _LONG_ROW:
            staged, width = 3, _ROW_LANES
    else:
        staged, width = 0, 1
    vectors = reads_vectors(problem.dtype, constants["A_VEC"], constants["B_VEC"])
    down, across = units(shape, vectors=vectors)
    return Config.of(
        TM=shape.tm, TN=shape.tn, THREADS=shape.threads, STAGES=shape.stages, BLOCKS_PER_SM=shape.blocks_per_sm,
        QUADS=int(vectors and down % 2 == 0 and across % 2 == 0), D_STAGED=staged, D_WIDTH=width,
        D_VEC=stored, D_SHIFTED=int(staged == 1 and _d_shifted(problem, shape)), **constants,
    ).launched(PRODUCTS=shape.group, BM=shape.bm, BN=shape.bn, BY_RUNS=int(shape.by_runs))  # fmt: skip


def reads_vectors(dtype: DType, a_vec: int, b_vec: int) -> bool:
    """Tell whether threads read A or B 16 bytes at a time; fragments of 16-bit elements are read in pairs."""
    return dtype.itemsize > 2 and max(a_vec, b_vec) > 1


def units(shape: WorkTile, *, vectors: bool) -> tuple[int, int]:
    """Return the threads, or warps, down and across a product's part of a work tile.

    The numbers are even if they read ``vectors``.
    """
    down, across = ceil_div(shape.bm, shape.tm), ceil_div(shape.bn, shape.tn)
    if vectors and min(down, across) > 1 and max(down, across) > 2:
        return down + down % 2, across + across % 2
    return down, across


def columns_at_once(dtype: DType, constants: dict[str, int]) -> int:
    """Return the neighbouring columns of D that a thread computes: a pair of mma sums, or a vector of B."""
    if dtype.itemsize == 2:
        return 2
    return 1 if constants["B_K_INNER"] else constants["B_VEC"]


def shape_of(config: Config) -> WorkTile:
    """Return the work tile of a configuration."""
    return WorkTile(
        group=config["PRODUCTS"],
        bm=config["BM"],
        bn=config["BN"],
        tm=config["TM"],
        tn=config["TN"],
        threads=config["THREADS"],
        stages=config["STAGES"],
        blocks_per_sm=config["BLOCKS_PER_SM"],
        by_runs=bool(config["BY_RUNS"]),
        direct=config["D_STAGED"] == 0,
    )


@dataclass(frozen=True)
class Staging:
    """A work tile in shared memory: its parts and their starts in elements, and the bytes of D and of all."""

    sides: tuple[OperandTile, OperandTile]
    a: StagedTile
    b: StagedTile
    stage_elements: int
    b_first: int
    d_first: int
    nbytes: int
    units_down: int
    units_across: int
    d_pitch: int
    d_step: int
    d_product: int
    tiles_down: int
    tiles_across: int
    work_tiles: int


def staging(problem: Gemm, config: Config) -> Staging:
    """Return the layout of a configuration's work tiles in shared memory."""
    return _staging(problem, config.without("BLOCKS"))


@of_each_problem
def _staging(problem: Gemm, config: Config) -> Staging:
    group, bm, bn = config["PRODUCTS"], config["BM"], config["BN"]
    own, a, b = parts(problem, group, bm, bn, bool(config["BY_RUNS"]))
    size = problem.dtype.itemsize
    stage = a.elements + (0 if config["KEEP_B"] else b.elements)
    whole = config["STAGES"] * stage + (b.elements if config["KEEP_B"] else 0)
    d_size = problem.d_dtype.itemsize
    d_row, d_column = problem.d_row_col
    d_pitch, d_step, d_product = d_row, d_column, problem.batch_strides[3]
    outputs = group * bm * bn
    if config["D_STAGED"] > 1:
        vector = VECTOR_BYTES // d_size
        # Rows are an odd number of vectors apart, as in stages. Shifted ones start within the first vector.
        shift = (vector - 1) * (config["D_STAGED"] == 3)
        d_pitch, d_step, d_product = (ceil_div(bn + shift, vector) | 1) * vector, 1, 0
        outputs = bm * d_pitch
    nbytes = outputs * d_size + (VECTOR_BYTES - d_size) * config["D_SHIFTED"] if config["D_STAGED"] else 0
    down, across = ceil_div(problem.m, bm), ceil_div(problem.n, bn)
    vectors = reads_vectors(problem.dtype, config["A_VEC"], config["B_VEC"])
    units_down, units_across = units(shape_of(config), vectors=vectors)
    return Staging(
        sides=own,
        a=a,
        b=b,
        stage_elements=stage,
        b_first=config["STAGES"] * stage if config["KEEP_B"] else a.elements,
        d_first=whole * size,
        nbytes=whole * size + ceil_div(nbytes, VECTOR_BYTES) * VECTOR_BYTES,
        units_down=units_down,
        units_across=units_across,
        d_pitch=d_pitch if config["D_STAGED"] else 0,
        d_step=d_step if config["D_STAGED"] else 0,
        d_product=d_product if config["PRODUCTS"] > 1 else 0,
        tiles_down=down,
        tiles_across=across,
        work_tiles=down * across * ceil_div(problem.batch, group),
    )
