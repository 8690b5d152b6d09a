"""The contract of ``matmul`` and ``inner``: the same calls with arrays of NumPy on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill.dtypes import ALL
from matmill.problem import ACTIVATIONS
from matmill.reference import check
from matmill.settings import Executor
from support import views
from support.epilogues import error
from support.examples import examples

Array = NDArray[Any]
SHAPES = [
    ((1, 1), (1, 1)),
    ((65, 33), (33, 70)),
    ((64, 64), (64, 64)),
    ((131, 67), (67, 150)),
    ((1, 100), (100, 3)),
    ((17, 1030), (1030, 140)),
    ((40,), (40,)),
    ((40,), (40, 50)),
    ((200,), (200, 130)),
    ((30, 40), (40,)),
    ((3, 9, 17), (17, 21)),
    ((3, 90, 8), (8, 5)),
    ((2, 3), (3, 128)),
    ((2, 1, 9, 17), (1, 3, 17, 21)),
]
#: Larger ones, of several waves of blocks, repacked matrices and slices of k: a GPU alone is quick enough for them.
LARGE = [
    ((2048, 1024), (1024, 1536)),
    ((1023, 1025), (1025, 511)),
    ((2047, 1025), (1025, 1999)),
    ((5, 511, 777), (5, 777, 333)),
    ((511, 777), (5, 777, 333)),
    ((3, 5000), (5000, 1000)),
    ((16, 4096), (4096, 4096)),
    ((200, 100_001), (100_001, 200)),
    ((513, 1), (1, 511)),
    ((4000,), (4000, 300)),
    ((300, 4000), (4000,)),
    ((3, 1, 133, 44), (1, 5, 44, 155)),
    ((3, 200_000), (200_000, 5)),
    ((4, 3, 9000), (4, 9000, 2)),
    ((70_001,), (70_001,)),
]
FACTORS = [(1.0, 0.0), (0.5, 2.0), (0.0, 1.0), (-1.0, 0.0)]
FIXTURE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    """Draw normal numbers of a type."""
    return np.random.default_rng(seed).standard_normal(shape).astype(ALL[dtype].numpy)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(("left", "right"), [*SHAPES, *LARGE])
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], dtype: str, on: Executor) -> None:
    if on == "emulator" and (left, right) in LARGE:
        pytest.skip("slow to emulate")
    a, b = random(0, *left, dtype=dtype), random(1, *right, dtype=dtype)
    verdict = check(matmill.matmul(a, b, executor=on), a, b)
    assert verdict.ok, verdict


@examples(16, ignore=FIXTURE)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 700)),
    st.lists(st.sampled_from([1, 1, -1, 2, -3]), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=2, max_size=2),
    st.sampled_from(sorted(ALL)),
    st.sampled_from(FACTORS),
)
def test_sizes_strides_and_factors(  # noqa: PLR0917 — drawn
    on: Executor, sizes: tuple[int, int, int], steps: list[int], transposed: list[bool], dtype: str,
    factors: tuple[float, float],
) -> None:  # fmt: skip
    m, n, k = sizes if on == "gpu" else (sizes[0] % 71, sizes[1] % 71, sizes[2] % 91)

    def view(seed: int, rows: int, columns: int) -> Array:
        down, across = steps[2 * seed : 2 * seed + 2]
        shape = (rows * abs(down), columns * abs(across))
        root = random(seed, *(shape[::-1] if transposed[seed] else shape), dtype=dtype)
        return (root.T if transposed[seed] else root)[::down, ::across]

    a, b, c = view(0, m, k), view(1, k, n), random(2, m, n, dtype=dtype)
    alpha, beta = factors
    verdict = check(matmill.matmul(a, b, c=c, alpha=alpha, beta=beta, executor=on), a, b, c, alpha=alpha, beta=beta)
    assert verdict.ok, verdict


@pytest.mark.parametrize("dtype", ALL)
def test_what_is_not_read_and_what_is_not_finite(dtype: str, on: Executor) -> None:
    a, b, c = random(0, 130, 20, dtype=dtype), random(1, 20, 40, dtype=dtype), random(2, 130, 40, dtype=dtype)
    a[3, 7], a[129, 9], b[15, 3] = np.nan, np.inf, -np.inf
    assert check(matmill.matmul(a, b, c=np.full_like(c, np.nan), beta=0, executor=on), a, b).ok
    assert (matmill.matmul(a, b, c=c, alpha=0, beta=2, executor=on) == c + c).all()
    for k in (400, 300_001)[: 1 + (on == "gpu")]:
        e, f = random(0, 3, k, dtype=dtype), random(1, k, 4, dtype=dtype)
        e[0, 7], e[1, 9], f[30, 3] = np.nan, np.inf, -np.inf
        assert check(matmill.inner(e, f, executor=on), e, f).ok
        e[:, :] = np.inf
        assert not np.isfinite(matmill.inner(e, e.T, executor=on).astype(np.float64)).any()


@pytest.mark.parametrize("dtype", ALL)
def test_out_with_gaps_and_out_that_is_c(dtype: str, on: Executor) -> None:
    a, b, c = random(0, 20, 30, dtype=dtype), random(1, 30, 40, dtype=dtype), random(2, 20, 40, dtype=dtype)
    pool = np.full((40, 80), 7, c.dtype)
    out = pool[::-2, ::2]
    assert matmill.matmul(a, b, out=out, executor=on) is out
    assert check(out, a, b).ok
    assert (pool[::2] == 7).all()
    assert (pool[:, 1::2] == 7).all()
    before, row = c.copy(), random(3, 40, dtype=dtype)
    assert matmill.matmul(a, b, c=c, alpha=0.5, beta=-1, out=c, executor=on) is c
    assert check(c, a, b, before, alpha=0.5, beta=-1).ok
    assert check(matmill.matmul(a, b, c=row, beta=1, executor=on), a, b, np.repeat(row[None], 20, axis=0), beta=1).ok


@pytest.mark.parametrize("dtype", ALL)
def test_no_terms_and_no_results(dtype: str, on: Executor) -> None:
    a, b, c = random(0, 3, 0, dtype=dtype), random(1, 0, 5, dtype=dtype), random(2, 3, 5, dtype=dtype)
    for product in (matmill.matmul, matmill.inner):
        np.testing.assert_array_equal(product(a, b, executor=on), np.zeros((3, 5)))
        np.testing.assert_array_equal(product(a, b, c=c, beta=-1, executor=on), -c)
    assert matmill.matmul(b, random(3, 5, 4, dtype=dtype), executor=on).shape == (0, 4)


@pytest.mark.parametrize("k", [501, 7, 65_537, 300_001])
@pytest.mark.parametrize("dtype", ALL)
def test_inner_of_any_layout(dtype: str, k: int, on: Executor) -> None:
    if on == "emulator" and k > 501:
        pytest.skip("slow to emulate")
    for e, f in (
        (random(0, 3, k, dtype=dtype), random(1, k, 5, dtype=dtype)),
        (random(0, k, 7, dtype=dtype).T, random(1, 2, k, dtype=dtype).T),
        (random(0, 9, 2 * k, dtype=dtype)[::-1, ::-2], random(1, k, 34, dtype=dtype)[:, ::2]),
        (random(0, 5, k + 3, dtype=dtype)[:, 3:], random(1, k, 2, dtype=dtype)[::-1]),
        (random(0, 1, 1, dtype=dtype), random(1, 1, 128, dtype=dtype)),
    ):
        c = random(2, e.shape[0], f.shape[1], dtype=dtype)
        assert check(matmill.inner(e, f, c=c, alpha=0.5, beta=-1, executor=on), e, f, c, alpha=0.5, beta=-1).ok


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize(
    ("m", "k"),
    [(130, 40), (133, 500), (5, 333), (17, 600), (100, 200), (3, 65_537), (128, 65_537), (130, 100_000), (1000, 1001)],
)
def test_gram_matrices_are_symmetric_to_the_bit(m: int, k: int, dtype: str, on: Executor) -> None:
    if on == "emulator" and m * k > 150_000:
        pytest.skip("slow to emulate")
    for a in (random(0, m, k, dtype=dtype), random(0, 2 * k, m, dtype=dtype)[::-2].T):
        gram = matmill.matmul(a, a.T, executor=on)
        assert check(gram, a, a.T).ok
        assert gram.tobytes() == np.ascontiguousarray(gram.T).tobytes()


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("left", [(70, 64), (3, 257, 64), (5, 9000)], ids=str)
def test_epilogues(dtype: str, activation: str | None, left: tuple[int, ...], on: Executor) -> None:
    if on == "emulator" and left != (70, 64):
        pytest.skip("slow to emulate")
    kind, m, n = ALL[dtype].numpy, left[-2], 3 if left == (5, 9000) else 45
    a, b, c = random(0, *left).astype(kind), random(1, left[-1], n).astype(kind), random(4, *left[:-1], n)
    for bias in (random(2, 2 * n).astype(kind)[::-2], random(3, m, 1).astype(kind)):
        for out_dtype in {dtype, "float32" if ALL[dtype].wider else dtype}:
            added = c.astype(ALL[out_dtype].numpy)
            options: dict[str, Any] = {"alpha": 0.5, "beta": -1.0, "bias": bias, "activation": activation}
            result = matmill.matmul(a, b, c=added, out_dtype=out_dtype, executor=on, **options)
            assert error(result, a, b, added, **options) <= 1


# -- views whose elements start anywhere -------------------------------------------------------------------------------


@examples(24, ignore=FIXTURE)
@given(views.products())
def test_any_view(on: Executor, operands: tuple[Array, Array]) -> None:
    views.check(*operands, on)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("windows", [(185, 16, 3), (64, 64, 64), (130, 33, 17), (129, 72, 136)])
def test_sliding_windows(name: str, windows: tuple[int, int, int], on: Executor) -> None:
    views.check_windows(*windows, name, on)


@pytest.mark.parametrize("gap", range(8))
@pytest.mark.parametrize("name", ALL)
def test_packed_products_at_any_distance(gap: int, name: str, on: Executor) -> None:
    views.check_distances(ALL[name].numpy, gap, on)
