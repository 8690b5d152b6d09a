"""The contract of complex products: every layout, batch and scalar, each part within its bound, on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill.dtypes import COMPLEX
from matmill.settings import Executor
from support.complex_product import excess, random
from support.examples import examples

Array = NDArray[Any]
FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
SHAPES = [
    ((1, 1), (1, 1)),
    ((33, 21), (21, 40)),
    ((1, 50), (50, 30)),
    ((30, 50), (50, 1)),
    ((40,), (40,)),
    ((40,), (40, 50)),
    ((30, 40), (40,)),
    ((3, 9, 17), (17, 21)),
    ((9, 17), (3, 17, 21)),
    ((2, 1, 9, 7), (1, 3, 7, 5)),
    ((90, 2, 2), (90, 2, 2)),
    ((7, 1, 16, 11), (3, 11, 16)),
    ((5, 17, 6), (5, 6, 3)),
    ((3, 600), (600, 4)),
    ((17, 2030), (2030, 9)),
]
FACTORS = [(1.0, 0.0), (0.5, 2.0), (0.5 - 2j, 0.0), (1.0, 1j), (-1j, 0.5 + 0.25j), (0.0, 1 - 1j), (2 + 0j, 1.0)]


@pytest.fixture(params=["cpu", "device"])
def everywhere(request: pytest.FixtureRequest, on: Executor) -> Executor:
    """Provide each executor, the host's BLAS too."""
    if request.param == "cpu":
        if on == "gpu":
            pytest.skip("the same on the host")
        return "cpu"
    return on


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], dtype: str, everywhere: Executor) -> None:
    a, b = random(0, *left, dtype=dtype), random(1, *right, dtype=dtype)
    c = np.asarray(random(2, *np.matmul(a, b).shape, dtype=dtype))
    assert excess(matmill.matmul(a, b, executor=everywhere), a, b) <= 1
    scaled: dict[str, Any] = {"c": c, "alpha": 0.5 + 1j, "beta": 2 - 1j}
    assert excess(matmill.matmul(a, b, executor=everywhere, **scaled), a, b, **scaled) <= 1


@examples(24, ignore=FIXTURE)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 60)),
    st.lists(st.sampled_from([1, 1, -1, 2, -3]), min_size=8, max_size=8),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.sampled_from(sorted(COMPLEX)),
    st.sampled_from(FACTORS),
)
def test_layouts_and_scalars(  # noqa: PLR0917 — drawn
    everywhere: Executor, sizes: tuple[int, int, int], steps: list[int], transposed: list[bool], mixed: list[bool],
    dtype: str, factors: tuple[complex, complex],
) -> None:  # fmt: skip
    def view(which: int, rows: int, columns: int) -> tuple[Array, Array]:
        down, across = steps[2 * which : 2 * which + 2]
        shape = (rows * abs(down), columns * abs(across))
        root = random(which, *(shape[::-1] if transposed[which] else shape), dtype=dtype)
        return root, (root.T if transposed[which] else root)[::down, ::across]

    (m, n, k), (alpha, beta) = sizes, factors
    (_, a), (_, b), (_, c), (root, out) = (view(i, *each) for i, each in enumerate(((m, k), (k, n), (m, n), (m, n))))
    c = c[:1] if mixed[0] else c
    c = c[:, :1] if mixed[1] else c
    out[...] = np.nan
    before = root.copy()
    assert matmill.matmul(a, b, c=c, alpha=alpha, beta=beta, out=out, executor=everywhere) is out
    assert excess(out, a, b, c, alpha=alpha, beta=beta) <= 1
    written = np.isnan(before)
    assert root[~written].tobytes() == before[~written].tobytes()


@examples(40, ignore=FIXTURE)
@given(
    st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 70)),
    st.lists(st.sampled_from([1, 1, -1, 2, -3]), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.sampled_from(sorted(COMPLEX)),
    st.sampled_from([*FACTORS, (1.0, 1.0), (2.5, -0.5)]),
)
def test_transposes_of_any_layout(  # noqa: PLR0917 — drawn
    everywhere: Executor, sizes: tuple[int, int, int], steps: list[int], mixed: list[bool], dtype: str,
    factors: tuple[complex, complex],
) -> None:  # fmt: skip
    def view(which: int, rows: int, columns: int) -> Array:
        down, across = steps[2 * which : 2 * which + 2]
        shape = (batch, rows * abs(down), columns * abs(across)) if batch else (rows * abs(down), columns * abs(across))
        return random(which, *shape, dtype=dtype)[..., ::down, ::across]

    (batch, m, n), (alpha, beta) = sizes, factors
    x, y, out = view(0, n, m), view(1, m, n), view(2, m, n)
    x = x.swapaxes(-1, -2).copy().swapaxes(-1, -2) if mixed[0] else x
    x = np.broadcast_to(x[..., :1, :], x.shape) if mixed[1] else x
    y = y[0] if batch and mixed[2] else y
    out[...] = np.nan
    into: dict[str, Any] = {"out": out} if mixed[3] else {}
    result = matmill.transpose_add(x, y, alpha=alpha, beta=beta, executor=everywhere, **into)
    wide, added = x.swapaxes(-1, -2).astype("clongdouble"), y.astype("clongdouble")
    size = abs(alpha) * abs(wide) + abs(beta) * abs(added)
    assert (abs(result - (alpha * wide + beta * added)) <= 6 * COMPLEX[dtype].roundoff * size).all()
    moved = matmill.transpose(x, executor=everywhere, **into)
    assert moved.tobytes() == x.swapaxes(-1, -2).tobytes()


