"""Audits of products on a GPU, with operands in the GPU's memory."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import matmill
from matmill.dtypes import ALL
from matmill.settings import waiting_for_compiler
from matmill.testing import audit


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("dtype", ALL)
def test_products_are_right_and_have_one_order(dtype: str) -> None:
    options: dict[str, Any] = {"out_dtype": "float32"} if ALL[dtype].itemsize == 2 else {}
    with waiting_for_compiler():
        product = partial(matmill.matmul, **options)
        report = audit(product, dtype=dtype, device="cuda", require=["grade", "order", "twice"], name="matmill")
    assert report.ok, report
    assert {finding.verdict for finding in report.findings if finding.name in report.needed} == {"yes"}
