"""The warp-specialised kernel on a GPU of compute capability 9.0: right, and bit by bit what the emulator gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matmill.kernel import always
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import Shape, configured
from matmill.launch import HOPPER
from matmill.runtime.gpu import GPU
from support.strided_product import COLUMN, H200, Layout, StridedProduct
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


def test_a_store_of_boxes_writes_whole_16_bytes_as_in_the_emulator(hopper: GPU) -> None:
    trial = StridedProduct((70, 73, 72), b=COLUMN, d=Layout(pad=7))
    config = configured(Shape(64, 64, 1), trial.problem, H200).replace(D_TMA=1)
    kernel = replace(WGMMA.with_config(config), why_not_config=always)
    trial.emulated(kernel, races=False)
    emulated = trial.base("D").tobytes()
    trial.on_gpu(kernel, hopper)
    assert trial.base("D").tobytes() == emulated
    assert (trial.base("D")[:5600].reshape(70, 80)[:, 73:].view(np.int16) != -1).any()
