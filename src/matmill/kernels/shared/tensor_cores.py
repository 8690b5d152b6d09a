"""Which elements the tensor cores of a GPU multiply by mma.sync."""

from __future__ import annotations

from matmill.arch import Arch
from matmill.dtypes import BF16, F16, F32
from matmill.precision import SHORTEST_K
from matmill.problem import Gemm

#: Products of tf32 for one of float32, whose operands are split in two: the fourth is too small to count.
TF32_PRODUCTS = 3
#: Of an element of 16 bits.
ELEMENT_BYTES = 2


def splits_float32(problem: Gemm, method: str) -> bool:
    """Tell whether tensor cores may multiply the problem's float32 elements by ``method`` (:data:`SPLIT_METHODS`).

    >>> [splits_float32(Gemm(8, 8, k, precision="float32_tensor"), "tf32x3") for k in (85, 86)]
    [False, True]
    """
    return problem.dtype is F32 and method in problem.split_methods and problem.k >= SHORTEST_K


def why_not_tensor_cores(problem: Gemm, arch: Arch, *, acc16: bool = False) -> str | None:
    """Say why the tensor cores of ``arch`` cannot multiply the problem's elements, or None; ``acc16`` sums in float16.

    >>> from matmill.arch import get
    >>> why_not_tensor_cores(Gemm(8, 8, 8, BF16), get("t4"))
    'mma.sync on bfloat16 needs compute capability 8.0: t4 has 7.5'
    """
    if problem.dtype not in (F16, BF16):
        return f"{problem.dtype.name} is not float16 or bfloat16"
    oldest = (7, 5) if problem.dtype is F16 else (8, 0)
    if arch.capability < oldest:
        needed, own = (".".join(map(str, version)) for version in (oldest, arch.capability))
        return f"mma.sync on {problem.dtype.name} needs compute capability {needed}: {arch.name} has {own}"
    if problem.dtype is BF16 and acc16:
        return "tensor cores sum products of bfloat16 in float32 alone"
    return None
