"""Products with bias, activation, another result type and a precision: values on the host, lowering, refusals."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import arch, errors
from matmill.arrays import inspect
from matmill.choose import choose
from matmill.dtypes import ALL, F16, F32, DType
from matmill.kernel import GemmOperands
from matmill.launch import Pointer
from matmill.lowering import lower_gemm
from matmill.problem import ACTIVATIONS, Epilogue, Gemm
from matmill.registry import PRODUCTION
from support.epilogues import error
from support.examples import examples

Array = NDArray[Any]


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(ALL[dtype].numpy)


def _cpu(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="cpu", **options)


# -- values -----------------------------------------------------------------------------------------------------------

_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5, 7), (7, 4)),
    ((1, 7), (7, 4)),
    ((5, 7), (7, 1)),
    ((2, 5, 7), (7, 4)),
    ((5, 0), (0, 4)),
    ((3, 1, 5, 7), (2, 7, 4)),
    ((7,), (7, 4)),
    ((2, 5, 7), (7,)),
    ((7,), (7,)),
]


def _biases(left: tuple[int, ...], right: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes that a bias may have."""
    m, n = left[-2] if len(left) > 1 else 1, right[-1] if len(right) > 1 else 1
    return [(m,), (m, 1)] if len(right) == 1 else [(n,), (1, n), (m, 1)]


@examples(150)
@given(
    shapes=st.sampled_from(_SHAPES).flatmap(lambda pair: st.tuples(st.just(pair), st.sampled_from(_biases(*pair)))),
    step=st.sampled_from([1, 2, -1, -3, 0]),
    activation=st.sampled_from([None, *ACTIVATIONS]),
    dtype=st.sampled_from(list(ALL)),
    wide=st.booleans(),
    factors=st.sampled_from([(1.0, 0.0), (0.5, 0.0), (-1.0, 2.0), (0.0, 1.0), (0.0, 0.0)]),
    seed=st.integers(0, 99),
)
def test_any_epilogue(  # noqa: PLR0917 — drawn by name
    shapes: tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]],
    step: int,
    activation: str | None,
    dtype: str,
    wide: bool,
    factors: tuple[float, float],
    seed: int,
) -> None:
    (left, right), bias_shape = shapes
    a, b = _random(seed, *left, dtype=dtype), _random(seed + 1, *right, dtype=dtype)
    count = int(np.prod(bias_shape))
    vector = (
        _random(seed + 2, count * max(1, abs(step)), dtype=dtype)[::step] if step else _random(seed, 1, dtype=dtype)
    )
    bias = np.broadcast_to(vector, count).reshape(bias_shape) if step == 0 else vector.reshape(bias_shape)
    result = "float32" if wide and ALL[dtype].wider else dtype
    c = _random(seed + 3, *np.matmul(a.astype(float), b.astype(float)).shape, dtype=result)
    alpha, beta = factors
    options: dict[str, Any] = {"alpha": alpha, "beta": beta, "bias": bias, "activation": activation}
    found = _cpu(a, b, c=c, out_dtype=result, **options)
    assert found.dtype == ALL[result].numpy
    assert error(np.asarray(found), a, b, c, **options) <= 1
    out = np.full_like(c, np.nan)
    assert _cpu(a, b, c=c, out_dtype=result, out=out, **options) is out
    np.testing.assert_array_equal(out, found)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_activations_of_extremes(activation: str, dtype: str) -> None:
    x = np.array([[-300.0, -1e-30, -0.0, 0.0, 1e-30, 300.0, np.inf, np.nan]], dtype)
    result = _cpu(np.ones((1, 1), dtype), x, activation=activation)
    np.testing.assert_allclose(result[0, [0, 2, 3, 5, 6]], [0, 0, 0, 300, np.inf], atol=1e-12)
    np.testing.assert_allclose(result[0, [1, 4]], np.array([0 if activation == "relu" else -5e-31, 5e-31]), rtol=1.1)
    assert np.isnan(result[0, 7])


def test_nan_that_is_not_read_stays_out() -> None:
    nan, bias = np.full((3, 3), np.nan, np.float32), _random(0, 3)
    expected = np.broadcast_to(np.maximum(bias, 0), (3, 3))
    np.testing.assert_array_equal(_cpu(nan, nan, c=nan, alpha=0, beta=0, bias=bias, activation="relu"), expected)
    assert np.isnan(_cpu(np.ones_like(nan), np.ones_like(nan), bias=nan[0], activation="relu")).all()


def test_16_bit_results_are_rounded_once() -> None:
    # 2048 + 1 is no float16: a product that was rounded before the bias is added would be 2048 + 1 again, and no more.
    a, b = np.full((1, 2), 1024, np.float16), np.array([[1], [1 + 2.0**-10]], np.float16)
    assert _cpu(a, b, bias=np.ones(1, np.float16))[0, 0] == 2050
    assert _cpu(a, b, bias=np.ones(1, np.float16), out_dtype="float32")[0, 0] == 2050
    assert _cpu(a, b, out_dtype="float32")[0, 0] == 2049


