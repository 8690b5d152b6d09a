"""The routes through a GPU, without one: its memory and launches are the emulator's, all else is the real code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch, gpu, plan
from matmill.arrays import dlpack
from matmill.arrays import operand as operand_module
from matmill.compile import Binary
from matmill.dtypes import DTYPES
from matmill.emulator import Memory, run
from matmill.errors import ArgumentError, DeviceError
from matmill.execute import Launch, Pointer
from matmill.reference import check

Array = NDArray[Any]


class Buffer:
    """Emulated device memory with the methods of :class:`matmill.gpu.Allocation` that routes use."""

    def __init__(self, memory: Memory, data: Array) -> None:
        self.data = data
        self.address = memory.bind("buffer", data, access="rw").address

    def __enter__(self) -> Buffer:  # noqa: PYI034 — nobody derives from it
        return self

    def __exit__(self, *_exception: object) -> None:
        self.address = 0

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A copy of the contents."""
        result: Array = self.data.view(dtype).reshape(shape).copy()
        return result


class EmulatedGPU:
    """A GPU for routes and plans: it remembers launches and the order of streams."""

    index = 0
    arch = arch.get("h200")

    def __init__(self) -> None:
        self.memory = Memory()
        self.launches: list[tuple[Launch, int]] = []
        self.orders: list[tuple[int, int]] = []
        self.uploaded: list[int] = []
        self.waits = 0
        self.held: list[tuple[tuple[object, ...], int]] = []

    def empty(self, nbytes: int) -> Buffer:
        """Poisoned memory."""
        return Buffer(self.memory, np.full(nbytes, 0xFF, np.uint8))

    def upload(self, array: Array, _name: str) -> Buffer:
        """A packed copy."""
        self.uploaded.append(array.nbytes)
        return Buffer(self.memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())

    def prepare(self, binary: Binary, launch: Launch) -> Any:
        """A launch that is emulated at once."""

        def launched(args: list[Any], stream: int) -> None:
            named = [
                Pointer(old.name, new) if isinstance(old, Pointer) else np.int64(new) if isinstance(new, int) else new
                for old, new in zip(launch.args, args, strict=True)
            ]
            real = Launch(launch.kernel, launch.entry, launch.grid, launch.block, tuple(named), launch.dynamic_shared)
            self.launches.append((real, stream))
            run(binary.ptx, real, self.memory, races=False, counters=False)

        return launched

    def order(self, before: int, after: int) -> None:
        """Remembers which stream waits for which."""
        self.orders.append((before, after))

    def keep(self, owners: tuple[object, ...], stream: int) -> None:
        """Remembers what is held for which stream."""
        self.held.append((owners, stream))

    def synchronize(self) -> None:
        """Counts how often the host waits."""
        self.waits += 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> EmulatedGPU:
    """An emulated GPU in the place of the real one, and no plans from elsewhere."""
    fake = EmulatedGPU()
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    monkeypatch.setattr(gpu.GPU, "get", staticmethod(lambda _index=0: fake))
    monkeypatch.setattr(plan, "_plans", {})
    return fake


