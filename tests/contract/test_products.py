"""The contract of every kernel that multiplies: a table of products, the same for all executors.

A row is a product and the kernels that compute it. Whatever the layout, type, epilogue, precision, alignment and batch,
every element is within its bound of float64, nothing else is written, and the same bits come out again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as pairs

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from matmill.config import Config
from matmill.dtypes import ALL, DType
from matmill.kernel import Kernel, Production
from matmill.kernels.gemm import PRODUCTION as GEMM
from matmill.kernels.gemm.tiles import TILES as FMA_TILES
from matmill.kernels.gemm.tiles import with_vector_widths
from matmill.kernels.hgemm import PRODUCTION as HGEMM
from matmill.kernels.hgemm.tiles import double_tile, split_tile
from matmill.kernels.inner import PRODUCTION as INNER
from matmill.kernels.short_k import PRODUCTION as SHORT_K
from matmill.kernels.thin import PRODUCTION as THIN
from matmill.precision import SHORTEST_K
from matmill.problem import Gemm
from support.examples import examples
from support.executors import Executor
from support.mma_product import SMALL, mma_tiles, on_tiles
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_product import StridedProduct
from support.wgmma_cases import ALL_CASES, OPERANDS, PIECES, SHAPED
from support.wgmma_cases import Case as Wgmma

BF16, F16, F32, F64 = (ALL[name] for name in ("bfloat16", "float16", "float32", "float64"))
#: Layouts of operands that no kernel copies whole: padded, strided, from anywhere; and of one that a batch shares.
ODD, STRIDED, SHARED = Layout(pad=1, start=1), Layout(transposed=True, pad=2, step=2), Layout(shared=True)

#: Batches of small products, outer and tall ones, for the kernel of a short k.
SHORT = (
    StridedProduct((8, 8, 8), batch=37),
    StridedProduct((17, 17, 17), batch=20),
    StridedProduct((5, 9, 20), a=COLUMN, b=COLUMN, batch=37),
    StridedProduct((33, 10, 14), b=COLUMN, batch=11),
    StridedProduct((24, 24, 9), batch=20, a=SHARED, c=COLUMN),
    StridedProduct((24, 24, 16), batch=20, b=SHARED, a=Layout(pad=8)),
    StridedProduct((7, 6, 5), batch=9, a=Layout(pad=1, step=2), b=Layout(transposed=True, pad=2)),
    StridedProduct((261, 4, 40)),
    StridedProduct((261, 17, 30)),
    StridedProduct((200, 1, 40), b=COLUMN),
    StridedProduct((70, 140, 8)),
    StridedProduct((69, 67, 17), a=COLUMN, b=COLUMN),
    StridedProduct((3, 200, 21)),
    StridedProduct((70, 66, 5), a=Layout(step=2), b=Layout(pad=3, start=1), d=Layout(pad=2)),
    StridedProduct((70, 90, 1), d=COLUMN, c=ROW),
    StridedProduct((1, 1, 3), c=ROW),
    StridedProduct((129, 8, 24), batch=3, b=SHARED, d=Layout(pad=8)),
    StridedProduct((64, 72, 16), batch=2, a=SHARED, bias="row", activation="relu"),
    StridedProduct((70, 20, 36), bias="column", activation="gelu", c=ROW, alpha=0.5),
)
#: Those that are watched for races: batches, one with a shared B, a tall product and a wide one.
WATCHED = {1, 5, 8, 12}
#: Few rows or columns and a long k.
FEW = (
    StridedProduct((3, 140, 264), b=COLUMN),
    StridedProduct((3, 141, 385)),
    StridedProduct((1, 90, 300), b=COLUMN, c=ROW),
    StridedProduct((140, 5, 257), a=COLUMN, c=COLUMN, alpha=-1.5),
    StridedProduct((61, 16, 300), batch=2),
    StridedProduct((3, 50, 300), b=COLUMN, bias="row", activation="relu"),
    StridedProduct((37, 2, 150), a=ODD, b=STRIDED, d=Layout(pad=1)),
    StridedProduct((3, 140, 264), a=COLUMN, b=COLUMN),
    StridedProduct((40, 9, 264), a=COLUMN, c=COLUMN, alpha=-1.5),
)
#: Few outputs and a long k.
LONG = (
    StridedProduct((3, 5, 900), b=COLUMN),
    StridedProduct((6, 7, 333), a=Layout(pad=3), b=Layout(transposed=True, pad=1), bias="column"),
    StridedProduct((5, 4, 1001), a=COLUMN, c=ROW, alpha=-1.5),
    StridedProduct((24, 9, 1500), batch=2),
    StridedProduct((17, 17, 600), gram=True, a=COLUMN),
)
#: Any size, for the tiles of the FMA units and of mma.sync.
ANY = (
    *(StridedProduct((72, 80, 68), a=a, b=b) for a, b in pairs((ROW, COLUMN), (ROW, COLUMN))),
    StridedProduct((67, 75, 51), a=ODD, b=Layout(start=1), d=Layout(start=1)),
    StridedProduct((37, 41, 67), a=Layout(start=1), b=Layout(step=3), d=Layout(pad=1), c=COLUMN, batch=2, alpha=-1.5),
    StridedProduct((40, 33, 70), a=SHARED, batch=2, d=COLUMN),
    StridedProduct((66, 72, 140), b=COLUMN, c=COLUMN, batch=2),
    StridedProduct((33, 40, 70), bias="row", activation="silu", c=ROW),
    StridedProduct((1, 1, 1)),
)

#: Tiles of mma.sync that are quick to emulate, of several warps, stages and steps.
TILES = {
    **dict.fromkeys((F16, BF16), SMALL),
    F32: split_tile(32, 32, 32, 2, 2, stages=3),
    F64: double_tile(32, 32, 16, 2, 2, stages=3),
}
#: Precisions with which mma.sync multiplies elements.
PRECISIONS = {F32: "tf32x3"}
#: Of each kernel the most rows and columns, and the least and most terms, of random products.
SIDES = {
    "thin": (4, 90, (128, 300)),
    "inner": (24, 24, (1, 700)),
    "short_k": (70, 70, (1, 40)),
    "gemm": (80, 80, (1, 140)),
    "hgemm": (80, 80, (1, 140)),
}
LAYOUTS = st.builds(
    Layout, st.booleans(), st.sampled_from([0, 0, 1, 2, 8]), st.sampled_from([1, 1, 3]), st.sampled_from([0, 0, 1, 4])
)


@dataclass(frozen=True)
class Row:
    """A product, and a number among the legal configurations of a kernel, spread over them."""

    kernel: Production[Gemm]
    product: StridedProduct
    dtype: DType
    number: int

    def __str__(self) -> str:
        sizes = "x".join(map(str, self.product.shape))
        return f"{self.kernel.kernel.entry} {sizes} {self.dtype.name} {self.number}"

    def fresh(self) -> StridedProduct:
        """Return the product on fresh numbers."""
        return replace(self.product, dtype=self.dtype)

    def legal(self, problem: Gemm, asked: Gemm) -> list[Kernel[Gemm]]:
        """Return the kernels that are considered for the problem ``asked`` and can compute ``problem``."""
        kernels = (self.kernel.kernel.with_config(config) for config in self.kernel.space(asked, H200))
        result = [kernel for kernel in kernels if kernel.why_not(problem, H200) is None]
        assert result
        return result


def _rows() -> Iterator[Row]:
    for index, (product, dtype) in enumerate(pairs(FEW, ALL.values())):
        yield Row(THIN, product, dtype, index % 3)
    for index, (product, dtype) in enumerate(pairs(LONG, ALL.values())):
        yield Row(INNER, product, dtype, index % 3)
    for index, product in enumerate(ANY):
        for dtype in (F32, F64):
            # The first tile is the largest, and slow to emulate.
            yield Row(GEMM, product, dtype, 0 if index == 4 else 1 + index % 2)
        for dtype in (BF16 if index % 2 else F16, F64):
            yield Row(HGEMM, product, dtype, index % 3)
        m, n, k = product.shape
        yield Row(HGEMM, replace(product, shape=(m, n, max(k, SHORTEST_K)), precision=PRECISIONS[F32]), F32, index % 3)


@pytest.mark.parametrize("row", list(_rows()), ids=str)
def test_kernels_of_any_layout_and_type(row: Row, executor: Executor) -> None:
    product = row.fresh()
    legal = row.legal(product.problem, product.problem)
    executor.check(product, legal[row.number * len(legal) // 3], twice=False)


@pytest.mark.parametrize(
    "row", [Row(SHORT_K, product, dtype, 0) for product, dtype in pairs(SHORT, ALL.values())], ids=str
)
def test_a_short_k(row: Row, executor: Executor) -> None:
    product = row.fresh()
    problem = product.problem
    # A longer batch's work tiles have several products.
    legal = row.legal(problem, problem if problem.batch == 1 else replace(problem, batch=1000 * problem.batch))
    every = legal[:: max(1, len(legal) // 2)]
    every += [kernel for kernel in legal if kernel.config["STAGES"] == 2 and kernel not in every][:1]
    # Float16 is copied, multiplied and stored as bfloat16 is: it has one of the configurations.
    index = SHORT.index(row.product)
    first, watched = index % len(every), index in WATCHED and row.dtype in {BF16, F32}
    for number, kernel in enumerate(every[first : first + 1] if row.dtype is F16 else every):
        # Few blocks have several work tiles each, and use their stages again.
        few = kernel.with_config(kernel.config.launched(BLOCKS=3)) if number % 2 or watched else kernel
        executor.check(product, few, races=watched, twice=watched)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_warp_specialised_kernel(case: Wgmma, executor: Executor, request: pytest.FixtureRequest) -> None:
    product = case.product()
    # Tiles and operands decide what waits for copies, layouts and epilogues do not: some of them stand for all.
    both = case in {*SHAPED[::6], *OPERANDS[::3]} or bool(request.config.getoption("--exhaustive"))
    executor.check(product, case.kernel(product.problem), twice=both)


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_float32_in_pieces(case: Wgmma, executor: Executor) -> None:
    product = case.product()
    executor.check(product, case.kernel(product.problem), races=case in PIECES[::3], twice=case in PIECES[::7])


@pytest.mark.parametrize("case", PIECES, ids=str)
def test_pieces_that_do_not_suffice(case: Wgmma, executor: Executor) -> None:
    """The blocks multiply whole elements, for the whole batch."""
    product = case.product()
    product.arrays["A"][-1, -1, -1] = 2.0**-140
    executor.check(product, case.kernel(product.problem), races=case in PIECES[::9], twice=False)


@pytest.mark.parametrize(
    "config", mma_tiles("h200"), ids=lambda one: "-".join(str(one[name]) for name in ("BM", "BN", "BK", "A_VEC"))
)
def test_every_tile_of_mma_sync(config: Config, executor: Executor) -> None:
    side = 1 if config["A_VEC"] == 1 else 8
    product = StridedProduct((128 + side, 128 + side, 64 + side), dtype=F16)
    executor.check(product, on_tiles(product, config), twice=False)


@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
def test_a_short_k_in_float32(dtype: DType, executor: Executor) -> None:
    product = StridedProduct((30, 20, 40), dtype=dtype, out_dtype=F32, batch=9, c=ROW)
    legal = Row(SHORT_K, product, dtype, 0).legal(product.problem, replace(product.problem, batch=9000))
    for kernel in legal[:: max(1, len(legal) // 3)]:
        executor.check(product, kernel, races=False, twice=False)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("start", [0, 1, 2, 3, 5, 7])
def test_a_short_k_with_rows_of_d_anywhere(dtype: DType, start: int, executor: Executor) -> None:
    product = StridedProduct(
        (130, 141 + 2 * (start == 7), 24), dtype=dtype, d=Layout(pad=start // 2, start=start), c=COLUMN,
        bias="column", activation="relu",
    )  # fmt: skip
    shifted = [one for one in Row(SHORT_K, product, dtype, 0).legal(product.problem, product.problem)
               if one.config["D_STAGED"] == 3]  # fmt: skip
    kernel = shifted[start * len(shifted) // 8]
    # Few blocks walk over several work tiles, whose last ones are narrow.
    executor.check(product, kernel.with_config(kernel.config.launched(BLOCKS=3)), races=start == 1, twice=start == 1)


@pytest.mark.parametrize(("warps", "slices"), [(1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (4, 40)])
@pytest.mark.parametrize("exchanged", [False, True])
def test_few_columns_and_every_division_of_k(warps: int, slices: int, executor: Executor, *, exchanged: bool) -> None:
    product = StridedProduct((2, 130, 700) if exchanged else (130, 2, 700), b=COLUMN, c=ROW, dtype=F32)
    kernel = next(one for one in Row(THIN, product, F32, 0).legal(product.problem, product.problem)
                  if one.config["WARPS_K"] == warps)  # fmt: skip
    executor.check(product, kernel.with_config(kernel.config.launched(SPLIT_K=slices)))


@pytest.mark.parametrize(
    ("dtype", "pads", "parts"),
    [
        *pairs([F16, BF16], ["A", "AB"], [1]),
        *pairs([F16, BF16], ["B"], [2]),
        *pairs([F16, BF16], ["", "AB"], [3]),
        # Slices without terms add nothing.
        *pairs([F16, F32, F64], [""], [7]),
        # Few outputs have several threads each that add slices.
        *pairs([F16, F64], [""], [18]),
        *pairs([F32, F64], [""], [2, 3]),
    ],
    ids=lambda one: getattr(one, "name", str(one)),
)
def test_repacked_operands_and_slices_of_k(pads: str, parts: int, dtype: DType, executor: Executor) -> None:
    product = StridedProduct(
        (37, 41, 267),
        a=Layout(start=1),
        b=Layout(step=3),
        d=Layout(start=1),
        c=COLUMN,
        dtype=dtype,
        batch=2,
        alpha=-1.5,
        precision=PRECISIONS.get(dtype, "default"),
    )
    executor.check(product, on_tiles(product, TILES[dtype], parts=parts, pads=pads))


@pytest.mark.parametrize("number", range(len(FMA_TILES[4])))
def test_every_float32_tile_of_the_fma_units(number: int, executor: Executor) -> None:
    config = FMA_TILES[4][number]
    product = replace(ANY[number % 6], dtype=F32)
    kernel = GEMM.kernel.with_config(with_vector_widths(config, product.problem).launched(SPLIT_K=1))
    executor.check(product, kernel, twice=False)


@st.composite
def _any_products(draw: st.DrawFn) -> tuple[StridedProduct, Kernel[Gemm]]:
    """Draw a kernel, a product of sizes that it is for, and one of its legal configurations."""
    kernel = draw(st.sampled_from([THIN, INNER, SHORT_K, GEMM, HGEMM, HGEMM]))
    rows, columns, terms = SIDES[kernel.kernel.entry]
    shape = draw(st.tuples(st.integers(1, rows), st.integers(1, columns), st.integers(*terms)))
    if draw(st.booleans()):
        shape = (shape[1], shape[0], shape[2])
    dtype = draw(st.sampled_from({GEMM: (F32, F64)}.get(kernel, tuple(ALL.values()))))
    split = kernel is HGEMM and dtype is F32
    if split:
        shape = (*shape[:2], shape[2] + SHORTEST_K)
    a, b, d = (draw(LAYOUTS) for _ in "ABD")
    product = StridedProduct(
        shape, a, b, d, c=draw(st.none() | LAYOUTS), dtype=dtype, batch=draw(st.integers(1, 2)),
        alpha=draw(st.sampled_from([1.0, -2.0])), precision=PRECISIONS[F32] if split else "default",
    )  # fmt: skip
    number = draw(st.integers(0, 999))
    if kernel is HGEMM:
        pads = "" if dtype in TILES.keys() - {F16, BF16} else ("", "A", "B", "AB")[number % 4]
        return product, on_tiles(product, TILES[dtype], parts=1 + number % 3, pads=pads)
    configs = (kernel.kernel.with_config(config) for config in kernel.space(product.problem, H200))
    legal = [one for one in configs if one.why_not(product.problem, H200) is None]
    assume(legal)
    # The first tile of gemm is the largest, and slow to emulate.
    return product, legal[max(number % len(legal), min(len(legal) - 1, len(legal) // 3 * (kernel is GEMM)))]


@examples(10, ignore=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(_any_products())
def test_any_product(executor: Executor, drawn: tuple[StridedProduct, Kernel[Gemm]]) -> None:
    executor.check(*drawn, twice=False)
