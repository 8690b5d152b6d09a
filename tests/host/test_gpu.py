"""The CUDA executor as far as it goes without CUDA: reasons against a GPU, recognising one, arguments and streams."""

from __future__ import annotations

import ctypes
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frames import read_launch
from matmill import arch, gpu
from matmill.errors import LaunchError
from matmill.execute import Launch, Pointer


class FakeLibrary:
    """The driver's C library as ctypes sees it."""

    def __init__(self, *, init: int = 0, count: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        self.init, self.count, self.capability = init, count, capability

    def cuInit(self, _flags: int) -> int:  # noqa: N802 — the driver's name
        """Starts, or says why not."""
        return self.init

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802 — the driver's name
        """How many GPUs."""
        count._obj.value = self.count
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, _device: int) -> int:  # noqa: N802 — the driver's name
        """Major and minor."""
        value._obj.value = self.capability[attribute - 75]
        return 0

    def cuGetErrorString(self, _status: int, text: Any) -> int:  # noqa: N802 — the driver's name
        """The driver's words."""
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
    found = gpu.unavailable.__wrapped__()
    assert found is None if reason is None else reason in (found or "")


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
    found = _gpu("NVIDIA H100 PCIe", MULTIPROCESSOR_COUNT=114, CLOCK_RATE=1_755_000)._recognise()
    assert (found.name, found.title, found.sms) == ("nvidiah100pcie", "NVIDIA H100 PCIe", 114)
    assert found.fp32_flops == pytest.approx(51.2e12, rel=1e-2)
    assert found.target == "sm_90a"


class Driver:
    """As much of the bindings as errors and contexts need; calls are noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @staticmethod
    def CUresult(status: int) -> SimpleNamespace:  # noqa: N802 — the driver's name
        """The status with its name; one that is newer than the bindings is refused, as an enumeration does."""
        if status > 999:
            raise ValueError(status)
        return SimpleNamespace(value=status, name="CUDA_ERROR_INVALID_VALUE")

    def cuGetErrorString(self, _status: object) -> tuple[object, bytes]:  # noqa: N802 — the driver's name
        """The driver's words."""
        return None, b"invalid argument"

    def cuCtxPushCurrent(self, _context: object) -> tuple[SimpleNamespace]:  # noqa: N802 — the driver's name
        """Makes it current."""
        self.calls.append("push")
        return (SimpleNamespace(value=0),)

    def cuCtxPopCurrent(self) -> None:  # noqa: N802 — the driver's name
        """Undoes that."""
        self.calls.append("pop")


LAUNCH = Launch("toy", "scale", (3, 1, 1), (64, 1, 1), (Pointer("x", 4096), np.int32(5)), dynamic_shared=512)


def _launching(status: int, context: int) -> tuple[gpu.GPU, Driver, list[Any]]:
    """A GPU with context 77 on a thread whose context is ``context``, and what it launches."""
    device, driver, seen = object.__new__(gpu.GPU), Driver(), []

    def enqueue(config: int, kernel: int, parameters: int, extra: None) -> int:
        seen.append((kernel, extra, *read_launch(config, parameters, LAUNCH), tuple(driver.calls)))
        return status

    def current(cell: Any) -> int:
        cell._obj.value = context
        return 0

    facts: dict[str, Any] = {
        "last": None,
        "enqueue": enqueue,
        "kernel": lambda _binary, _launch: SimpleNamespace(handle=99),
        "_driver": driver,
        "_prepared": {},
        "_current": current,
        "_cell": gpu._Cell(),
        "_context": None,
        "_context_address": 77,
    }
    for name, value in facts.items():
        setattr(device, name, value)
    return device, driver, seen


BINARY: Any = "a cubin"


@pytest.mark.parametrize(("context", "around"), [(77, []), (0, ["push", "pop"]), (5, ["push", "pop"])])
def test_a_launch_reaches_the_driver_in_the_gpus_own_context(context: int, around: list[str]) -> None:
    device, driver, seen = _launching(0, context)
    device.launch(BINARY, LAUNCH, stream=9)
    assert seen == [(99, None, LAUNCH, 9, tuple(around[:1]))]
    assert driver.calls == around
    assert device.last is not None
    assert device.last.entry == "scale"


@pytest.mark.parametrize(
    ("status", "words"), [(1, "CUDA_ERROR_INVALID_VALUE: invalid argument"), (1234, "CUresult 1234")]
)
def test_a_launch_that_the_driver_refuses_names_itself(status: int, words: str) -> None:
    device, driver, _seen = _launching(status, 0)
    with pytest.raises(LaunchError, match=rf"toy<<<grid \(3, 1, 1\).*{words}"):
        device.launch(BINARY, LAUNCH)
    assert driver.calls == ["push", "pop"]
    assert device.last is None


class Stream:
    """A driver whose events happen when told to."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))
    CUresult = SimpleNamespace(CUDA_ERROR_NOT_READY=600)

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.passed: set[int] = set()
        self.destroyed: list[int] = []

    def cuEventQuery(self, event: int) -> tuple[int]:  # noqa: N802 — the driver's name
        """Whether it has happened."""
        return (0 if event in self.passed else 600,)

    def call(self, name: str, *args: Any) -> int:
        """The executor's way to the driver."""
        if name == "cuEventCreate":
            return len(self.recorded)
        if name == "cuEventRecord":
            self.recorded.append(args[1])
        if name == "cuEventDestroy":
            self.destroyed.append(args[0])
        return 0


def test_owners_are_held_until_their_event_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        """Something with a lifetime."""

    driver = Stream()
    device = gpu.GPU.__new__(gpu.GPU)
    monkeypatch.setattr(device, "_driver", driver, raising=False)
    monkeypatch.setattr(device, "_kept", [], raising=False)
    monkeypatch.setattr(device, "_keeping", threading.Lock(), raising=False)
    monkeypatch.setattr(device, "call", driver.call)
    first, second = Owner(), Owner()
    watched = weakref.ref(first)
    device.keep((first,), 7)
    del first
    device.keep((second,), 8)
    assert driver.recorded == [7, 8]
    assert watched() is not None
    driver.passed.add(0)
    device.keep((second,), 8)
    assert watched() is None
    assert driver.destroyed == [0]
