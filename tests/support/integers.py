"""Products of integers: numbers of the whole range, and what they are exactly, modulo a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from matmill.dtypes import I32, PRODUCTS, DType
from matmill.kernel import Kernel
from matmill.problem import Gemm
from support.strided import Array, Layout
from support.strided_product import StridedProduct

INTEGERS = {name: dtype for name, dtype in PRODUCTS.items() if dtype.is_integer}


def random(seed: int, *shape: int, dtype: str) -> Array:
    """Draw numbers of the whole range of a type, its ends among them more often than others."""
    rng, ends = np.random.default_rng(seed), np.iinfo(dtype)
    numbers = rng.integers(ends.min, ends.max, shape, dtype=dtype, endpoint=True)
    where = rng.integers(0, 16, shape)
    return np.where(where == 0, np.dtype(dtype).type(ends.min), np.where(where == 1, ends.max, numbers)).astype(dtype)


def wrapped(numbers: Any, dtype: np.dtype[Any]) -> Array:
    """Return Python's integers modulo the power of two of a type, as it represents them."""
    return np.array(np.asarray(numbers, object) & (1 << 8 * dtype.itemsize) - 1, np.uint64).astype(dtype)


def exact(a: Array, b: Array, c: Array | None = None, alpha: int = 1, beta: int = 0) -> Array:
    """Return ``alpha * a @ b + beta * c`` in Python's integers, wrapped to the type of the result."""
    kind = np.dtype(np.int32) if a.itemsize == 1 else a.dtype
    sums: Any = np.matmul(a.astype(object), b.astype(object)) * alpha
    return wrapped(sums if c is None else sums + c.astype(object) * beta, kind)


@dataclass
class IntegerProduct(StridedProduct):
    """A product of integers, which is exact; its buffers hold ones in all bits where no number is drawn."""

    beta: float = 3

    def __post_init__(self) -> None:
        self.out_dtype = I32 if self.dtype.itemsize == 1 else None
        super().__post_init__()

    def _drawn(self, rng: np.random.Generator, layout: Layout, shape: tuple[int, int], dtype: DType) -> Array:
        view = layout.view(self.batch, *shape, dtype.numpy)
        first = view[:1] if layout.shared else view
        first[...] = random(int(rng.integers(99)), *first.shape, dtype=dtype.name)
        return view

    def excess(self, kernel: Kernel[Gemm] | None = None) -> float:
        """Return 0 where every element is exact and nothing else is written, else infinity."""
        del kernel
        a, b = (self.arrays[name] for name in "AB")
        answer = exact(a, b, self.addend(), int(self.alpha), int(self.beta))
        return 0.0 if self.untouched() and (self.arrays["D"] == answer).all() else np.inf
