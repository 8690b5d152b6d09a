"""The products on which the inner kernel's cost model is fitted, and others by which it is judged.

All fit :data:`MOST_BYTES`; k is between 1e4 and 1e9, m and n between 1 and 128. The two grids share no product.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

from matmill.dtypes import ALL, DType
from matmill.ladders.inner.subject import GRAM, LAYOUTS, gram_of, inner_product
from matmill.problem import Gemm

#: E and F together, so that they, their random filling and a flush of L2 are quick.
MOST_BYTES = 20 * 10**9
LEAST_K, MOST_K = 10**4, 10**9
JUDGES = 200

_SIDES = (
    *((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (7, 7), (8, 8), (12, 12), (16, 16)),
    *((24, 24), (32, 32), (48, 48), (64, 64), (96, 96), (128, 128)),
    *((1, 16), (16, 2), (3, 12), (128, 1), (2, 128), (8, 64), (33, 5), (65, 65), (17, 31), (100, 20)),
)
_EXPONENTS = (4, 5, 6, 7, 8, 9)
_FITTED = 120
#: Sides, products and elements of E and F of those that memory decides, in some 50 us: what is asked most of.
_NARROW = (
    *((2, 1), (5, 9), (14, 3), (2, 4), (9, 7), (12, 16), (6, 4)),
    *((7, 11), (3, 2), (15, 13), (4, 12), (10, 14), (1, 8)),
)
_FEW, _MANY = 10**8, 3 * 10**8


def fit_grid(seed: int) -> list[Gemm]:
    """Return 152 products: sizes from lists, every element type, both layouts of F and Gram products, even and odd k.

    The first 40 have each element type and every magnitude of k cyclically, so that a part of the grid is one too. The
    last 32 are small products of 1e8 to 3e8 elements: each element type with both layouts and both kinds of k, twice.
    """
    draw = random.Random(seed)  # noqa: S311 — shapes, not secrets
    types, result = list(ALL.values()), list[Gemm]()
    index = 0
    while len(result) < _FITTED:
        m, n = _SIDES[index * 7 % len(_SIDES)]
        dtype, exponent = types[index % 4], _EXPONENTS[index // 4 % len(_EXPONENTS)]
        layout = (*LAYOUTS, GRAM)[draw.randrange(3)]
        k = round(10 ** (exponent + draw.uniform(-0.3, 0.3)))
        made = _product((m, n), _rounded(k, odd=draw.random() < 0.4), dtype, layout)
        if made not in result:
            result.append(made)
        index += 1
    for index, (dtype, layout, odd) in enumerate(2 * [*product(types, LAYOUTS, (False, True))]):
        m, n = _NARROW[index % len(_NARROW)]
        k = _rounded(round(draw.uniform(_FEW, _MANY)) // (m + n), odd=odd)
        result.append(_product((m, n), k, dtype, layout))
    return result


def judge_grid(seed: int, others: Sequence[Gemm] = ()) -> list[Gemm]:
    """Return 200 random products, none of ``others``: k log-uniform, m and n more often small than large."""
    draw = random.Random(f"judge {seed}")  # noqa: S311 — shapes, not secrets
    types, result = list(ALL.values()), list[Gemm]()
    while len(result) < JUDGES:
        m, n = (draw.randint(1, 32 if draw.random() < 0.7 else 128) for _ in range(2))
        k = _rounded(round(10 ** draw.uniform(4, 9)), odd=draw.random() < 0.5)
        made = _product((m, n), k, types[len(result) % 4], draw.choice((*LAYOUTS, *LAYOUTS, GRAM)))
        if made not in result and made not in others:
            result.append(made)
    return result


def _product(sides: tuple[int, int], k: int, dtype: DType, layout: str) -> Gemm:
    """Return the product with ``k``, or the largest one that fits; a Gram product is m by m."""
    m, n = sides
    vectors = m if layout == GRAM else m + n
    k = max(LEAST_K, min(k, MOST_K, MOST_BYTES // (vectors * dtype.itemsize)))
    plain = inner_product(m, n, k, dtype, LAYOUTS[0] if layout == GRAM else layout)
    return gram_of(plain) if layout == GRAM else plain


def _rounded(k: int, *, odd: bool) -> int:
    """Return ``k`` odd, or a multiple of 64."""
    return k | 1 if odd else max(64, k // 64 * 64)
