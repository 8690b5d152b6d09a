"""einsum's routes through a GPU, without one: arrays on it, ones beside them, plans that are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import matmill
from matmill import contraction
from matmill.dispatch import plan_cache
from support.fake_gpu import DeviceArray, FakeGPU, Tensors


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget ones in the memory of the GPU of another test."""
    contraction._one.cache_clear()
    yield
    contraction._one.cache_clear()


def _random(*shape: int) -> Any:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


_CASES: dict[str, tuple[str, list[tuple[int, ...]], int]] = {
    "columns of the first": ("ij,kj->ki", [(5, 6), (7, 6)], 1),
    "batch": ("bij,bkj->ibk", [(3, 5, 6), (3, 7, 6)], 1),
    "copy": ("abi,baj->ij", [(4, 3, 5), (3, 4, 6)], 2),
    "sum": ("ij,jk->k", [(5, 6), (6, 7)], 2),
    "trace": ("iij->j", [(5, 5, 6)], 1),
}


@pytest.mark.parametrize("case", _CASES)
def test_tensors_stay_in_place(case: str, device: FakeGPU, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(stream=nullcontext, ExternalStream=lambda handle, **_device: handle)
    monkeypatch.setattr(sys.modules["torch"], "cuda", cuda, raising=False)
    text, shapes, launches = _CASES[case]
    arrays = [_random(*shape) for shape in shapes]
    expected = np.einsum(text, *arrays)
    for turn in (1, 2):
        result = matmill.einsum(text, *map(tensors, arrays))
        assert np.allclose(result.base, expected, rtol=1e-4, atol=1e-4)
        assert len(device.launches) == turn * launches
    assert len(plan_cache.calls) == launches
    assert device.uploaded == [4] * (case in {"sum", "trace"})
    out = np.full(expected.shape[::-1], np.nan, np.float32).T
    target = tensors(out)
    assert matmill.einsum(text, *map(tensors, arrays), out=target, stream=5) is target
    assert np.allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert {stream for _, stream in device.launches} == {33, 5}


def test_host_arrays_travel(device: FakeGPU) -> None:
    a, b = _random(4, 5, 6), _random(4, 6)
    assert np.allclose(matmill.einsum("bij,bj->ib", a, b), np.einsum("bij,bj->ib", a, b), rtol=1e-4, atol=1e-4)
    assert np.allclose(matmill.einsum("bij->j", a), a.sum((0, 1)), rtol=1e-4, atol=1e-4)
    assert device.uploaded[:2] == [a.nbytes, b.nbytes]


def test_a_library_with_dlpack_alone_has_copies_for_views(device: FakeGPU) -> None:
    a = _random(5, 6, 7)
    result = matmill.einsum("ijk->kij", DeviceArray(device, a))
    assert result.shape == (7, 5, 6)
    assert len(device.launches) == 1
    assert device.launches[0][0].entry.startswith("transpose")
