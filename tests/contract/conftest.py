"""The executors of the contract: the emulator always, and a GPU where there is one."""

from __future__ import annotations

import pytest

from matmill.runtime import gpu
from matmill.settings import Executor as Name
from support.executors import Emulated, Executor, OnGPU


@pytest.fixture(params=["emulator", "gpu"])
def on(request: pytest.FixtureRequest) -> Name:
    """Provide the name of each executor; without a GPU its tests are skipped."""
    reason = gpu.unavailable() if request.param == "gpu" else None
    if reason is not None:
        pytest.skip(reason)
    name: Name = request.param
    return name


@pytest.fixture
def executor(on: Name) -> Executor:
    """Provide each executor of one kernel with one configuration."""
    return Emulated() if on == "emulator" else OnGPU(gpu.GPU.get(0))
