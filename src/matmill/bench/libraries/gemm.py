"""What users of products have today: torch.mm, torch.einsum and CuPy's matmul, on matrices already there.

The libraries are handed addresses, through ``__cuda_array_interface__``, so that inputs which fill most of a GPU are on
it once. They are imported only when they are looked for, and asked for full precision: no TF32, and no sums of
16-bit numbers in 16 bits but where these are what is compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from matmill.bench.libraries.blas import CupyProduct, Float16Sums, LibraryProduct, TorchProduct, cublas, installed
from matmill.bench.problems.inputs import Inputs
from matmill.bench.timing.clock import StreamHandle
from matmill.dtypes import F16, DType
from matmill.problem import Gemm

BFLOAT = "bfloat16"
WIDE, NARROW = "cuBLAS, float32 sums", "cuBLAS, float16 sums"
#: bfloat16 has no name in the interface: its bits travel as integers, and torch looks at them as what they are.
_BITS = "<i2"

L = TypeVar("L", bound=LibraryProduct)


def peers(inputs: Inputs, a: int, b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return the libraries at hand that multiply the matrices at the addresses ``a`` and ``b``, and why others do not.

    A library that refuses the product when it is first tried, or that has no GPU, is left out with its words.
    """
    makers = {"torch": (_torch_mm, _torch_einsum), "cupy": (_cupy_matmul,)}
    tries = [(f"{name} ({make.__name__.strip('_')})", make) for name in installed() for make in makers[name]]
    return tried({name: partial(make, inputs, a, b) for name, make in tries}, StreamHandle(0))


def cublas_of_copies(inputs: Inputs, _a: int, _b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return ``cublasSgemm`` on copies of the host's matrices, through torch or else CuPy, if one of them works."""
    peer = cublas(inputs.a, inputs.b)
    return [peer] if peer is not None else [], []


def half_peers(inputs: Inputs, a: int, b: int) -> tuple[list[LibraryProduct], list[str]]:
    """Return the products of cuBLAS of the 16-bit matrices at ``a`` and ``b``, with sums in float32 and in float16.

    Through torch, or else CuPy, which has the first alone, as bfloat16 has. Why others are not there, as :func:`peers`.
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
    """Return what ``makers`` make, each run once on ``stream``, and why others are not there: in a library's own words.

    ``wait`` returns when a run is over, or raises what went wrong.
    """
    working: list[L] = []
    absent: list[str] = []
    for name, make in makers.items():
        try:
            peer = make()
            peer.run(stream)
            wait(peer)
        except Exception as error:  # noqa: BLE001 — a library's own errors, of whatever class: it is told, not hidden
            absent.append(f"not compared with {name}: {_first_line(error)}")
        else:
            working.append(peer)
    return working, absent


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class Device:
    """Device memory as ``__cuda_array_interface__`` describes it; strides in elements."""

    def __init__(self, address: int, shape: tuple[int, int], strides: tuple[int, int], dtype: DType) -> None:
        size = dtype.itemsize
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": shape,
            "strides": tuple(size * stride for stride in strides),
            "typestr": _BITS if dtype.name == BFLOAT else dtype.numpy.str,
        }


def as_tensor(memory: Device, dtype: DType) -> Any:
    """Return that memory as a tensor of torch."""
    torch: Any = importlib.import_module("torch")
    return torch.as_tensor(memory, device="cuda").view(getattr(torch, dtype.name))


def _operands(problem: Gemm, a: int, b: int) -> tuple[Device, Device]:
    return (
        Device(a, (problem.m, problem.k), problem.a_row_col, problem.dtype),
        Device(b, (problem.k, problem.n), problem.b_row_col, problem.dtype),
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
