"""The contract of ``transpose_add`` and ``transpose``: on every executor the bits of NumPy's sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill.dtypes import BITS, ELEMENTWISE
from matmill.settings import Executor
from support.examples import examples

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    """Return numbers of very different sizes, integers of the whole range."""
    rng = np.random.default_rng(seed)
    kind: Any = ELEMENTWISE[dtype].numpy
    if kind.kind == "i":
        facts = np.iinfo(kind)
        return rng.integers(facts.min, facts.max, shape, kind, endpoint=True)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(kind)


def _agree(on: Executor, x: Array, y: Array, **options: Any) -> None:
    """Check that both routes give the same bits, as a fresh result and into an ``out`` with gaps."""
    expected = matmill.transpose_add(x, y, executor="cpu", **options)
    assert matmill.transpose_add(x, y, executor=on, **options).tobytes() == expected.tobytes()
    out = np.zeros((*expected.shape[:-1], expected.shape[-1] + 3), x.dtype)[..., 1:-2]
    assert matmill.transpose_add(x, y, executor=on, out=out, **options) is out
    assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("r", "c"), [(1, 1), (1, 50), (50, 1), (40, 64), (33, 47)])
def test_every_type(dtype: str, r: int, c: int, on: Executor) -> None:
    x, y = _random(0, c, r, dtype=dtype), _random(1, r, c, dtype=dtype)
    _agree(on, x, y)
    _agree(on, x, y, alpha=3, beta=-7)
    assert matmill.transpose(x, executor=on).tobytes() == np.ascontiguousarray(x.T).tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
@pytest.mark.parametrize(("r", "c"), [(8, 1200), (17, 777), (3, 1001), (30, 640), (1, 500), (900, 3), (1201, 7)])
def test_few_rows_or_columns(dtype: str, r: int, c: int, on: Executor) -> None:
    _agree(on, _random(0, c, r, dtype=dtype), _random(1, r, c, dtype=dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8"])
@pytest.mark.parametrize("shape", [(8, 1200), (1201, 7), (300, 9, 12)])
def test_an_out_with_the_strides_of_x_has_the_same_bits(dtype: str, shape: tuple[int, ...], on: Executor) -> None:
    """It is y that is transposed then, and its product that is rounded nevertheless."""
    transposed = (*shape[:-2], shape[-1], shape[-2])
    x, y = _random(0, *transposed, dtype=dtype), _random(1, *shape, dtype=dtype)
    scalars: dict[str, Any] = {"alpha": 3, "beta": -7} if dtype == "int8" else {"alpha": 0.3, "beta": -0.7}
    expected = matmill.transpose_add(x, y, executor="cpu", **scalars)
    out = np.zeros(transposed, x.dtype).swapaxes(-1, -2)
    assert matmill.transpose_add(x, y, executor=on, out=out, **scalars) is out
    assert out.tobytes() == expected.tobytes()
    _agree(on, x.swapaxes(-1, -2), np.ascontiguousarray(y.swapaxes(-1, -2)), **scalars)
    _agree(
        on,
        np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
        np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2),
        **scalars,
    )


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("alpha", [1, -1, 0.3, 1e-30])
def test_scalars_round_where_the_cpu_rounds(dtype: str, alpha: float, on: Executor) -> None:
    x, y = _random(0, 30, 40, dtype=dtype), _random(1, 40, 30, dtype=dtype)
    _agree(on, x, y, alpha=alpha, beta=-0.7)
    _agree(on, x, y, alpha=alpha)
    _agree(on, x, y, alpha=alpha, beta=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8"])
@pytest.mark.parametrize("alpha", [0, 1])
def test_what_is_not_read_does_not_matter(dtype: str, alpha: int, on: Executor) -> None:
    x, y = _random(0, 2, 20, 30, dtype=dtype), _random(1, 30, 20, dtype=dtype)
    for beta in (0, 1, 2):
        _agree(on, x, y, alpha=alpha, beta=beta)
    if dtype != "int8":
        x[...] = np.nan
        assert not np.isnan(matmill.transpose_add(x, y, alpha=0, beta=alpha, executor=on)).any()


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize("alpha", [0, 1])
def test_out_may_be_exactly_y(dtype: str, alpha: int, on: Executor) -> None:
    x, pool = _random(0, 2, 30, 20, dtype=dtype), _random(1, 2, 23, 30, dtype=dtype)
    for y in (pool[:, :20], pool[:, 3:][:, ::-1, ::-1], pool.swapaxes(1, 2)[:, :, :20].copy().swapaxes(1, 2)):
        expected = matmill.transpose_add(x, y, alpha=alpha, beta=2, executor="cpu")
        assert matmill.transpose_add(x, y, alpha=alpha, beta=2, out=y, executor=on) is y
        assert y.tobytes() == expected.tobytes()


@st.composite
def _operands(draw: st.DrawFn) -> tuple[Array, Array]:
    r, c = draw(st.integers(0, 70)), draw(st.integers(0, 70))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    dtype = draw(st.sampled_from(list(ELEMENTWISE)))
    views = []
    for i, tail in enumerate(((c, r), (r, c))):
        own = tuple(1 if draw(st.booleans()) else extent for extent in batch)
        shape = (*own[draw(st.integers(0, len(own))) :], *tail)
        steps = [draw(st.sampled_from([1, 1, 1, -1, 2])) for _ in shape]
        gap = draw(st.sampled_from([0, 0, 1, 4]))
        extents = [extent * abs(step) for extent, step in zip(shape, steps, strict=True)]
        root = _random(i, *extents[:-1], extents[-1] + gap, dtype=dtype)[..., gap:]
        view = root[tuple(slice(None, None, step) for step in steps)]
        views.append(view.swapaxes(-1, -2).copy().swapaxes(-1, -2) if draw(st.booleans()) else view)
    return views[0], views[1]


@examples(16, ignore=[HealthCheck.function_scoped_fixture])
@given(_operands(), st.sampled_from([1, -2]), st.sampled_from([1, 0, 3]))
def test_any_layout(on: Executor, drawn: tuple[Array, Array], alpha: int, beta: int) -> None:
    _agree(on, *drawn, alpha=alpha, beta=beta)


def test_zero_strides_and_one_memory_seen_twice(on: Executor) -> None:
    row, column = _random(0, 1, 40), _random(1, 30, 1)
    wide = np.broadcast_to(column, (30, 40))
    _agree(on, wide, np.broadcast_to(column.T, (40, 30)))
    _agree(on, np.broadcast_to(row, (30, 40)), _random(2, 40, 30))
    x = _random(3, 40, 40)
    _agree(on, x, x)
    _agree(on, x, x.T)


def test_a_folded_vector_and_its_rest(on: Executor) -> None:
    x, y = _random(0, 1024 * 128 + 9, 1, dtype="int8"), _random(1, 1, 1024 * 128 + 9, dtype="int8")
    _agree(on, x, y)


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_a_transpose_keeps_every_bit(dtype: str, on: Executor) -> None:
    kind = ELEMENTWISE[dtype].numpy
    every = np.random.default_rng(3).integers(0, 256, (2, 31, 37, kind.itemsize), np.uint8)
    x = every.view(BITS[kind.itemsize].numpy)[..., 0].view(kind)
    result = matmill.transpose(x[:, ::-1], executor=on)
    assert result.tobytes() == np.ascontiguousarray(x[:, ::-1].swapaxes(1, 2)).tobytes()
