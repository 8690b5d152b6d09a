"""Streaming on a GPU: the same product as in one piece, within memory, with errors that leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.dtypes import ALL, F32, DType
from matmill.errors import LaunchError, TruncatedFileError
from matmill.runtime.gpu import GPU
from matmill.streaming import OnGPU, inner_steps, plan_stream, stream_inner
from support.lazy_device import readers
from support.streaming_trial import exact, numbers, plan_for, stored

Array = NDArray[Any]
MIB = 1 << 20


def _streamed(device: GPU, e: Array, f: Array, budget: int, **options: Any) -> Array:
    result: Array = stream_inner(OnGPU(device), plan_for(e, f, budget), inner_steps(device.arch), e, f, **options)
    return result


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("ways", [("rows", "rows"), ("columns", "columns"), ("wide", "backwards"), ("rows", "columns")])
def test_64_mib_in_many_chunks(ways: tuple[str, str], dtype: DType, device: GPU) -> None:
    k = 64 * MIB // (8 * dtype.itemsize)
    e, f = stored(numbers((5, k), dtype), ways[0]), stored(numbers((k, 3), dtype, 1), ways[1])
    budget = 6 * MIB
    assert plan_for(e, f, budget).count > 30
    result = _streamed(device, e, f, budget)
    assert np.array_equal(result, exact(e, f).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("how", ["rows", "columns"])
def test_gram_matrices_from_a_file(how: str, dtype: DType, device: GPU, tmp_path: Path) -> None:
    e = stored(numbers((9, 500_000), dtype), f"file {how}", tmp_path)
    result = _streamed(device, e, e.T, 3 * MIB)
    assert np.array_equal(result, exact(e, e.T).astype(dtype.numpy))


def test_the_bits_do_not_depend_on_the_run(device: GPU) -> None:
    rng = np.random.default_rng(5)
    e, f = rng.standard_normal((7, 10**6), np.float32), rng.standard_normal((10**6, 7), np.float32)
    assert len({_streamed(device, e, f, 8 * MIB).tobytes() for _ in range(5)}) == 1


@pytest.mark.alone
def test_memory_of_the_gpu_is_given_back_after_every_end(device: GPU, tmp_path: Path) -> None:
    e = stored(numbers((4, 4 * MIB), F32), "file rows", tmp_path)
    f = numbers((4 * MIB, 4), F32, 1)
    _streamed(device, e, f, 48 * MIB)
    free = OnGPU(device).free_bytes()
    _streamed(device, e, f, 48 * MIB)

    def interrupted(done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _streamed(device, e, f, 48 * MIB, progress=interrupted)
    path = next(tmp_path.iterdir())
    with pytest.raises(TruncatedFileError):
        _streamed(device, e, f, 48 * MIB, progress=lambda _done, _total: os.truncate(path, 10 * MIB))
    assert OnGPU(device).free_bytes() >= free - 2 * MIB  # the driver keeps small pools
    assert not readers()


@pytest.mark.alone
def test_buffers_beyond_the_memory_are_refused_in_words(device: GPU) -> None:
    k = 400 * MIB
    one = np.broadcast_to(np.float32(1), (1, k))
    with device.empty(OnGPU(device).free_bytes() - 96 * MIB):
        plan = plan_stream(1, 1, k, F32)
        with pytest.raises(LaunchError, match="no memory of GPU 0"):
            stream_inner(OnGPU(device), plan, inner_steps(device.arch), one, one.T)
        fitting = plan_stream(1, 1, k, F32, free=OnGPU(device).free_bytes() // 2)
        assert fitting.count > plan.count
        result = stream_inner(OnGPU(device), fitting, inner_steps(device.arch), one, one.T)
    assert result[0, 0] == k


def test_the_default_plan_streams_what_is_larger_than_a_chunk(device: GPU) -> None:
    k = 40 * MIB
    plan = plan_stream(1, 1, k, F32, free=OnGPU(device).free_bytes())
    one = np.broadcast_to(np.float32(1), (1, k))
    told: list[int] = []
    result = stream_inner(
        OnGPU(device), plan, inner_steps(device.arch), one, one.T, progress=lambda done, _total: told.append(done)
    )
    assert len(told) == plan.count + 1 > 5
    assert result[0, 0] == k
