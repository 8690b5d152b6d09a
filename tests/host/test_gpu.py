"""The CUDA executor as far as it goes without CUDA: reasons against a GPU, recognising one, arguments and streams."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from matmill import arch
from matmill.choose import choose
from matmill.errors import ContextLostError, LaunchError
from matmill.jit.compile import Binary, Resources
from matmill.launch import Launch, Pointer
from matmill.problem import Gemm
from matmill.runtime import gpu
from matmill.runtime.memory import Allocation
from support.launch_frames import read_launch


class FakeLibrary:
    """The driver's C library as ctypes sees it."""

    def __init__(self, *, init: int = 0, count: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        self.init, self.count, self.capability = init, count, capability

    def cuInit(self, _flags: int) -> int:  # noqa: N802 — the driver's name
        """Start, or say why not."""
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 — the driver's name
        """Say how many GPUs."""
        count._obj.value = self.count
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _device: int) -> int:  # noqa: N802 — the driver's name
        """Return major and minor."""
        value._obj.value = self.capability[attribute - 75]
        return 0

    def cuGetErrorString(self, _status: int, text: Any) -> int:  # noqa: N802 — the driver's name
        """Return the driver's words."""
        text._obj.value = b"CUDA driver version is insufficient"
        return 0


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (FakeLibrary(), None),
        (FakeLibrary(init=35), "does not start: CUDA driver version is insufficient (CUresult 35)"),
        (FakeLibrary(count=0), "the NVIDIA driver sees no GPU"),
        (FakeLibrary(capability=(6, 1)), "compute capability 6.1, and the compiler starts at 7.5"),
        (None, "no NVIDIA driver is installed"),
    ],
)
def test_unavailable(monkeypatch: pytest.MonkeyPatch, library: FakeLibrary | None, reason: str | None) -> None:
    def load(_name: str) -> FakeLibrary:
        if library is None:
            raise OSError("not found")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    result = gpu.unavailable.__wrapped__()
    assert result is None if reason is None else reason in (result or "")


class Numbers:
    """Any attribute of an enumeration is its own name without the prefix."""

    def __getattr__(self, name: str) -> str:
        return name.removeprefix("CU_DEVICE_ATTRIBUTE_")


def _gpu(name: str, **facts: int) -> gpu.GPU:
    known = {
        "COMPUTE_CAPABILITY_MAJOR": 9,
        "COMPUTE_CAPABILITY_MINOR": 0,
        "MULTIPROCESSOR_COUNT": 132,
        "CLOCK_RATE": 1_980_000,
        "MEMORY_CLOCK_RATE": 3_201_000,
        "GLOBAL_MEMORY_BUS_WIDTH": 6144,
        **facts,
    }
    fine = SimpleNamespace(value=0)
    device = object.__new__(gpu.GPU)
    device._device = 0
    device._driver = SimpleNamespace(
        CUdevice_attribute=Numbers(),
        cuDeviceGetAttribute=lambda attribute, _device: (fine, known.get(attribute, 4096)),
        cuDeviceGetName=lambda _size, _device: (fine, name.encode() + b"\0\0\0"),
    )
    return device


def test_known_models_have_the_data_sheets_figures() -> None:
    assert _gpu("NVIDIA H200")._recognise() == arch.get("h200")


def test_a_known_model_with_another_memory() -> None:
    facts = {"COMPUTE_CAPABILITY_MAJOR": 8, "MULTIPROCESSOR_COUNT": 108}
    big = _gpu("NVIDIA A100-SXM4-80GB", MEMORY_CLOCK_RATE=1_593_000, GLOBAL_MEMORY_BUS_WIDTH=5120, **facts)._recognise()
    assert (big.name, big.fp32_flops) == ("a100", arch.get("a100").fp32_flops)
    assert big.dram_bytes_per_s == pytest.approx(2039e9, rel=1e-3)


