"""The driver's calls that streaming makes: with the right arguments, and each allocation given back."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from matmill.dtypes import F32
from matmill.errors import LaunchError
from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.streaming import OnGPU, stream_inner
from support.lazy_device import STEPS, LazyDevice
from support.streaming_trial import Array, exact, numbers, plan_for


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
        """Return the driver's functions that streaming uses, with their arguments in the driver's order."""
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
        """Free as the executor does."""
        self.call("cuMemFree", address)

    def launch(self, _binary: Binary, launch: Launch, stream: object) -> None:
        """Launch at once."""
        assert stream in self.objects
        self.device._memory = self.live
        stands_in = self.device.stream()
        self.device.launch(_binary, launch, stands_in)
        self.device.drain(stands_in)


def test_the_driver_is_called_as_it_wants_to_be() -> None:
    driver = HostDriver()
    e, f, c = numbers((3, 700), F32), numbers((700, 2), F32, 1), numbers((3, 2), F32, 2)
    device = OnGPU(driver)  # type: ignore[arg-type]  # stands in for the GPU
    result = stream_inner(device, plan_for(e, f, 10_000), STEPS, e, f, c=c, beta=1)
    assert np.array_equal(result, exact(e, f) + c)
    assert driver.live == {}
    assert driver.objects == set()
    assert device.free_bytes() == 12345


@pytest.mark.parametrize(
    ("refuses", "kind"), [("cuMemHostAlloc", "page-locked host memory"), ("cuMemAlloc", "memory of GPU 0")]
)
def test_memory_that_is_not_there_is_said_in_words(refuses: str, kind: str) -> None:
    driver = HostDriver(refuses)
    e, f = numbers((3, 700), F32), numbers((700, 2), F32, 1)
    with pytest.raises(LaunchError, match=f"no {kind}.*OUT_OF_MEMORY.*(bytes|KiB) of it.*executor='cpu'"):
        stream_inner(OnGPU(driver), plan_for(e, f, 10_000), STEPS, e, f)  # type: ignore[arg-type]  # as above
    assert driver.live == {}
    assert driver.objects == set()
