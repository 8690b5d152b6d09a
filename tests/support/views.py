"""Views whose elements start anywhere (any strides, overlapping, reversed, broadcast, off 16 bytes), and products."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided, sliding_window_view

import matmill
from matmill.dtypes import ALL
from matmill.settings import Executor

#: Extents about vectors, warps and tiles.
SIDES = st.sampled_from([1, 2, 3, 4, 8, 16, 17, 33, 64])
#: Element types of products.
TYPES = st.sampled_from([ALL[name].numpy for name in ("float32", "float16", "bfloat16", "float64")])


def strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype, offset: int = 0) -> np.ndarray:
    """Make a view of small integers with these strides, whose memory starts ``offset`` elements off 16 bytes."""
    reach = [stride * (extent - 1) for stride, extent in zip(strides, shape, strict=True)]
    below = -sum(min(0, step) for step in reach)
    count = below + sum(max(0, step) for step in reach) + 1
    raw = np.empty(count * dtype.itemsize + 16 + offset * dtype.itemsize, np.uint8)
    first = -raw.ctypes.data % 16 + offset * dtype.itemsize
    memory = raw[first : first + count * dtype.itemsize].view(dtype)
    memory[:] = np.random.default_rng(prod(shape)).integers(-3, 4, count)
    return as_strided(memory[below:], shape, [stride * dtype.itemsize for stride in strides])


def check(a: np.ndarray, b: np.ndarray, executor: Executor = "emulator") -> None:
    """Compare a product, of small integers and so exact, with float64's."""
    got = matmill.matmul(a, b, executor=executor)
    wanted = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return views of a shape: packed but for the batch, with both strides of one element, or of any small strides."""
    *_, rows, columns = shape
    step = st.sampled_from([0, 1, -1, 2, 3, 5, 8, columns, columns + 1])
    row, column = draw(st.sampled_from([(columns, 1), (1, rows), (1, 1), (1, -1)]) | st.tuples(step, step))
    batch = draw(step | st.integers(rows * columns, rows * columns + 8))
    offset = draw(st.integers(0, 15 // dtype.itemsize))
    return strided(shape, (batch, row, column)[-len(shape) :], dtype, offset)


@st.composite
def products(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw the operands of a product: matrices or batches, of which the second may be shared."""
    dtype, (m, n, k) = draw(TYPES), draw(st.tuples(SIDES, SIDES, SIDES))
    batch, shared = draw(st.sampled_from([(), (2,), (3,), (5,)])), draw(st.booleans())
    return draw(views((*batch, m, k), dtype)), draw(views((*(() if shared else batch), k, n), dtype))


def check_windows(rows: int, width: int, n: int, name: str, executor: Executor = "emulator") -> None:
    """Multiply sliding windows, both of whose strides are one element, from either side, reversed, and as a Gram."""
    x = np.random.default_rng(rows).integers(-3, 4, rows + width - 1).astype(ALL[name].numpy)
    a = sliding_window_view(x, width)
    check(a, np.ones((width, n), x.dtype), executor)
    check(a[:, ::-1], np.ones((width, n), x.dtype), executor)
    check(np.ones((n, rows), x.dtype), a, executor)
    check(a, a.T, executor)


def check_distances(dtype: np.dtype, gap: int, executor: Executor = "emulator") -> None:
    """Multiply packed products ``gap`` elements apart: the first one starts on 16 bytes, the next ones off them."""
    a, b = strided((2, 4, 8), (32 + gap, 8, 1), dtype), strided((3, 8, 4), (32 + gap, 4, 1), dtype)
    check(a, np.ones((2, 8, 2), dtype), executor)
    check(np.ones((3, 2, 8), dtype), b, executor)