def test_unknown_models_are_computed_from_their_attributes() -> None:
    result = _gpu("NVIDIA H100 PCIe", MULTIPROCESSOR_COUNT=114, CLOCK_RATE=1_755_000)._recognise()
    assert (result.name, result.title, result.sms) == ("nvidiah100pcie", "NVIDIA H100 PCIe", 114)
    assert result.fp32_flops == pytest.approx(51.2e12, rel=1e-2)
    assert result.target == "sm_90a"


def test_unknown_models_without_clocks_have_rates_that_can_be_divided_by() -> None:
    result = _gpu("NVIDIA GB10", CLOCK_RATE=0, MEMORY_CLOCK_RATE=0)._recognise()
    assert result.boost_hz == min(known.boost_hz for known in arch.ARCHES.values())
    assert result.dram_bytes_per_s == min(known.dram_bytes_per_s for known in arch.ARCHES.values())
    assert min(result.fp32_flops, result.fp64_flops) > 0
    like = arch.get("h200")
    usable = replace(like, boost_hz=result.boost_hz, dram_bytes_per_s=result.dram_bytes_per_s)
    assert choose(Gemm(3, 3, 10**6), usable).predicted_seconds > 0


class Driver:
    """As much of the bindings as errors and contexts need; calls are noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @staticmethod
    def CUresult(status: int) -> SimpleNamespace:  # noqa: N802 — the driver's name
        """Return the status with its name; one that is newer than the bindings is refused, as an enumeration does."""
        if status > 999:
            raise ValueError(status)
        return SimpleNamespace(value=status, name="CUDA_ERROR_INVALID_VALUE")

    def cuGetErrorString(self, _status: object) -> tuple[object, bytes]:  # noqa: N802 — the driver's name
        """Return the driver's words."""
        return None, b"invalid argument"

    def cuCtxPushCurrent(self, _context: object) -> tuple[SimpleNamespace]:  # noqa: N802 — the driver's name
        """Make it current."""
        self.calls.append("push")
        return (SimpleNamespace(value=0),)

    def cuKernelGetFunction(self, kernel: int) -> tuple[SimpleNamespace, int]:  # noqa: N802 — the driver's name
        """Return the kernel's function in the current context."""
        return SimpleNamespace(value=0), kernel + 1000

    def cuCtxPopCurrent(self) -> None:  # noqa: N802 — the driver's name
        """Undo that."""
        self.calls.append("pop")


LAUNCH = Launch("toy", "scale", (3, 1, 1), (64, 1, 1), (Pointer("x", 4096), np.int32(5)), dynamic_shared=512)


def _launching(status: int, context: int) -> tuple[gpu.GPU, Driver, list[Any]]:
    """Return a GPU with context 77 on a thread whose context is ``context``, and what it launches.

    As an H200's driver does, this one refuses a function where there is no context, or another one.
    """
    device, driver, seen = object.__new__(gpu.GPU), Driver(), []

    def enqueue(config: int, function: int, parameters: int, extra: None) -> int:
        if context != 77 and driver.calls != ["push"]:
            return 400 if context else 201
        seen.append((function, extra, *read_launch(config, parameters, LAUNCH)))
        return status

    def current(cell: int) -> int:
        ctypes.c_void_p.from_address(cell).value = context
        return 0

    facts: dict[str, Any] = {
        "last": None,
        "index": 0,
        "arch": arch.get("h200"),
        "enqueue": enqueue,
        "function": lambda _binary, _launch: 99,
        "_driver": driver,
        "_prepared": {},
        "_loading": threading.RLock(),
        "kept": {},
        "_current": current,
        "_cell": gpu._Cell(),
        "_context": None,
        "_context_address": 77,
    }
    for name, value in facts.items():
        setattr(device, name, value)
    return device, driver, seen


BINARY = Binary("toy", "scale", "sm_90a", b"cubin", "ptx", Resources(32, 0, 0, 0, 1024))


