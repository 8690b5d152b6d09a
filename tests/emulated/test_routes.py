"""The routes through a GPU, without one: its memory and launches are the emulator's, all else is the real code."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from frames import read_launch
from matmill import arch, gpu, plan, requests
from matmill.arrays import dlpack
from matmill.arrays import operand as operand_module
from matmill.choose import Choice, choose
from matmill.compile import Binary
from matmill.dtypes import ALL, DTYPES
from matmill.emulator import Memory, run
from matmill.errors import AliasError, ArgumentError, DeviceError, ShapeError
from matmill.execute import Launch, Pointer
from matmill.problem import Gemm
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
        self.entered = False
        self.homes: dict[int, tuple[Array, int]] = {}
        self.held: list[tuple[tuple[object, ...], int]] = []

    def empty(self, nbytes: int) -> Buffer:
        """Poisoned memory."""
        return Buffer(self.memory, np.full(nbytes, 0xFF, np.uint8))

    def home(self, array: Array) -> int:
        """The address at which an array of the host's lies in the memory of this GPU too."""
        if id(array) not in self.homes:
            self.homes[id(array)] = (array, self.memory.bind("tensor", array, access="rw").address)
        _kept, address = self.homes[id(array)]
        return address

    def upload(self, array: Array, _name: str) -> Buffer:
        """A packed copy."""
        self.uploaded.append(array.nbytes)
        return Buffer(self.memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())

    def prepare(self, binary: Binary, launch: Launch) -> Any:
        """A launch that is emulated at once."""

        def launched(config: int, parameters: int) -> None:
            assert self.entered
            real, stream = read_launch(config, parameters, launch)
            self.launches.append((real, stream))
            run(binary.ptx, real, self.memory, races=False, counters=False)

        return launched

    def enter(self) -> bool:
        """The context was not current before."""
        assert not self.entered
        self.entered = True
        return True

    def leave(self) -> None:
        """Back to the other context."""
        self.entered = False

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
    monkeypatch.setattr(requests, "_verdicts", {})
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


# -- several launches and a workspace; arrays of a library with streams of its own -----------------------------------


@pytest.fixture
def two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner kernel on a GPU so small that three blocks are its whole grid, whatever the problem."""
    real = choose

    def chosen(problem: Gemm, on: arch.Arch) -> Choice[Gemm]:
        choice = real(problem, on)
        if choice.kernel.entry != "inner":
            return choice
        return replace(choice, kernel=choice.kernel.with_config(choice.kernel.config.launched(GS=3)))

    monkeypatch.setattr(plan, "choose", chosen)


@pytest.mark.usefixtures("two_launches")
@pytest.mark.parametrize("dtype", ALL)
def test_host_arrays_through_two_launches(device: EmulatedGPU, dtype: str) -> None:
    e, f, c = (_random(i, *shape).astype(ALL[dtype].numpy) for i, shape in enumerate(((4, 900), (900, 3), (4, 3))))
    result = matmill.inner(e, f, c, alpha=0.5, beta=2, executor="gpu")
    assert check(result, e, f, c, alpha=0.5, beta=2).ok
    assert [launch.entry for launch, _ in device.launches] == ["inner", "finish"]
    device.uploaded.clear()
    assert check(matmill.inner(e[:, ::-1], e[:, ::-1].T, executor="gpu"), e, e.T).ok
    assert device.uploaded == [e.nbytes]  # one matrix, and one copy of it
    sparse = np.full((4, 9000), np.nan, e.dtype)
    sparse[:, ::10] = e
    assert check(matmill.inner(sparse[:, ::10], sparse[:, ::10].T, executor="gpu"), e, e.T).ok


@pytest.mark.usefixtures("two_launches")
def test_a_workspace_of_our_own_is_held_until_the_kernels_have_run(device: EmulatedGPU) -> None:
    a, b = _random(0, 4, 900), _random(1, 900, 3)
    matmill.matmul(DeviceArray(device, a), DeviceArray(device, b), stream=5)
    assert [launch.entry for launch, _ in device.launches] == ["inner", "finish"]
    ((held, _stream),) = device.held
    (workspace,) = (owner for owner in held if isinstance(owner, Buffer))
    pointers = {arg.name: arg.address for arg in device.launches[1][0].args if isinstance(arg, Pointer)}
    assert workspace.address == pointers["workspace"]


class Tensor:
    """A CUDA tensor as the reader of torch tensors sees one, in emulated device memory."""

    __module__ = "torch"
    layout = "strided"
    is_cuda = True

    def __init__(self, device: EmulatedGPU, array: Array, made: list[tuple[int, str]]) -> None:
        self.device, self.made, self.requires_grad = device, made, False
        self.dtype = array.dtype.name
        self.shape = array.shape
        self.steps = tuple(stride // array.itemsize for stride in array.strides)
        self.base = array if array.base is None else array.base
        offset = array.__array_interface__["data"][0] - self.base.__array_interface__["data"][0]
        self.address: int = device.home(self.base) + offset

    def stride(self) -> tuple[int, ...]:
        """In elements."""
        return self.steps

    def data_ptr(self) -> int:
        """In the emulator's memory."""
        return self.address

    def get_device(self) -> int:
        """The first."""
        return 0

    def is_neg(self) -> bool:
        """Never."""
        return False

    def new_empty(self, shape: int | tuple[int, ...], dtype: str | None = None) -> Tensor:
        """Poisoned memory."""
        self.made.append((int(np.prod(shape)), dtype or self.dtype))
        array = np.empty(shape, np.dtype(np.uint8) if dtype else ALL[self.dtype].numpy)
        array.reshape(-1).view(np.uint8)[:] = 0xFF
        return Tensor(self.device, array, self.made)