def _random(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_numpy_arrays_travel(device: EmulatedGPU) -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    for _ in range(2):
        result = matmill.matmul(a, b, c, alpha=0.5, beta=2)
        assert check(result, a, b, c, alpha=0.5, beta=2).ok
    assert len(device.launches) == 2
    assert device.uploaded == [a.nbytes, b.nbytes, c.nbytes] * 2


def test_strided_views_travel_as_they_lie(device: EmulatedGPU) -> None:
    a, b = _random(0, 20, 60)[::-1, ::2], _random(1, 40, 30).T[:, ::-1]
    assert check(matmill.matmul(a, b), a, b).ok
    assert device.uploaded == [(20 * 60 - 1) * 4, b.nbytes]


def test_sparse_and_broadcast_views_travel_packed(device: EmulatedGPU) -> None:
    a, b = _random(0, 20, 300)[:, ::10], np.broadcast_to(_random(1, 30, 1), (3, 30, 8))
    assert check(matmill.matmul(a, b), a, b).ok
    assert device.uploaded == [a.nbytes, 30 * 4]


def test_alpha_and_beta_of_one_plan_may_change(device: EmulatedGPU) -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    out = np.empty_like(c)
    for alpha, beta in ((1, 0), (2, 1), (2, 3), (1, 0), (0, 1)):
        matmill.matmul(a, b, c, alpha=alpha, beta=beta, out=out)
        assert check(out, a, b, c, alpha=alpha, beta=beta).ok
    assert len(device.launches) == 5


def test_outer_batches_are_looped_over(device: EmulatedGPU) -> None:
    a, b = _random(0, 3, 1, 10, 12), _random(1, 2, 12, 14)
    assert check(matmill.matmul(a, b), a, b).ok
    assert len(device.launches) == 2


class Namespace:
    """The array API namespace of :class:`DeviceArray`."""

    @staticmethod
    def from_dlpack(export: dlpack.Export) -> dlpack.Tensor:
        """The facts of an export, taken on stream 77."""
        return dlpack.read(export.__dlpack__(stream=77))


class DeviceArray(dlpack.Export):
    """An array of a library that knows DLPack alone, in emulated device memory."""

    def __init__(self, device: EmulatedGPU, array: Array) -> None:
        self.buffer = device.upload(array, "array")
        self.waits: list[int] = []
        dtype = DTYPES[array.dtype.name]
        super().__init__(
            self.buffer.address, array.shape, dtype, device=(2, 0), keep=self.buffer, wait=self.waits.append
        )

    @staticmethod
    def __array_namespace__() -> type[Namespace]:
        return Namespace


def test_dlpack_arrays_stay_and_the_result_is_exported(device: EmulatedGPU) -> None:
    a, b = _random(0, 20, 30), _random(1, 30, 40)
    x, y = DeviceArray(device, a), DeviceArray(device, b)
    device.uploaded.clear()
    result = matmill.matmul(x, y, stream=5)
    assert (result.shape, result.dtype, result.device) == ((20, 40), "float32", 0)
    assert device.uploaded == []
    assert (x.waits, y.waits) == ([5], [5])
    assert [stream for _, stream in device.launches] == [5]
    assert device.orders == [(5, 77)]
    assert device.waits == 0
    # The exports of both inputs outlive the kernel, whatever becomes of the arrays.
    ((held, stream),) = device.held
    assert (len(held), stream) == (2, 5)
    assert all(isinstance(owner, dlpack.Tensor) for owner in held)
    words = device.memory.allocations[-1].words[4].view(np.float32).reshape(20, 40)
    assert check(words, a, b).ok


class InterfaceArray:
    """An array of a library that names the stream of each array, in emulated device memory."""

    def __init__(self, device: EmulatedGPU, array: Array, stream: int | None) -> None:
        self.buffer = device.upload(array, "array")
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.buffer.address, False),
            "version": 3,
            "stream": stream,
        }


def test_arrays_of_one_library_on_several_streams_wait_for_each_other(
    device: EmulatedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operand_module, "_device_of", lambda _address, _argument: 0)
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    x, y, z = (InterfaceArray(device, array, stream) for array, stream in ((a, 5), (b, 6), (c, None)))
    out = InterfaceArray(device, np.empty_like(c), 5)
    matmill.matmul(x, y, z, beta=1, out=out)
    assert [stream for _, stream in device.launches] == [5]
    assert device.orders == [(6, 5), (5, 6)]
    result = out.buffer.data.view(np.float32).reshape(20, 40)
    assert check(result, a, b, c, beta=1).ok


def test_the_default_stream_has_a_name_in_dlpack(device: EmulatedGPU) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    matmill.matmul(x, x)
    assert x.waits == [1, 1]
    assert [stream for _, stream in device.launches] == [0]


def test_host_and_device_do_not_mix(device: EmulatedGPU) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    with pytest.raises(DeviceError, match=r"^b: got an array on the host; wanted one on GPU 0"):
        matmill.matmul(x, _random(1, 4, 4))
    with pytest.raises(DeviceError, match=r"^executor: got 'emulator' with arrays on GPU 0"):
        matmill.matmul(x, x, executor="emulator")
    assert device.launches == []


def test_a_library_without_a_namespace_is_refused_before_the_launch(
    device: EmulatedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = DeviceArray(device, _random(0, 4, 4))
    monkeypatch.delattr(DeviceArray, "__array_namespace__")
    with pytest.raises(ArgumentError, match=r"Pass out="):
        matmill.matmul(x, x)
    assert device.launches == []


def test_empty_results_are_not_launched(device: EmulatedGPU) -> None:
    assert matmill.matmul(np.zeros((0, 3), np.float32), np.zeros((3, 4), np.float32)).shape == (0, 4)
    assert device.launches == []
