"""The kernel for few rows or columns as its own PTX: every element of every type and layout, and few bytes too many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from matmill.config import Config
from matmill.dtypes import ALL, F32, F64
from matmill.emulator import Report
from matmill.kernels.thin import THIN, space
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_product import StridedProduct


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


@pytest.mark.parametrize("few", range(1, 17))
def test_every_number_of_columns(few: int) -> None:
    for m, n, b in ((few, 41, COLUMN), (41, few, ROW)):
        product = StridedProduct((m, n, 137), ROW, b, dtype=F32)
        right(product, chosen(product, warps_k=4, number=0))


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