@pytest.mark.parametrize(
    "asked",
    ["float32", np.float32, np.dtype(np.float32), "f4", SimpleNamespace(dtype=np.dtype(np.float32))],
    ids=["name", "type", "dtype", "code", "JAX"],
)
def test_result_types_by_any_name(asked: object) -> None:
    x = np.eye(2, dtype=np.float16)
    assert _cpu(x, x, out_dtype=asked).dtype == np.float32


def test_torch_s_names_of_result_types() -> None:
    class Named:
        def __str__(self) -> str:
            return "torch.bfloat16"

    x = np.eye(2, dtype=ALL["bfloat16"].numpy)
    assert _cpu(x, x, out_dtype=Named()).dtype == x.dtype


def test_precisions_on_the_host_are_numpy_s() -> None:
    a, b = _random(0, 5, 7), _random(1, 7, 3)
    for precision in (None, "default", "high", "tf32"):
        np.testing.assert_array_equal(_cpu(a, b, precision=precision), a @ b)
    halves = a.astype(np.float16), b.astype(np.float16)
    np.testing.assert_array_equal(_cpu(*halves, precision="high"), _cpu(*halves))


# -- refusals ---------------------------------------------------------------------------------------------------------

_A, _B = _random(0, 5, 7), _random(1, 7, 4)
_HALF = _A.astype(np.float16), _B.astype(np.float16)

REFUSED: dict[str, tuple[tuple[Array, Array], dict[str, Any], type[errors.MatmillError], str]] = {
    "bias of rows": ((_A, _B), {"bias": np.zeros(5, np.float32)}, errors.ShapeError, r"bias.reshape\(-1, 1\)"),
    "bias of columns, upright": ((_A, _B), {"bias": np.zeros((4, 1), np.float32)}, errors.ShapeError, r"reshape\(-1\)"),
    "matrix": ((_A, _B), {"bias": np.zeros((5, 4), np.float32)}, errors.ShapeError, r"wanted \(4,\).* as c="),
    "one element": ((_A, _B), {"bias": np.zeros((), np.float32)}, errors.ShapeError, r"shape \(\)"),
    "vector b": ((_A, _B[:, 0]), {"bias": np.zeros((1, 5), np.float32)}, errors.ShapeError, r"\(5,\) or \(5, 1\)"),
    "type of bias": ((_A, _B), {"bias": np.zeros(4)}, errors.DTypeError, "bias: got dtype float64; wanted a's float32"),
    "type of bias, wide": (
        _HALF, {"bias": np.zeros(4, np.float32), "out_dtype": "float32"}, errors.DTypeError, "wanted a's float16",
    ),
    "no array": ((_A, _B), {"bias": [1, 2, 3, 4]}, errors.DTypeError, "bias"),
    "activation": ((_A, _B), {"activation": "gelu_tan"}, errors.UnknownNameError, "Did you mean 'gelu_tanh'"),
    "precision": ((_A, _B), {"precision": "tf23"}, errors.UnknownNameError, "Did you mean 'tf32'"),
    "tf32": (_HALF, {"precision": "tf32"}, errors.ArgumentError, "'tf32' with dtype float16; wanted float32"),
    "narrower": ((_A, _B), {"out_dtype": "float16"}, errors.DTypeError, "for a product in float32; wanted float32"),
    "wider": (_HALF, {"out_dtype": np.float64}, errors.DTypeError, "wanted float16 or float32"),
    "other half": (_HALF, {"out_dtype": "bfloat16"}, errors.DTypeError, "wanted float16 or float32"),
    "no type": (_HALF, {"out_dtype": "wide"}, errors.DTypeError, "dtype 'wide'"),
    "type of c": (
        _HALF, {"out_dtype": "float32", "c": np.zeros((5, 4), np.float16), "beta": 1}, errors.DTypeError,
        "c: got dtype float16; wanted out_dtype's float32",
    ),
    "type of out": (
        _HALF, {"out_dtype": "float32", "out": np.zeros((5, 4), np.float16)}, errors.DTypeError, "out_dtype's float32",
    ),
    "type of out alone": (_HALF, {"out": np.zeros((5, 4), np.float32)}, errors.DTypeError, "wanted a's float16"),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, executor: Any) -> None:
    operands, options, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        matmill.matmul(*operands, executor=executor, **options)


def test_a_result_apart_from_its_bias() -> None:
    pool = _random(0, 6, 4)
    with pytest.raises(errors.AliasError, match="overlaps bias"):
        _cpu(_A, _B, bias=pool[0], out=pool[:5])
    _cpu(_A, _B, bias=pool[5], out=pool[:5])
    assert error(pool[:5], _A, _B, bias=pool[5]) <= 1


