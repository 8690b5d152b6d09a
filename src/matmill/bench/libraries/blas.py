"""BLAS to compare with: cuBLAS through torch or CuPy, and the CPU's BLAS.

torch and CuPy are imported only when :func:`cublas` is called, in runs on a GPU. Both use full float32: every
baseline's result is checked against the same float64 bound as matmill's, which TF32 would exceed.
"""

from __future__ import annotations

import importlib
import statistics
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from matmill.bench.libraries.torch_cupy import CupyCalls, TorchCalls
from matmill.bench.problems.inputs import Array, F32Array
from matmill.runtime.clock import StreamHandle


class LibraryProduct(Protocol):
    """A library's product of two fixed matrices on the GPU."""

    name: str
    version: str

    def run(self, stream: StreamHandle) -> None:
        """Enqueue A @ B into the prepared output."""

    def result(self) -> Array:
        """Return the output on the host, after all enqueued work."""


def installed() -> tuple[str, ...]:
    """Return the installed array libraries that bring cuBLAS, in order of preference, without importing them."""
    return tuple(name for name in ("torch", "cupy") if find_spec(name) is not None)


def cublas(a: F32Array, b: F32Array) -> LibraryProduct | None:
    """Return ``cublasSgemm`` on copies of ``a`` and ``b`` on the GPU through torch, else CuPy, or None without both."""
    for name in installed():
        library = importlib.import_module(name)
        if name == "cupy":
            return CupyProduct("cuBLAS (CuPy)", library.asarray(a), library.asarray(b))
        if library.cuda.is_available():  # false for a CPU build of torch
            return torch_product("cuBLAS (torch)", a, b)
    return None


def torch_product(name: str, a: Array, b: Array) -> TorchProduct:
    """Return ``torch.mm`` of copies of ``a`` and ``b`` on the GPU."""
    torch: Any = importlib.import_module("torch")

    def on_gpu(matrix: Array) -> Any:
        # As bits: torch does not know NumPy's bfloat16.
        bits = torch.from_numpy(matrix.view(f"i{matrix.itemsize}"))
        return bits.cuda().view(getattr(torch, matrix.dtype.name))

    return TorchProduct(name, on_gpu(a), on_gpu(b), a.dtype)


class TorchProduct:
    """``torch.mm`` (or ``torch.einsum``) of two tensors, without TF32 and without 16-bit sums of 16-bit numbers.

    ``dtype`` is the result's element type for NumPy, ``acc16`` says that sums are kept in float16.
    """

    acc16 = False

    def __init__(self, name: str, a: Any, b: Any, dtype: np.dtype[Any], *, einsum: bool = False) -> None:
        self._calls = TorchCalls()
        self.name, self.version = name, self._calls.version
        self._torch = torch = self._calls.torch
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self._a, self._b, self._dtype, self._einsum = a, b, dtype, einsum
        self._out = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype, device="cuda")
        torch.cuda.synchronize()

    def run(self, stream: StreamHandle) -> None:
        """Enqueue the product on the caller's stream."""
        with self._calls.on(stream):
            if self._einsum:
                self._out = self._torch.einsum("mk,kn->mn", self._a, self._b)  # it has no `out`
            else:
                self._torch.mm(self._a, self._b, out=self._out)

    def result(self) -> Array:
        """Return the product, copied to the host."""
        return self._calls.host(self._out, self._dtype)


class Float16Sums(TorchProduct):
    """``torch.mm`` of float16 tensors with sums in float16, which torch has since 2.7 as a global switch.

    The switch is on only during a call.
    """

    acc16 = True

    def run(self, stream: StreamHandle) -> None:
        """Enqueue the product on the caller's stream."""
        switches = self._torch.backends.cuda.matmul
        before = switches.allow_fp16_accumulation
        switches.allow_fp16_accumulation = True
        try:
            super().run(stream)
        finally:
            switches.allow_fp16_accumulation = before


class CupyProduct:
    """``cupy.matmul`` of two arrays, which is cuBLAS in full float32 unless ``CUPY_TF32=1`` is set."""

    acc16 = False

    def __init__(self, name: str, a: Any, b: Any) -> None:
        self._calls = CupyCalls()
        self.name, self.version = name, self._calls.version
        self._a, self._b = a, b
        self._out = self._calls.cupy.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype)
        self._calls.cupy.cuda.Device().synchronize()

    def run(self, stream: StreamHandle) -> None:
        """Enqueue the product on the caller's stream."""
        with self._calls.on(stream):
            self._calls.cupy.matmul(self._a, self._b, out=self._out)

    def result(self) -> Array:
        """Return the product, copied to the host."""
        return self._calls.host(self._out)


@dataclass(frozen=True)
class CpuProduct:
    """NumPy's product on the CPU: its result and the seconds it took."""

    name: str
    version: str
    seconds: float
    result: Array


def cpu_blas(a: Array, b: Array) -> CpuProduct:
    """Time ``numpy.matmul``: the median of the runs after the first that fit in a second, from 1 to 25 of them.

    >>> cpu_blas(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)).result.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    out = np.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
    first = _seconds(a, b, out)
    runs = max(1, min(25, int(1 / first)))
    samples = [_seconds(a, b, out) for _ in range(runs)]
    return CpuProduct("CPU BLAS (NumPy)", f"numpy {np.__version__}", statistics.median(samples), out)


def cpu_estimate(a: Array, b: Array) -> float:
    """Return an estimate of ``numpy.matmul``'s seconds, from the second of two runs on a short slice of k."""
    k = int(a.shape[1])
    part = min(k, 1 << 18)
    first, second = a[:, :part], b[:part]
    out = np.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
    _seconds(first, second, out)
    return _seconds(first, second, out) * (k / part)


def _seconds(a: Array, b: Array, out: Array) -> float:
    start = time.perf_counter()
    np.matmul(a, b, out=out)
    return time.perf_counter() - start
