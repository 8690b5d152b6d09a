"""The kernel for few rows or columns as its own PTX: every element of every type and layout, and few bytes too many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill import reference
from matmill.config import Config
from matmill.dtypes import ALL, F32, F64
from matmill.emulator import Report
from matmill.kernels.thin import THIN, space
from support.examples import examples
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_product import StridedProduct

LAYOUTS = [(a, b) for a in (ROW, COLUMN) for b in (ROW, COLUMN)]


def chosen(product: StridedProduct, *, warps_k: int | None = None, number: int = -1, slices: int = 1) -> Config:
    """Return one of the configurations for a product: with so many warps along k, or any; k in so many slices."""
    configs = [one for one in space(product.problem, H200) if warps_k in {None, one["WARPS_K"]}]
    return configs[number].launched(SPLIT_K=slices)


def right(product: StridedProduct, config: Config, *, schedule: int = 0, late_copies: bool = False) -> list[Report]:
    """Run a configuration and check every element, that nothing beside D is written, and that nothing races."""
    reports = product.emulated(THIN.with_config(config), schedule=schedule, late_copies=late_copies)
    assert product.excess() <= 1, (str(product.problem), str(config))
    assert not any(report.hazards for report in reports)
    return reports


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("m", "n"), [(3, 140), (140, 3), (1, 67), (70, 9)])
def test_every_type_and_layout(m: int, n: int, dtype: str) -> None:
    for number, (a, b) in enumerate(LAYOUTS):
        product = StridedProduct((m, n, 264), a, b, dtype=ALL[dtype], alpha=-1.5, c=COLUMN if number % 2 else ROW)
        right(product, chosen(product))


@pytest.mark.parametrize("few", range(1, 17))
def test_every_number_of_columns(few: int) -> None:
    for m, n, b in ((few, 41, COLUMN), (41, few, ROW)):
        product = StridedProduct((m, n, 137), ROW, b, dtype=F32)
        right(product, chosen(product, warps_k=4, number=0))


@pytest.mark.parametrize("warps_k", [1, 2, 4, 8])
@pytest.mark.parametrize(("a", "b"), LAYOUTS)
def test_every_division_of_k_without_a_race(a: Layout, b: Layout, warps_k: int) -> None:
    product = StridedProduct((2, 300, 1100), a, b, dtype=F32, c=ROW)
    right(product, chosen(product, warps_k=warps_k, number=0), late_copies=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_the_order_of_warps_and_late_copies_change_no_bit(dtype: str, *, exchanged: bool) -> None:
    shape = (5, 70, 700) if exchanged else (70, 5, 700)
    product = StridedProduct(shape, ROW, COLUMN, dtype=ALL[dtype], batch=2)
    config = chosen(product, warps_k=2)
    result = []
    for schedule in (0, 1):
        right(product, config, schedule=schedule, late_copies=bool(schedule))
        result.append(product.arrays["D"].tobytes())
    assert result[0] == result[1]


@examples(12)
@given(st.data())
def test_any_size_stride_and_start(data: st.DataObject) -> None:
    draw = data.draw
    few, long, k = draw(st.integers(1, 4)), draw(st.integers(17, 90)), draw(st.integers(128, 300))
    places = st.builds(
        Layout, st.booleans(), st.sampled_from([0, 0, 1, 4]), st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, 1, 4])
    )
    a, b, d = draw(places), draw(places), draw(places)
    product = StridedProduct(
        (few, long, k) if draw(st.booleans()) else (long, few, k), a, b, d,
        c=draw(st.sampled_from([None, ROW, COLUMN])), dtype=ALL[draw(st.sampled_from(["float32", "float16"]))],
        batch=draw(st.integers(1, 2)), alpha=draw(st.sampled_from([1.0, -2.0])),
    )  # fmt: skip
    right(product, chosen(product, warps_k=draw(st.sampled_from([4, 8])), number=0))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("m", "n", "slices"), [(3, 70, 2), (70, 3, 3), (70, 3, 40)])
def test_k_over_blocks(m: int, n: int, slices: int, dtype: str) -> None:
    product = StridedProduct((m, n, 2100), ROW, COLUMN, c=ROW, dtype=ALL[dtype], batch=2)
    config = chosen(product, warps_k=4, number=0, slices=slices)
    assert len(right(product, config)) == 2


def test_an_epilogue_is_that_of_the_launch_after() -> None:
    product = StridedProduct((3, 50, 300), ROW, COLUMN, dtype=F32, bias="row", activation="relu")
    config = chosen(product)
    product.emulated(THIN.with_config(config))
    a, b, bias = (product.arrays[name].astype(np.float64) for name in ("A", "B", "bias"))
    np.testing.assert_allclose(product.arrays["D"], np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)


def test_what_is_past_the_end_is_not_read() -> None:
    """The buffers' padding is NaN, and a NaN inside comes out where NumPy has it."""
    product = StridedProduct((37, 3, 150), Layout(pad=6), Layout(transposed=True, pad=6), dtype=F32)
    product.arrays["A"][0, 5, 7] = np.nan
    product.arrays["B"][0, 30, 1] = np.inf
    product.emulated(THIN.with_config(chosen(product)))
    assert reference.check(product.arrays["D"].copy(), product.arrays["A"], product.arrays["B"]).ok


def test_no_terms_leave_beta_times_c() -> None:
    product = StridedProduct((40, 3, 128), ROW, ROW, c=ROW, dtype=F64, beta=2.0)
    config = chosen(product)
    empty = StridedProduct((40, 3, 0), ROW, ROW, c=ROW, dtype=F64, beta=2.0)
    empty.emulated(THIN.with_config(config.replace(RUN=1, ROWS=1, B_VEC=1)))
    np.testing.assert_array_equal(empty.arrays["D"], 2 * empty.arrays["C"])


def _counted(reports: Sequence[Report]) -> tuple[int, float]:
    """Return sectors of A and B that are read, and bytes of a lane's load of A."""
    (report,) = reports
    read = report.counters.global_load_sectors + report.counters.cp_async_sectors
    each = report.counters.global_load_bytes / report.counters.global_load_requests / 32
    return read, each


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("a", "b"), [(ROW, COLUMN), (COLUMN, ROW)], ids=["along k", "along rows"])
@pytest.mark.parametrize(("few", "warps_k"), [(1, 8), (4, 1)])
def test_the_long_matrix_is_read_once_in_vectors(few: int, warps_k: int, a: Layout, b: Layout, dtype: str) -> None:
    # As many rows as one block has, so that B is read once as well.
    element = ALL[dtype]
    rows = {"float32": 128, "float64": 64}[dtype] if few == 4 else 256
    product = StridedProduct((rows, few, 512), a, b, dtype=element)
    config = chosen(product, warps_k=warps_k)
    read, each = _counted(right(product, config))
    blocks = -(-rows // (8 // warps_k * (32 // config["LANES_K"]) * config["ROWS"]))
    long, short = (extent * 512 * element.itemsize / 32 for extent in (rows, few))
    assert read <= 1.1 * (long + blocks * short)
    assert each == pytest.approx(16)
