"""The four kernels of ``examples/hopper`` on a GPU of compute capability 9.0, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from hopper import run
from hopper.run import Trial, on_gpu
from matmill.dtypes import BF16, F16, DType
from matmill.runtime.gpu import GPU


@pytest.fixture(autouse=True)
def hopper(device: GPU) -> GPU:
    """Provide the GPU, where it has TMA and wgmma: later GPUs have no wgmma."""
    if device.arch.capability != (9, 0):
        pytest.skip(f"{device.arch.name} has compute capability {device.arch.capability}")
    return device


def check(trial: Trial, device: GPU, times: int = 3) -> None:
    """Check that D is right, its margin untouched, and that each launch gives the same bits."""
    first, *others = on_gpu(trial, device, times)
    assert trial.excess(first) <= 1
    for other in others:
        assert np.array_equal(first.view(np.uint8), other.view(np.uint8))


@pytest.mark.parametrize("shape", [(1, 4), (32, 64), (33, 68), (100, 300), (1000, 4096), (4097, 132)], ids=str)
@pytest.mark.parametrize("blocks", [1, 7, 132])
def test_tile_copy(hopper: GPU, shape: tuple[int, int], blocks: int) -> None:
    check(run.copy(*shape, blocks=blocks), hopper)


@pytest.mark.parametrize("shape", [(1, 8, 8), (64, 128, 64), (65, 136, 72), (200, 520, 1000)], ids=str)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bn", [64, 128, 192, 256])
@pytest.mark.parametrize("a", ["", "A_TRANSPOSED", "A_REGISTERS"])
@pytest.mark.parametrize("b_transposed", [0, 1])
def test_wgmma_product(  # noqa: PLR0917 — pytest gives them by name
    hopper: GPU, shape: tuple[int, int, int], dtype: DType, bn: int, a: str, b_transposed: int
) -> None:
    m, n, k = shape
    m = m + -m % 8 if a == "A_TRANSPOSED" else m
    check(run.wgmma_product(m, n, k, dtype=dtype, BN=bn, B_TRANSPOSED=b_transposed, **({a: 1} if a else {})), hopper)


@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (128, 256, 64), (129, 264, 72), (300, 264, 328), (1000, 2056, 1032), (2048, 2048, 512)],
    ids=str,
)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bn", [128, 256])
@pytest.mark.parametrize("b_transposed", [0, 1])
def test_persistent_product(hopper: GPU, shape: tuple[int, int, int], dtype: DType, bn: int, b_transposed: int) -> None:
    check(run.persistent_product(*shape, dtype=dtype, BN=bn, B_TRANSPOSED=b_transposed), hopper)


@pytest.mark.parametrize("blocks", [1, 2, 5])
@pytest.mark.parametrize("stages", [2, 3])
def test_persistent_product_in_few_blocks_and_stages(hopper: GPU, blocks: int, stages: int) -> None:
    check(run.persistent_product(700, 800, 264, blocks=blocks, STAGES=stages, GROUP_M=2), hopper)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (128, 128, 64), (256, 256, 512), (200, 136, 456), (1000, 2056, 1032)], ids=str
)
@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("bn", [128, 256])
@pytest.mark.parametrize("shares_b", [0, 1])
def test_multicast_product(hopper: GPU, shape: tuple[int, int, int], dtype: DType, bn: int, shares_b: int) -> None:
    check(run.multicast_product(*shape, dtype=dtype, BN=bn, SHARES_B=shares_b), hopper)


@pytest.mark.parametrize("stages", [2, 3])
def test_multicast_product_in_few_stages(hopper: GPU, stages: int) -> None:
    check(run.multicast_product(512, 512, 2048, STAGES=stages), hopper, times=20)
