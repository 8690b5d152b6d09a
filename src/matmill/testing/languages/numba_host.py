"""Programs with kernels of numba-cuda, as numba's simulator ran them: launches run on the emulator.

Meanwhile ``numba.cuda`` has one device, whose arrays are NumPy's, and everything is done when a call returns. The
context's class has the name that the simulator's has, which programs ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
from numba import config, cuda
from numba.cuda import dispatcher as dispatchers
from numba.cuda.core import sigutils
from numpy.typing import NDArray

from matmill.errors import ArgumentError
from matmill.testing.languages import capability
from matmill.testing.languages.numba_kernels import declared


class _DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """An array of the device, in memory of its own."""

    def copy_to_host(self, ary: NDArray[Any] | None = None, stream: object = 0) -> NDArray[Any]:
        del stream
        result = np.empty_like(self, subok=False) if ary is None else ary
        result[...] = self
        return result

    def copy_to_device(self, ary: NDArray[Any], stream: object = 0) -> None:
        del stream
        self[...] = ary


class FakeCUDAContext:
    """The context, its device, a stream and an event at once: there is nothing to wait for."""

    id, name, WARP_SIZE = 0, b"matmill's emulator", 32
    MULTIPROCESSOR_COUNT, MAX_THREADS_PER_BLOCK, MAX_SHARED_MEMORY_PER_BLOCK = 132, 1024, 48 << 10
    deallocations: ClassVar[list[object]] = []
    device = property(lambda self: self)

    def __init__(self, target: str) -> None:
        self.compute_capability = capability(target)

    def _nothing(self, *_: object, **__: object) -> FakeCUDAContext:
        return self

    synchronize = reset = record = wait = query = auto_synchronize = push = pop = __enter__ = _nothing

    def __exit__(self, *_: object) -> None: ...

    def get_memory_info(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of an H100."""
        return 80 << 30, 80 << 30


def _device_array(shape: Any, dtype: Any = np.float64, strides: object = None, order: Any = "C", **_: object) -> Any:
    del strides
    return np.empty(shape, dtype, order).view(_DeviceArray)


def _to_device(obj: Any, stream: object = 0, copy: bool = True, to: Any = None) -> Any:  # noqa: FBT001, FBT002 - numba's
    del stream
    if to is None:
        return np.array(obj, copy=copy or None).view(_DeviceArray)
    to[...] = obj
    return to


@contextmanager
def redirection(launch: Callable[..., None], target: str) -> Iterator[None]:
    """Let ``launch`` run the launches of numba-cuda's kernels."""
    if config.ENABLE_CUDASIM:
        wanted, fix = "numba's compiler, whose PTX the emulator executes", "Unset it: it chooses numba's own simulator."
        raise ArgumentError(argument="NUMBA_ENABLE_CUDASIM", got="1", wanted=wanted, fix=fix)

    def configure(kernel: Any, griddim: Any, blockdim: Any, _stream: object = 0, sharedmem: int = 0) -> Any:
        return lambda *args: launch(kernel, griddim, blockdim, args, shared=sharedmem)

    def forall(kernel: Any, ntasks: int, tpb: int = 0, _stream: object = 0, sharedmem: int = 0) -> Any:
        return configure(kernel, max(1, -(-ntasks // (tpb or 128))), tpb or 128, 0, sharedmem)

    def declare(kernel: Any, signature: Any) -> None:
        declared[kernel] = tuple(sigutils.normalize_signature(signature)[0])

    context = FakeCUDAContext(target)
    arrays = ("device_array", "pinned_array", "mapped_array", "managed_array")
    host: dict[str, Any] = {
        "is_available": lambda: True, "detect": lambda: True, "gpus": [context], "list_devices": lambda: [context],
        "synchronize": lambda: None, "close": lambda: None, "pinned": nullcontext, "defer_cleanup": nullcontext,
        "to_device": _to_device, "as_cuda_array": lambda obj, **_: _to_device(obj, copy=False),
        **dict.fromkeys(arrays, _device_array),
        **{f"{name}_like": lambda like, **_: _device_array(like.shape, like.dtype) for name in arrays[:3]},
        **dict.fromkeys(("stream", "default_stream", "event", "current_context", "get_current_device",
                         "select_device"), lambda *_, **__: context),
        "event_elapsed_time": lambda _start, _end: 0.0,
    }  # fmt: skip
    of_kernels: dict[str, Any] = {
        "configure": configure, "forall": forall, "compile": declare, "disable_compile": lambda _, _value=True: None,
    }  # fmt: skip
    device: dict[str, Any] = {"get_current_device": lambda: context}
    with (
        patch.multiple(cuda, **host),
        patch.multiple(dispatchers, **device),
        patch.multiple(dispatchers.CUDADispatcher, **of_kernels),
    ):
        yield
