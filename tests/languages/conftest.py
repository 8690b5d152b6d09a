"""Tests of the longer tier: kernels of languages whose packages are extras of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _at_night(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--exhaustive"):
        pytest.skip("make nightly runs it")
