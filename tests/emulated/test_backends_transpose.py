"""transpose_add and transpose on the routes through a GPU, without one: see support.fake_gpu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.dispatch import plan_cache
from matmill.dtypes import ELEMENTWISE
from matmill.errors import AliasError
from support.fake_gpu import DeviceArray, FakeGPU, Tensors

Array = NDArray[Any]


def _whole(seed: int, *shape: int, dtype: str) -> Array:
    """Return small whole numbers, whose sums are exact in every type."""
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(ELEMENTWISE[dtype].numpy)


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_sums_of_host_arrays_travel(device: FakeGPU, dtype: str) -> None:
    x, y = _whole(0, 2, 20, 30, dtype=dtype), _whole(1, 30, 20, dtype=dtype)
    expected = (x.swapaxes(1, 2) + y).astype(x.dtype)
    assert matmill.transpose_add(x, y, executor="gpu").tobytes() == expected.tobytes()
    assert device.uploaded == [x.nbytes, y.nbytes]
    out = np.broadcast_to(y, (2, 30, 20)).copy()
    assert matmill.transpose_add(x, out, alpha=0, beta=2, out=out, executor="gpu") is out
    assert (out == 2 * y).all()
    assert device.uploaded[2:] == [out.nbytes]  # what is not read does not travel
    assert matmill.transpose(x[:, ::-1], executor="gpu").tobytes() == x[:, ::-1].swapaxes(1, 2).tobytes()
    assert matmill.transpose_add(x[:, :0], y[:, :0], executor="gpu").shape == (2, 30, 0)
    assert len(device.launches) == 3
    device.uploaded.clear()
    assert (matmill.transpose_add(y, y.T, executor="gpu") == 2 * y.T).all()
    assert device.uploaded == [y.nbytes]


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_sums_of_tensors_stay_in_place(device: FakeGPU, tensors: Tensors, dtype: str) -> None:
    x, y = _whole(0, 20, 31, dtype=dtype), _whole(1, 31, 20, dtype=dtype)
    for turn in range(2):
        result = matmill.transpose_add(tensors(x), tensors(y), alpha=1 + turn, beta=-1)
        assert (result.base == (1 + turn) * x.T - y).all()
    assert tensors.made == [(620, dtype)] * 2
    assert [stream for _, stream in device.launches] == [33, 33]
    assert (matmill.transpose(tensors(x)).base == x.T).all()
    assert (matmill.transpose_add(tensors(x), tensors(y), beta=0).base == x.T).all()
    assert (matmill.transpose_add(tensors(x), tensors(y), alpha=0).base == y).all()
    assert (matmill.transpose_add(tensors(x), tensors(y), alpha=0, beta=3).base == 3 * y).all()
    assert (matmill.transpose_add(tensors(x), tensors(y), alpha=0, beta=0).base == 0).all()
    expected = x.T + y
    target = tensors(y)
    assert matmill.transpose_add(tensors(x), target, out=target) is target
    assert (y == expected).all()
    for _ in range(2):
        with pytest.raises(AliasError, match="overlaps x"):
            matmill.transpose(tensors(x[:, :20]), out=tensors(x[:, :20]))
        with pytest.raises(AliasError, match="overlaps y"):
            matmill.transpose_add(tensors(x[:10, :10]), tensors(y[:10, :10]), out=tensors(y[1:11, :10]))
    assert (device.held, device.orders, device.waits, device.uploaded) == ([], [], 0, [])


def test_what_was_found_of_one_sum_is_not_used_for_another(tensors: Tensors) -> None:
    pool = np.random.default_rng(0).standard_normal(9000).astype(np.float32)
    x, y = pool[:1200].reshape(30, 40), pool[1200:2400].reshape(40, 30)
    before = len(plan_cache.calls)
    cases = (
        (x, y, 1, 1),
        (x, pool[1201:2401].reshape(40, 30), 1, 1),
        (x, y, 1, 0),
        (x, y, 2, 0),
        (x, y, 0, 1),
        (x, y, 0, 2),
        (x, y, 0, 0),
        (y.T, y, 1, 1),
        (x, pool[1200:4800].reshape(40, 90)[:, ::3], 1, 1),
    )
    for left, right, alpha, beta in cases * 2:
        result = matmill.transpose_add(tensors(left), tensors(right), alpha=alpha, beta=beta).base
        np.testing.assert_array_equal(result, np.float32(alpha) * left.T + np.float32(beta) * right)
    assert len(plan_cache.calls) == before + len(cases)


def test_a_sum_that_does_not_read_x_goes_where_x_is(device: FakeGPU) -> None:
    x, y = _whole(0, 20, 30, dtype="int32"), _whole(1, 30, 20, dtype="int32")
    first, second = DeviceArray(device, x), DeviceArray(device, y)
    device.uploaded.clear()
    result: Any = matmill.transpose_add(first, second, alpha=0, beta=2, stream=5)
    assert (result.shape, result.dtype) == ((30, 20), "int32")
    assert [stream for _, stream in device.launches] == [5]
    ((held, _stream),) = device.held
    assert [getattr(owner, "address", None) for owner in held] == [second.buffer.address]
    words = device.memory.allocations[-1].words[4].view(np.int32).reshape(30, 20)
    assert (words == 2 * y).all()
