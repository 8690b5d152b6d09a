"""The contract of products of integers: exact, and wrapping around, by every kernel and executor."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as pairs

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

import matmill
from matmill.dtypes import DType
from matmill.kernels.gemm import PRODUCTION as GEMM
from matmill.kernels.hgemm.tiles import tile as pair_tile
from matmill.kernels.igemm import IGEMM, tile
from matmill.kernels.thin import PRODUCTION as THIN
from matmill.runtime import gpu
from matmill.settings import Executor as Name
from support.examples import examples
from support.executors import Executor
from support.integers import INTEGERS, IntegerProduct, exact, random
from support.strided import COLUMN, H200, ROW, Array, Layout

BYTES, WIDE = ([INTEGERS[name] for name in names] for names in (("int8", "uint8"), ("int32", "int64")))
#: Layouts and sizes that no kernel of any type copies whole, and those that it does.
LAYOUTS = (
    *(IntegerProduct((72, 80, 68), a=a, b=b) for a, b in pairs((ROW, COLUMN), (ROW, COLUMN))),
    IntegerProduct((67, 75, 51), a=Layout(pad=1, start=1), b=Layout(start=1), d=Layout(start=1)),
    IntegerProduct((37, 41, 67), a=Layout(start=1), b=Layout(step=3), d=Layout(pad=1), c=COLUMN, batch=2, alpha=-7),
    IntegerProduct((40, 33, 70), a=Layout(shared=True), batch=2, d=COLUMN),
    IntegerProduct((33, 40, 96), b=COLUMN, c=ROW, batch=2, alpha=2**31 - 1, beta=-(2**31)),
    IntegerProduct((33, 35, 64), a=COLUMN, gram=True),
    IntegerProduct((33, 35, 64), a=ROW, b=Layout(transposed=True, backwards=True), in_place=True),
    IntegerProduct((5, 6, 1), c=ROW),
    IntegerProduct((5, 6, 0), c=ROW),
)
#: A tile that is quick to emulate, of several warps and stages.
SMALL = pair_tile(32, 32, 32, 2, 2, stages=3)


def _square(one: IntegerProduct) -> IntegerProduct:
    return replace(one, shape=(one.shape[0], one.shape[0], one.shape[2])) if one.gram else one


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_the_simt_kernel(number: int, dtype: DType, executor: Executor) -> None:
    one = replace(_square(LAYOUTS[number]), dtype=dtype)
    legal = [config for config in GEMM.space(one.problem, H200) if config["SPLIT_K"] == 1]
    kernel = GEMM.kernel.with_config(legal[-1 - number % 3])  # the first tiles are slow to emulate
    executor.check(one, kernel, twice=number == 0)
    if one.shape[2] > 50:
        executor.check(one, kernel.with_config(kernel.config.launched(SPLIT_K=2)), races=False, twice=False)


@pytest.mark.parametrize("dtype", WIDE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize(
    ("shape", "columns"), [((3, 140, 264), True), ((3, 141, 385), False), ((140, 5, 257), True), ((1, 1, 900), False)]
)
def test_the_kernel_of_few_columns(
    shape: tuple[int, int, int], dtype: DType, executor: Executor, *, columns: bool
) -> None:
    one = IntegerProduct(shape, b=COLUMN if columns else ROW, c=ROW, dtype=dtype, alpha=-5)
    every = [THIN.kernel.with_config(config) for config in THIN.space(one.problem, H200)]
    assert every
    for kernel in every[:: max(1, len(every) // 2)]:
        executor.check(one, kernel, twice=False)


@pytest.mark.parametrize("dtype", BYTES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_the_kernel_of_bytes(number: int, slices: int, dtype: DType, executor: Executor) -> None:
    one = replace(_square(LAYOUTS[number]), dtype=dtype)
    kernel = IGEMM.with_config(tile(SMALL, one.problem).launched(SPLIT_K=slices))
    executor.check(one, kernel, twice=number == 1)


def test_rows_of_bytes_on_vectors_are_not_repacked(executor: Executor) -> None:
    one = IntegerProduct((40, 36, 160), b=COLUMN, dtype=BYTES[0], c=ROW)
    kernel = IGEMM.with_config(tile(SMALL, one.problem).launched(SPLIT_K=1))
    assert (kernel.config["REPACK_A"], kernel.config["REPACK_B"], kernel.workspace(one.problem)) == (0, 0, 0)
    executor.check(one, kernel)
    odd = replace(one, a=Layout(pad=1))
    reason = kernel.why_not(odd.problem, H200)
    assert reason is not None
    assert reason.startswith("A is not whole vectors along k on 16 bytes")


# -- calls -------------------------------------------------------------------------------------------------------------

SHAPES = [
    ((1, 1), (1, 1)), ((65, 33), (33, 70)), ((64, 64), (64, 64)), ((1, 300), (300, 3)), ((40,), (40,)),
    ((40,), (40, 50)), ((30, 40), (40,)), ((3, 9, 17), (17, 21)), ((2, 3), (3, 128)), ((2, 1, 9, 17), (1, 3, 17, 21)),
    ((4, 5000), (5000, 3)), ((3, 0), (0, 5)), ((0, 3), (3, 5)), ((2, 0, 3), (3, 5)),
]  # fmt: skip


@pytest.fixture(params=["cpu", "emulator", "gpu"])
def anywhere(request: pytest.FixtureRequest) -> Name:
    """Provide the name of each executor, NumPy's among them; without a GPU its tests are skipped."""
    reason = gpu.unavailable() if request.param == "gpu" else None
    if reason is not None:
        pytest.skip(reason)
    name: Name = request.param
    return name


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...], dtype: str, anywhere: Name) -> None:
    a, b = random(0, *left, dtype=dtype), random(1, *right, dtype=dtype)
    result, answer = matmill.matmul(a, b, executor=anywhere), exact(a, b)
    assert (result.dtype, result.shape) == (answer.dtype, answer.shape)
    assert (result == answer).all()


