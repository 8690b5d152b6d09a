"""The right answer of a product and how far a right kernel may be from it, for short sums and for long ones."""

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
#: From A and B to the product and the largest error that each of its elements may have.
Exact = Callable[[Array, Array], tuple[Array, Array]]

_EPILOGUE = 3
#: Elements of A and B together that are converted to float64 at a time, per thread: 32 MiB.
_BLOCK = 2**22
#: One running sum in float32, the worst of orders, over k = 1e4..1e8 random products: at most 0.05 of the bound that
#: this makes. Of squares, as on the diagonal of a Gram matrix, at most 0.82 up to k = 1e6; a longer running sum of
#: these stagnates, and is rightly refused.
_SPREAD = 8.0
#: Twice the size of running sums on average, over that of the sum (see :func:`matrix_limit`).
_CUT_OFF = 8.0
_NARROW_SPREAD = 4.0
#: What rounding to a float16 below the normal numbers may cost.
_LOST = 2.0**-25


def any_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the product and the bound that no order of summation exceeds, whatever the numbers."""
    return answer(a, b), bound(a, b)


def random_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the product of matrices of independent random numbers, and a bound that is still of use where k is long.

    The worst case, ``(k + 3) u |A||B|``, is larger than the product itself from some k on: in float32 from 1e5, so that
    a kernel which computes nothing would pass. Rounding errors of random numbers do not all point one way. After Higham
    and Mary (Sharper probabilistic backward error analysis for basic linear algebra kernels with random data, SIAM J.
    Sci. Comput. 42(5), 2020) the error of a sum is of the order of ``u (|A||B| + sqrt(k) |AB|)``, where u is the unit
    roundoff of the type in which it is kept. The bound is 8 times that, or the worst case where that is less, and the
    rounding to a 16-bit result comes on top. float64 is compared with float64 sums, and its bound doubled.

    The inputs are read in blocks along k, so that no float64 copy of them is needed.
    """
    total, size = _summed(a, b)
    return total, random_limit(total, size, a.shape[1], ALL[a.dtype.name])


def random_limit(total: Array, size: Array, k: int, dtype: DType) -> Array:
    """Return the bound of :func:`random_sum` from its product and |A| @ |B|, both in float64."""
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
    """Return the most that sums kept in float16 by the tensor cores may add to the error.

    ``size`` is |A| @ |B|. Every instruction rounds the running sum, k / 8 times at the most (m16n8k8), each time by at
    most half a unit of what it is then, which |A| |B| is never less than; below the normal numbers by 2^-25. What
    rounding adds to the running sum is rounded too: (1 + u)^(k / 8).

    >>> float(float16_sums(np.array(1.0), 8)) == 2.0**-11 * (1 + 2.0**-11) + 2.0**-25 * (1 + 2.0**-11)
    True
    """
    roundings = ceil_div(k, 8)
    limit: Array = roundings * (1 + F16.roundoff) ** roundings * (F16.roundoff * size + _LOST)
    return limit


def matrix_limit(total: Array, walk: Array, k: int, dtype: DType, *, acc16: bool) -> Array:
    """Say how far a right tensor-core product of independent random 16-bit numbers of mean 0 may be from ``total``.

    ``walk`` is what the sums are on average in size: the norm of the row of A times that of the column of B over the
    square root of k. |A| |B| is at most the square root of k times that, so the worst case is
    ``(k + 3) u sqrt(k) walk``. But running sums of random numbers are of the size of ``walk`` themselves. Tensor cores
    cut sums off instead of rounding them to the nearest (Fasi et al., Numerical behavior of NVIDIA tensor cores, PeerJ
    Comput. Sci. 7, 2021), so errors do point one way, and :func:`random_limit` is not for them: in simulation such sums
    exceed it from k = 4096 on. 2 u for each addition to sums of 4 times ``walk`` make ``8 (k + 3) u walk``, of which
    simulated sums that are cut off reach 0.04.

    With ``acc16`` sums are rounded to the nearest float16 besides, in errors that do not point one way: 4 times
    ``u sqrt(k / 8) (walk + |total|)``, of which simulated ones reach 0.37 for k from 64 to 16384, or
    :func:`float16_sums` where that is less. The worst case is beyond the product itself from k = 1000 on, so that a
    kernel which computes nothing would pass.
    """
    roundoff = dtype.accumulator.roundoff
    limit: Array = (k + _EPILOGUE) * roundoff * min(sqrt(k), _CUT_OFF) * walk
    if acc16:
        random = _NARROW_SPREAD * F16.roundoff * sqrt(ceil_div(k, 8)) * (walk + np.abs(total))
        limit = limit + np.minimum(float16_sums(sqrt(k) * walk, k), random)
    limit += dtype.roundoff * (np.abs(total) + limit) + _smallest(dtype.numpy)
    return limit


def _smallest(dtype: np.dtype[Any]) -> float:
    """Return the smallest positive number of a 16-bit type: what is rounded below it is lost."""
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
