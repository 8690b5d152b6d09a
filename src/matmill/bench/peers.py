"""What users of long inner products have today: torch.mm, torch.einsum and CuPy's matmul, on matrices already there.

The libraries are handed addresses, through ``__cuda_array_interface__``, so that inputs which fill most of a GPU lie on
it once. They are imported only when :func:`peers` is called, and asked for full precision: no TF32, and no sums of
16-bit numbers in 16 bits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from matmill.bench.baselines import CupyProduct, LibraryProduct, TorchProduct, installed
from matmill.bench.clock import StreamHandle
from matmill.bench.inputs import Inputs
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
        "cupy": (_cupy_matmul,),
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


def _torch_tensors(asked: Inputs, a: int, b: int) -> tuple[Any, Any]:
    torch: Any = importlib.import_module("torch")
    kind = getattr(torch, asked.problem.dtype.name)
    left, right = (torch.as_tensor(x, device="cuda").view(kind) for x in _operands(asked.problem, a, b))
    return left, right


def _torch_mm(asked: Inputs, a: int, b: int) -> LibraryProduct:
    """``torch.mm``, which is cuBLAS."""
    return TorchProduct("torch.mm", *_torch_tensors(asked, a, b), asked.problem.dtype.numpy)


def _torch_einsum(asked: Inputs, a: int, b: int) -> LibraryProduct:
    """``torch.einsum``."""
    return TorchProduct("torch einsum", *_torch_tensors(asked, a, b), asked.problem.dtype.numpy, einsum=True)


def _cupy_matmul(asked: Inputs, a: int, b: int) -> LibraryProduct:
    """``cupy.matmul``."""
    if asked.problem.dtype.name == _BFLOAT:
        raise TypeError(f"{_BFLOAT} is not handed to it")
    cupy: Any = importlib.import_module("cupy")
    left, right = (cupy.asarray(x) for x in _operands(asked.problem, a, b))
    return CupyProduct("CuPy matmul", left, right)
