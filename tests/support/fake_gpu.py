"""A GPU whose memory and launches are the emulator's, and arrays in its memory, for tests of routes through one."""

from __future__ import annotations

import ctypes
import sys
from copy import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill import arch
from matmill.arrays import dlpack
from matmill.dtypes import PRODUCTS
from matmill.emulator import Memory, run
from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.runtime.gpu import GPU
from support.launch_frames import read_launch

Array = NDArray[Any]


class Buffer:
    """Emulated device memory with the methods of :class:`matmill.runtime.gpu.Allocation` that routes use."""

    def __init__(self, memory: Memory, data: Array) -> None:
        self.data = data
        self.address = memory.bind("buffer", data, access="rw").address

    def __enter__(self) -> Buffer:  # noqa: PYI034 — nobody derives from it
        return self

    def __exit__(self, *_exception: object) -> None:
        self.address = 0

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return a copy of the contents."""
        result: Array = self.data.view(dtype).reshape(shape).copy()
        return result


class FakeGPU:
    """A GPU for routes and plans: it remembers launches and the order of streams."""

    index = 0
    arch = arch.get("h200")
    driver_version = "13000"

    def __init__(self) -> None:
        self.memory = Memory()
        self.launches: list[tuple[Launch, int]] = []
        self.orders: list[tuple[int, int]] = []
        self.uploaded: list[int] = []
        self.waits = 0
        self.entered = False
        self.homes: dict[int, tuple[Array, int]] = {}
        self.held: list[tuple[tuple[object, ...], int]] = []
        self.capturing: set[int] = set()
        self.kept: dict[int, object] = {}

    def empty(self, nbytes: int) -> Buffer:
        """Return poisoned memory."""
        return Buffer(self.memory, np.full(nbytes, 0xFF, np.uint8))

    def zeros(self, nbytes: int) -> Buffer:
        """Return memory of zeros."""
        return Buffer(self.memory, np.zeros(nbytes, np.uint8))

    def check(self, status: int, _name: str) -> None:
        """Check that nothing the driver is asked fails."""
        assert status == 0

    def is_capturing(self, stream: int, address: int) -> int:
        """Return the driver's answer, for :mod:`matmill.runtime.stream_scratch`."""
        assert self.entered
        ctypes.c_uint32.from_address(address).value = stream in self.capturing
        return 0

    def captures(self, stream: int) -> bool:
        """Tell whether a graph captures the stream."""
        return stream in self.capturing

    def stream_id(self, stream: int, address: int) -> int:
        """Return the driver's answer, for :mod:`matmill.runtime.stream_scratch`."""
        assert self.entered
        ctypes.c_uint64.from_address(address).value = 2**40 + stream
        return 0

    def home(self, array: Array) -> int:
        """Return the address of an array of the host's in the memory of this GPU too."""
        if id(array) not in self.homes:
            self.homes[id(array)] = (array, self.memory.bind("tensor", array, access="rw").address)
        _kept, address = self.homes[id(array)]
        return address

    def upload(self, array: Array, _name: str) -> Buffer:
        """Return a packed copy."""
        self.uploaded.append(array.nbytes)
        return Buffer(self.memory, np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy())

    frame = GPU.frame

    def prepare(self, binary: Binary, launch: Launch) -> Any:
        """Return a launch that is emulated at once."""

        def launched(config: int, parameters: int) -> None:
            real, stream = read_launch(config, parameters, launch)
            self.launches.append((real, stream))
            run(binary.ptx, real, self.memory, races=False, counters=False)

        return launched

    launch = GPU.launch

    def enter(self) -> bool:
        """Return the context was not current before."""
        assert not self.entered
        self.entered = True
        return True

    def leave(self) -> None:
        """Go back to the other context."""
        self.entered = False

    def tidy(self) -> None:
        """Keep what is held for tests to see."""

    def order(self, before: int, after: int) -> None:
        """Remember which stream waits for which."""
        self.orders.append((before, after))

    def keep(self, owners: tuple[object, ...], stream: int) -> None:
        """Remember what is held for which stream."""
        self.held.append((owners, stream))

    def synchronize(self) -> None:
        """Count how often the host waits."""
        self.waits += 1


class Namespace:
    """The array API namespace of :class:`DeviceArray`."""

    @staticmethod
    def from_dlpack(export: dlpack.Export) -> dlpack.Tensor:
        """Return the facts of an export, taken on stream 77."""
        return dlpack.read(export.__dlpack__(stream=77))