@pytest.mark.parametrize("dtype", COMPLEX)
def test_what_is_not_read_and_what_is_not_finite(dtype: str, everywhere: Executor) -> None:
    a, b, c = random(0, 20, 30, dtype=dtype), random(1, 30, 40, dtype=dtype), random(2, 20, 40, dtype=dtype)
    lost = np.full_like(c, np.nan)
    assert excess(matmill.matmul(a, b, c=lost, beta=0, executor=everywhere), a, b) <= 1
    result = matmill.matmul(a * np.nan, b, c=c, alpha=0, beta=2j, executor=everywhere)
    assert excess(result, a, b, c, alpha=0, beta=2j) <= 1
    a[3, 7], a[5, 9] = complex(0, np.nan), complex(np.inf, 1)
    result = matmill.matmul(a, b, executor=everywhere)
    assert np.isnan(result[3]).all()
    assert not np.isfinite(result[5]).any()
    finite = np.delete(result, (3, 5), axis=0)
    assert excess(finite, np.delete(a, (3, 5), axis=0), b) <= 1


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("beta", [-1.0, 2 - 1j])
def test_out_that_is_c_and_out_with_gaps(beta: complex, dtype: str, everywhere: Executor) -> None:
    a, b, c = random(0, 20, 30, dtype=dtype), random(1, 30, 40, dtype=dtype), random(2, 20, 40, dtype=dtype)
    for own in (c.copy(), c.T.copy().T, np.repeat(c, 2, axis=1)[:, ::2]):
        assert matmill.matmul(a, b, c=own, alpha=1j, beta=beta, out=own, executor=everywhere) is own
        assert excess(own, a, b, c, alpha=1j, beta=beta) <= 1


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("start", [0, 1, 2])
@pytest.mark.parametrize("order", ["nn", "nt", "tn"])
def test_views_that_start_on_vectors_and_between_them(order: str, start: int, dtype: str, everywhere: Executor) -> None:
    def view(which: int, rows: int, columns: int, *, transposed: bool) -> Array:
        shape = (columns, rows) if transposed else (rows, columns)
        own = random(which, 3, shape[0], shape[1] + 4, dtype=dtype)[::-1, :, start : start + shape[1]]
        return own.swapaxes(1, 2) if transposed else own

    a, b = view(0, 50, 70, transposed=order[0] == "t"), view(1, 70, 66, transposed=order[1] == "t")
    c = view(2, 50, 66, transposed=False)
    before = c.copy()
    assert matmill.matmul(a, b, c=c, alpha=0.5 - 1j, beta=2 + 1j, out=c, executor=everywhere) is c
    assert excess(c, a, b, before, alpha=0.5 - 1j, beta=2 + 1j) <= 1


@pytest.mark.parametrize("dtype", COMPLEX)
def test_no_terms_and_no_results(dtype: str, everywhere: Executor) -> None:
    a, b, c = random(0, 3, 0, dtype=dtype), random(1, 0, 5, dtype=dtype), random(2, 3, 5, dtype=dtype)
    np.testing.assert_array_equal(matmill.matmul(a, b, executor=everywhere), np.zeros((3, 5)))
    np.testing.assert_array_equal(matmill.matmul(a, b, c=c, beta=-1, executor=everywhere), -c)
    assert matmill.matmul(b, c[:1].T.copy()[:, :0].reshape(5, 0), executor=everywhere).shape == (0, 0)
    assert matmill.matmul(b, random(3, 5, 4, dtype=dtype), executor=everywhere).shape == (0, 4)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("view", ["rows", "columns"])
def test_inner(view: str, dtype: str, everywhere: Executor) -> None:
    e = random(0, 5, 700, dtype=dtype) if view == "rows" else random(0, 700, 5, dtype=dtype).T
    f = random(1, 700, 3, dtype=dtype)
    assert excess(matmill.inner(e, f, executor=everywhere), e, f) <= 1
    assert excess(matmill.inner(e, executor=everywhere), e, e.T) <= 1
    gram = matmill.inner(e, e.conj().T, executor=everywhere)
    assert excess(gram, e, e.conj().T) <= 1


@pytest.mark.parametrize("precision", ["high", "tf32", "fp16x3", "tf32x3", "float32_tensor"])
def test_precisions_are_those_of_the_parts(precision: str, everywhere: Executor) -> None:
    a, b = random(0, 64, 500), random(1, 500, 64)  # enough for tensor cores, whose workspace is behind the copies
    result = matmill.matmul(a, b, precision=precision, executor=everywhere)
    rounded = 2.0**13 if precision == "tf32" and everywhere != "cpu" else 1.0
    assert excess(result, a, b) <= rounded
    if precision == "tf32" and everywhere != "cpu":
        assert excess(result, a, b) > 20 * excess(matmill.matmul(a, b, executor=everywhere), a, b)


def test_sums_in_complex128(everywhere: Executor) -> None:
    a, b, c = random(0, 9, 60), random(1, 60, 7), random(2, 9, 7, dtype="complex128")
    result = matmill.matmul(a, b, c=c, alpha=2.0, beta=1j, out_dtype="complex128", executor=everywhere)
    wide = a.astype("complex128"), b.astype("complex128"), c
    assert excess(result, *wide, alpha=2.0, beta=1j) <= 1


def test_rows_of_batch_invariant_products_have_the_same_bits(on: Executor) -> None:
    a, b = random(0, 40, 300), random(1, 300, 12)
    for left, right in ((a, b), (a.T.copy().T, b.T.copy().T)):
        whole = matmill.matmul(left, right, batch_invariant=True, executor=on)
        for m in (1, 3, 17):
            part = matmill.matmul(left[:m], right, batch_invariant=True, executor=on)
            assert part.tobytes() == whole[:m].tobytes()
