"""Work tiles of the kernel in ``kernels/short_k``: the host's side of its arithmetic.

A work tile is PRODUCTS whole products of a batch, or BM x BN outputs of one product. All of k of its rows of A and
columns of B is staged in shared memory. An operand is copied in *runs*: its rows or its columns, whichever are
contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from matmill.config import Config, Configs
from matmill.dtypes import DType
from matmill.kernel import ceil_div
from matmill.kernels.shared.model import larger, smaller
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.memo import of_each_problem
from matmill.problem import Gemm

#: The limit of a copy's indices: ``Divisor`` in copy.cuh divides 16-bit numbers.
MOST_COPIES = 2**16 - 1
#: The fewest bytes that cp.async copies.
_LEAST_COPY = 4
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

    @cached_property
    def k_inner(self) -> bool:
        """True if runs go along k."""
        if self.along_k == 1 or self.outer == 1:
            return self.along_k == 1 and (self.k > 1 or self.outer != 1)
        return abs(self.along_k) <= abs(self.outer)

    @cached_property
    def length(self) -> int:
        """Elements per run."""
        return self.k if self.k_inner else self.count

    @cached_property
    def runs(self) -> int:
        """Runs per product."""
        return self.count if self.k_inner else self.k

    @cached_property
    def batch_gap(self) -> int:
        """Elements between the end of a product's last run, with its stride, and the next product."""
        return self.batch - self.runs * (self.outer if self.k_inner else self.along_k)

    @cached_property
    def vector(self) -> int:
        """Elements per 16 bytes."""
        return VECTOR_BYTES // self.size

    @cached_property
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


class StagedTile(NamedTuple):
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
            f"{name}_BY_REGISTERS": int(self.width * side.size < _LEAST_COPY),
            f"{name}_VEC": vec,
        }

    def copies(self, side: OperandTile) -> int:
        """Return the number of copies of a work tile."""
        total = side.products * side.runs * side.length
        return ceil_div(total, self.width) if self.contiguous else side.products * side.runs * self.run_copies


class WorkTile(NamedTuple):
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


def keeps_b(problem: Gemm, bn: Any) -> Any:
    """Tell whether all work tiles of so many columns have the same B."""
    return (bn >= problem.n) & (problem.batch == 1 or problem.batch_strides[1] == 0)


class Parts(NamedTuple):
    """A work tile's parts of A and B, and their layouts in shared memory."""

    sides: tuple[OperandTile, OperandTile]
    a: StagedTile
    b: StagedTile


def parts(problem: Gemm, group: int, bm: int, bn: int, by_runs: bool) -> Parts:  # noqa: FBT001 — kept by position
    """Return the parts of a work tile of so many products, rows and columns."""
    a_side, a = _part(problem, "A", bm, group, by_runs)
    b_side, b = _part(problem, "B", bn, 1 if keeps_b(problem, bn) else group, by_runs)
    return Parts((a_side, b_side), a, b)


@of_each_problem
def _part(
    problem: Gemm,
    name: str,
    count: int,
    products: int,
    by_runs: bool,  # noqa: FBT001 — kept by position
) -> tuple[OperandTile, StagedTile]:
    """Return the part of one operand, of so many rows or columns, and its layout in shared memory."""
    a_batch, b_batch, _, _ = problem.batch_strides if problem.batch > 1 else (0, 0, 0, 0)
    if name == "A":
        (outer, along_k), batch, total, align = problem.a_row_col, a_batch, problem.m, problem.a_align
    else:
        (along_k, outer), batch, total, align = problem.b_row_col, b_batch, problem.n, problem.b_align
    base = max(problem.base_align or 1, align)
    side = OperandTile(outer, along_k, batch, total, count, products, problem.k, problem.dtype.itemsize, align, base)
    return side, StagedTile.of(side, by_runs=by_runs)


@of_each_problem
def _part_constants(  # noqa: PLR0917 — kept by position
    problem: Gemm,
    name: str,
    count: int,
    products: int,
    tile: int,
    by_runs: bool,  # noqa: FBT001 — kept by position
) -> dict[str, int]:
    """Return the constants of one operand's part; ``tile`` is a thread's rows or columns."""
    side, staged = _part(problem, name, count, products, by_runs)
    total = problem.m if name == "A" else problem.n
    constants = staged.constants(name, side, tile)
    filled = problem.dtype.itemsize > 2 and not staged.k_inner and total % constants[f"{name}_VEC"] > 0
    return {**constants, "FILL": int(filled)}


def _d_one_run(problem: Gemm, group: int, bm: int, bn: int) -> bool:
    """Tell whether the outputs of every work tile are contiguous in D, and D starts on 16 bytes."""
    d_row, d_column = problem.d_row_col
    m, n = problem.m, problem.n
    rows = (n == d_row or m == 1) and (d_column == 1 or n == 1) and bn >= n
    columns = (m == d_column or n == 1) and (d_row == 1 or m == 1) and bm >= m and bn >= n
    if not (rows or columns) or max(problem.base_align or 1, problem.d_align) % VECTOR_BYTES:
        return False
    return group == 1 or problem.batch_strides[3] == m * n


