"""Work tiles of the kernel in ``kernels/short_k``: the host's side of its arithmetic.

A work tile is PRODUCTS whole products of a batch, or BM x BN outputs of one product. All of k of its rows of A and
columns of B is staged in shared memory. An operand is copied in *runs*: its rows or its columns, whichever are
contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from matmill.config import Columns, Config, Configs, Table
from matmill.dtypes import DType
from matmill.kernel import ceil_div
from matmill.kernels.shared.model import either, larger, smaller
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


class _Matrix(NamedTuple):
    """A (its rows) or B (its columns), as work tiles copy it: in runs along k where ``k_inner``.

    ``outer`` is the stride between two rows or columns, ``along_k`` the one between two k, ``batch`` the one between
    products, all in elements. The matrix has ``total`` rows or columns, the first of them aligned to ``base`` bytes. A
    copy of a run has at most ``width`` of the ``vector`` elements of 16 bytes.
    """

    outer: int
    along_k: int
    batch: int
    total: int
    k: int
    size: int
    base: int
    k_inner: bool
    vector: int
    width: int


@of_each_problem
def _matrix(problem: Gemm, name: str) -> _Matrix:
    """Return A or B."""
    a_batch, b_batch, _, _ = problem.batch_strides if problem.batch > 1 else (0, 0, 0, 0)
    k, size = problem.k, problem.dtype.itemsize
    if name == "A":
        (outer, along_k), batch, total, align = problem.a_row_col, a_batch, problem.m, problem.a_align
    else:
        (along_k, outer), batch, total, align = problem.b_row_col, b_batch, problem.n, problem.b_align
    k_inner = abs(along_k) <= abs(outer)
    if along_k == 1 or outer == 1:
        k_inner = along_k == 1 and (k > 1 or outer != 1)
    vector = VECTOR_BYTES // size
    whole = gcd(vector, max(1, align // size), k if k_inner else total)
    width = whole if (along_k if k_inner else outer) == 1 else 1
    return _Matrix(outer, along_k, batch, total, k, size, max(problem.base_align or 1, align), k_inner, vector, width)


class StagedTile(NamedTuple):
    """A work tile's part of A or B, over all of k: its copies and its layout in shared memory, in elements.

    ``width`` elements are copied at once. ``pitch`` is the distance between runs, ``product`` that between products.
    ``start_multiple``, at most a vector, divides the part's first element: a part copied as one run keeps its offset
    from a 16-byte boundary. ``batch_gap`` are the elements between the end of a product's last run, with its stride,
    and the next product.
    """

    contiguous: bool
    start_multiple: int
    width: int
    pitch: int
    product: int
    runs: int
    run_copies: int
    elements: int
    copies: int
    batch_gap: int

    @classmethod
    def of(cls, matrix: _Matrix, count: int, products: int, *, by_runs: bool) -> StagedTile:
        """Return the part with ``count`` rows or columns in each of ``products``.

        It has 16-byte copies if possible: of each run, else of all as one run unless ``by_runs``.
        """
        vector, k_inner = matrix.vector, matrix.k_inner
        length, runs = (matrix.k, count) if k_inner else (count, matrix.k)
        stride = matrix.outer if k_inner else matrix.along_k
        width = gcd(matrix.width, length)
        contiguous = not by_runs and width < vector and _contiguous(matrix, count, products)
        # Runs start on vectors, an odd number of them apart, so that neighbouring runs start in different banks.
        pitch, start = (ceil_div(length, vector) | 1) * vector, vector
        if contiguous:
            # What divides each work tile's start, if the matrix starts on 16 bytes.
            start = gcd(vector, matrix.batch * products, 0 if count == matrix.total else count * matrix.outer)
            pitch, width = length, vector
        product = runs * pitch
        run_copies = ceil_div(length, width)
        copies = ceil_div(products * runs * length, width) if contiguous else products * runs * run_copies
        elements = ceil_div(products * product + (vector - 1) * (start < vector), vector) * vector
        batch_gap = matrix.batch - runs * stride
        return cls(contiguous, start, width, pitch, product, runs, run_copies, elements, copies, batch_gap)

    def constants(self, matrix: _Matrix, products: int) -> tuple[int, ...]:
        """Return the values of _OF_PART: the constants of a part of so many products, and what follows of them.

        Last are the elements of a read from shared memory, if vectors divide a thread's rows or columns, and if not.
        """
        aligned, vector = gcd(self.start_multiple, self.pitch, self.product), matrix.vector
        if matrix.size == 2:  # whole vectors, or pairs along k in one word
            pairs = matrix.k_inner and aligned % 2 == 0
            whole = single = vector if self.width == vector and not self.contiguous else 2 if pairs else 1
        else:
            whole = vector if aligned % vector == 0 else 1
            single = whole if matrix.k_inner else 1
        return (
            int(self.width * matrix.size < _LEAST_COPY),
            int(products > 1 and self.batch_gap != 0 and not self.contiguous),
            int(matrix.k_inner),
            int(self.contiguous),
            int(self.start_multiple < vector),
            self.elements,
            self.copies,
            whole,
            single,
        )


def _contiguous(matrix: _Matrix, count: int, products: int) -> bool:
    """Tell whether the part of every work tile is contiguous, in a matrix that starts on 16 bytes."""
    k_inner, k = matrix.k_inner, matrix.k
    stride, element = (matrix.outer, matrix.along_k) if k_inner else (matrix.along_k, matrix.outer)
    length, runs = (k, count) if k_inner else (count, k)
    if (element != 1 and length > 1) or (stride != length and runs > 1) or not (k_inner or count >= matrix.total):
        return False
    return (products == 1 or matrix.batch == runs * length) and matrix.base % VECTOR_BYTES == 0 and matrix.batch >= 0


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


@of_each_problem
def _part(
    problem: Gemm,
    name: str,
    count: int,
    products: int,
    by_runs: bool,  # noqa: FBT001 — kept by position
) -> StagedTile:
    """Return a work tile's part of A or B with so many rows or columns of each product."""
    return StagedTile.of(_matrix(problem, name), count, products, by_runs=by_runs)


