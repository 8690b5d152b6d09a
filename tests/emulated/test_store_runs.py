"""Rows of D that start off 16 bytes leave in whole vectors: requests, sectors and banks by the emulator's counters."""

from __future__ import annotations

import pytest

from matmill.dtypes import BF16, F32, DType
from matmill.kernels.short_k import SHORT_K, space
from matmill.kernels.wgmma.tiles import EXAMPLES, Shape
from support.strided import COLUMN, H200
from support.strided_product import StridedProduct
from support.wgmma_cases import Case

_FLOATS: dict[str, object] = {"out_dtype": F32}


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({}, Shape(128, 128, 2)),
        (_FLOATS, Shape(128, 128, 2)),
        (_FLOATS, Shape(64, 96, 1)),
        (_FLOATS, Shape(128, 160, 2)),
        (_FLOATS, EXAMPLES[3]),
        ({"dtype": F32, "precision": "tf32"}, Shape(64, 64, 1)),
    ],
    ids=lambda one: f"{one.bm}x{one.bn}" if isinstance(one, Shape) else "-".join(one),
)
def test_the_warp_specialised_kernel(given: dict[str, object], shape: Shape) -> None:
    case = Case("odd rows", shape, (shape.bm, shape.bn - 1, 64), given={"b": COLUMN, **given})
    product = case.product()
    (report,) = product.emulated(case.kernel(product.problem), races=False)
    counted, size = report.counters, product.problem.d_dtype.itemsize
    assert product.excess() <= 1
    # Single elements took 4 times as many requests of float32, and 3.5 times as many sectors.
    assert counted.global_store_requests <= 2 * shape.bm * shape.bn * size / 512
    assert counted.global_store_sectors <= 1.3 * shape.bm * shape.bn * size / 32
    assert counted.shared_store_wavefronts == counted.shared_store_wavefronts_ideal


@pytest.mark.parametrize("columns", [49, 50, 77])
def test_rows_of_one_run_meet_in_few_banks(columns: int) -> None:
    case = Case("one run", Shape(64, 96, 1), (64, columns, 64), given={"b": COLUMN})
    product = case.product()
    kernel = case.kernel(product.problem)
    assert kernel.config["D_ONE_RUN"]
    (report,) = product.emulated(kernel, races=False)
    assert product.excess() <= 1
    assert report.counters.global_store_requests < 8  # what is before and after whole vectors
    assert report.counters.shared_store_wavefronts <= 3 * report.counters.shared_store_wavefronts_ideal


def test_rows_that_would_meet_in_one_bank_leave_row_by_row() -> None:
    product = StridedProduct((64, 127, 64), b=COLUMN)
    assert not Case("whole spans", Shape(64, 128, 1), (64, 127, 64)).kernel(product.problem).config["D_ONE_RUN"]


@pytest.mark.parametrize("dtype", [BF16, F32], ids=lambda dtype: dtype.name)
def test_a_short_k(dtype: DType) -> None:
    product = StridedProduct((130, 141, 24), dtype=dtype)
    config = next(one for one in space(product.problem, H200) if one["D_STAGED"] == 3 and one["BN"] == 64)
    (report,) = product.emulated(SHORT_K.with_config(config), races=False)
    assert product.excess() <= 1
    assert report.counters.global_store_requests <= 0.5 * 130 * 141 / 32
