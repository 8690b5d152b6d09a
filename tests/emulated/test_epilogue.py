"""Products with bias, activation and another result type through the production kernels' own PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch, errors
from matmill.arrays import inspect
from matmill.choose import choose
from matmill.dispatch import backends
from matmill.dtypes import ALL, F16, F32
from matmill.kernel import Kernel
from matmill.lowering import lower_gemm
from matmill.plan import Ready
from matmill.plan import prepare as real
from matmill.problem import Gemm
from matmill.registry import PRODUCTION
from support.epilogues import error

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(ALL[dtype].numpy)


def _emulate(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_that_are_not_rounded(dtype: str) -> None:
    a, b, bias = _random(0, 35, 70, dtype=dtype), _random(1, 70, 41, dtype=dtype), _random(2, 41, dtype=dtype)
    c = _random(3, 35, 41, dtype="float32")
    plain = _emulate(a, b, out_dtype="float32")
    assert plain.dtype == np.float32
    assert error(plain, a, b) <= 1
    before = c.copy()
    assert _emulate(a, b, c=c, beta=2, bias=bias, activation="silu", out_dtype="float32", out=c) is c
    assert error(c, a, b, before, beta=2, bias=bias, activation="silu") <= 1


@pytest.mark.parametrize("precision", [None, "high"])
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
def test_aligned_products(out_dtype: str, precision: str | None) -> None:
    a, b, column = (_random(i, *shape, dtype="float16") for i, shape in enumerate(((64, 272), (272, 80), (64, 1))))
    options: dict[str, Any] = {"bias": column, "activation": "gelu"}
    result = _emulate(a, b, out_dtype=out_dtype, precision=precision, **options)
    assert result.dtype == ALL[out_dtype].numpy
    assert error(result, a, b, **options) <= 1


def test_float32_rounded_to_tf32() -> None:
    a, w, bias = (_random(i, *shape, dtype="float32") for i, shape in enumerate(((64, 96), (40, 96), (40,))))
    b = w.T  # both are stored along k, as tensor cores take tf32
    result = _emulate(a, b, bias=bias, activation="relu", precision="tf32")
    limit = 2 * 2.0**-10 * (np.abs(a) @ np.abs(b)) + 1e-5
    assert (np.abs(result - np.maximum(a @ b + bias, 0)) <= limit).all()
    assert not np.allclose(result, np.maximum(a @ b + bias, 0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_batches(dtype: str) -> None:
    # Two batch dimensions that do not collapse into one, in the result neither.
    a, b = _random(0, 3, 4, 9, 20, dtype=dtype)[:, ::2], _random(1, 2, 20, 11, dtype=dtype)
    row, column = _random(2, 11, dtype=dtype), _random(3, 9, 1, dtype=dtype)
    pool = np.full((3, 4, 9, 11), np.nan, np.float32)
    for bias in (row, column, np.broadcast_to(row[:1], 11)):
        out = pool[:, ::2]
        _emulate(a, b, bias=bias, activation="relu", out_dtype="float32", out=out)
        for index in np.ndindex(3, 2):
            assert error(out[index], a[index], b[index[1]], bias=bias, activation="relu") <= 1
    assert np.isnan(pool[:, 1::2]).all()
    shared = _emulate(a, b[0], bias=column)
    for index in np.ndindex(3, 2):
        assert error(shared[index], a[index], b[0], bias=column) <= 1


@pytest.mark.parametrize(
    ("left", "right", "bias"), [((40,), (40, 7), (7,)), ((2, 5, 40), (40,), (5,)), ((40,), (40,), (1,))]
)
def test_vectors(left: tuple[int, ...], right: tuple[int, ...], bias: tuple[int, ...]) -> None:
    a, b, vector = (_random(i, *shape, dtype="float32") for i, shape in enumerate((left, right, bias)))
    assert error(np.asarray(_emulate(a, b, bias=vector, activation="gelu")), a, b, bias=vector, activation="gelu") <= 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_few_outputs_and_a_long_k(dtype: str) -> None:
    e, f, bias = _random(0, 3, 5000, dtype=dtype), _random(1, 5000, 5, dtype=dtype), _random(2, 3, 1, dtype=dtype)
    assert error(_emulate(e, f, bias=bias, activation="relu"), e, f, bias=bias, activation="relu") <= 1
    gram = _emulate(e, e.T, bias=bias)
    assert error(gram, e, e.T, bias=bias) <= 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_outputs_are_summed_precisely_without_wgmma(dtype: str) -> None:
    problem = Gemm(8, 8, 6000, ALL[dtype], precision="high")
    kernel = choose(problem, arch.get("a100")).kernel
    assert (kernel.entry, kernel.counts(problem)) == ("inner", True)
    e, f = _random(0, 8, 6000, dtype=dtype), _random(1, 6000, 8, dtype=dtype)
    result = _emulate(e, f, precision="high", out_dtype="float32")
    assert result.dtype == np.float32
    assert error(result, e, f) <= 1


def _older(stages: Any, _arch: arch.Arch) -> tuple[Ready[Any], ...]:
    """Return choices for a GPU without wgmma, compiled for the one that is emulated."""
    result = real(stages, arch.get("a100"))
    return tuple(Ready(one.stage, one.choice, one.sources, arch.get("h200").target) for one in result)


@pytest.mark.parametrize(("dtype", "k"), [("float32", 900), ("float16", 1601)])
def test_split_k_and_unaligned_rows(dtype: str, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "prepare", _older)
    a, b, bias = _random(0, 130, k, dtype=dtype), _random(1, k, 40, dtype=dtype), _random(2, 40, dtype=dtype)
    x, y, d, vector = (inspect(one, "x") for one in (a, b, a @ b, bias))
    (stage,) = lower_gemm(x, y, None, d, bias=vector)
    kernel: Kernel[Gemm] = choose(stage.problem, arch.get("a100")).kernel
    assert kernel.entry == {"float32": "gemm", "float16": "hgemm"}[dtype]
    assert kernel.config["SPLIT_K"] > 1
    assert error(_emulate(a, b, bias=bias, activation="gelu_tanh"), a, b, bias=bias, activation="gelu_tanh") <= 1


def test_nothing_is_read_that_is_scaled_by_zero() -> None:
    nan, bias = np.full((5, 5), np.nan, np.float32), _random(0, 5, dtype="float32")
    result = _emulate(nan, nan, c=nan, alpha=0, beta=0, bias=bias, activation="relu")
    np.testing.assert_array_equal(result, np.broadcast_to(np.maximum(bias, 0), (5, 5)))
    empty = _emulate(nan[:, :0], nan[:0], bias=bias[:, None], activation="silu")
    assert error(empty, nan[:, :0], nan[:0], bias=bias[:, None], activation="silu") <= 1


@pytest.mark.parametrize("dtype", [F16, F32])
def test_kernels_of_older_gpus_refuse_a_precision(dtype: Any) -> None:
    problem = Gemm(64, 64, 64, dtype, precision="high" if dtype is F16 else "tf32")
    old = {"gemm", "hgemm", "inner"}
    for candidate in PRODUCTION:
        if candidate.kernel.entry in old:
            legal = list(candidate.legal(problem, arch.get("h200")))
            assert not legal
    with pytest.raises(errors.IllegalConfigError, match="needs wgmma"):
        choose(problem, arch.get("a100"))