@pytest.mark.parametrize(("context", "around"), [(77, []), (0, ["push", "pop"]), (5, ["push", "pop"])])
def test_a_launch_reaches_the_driver_in_the_gpus_own_context(context: int, around: list[str]) -> None:
    device, driver, seen = _launching(0, context)
    device.launch(BINARY, LAUNCH, stream=9)
    assert seen == [(99, None, LAUNCH, 9)]
    assert driver.calls == around
    assert device.last is not None
    assert device.last.entry == "scale"


@pytest.mark.parametrize(
    ("status", "words", "tries"),
    [
        (1, "CUDA_ERROR_INVALID_VALUE: invalid argument", 1),
        (1234, "CUresult 1234", 1),
        (400, "CUDA_ERROR_INVALID_VALUE: invalid argument", 2),  # a stream that is none
    ],
)
@pytest.mark.parametrize("context", [0, 77])
def test_a_launch_that_the_driver_refuses_names_itself(status: int, words: str, tries: int, context: int) -> None:
    device, driver, seen = _launching(status, context)
    with pytest.raises(LaunchError, match=rf"toy<<<grid \(3, 1, 1\).*{words}"):
        device.launch(BINARY, LAUNCH)
    assert driver.calls == ([] if context else ["push", "pop"])
    assert len(seen) == (tries if context else 1)
    assert device.last is None


@pytest.mark.parametrize("status", [700, 716, 719])
def test_a_lost_context_is_told_with_what_to_do_and_finalisers_are_silent(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    device, driver, _ = _launching(status, 77)
    freed: list[int] = []

    def free(address: int) -> tuple[SimpleNamespace]:
        freed.append(address)
        return (SimpleNamespace(value=status),)

    driver.cuMemFree = free  # type: ignore[attr-defined] # of this driver alone
    driver.cuMemAlloc = lambda nbytes: (SimpleNamespace(value=0), 4096 + nbytes)  # type: ignore[attr-defined] # as above
    first, second, third = (Allocation(device, nbytes) for nbytes in (1, 2, 3))
    del first  # a kernel has failed, and the first to be told is a finaliser
    gc.collect()
    assert device.lost
    with pytest.raises(ContextLostError, match=r"latest launch was .*Restart the process.*executor=\"emulator\""):
        device.launch(BINARY, LAUNCH)
    second.close()
    del third
    gc.collect()
    assert freed == [4097]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"grid": (1, 70000, 1)}, "grid.y = 70000 > 65535"),
        ({"block": (1, 1, 128)}, "block.z = 128 > 64"),
        ({"block": (64, 32, 1)}, "2048 threads per block > 1024"),
        ({"dynamic_shared": 226 * 1024 + 4}, "shared memory 232452 > 232448 bytes per block"),
    ],
)
def test_a_launch_that_no_gpu_takes_does_not_reach_the_driver(change: dict[str, Any], why: str) -> None:
    device, driver, seen = _launching(0, 77)
    with pytest.raises(LaunchError, match=rf"toy<<<grid.*got {why}; wanted a launch that GPU 0 \(H200 SXM 141 GB\)"):
        device.launch(BINARY, replace(LAUNCH, **change))
    assert (driver.calls, seen) == ([], [])


class Library:
    """The driver's functions that load kernels: each load takes its time, in which other threads run."""

    def __init__(self, *, load: int = 0, get: int = 0) -> None:
        self._load, self._get, self.loaded = load, get, 0

    def cuLibraryLoadData(self, cubin: bytes, *_options: object) -> tuple[SimpleNamespace, int | None]:  # noqa: N802
        """Return a library, or a status of failure without one."""
        assert cubin == CUBIN.cubin
        time.sleep(0.02)
        self.loaded += 1
        return SimpleNamespace(value=self._load), None if self._load else 100 * self.loaded

    def cuLibraryGetKernel(self, library: int, entry: bytes) -> tuple[SimpleNamespace, int | None]:  # noqa: N802
        """Return a kernel of the library, or a status of failure without one."""
        assert entry == b"scale"
        return SimpleNamespace(value=self._get), None if self._get else library + 1


