"""matmul on a GPU: NumPy arrays that travel, and torch, CuPy and JAX arrays that stay where they are."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import errors
from matmill.reference import check
from matmill.runtime.gpu import GPU

Array = NDArray[Any]

SHAPES = [
    ((1, 1), (1, 1)),
    ((129, 65), (65, 257)),
    ((128, 128), (128, 128)),
    ((1, 1000), (1000, 3)),
    ((513, 1), (1, 511)),
    ((40,), (40,)),
    ((40,), (40, 50)),
    ((30, 40), (40,)),
    ((7, 33, 44), (44, 55)),
    ((3, 1, 33, 44), (1, 5, 44, 55)),
    ((6, 32, 48), (6, 48, 64)),
]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _gpu(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="gpu", **options)


def test_more_products_than_a_grid_is_long() -> None:
    a, b = _random(0, 70_000, 2, 3), _random(1, 70_000, 3, 2)
    result = _gpu(a, b)
    expected = np.einsum("bij,bjk->bik", a.astype(np.float64), b.astype(np.float64))
    np.testing.assert_allclose(result, expected, atol=1e-4)


# -- torch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_torch_shapes(torch: Any, left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = _random(0, *left, dtype=dtype), _random(1, *right, dtype=dtype)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    result = matmill.matmul(x, y)
    assert (result.device, result.dtype) == (x.device, x.dtype)
    verdict = check(result.cpu().numpy(), a, b)
    assert verdict.ok, verdict


def test_torch_views_and_repeated_calls(torch: Any) -> None:
    for seed in range(3):
        a, b = _random(seed, 80, 70), _random(seed + 1, 90, 70)
        x, y = torch.from_numpy(a).cuda()[:, 1::2], torch.from_numpy(b).cuda().T[1::2]
        assert check(matmill.matmul(x, y).cpu().numpy(), a[:, 1::2], b.T[1::2]).ok
        bias = torch.ones(90, device="cuda")
        result = matmill.matmul(x, y, c=bias, alpha=0.5 + seed, beta=seed)
        ones = np.ones((80, 90), np.float32)
        assert check(result.cpu().numpy(), a[:, 1::2], b.T[1::2], ones, alpha=0.5 + seed, beta=seed).ok


def test_torch_out(torch: Any) -> None:
    a, b = _random(0, 50, 60), _random(1, 60, 70)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    out = torch.full((70, 50), float("nan"), device="cuda").T
    assert matmill.matmul(x, y, out=out) is out
    assert check(out.cpu().numpy(), a, b).ok


def test_torch_alignment_is_part_of_the_plan(torch: Any) -> None:
    a, b = _random(0, 64 * 64 + 1), _random(1, 64, 64)
    x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    for start in (0, 1):
        result = matmill.matmul(x[start : start + 4096].view(64, 64).T, y)
        assert check(result.cpu().numpy(), a[start : start + 4096].reshape(64, 64).T, b).ok


def test_torch_streams(torch: Any) -> None:
    a, b = _random(0, 300, 300), _random(1, 300, 300)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x, y = torch.from_numpy(a).cuda(non_blocking=True), torch.from_numpy(b).cuda(non_blocking=True)
        for _ in range(20):
            torch.cuda._sleep(100_000)
            first = matmill.matmul(x, y)
    side.synchronize()
    assert check(first.cpu().numpy(), a, b).ok
    for stream in (side, side.cuda_stream):
        out = torch.full((300, 300), float("nan"), device="cuda")
        torch.cuda.synchronize()
        matmill.matmul(x, y, out=out, stream=stream)
        side.synchronize()
        assert check(out.cpu().numpy(), a, b).ok


def test_torch_is_not_waited_for(torch: Any) -> None:
    x = torch.randn(256, 256, device="cuda")
    matmill.matmul(x, x)
    torch.cuda.synchronize()
    started = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second
    started.record()
    begin = time.perf_counter()
    matmill.matmul(x, x)
    elapsed = time.perf_counter() - begin
    assert not started.query(), "the GPU had already finished: the test proves nothing"
    assert elapsed < 0.2
    torch.cuda.synchronize()


def test_torch_leaves_the_current_device_alone(torch: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    a, b = _random(0, 100, 100), _random(1, 100, 100)
    x, y = torch.from_numpy(a).to("cuda:1"), torch.from_numpy(b).to("cuda:1")
    result = matmill.matmul(x, y)
    assert torch.cuda.current_device() == 0
    assert result.device == x.device
    assert check(result.cpu().numpy(), a, b).ok
    with pytest.raises(errors.DeviceError, match="GPU 0"):
        matmill.matmul(x, y.to("cuda:0"))


def test_torch_refusals(torch: Any) -> None:
    x = torch.randn(16, 16, device="cuda")
    pool = torch.zeros(600, device="cuda")
    with pytest.raises(errors.DeviceError, match="the host"):
        matmill.matmul(x, x.cpu())
    with pytest.raises(errors.DeviceError, match="executor"):
        matmill.matmul(x, x, executor="cpu")
    with pytest.raises(errors.DTypeError, match="float64"):
        matmill.matmul(x, x.double())
    with pytest.raises(errors.AliasError):
        matmill.matmul(pool[:256].view(16, 16), x, out=pool[100:356].view(16, 16))
    with pytest.raises(errors.AliasError):
        matmill.matmul(x, x, out=pool[:16].expand(16, 16))
    assert not pool.any()


# -- CuPy -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_cupy_shapes(cupy: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _random(0, *left), _random(1, *right)
    result = matmill.matmul(cupy.asarray(a), cupy.asarray(b))
    assert isinstance(result, cupy.ndarray)
    verdict = check(cupy.asnumpy(result), a, b)
    assert verdict.ok, verdict


def test_cupy_negative_strides_and_out(cupy: Any) -> None:
    a, b = _random(0, 60, 50), _random(1, 50, 70)
    out = cupy.full((70, 60), cupy.nan, dtype="float32").T[::-1]
    assert matmill.matmul(cupy.asarray(a)[::-1, ::-1], cupy.asarray(b)[::-1], out=out) is out
    assert check(cupy.asnumpy(out), a[::-1, ::-1], b[::-1]).ok


def test_cupy_streams(cupy: Any) -> None:
    a, b = _random(0, 200, 200), _random(1, 200, 200)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        result = matmill.matmul(cupy.asarray(a), cupy.asarray(b))
        stream.synchronize()
    assert check(cupy.asnumpy(result), a, b).ok


def test_cupy_and_torch_together(cupy: Any, torch: Any) -> None:
    a, b = _random(0, 200, 200), _random(1, 200, 200)
    pinned = torch.from_numpy(a).pin_memory()
    x = torch.full((200, 200), float("nan"), device="cuda")
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.copy_(pinned, non_blocking=True)
        result = matmill.matmul(cupy.asarray(b), x)
    assert isinstance(result, cupy.ndarray)
    assert check(cupy.asnumpy(result), b, a).ok


class OnlyInterface:
    """An array of no library we know, with ``__cuda_array_interface__`` alone."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = array.__cuda_array_interface__
        self._array = array


