"""Tuning on a GPU: a product is measured, and the product of later calls is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import matmill
from matmill.choose import choose, forget
from matmill.dispatch import measured, plan_cache
from matmill.reference import check
from matmill.runtime.gpu import GPU


@pytest.mark.parametrize("shape", [(300, 200, 1000), (2048, 2048, 512)])
def test_a_tuned_product_is_right(shape: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "default_path", lambda *_: tmp_path / "rows.json")
    monkeypatch.setattr(measured, "_decisions", {})
    m, n, k = shape
    random = np.random.default_rng(3)
    a, b = (random.uniform(-1, 1, extents).astype(np.float16) for extents in ((m, k), (k, n)))
    try:
        tuned = matmill.tune(a, b)
        assert all(row.measured or row.why for row in tuned.rows)
        assert check(matmill.matmul(a, b, executor="gpu"), a, b).ok
        reason = choose(tuned.problem, GPU.get(0).arch).reasons[-1]
        assert ("measured on this GPU" in reason) == tuned.kept
    finally:
        forget()
        plan_cache.forget_plans()
