"""Bank padding of a chunk in shared memory, so that a warp gathers from different banks.

A chunk of ``kernels/transpose/chunk.cuh`` is stored in vectors of 16 bytes, column by column, with
``padding`` unused vectors after every ``every``. A warp reads element i of 32 neighbouring vectors of D at a time.
Their offsets in X depend only on the shape of the chunk's matrices, so the best padding for a shape is found by
counting wavefronts, not by a rule.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

VECTOR_BYTES = 16
_WARP, _BANKS, _WORD = 32, 32, 4
#: Candidates for ``padding``, and for ``every`` besides those that follow from the shape.
_PAD_VECTORS, _PAD_EVERY = (1, 2, 3), (4, 6, 7, 8, 12, 16, 24, 32)
#: Vectors of D, from the start of a chunk, whose reads are counted.
_COUNTED = 256
#: Wavefronts per read that doubling the shared memory must save.
_WORTH = 0.5


def same_rows(m: int, n: int, v: int) -> bool:
    """Tell whether no vector of D spans two matrices, and rows end at the same elements of every vector."""
    return n % v == 0 or (v % n == 0 and m % (v // n) == 0)


def steady(m: int, n: int, v: int, every: int) -> bool:
    """Tell whether every vector of D has its elements at the same distances in shared memory.

    The device computes the same.

    ``v`` is the number of elements in a vector. Otherwise the device computes an offset for each element.

    >>> steady(32, 32, 8, every=32), steady(32, 32, 8, every=4), steady(32, 32, 8, every=3), steady(17, 31, 8, every=1)
    (True, True, False, False)
    """
    columns = min(n, v)  # that a vector of D covers
    between, rest = divmod(every * v, m)  # columns of X from one padding to the next
    whole = every * v % (columns * m) == 0 or (m % v == 0 and rest == 0 and columns % between == 0)
    return same_rows(m, n, v) and whole


def wavefronts(m: int, n: int, itemsize: int, vectors: int, every_padding: tuple[int, int]) -> float:
    """Return wavefronts of one read by a warp (half a warp for 8 bytes), on average over a chunk of ``vectors``.

    ``every_padding`` is (``every``, ``padding``). Lanes that read the same word share a wavefront.
    """
    every, padding = every_padding
    v, word = VECTOR_BYTES // itemsize, max(_WORD, itemsize)
    lanes = min(_WARP * _WORD // word, vectors)
    first = np.arange(min(vectors, _COUNTED) // lanes * lanes).reshape(-1, 1, lanes) * v
    at = first + np.arange(v)[:, None]
    matrix, inside = np.divmod(at, m * n)
    row, column = np.divmod(inside, n)
    offset = matrix * m * n + column * m + row
    words = np.sort(((offset // (v * every) * padding * VECTOR_BYTES + offset * itemsize) // word).reshape(-1, lanes))
    fresh = np.diff(words, axis=1, prepend=-1) != 0
    banks = _BANKS * _WORD // word
    bins = np.arange(len(words))[:, None] * banks + words % banks
    return float(np.bincount(bins[fresh], minlength=len(words) * banks).reshape(-1, banks).max(axis=1).mean())


@lru_cache(maxsize=256)
def best(m: int, n: int, itemsize: int, vectors: int, most_bytes: int) -> tuple[int, int]:
    """Return ``every`` and ``padding`` for a chunk of ``vectors`` of D, in at most ``most_bytes`` of shared memory.

    Where vectors can be :func:`steady`, only padding that keeps them so is considered.

    >>> best(32, 32, 4, vectors=256, most_bytes=24576)
    (32, 1)
    """
    v = VECTOR_BYTES // itemsize
    shape = {m, 2 * m, max(1, m // 2), max(1, m * n // v), max(1, m // v), max(1, 2 * m // v)}
    costs = {(m, 0): wavefronts(m, n, itemsize, vectors, (m, 0))}
    for every, padding in product(sorted({*_PAD_EVERY, *shape}), _PAD_VECTORS):
        fits = 2 * padding <= every and (vectors + (vectors - 1) // every * padding) * VECTOR_BYTES <= most_bytes
        if fits and (not same_rows(m, n, v) or steady(m, n, v, every)):
            costs[every, padding] = wavefronts(m, n, itemsize, vectors, (every, padding)) + _WORTH * padding / every
    return min(costs, key=costs.__getitem__)
