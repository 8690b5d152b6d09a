"""Products of libraries to compare with, on matrices that are on the GPU already: torch.mm, torch.einsum, CuPy.

The libraries get addresses, through ``__cuda_array_interface__``, so that inputs that fill most of a GPU are there
once. They are imported when they are first needed, and use full precision: no TF32, and no 16-bit sums of 16-bit
numbers unless these are compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from matmill.bench.libraries.blas import CupyProduct, Float16Sums, LibraryProduct, TorchProduct, cublas, installed
from matmill.bench.problems.inputs import Inputs
from matmill.dtypes import F16, DType
from matmill.problem import Gemm
from matmill.runtime.clock import StreamHandle

BFLOAT = "bfloat16"
WIDE, NARROW = "cuBLAS, float32 sums", "cuBLAS, float16 sums"
#: The interface has no type for bfloat16: its bits are passed as integers, and viewed as bfloat16 by torch.
_BITS = "<i2"

L = TypeVar("L", bound=LibraryProduct)


def peers(inputs: Inputs, a: int, b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return the libraries that multiply the matrices at the addresses ``a`` and ``b``, and why others do not.

    A library that refuses the product on its first run, or has no GPU, is omitted, with its error message.
    """
    makers = {"torch": (_torch_mm, _torch_einsum), "cupy": (_cupy_matmul,)}
    tries = [(f"{name} ({make.__name__.strip('_')})", make) for name in installed() for make in makers[name]]
    return tried({name: partial(make, inputs, a, b) for name, make in tries}, StreamHandle(0))


def cublas_of_copies(inputs: Inputs, _a: int, _b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return ``cublasSgemm`` on copies of the host's matrices, through torch or else CuPy, if one of them works."""
    peer = cublas(inputs.a, inputs.b)
    return [peer] if peer is not None else [], []


def half_peers(inputs: Inputs, a: int, b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return cuBLAS products of the 16-bit matrices at ``a`` and ``b``, with sums in float32 and in float16.

    Through torch, or else CuPy. CuPy has only float32 sums, and so has bfloat16. The reasons against others are as in
    :func:`peers`.
    """
    dtype = inputs.problem.dtype
    absent: list[str] = []
    makers: dict[str, Callable[[], LibraryProduct]] = {}
    torch: Any = importlib.import_module("torch") if "torch" in installed() else None
    if torch is not None and torch.cuda.is_available():
        makers[WIDE] = lambda: TorchProduct(WIDE, *_torch_tensors(inputs, a, b), dtype.numpy)
        offered = hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation")
        if dtype is F16 and offered:
            makers[NARROW] = lambda: Float16Sums(NARROW, *_torch_tensors(inputs, a, b), dtype.numpy)
        elif dtype is F16:
            absent.append(f"not compared with {NARROW}: torch has them since 2.7, and this is {torch.__version__}")
    elif "cupy" in installed():
        makers[WIDE] = partial(_cupy_matmul, inputs, a, b, WIDE)
    peers, refused = tried(makers, StreamHandle(0))
    return peers, [*absent, *refused]


def tried(
    makers: Mapping[str, Callable[[], L]],
    stream: StreamHandle,
    wait: Callable[[L], object] = lambda peer: peer.result(),
) -> tuple[list[L], list[str]]:
    """Return the products of ``makers``, each run once on ``stream``, and the error messages of those that failed.

    ``wait`` returns when a run is complete, or raises its error.
    """
    working: list[L] = []
    absent: list[str] = []
    for name, make in makers.items():
        try:
            peer = make()
            peer.run(stream)
            wait(peer)
        except Exception as error:  # noqa: BLE001 — a library's error of any class: it is reported
            absent.append(f"not compared with {name}: {_first_line(error)}")
        else:
            working.append(peer)
    return working, absent


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class DeviceMemory:
    """Device memory with a ``__cuda_array_interface__``; strides in elements."""

    def __init__(self, address: int, shape: tuple[int, int], strides: tuple[int, int], dtype: DType) -> None:
        size = dtype.itemsize
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": tuple(size * stride for stride in strides),
            "typestr": _BITS if dtype.name == BFLOAT else dtype.numpy.str,
        }


def as_tensor(memory: DeviceMemory, dtype: DType) -> Any:
    """Return the memory as a torch tensor."""
    torch: Any = importlib.import_module("torch")
    return torch.as_tensor(memory, device="cuda").view(getattr(torch, dtype.name))


def _operands(problem: Gemm, a: int, b: int) -> tuple[DeviceMemory, DeviceMemory]:
    return (
        DeviceMemory(a, (problem.m, problem.k), problem.a_row_col, problem.dtype),
        DeviceMemory(b, (problem.k, problem.n), problem.b_row_col, problem.dtype),
    )


def _torch_tensors(inputs: Inputs, a: int, b: int) -> tuple[Any, Any]:
    left, right = (as_tensor(memory, inputs.problem.dtype) for memory in _operands(inputs.problem, a, b))
    return left, right


def _torch_mm(inputs: Inputs, a: int, b: int) -> LibraryProduct:
    """Return ``torch.mm``, which is cuBLAS."""
    return TorchProduct("torch.mm", *_torch_tensors(inputs, a, b), inputs.problem.dtype.numpy)


def _torch_einsum(inputs: Inputs, a: int, b: int) -> LibraryProduct:
    """Return ``torch.einsum``."""
    return TorchProduct("torch einsum", *_torch_tensors(inputs, a, b), inputs.problem.dtype.numpy, einsum=True)


def _cupy_matmul(inputs: Inputs, a: int, b: int, name: str = "CuPy matmul") -> LibraryProduct:
    """Return ``cupy.matmul``."""
    if inputs.problem.dtype.name == BFLOAT:
        raise TypeError(f"{BFLOAT} is not handed to it")
    cupy: Any = importlib.import_module("cupy")
    left, right = (cupy.asarray(x) for x in _operands(inputs.problem, a, b))
    return CupyProduct(name, left, right)