def test_cuda_array_interface_alone(cupy: Any) -> None:
    a, b = _random(0, 60, 50), _random(1, 50, 70)
    x, y = cupy.asarray(a), cupy.asarray(b)
    out = cupy.empty((60, 70), "float32")
    matmill.matmul(OnlyInterface(x), OnlyInterface(y), out=out)
    assert check(cupy.asnumpy(out), a, b).ok
    with pytest.raises(errors.ArgumentError, match="out="):
        matmill.matmul(OnlyInterface(x), OnlyInterface(y))


# -- JAX --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_jax_shapes(jax: Any, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _random(0, *left), _random(1, *right)
    x, y = jax.numpy.asarray(a), jax.numpy.asarray(b)
    result = matmill.matmul(x, y)
    assert isinstance(result, jax.Array)
    assert result.devices() == x.devices()
    verdict = check(np.asarray(result), a, b)
    assert verdict.ok, verdict


def test_jax_results_feed_jax_and_are_freed(jax: Any, device: GPU) -> None:
    rotation = np.linalg.qr(_random(0, 512, 512, dtype="float64"))[0].astype(np.float32)
    start = _random(1, 512, 512)
    x, transpose = jax.numpy.asarray(start), jax.numpy.asarray(rotation)
    expected = start.astype(np.float64)
    for _ in range(20):
        x = matmill.matmul(x, transpose) + 0.25
        expected = expected @ rotation + 0.25
    np.testing.assert_allclose(np.asarray(x), expected, atol=1e-2)
    device.synchronize()


def test_jax_outputs_and_tracers_are_refused(jax: Any) -> None:
    x = jax.numpy.ones((16, 16))
    with pytest.raises(errors.ReadOnlyError, match="JAX"):
        matmill.matmul(x, x, out=x)
    with pytest.raises(errors.MatmillError, match="jit"):
        jax.jit(matmill.matmul)(x, x)
    kept = x.copy()
    x.delete()
    with pytest.raises(errors.ArgumentError, match="a deleted JAX array"):
        matmill.matmul(x, x)
    assert matmill.matmul(kept, kept).shape == (16, 16)


def test_jax_on_the_host_stays_there(jax: Any) -> None:
    host = jax.devices("cpu")[0]
    a, b = _random(0, 20, 30), _random(1, 30, 40)
    result = matmill.matmul(jax.device_put(a, host), jax.device_put(b, host))
    assert result.devices() == {host}
    assert check(np.asarray(result), a, b).ok


def test_the_second_call_with_a_bias_reads_the_new_one(torch: Any) -> None:
    a, b = torch.randn(300, 200, device="cuda"), torch.randn(200, 100, device="cuda")
    for seed in range(3):
        bias = torch.full((100,), float(seed), device="cuda")
        result = matmill.matmul(a, b, bias=bias, activation="relu")
        assert torch.allclose(result, (a @ b + seed).relu(), atol=1e-3)
