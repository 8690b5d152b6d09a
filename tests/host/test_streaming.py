"""Streaming: how products are cut, that all ways through the buffers give the product, and every way to fail."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from host.lazy_device import CLEANUP, STEPS, LazyDevice, readers
from matmill.compile import Binary
from matmill.dtypes import ALL, F32, DType
from matmill.errors import LaunchError, TruncatedFileError
from matmill.execute import Launch
from matmill.ops import inner
from matmill.streaming import BUDGET, BUFFERS, OnGPU, StreamPlan, plan_stream, sources, stream_inner

Array = NDArray[Any]
MIB = 1 << 20
DESCRIPTORS = Path("/proc/self/fd")


# The plan

SIZES = st.integers(1, 128)
ORDERS = st.sampled_from([(1, 1000), (1000, 1), (-1, 50), (0, 1), (1, 0)])


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.tuples(SIZES, SIZES, st.integers(0, 10**10)),
    dtype=st.sampled_from(list(ALL.values())),
    gram=st.booleans(),
    orders=st.tuples(ORDERS, ORDERS),
    budget=st.integers(3 * 256 * 128, 2**31),
)
def test_chunks_cover_k_once_and_fit(
    sizes: tuple[int, int, int],
    dtype: DType,
    gram: bool,
    orders: tuple[tuple[int, int], tuple[int, int]],
    budget: int,
) -> None:
    m, n, k = sizes
    n = m if gram else n
    plan = plan_stream(m, n, k, dtype, e_strides=orders[0], f_strides=orders[1], gram=gram, budget=budget)
    count, size = plan.count, dtype.itemsize
    assert (count == 0) == (k == 0)
    assert BUFFERS * plan.buffer_bytes <= budget
    assert plan.length * size % 128 == 0
    ends = [plan.chunk(index) for index in {0, count // 2, count - 1} if 0 <= index < count]
    assert not count or (plan.chunk(0).start, plan.chunk(count - 1).stop) == (0, k)
    assert all(plan.chunk(index).stop == plan.chunk(index + 1).start for index in range(min(count - 1, 5)))
    for chunk in ends:
        length = chunk.stop - chunk.start
        assert 0 < length <= plan.length
        assert chunk.nbytes <= plan.buffer_bytes
        problem, end = chunk.problem, 0
        assert (problem.m, problem.n, problem.k, problem.gram) == (m, n, length, gram)
        strides = (problem.a_row_col, problem.b_row_col[::-1])
        aligns = ((problem.a_align, problem.a_start_align), (problem.b_align, problem.b_start_align))
        for packed, (line, along), (align, start) in zip((chunk.e, chunk.f), strides, aligns, strict=True):
            if packed is None:
                assert gram
                continue
            assert packed.offset >= end
            assert start == 16
            assert packed.offset % 16 == 0
            assert (line, along) == ((packed.pitch, 1) if packed.along_k else (1, packed.pitch))
            assert packed.pitch * size % align == 0
            assert align == 16 or not packed.along_k
            assert packed.pitch >= packed.shape[1]
            end = packed.offset + packed.shape[0] * packed.pitch * size
        assert end == chunk.nbytes


def test_the_plan_does_not_depend_on_memory_while_there_is_enough() -> None:
    plans = {plan_stream(3, 3, 10**9, F32, free=free) for free in (None, BUDGET, 2 * BUDGET, 2**40)}
    assert len(plans) == 1
    (plan,) = plans
    assert 16 * MIB <= plan.buffer_bytes <= 256 * MIB


def test_where_memory_is_short_chunks_are_halved_and_then_refused() -> None:
    halved = plan_stream(3, 3, 10**9, F32, free=BUDGET - 1)
    assert halved == plan_stream(3, 3, 10**9, F32, free=BUDGET // 2)
    assert halved == plan_stream(3, 3, 10**9, F32, budget=BUDGET // 2)
    with pytest.raises(LaunchError, match=rf"got {MIB} bytes of GPU memory.*at least {3 * MIB}"):
        plan_stream(3, 3, 10**9, F32, free=MIB)
    with pytest.raises(LaunchError, match="got 0 bytes"):
        plan_stream(3, 3, 10**9, F32, free=0)
    with pytest.raises(LaunchError, match="got 1000 bytes"):
        plan_stream(3, 3, 10**9, F32, budget=1000)


# The product


def numbers(shape: tuple[int, int], dtype: DType, seed: int = 0) -> Array:
    """Whole numbers so small that their sums are exact."""
    found: Array = np.random.default_rng([seed, *shape]).integers(-2, 3, shape).astype(dtype.numpy)
    return found


def stored(values: Array, how: str, folder: Path | None = None) -> Array:
    """The same matrix in another order, or from a file."""
    if how.startswith("file"):
        assert folder is not None
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        inner = stored(values, how.removeprefix("file "))
        # ml_dtypes' bfloat16 has no name in a .npy file.
        np.save(path, inner.view(np.uint16) if values.itemsize == 2 else inner)
        mapped: Array = np.load(path, mmap_mode="r")
        return mapped.view(values.dtype)
    if how == "columns":
        return np.asfortranarray(values)
    if how == "wide":
        rows, columns = values.shape
        room = np.full((rows, columns + 7), 99, values.dtype)
        room[:, 3 : 3 + columns] = values
        return room[:, 3 : 3 + columns]
    if how == "backwards":
        return np.ascontiguousarray(values[::-1, ::-1])[::-1, ::-1]
    if how == "sparse":
        room = np.full((2 * values.shape[0], 3 * values.shape[1]), 99, values.dtype)
        room[::2, ::3] = values
        return room[::2, ::3]
    assert how == "rows"
    return np.ascontiguousarray(values)


def streamed(e: Array, f: Array, device: LazyDevice | None = None, *, budget: int = 60_000, **options: Any) -> Array:
    """The product through buffers of ``budget`` bytes in all."""
    used = device or LazyDevice()
    result = stream_inner(used, plan_for(e, f, budget), STEPS, e, f, **options)
    assert used.rests()
    return result


def plan_for(e: Array, f: Array, budget: int) -> StreamPlan:
    """The plan for E and F as they lie; a Gram matrix where both are one memory."""
    dtype = next(one for one in ALL.values() if one.numpy == e.dtype)
    gram = f.base is not None and f.T.strides == e.strides and f.ctypes.data == e.ctypes.data
    return plan_stream(
        e.shape[0],
        f.shape[1],
        e.shape[1],
        dtype,
        e_strides=(e.strides[0], e.strides[1]),
        f_strides=(f.strides[0], f.strides[1]),
        gram=gram,
        budget=budget,
    )


def exact(e: Array, f: Array) -> NDArray[np.float64]:
    """The product of whole numbers."""
    return e.astype(np.float64) @ f.astype(np.float64)


WAYS = ["rows", "columns", "wide", "backwards", "sparse"]


@settings(max_examples=150, deadline=None)
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
        found = streamed(e, f, LazyDevice(seed), budget=budget)
    assert found.dtype == dtype.numpy
    assert np.array_equal(found, exact(e, f).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("how", WAYS)
def test_gram_matrices_travel_once(how: str, dtype: DType) -> None:
    e = stored(numbers((7, 800), dtype), how)
    done: list[tuple[int, int]] = []
    found = streamed(e, e.T, progress=lambda *at: done.append(at))
    assert np.array_equal(found, exact(e, e.T).astype(dtype.numpy))
    assert done[-1] == (e.nbytes, e.nbytes)


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("run", [1, 1 << 30], ids=["read", "copied"])
@pytest.mark.parametrize("how", ["file rows", "file columns"])
def test_files_are_read_or_copied(
    how: str, run: int, dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_RUN", run)
    monkeypatch.setattr(sources, "_PIECE", 1000)
    preadv = mock.Mock(wraps=os.preadv)
    monkeypatch.setattr(os, "preadv", preadv)
    files = len(list(DESCRIPTORS.iterdir()))
    e, f = stored(numbers((5, 2000), dtype), how, tmp_path), stored(numbers((2000, 3), dtype, 1), how, tmp_path)
    found = streamed(e, f)
    assert np.array_equal(found, exact(e, f).astype(dtype.numpy))
    # One of the two is in one run per chunk, whatever a run must have.
    assert preadv.called
    del e, f
    assert len(list(DESCRIPTORS.iterdir())) == files


@pytest.mark.parametrize("how", ["sliced", "strided", "reversed", "broadcast", "as_strided"])
def test_parts_of_files(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 8)
    whole = stored(numbers((20, 3000), F32), "file rows", tmp_path)
    parts = {
        "sliced": whole[3:8, 100:2900],
        "strided": whole[::5, ::2],
        "reversed": whole[:4, ::-1],
        "broadcast": np.broadcast_to(whole[2], (4, 3000)),
        "as_strided": np.lib.stride_tricks.as_strided(whole, (4, 2000), (4, 4)),
    }
    e = parts[how]
    f = numbers((e.shape[1], 2), F32, 1)
    assert sources._MappedFile.behind(e, "e") is not None
    assert np.array_equal(streamed(e, f), exact(e, f))


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
    found = stream_inner(device, plan, STEPS, np.ones((m, 100), np.float32), np.ones((100, n), np.float32))
    assert found.shape == (m, n)
    assert device.calls == []


@pytest.mark.parametrize("gram", [False, True])
def test_long_narrow_products_of_host_arrays_are_streamed(gram: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    used = LazyDevice()
    monkeypatch.setattr("matmill.gpu.unavailable", lambda: None)
    monkeypatch.setattr("matmill.gpu.GPU.get", staticmethod(lambda _index=0: mock.Mock(arch=None)))
    monkeypatch.setattr("matmill.routes.OnGPU", lambda _gpu: used)
    monkeypatch.setattr(used, "free_bytes", lambda: 100_000, raising=False)
    monkeypatch.setattr("matmill.routes.inner_steps", lambda _arch: STEPS)
    monkeypatch.setattr("matmill.routes.CHUNK", 40_000)
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


def test_memory_on_the_host_is_bounded(tmp_path: Path) -> None:
    shape, budget = (4, 2 * MIB), 3 * MIB
    path = tmp_path / "long.npy"
    e = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    e[:] = 1
    device = LazyDevice()
    tracemalloc.start()
    found = streamed(e, e.T, device, budget=budget)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(found, np.full((4, 4), shape[1]))
    assert device.most_pinned <= budget + 2 * found.nbytes
    # The stand-in keeps the device's buffers on the host too, and its product makes copies of one chunk.
    assert most < 3 * budget + MIB < e.nbytes


# Failures


class Refused(Exception):  # noqa: N818 — any exception at all
    """What a test raises."""


FAILURES = [KeyboardInterrupt(), LaunchError(argument="GPU 0", got="memory", wanted="less", fix="Wait."), Refused()]


def trial() -> tuple[Array, Array, dict[str, Any]]:
    """A product of several chunks, with C."""
    return (numbers((3, 300), F32), numbers((300, 2), F32, 1), {"c": numbers((3, 2), F32, 2), "beta": 1.0})


def _steps_that_may_fail() -> list[int]:
    e, f, options = trial()
    device = LazyDevice()
    streamed(e, f, device, budget=2500, **options)
    assert plan_for(e, f, 2500).count > BUFFERS + 2
    return [number for number, name in enumerate(device.calls) if name not in CLEANUP]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("sticky", [False, True])
def test_a_failure_of_any_step_is_raised_and_all_is_given_back(failure: BaseException, sticky: bool) -> None:
    e, f, options = trial()
    for number in _steps_that_may_fail():
        device = LazyDevice(number, fail_at=number, failure=failure, sticky=sticky)
        with pytest.raises(type(failure)) as raised:
            streamed(e, f, device, budget=2500, **options)
        assert raised.value is failure
        assert not readers()
        assert sticky or device.rests(), device.calls[number]


@pytest.mark.parametrize("number", range(3))
def test_a_reader_that_fails_stops_the_product(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    e, f, _ = trial()
    copy, lock, calls = sources._copy, threading.Lock(), iter(range(10**6))

    def fails(target: Array, part: Array) -> None:
        with lock:
            now = next(calls)
        if now == 4 * number:
            raise Refused
        copy(target, part)

    monkeypatch.setattr(sources, "_copy", fails)
    device = LazyDevice()
    with pytest.raises(Refused):
        streamed(e, f, device, budget=2500)
    assert device.rests()


@pytest.mark.parametrize("at", [0, 2])
def test_what_progress_raises_stops_the_product(at: int) -> None:
    e, f, _ = trial()
    device = LazyDevice()
    told: list[int] = []

    def progress(done: int, _total: int) -> None:
        told.append(done)
        if len(told) > at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamed(e, f, device, budget=2500, progress=progress)
    assert device.rests()


def test_an_interrupt_while_threads_are_joined_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    e, f, _ = trial()
    copy, started, release = sources._copy, threading.Event(), threading.Event()

    def slow(target: Array, part: Array) -> None:
        started.set()
        release.wait(30)
        copy(target, part)

    def interrupt() -> None:
        started.wait(30)
        for _ in range(3):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        release.set()

    monkeypatch.setattr(sources, "_copy", slow)
    device = LazyDevice()
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        streamed(e, f, device, budget=2500)
    other.join()
    assert device.rests()


# Files that change


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """E (4, 20000) of float32, row after row."""
    path = tmp_path / "e.npy"
    np.save(path, numbers((4, 20_000), F32))
    return path


def _half(path: Path) -> Callable[[int, int], None]:
    def cut(_done: int, _total: int) -> None:
        os.truncate(path, path.stat().st_size // 2)

    return cut


@pytest.mark.parametrize("how", ["read", "copied", "unknown"])
def test_a_file_cut_short_is_an_error_and_not_the_end(how: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1 if how == "read" else 1 << 30)
    if how == "unknown":
        monkeypatch.setattr(sources, "_MAPS", file.with_name("no such file"))
    e = np.load(file, mmap_mode="r")
    whole = file.stat().st_size
    device = LazyDevice()
    with pytest.raises(TruncatedFileError) as raised:
        streamed(e, numbers((20_000, 2), F32), device, progress=_half(file))
    said = str(raised.value)
    assert said.startswith(f"e: got {file} with {whole // 2} bytes; wanted the ")
    assert whole // 2 < int(said.partition("wanted the ")[2].partition(" ")[0]) <= whole
    assert isinstance(raised.value, OSError)
    assert device.rests()


def test_a_file_cut_short_before_it_is_opened(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e = np.load(file, mmap_mode="r")
    os.truncate(file, 200)
    with pytest.raises(TruncatedFileError, match="with 200 bytes"):
        streamed(e, numbers((20_000, 2), F32))


def test_a_file_replaced_by_another_is_still_the_one_that_was_mapped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode="r"), numbers((20_000, 2), F32)
    wanted = exact(np.array(e), f)
    for other in (np.zeros((4, 20_000), np.float32), np.zeros(3, np.float32)):
        np.save(file.with_name("new.npy"), other)
        file.with_name("new.npy").replace(file)
        assert np.array_equal(streamed(e, f), wanted)
    file.unlink()
    assert np.array_equal(streamed(e, f), wanted)


def test_a_file_replaced_while_it_is_being_opened(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode="r"), numbers((20_000, 2), F32)
    wanted = exact(np.array(e), f)
    np.save(file.with_name("new.npy"), np.zeros_like(e))
    real = os.open

    def late(path: str, flags: int) -> int:
        file.with_name("new.npy").replace(file)
        return real(path, flags)

    monkeypatch.setattr(os, "open", late)
    assert np.array_equal(streamed(e, f), wanted)
    assert not file.with_name("new.npy").exists()


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_that_are_not_in_the_file_yet_count(mode: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode=mode), numbers((20_000, 2), F32)
    e[:, ::7] += 1
    assert np.array_equal(streamed(e, f), exact(np.array(e), f))


def test_errors_of_the_disk_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int, _into: object, _position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sources, "_RUN", 1)
    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(OSError, match="Input/output error") as raised:
        streamed(np.load(file, mmap_mode="r"), numbers((20_000, 2), F32))
    assert raised.value.filename == str(file)


# The driver's calls


class HostDriver:
    """A GPU whose driver works at once, in host memory."""

    index = 0

    def __init__(self, refuses: str = "") -> None:
        self.live: dict[int, Array] = {}
        self.objects: set[object] = set()
        self.made = 0
        self.device = LazyDevice()
        self._refuses = refuses

    def call(self, name: str, *args: Any) -> Any:
        """The driver's functions that streaming uses, with their arguments in the driver's order."""
        if name == self._refuses:
            raise LaunchError(argument="GPU 0", got=f"CUDA_ERROR_OUT_OF_MEMORY from {name}", wanted="success", fix=".")
        if name in {"cuMemAlloc", "cuMemHostAlloc"}:
            assert args[1:] == ((0,) if name == "cuMemHostAlloc" else ())
            room = np.full(args[0] + 256, 0xFF, np.uint8)
            memory = room[-room.ctypes.data % 256 :][: args[0]]
            self.live[memory.ctypes.data] = memory
            return memory.ctypes.data
        if name in {"cuMemFreeHost", "cuMemFree"}:
            del self.live[args[0]]
        elif name in {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync"}:
            target, source, nbytes, stream = args
            assert stream in self.objects
            ctypes.memmove(target, source, nbytes)
        elif name == "cuMemsetD8Async":
            assert args[3] in self.objects
            ctypes.memset(*args[:3])
        elif name in {"cuStreamCreate", "cuEventCreate"}:
            assert args == ((1,) if name == "cuStreamCreate" else (2,))
            self.made += 1
            self.objects.add(self.made)
            return self.made
        elif name in {"cuStreamDestroy", "cuEventDestroy"}:
            self.objects.remove(args[0])
        elif name == "cuMemGetInfo":
            return 12345
        else:
            wanted = {"cuEventRecord": 2, "cuStreamWaitEvent": 3, "cuEventSynchronize": 1, "cuStreamSynchronize": 1}
            assert len(args) == wanted[name]
            assert args[0] in self.objects
        return None

    def free(self, address: int) -> None:
        """As the executor has it."""
        self.call("cuMemFree", address)

    def launch(self, _binary: Binary, launch: Launch, stream: object) -> None:
        """At once."""
        assert stream in self.objects
        self.device._memory = self.live
        stands_in = self.device.stream()
        self.device.launch(_binary, launch, stands_in)
        self.device.drain(stands_in)


def test_the_driver_is_called_as_it_wants_to_be() -> None:
    driver = HostDriver()
    e, f, c = numbers((3, 700), F32), numbers((700, 2), F32, 1), numbers((3, 2), F32, 2)
    device = OnGPU(driver)  # type: ignore[arg-type]  # stands in for the GPU
    found = stream_inner(device, plan_for(e, f, 10_000), STEPS, e, f, c=c, beta=1)
    assert np.array_equal(found, exact(e, f) + c)
    assert driver.live == {}
    assert driver.objects == set()
    assert device.free_bytes() == 12345


@pytest.mark.parametrize(
    ("refuses", "kind"), [("cuMemHostAlloc", "page-locked host memory"), ("cuMemAlloc", "memory of GPU 0")]
)
def test_memory_that_is_not_there_is_said_in_words(refuses: str, kind: str) -> None:
    driver = HostDriver(refuses)
    e, f = numbers((3, 700), F32), numbers((700, 2), F32, 1)
    with pytest.raises(LaunchError, match=f"no {kind}.*OUT_OF_MEMORY.*bytes of it.*executor='cpu'"):
        stream_inner(OnGPU(driver), plan_for(e, f, 10_000), STEPS, e, f)  # type: ignore[arg-type]  # as above
    assert driver.live == {}
    assert driver.objects == set()
