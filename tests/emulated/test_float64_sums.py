"""float32 operands with out_dtype="float64": exact products, summed in float64, by every kernel and executor."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import matmill
from matmill.arch import get
from matmill.arrays import inspect
from matmill.choose import choose
from matmill.errors import DTypeError
from matmill.lowering import lower_gemm

H200 = get("h200")
#: m, n, k, and the kernel that takes them on an H200.
PRODUCTS = [
    ((3, 3, 5000), "inner"),
    ((8, 8, 4097), "inner"),
    ((16, 2, 3000), "inner"),
    ((1, 1, 33), "inner"),
    ((130, 5, 77), "gemm"),
    ((2, 300, 700), "thin"),
    ((3000, 1, 2000), "thin"),
    ((200, 150, 64), "gemm"),
    ((128, 128, 300), "gemm"),
]


def far_from_zero(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random float32 numbers about 1000 with a deviation of 1: a sum of their products loses that in float32."""
    return np.random.default_rng(seed).normal(1000, 1, shape).astype(np.float32)


@pytest.mark.parametrize(("sizes", "kernel"), PRODUCTS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_sums(sizes: tuple[int, int, int], kernel: str, order: Literal["C", "F"]) -> None:
    m, n, k = sizes
    a, b = np.asarray(far_from_zero((m, k), 1), order=order), np.asarray(far_from_zero((k, n), 2), order=order)
    (stage,) = lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(np.empty((m, n)), "d"))
    if order == "C":
        assert choose(stage.problem, H200).kernel.entry == kernel
    wanted = a.astype(np.longdouble) @ b.astype(np.longdouble)
    for executor in ("cpu", "emulator"):
        got = matmill.matmul(a, b, out_dtype="float64", executor=executor)
        assert got.dtype == np.float64
        # Numbers are positive: the sum of magnitudes is the sum. k roundings to float64, of which most cancel.
        assert (np.abs(got - wanted) <= k * 2.0**-53 * wanted).all()


@pytest.mark.parametrize("shape", [(4, 40, 6), (3, 130, 9)])
def test_everything_beside_the_sum(shape: tuple[int, int, int]) -> None:
    """Batches, C and out in float64, a bias in float32, alpha and an activation; views that start anywhere."""
    m, k, n = shape
    a, b = far_from_zero((5, m, k + 3), 3)[..., 1:-2], far_from_zero((5, k, n), 4)
    c, bias = np.random.default_rng(5).normal(size=(5, m, n)), far_from_zero((n,), 6)
    wanted = 0.25 * (a.astype(float) @ b.astype(float)) - 2 * c + bias
    for executor in ("cpu", "emulator"):
        out = np.empty((5, m, n))
        asked = {"bias": bias, "activation": "relu", "out_dtype": np.float64, "executor": executor}
        got = matmill.matmul(a, b, c=c, alpha=0.25, beta=-2.0, out=out, **asked)  # type: ignore[call-overload]
        assert got is out
        np.testing.assert_allclose(out, np.maximum(wanted, 0), rtol=k * 2.0**-52)


def test_covariances_of_numbers_far_from_zero() -> None:
    """The variance is 1 and the sums 1e6 times as large as the deviations': float32 keeps none of it."""
    x = far_from_zero((20_000, 3), 7)
    exact = np.cov(x.astype(np.float64), rowvar=False, bias=True)
    mean = x.mean(axis=0, dtype=np.float64)
    for executor in ("cpu", "emulator"):
        gram = matmill.inner(x.T, x, out_dtype="float64", executor=executor)
        assert (gram == gram.T).all()
        np.testing.assert_allclose(gram / len(x) - np.outer(mean, mean), exact, atol=1e-8)
        narrow = matmill.inner(x.T, x, executor=executor)
        assert np.abs(narrow / len(x) - np.outer(mean, mean) - exact).max() > 1e-3


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types_are_refused(dtype: str) -> None:
    x = np.ones((2, 40), np.float16 if dtype == "float64" else np.float32)
    with pytest.raises(DTypeError, match="float32 or float64" if dtype == "bfloat16" else "float16 or float32"):
        matmill.inner(x, x.T, out_dtype=dtype, executor="cpu")