# -- lowering and choice ----------------------------------------------------------------------------------------------


def _lowered(a: Array, b: Array, bias: Array | None = None, d: Array | None = None, **options: Any) -> list[Gemm]:
    target = np.empty(np.matmul(a, b).shape, a.dtype) if d is None else d
    vector = None if bias is None else inspect(bias, "bias")
    stages = lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(target, "out"), bias=vector, **options)
    return [stage.problem for stage in stages]


def test_a_batch_with_a_bias_of_rows_stays_a_batch() -> None:
    a, b = np.zeros((6, 4, 5), np.float32), np.zeros((5, 3), np.float32)
    (row,) = _lowered(a, b, np.zeros(3, np.float32))
    assert (row.m, row.batch, row.epilogue) == (24, 1, Epilogue("row", 1))
    (column,) = _lowered(a, b, np.zeros((4, 1), np.float32)[::-1])
    assert (column.m, column.batch, column.epilogue) == (4, 6, Epilogue("column", -1))


@pytest.mark.parametrize("shape", [(1, 3), (4, 1)])
def test_a_bias_of_one_element_is_a_row_without_steps(shape: tuple[int, int]) -> None:
    bias = np.broadcast_to(np.float32(1), shape)
    (problem,) = _lowered(np.zeros((6, 4, 5), np.float32), np.zeros((5, 3), np.float32), bias, activation="silu")
    assert (problem.m, problem.epilogue) == (24, Epilogue("row", 0, "silu"))
    (single,) = _lowered(np.zeros((1, 5), np.float32), np.zeros((5, 3), np.float32), np.zeros((1, 1), np.float32))
    assert single.epilogue == Epilogue("row", 0)


def test_offsets_of_a_wider_result_are_in_its_bytes() -> None:
    a, b = np.zeros((3, 2, 4, 5), np.float16), np.zeros((2, 5, 3), np.float16)
    d = np.zeros((3, 4, 4, 3), np.float32)[:, ::2]
    stages = lower_gemm(inspect(a, "a"), inspect(b, "b"), None, inspect(d, "out"))
    assert [tuple(stage.offsets) for stage in stages] == [((0, 0, 0, 0), (40, 30, 0, 96))]
    (problem,) = (stage.problem for stage in stages)
    assert (problem.batch, problem.out_dtype, problem.d_align) == (3, F32, 4)


@pytest.mark.parametrize("dtype", [F16, F32])
def test_sums_of_a_whole_k_wait_for_the_launch_with_the_epilogue(dtype: DType) -> None:
    a100, plain = arch.get("a100"), Gemm(2000, 2000, 640, dtype)
    other = replace(plain, epilogue=Epilogue("row"))
    kernels = [choose(problem, a100).kernel for problem in (plain, other)]
    assert [kernel.config["SPLIT_K"] for kernel in kernels] == [1, 1]
    assert [kernel.workspace(problem) for kernel, problem in zip(kernels, (plain, other), strict=True)] == [
        0,
        2000**2 * 4,
    ]
    a, b, c, d, sums = (Pointer(name, 256) for name in ("A", "B", "C", "D", "workspace"))
    steps = kernels[1].steps(other, GemmOperands(a, b, c, d, workspace=sums))
    assert [program.entry for program, _ in steps] == [kernels[1].entry, "splitk_reduce"]
    assert (steps[1][0].config["BIAS"], steps[0][0].config) == (1, kernels[1].config)


def test_a_kernel_with_an_epilogue_is_launched_alone_where_k_is_whole() -> None:
    h200, problem = arch.get("h200"), Gemm(256, 256, 4096, F16, epilogue=Epilogue("row", activation="gelu"))
    (candidate,) = (one for one in PRODUCTION if one.kernel.entry == "wgmma_gemm")
    result = {kernel.config["SPLIT_K"] > 1: kernel for kernel in candidate.legal(problem, h200)}
    assert (result[False].count_launches(problem), result[False].workspace(problem)) == (1, 0)
    assert result[True].count_launches(problem) == 2
    assert result[True].workspace(problem) == 256 * 256 * 4 * result[True].config["SPLIT_K"]


@pytest.mark.parametrize(
    "problem",
    [
        Gemm(300, 300, 64, F16, precision="high"),
        Gemm(300, 300, 64, F32, precision="tf32"),
        Gemm(3, 3, 6400, F32, precision="tf32"),
    ],
    ids=str,
)
def test_precisions_that_need_another_gpu_are_refused_once_per_kernel(problem: Gemm) -> None:
    with pytest.raises(errors.IllegalConfigError, match=f"precision '{problem.precision}' needs wgmma") as refused:
        choose(problem, arch.get("a100"))
    assert str(refused.value).count("needs wgmma") <= 3
