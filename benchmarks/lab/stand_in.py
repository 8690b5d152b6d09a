"""Stand-ins for torch's tensors and a GPU's driver that do next to nothing: what is left is matmill's own part."""

from __future__ import annotations

import ctypes
import sys
import threading
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from matmill import arch
from matmill.arrays.operand import packed_strides
from matmill.dtypes import PRODUCTS
from matmill.runtime import gpu, stream_scratch

_ADDRESSES = count(1 << 40, 1 << 28)


def install() -> None:
    """Put a torch and an H200 of stand-ins into this process, for good."""
    sys.modules["torch"] = _torch()
    mock.patch.object(gpu, "unavailable", return_value=None).start()
    mock.patch.object(gpu.GPU, "get", return_value=_gpu()).start()


class Tensor:
    """As much of a CUDA tensor as a product looks at, at about the speed of torch's own attributes."""

    __module__ = "torch"
    layout = "strided"
    requires_grad = False
    is_cuda = True

    def __init__(self, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.shape, self.dtype = shape, dtype
        self._address = next(_ADDRESSES)

    def is_contiguous(self) -> bool:
        """Tell that it always is."""
        return True

    def stride(self) -> tuple[int, ...]:
        """Give the strides in elements."""
        return packed_strides(self.shape)

    def data_ptr(self) -> int:
        """Return some address."""
        return self._address

    def get_device(self) -> int:
        """Give the first device always."""
        return 0

    def is_neg(self) -> bool:
        """Tell that it never is lazily negated."""
        return False

    def is_inference(self) -> bool:
        """Tell that it never was made in inference mode."""
        return False

    def new_empty(self, shape: Any, dtype: str | None = None) -> Tensor:
        """Return a result; torch's takes about a microsecond."""
        return Tensor(shape if isinstance(shape, tuple) else (shape,), dtype or self.dtype)


def _torch() -> ModuleType:
    torch: Any = ModuleType("torch")
    for name in (*PRODUCTS, "int16", "strided"):
        setattr(torch, name, name)
    torch.is_grad_enabled = torch.is_inference_mode_enabled = lambda: False
    torch.are_deterministic_algorithms_enabled = lambda: False
    torch.Tensor, torch.nn = Tensor, SimpleNamespace(Parameter=Tensor)
    torch.empty_like = lambda x: x.new_empty(x.shape)
    torch._C = SimpleNamespace(  # noqa: SLF001 — what matmill asks
        _cuda_getCurrentRawStream=lambda _device: 0, _is_tracing=lambda: False, _increment_version=len
    )
    torch.autograd = SimpleNamespace(
        forward_ad=SimpleNamespace(_current_level=-1), graph=SimpleNamespace(increment_version=id)
    )
    result: ModuleType = torch
    return result


def _gpu() -> gpu.GPU:
    """Return a GPU whose driver is a C function that returns its first argument's low half, which is made 0."""
    library = ctypes.CDLL(None)
    device = object.__new__(gpu.GPU)
    nothing = library["abs"]
    nothing.argtypes, nothing.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    current = library["abs"]
    current.argtypes, current.restype = [ctypes.c_void_p], ctypes.c_int
    facts: dict[str, Any] = {
        "index": 0,
        "last": None,
        "arch": arch.get("h200"),
        "enqueue": lambda _config, handle, parameters, extra: nothing(0, handle, parameters, extra),
        "function": lambda _binary, _launch: 0,
        "_driver": SimpleNamespace(cuDriverGetVersion=lambda: (SimpleNamespace(value=0), 13000)),
        "_current": current,
        "_cell": gpu._Cell(),  # noqa: SLF001 — the stand-in is built around the constructor
        "_context_address": None,
        "_prepared": {},
        "_loading": threading.RLock(),
        "kept": {},
        "_keeping": threading.Lock(),
    }
    for name, value in facts.items():
        setattr(device, name, value)
    answers = library["abs"]
    answers.argtypes, answers.restype = [ctypes.c_void_p] * 2, ctypes.c_int
    mock.patch.object(stream_scratch, "load", return_value=library).start()
    for name in ("is_capturing", "stream_id"):
        mock.patch.object(stream_scratch, name, return_value=answers).start()
    mock.patch.object(gpu.GPU, "zeros", return_value=SimpleNamespace(address=next(_ADDRESSES))).start()
    return device
