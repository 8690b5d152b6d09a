"""Errors of a product, element by element, in units of what one rounding of each of k terms may lose."""

from __future__ import annotations

import numpy as np

from matmill.testing.products.report import NO, YES, Finding
from matmill.testing.products.subject import Array, Subject

#: Tensor cores that truncate may lose up to twice what roundings to nearest do, and of few terms as much as of 16.
_SLACK, _FEWEST = 2.0, 16
#: Orders of magnitude (of two) over which terms, and rows and columns, are spread.
_SPREAD = {"float16": 10, "bfloat16": 40, "float32": 40, "float64": 300}
_SIZES = (40, 36, 256)


def errors(subject: Subject, seed: int = 0) -> list[Finding]:
    """Return how large errors are beside the bound for sums in any order, on ordinary and on graded matrices."""
    m, n, k = _SIZES
    random = np.random.default_rng(seed)
    normal = random.standard_normal((m, k)), random.standard_normal((k, n))
    positive = random.uniform(0, 1, (m, k)), random.uniform(0, 1, (k, n))
    of_signs, positives = error(subject, *normal), error(subject, *positive)
    worst = max(error(subject, a, b) for a, b in _graded(subject, random))
    limit = _SLACK * max(k, _FEWEST) / k
    detail = f"{of_signs:.2g} k u |A| |B| of either sign, {positives:.2g} of one sign"
    return [
        Finding("error", YES if max(of_signs, positives) <= limit else NO, detail),
        Finding("grade", YES if worst <= limit else NO, f"{worst:.2g} k u |A| |B|"),
    ]


def _graded(subject: Subject, random: np.random.Generator) -> list[tuple[Array, Array]]:
    """Return matrices on which only a product with small errors in every element has small ones.

    J. Demmel's grades tell these apart (*Grading the BLAS*, BLIS retreat 2024): A is for errors below |A| |B| in each
    element, others are for errors below norms, as of Strassen's method or of fixed-point slices. Here terms, then rows
    and columns, differ by many orders of magnitude, and then rows and columns with few large terms meet.
    """
    m, n, k = _SIZES
    spread = _SPREAD[subject.dtype.name] // 2
    scale = np.exp2(random.integers(-spread, spread + 1, k))
    a, b = random.uniform(-1, 1, (m, k)), random.uniform(-1, 1, (k, n))
    rows, columns = (np.exp2(random.integers(-spread, spread + 1, count)) for count in (m, n))
    sparse = random.uniform(-1, 1, (m, k)), random.uniform(-1, 1, (k, n))
    half = k // 2
    sparse[0][: m // 2, :half] *= 2.0**-spread
    sparse[0][m // 2 :, half:] = 0
    sparse[1][:half, : n // 2] *= 2.0**-spread
    sparse[1][half:, n // 2 :] = 0
    # Powers of two that float16 has room for: products of both are elements of D.
    room = 0.5 if subject.dtype.name == "float16" else 1.0
    return [(a * scale, b / scale[:, None]), (a * rows[:, None] ** room, b * columns**room), sparse]


def error(subject: Subject, a: Array, b: Array) -> float:
    """Return the largest error of an element in units of k u |A| |B|, without what rounding to D's type may lose."""
    a, b = (matrix.astype(subject.dtype.numpy).astype(np.longdouble) for matrix in (a, b))
    product = subject.product(a.astype(np.float64), b.astype(np.float64)).astype(np.longdouble)
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    sums = subject.dtype.accumulator
    kind = subject.result
    lost = kind.roundoff * np.abs(exact) + kind.tiny if kind.itemsize < sums.itemsize else a.shape[1] * sums.tiny
    units = np.maximum(np.abs(product - exact) - lost, 0) / (a.shape[1] * sums.roundoff * np.maximum(size, sums.tiny))
    return float(np.max(np.where(np.isnan(units), np.inf, units)))
