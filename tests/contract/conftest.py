"""The executors of the contract: the emulator always, and a GPU where there is one."""

from __future__ import annotations

import pytest

from matmill.runtime import gpu
from support.executors import Emulated, Executor, OnGPU


@pytest.fixture(params=["emulator", "gpu"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """Provide each executor; without a GPU its tests are skipped."""
    if request.param == "emulator":
        return Emulated()
    reason = gpu.unavailable()
    if reason is not None:
        pytest.skip(reason)
    return OnGPU(gpu.GPU.get(0))
