"""The warp-specialised kernel on a GPU of compute capability 9.0: right, and bit by bit what the emulator gives."""

from __future__ import annotations

import pytest

from matmill.launch import HOPPER
from matmill.runtime.gpu import GPU
from support.wgmma_cases import ALL_CASES, Case


@pytest.fixture(name="hopper")
def _hopper() -> GPU:
    gpu = GPU.get(0)
    if gpu.arch.capability != HOPPER:
        pytest.skip("wgmma needs compute capability 9.0")
    return gpu


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_every_class_of_configuration(case: Case, hopper: GPU) -> None:
    trial = case.made()
    kernel = case.kernel(trial.problem)
    trial.emulated(kernel, races=False)
    emulated = trial.arrays["D"].tobytes()
    for _ in range(2):
        trial.on_gpu(kernel, hopper)
        assert trial.excess() <= 1
        assert trial.activation or trial.arrays["D"].tobytes() == emulated
