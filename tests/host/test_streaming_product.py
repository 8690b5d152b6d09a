"""All ways through the buffers give the product, the same bits in every run, and tell how far they are."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.dtypes import ALL, F32, DType
from matmill.ops import inner
from matmill.streaming import StreamPlan, sources, stream_inner
from support.examples import examples
from support.lazy_device import STEPS, LazyDevice
from support.streaming_trial import WAYS, exact, numbers, plan_for, stored, streamed


@examples(150)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 900)),
    dtype=st.sampled_from(list(ALL.values())),
    ways=st.tuples(st.sampled_from(WAYS), st.sampled_from(WAYS)),
    budget=st.integers(10_000, 120_000),
    seed=st.integers(0, 2**32),
)
def test_every_order_and_chunk_gives_the_product(
    sizes: tuple[int, int, int], dtype: DType, ways: tuple[str, str], budget: int, seed: int
) -> None:
    m, n, k = sizes
    e, f = stored(numbers((m, k), dtype), ways[0]), stored(numbers((k, n), dtype, 1), ways[1])
    with mock.patch.object(sources, "_PIECE", 500), mock.patch.object(sources, "_BLOCK", 100):
        result = streamed(e, f, LazyDevice(seed), budget=budget)
    assert result.dtype == dtype.numpy
    assert np.array_equal(result, exact(e, f).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("how", WAYS)
def test_gram_matrices_travel_once(how: str, dtype: DType) -> None:
    e = stored(numbers((7, 800), dtype), how)
    done: list[tuple[int, int]] = []
    result = streamed(e, e.T, progress=lambda *at: done.append(at))
    assert np.array_equal(result, exact(e, e.T).astype(dtype.numpy))
    assert done[-1] == (e.nbytes, e.nbytes)


def test_c_and_the_scalars() -> None:
    e, f, c = numbers((3, 500), F32), numbers((500, 4), F32, 1), numbers((3, 4), F32, 2)
    assert np.array_equal(streamed(e, f, c=c.T.copy().T, alpha=2, beta=-1), 2 * exact(e, f) - c)
    row = np.broadcast_to(c[:1], (3, 4))
    assert np.array_equal(streamed(e, f, c=row, beta=1), exact(e, f) + row)
    nothing = np.full_like(c, np.nan)
    assert np.array_equal(streamed(e, f, c=nothing), exact(e, f))
    e[:] = np.nan
    device = LazyDevice()
    assert np.array_equal(streamed(e, f, device, c=c, alpha=0, beta=3), 3 * c)
    assert device.calls.count("copy_in") == 1  # C alone


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0)])
def test_nothing_to_compute_asks_nothing_of_the_device(m: int, n: int) -> None:
    device = LazyDevice()
    plan = StreamPlan(m, n, 100, F32, gram=False, e_along_k=True, f_along_k=True, length=32)
    result = stream_inner(device, plan, STEPS, np.ones((m, 100), np.float32), np.ones((100, n), np.float32))
    assert result.shape == (m, n)
    assert device.calls == []


@pytest.mark.parametrize("gram", [False, True])
def test_long_narrow_products_of_host_arrays_are_streamed(gram: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = LazyDevice()
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: None)
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", staticmethod(lambda _index=0: mock.Mock(arch=None)))
    monkeypatch.setattr("matmill.dispatch.backends.OnGPU", lambda _gpu: used)
    monkeypatch.setattr(used, "free_bytes", lambda: 100_000, raising=False)
    monkeypatch.setattr("matmill.dispatch.backends.inner_steps", lambda _arch: STEPS)
    monkeypatch.setattr("matmill.dispatch.backends.CHUNK", 40_000)
    monkeypatch.setattr("matmill.streaming.plan._LEAST_CHUNK", 1024)
    e = numbers((4, 9000), F32)
    f = e.T if gram else numbers((9000, 3), F32, 1)
    out = np.full((4, 4 if gram else 3), np.nan, np.float32)
    told: list[tuple[int, int]] = []
    result = inner(e, f, out=out, executor="gpu", progress=lambda done, of: told.append((done, of)))
    assert result is out
    assert np.array_equal(out, exact(e, f))
    assert told[-1] == (e.nbytes + (0 if gram else f.nbytes),) * 2
    assert used.rests()


def test_two_runs_give_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    e, f = rng.standard_normal((5, 4000), np.float32), rng.standard_normal((4000, 5), np.float32)
    first, second = (streamed(e, f, LazyDevice(seed)) for seed in (1, 2))
    assert first.tobytes() == second.tobytes()


def test_progress_counts_every_byte() -> None:
    e, f = numbers((3, 2000), F32), numbers((2000, 2), F32)
    told: list[tuple[int, int]] = []
    streamed(e, f, progress=lambda done, total: told.append((done, total)))
    whole = e.nbytes + f.nbytes
    assert told[0] == (0, whole)
    assert told[-1] == (whole, whole)
    assert told == sorted(set(told))
    assert len(told) == plan_for(e, f, 60_000).count + 1