class Tensors:
    """Tensors of one device."""

    def __init__(self, device: EmulatedGPU) -> None:
        self.device = device
        self.made: list[tuple[int, str]] = []

    def __call__(self, array: Array) -> Tensor:
        """The tensor in whose memory the array lies, or another view of it."""
        return Tensor(self.device, array, self.made)


@pytest.fixture
def tensors(device: EmulatedGPU, monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """Tensors of a stand-in for torch, whose current stream is 33."""
    names = {name: name for name in (*ALL, "int16", "uint8", "strided")}
    stream = SimpleNamespace(_cuda_getCurrentRawStream=lambda _index: 33)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(**names, _C=stream, is_grad_enabled=lambda: False))
    monkeypatch.setattr(operand_module, "_readers", {})
    return Tensors(device)


@pytest.mark.usefixtures("two_launches")
@pytest.mark.parametrize("dtype", ALL)
def test_tensors_stay_in_place_and_lend_the_workspace(device: EmulatedGPU, tensors: Tensors, dtype: str) -> None:
    kind = ALL[dtype].numpy
    e, f, c = (_random(i, *shape).astype(kind) for i, shape in enumerate(((4, 901), (901, 3), (4, 3))))
    x, y, z = tensors(e), tensors(f), tensors(c)
    for turn in range(2):
        result = matmill.inner(x, y, z, alpha=0.5, beta=1.0 + turn)
        assert check(result.base, e, f, c, alpha=0.5, beta=1.0 + turn).ok
    workspace = 3 * 4 * 3 * ALL[dtype].accumulator.itemsize
    assert tensors.made == [(12, dtype), (workspace, "uint8")] * 2
    assert [(launch.entry, stream) for launch, stream in device.launches] == [("inner", 33), ("finish", 33)] * 2
    assert (device.held, device.orders, device.waits, device.uploaded) == ([], [], 0, [])
    out = np.full((3, 4), np.nan, kind).T
    target = tensors(out)
    assert matmill.inner(x, y, out=target) is target
    assert check(out, e, f).ok
    gram = matmill.inner(x, tensors(e.T))
    assert check(gram.base, e, e.T).ok
    assert gram.base.tobytes() == gram.base.T.copy().tobytes()


def test_what_was_found_of_one_layout_is_not_used_for_another(tensors: Tensors) -> None:
    pool = _random(0, 5000)
    base = pool[:1200].reshape(3, 400)
    results = []
    for a, b in (
        (base, pool[1200:2800].reshape(400, 4)),
        (base, pool[1201:2801].reshape(400, 4)),
        (base[:, ::2], pool[1200:2000].reshape(200, 4)),
        (base, base.T),
        (base, pool[1200:2400].reshape(3, 400).T),
        (base, base[::-1].T),
    ):
        results.append(matmill.inner(tensors(a), tensors(b)).base)
        assert check(results[-1], a, b).ok
    assert len(requests._verdicts) == 6


def test_refusals_are_not_forgotten_with_the_verdict(tensors: Tensors) -> None:
    e, f = _random(0, 3, 40), _random(1, 40, 4)
    x, y = tensors(e), tensors(f)
    out = np.zeros((3, 4), np.float32)
    matmill.inner(x, y, out=tensors(out))
    for _ in range(2):
        with pytest.raises(AliasError, match="overlaps e"):
            matmill.inner(x, y, out=tensors(e.reshape(-1)[:12].reshape(3, 4)))
        with pytest.raises(ArgumentError, match="beta"):
            matmill.inner(x, y, beta=1)
        with pytest.raises(ArgumentError, match="alpha"):
            matmill.inner(x, y, alpha=True)
        with pytest.raises(DeviceError, match="executor"):
            matmill.inner(x, y, executor="cpu")
        with pytest.raises(ShapeError, match="Use matmul"):
            matmill.inner(tensors(e[0]), y)
    assert check(matmill.matmul(x, y, executor="gpu").base, e, f).ok


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
