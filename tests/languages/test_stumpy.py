"""stumpy's kernels, whose tests ran on numba's simulator: matrix profiles as those that its CPU code has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.testing import redirected

pytest.importorskip("numba.cuda")


@pytest.mark.parametrize("name", ["stump", "aamp"])
@pytest.mark.parametrize("two_series", [False, True])
def test_matrix_profiles(name: str, two_series: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    series = (rng.standard_normal(24), 6, *((rng.standard_normal(16), False) if two_series else ()))
    with redirected("numba", check=False) as reports:  # stumpy asks for a GPU as it is imported
        stumpy: Any = pytest.importorskip("stumpy")
        monkeypatch.setattr("stumpy.config.STUMPY_THREADS_PER_BLOCK", 16)
        result = getattr(stumpy, f"gpu_{name}")(*series)
    expected = getattr(stumpy, name)(*series)
    np.testing.assert_allclose(result[:, 0].astype(float), expected[:, 0].astype(float), atol=1e-6)
    assert result[:, 1].tolist() == expected[:, 1].tolist()
    assert len(reports) >= 10
    # All threads store element 0, and thread 0 another value before. It alone reads it, so the race has no effect.
    hazards = [hazard for report in reports for hazard in report.hazards]
    assert {hazard.kind for hazard in hazards if hazard.severity == "error"} == {"race"}
    assert {hazard.where.partition(":")[0] for hazard in hazards} <= {f"gpu_{name}.py", "_compute_and_update_PI_kernel"}
