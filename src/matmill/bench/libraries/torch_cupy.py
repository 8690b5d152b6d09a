"""Calls of torch and CuPy on a given stream, and their results on the host.

Both libraries are imported when a :class:`TorchCalls` or :class:`CupyCalls` is created.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.runtime.clock import StreamHandle

Array = NDArray[Any]


class TorchCalls:
    """torch, with its calls enqueued on the timing stream."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.version = f"torch {self.torch.__version__}"
        self._streams: dict[int, Any] = {}

    def on(self, stream: StreamHandle) -> AbstractContextManager[Any]:
        """Return a context in which torch enqueues on ``stream``."""
        cuda = self.torch.cuda
        if stream.address not in self._streams:
            self._streams[stream.address] = (
                cuda.ExternalStream(stream.address) if stream.address else cuda.default_stream()
            )
        within: AbstractContextManager[Any] = cuda.stream(self._streams[stream.address])
        return within

    def host(self, tensor: Any, dtype: np.dtype[Any]) -> Array:
        """Return a copy of a complete ``tensor``, through bytes because NumPy does not take torch's bfloat16."""
        self.torch.cuda.synchronize()
        data: Array = tensor.cpu().contiguous().view(self.torch.uint8).numpy()
        return data.view(dtype)


class CupyCalls:
    """CuPy, with its calls enqueued on the timing stream."""

    def __init__(self) -> None:
        self.cupy: Any = importlib.import_module("cupy")
        self.version = f"cupy {self.cupy.__version__}"

    def on(self, stream: StreamHandle) -> AbstractContextManager[Any]:
        """Return a context in which CuPy enqueues on ``stream``."""
        within: AbstractContextManager[Any] = self.cupy.cuda.ExternalStream(stream.address)
        return within

    def host(self, array: Any) -> Array:
        """Return a copy of a complete ``array``."""
        self.cupy.cuda.Device().synchronize()
        copy: Array = self.cupy.asnumpy(array)
        return copy
