"""What users of long inner products have today: torch.mm, torch.einsum and CuPy's matmul, on matrices already there.

The libraries are handed addresses, through ``__cuda_array_interface__``, so that inputs which fill most of a GPU lie on
it once. They are imported only when :func:`peers` is called, and asked for full precision: no TF32, and no sums of
16-bit numbers in 16 bits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from matmill.bench.baselines import LibraryProduct, installed
from matmill.bench.clock import StreamHandle
from matmill.bench.inputs import Array, Inputs
from matmill.problem import Gemm

_BFLOAT = "bfloat16"
#: bfloat16 has no name in the interface: its bits travel as integers, and torch looks at them as what they are.
_BITS = "<i2"


def peers(asked: Inputs, a: int, b: int) -> tuple[list[LibraryProduct], list[str]]:
    """The libraries at hand that multiply the matrices at the addresses ``a`` and ``b``, and why others do not.

    A library that refuses the product when it is first tried, or that has no GPU, is left out with its words.
    """
    found: list[LibraryProduct] = []
    absent: list[str] = []
    makers: dict[str, tuple[Callable[[Inputs, int, int], LibraryProduct], ...]] = {
        "torch": (_torch_mm, _torch_einsum),
        "cupy": (_CupyPeer,),
    }
    for name in installed():
        for make in makers[name]:
            try:
                peer = make(asked, a, b)
                peer.run(StreamHandle(0))
                peer.result()
            except Exception as error:  # noqa: BLE001 — a library's own errors, of whatever class: it is told, not hidden
                absent.append(f"not compared with {name} ({make.__name__.strip('_')}): {_first_line(error)}")
            else:
                found.append(peer)
    return found, absent


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Device:
    """Device memory as ``__cuda_array_interface__`` describes it."""

    def __init__(self, address: int, shape: tuple[int, int], strides: tuple[int, int], problem: Gemm) -> None:
        size = problem.dtype.itemsize
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": tuple(size * stride for stride in strides),
            "typestr": _BITS if problem.dtype.name == _BFLOAT else problem.dtype.numpy.str,
        }


def _operands(problem: Gemm, a: int, b: int) -> tuple[_Device, _Device]:
    return (
        _Device(a, (problem.m, problem.k), problem.a_row_col, problem),
        _Device(b, (problem.k, problem.n), problem.b_row_col, problem),
    )


class _TorchPeer:
    """A call of torch on two fixed matrices."""

    def __init__(self, asked: Inputs, a: int, b: int, name: str, call: str) -> None:
        self._torch: Any = importlib.import_module("torch")
        torch, problem = self._torch, asked.problem
        self.name = name
        self.version = f"torch {torch.__version__}"
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        kind = getattr(torch, problem.dtype.name)
        self._a, self._b = (torch.as_tensor(x, device="cuda").view(kind) for x in _operands(problem, a, b))
        self._out = torch.full((problem.m, problem.n), float("nan"), dtype=kind, device="cuda")
        self._einsum = call == "einsum"
        self._dtype = problem.dtype.numpy
        self._streams: dict[int, Any] = {}
        torch.cuda.synchronize()

    def run(self, stream: StreamHandle) -> None:
        """Enqueues the product on the caller's stream."""
        torch = self._torch
        if stream.address not in self._streams:
            self._streams[stream.address] = (
                torch.cuda.ExternalStream(stream.address) if stream.address else torch.cuda.default_stream()
            )
        with torch.cuda.stream(self._streams[stream.address]):
            if self._einsum:
                self._out = torch.einsum("mk,kn->mn", self._a, self._b)  # it has no `out`
            else:
                torch.mm(self._a, self._b, out=self._out)

    def result(self) -> Array:
        """The product, copied to the host; bfloat16 as its bits, since NumPy takes it so."""
        self._torch.cuda.synchronize()
        host: Array = self._out.cpu().contiguous().view(self._torch.uint8).numpy().view(self._dtype)
        return host


def _torch_mm(asked: Inputs, a: int, b: int) -> LibraryProduct:
    """``torch.mm``, which is cuBLAS."""
    return _TorchPeer(asked, a, b, "torch.mm", "mm")


def _torch_einsum(asked: Inputs, a: int, b: int) -> LibraryProduct:
    """``torch.einsum``."""
    return _TorchPeer(asked, a, b, "torch einsum", "einsum")


class _CupyPeer:
    """``cupy.matmul``."""

    def __init__(self, asked: Inputs, a: int, b: int) -> None:
        problem = asked.problem
        if problem.dtype.name == _BFLOAT:
            raise TypeError(f"{_BFLOAT} is not handed to it")
        self._cupy: Any = importlib.import_module("cupy")
        cupy = self._cupy
        self.name = "CuPy matmul"
        self.version = f"cupy {cupy.__version__}"
        self._a, self._b = (cupy.asarray(x) for x in _operands(problem, a, b))
        self._out = cupy.full((problem.m, problem.n), float("nan"), dtype=problem.dtype.numpy)
        cupy.cuda.Device().synchronize()

    def run(self, stream: StreamHandle) -> None:
        """Enqueues the product on the caller's stream."""
        with self._cupy.cuda.ExternalStream(stream.address):
            self._cupy.matmul(self._a, self._b, out=self._out)

    def result(self) -> Array:
        """The product, copied to the host."""
        self._cupy.cuda.Device().synchronize()
        host: Array = self._cupy.asnumpy(self._out)
        return host
