"""The reference result of a product and the error bounds of a kernel, for short sums and for long ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import ALL, F16, DType
from matmill.kernel import ceil_div
from matmill.reference import answer, bound

Array = NDArray[Any]
#: Takes A and B, returns the product and the largest error that each of its elements may have.
Exact = Callable[[Array, Array], tuple[Array, Array]]

_EPILOGUE = 3
#: Elements of A and B together that are converted to float64 at a time, per thread: 32 MiB.
_BLOCK = 2**22
#: The factor of the bound. One running sum in float32, the worst order, over k = 1e4..1e8 random products reaches at
#: most 0.05 of the bound. Sums of squares, as on the diagonal of a Gram matrix, reach at most 0.82 up to k = 1e6; a
#: longer running sum of squares stagnates, and is rightly refused.
_SPREAD = 8.0
#: Twice the size of running sums on average, over that of the sum (see :func:`matrix_limit`).
_CUT_OFF = 8.0
_NARROW_SPREAD = 4.0
#: The largest error of rounding to a float16 below the normal numbers.
_LOST = 2.0**-25


def any_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the product and the bound that no order of summation exceeds, for any numbers."""
    return answer(a, b), bound(a, b)


def random_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the product of matrices of independent random numbers, and a bound that stays useful for long k.

    The worst case, ``(k + 3) u |A||B|``, is larger than the product itself from some k on: in float32 from 1e5, so that
    a kernel that computes nothing would pass. But rounding errors of random numbers do not all have one sign. After
    Higham and Mary (Sharper probabilistic backward error analysis for basic linear algebra kernels with random data,
    SIAM J. Sci. Comput. 42(5), 2020) the error of a sum is of the order of ``u (|A||B| + sqrt(k) |AB|)``, where u is
    the unit roundoff of the type in which it is kept. The bound is 8 times that, or the worst case where that is less,
    and the rounding to a 16-bit result comes on top. float64 is compared with float64 sums, and its bound doubled.

    The inputs are read in blocks along k, so that no float64 copy of them is needed.
    """
    total, size = _summed(a, b)
    return total, random_limit(total, size, a.shape[1], ALL[a.dtype.name])


def random_limit(total: Array, size: Array, k: int, dtype: DType) -> Array:
    """Return the bound of :func:`random_sum` for a product and its |A| @ |B|, both in float64."""
    roundoff = dtype.accumulator.roundoff
    terms = (k + _EPILOGUE) * roundoff
    worst = terms / (1 - terms) if terms < 1 else inf
    double = dtype.accumulator.itemsize == 8
    limit: Array = np.minimum(worst * size, _SPREAD * roundoff * (size + sqrt(k) * np.abs(total)))
    limit += (k + _EPILOGUE) * float(np.finfo(np.float64 if double else np.float32).tiny)
    if dtype.wider is not None:
        limit += dtype.roundoff * (np.abs(total) + limit) + _smallest(dtype.numpy)
    elif double:
        limit *= 2
    return limit


def float16_sums(size: Array, k: int) -> Array:
    """Return the largest additional error of tensor-core sums in float16.

    ``size`` is |A| @ |B|. Every instruction rounds the running sum, at most k / 8 times (m16n8k8), each time by at most
    half an ulp of |A| |B|, which bounds the running sum; by 2^-25 below the normal numbers. Later roundings enlarge
    earlier errors: (1 + u)^(k / 8).

    >>> float(float16_sums(np.array(1.0), 8)) == 2.0**-11 * (1 + 2.0**-11) + 2.0**-25 * (1 + 2.0**-11)
    True
    """
    roundings = ceil_div(k, 8)
    limit: Array = roundings * (1 + F16.roundoff) ** roundings * (F16.roundoff * size + _LOST)
    return limit


def matrix_limit(total: Array, walk: Array, k: int, dtype: DType, *, acc16: bool) -> Array:
    """Return the largest error of a tensor-core product of independent random 16-bit numbers with mean 0.

    ``walk`` is the typical size of the sums: the norm of A's row times that of B's column over the square root of k.
    |A| |B| is at most the square root of k times that, so the worst case is ``(k + 3) u sqrt(k) walk``. But running
    sums of random numbers are of the size of ``walk`` themselves. Tensor cores truncate sums instead of rounding them
    to nearest (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ Comput. Sci. 7, 2021), so that their
    errors do have one sign, and :func:`random_limit` does not apply: in simulation such sums exceed it from k = 4096
    on. An error of 2 u for each addition to sums of 4 times ``walk`` gives ``8 (k + 3) u walk``, of which simulated
    truncated sums reach 0.04.

    With ``acc16`` sums are also rounded to the nearest float16, in errors that do not have one sign: the bound grows by
    4 times ``u sqrt(k / 8) (walk + |total|)``, of which simulated sums reach 0.37 for k from 64 to 16384, or by
    :func:`float16_sums` if that is less. The worst case exceeds the product itself from k = 1000 on, so that a kernel
    that computes nothing would pass.
    """
    roundoff = dtype.accumulator.roundoff
    limit: Array = (k + _EPILOGUE) * roundoff * min(sqrt(k), _CUT_OFF) * walk
    if acc16:
        random = _NARROW_SPREAD * F16.roundoff * sqrt(ceil_div(k, 8)) * (walk + np.abs(total))
        limit = limit + np.minimum(float16_sums(sqrt(k) * walk, k), random)
    limit += dtype.roundoff * (np.abs(total) + limit) + _smallest(dtype.numpy)
    return limit


def _smallest(dtype: np.dtype[Any]) -> float:
    """Return the smallest positive number of a 16-bit type; smaller numbers are lost in rounding."""
    bits: Array = np.array([1], np.uint16)
    return float(bits.view(dtype)[0])


def _summed(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a @ B and |A| @ |B| in float64, summed block by block in order."""
    k = a.shape[1]
    step = max(1024, _BLOCK // (a.shape[0] + b.shape[1]))

    def part(start: int) -> tuple[Array, Array]:
        x = a[:, start : start + step].astype(np.float64)
        y = b[start : start + step].astype(np.float64)
        return x @ y, np.abs(x) @ np.abs(y)

    total, size = np.zeros((2, a.shape[0], b.shape[1]))
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for products, sizes in pool.map(part, range(0, k, step)):
            total += products
            size += sizes
    return total, size
