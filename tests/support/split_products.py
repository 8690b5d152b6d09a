"""Products of float32 in pieces, as kernels multiply them, on the emulator's tensor cores; and their exact values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.tensor_core import TensorCore, rule_of
from matmill.emulator.arith.tf32 import to_tf32
from matmill.precision import METHODS, UNIT, absolute_error, deepest, error_bound

Array = NDArray[Any]
_SECOND = 2.0**11
#: The factor of elements that are split in registers.
_REGISTERS = np.float32(2.0**12)
_TERMS = {"fp16x3": "f16", "tf32x3": "tf32", "tf32x3_registers": "tf32"}
#: Terms whose products of a lower and a higher piece are summed before those of a higher and a lower one: a k-step.
_STEPS = {"fp16x3": 64, "tf32x3": 32, "tf32x3_registers": 8}
#: The sizes of elements that tf32 pieces in memory may have, from the first to below the second.
TF32_SIZES = 2.0**-126, 2.0**54
_BUFFERS = Buffers()


@dataclass(frozen=True)
class Sums:
    """A method's sums, right or with a planted mistake.

    ``chunk`` is the number of terms between two promotions, None for all of k; without ``second`` second pieces are 0.
    """

    method: str
    chunk: int | None = 0
    second: bool = True

    def product(self, a: Array, b: Array) -> Array:
        """Return A @ B in float32, for A (m, k) and B (k, n). Sums in registers that are not finite are FMA's."""
        exponents: Array = np.zeros((1, 1), np.int32)
        if self.method == "fp16x3":
            (a, of_a), (b, of_b) = scaled(a, axis=1), scaled(b, axis=0)
            exponents = of_a + of_b
        a_pieces, b_pieces = (self._pieces(x)[..., np.newaxis] for x in (a.T, b))
        totals = self._sum(a_pieces, b_pieces.swapaxes(-1, -2))
        if METHODS[self.method].shared:
            with np.errstate(all="ignore"):
                return np.where(np.isfinite(totals), totals * (1 / _REGISTERS**2), by_fma(a, b))
        half = exponents >> 1
        result: Array = np.ldexp(np.ldexp(totals, half), exponents - half)
        return result

    def _pieces(self, x: Array) -> Array:
        """Return first and second pieces (2, *x.shape) of scaled elements, as float32."""
        x = np.ascontiguousarray(x)
        if METHODS[self.method].shared:
            with np.errstate(all="ignore"):
                x = x * _REGISTERS
                first = self._rounded(x)
                second = to_tf32(x - first, "rz").view(np.float32)
        else:
            first = self._rounded(x)
            second = self._rounded((x - first) * np.float32(_SECOND))
        return np.stack([first, second * np.float32(self.second)])

    def _rounded(self, x: Array) -> Array:
        if _TERMS[self.method] == "f16":
            return x.astype(np.float16).astype(np.float32)
        return to_tf32(x, "rna").view(np.float32)

    def _sum(self, a: Array, b: Array) -> Array:
        """Return float32 sums (m, n) of pieces of A (2, k, m, 1) and of B (2, k, 1, n)."""
        rule, k = METHODS[self.method], a.shape[1]
        core = TensorCore(rule_of("sm_90a", _TERMS[self.method], "f32"), _BUFFERS)
        totals = np.zeros((a.shape[2], b.shape[3]), np.float32)
        chunk = k if self.chunk is None else self.chunk or rule.chunk
        for first in range(0, k, chunk):
            (a_high, a_low), (b_high, b_low) = (x[:, first : first + chunk] for x in (a, b))
            small, big = np.zeros_like(totals), np.zeros_like(totals)
            step = _STEPS[self.method]
            for some in (slice(row, row + step) for row in range(0, len(a_high), step)):
                for left, right, sums in ((a_low, b_high, small), (a_high, b_low, small), (a_high, b_high, big)):
                    core.add(core.factor(left[some]), core.factor(right[some]), big if rule.shared else sums)
            # One rounding each: float64 is so wide that rounding twice is rounding once.
            totals = (totals.astype(np.float64) + small.astype(np.float64) / _SECOND).astype(np.float32)
            with np.errstate(all="ignore"):
                totals += big
        return totals


def by_fma(a: Array, b: Array) -> Array:
    """Return A @ B by FMA, term by term from 0; the product is exact in float64, and the sum rounded twice."""
    totals = np.zeros((len(a), b.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for column, row in zip(a.T, b.astype(np.float64), strict=True):
            totals = (totals + np.outer(column, row)).astype(np.float32)
    return totals


def expected(method: str, a: Array, b: Array) -> Array:
    """Return A @ B as the kernels of a method give it: in registers, where pieces in memory do not suffice."""
    return Sums(summed_by(method, a, b)).product(a, b)


def summed_by(method: str, a: Array, b: Array) -> str:
    """Return the method by which a product is summed in the end."""
    return method if METHODS[method].shared or suffice(method, a, b) else "tf32x3_registers"


def scaled(x: Array, axis: int) -> tuple[Array, Array]:
    """Return the matrix with the largest sizes along an axis in [2**14, 2**15), and the exponents taken out of it.

    Exponents are -126 and more: sizes below 2**-112 stay smaller.
    """
    exponents = _exponents(x, axis)
    return np.ldexp(x.astype(np.float64), -exponents).astype(np.float32), exponents


def _exponents(x: Array, axis: int) -> Array:
    most = np.abs(x).max(axis=axis, keepdims=True)
    return np.where(most == 0, 0, np.maximum(np.frexp(most)[1] - 15, -126))


def depth(x: Array, axis: int) -> float:
    """Return how far elements other than 0 are below the least size of fp16x3, once their row or column is scaled."""
    sizes = np.ldexp(np.abs(x).astype(np.float64), -_exponents(x, axis))[x != 0]
    return float(max(1.0, METHODS["fp16x3"].least / sizes.min(initial=1.0)))


def suffice(method: str, a: Array, b: Array) -> bool:
    """Tell whether a method's pieces in memory are as exact as FMA; else elements are split again, in registers."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    if method == "fp16x3":
        return depth(a, 1) * depth(b, 0) <= deepest(a.shape[1])
    least, most = TF32_SIZES
    return all(((x == 0) | (np.abs(x) >= least) & (np.abs(x) < most)).all() for x in (a, b))


def share_of_bound(method: str, a: Array, b: Array, result: Array) -> float:
    """Return the largest error of A @ B as a share of the bound that holds for these elements."""
    deep = depth(a, 1) * depth(b, 0) if method == "fp16x3" else 1.0
    least = METHODS[method].least if method in METHODS and method != "fp16x3" else 0.0
    a_sizes, b_sizes = (np.where(x != 0, np.maximum(np.abs(x.astype(np.float64)), least), 0) for x in (a, b))
    k = a.shape[1]
    bound = error_bound(method, k, deep) * UNIT * (a_sizes @ b_sizes) + absolute_error(k)
    return float(np.max(np.abs(result - exact(a, b)) / bound))


def exact(a: Array, b: Array) -> Array:
    """Return A @ B summed in long double: every product of float32 numbers is exact in float64."""
    wide = b.astype(np.float64)
    return np.stack([np.sum(row[:, np.newaxis] * wide, axis=0, dtype=np.longdouble) for row in a.astype(np.float64)])