def _d_shifted(problem: Gemm, group: int, bm: int) -> bool:
    """Tell whether some work tile that is one run of D does not start on 16 bytes."""
    batch = problem.batch_strides[3] if problem.batch > group else 0
    steps = (batch * group, problem.d_row_col[0] * bm * (bm < problem.m))
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
def _end_constants(problem: Gemm) -> dict[str, int]:
    """Return the constants of the epilogue."""
    float32 = int(problem.d_dtype is not problem.dtype)
    return {**problem.epilogue.constants, "FLOAT32_D": float32, "HAS_C": int(problem.has_c)}


@of_each_problem
def _operand_constants(  # noqa: PLR0917 — kept by position
    problem: Gemm,
    group: int,
    bm: int,
    bn: int,
    tm: int,
    tn: int,
    by_runs: bool,  # noqa: FBT001 — as above
) -> tuple[tuple[tuple[str, int], ...], int, bool]:
    """Return the constants of A, of B and of the epilogue, columns of a thread, and whether vectors are read."""
    a = _part_constants(problem, "A", bm, group, tm, by_runs)
    b = _part_constants(problem, "B", bn, 1 if keeps_b(problem, bn) else group, tn, by_runs)
    constants = {**a, **b, **_end_constants(problem), "FILL": a["FILL"] | b["FILL"]}
    vectors = bool(reads_vectors(problem.dtype, constants["A_VEC"], constants["B_VEC"]))
    return tuple(constants.items()), columns_at_once(problem.dtype, constants), vectors


