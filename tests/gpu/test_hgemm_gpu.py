"""16-bit products of any size on a GPU: shapes, layouts and batches against float64, every tile, the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import errors
from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.kernels.hgemm import HGEMM, space
from matmill.problem import Gemm
from matmill.reference import check
from matmill.runtime.gpu import GPU
from support.strided_product import StridedProduct

Array = NDArray[Any]
_NAN_BYTE = 0xFF


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request: pytest.FixtureRequest, device: GPU) -> str:
    """Provide a 16-bit type that this GPU's tensor cores take."""
    name = str(request.param)
    if name == "bfloat16" and device.arch.capability < (8, 0):
        pytest.skip("no tensor cores for bfloat16 before Ampere")
    return name


def _random(seed: int, *shape: int, dtype: str) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(ALL[dtype].numpy)


def _gpu(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="gpu", **options)


@pytest.mark.parametrize("odd", [False, True])
def test_every_tile_shape_and_every_number_of_parts(device: GPU, dtype: str, *, odd: bool) -> None:
    side = 1 if odd else 8
    product = StridedProduct((256 + side, 384 + side, 2048 + side), dtype=ALL[dtype])
    configs = space(product.problem, device.arch)
    assert any(config["REPACK_A"] and config["REPACK_B"] for config in configs) == odd
    for config in configs:
        product.on_gpu(HGEMM.with_config(config), device)
        verdict = check(product.arrays["D"], product.arrays["A"], product.arrays["B"])
        assert verdict.ok, (str(config), verdict)


def test_padding_lets_nothing_leak(dtype: str) -> None:
    a, b = _random(0, 2047, 1025, dtype=dtype), _random(1, 1025, 2047, dtype=dtype)
    problem = Gemm(2047, 2047, 1025, ALL[dtype], a_align=2, b_align=2, d_align=2)
    assert choose(problem, GPU.get(0).arch).kernel.config["REPACK_A"] == 1
    a[3, 1024], a[2046, 9], b[1024, 2046], b[30, 3] = np.nan, np.inf, -np.inf, np.nan
    result = _gpu(a, b)
    assert check(result, a, b).ok
    assert np.isfinite(result[[0, 2045]][:, [0, 2045]]).all()


def test_more_products_than_a_grid_is_long(dtype: str) -> None:
    a, b = _random(0, 66_000, 2, 9, dtype=dtype), _random(1, 66_000, 9, 3, dtype=dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert np.abs(_gpu(a, b).astype(np.float64) - expected).max() <= 9 * float(ALL[dtype].roundoff)


def test_bfloat16_without_tensor_cores_is_refused(device: GPU) -> None:
    if device.arch.capability >= (8, 0):
        pytest.skip("this GPU has tensor cores for bfloat16")
    a = _random(0, 200, 200, dtype="bfloat16")
    with pytest.raises(errors.IllegalConfigError, match=r"needs compute capability 8\.0"):
        _gpu(a, a)


# -- torch ------------------------------------------------------------------------------------------------------------


def test_torch_tensors_and_the_same_bits(torch: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    for m, n, k in ((256, 512, 384), (100, 4096, 4096), (333, 777, 555)):
        x, y = (torch.rand(*shape, device="cuda").mul_(2).sub_(1).to(kind) for shape in ((m, k), (n, k)))
        first = matmill.matmul(x, y.T)
        a, b, d = (one.double().cpu().numpy().astype(ALL[dtype].numpy) for one in (x, y.T, first))
        assert check(d, a, b).ok
        noise = torch.rand(2048, 2048, device="cuda")
        side = torch.cuda.Stream()
        for _ in range(10):
            with torch.cuda.stream(side):
                torch.mm(noise, noise)  # company on the SMs changes the order in which blocks run
            assert torch.equal(matmill.matmul(x, y.T).view(torch.int16), first.view(torch.int16))