class DeviceArray(dlpack.Export):
    """An array of a library that knows DLPack alone, in emulated device memory."""

    def __init__(self, device: FakeGPU, array: Array) -> None:
        self.buffer = device.upload(array, "array")
        self.waits: list[int] = []
        dtype = PRODUCTS[array.dtype.name]
        super().__init__(
            self.buffer.address, array.shape, dtype, device=(2, 0), keep=self.buffer, wait=self.waits.append
        )

    @staticmethod
    def __array_namespace__() -> type[Namespace]:
        return Namespace


class Tensor:
    """A CUDA tensor as the reader of torch tensors sees one, in emulated device memory."""

    __module__ = "torch"
    layout = "strided"
    is_cuda = True
    #: Whether torch records gradients, of tensors that require one.
    recording = True
    #: Whether torch traces.
    tracing = False
    #: What belongs to it while forward derivatives are taken.
    tangent: object = None
    #: Whether torch is in inference mode.
    inferring = False
    #: Whether its values are the conjugates of what is in memory.
    conjugated = False
    #: How far a fresh result starts behind 16 bytes.
    behind = 0

    def __init__(self, device: FakeGPU, array: Array, made: list[tuple[int, str]]) -> None:
        self.device, self.made, self.requires_grad = device, made, False
        self.inference, self.version = False, 0
        self.dtype = sys.intern(array.dtype.name)  # torch's are one object each
        self.shape = array.shape
        self.steps = tuple(stride // array.itemsize for stride in array.strides)
        self.base = array if array.base is None else array.base
        offset = array.__array_interface__["data"][0] - self.base.__array_interface__["data"][0]
        self.address: int = device.home(self.base) + offset

    def is_contiguous(self) -> bool:
        """Tell whether it is packed row by row; strides of dimensions with one element do not matter."""
        reach = 1
        for extent, step in zip(self.shape[::-1], self.steps[::-1], strict=True):
            if extent != 1 and step != reach:
                return 0 in self.shape
            reach *= extent
        return True

    def stride(self) -> tuple[int, ...]:
        """Give the strides in elements."""
        return self.steps

    def data_ptr(self) -> int:
        """Give the address in the emulator's memory."""
        return self.address

    def get_device(self) -> int:
        """Return the first."""
        return 0

    def is_neg(self) -> bool:
        """Tell that it never is."""
        return False

    def is_conj(self) -> bool:
        """Tell whether its values are conjugates."""
        return self.conjugated

    def conj(self) -> Tensor:
        """Return a view of the conjugates."""
        view = copy(self)
        view.conjugated = not self.conjugated
        return view

    def is_inference(self) -> bool:
        """Tell whether it was made in inference mode."""
        return self.inference

    is_meta = is_nested = False

    def dim(self) -> int:
        """Say how many dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Say how many elements."""
        return int(np.prod(self.shape))

    def new_empty(self, shape: int | tuple[int, ...], dtype: str | None = None) -> Tensor:
        """Return poisoned memory."""
        assert not self.conjugated, "torch would copy it"
        self.made.append((int(np.prod(shape)), dtype or self.dtype))
        kind = np.dtype(np.uint8) if dtype == "uint8" else PRODUCTS[dtype or self.dtype].numpy
        array = np.empty(shape, kind)
        if self.behind:
            memory = np.empty(array.nbytes + 16, np.uint8)
            array = memory[self.behind : self.behind + array.nbytes].view(kind).reshape(shape)
        array.reshape(-1).view(np.uint8)[:] = 0xFF
        return Tensor(self.device, array, self.made)


def unpack_dual(tensor: Tensor) -> SimpleNamespace:
    """Do as ``torch.autograd.forward_ad.unpack_dual``."""
    return SimpleNamespace(primal=tensor, tangent=tensor.tangent)


def written(tensors: tuple[Tensor, ...]) -> None:
    """Do as ``torch._C._increment_version``."""
    for tensor in tensors:
        tensor.version += 1


class Parameter(Tensor):
    """torch's other class of its own."""


class Subclass(Tensor):
    """A tensor that may mean something else than its memory."""


class Tensors:
    """Tensors of one device."""

    def __init__(self, device: FakeGPU) -> None:
        self.device = device
        self.made: list[tuple[int, str]] = []

    def __call__(self, array: Array) -> Tensor:
        """Return the tensor whose memory the array is in, or another view of it."""
        return Tensor(self.device, array, self.made)