@of_each_problem
def _d_constants(  # noqa: PLR0917 — kept by position
    problem: Gemm,
    group: int,
    bm: int,
    bn: int,
    columns: int,
    direct: bool,  # noqa: FBT001 — as above
) -> tuple[int, int, int, bool]:
    """Return how D is staged and stored: D_STAGED, D_WIDTH, D_VEC and D_SHIFTED."""
    size = problem.d_dtype.itemsize
    stored = _d_width(problem, min(columns, VECTOR_BYTES // size), columns)
    staged, width = 0, 1
    if direct or stored * size == VECTOR_BYTES:
        pass
    elif _d_one_run(problem, group, bm, bn):
        staged = 1
    elif group == 1 and problem.d_row_col[1] == 1:
        staged, width = 2, _d_width(problem, VECTOR_BYTES // size, bn)
        if width * size <= _NARROW and bn * size >= _LONG_ROW:
            staged, width = 3, _ROW_LANES
    return staged, width, stored, staged == 1 and _d_shifted(problem, group, bm)


def configured(shape: WorkTile, problem: Gemm) -> Config:
    """Return the constants of a work tile for a problem."""
    group, bm, bn = shape.group, shape.bm, shape.bn
    return compiled(shape, problem).launched(PRODUCTS=group, BM=bm, BN=bn, BY_RUNS=int(shape.by_runs))


def compiled(shape: WorkTile, problem: Gemm) -> Config:
    """Return the compiled constants of :func:`configured`."""
    group, bm, bn, tm, tn = shape[:5]
    constants, columns, vectors = _operand_constants(problem, group, bm, bn, tm, tn, shape.by_runs)
    staged, width, stored, shifted = _d_constants(problem, group, bm, bn, columns, shape.direct)
    down, across = units(bm, bn, tm, tn, vectors=vectors)
    quads = vectors and down % 2 == 0 and across % 2 == 0
    return _compiled(
        tm, tn, shape.threads, shape.stages, shape.blocks_per_sm, quads, staged, width, stored, shifted,
        constants,
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _compiled(  # noqa: PLR0917 — kept by position
    tm: int,
    tn: int,
    threads: int,
    stages: int,
    blocks_per_sm: int,
    quads: bool,  # noqa: FBT001 — as above
    staged: int,
    width: int,
    stored: int,
    shifted: bool,  # noqa: FBT001 — as above
    others: tuple[tuple[str, int], ...],
) -> Config:
    return Config.of(
        TM=tm, TN=tn, THREADS=threads, STAGES=stages, BLOCKS_PER_SM=blocks_per_sm, QUADS=int(quads), D_STAGED=staged,
        D_WIDTH=width, D_VEC=stored, D_SHIFTED=int(shifted), **dict(others),
    )  # fmt: skip


def reads_vectors(dtype: DType, a_vec: Any, b_vec: Any) -> Any:
    """Tell whether threads read A or B 16 bytes at a time; fragments of 16-bit elements are read in pairs."""
    return ((a_vec > 1) | (b_vec > 1)) & (dtype.itemsize > 2)


def units(bm: Any, bn: Any, tm: Any, tn: Any, *, vectors: Any) -> tuple[Any, Any]:
    """Return the threads, or warps, down and across a product's part of a work tile.

    The numbers are even if they read ``vectors``.
    """
    down, across = ceil_div(bm, tm), ceil_div(bn, tn)
    even = vectors & (smaller(down, across) > 1) & (larger(down, across) > 2)
    return down + even * (down % 2), across + even * (across % 2)


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


class Sizes(NamedTuple):
    """The size of a work tile in shared memory, of its work and of all of it: numbers, or arrays of them.

    A stage has ``stage_elements``, D starts after ``d_first`` bytes of ``nbytes``, and its rows are ``d_pitch``
    elements apart where they are staged one by one. A and B are copied by ``a_copies`` and ``b_copies``.
    """

    stage_elements: Any
    d_first: Any
    d_pitch: Any
    nbytes: Any
    units_down: Any
    units_across: Any
    tiles_down: Any
    tiles_across: Any
    work_tiles: Any
    a_copies: Any
    b_copies: Any


def sizes(problem: Gemm, config: Configs) -> Sizes:
    """Return the sizes of the work tiles of one configuration, or of each of many."""
    return _sizes(problem, config) if isinstance(config, Config) else config.kept(_sizes, problem)


def _counts(problem: Gemm, config: Configs) -> tuple[Any, ...]:
    """Return the elements and the copies of A's and of B's part: numbers, or arrays of them."""
    names = "PRODUCTS", "BM", "BN", "BY_RUNS"
    if isinstance(config, Config):
        return _part_counts(problem, *[config[name] for name in names])
    rows = zip(*(config[name].tolist() for name in names), strict=True)
    return tuple(np.array([_part_counts(problem, *map(int, row)) for row in rows], np.float64).T)


@of_each_problem
def _part_counts(problem: Gemm, group: int, bm: int, bn: int, by_runs: int) -> tuple[int, int, int, int]:
    (a_side, b_side), a, b = parts(problem, group, bm, bn, bool(by_runs))
    return a.elements, b.elements, a.copies(a_side), b.copies(b_side)


def _sizes(problem: Gemm, config: Configs) -> Sizes:
    a_elements, b_elements, a_copies, b_copies = _counts(problem, config)
    group, bm, bn, staged = (config[name] for name in ("PRODUCTS", "BM", "BN", "D_STAGED"))
    keep_b = 1 * keeps_b(problem, bn)
    stage = a_elements + (1 - keep_b) * b_elements
    d_first = (config["STAGES"] * stage + keep_b * b_elements) * problem.dtype.itemsize
    d_size = problem.d_dtype.itemsize
    vector = VECTOR_BYTES // d_size
    # Rows are an odd number of vectors apart, as in stages. Shifted ones start within the first vector.
    vectors = ceil_div(bn + (vector - 1) * (staged == 3), vector)
    d_pitch = (vectors + 1 - vectors % 2) * vector
    by_rows = 1 * (staged > 1)
    outputs = bm * (by_rows * d_pitch + (1 - by_rows) * group * bn)
    nbytes = (staged > 0) * (outputs * d_size + (VECTOR_BYTES - d_size) * config["D_SHIFTED"])
    wide = reads_vectors(problem.dtype, config["A_VEC"], config["B_VEC"])
    units_down, units_across = units(bm, bn, config["TM"], config["TN"], vectors=wide)
    tiles_down, tiles_across = ceil_div(problem.m, bm), ceil_div(problem.n, bn)
    return Sizes(
        stage,
        d_first,
        d_pitch,
        d_first + ceil_div(nbytes, VECTOR_BYTES) * VECTOR_BYTES,
        units_down,
        units_across,
        tiles_down,
        tiles_across,
        tiles_down * tiles_across * ceil_div(problem.batch, group),
        a_copies,
        b_copies,
    )


def _parts_of(problem: Gemm, config: Config) -> Parts:
    return parts(problem, config["PRODUCTS"], config["BM"], config["BN"], bool(config["BY_RUNS"]))


class Staging(NamedTuple):
    """A work tile in shared memory: its parts and their starts in elements, its sizes, and how D is stored from it."""

    sides: tuple[OperandTile, OperandTile]
    a: StagedTile
    b: StagedTile
    sizes: Sizes
    b_first: int
    d_pitch: int
    d_step: int
    d_product: int


def staging(problem: Gemm, config: Config) -> Staging:
    """Return the layout of a configuration's work tiles in shared memory."""
    own, a, b = _parts_of(problem, config)
    tile = sizes(problem, config)
    (d_row, d_column), d_product, staged = problem.d_row_col, problem.batch_strides[3], config["D_STAGED"]
    if staged > 1:
        d_row, d_column, d_product = tile.d_pitch, 1, 0
    return Staging(
        sides=own,
        a=a,
        b=b,
        sizes=tile,
        b_first=config["STAGES"] * tile.stage_elements if keeps_b(problem, config["BN"]) else a.elements,
        d_pitch=d_row if staged else 0,
        d_step=d_column if staged else 0,
        d_product=d_product if config["PRODUCTS"] > 1 else 0,
    )