@examples(16, ignore=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 90)),
    st.lists(st.sampled_from([1, 1, -1, 2, -3]), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(sorted(INTEGERS)),
    st.tuples(st.integers(-(2**65), 2**65), st.sampled_from([0, 1, -1, 2**32, 2**63, 12345])),
    st.sampled_from([(), (2,), (2, 3)]),
)
def test_sizes_strides_and_factors(  # noqa: PLR0917 — drawn
    anywhere: Name, sizes: tuple[int, int, int], steps: list[int], transposed: list[bool], dtype: str,
    factors: tuple[int, int], batch: tuple[int, ...],
) -> None:  # fmt: skip
    m, n, k = sizes
    alpha, beta = factors

    def view(number: int, rows: int, columns: int, kind: str = dtype) -> Array:
        down, across = steps[2 * number : 2 * number + 2]
        shape = (rows * abs(down), columns * abs(across))
        root = random(number, *batch, *(shape[::-1] if transposed[number] else shape), dtype=kind)
        return (root.swapaxes(-1, -2) if transposed[number] else root)[..., ::down, ::across]

    a, b = view(0, m, k), view(1, k, n)
    c = view(2, m, n, exact(a[..., :0, :0], b[..., :0, :0]).dtype.name)
    result = matmill.matmul(a, b, c=c, alpha=alpha, beta=beta, executor=anywhere)
    assert (result == exact(a, b, c, alpha, beta)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_ends_of_the_range(dtype: str, anywhere: Name) -> None:
    """Terms and sums beyond the range wrap: those of bytes have the most terms that they need for it."""
    ends = np.iinfo(dtype)
    k = 2**31 // ends.min**2 + 3 if dtype == "int8" else 2**32 // 255**2 + 3 if dtype == "uint8" else 40
    for one, other in ((ends.min, ends.min), (ends.max, ends.max), (ends.min, ends.max)):
        a, b = np.full((2, k), one, dtype), np.full((k, 2), other, dtype)
        answer = exact(a, b)
        assert (matmill.matmul(a, b, executor=anywhere) == answer).all()
        c = np.full((2, 2), np.iinfo(answer.dtype).min, answer.dtype)
        result = matmill.matmul(a, b, c=c, alpha=-1, beta=-1, executor=anywhere)
        assert (result == exact(a, b, c, -1, -1)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_windows_and_gram_matrices(dtype: str, anywhere: Name) -> None:
    line = random(0, 200, dtype=dtype)
    windows = sliding_window_view(line, 33)[:50]  # both strides are one element
    for a, b in ((windows, random(1, 33, 17, dtype=dtype)), (windows, windows.T), (windows[::-1].T, windows)):
        assert (matmill.matmul(a, b, executor=anywhere) == exact(a, b)).all()
    a = random(2, 30, 64, dtype=dtype)
    assert (matmill.matmul(a, a.T, executor=anywhere) == exact(a, a.T)).all()
    repeated = np.broadcast_to(a[:, :1], (30, 50))
    assert (matmill.matmul(repeated, random(3, 50, 9, dtype=dtype), executor=anywhere)
            == exact(repeated, random(3, 50, 9, dtype=dtype))).all()  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS)
def test_out_with_gaps_and_out_that_is_c(dtype: str, anywhere: Name) -> None:
    a, b = random(0, 20, 30, dtype=dtype), random(1, 30, 40, dtype=dtype)
    answer = exact(a, b)
    pool = np.full((40, 80), 7, answer.dtype)
    out = pool[::-2, ::2]
    assert matmill.matmul(a, b, out=out, executor=anywhere) is out
    assert (out == answer).all()
    assert (pool[::2] == 7).all()
    assert (pool[:, 1::2] == 7).all()
    c = random(2, 20, 40, dtype=answer.dtype.name)
    before = c.copy()
    assert matmill.matmul(a, b, c=c, alpha=3, beta=-2, out=c, executor=anywhere) is c
    assert (c == exact(a, b, before, 3, -2)).all()
    row = c[0]
    assert (matmill.matmul(a, b, c=row, beta=1, executor=anywhere) == exact(a, b, np.tile(row, (20, 1)), 1, 1)).all()
    assert (matmill.matmul(a, b, c=c, alpha=0, beta=1.0, executor=anywhere) == c).all()
    same = matmill.matmul(a, b, out_dtype=answer.dtype, precision="high", batch_invariant=True, executor=anywhere)
    assert (same == answer).all()
