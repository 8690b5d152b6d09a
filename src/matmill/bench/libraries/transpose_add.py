"""Transpose+add of libraries to compare with, on matrices that are on the GPU: torch, its compiler, Triton, CuPy.

A library is imported when its peer is created. Each writes a new result or its own, never y.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.bench.libraries.blas import LibraryProduct
from matmill.bench.libraries.gemm import BFLOAT, DeviceMemory, as_tensor, tried
from matmill.bench.libraries.torch_cupy import CupyCalls, TorchCalls
from matmill.bench.problems.transpose_sums import TransposeAddInputs
from matmill.dtypes import DType
from matmill.runtime.clock import StreamHandle

EAGER, COMPILED, TUNED, TRITON, CUPY = "torch eager", "torch.compile", "max-autotune", "Triton", "CuPy"
#: The same sum as ``y + x.transpose(-2, -1)``: torch gives a result the layout of its first operand.
COMPILED_AS_Y = "torch.compile, y first"
#: Plain "max-autotune" uses CUDA graphs, with which torch.compile copies the inputs before each call.
_TUNED_MODE = "max-autotune-no-cudagraphs"

#: CuPy has no bfloat16: the kernel adds in float32 and rounds the bits to nearest even.
_BFLOAT_SUM = """
const float sum = __uint_as_float(unsigned(x) << 16) + __uint_as_float(unsigned(y) << 16);
const unsigned bits = __float_as_uint(sum);
z = sum == sum ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fffu;
"""


def transpose_add_peers(inputs: TransposeAddInputs, x: int, y: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return the libraries that add the transposed x at one address to the y at the other, and why others do not."""
    problem, dtype = inputs.problem, inputs.problem.dtype
    memory = (
        DeviceMemory(x, (problem.n, problem.m), (problem.m, 1), dtype),
        DeviceMemory(y, (problem.m, problem.n), (problem.n, 1), dtype),
    )
    absent = []
    makers: dict[str, Callable[[], LibraryProduct]] = {}
    if find_spec("torch") is None:
        absent.append("not compared with torch, which is not installed")
    elif not importlib.import_module("torch").cuda.is_available():
        absent.append("not compared with torch, a build without CUDA")
    else:
        makers |= torch_peers(as_tensor(memory[0], dtype), as_tensor(memory[1], dtype), dtype)
    if find_spec("cupy") is None:
        absent.append("not compared with CuPy, which is not installed")
    else:
        asarray = importlib.import_module("cupy").asarray
        makers[CUPY] = lambda: CupySum(asarray(memory[0]), asarray(memory[1]), dtype)
    peers, refused = tried(makers, StreamHandle(0))
    return peers, [*absent, *refused]


def torch_peers(x: Any, y: Any, dtype: DType, *, tuned: bool = True) -> dict[str, Callable[[], LibraryProduct]]:
    """Return constructors of the peers that take torch tensors, by name.

    ``tuned`` includes the compiler's slowest mode.
    """
    compiled = importlib.import_module("torch").compile
    makers: dict[str, Callable[[], LibraryProduct]] = {
        EAGER: lambda: TorchSum(EAGER, _sum, x, y, dtype),
        COMPILED: lambda: TorchSum(COMPILED, compiled(_sum, dynamic=False), x, y, dtype),
    }
    if tuned:
        makers[TUNED] = lambda: TorchSum(TUNED, compiled(_sum, dynamic=False, mode=_TUNED_MODE), x, y, dtype)
    if find_spec("triton") is not None:
        makers[TRITON] = lambda: _triton(x, y, dtype)
    return makers


def compiled_as_y(x: Any, y: Any, dtype: DType) -> TorchSum:
    """Return the peer :data:`COMPILED_AS_Y`."""
    compiled = importlib.import_module("torch").compile(_sum_as_y, dynamic=False)
    return TorchSum(COMPILED_AS_Y, compiled, x, y, dtype)


def _sum(x: Any, y: Any) -> Any:
    return x.transpose(-2, -1) + y


def _sum_as_y(x: Any, y: Any) -> Any:
    return y + x.transpose(-2, -1)


def _triton(x: Any, y: Any, dtype: DType) -> TorchSum:
    written = importlib.import_module("matmill.bench.libraries.triton_tile").transpose_add
    out = importlib.import_module("torch").empty_like(y)

    def add(left: Any, right: Any) -> Any:
        written(left, right, out)
        return out

    peer = TorchSum(TRITON, add, x, y, dtype)
    peer.version = f"triton {importlib.import_module('triton').__version__}"
    return peer


class TorchSum:
    """A function of two tensors, called on the caller's stream."""

    def __init__(self, name: str, add: Callable[[Any, Any], Any], x: Any, y: Any, dtype: DType) -> None:
        self._calls = TorchCalls()
        self.name, self.version = name, self._calls.version
        self.call = partial(add, x, y)
        self._dtype = dtype
        self.sum: Any = None

    def run(self, stream: StreamHandle) -> None:
        """Enqueue the sum on the caller's stream."""
        with self._calls.on(stream):
            self.sum = self.call()

    def result(self) -> NDArray[Any]:
        """Return the sum, copied to the host."""
        return self._calls.host(self.sum, self._dtype.numpy)


class CupySum:
    """``cupy.add`` of a transposed view and a matrix; for bfloat16 a kernel on its bits, passed as integers."""

    name = CUPY

    def __init__(self, x: Any, y: Any, dtype: DType) -> None:
        self._calls = CupyCalls()
        self.version, cupy = self._calls.version, self._calls.cupy
        self._x, self._y, self._dtype = x.swapaxes(-2, -1), y, dtype
        self.sum = cupy.empty_like(y)
        self._add = self._plain = cupy.add
        if dtype.name == BFLOAT:
            self._x, self._y, self.sum = (matrix.view(np.uint16) for matrix in (self._x, y, self.sum))
            self._add = cupy.ElementwiseKernel("uint16 x, uint16 y", "uint16 z", _BFLOAT_SUM, "bfloat_sum")

    def run(self, stream: StreamHandle) -> None:
        """Enqueue the sum on the caller's stream."""
        with self._calls.on(stream):
            self.call()

    def call(self) -> None:
        """Enqueue the sum on CuPy's current stream."""
        if self._add is self._plain:
            self._add(self._x, self._y, out=self.sum)
        else:
            self._add(self._x, self._y, self.sum)

    def result(self) -> NDArray[Any]:
        """Return the sum, copied to the host."""
        return self._calls.host(self.sum).view(self._dtype.numpy)
