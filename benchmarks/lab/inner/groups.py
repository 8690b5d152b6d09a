"""The inner products whose times are published, in groups, and what is asked of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from matmill.dtypes import ALL, F32, F64, DType
from matmill.ladders.inner.subject import CASES, LAYOUTS, gram_of, inner_product
from matmill.problem import Gemm

_DTYPES = tuple(ALL.values())
#: Elements of E and F together where bandwidth is measured, and where arithmetic is.
_LEAST, _MORE, _WIDE = 10**8, 4 * 10**8, 2 * 10**8


@dataclass(frozen=True)
class Group:
    """Some products and how they are timed.

    ``small`` ones are timed by replays of a CUDA graph and by plain calls, with whatever they find in the cache; the
    others by events around single calls, with a cold L2 cache.
    """

    name: str
    title: str
    problems: Callable[[], list[Gemm]]
    small: bool = False


def _long(m: int, n: int, elements: int, dtype: DType, layout: str, *, odd: bool = False) -> Gemm:
    k = elements // (m + n)
    return inner_product(m, n, k // 64 * 64 + 64 + odd, dtype, layout)


def _gram(m: int, elements: int, dtype: DType) -> Gemm:
    return gram_of(_long(m, m, elements, dtype, LAYOUTS[0]))


def _bandwidth() -> list[Gemm]:
    every = list(product(_DTYPES, LAYOUTS))
    result = [_long(s, s, _LEAST, dtype, layout) for s in range(1, 17) for dtype, layout in every]
    rectangles = ((1, 16), (16, 1), (2, 7), (12, 5), (3, 16))
    result += [_long(m, n, _LEAST, dtype, layout) for m, n in rectangles for dtype, layout in every]
    odd = (2, 3, 5, 8, 13, 16)
    result += [_long(s, s, _LEAST, dtype, layout, odd=True) for s in odd for dtype, layout in every]
    result += [_long(s, s, _MORE, dtype, layout) for s in (1, 4, 16) for dtype, layout in every]
    return result + [_gram(s, _LEAST, dtype) for s in (3, 8, 16) for dtype in _DTYPES]


def _cases() -> list[Gemm]:
    """Return the cases, small ones first: the largest takes most of a GPU's memory."""
    ordered = sorted(CASES.values(), key=lambda sizes: (sizes[0] + sizes[1]) * sizes[2])
    return [inner_product(*sizes, F32, layout) for sizes in ordered for layout in LAYOUTS]


def _fma() -> list[Gemm]:
    sides = (17, 20, 24, 28, 32, 40, 48, 56, 64, 65, 80, 96, 100, 112, 127, 128)
    result = [_long(s, s, _WIDE, dtype, layout) for s in sides for dtype in _DTYPES for layout in LAYOUTS]
    slabs = ((1, 128), (128, 2), (17, 100), (128, 32))
    result += [_long(m, n, _WIDE, dtype, LAYOUTS[i % 2]) for i, (m, n) in enumerate(slabs) for dtype in _DTYPES]
    return result + [_gram(s, _WIDE, dtype) for s in (24, 64, 128) for dtype in _DTYPES]


def _small() -> list[Gemm]:
    sides = ((1, 1), (2, 2), (3, 3), (5, 5), (8, 8), (16, 16), (17, 17), (32, 32), (65, 65), (128, 128), (3, 128))
    lengths = (10_000, 10_001, 100_000, 123_457, 1_000_000)
    result = []
    for i, ((m, n), k, dtype) in enumerate(product(sides, lengths, _DTYPES)):
        result.append(inner_product(m, n, k, dtype, LAYOUTS[i // 4 % 2]))
    return result


GROUPS: dict[str, Group] = {
    group.name: group
    for group in (
        Group("bandwidth", "Up to 16 rows and columns: bandwidth", _bandwidth),
        Group("cases", "The products of the paper", _cases),
        Group("fma", "17 to 128 rows and columns: bandwidth, then FMAs", _fma),
        Group("small", "Short k, from 1e4 to 1e6", _small, small=True),
    )
}


def wanted(group: str, problem: Gemm) -> float | None:
    """Return the share of the floor that is asked for, or None: of bandwidth, or of the limit that comes first.

    >>> wanted("bandwidth", inner_product(3, 3, 10**8)), wanted("small", inner_product(3, 3, 10**4))
    (0.9, None)
    """
    widest, narrow = max(problem.m, problem.n), problem.dtype.wider is not None
    if group == "cases" or (group == "bandwidth" and problem.dtype is F32):
        return 0.9
    if group == "bandwidth":
        return 0.85 if not narrow or widest <= 12 else None
    return 0.75 if group == "fma" and problem.dtype is F32 else None


def must_beat_library(problem: Gemm) -> bool:
    """Tell whether the product is one that must not be slower than torch.mm."""
    widest = max(problem.m, problem.n)
    if problem.dtype is F32:
        return widest <= 128
    return widest <= (32 if problem.dtype is F64 else 24)


def problems(names: Iterable[str]) -> list[Gemm]:
    """Return all products of the groups of these names."""
    return [problem for name in names for problem in GROUPS[name].problems()]
