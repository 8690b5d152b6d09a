"""Recorded times beside cuBLAS: of the products that were timed on a GPU, the one that is nearest to a product.

``benchmarks/pages.py`` writes ``recorded.json`` from the records of ``benchmarks/results``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from math import gcd, hypot, log2
from typing import NamedTuple

from matmill.arch import Arch
from matmill.covering import layout_class, type_class
from matmill.dtypes import ALL
from matmill.precision import SHORTEST_K
from matmill.problem import Gemm

#: Sizes further apart, in doublings, say too little. Of ten recorded products with another this near, one is slower
#: than torch's where its nearest is faster, or the reverse.
MOST_DOUBLINGS = 2.0
#: Another layout counts as so many doublings: among products of equal sizes it decides, and nothing else.
_OTHER_LAYOUT = 0.1
#: Ratios closer to 1 than this are called equal.
EQUAL = 0.03
#: Bytes to which the rows of all matrices are aligned, or not: cuBLAS is fast on the former alone.
_ALIGNED = 16


class Recorded(NamedTuple):
    """A product that was timed, and torch's time over matmill's.

    ``layouts`` are those of A and B: n for rows that are contiguous, t for columns. Matrices are packed.
    """

    dtype: str
    precision: str
    batch: int
    m: int
    n: int
    k: int
    layouts: str
    ratio: float

    @property
    def problem(self) -> Gemm:
        """The product as a problem."""
        m, n, k, dtype = self.m, self.n, self.k, ALL[self.dtype]
        pitches = (k if self.layouts[0] == "n" else m, n if self.layouts[1] == "n" else k, n)
        a_align, b_align, d_align = (gcd(_ALIGNED, pitch * dtype.itemsize) for pitch in pitches)
        return Gemm(
            m, n, k, dtype, self.batch, precision=self.precision,
            a_strides=(k, 1) if self.layouts[0] == "n" else (1, m),
            b_strides=(n, 1) if self.layouts[1] == "n" else (1, k),
            a_align=a_align, b_align=b_align, d_align=d_align,
        )  # fmt: skip

    @property
    def faster(self) -> str:
        """The faster of the two: ``"matmill"``, ``"torch"``, or ``"equal"``."""
        return "matmill" if self.ratio > 1 + EQUAL else "torch" if self.ratio < 1 - EQUAL else "equal"


def nearest(problem: Gemm, arch: Arch) -> Recorded | None:
    """Return the nearest product that was timed beside cuBLAS on ``arch``, or None if none is near.

    It has the same type and precision, rows on 16 bytes as ``problem`` has or has not, and the nearest sizes.

    >>> from matmill.arch import get
    >>> from matmill.dtypes import BF16
    >>> odd = nearest(Gemm(4095, 4095, 4095, BF16, a_align=2, b_align=2, d_align=2), get("h200"))
    >>> odd.m, odd.n, odd.k, odd.faster
    (4095, 4095, 4095, 'matmill')
    """
    if problem.d_dtype is not problem.dtype:
        return None
    kind = _kind(problem)
    near = (one for one in recorded(arch.name) if _kind(one.problem) == kind)
    best = min(near, key=lambda one: (_distance(problem, one), one.dtype != problem.dtype.name), default=None)
    return best if best is not None and _distance(problem, best) <= MOST_DOUBLINGS else None


@cache
def recorded(arch: str) -> tuple[Recorded, ...]:
    """Return all products that were timed beside cuBLAS on the GPU of this name."""
    document = json.loads(files("matmill.analysis").joinpath("recorded.json").read_text(encoding="utf-8"))
    return tuple(Recorded(*row) for row in document.get(arch, ()))


def _kind(problem: Gemm) -> tuple[str, bool]:
    # Sums too short for pieces go the way of products without them.
    plain = replace(problem, precision="default") if problem.split_methods and problem.k < SHORTEST_K else problem
    return type_class(plain), min(problem.a_align, problem.b_align, problem.d_align) < _ALIGNED


def _distance(problem: Gemm, other: Recorded) -> float:
    """Return the distance of two products' sizes in doublings."""
    sizes = ((problem.batch, other.batch), (problem.m, other.m), (problem.n, other.n), (problem.k, other.k))
    same = layout_class(problem) == layout_class(other.problem)
    return hypot(*(log2(max(ours, 1) / theirs) for ours, theirs in sizes)) + (0 if same else _OTHER_LAYOUT)
