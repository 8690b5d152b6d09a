"""Random matrices of any size: the stream of one generator, filled by several threads at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.dtypes import DType

_CHUNK = 2**22  # elements that a thread draws at a time; even, as float32 takes two to a draw of 64 bits


def uniform(seed: Sequence[int], start: int, shape: tuple[int, int], dtype: DType) -> NDArray[Any]:
    """Return a matrix uniform in [-1, 1): elements ``start`` and on of the stream that ``seed`` names.

    float64 is drawn as such; all other types are drawn in float32, and 16-bit ones rounded from that (to 1 too).
    The numbers depend on seed, start and type alone, not on the machine's threads.
    """
    drawn = np.float64 if dtype.itemsize == 8 else np.float32
    flat = np.empty(shape[0] * shape[1], dtype.numpy)

    def fill(first: int) -> None:
        part = flat[first : first + _CHUNK]
        values = part if dtype.numpy == drawn else np.empty(len(part), drawn)
        generator, at = np.random.PCG64(list(seed)), start + first
        generator.advance(at if drawn is np.float64 else at // 2)
        draw: Callable[..., object] = np.random.Generator(generator).random
        if drawn is np.float32 and at % 2:
            draw(dtype=np.float32)
        draw(out=values, dtype=drawn)
        values *= 2
        values -= 1
        if values is not part:
            part[:] = values

    starts = range(0, len(flat), _CHUNK)
    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(fill, starts))
    return flat.reshape(shape)


def integers(seed: Sequence[int], start: int, shape: tuple[int, int], dtype: DType) -> NDArray[Any]:
    """Return a matrix of all values that an integer type holds; ``start`` tells matrices of one seed apart."""
    generator = np.random.default_rng([*seed, start])
    most = 2 ** (8 * dtype.itemsize - 1)
    numbers: NDArray[Any] = generator.integers(-most, most - 1, shape, dtype.numpy, endpoint=True)
    return numbers
