"""matmul through the production kernel's own PTX: every shape, stride and factor, and no race or hazard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import arch
from matmill.arrays import inspect
from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.emulator import Memory, run
from matmill.lowering import lower_gemm
from matmill.plan import prepare
from matmill.problem import Gemm
from matmill.reference import check
from support.examples import examples

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _emulate(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 1), (1, 1)),
        ((65, 33), (33, 70)),
        ((64, 64), (64, 64)),
        ((1, 100), (100, 3)),
        ((40,), (40,)),
        ((40,), (40, 50)),
        ((30, 40), (40,)),
        ((3, 9, 17), (17, 21)),
        ((2, 1, 9, 17), (1, 3, 17, 21)),
    ],
)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = _random(0, *left, dtype=dtype), _random(1, *right, dtype=dtype)
    verdict = check(_emulate(a, b), a, b)
    assert verdict.ok, verdict


@examples(12)
@given(
    st.tuples(st.integers(1, 70), st.integers(1, 70), st.integers(0, 40)),
    st.lists(st.sampled_from([1, -1, 2]), min_size=4, max_size=4),
    st.sampled_from([(1.0, 0.0), (0.5, 2.0), (0.0, 1.0)]),
)
def test_strides_and_factors(sizes: tuple[int, int, int], steps: list[int], factors: tuple[float, float]) -> None:
    m, n, k = sizes
    a = _random(0, m * abs(steps[0]), k * abs(steps[1]))[:: steps[0], :: steps[1]]
    b = _random(1, n * abs(steps[3]), k * abs(steps[2])).T[:: steps[2], :: steps[3]]
    c = _random(2, m, n)
    alpha, beta = factors
    verdict = check(_emulate(a, b, c=c, alpha=alpha, beta=beta), a, b, c, alpha=alpha, beta=beta)
    assert verdict.ok, verdict


def test_what_is_not_read_may_be_nan() -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    nan = np.full((20, 40), np.nan, np.float32)
    assert check(_emulate(a, b, c=nan, beta=0), a, b).ok
    np.testing.assert_array_equal(_emulate(np.full_like(a, np.nan), b, c=c, alpha=0, beta=2), 2 * c)


def test_out_with_gaps_and_out_that_is_c() -> None:
    a, b, c = _random(0, 20, 30), _random(1, 30, 40), _random(2, 20, 40)
    pool = np.full((40, 80), 7, np.float32)
    out = pool[::-2, ::2]
    assert _emulate(a, b, out=out) is out
    assert check(out, a, b).ok
    assert (pool[::2] == 7).all()
    assert (pool[:, 1::2] == 7).all()
    before = c.copy()
    assert _emulate(a, b, c=c, beta=-1, out=c) is c
    assert check(c, a, b, before, beta=-1).ok


def test_empty_sums_and_results() -> None:
    np.testing.assert_array_equal(
        _emulate(np.zeros((3, 0), np.float32), np.zeros((0, 5), np.float32)), np.zeros((3, 5))
    )
    assert _emulate(np.zeros((0, 3), np.float32), np.zeros((3, 4), np.float32)).shape == (0, 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("late_copies", [False, True])
@pytest.mark.parametrize("sizes", [(33, 65, 40), (128, 64, 64)])
def test_the_kernel_has_no_race(sizes: tuple[int, int, int], dtype: str, late_copies: bool) -> None:
    m, n, k = sizes
    a, b, c = _random(0, m, k, dtype=dtype), _random(1, k, n, dtype=dtype), _random(2, m, n, dtype=dtype)
    d = np.full((m, n), np.nan, dtype)
    memory = Memory()
    pointers = [
        memory.bind(name, x, access=access)
        for name, x, access in (("A", a, "r"), ("B", b, "r"), ("C", c, "r"), ("D", d, "w"))
    ]
    operands = [
        inspect(x, "x")._replace(address=pointer.address) for x, pointer in zip((a, b, c, d), pointers, strict=True)
    ]
    (ready,) = prepare(lower_gemm(*operands), arch.get("h200"))
    places = [pointer.address for pointer in pointers]
    (launch,) = ready.launches((places[0], places[1], places[2], places[3], 0, 0, 0), alpha=0.5, beta=2.0)
    for schedule in (0, 1):
        d[...] = np.nan
        report = run(ready.ptx[0], launch, memory, late_copies=late_copies, schedule=schedule)
        assert not report.hazards
        assert check(d, a, b, c, alpha=0.5, beta=2.0).ok


# -- inner, and 16-bit types ------------------------------------------------------------------------------------------


def _cast(seed: int, *shape: int, dtype: str) -> Array:
    return _random(seed, *shape, dtype="float64").astype(ALL[dtype].numpy)


@pytest.mark.parametrize("dtype", ALL)
def test_inner_of_any_layout(dtype: str) -> None:
    for e, f in (
        (_cast(0, 3, 501, dtype=dtype), _cast(1, 501, 5, dtype=dtype)),
        (_cast(0, 501, 7, dtype=dtype).T, _cast(1, 2, 501, dtype=dtype).T),
        (_cast(0, 9, 1002, dtype=dtype)[::-1, ::-2], _cast(1, 501, 34, dtype=dtype)[:, ::2]),
        (_cast(0, 1, 1, dtype=dtype), _cast(1, 1, 128, dtype=dtype)),
    ):
        c = _cast(2, e.shape[0], f.shape[1], dtype=dtype)
        result = matmill.inner(e, f, c=c, alpha=0.5, beta=-1, executor="emulator")
        assert check(result, e, f, c, alpha=0.5, beta=-1).ok


@pytest.mark.parametrize("dtype", ALL)
def test_a_transpose_in_the_same_memory_is_read_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bound: list[str] = []
    bind = Memory.bind

    def noted(self: Memory, name: str, *args: Any, **options: Any) -> Any:
        bound.append(name)
        return bind(self, name, *args, **options)

    monkeypatch.setattr(Memory, "bind", noted)
    for e in (_cast(0, 5, 333, dtype=dtype), _cast(0, 666, 5, dtype=dtype)[::-2].T, _cast(0, 2, 4, 65, dtype=dtype)):
        f = np.swapaxes(e, -1, -2)
        bound.clear()
        result = _emulate(e, f)
        assert bound == ["D", "A", "workspace"]
        assert check(result, e, f).ok
        assert result.tobytes() == np.ascontiguousarray(np.swapaxes(result, -1, -2)).tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_products_of_vectors_and_batches(dtype: str) -> None:
    for left, right in (
        ((40,), (40,)),
        ((40,), (40, 50)),
        ((30, 40), (40,)),
        ((3, 9, 17), (17, 21)),
        ((2, 3), (3, 128)),
    ):
        a, b = _cast(0, *left, dtype=dtype), _cast(1, *right, dtype=dtype)
        assert check(_emulate(a, b), a, b).ok


@pytest.mark.parametrize("dtype", ALL)
def test_no_terms_leave_beta_times_c_in_every_type(dtype: str) -> None:
    a, b, c = _cast(0, 3, 4, dtype=dtype), _cast(1, 4, 5, dtype=dtype), _cast(2, 3, 5, dtype=dtype)
    np.testing.assert_array_equal(matmill.inner(a[:, :0], b[:0], executor="emulator"), np.zeros((3, 5)))
    a[:] = np.nan
    assert (_emulate(a, b, c=c, alpha=0, beta=2) == 2 * c).all()


@pytest.mark.parametrize("dtype", ALL)
def test_what_is_not_finite_comes_out_as_from_numpy(dtype: str) -> None:
    e, f = _cast(0, 3, 400, dtype=dtype), _cast(1, 400, 4, dtype=dtype)
    e[0, 7], e[1, 9], f[30, 3] = np.nan, np.inf, -np.inf
    assert check(matmill.inner(e, f, executor="emulator"), e, f).ok


@pytest.mark.parametrize(
    ("dtype", "n", "k", "entry", "vector"),
    [("float32", 150, 1500, "gemm", 1), ("float32", 152, 1500, "gemm", 4), ("float64", 150, 700, "hgemm", 2)],
)
def test_few_tiles_and_a_long_k_are_split_over_blocks(dtype: str, n: int, k: int, entry: str, vector: int) -> None:
    a, b, c = _random(3, 133, k, dtype=dtype), _random(4, k, n, dtype=dtype), _random(5, 133, n, dtype=dtype)
    kernel = choose(Gemm(133, n, k, ALL[dtype], has_c=True), arch.get(arch.DEFAULT)).kernel
    assert (kernel.entry, kernel.config["D_VEC"]) == (entry, vector)
    assert kernel.config["SPLIT_K"] > 1
    found = _emulate(a, b, c=c, alpha=-1.5, beta=0.5)
    assert check(found, a, b, c, alpha=-1.5, beta=0.5).ok
    # The parts are added in fixed order, and in the same for (i, j) and (j, i).
    assert np.array_equal(found, _emulate(a, b, c=c, alpha=-1.5, beta=0.5))
    gram = _emulate(a, a.T)
    assert np.array_equal(gram, gram.T)