def _at_once(work: Any) -> list[Any]:
    """Return what eight threads get that start together."""
    result, gate = [], threading.Barrier(8)

    def run() -> None:
        gate.wait()
        result.append(work())

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return result


def _loading(library: Library) -> gpu.GPU:
    device, driver, _seen = _launching(0, 77)
    vars(driver).update({name: getattr(library, name) for name in ("cuLibraryLoadData", "cuLibraryGetKernel")})
    vars(device).pop("function")
    device._kernels = {}
    return device


CUBIN = Binary("k", "scale", "sm_90a", b"cubin", "ptx", Resources(1, 0, 0, 0, 0))


@pytest.mark.parametrize("how", ["prepare", "function"])
def test_a_kernel_that_threads_meet_together_is_loaded_once(how: str) -> None:
    library = Library()
    device = _loading(library)
    functions = {
        "prepare": lambda: device.prepare(CUBIN, LAUNCH)._function,
        "function": lambda: device.function(CUBIN, LAUNCH),
    }
    assert set(_at_once(functions[how])) == {1101}
    assert library.loaded == 1


@pytest.mark.parametrize(
    ("library", "error", "match"),
    [
        (Library(load=209), LaunchError, "kernel k: got CUDA_ERROR_INVALID_VALUE: invalid argument when loading"),
        (Library(get=500), LaunchError, "kernel k: got CUDA_ERROR_INVALID_VALUE: invalid argument when loading"),
        (Library(load=700), ContextLostError, "from loading kernel k"),
    ],
)
def test_a_kernel_that_does_not_load(library: Library, error: type[LaunchError], match: str) -> None:
    device = _loading(library)
    with pytest.raises(error, match=match):
        device.function(CUBIN, LAUNCH)
    assert not device._kernels


def test_threads_get_one_and_the_same_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_index: int) -> object:
        time.sleep(0.02)
        return object()

    fine = SimpleNamespace(cuInit=lambda _flags: None, cuDeviceGetCount=lambda: (None, 2))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fine)
    monkeypatch.setattr("cuda.bindings.driver", fine, raising=False)
    monkeypatch.setattr(gpu, "GPU", made)
    monkeypatch.setattr(gpu, "_gpus", {}, raising=False)
    assert len(set(_at_once(lambda: gpu._get(0)))) == 1
    assert gpu._get(1) is not gpu._get(0)


class Stream:
    """A driver whose events happen when told to."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=SimpleNamespace(value=1))
    CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=600)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.answers: dict[int, int] = {}
        self.queried: list[int] = []
        self.destroyed: list[int] = []
        self.capturing: set[int] = set()
        self.mode: int | None = 0
        self.failed = False

    def cuEventQuery(self, event: int) -> tuple[int]:  # noqa: N802 — the driver's name
        """Tell whether it has happened; threads that are not relaxed would break a capture."""
        assert self.mode == 2 or self.failed
        self.queried.append(event)
        return (719 if self.failed else self.answers.get(event, 600),)

    def cuEventDestroy(self, event: int) -> tuple[int]:  # noqa: N802 — the driver's name
        """Give it back."""
        self.destroyed.append(event)
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode: int | None) -> tuple[int, int | None]:  # noqa: N802 — see above
        """Return the thread's mode before."""
        assert mode is not None  # the bindings raise TypeError
        if self.failed:
            return 719, None
        before, self.mode = self.mode, mode
        return 0, before

    def call(self, name: str, *args: Any) -> int:
        """Return the executor's way to the driver."""
        if name == "cuEventCreate":
            return len(self.recorded)
        if name == "cuEventRecord":
            self.recorded.append(args[1])
        if name == "cuStreamIsCapturing":
            return int(args[0] in self.capturing)
        return 0


class Owner:
    """Something with a lifetime."""


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> tuple[gpu.GPU, Stream]:
    """Provide a GPU that keeps what it is given, and its driver."""
    device, driver = gpu.GPU.__new__(gpu.GPU), Stream()
    facts = {"_driver": driver, "kept": {}, "_captured": [], "_keeping": threading.Lock(), "call": driver.call}
    for name, value in facts.items():
        monkeypatch.setattr(device, name, value, raising=False)
    monkeypatch.setattr(device, "enter", lambda: False)
    return device, driver


