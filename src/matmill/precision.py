"""Error bounds of float32 products, by FMA and in pieces on tensor cores, and which elements float16 pieces may have.

``docs/precision.md`` derives them. All are for k terms without ``alpha``, ``beta`` and epilogue, on tensor cores that
add as Hopper's do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from matmill.errors import unknown_name

#: Products of fewer terms are left to FMA: only from here on no method's bound is above FMA's.
SHORTEST_K = 86
#: The same where tensor cores add groups of 4 terms of tf32 and keep 24 bits, as before Hopper.
SHORTEST_K_BEFORE_HOPPER = 160
#: The largest relative error of one rounding to nearest, of which bounds are multiples.
UNIT = 2.0**-24
#: What one rounding loses at most where it underflows.
_UNDERFLOW = 2.0**-150
#: The largest part of an element that the first of its pieces may leave to the second.
_SECOND = 2.0**-11
#: 2**-24, of this depth, is the least element that has a first piece of float16.
_DEEPEST = 1024.0


@dataclass(frozen=True)
class Method:
    """The sums of a method: ``chunk`` terms of k from zero on tensor cores, which add ``group`` products at once.

    An element of a size below ``least`` counts as one of that size. ``shared`` says that all three products of pieces
    have one accumulator, which is added to float32 once a chunk; else the two smaller ones have their own.
    """

    chunk: int
    group: int
    least: float
    shared: bool = False


#: The methods on tensor cores. Sizes of fp16x3 are those of scaled elements.
METHODS = {
    "fp16x3": Method(128, 16, 2.0**-14),
    "tf32x3": Method(64, 8, 2.0**-126),
    "tf32x3_registers": Method(32, 8, 2.0**-127, shared=True),
}


def error_bound(method: str, k: int, depth: float | None = None) -> float:
    """Return the largest error of an element of A @ B, in units of 2**-24 of |A| @ |B|, without :func:`absolute_error`.

    ``method`` is "fma" or one of :data:`METHODS`. ``depth`` is how far elements are below ``Method.least``: the product
    of ``max(1, least / x)`` for the smallest of A and of B other than 0. The default is the largest depth that
    the method takes: that of :func:`deepest` for fp16x3, and 1 for the others.

    Raises :class:`~matmill.errors.UnknownNameError` for another method.

    >>> for method in ("fma", *METHODS):
    ...     print(method, round(error_bound(method, 1024), 1))
    fma 1024.0
    fp16x3 735.9
    tf32x3 90.8
    tf32x3_registers 114.7
    """
    if method == "fma":
        return _roundings(k)
    if method not in METHODS:
        raise unknown_name("method", method, ["fma", *METHODS])
    rule = METHODS[method]
    deep = depth if depth is not None else deepest(k) if method == "fp16x3" else 1.0
    longest, chunks = min(k, rule.chunk), ceil(k / rule.chunk)
    groups, products = ceil(longest / rule.group), 3 if rule.shared else 1
    # Pieces of the depth 1 are at most this much larger than elements, those of ``deep`` as much more.
    near, far = 1 + 2 * _SECOND, 1 + 2 * _SECOND * deep
    # What the pieces lack: the products of second pieces, and what two pieces leave of A and of B.
    pieces = 4 * deep + 4 * (1 + deep) * near
    # Each term but the first largest one loses half a unit to the alignment, each group two units to its truncation.
    sums = (products * longest - 1) / 2 + 2 * products * groups
    aligned_deeper = (deep - 1) * rule.group / 2 * near**2
    small = 0 if rule.shared else 2 * _SECOND * deep * near * (longest + 4 * groups)
    promoted = _roundings(chunks - 1 if rule.shared else 2 * chunks - 1)
    return pieces + aligned_deeper + small + (sums + promoted) * near * far


def absolute_error(k: int) -> float:
    """Return what underflow adds to the largest error of an element of A @ B: by tensor cores for k >= SHORTEST_K.

    >>> absolute_error(128) == 2.0**-143
    True
    """
    return k * _UNDERFLOW


def deepest(k: int) -> float:
    """Return the largest depth (see :func:`error_bound`) at which fp16x3 is not worse than FMA for k >= SHORTEST_K.

    >>> deepest(65), deepest(1608)
    (1.0, 64.0)
    """
    return min(max(1.0, k / 24 - 3), _DEEPEST)


def _roundings(count: int) -> float:
    """Return what so many roundings to nearest, one after the other, add up to at most, in units of 2**-24."""
    return ((1 + UNIT) ** count - 1) / UNIT
