"""As much of torch as the benchmarks of inner products use, over NumPy: a GPU and its libraries made of host memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import ALL

MILLISECONDS = 3.0


class Tensor:
    """A NumPy array with torch's names for things."""

    is_cuda = True
    device = "cuda"

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return self.array.dtype

    def data_ptr(self) -> int:
        """Return the address."""
        return int(self.array.ctypes.data)

    def view(self, *shape: Any) -> Tensor:
        """Return another shape or another type of the same memory."""
        first = shape[0]
        return Tensor(self.array.reshape(shape) if isinstance(first, int) else self.array.view(first))

    def t(self) -> Tensor:
        """Return the transpose."""
        return Tensor(self.array.T)

    def uniform_(self, low: float, high: float, *, generator: Generator) -> Self:
        """Return random numbers."""
        self.array[...] = generator.draw.uniform(low, high, self.array.shape).astype(self.array.dtype)
        return self

    def fill_(self, value: float) -> Self:
        """Return one number everywhere."""
        self.array[...] = value
        return self

    def double(self) -> Tensor:
        """Return float64; the same tensor where it is that already, as in torch."""
        return self if self.array.dtype == np.float64 else Tensor(self.array.astype(np.float64))

    def abs(self) -> Tensor:
        """Return absolute values."""
        return Tensor(np.abs(self.array))

    def cpu(self) -> Tensor:
        """Return a copy on the host."""
        return Tensor(self.array.copy())

    def contiguous(self) -> Tensor:
        """Give it packed."""
        return Tensor(np.ascontiguousarray(self.array))

    def numpy(self) -> NDArray[Any]:
        """Return the array."""
        return self.array

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.array[key])

    def __matmul__(self, other: Tensor) -> Tensor:
        return Tensor(product(self.array, other.array))

    def __iadd__(self, other: Tensor) -> Self:
        self.array += other.array
        return self


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return ``a @ b`` in the type of ``a``, summed in float32 at least."""
    wide = np.result_type(np.float32, np.float64) if a.dtype == np.float64 else np.dtype(np.float32)
    with np.errstate(over="ignore"):
        result: NDArray[Any] = (a.astype(wide) @ b.astype(wide)).astype(a.dtype)
    return result


class Generator:
    """Of random numbers."""

    def __init__(self, device: str) -> None:
        assert device == "cuda"
        self.draw = np.random.default_rng()

    def manual_seed(self, seed: int) -> None:
        """Start anew."""
        self.draw = np.random.default_rng(seed)


class Event:
    """A mark in time."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """Happen at once."""

    def synchronize(self) -> None:
        """Wait for nothing: it has happened."""

    def elapsed_time(self, _other: Event) -> float:
        """Return milliseconds."""
        return MILLISECONDS


class Graph:
    """A CUDA graph that does nothing."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        """Count."""
        self.replays += 1


def _stream(_stream: object = None) -> AbstractContextManager[None]:
    return nullcontext()


def _empty(shape: Any, *, dtype: Any, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(np.full(shape, 0x5A, np.uint8).astype(dtype))


def _mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    out.array[...] = product(a.array, b.array)
    return out


def stand_in() -> ModuleType:
    """Return the module."""
    torch: Any = ModuleType("torch")
    torch.__version__ = "0 (stand-in)"
    for name, dtype in ALL.items():
        setattr(torch, name, dtype.numpy)
    torch.uint8 = np.dtype(np.uint8)
    torch.Generator = Generator
    torch.empty = _empty
    torch.empty_like = lambda like: Tensor(np.empty_like(like.array))
    torch.full = lambda shape, value, *, dtype, device: _empty(shape, dtype=dtype, device=device).fill_(value)
    torch.zeros = lambda shape, *, dtype, device: torch.full(shape, 0, dtype=dtype, device=device)
    torch.zeros_like = lambda like: Tensor(np.zeros_like(like.array))
    torch.mm = _mm
    torch.einsum = lambda _subscripts, a, b: a @ b
    torch.set_float32_matmul_precision = lambda _precision: None
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
    torch.cuda = SimpleNamespace(
        synchronize=lambda: None,
        is_available=lambda: True,
        ExternalStream=lambda address: address,
        default_stream=lambda: 0,
        stream=_stream,
        CUDAGraph=Graph,
        graph=_stream,
        Event=Event,
    )
    result: ModuleType = torch
    return result
