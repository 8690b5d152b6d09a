"""As much of torch as the peers of a ladder use, over NumPy: a GPU and its libraries made of host memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import ALL


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

    def fill_(self, value: float) -> Self:
        """Return one number everywhere."""
        self.array[...] = value
        return self

    def cpu(self) -> Tensor:
        """Return a copy on the host."""
        return Tensor(self.array.copy())

    def contiguous(self) -> Tensor:
        """Return it packed."""
        return Tensor(np.ascontiguousarray(self.array))

    def numpy(self) -> NDArray[Any]:
        """Return the array."""
        return self.array


def _stream(_stream: object = None) -> AbstractContextManager[None]:
    return nullcontext()


def _full(shape: Any, value: float, *, dtype: Any, device: str) -> Tensor:
    assert device == "cuda"
    return Tensor(np.full(shape, value).astype(dtype))


def _mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    """Store ``a @ b`` in the type of ``out``, summed in float32 at least."""
    wide = np.float64 if a.dtype == np.float64 else np.float32
    with np.errstate(over="ignore"):
        out.array[...] = (a.array.astype(wide) @ b.array.astype(wide)).astype(a.dtype)
    return out


def stand_in() -> ModuleType:
    """Return the module."""
    torch: Any = ModuleType("torch")
    torch.__version__ = "0 (stand-in)"
    for name, dtype in ALL.items():
        setattr(torch, name, dtype.numpy)
    torch.uint8 = np.dtype(np.uint8)
    torch.full, torch.mm = _full, _mm
    torch.set_float32_matmul_precision = lambda _precision: None
    torch.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
    torch.cuda = SimpleNamespace(
        synchronize=lambda: None,
        is_available=lambda: True,
        ExternalStream=lambda address: address,
        default_stream=lambda: 0,
        stream=_stream,
    )
    result: ModuleType = torch
    return result
