"""The CUDA executor as far as it goes without CUDA: reasons against a GPU, recognising one, arguments and streams."""

from __future__ import annotations

import ctypes
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from matmill import arch, gpu
from matmill.execute import Pointer


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


def test_arguments_are_laid_bare() -> None:
    args = gpu.bare((Pointer("A", 4096), np.int64(-3), np.int32(5), np.float32(0.5), np.float64(2)))
    assert args == [4096, -3, 5, 0.5, 2]
    assert [type(arg) for arg in args] == [int, int, np.int32, np.float32, np.float64]


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