def _kept(device: gpu.GPU, stream: int) -> weakref.ref[Owner]:
    owner = Owner()
    device.keep((owner,), stream)
    return weakref.ref(owner)


@pytest.mark.parametrize("occasion", ["tidy", "synchronize", "allocate"])
def test_owners_are_held_until_their_event_has_passed(keeping: tuple[gpu.GPU, Stream], occasion: str) -> None:
    device, driver = keeping
    visits: dict[str, Callable[[], object]] = {
        "tidy": device.tidy,
        "synchronize": device.synchronize,
        "allocate": lambda: device.allocate(1),
    }
    visit = visits[occasion]
    first, second, other = _kept(device, 7), _kept(device, 7), _kept(device, 8)
    assert driver.recorded == [7, 7, 8]
    visit()
    assert None not in (first(), second(), other())
    driver.answers = {0: 0, 2: 0}
    visit()
    assert (first(), other()) == (None, None)
    assert second() is not None
    assert driver.destroyed == [0, 2]
    driver.answers[1] = 0
    visit()
    assert second() is None
    asked = len(driver.queried)
    visit()
    assert (len(driver.queried), driver.mode) == (asked, 0)


@pytest.mark.parametrize(
    ("answer", "over"), [(0, True), (600, False), (700, True), (719, True), (900, False), (1, False)]
)
def test_only_work_that_is_over_lets_go(keeping: tuple[gpu.GPU, Stream], answer: int, over: bool) -> None:
    device, driver = keeping
    owner = _kept(device, 7)
    driver.answers[0] = answer
    device.tidy()
    assert (owner() is None) is over


def test_after_a_kernel_has_failed_all_is_let_go(keeping: tuple[gpu.GPU, Stream]) -> None:
    device, driver = keeping
    owner = _kept(device, 7)
    driver.failed = True
    device.tidy()
    assert owner() is None


def test_what_a_graph_captures_is_held_for_good(keeping: tuple[gpu.GPU, Stream]) -> None:
    device, driver = keeping
    driver.capturing.add(7)
    owner = _kept(device, 7)
    driver.capturing.clear()
    device.tidy()
    assert owner() is not None
    assert (driver.recorded, driver.queried) == ([], [])


def test_memory_of_zeros_is_made_while_a_graph_captures(
    keeping: tuple[gpu.GPU, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    device, driver = keeping
    asked: list[tuple[str, int | None, tuple[Any, ...]]] = []

    def call(name: str, *args: Any) -> int:
        asked.append((name, driver.mode, args))
        return {"cuMemAlloc": 4096, "cuStreamCreate": 77}.get(name, 0)

    monkeypatch.setattr(device, "call", call)
    with device.zeros(64) as memory:
        assert (memory.address, memory.nbytes) == (4096, 64)
    assert [name for name, _, _ in asked] == [
        "cuMemAlloc",
        "cuStreamCreate",
        "cuMemsetD8Async",
        "cuStreamSynchronize",
        "cuStreamDestroy",
        "cuMemFree",
    ]
    assert {mode for _, mode, _ in asked[:-1]} == {2}  # relaxed
    assert asked[1][2] == (1,)  # waits for no other stream
    assert asked[2][2] == (4096, 0, 64, 77)
    assert driver.mode == 0


def test_owners_may_use_the_gpu_as_they_go(keeping: tuple[gpu.GPU, Stream]) -> None:
    device, driver = keeping
    entered: list[int | None] = []

    class Using:
        """Its end tidies up, as a launch does, in a thread that may give memory back."""

        def __del__(self) -> None:
            device.tidy()
            device.keep((), 9)
            entered.append(driver.mode)

    device.keep((Using(),), 7)
    driver.answers[0] = 0
    device.tidy()
    assert entered == [2]