def parts(problem: Gemm, group: int, bm: int, bn: int, by_runs: bool) -> tuple[StagedTile, StagedTile]:  # noqa: FBT001 — as above
    """Return the parts of A and B of a work tile of so many products, rows and columns."""
    b_products = 1 if keeps_b(problem, bn) else group
    return _part(problem, "A", bm, group, by_runs), _part(problem, "B", bn, b_products, by_runs)


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


@of_each_problem
def _d_vector(problem: Gemm) -> int:
    """Return the most elements of a row of D that are stored at once."""
    size = problem.d_dtype.itemsize
    return gcd(VECTOR_BYTES // size, max(1, problem.d_align // size), problem.n) if problem.d_row_col[1] == 1 else 1


#: What a work tile decides of its constants: of A's part and of B's, and how D is staged where it is not stored in
#: vectors from registers, then with which D_WIDTH and D_SHIFTED.
_OF_PART = ("BY_REGISTERS", "IRREGULAR", "K_INNER", "ONE_RUN", "SHIFTED", "ELEMENTS", "COPIES", "VECTORS", "OTHERS")
_FACTS = (*(f"{side}_{name}" for side in "AB" for name in _OF_PART), "STAGED", "WIDTH", "SHIFTED")
#: What :func:`sizes` takes of them, and a product's units down and across.
_COUNTS = ("A_ELEMENTS", "B_ELEMENTS", "A_COPIES", "B_COPIES", "UNITS_DOWN", "UNITS_ACROSS")
_OF_CODE = tuple(f"{side}_{name}" for side in "AB" for name in _OF_PART[:5])


@of_each_problem
def _facts(problem: Gemm, group: int, bm: int, bn: int, by_runs: bool) -> tuple[int, ...]:  # noqa: FBT001 — as above
    """Return the values of _FACTS for a work tile."""
    a, b = parts(problem, group, bm, bn, by_runs)
    staged, width, shifted, size = 0, 1, 0, problem.d_dtype.itemsize
    if _d_one_run(problem, group, bm, bn):
        staged, shifted = 1, int(_d_shifted(problem, group, bm))
    elif group == 1 and problem.d_row_col[1] == 1:
        staged, width = 2, gcd(_d_vector(problem), bn)
        if width * size <= _NARROW and bn * size >= _LONG_ROW:
            staged, width = 3, _ROW_LANES
    b_products = 1 if keeps_b(problem, bn) else group
    of_a, of_b = a.constants(_matrix(problem, "A"), group), b.constants(_matrix(problem, "B"), b_products)
    return (*of_a, *of_b, staged, width, shifted)


def _stored(problem: Gemm, tn: Any, facts: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return B_VEC, D_VEC and how D is staged unless it is stored directly: numbers, or arrays of them."""
    b_vec = either(tn % (VECTOR_BYTES // problem.dtype.itemsize) == 0, facts["B_VECTORS"], facts["B_OTHERS"])
    # The neighbouring columns of D that a thread computes: a pair of mma sums, or a vector of B.
    columns = 2 if problem.dtype.itemsize == 2 else either(facts["B_K_INNER"] == 1, 1, b_vec)
    d_vec = smaller(columns, _d_vector(problem))
    return b_vec, d_vec, either(d_vec * problem.d_dtype.itemsize == VECTOR_BYTES, 0, facts["STAGED"])


def compiled(problem: Gemm, shape: Sequence[Any], facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the compiled constants of a work tile with such facts, or of many, and what its _COUNTS lack of facts."""
    _, bm, bn, tm, tn, threads, stages, blocks_per_sm, _, direct = shape
    size, epilogue = problem.dtype.itemsize, problem.epilogue.constants
    b_vec, d_vec, staged = _stored(problem, tn, facts)
    staged = staged * (direct == 0)
    a_vec, filled, quads = either(tm % (VECTOR_BYTES // size) == 0, facts["A_VECTORS"], facts["A_OTHERS"]), 0, 0
    vectors = reads_vectors(problem.dtype, a_vec, b_vec)
    down, across = units(bm, bn, tm, tn, vectors=vectors)
    if size > 2:
        a_filled, b_filled = (facts["A_K_INNER"] == 0) & (problem.m % a_vec > 0), problem.n % b_vec > 0
        filled = 1 * (a_filled | (facts["B_K_INNER"] == 0) & b_filled)
        quads = 1 * (vectors & (down % 2 == 0) & (across % 2 == 0))
    constants = {
        "TM": tm, "TN": tn, "THREADS": threads, "STAGES": stages, "BLOCKS_PER_SM": blocks_per_sm, "QUADS": quads,
        "D_STAGED": staged, "D_WIDTH": either(staged > 1, facts["WIDTH"], 1), "D_VEC": d_vec,
        "D_SHIFTED": (staged == 1) * facts["SHIFTED"], "FILL": filled, "A_VEC": a_vec, "B_VEC": b_vec,
        "FLOAT32_D": int(problem.d_dtype is not problem.dtype), "HAS_C": int(problem.has_c),
        **epilogue, **{name: facts[name] for name in _OF_CODE},
    }  # fmt: skip
    return constants, {"UNITS_DOWN": down, "UNITS_ACROSS": across}


def _launched(shape: Sequence[Any]) -> dict[str, Any]:
    """Return the constants of the launch of a work tile, or of many."""
    return {"PRODUCTS": shape[0], "BM": shape[1], "BN": shape[2], "BY_RUNS": 1 * shape[8]}


def constants_of(problem: Gemm, shape: WorkTile) -> tuple[dict[str, int], dict[str, int]]:
    """Return the compiled constants of a work tile for a problem, and those of the launch."""
    group, bm, bn, *_, by_runs, _ = shape
    return compiled(problem, shape, dict(zip(_FACTS, _facts(problem, group, bm, bn, by_runs), strict=True)))[
        0
    ], _launched(shape)


def configured(shape: WorkTile, problem: Gemm) -> Config:
    """Return the constants of a work tile for a problem."""
    constants, launch = constants_of(problem, shape)
    return Config.of(**constants).launched(**launch)


def tiled(problem: Gemm, shapes: Sequence[WorkTile]) -> Columns:
    """Return the configurations of work tiles for a problem, each once.

    One that would be stored directly in any case is the same whether it is to be or not.
    """
    numbers: dict[tuple[int, int, int, bool], int] = {}
    which = [numbers.setdefault((one.group, one.bm, one.bn, one.by_runs), len(numbers)) for one in shapes]
    table = np.array([_facts(problem, *work_tile) for work_tile in numbers], np.float64).T[:, which]
    columns: Any = np.array(shapes, np.float64).T
    direct, tn = columns[-1], columns[4]
    twice = (direct > 0) & (_stored(problem, tn, dict(zip(_FACTS, table, strict=True)))[2] == 0)
    if twice.any():
        table, columns = table[:, ~twice], columns[:, ~twice]
    facts = dict(zip(_FACTS, table, strict=True))
    constants, own = compiled(problem, columns, facts)
    return Table(constants, _launched(columns), {**{name: facts[name] for name in _COUNTS[:4]}, **own})


def reads_vectors(dtype: DType, a_vec: Any, b_vec: Any) -> Any:
    """Tell whether threads read A or B 16 bytes at a time; fragments of 16-bit elements are read in pairs."""
    return dtype.itemsize > 2 and (a_vec > 1) | (b_vec > 1)


def units(bm: Any, bn: Any, tm: Any, tn: Any, *, vectors: Any) -> tuple[Any, Any]:
    """Return the threads, or warps, down and across a product's part of a work tile.

    The numbers are even if they read ``vectors``.
    """
    down, across = ceil_div(bm, tm), ceil_div(bn, tn)
    if vectors is False:
        return down, across
    even = vectors & (smaller(down, across) > 1) & (larger(down, across) > 2)
    return down + even * (down % 2), across + even * (across % 2)


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


def sizes(problem: Gemm, config: Configs | Mapping[str, int]) -> Sizes:
    """Return the sizes of the work tiles of one configuration, or of each of many."""
    return config.kept(_sizes, problem) if isinstance(config, Columns) else _sizes(problem, config)


def _counts(problem: Gemm, config: Configs | Mapping[str, int]) -> tuple[Any, ...]:
    """Return the values of _COUNTS: numbers, or arrays of them."""
    if isinstance(config, Columns):
        if _COUNTS[0] in config:
            return tuple([config[name] for name in _COUNTS])
        return tuple(np.array([_counts(problem, one) for one in config.configs], np.float64).T)
    a, b = parts(problem, config["PRODUCTS"], config["BM"], config["BN"], bool(config["BY_RUNS"]))
    vectors = reads_vectors(problem.dtype, config["A_VEC"], config["B_VEC"])
    own = units(config["BM"], config["BN"], config["TM"], config["TN"], vectors=vectors)
    return a.elements, b.elements, a.copies, b.copies, *own


def _sizes(problem: Gemm, config: Configs | Mapping[str, int]) -> Sizes:
    a_elements, b_elements, a_copies, b_copies, units_down, units_across = _counts(problem, config)
    group, bm, bn, staged = config["PRODUCTS"], config["BM"], config["BN"], config["D_STAGED"]
    keep_b = keeps_b(problem, bn)
    stage = a_elements + either(keep_b, 0, b_elements)
    d_first = (config["STAGES"] * stage + keep_b * b_elements) * problem.dtype.itemsize
    d_size = problem.d_dtype.itemsize
    vector = VECTOR_BYTES // d_size
    # Rows are an odd number of vectors apart, as in stages. Shifted ones start within the first vector.
    vectors = ceil_div(bn + (vector - 1) * (staged == 3), vector)
    d_pitch = (vectors + 1 - vectors % 2) * vector
    outputs = bm * either(staged > 1, d_pitch, group * bn)
    nbytes = (staged > 0) * (outputs * d_size + (VECTOR_BYTES - d_size) * config["D_SHIFTED"])
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


class Staging(NamedTuple):
    """A work tile in shared memory: its parts and their starts in elements, its sizes, and how D is stored from it."""

    a: StagedTile
    b: StagedTile
    sizes: Sizes
    b_first: int
    d_pitch: int
    d_step: int
    d_product: int


def staging(problem: Gemm, config: Config) -> Staging:
    """Return the layout of a configuration's work tiles in shared memory."""
    a, b = parts(problem, config["PRODUCTS"], config["BM"], config["BN"], bool(config["BY_RUNS"]))
    tile = sizes(problem, config)
    (d_row, d_column), d_product, staged = problem.d_row_col, problem.batch_strides[3], config["D_STAGED"]
    if staged > 1:
        d_row, d_column, d_product = tile.d_pitch, 1, 0
    return Staging(
        a=a,
        b=b,
        sizes=tile,
        b_first=config["STAGES"] * tile.stage_elements if keeps_b(problem, config["BN"]) else a.elements,
        d_pitch=d_row if staged else 0,
        d_step=d_column if staged else 0,
        d_product=d_product if config["PRODUCTS"] > 1 else 0,
    )
