"""What the warp-specialised kernel writes behind D where TMA stores boxes, on a GPU of compute capability 9.0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matmill.kernel import always
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import Shape, configured
from matmill.launch import HOPPER
from matmill.runtime.gpu import GPU
from support.strided import COLUMN, H200, Layout, buffer_of
from support.strided_product import StridedProduct


@pytest.fixture(name="hopper")
def _hopper() -> GPU:
    gpu = GPU.get(0)
    if gpu.arch.capability != HOPPER:
        pytest.skip("wgmma needs compute capability 9.0")
    return gpu


def test_a_store_of_boxes_writes_whole_16_bytes_as_in_the_emulator(hopper: GPU) -> None:
    trial = StridedProduct((70, 73, 72), b=COLUMN, d=Layout(pad=7))
    config = configured(Shape(64, 64, 1), trial.problem, H200).replace(D_TMA=1)
    kernel = replace(WGMMA.with_config(config), why_not_config=always)
    trial.emulated(kernel, races=False)
    emulated = buffer_of(trial.arrays["D"]).tobytes()
    trial.on_gpu(kernel, hopper)
    assert buffer_of(trial.arrays["D"]).tobytes() == emulated
    assert (buffer_of(trial.arrays["D"])[:5600].reshape(70, 80)[:, 73:].view(np.int16) != -1).any()
