"""transpose_add and transpose on the host: the contract, NumPy's answer to the bit, and every refusal."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import errors
from matmill.dtypes import BITS, ELEMENTWISE
from matmill.runtime import gpu
from support.examples import examples

Array = NDArray[Any]
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int8", "int32")


def _random(seed: int, *shape: int, dtype: str = "float32") -> Array:
    """Return numbers of very different sizes, integers of the whole range."""
    rng = np.random.default_rng(seed)
    kind: Any = ELEMENTWISE[dtype].numpy
    if kind.kind == "i":
        facts = np.iinfo(kind)
        return rng.integers(facts.min, facts.max, shape, kind, endpoint=True)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(kind)


def _add(x: Array, y: Array, **options: Any) -> Any:
    return matmill.transpose_add(x, y, **{"executor": "cpu", **options})


def _same(result: Any, expected: Array) -> bool:
    return bool(result.dtype == expected.dtype and result.shape == expected.shape and _bits(result) == _bits(expected))


def _bits(x: Array) -> bytes:
    return np.ascontiguousarray(x).tobytes()


def _by_hand(x: Array, y: Array, alpha: float, beta: float) -> Array:
    """Return the sum element by element in exact arithmetic, rounded where the contract says so."""
    kind = x.dtype
    dtype = next(one for one in ELEMENTWISE.values() if one.numpy == kind)
    left, right = np.broadcast_arrays(np.swapaxes(x, -1, -2), y)
    if kind.kind == "i":
        bits = 8 * kind.itemsize
        total = [int(p) * int(alpha) + int(q) * int(beta) for p, q in zip(left.flat, right.flat, strict=True)]
        wrapped = [(one + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for one in total]
        return np.array(wrapped, kind).reshape(left.shape)
    wide: Any = dtype.accumulator.numpy
    factor, scale = Fraction(float(wide.type(alpha))), wide.type(beta)
    exact = [
        factor * Fraction(float(p)) + Fraction(float(wide.type(q) * scale))
        for p, q in zip(left.flat, right.flat, strict=True)
    ]
    rounded = [_round(one, wide) for one in exact]
    return np.array(rounded, wide).astype(kind).reshape(left.shape)


def _round(exact: Fraction, kind: np.dtype[Any]) -> float:
    """Return the nearest number of that type, ties to even, for moderate sizes."""
    if not exact:
        return 0.0
    digits = 24 if kind == np.float32 else 53
    exponent = math.frexp(float(exact))[1] - digits
    return math.ldexp(round(exact / Fraction(2) ** exponent), exponent)


@pytest.mark.parametrize("alpha", [1, -1, 3, 0.3])
@pytest.mark.parametrize("beta", [1, -1, 7, -0.7])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_as_promised(dtype: str, alpha: float, beta: float) -> None:
    x, y = _random(0, 20, 30, dtype=dtype), _random(1, 30, 20, dtype=dtype)
    assert _same(_add(x, y, alpha=alpha, beta=beta), _by_hand(x, y, alpha, beta))


@pytest.mark.parametrize("alpha", [1, -1, 3, 0, 2**40 + 5, -(2**70) - 3])
@pytest.mark.parametrize("beta", [1, np.int64(-1), 7.0, 0, 300])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_around_without_a_word(dtype: str, alpha: int, beta: float) -> None:
    x, y = _random(0, 20, 30, dtype=dtype), _random(1, 30, 20, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = _add(x, y, alpha=alpha, beta=beta)
    assert _same(result, _by_hand(x, y, alpha, beta))


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_a_plain_sum_is_numpys(dtype: str) -> None:
    x, y = _random(0, 3, 20, 30, dtype=dtype), _random(1, 3, 30, 20, dtype=dtype)
    wide = ELEMENTWISE[dtype].accumulator.numpy if dtype in FLOATS else x.dtype
    assert _same(_add(x, y), (x.swapaxes(1, 2).astype(wide) + y.astype(wide)).astype(x.dtype))


@st.composite
def _operands(draw: st.DrawFn) -> tuple[Array, Array]:
    r, c = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    batch = draw(st.lists(st.integers(0, 3), max_size=2))
    dtype = draw(st.sampled_from(list(ELEMENTWISE)))
    views = []
    for i, tail in enumerate(((c, r), (r, c))):
        own = tuple(1 if draw(st.booleans()) else extent for extent in batch)
        shape = (*own[draw(st.integers(0, len(own))) :], *tail)
        steps = [draw(st.sampled_from([1, -1, 2, -3])) for _ in shape]
        root = _random(i, *(extent * abs(step) for extent, step in zip(shape, steps, strict=True)), dtype=dtype)
        view = root[tuple(slice(None, None, step) for step in steps)]
        views.append(view.swapaxes(-1, -2).copy().swapaxes(-1, -2) if draw(st.booleans()) else view)
    return views[0], views[1]


@examples(100)
@given(_operands(), st.sampled_from([1, 0, -1, 2]), st.sampled_from([1, 0, 3]), st.sampled_from([7, 2**18]))
def test_any_shape_and_stride_and_size_of_parts(drawn: tuple[Array, Array], alpha: int, beta: int, part: int) -> None:
    x, y = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matmill.dispatch.transpose._BLOCK", part)
        result = _add(x, y, alpha=alpha, beta=beta)
    np.testing.assert_array_equal(result, _by_hand(x, y, alpha, beta))
    assert type(result) is np.ndarray
    assert result.flags.c_contiguous


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_a_transpose_has_the_bits_of_its_input(dtype: str) -> None:
    kind = ELEMENTWISE[dtype].numpy
    every = np.random.default_rng(3).integers(
        0, 256, (2, 40, 50, kind.itemsize), np.uint8
    )  # signalling NaNs among them
    x = every.view(BITS[kind.itemsize].numpy)[..., 0].view(kind)
    for view in (x, x[:, ::-1, ::2], x.swapaxes(1, 2), x[0], x[:, :0]):
        result = matmill.transpose(view, executor="cpu")
        assert _same(result, view.swapaxes(-1, -2))
        assert not np.shares_memory(result, x)
        assert _same(_add(view, view.swapaxes(-1, -2), beta=0), view.swapaxes(-1, -2))
    out = np.empty((50, 40, 2), kind).transpose(2, 0, 1)
    assert matmill.transpose(x, out=out, executor="cpu") is out
    assert _same(out, x.swapaxes(1, 2))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_not_read_does_not_matter(dtype: str) -> None:
    x, y = _random(0, 4, 5, dtype=dtype), _random(1, 5, 4, dtype=dtype)
    nan = np.full((5, 4), np.nan, y.dtype)
    assert _same(_add(x, nan, alpha=2, beta=0), (2 * x.T.astype(np.float64)).astype(x.dtype))
    assert _same(_add(nan.T, y, alpha=0, beta=2), (2 * y.astype(np.float64)).astype(x.dtype))
    assert _same(_add(nan.T, y, alpha=0), y)
    assert _same(_add(nan.T, nan, alpha=0, beta=0), np.zeros_like(y))
    wide = np.broadcast_to(nan.T, (3, 4, 5))
    assert _same(_add(wide, y, alpha=0), np.broadcast_to(y, (3, 5, 4)))


def test_numbers_that_are_not_finite_pass_on() -> None:
    x = np.array([[np.inf, 1.0], [np.nan, 3e38]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = _add(x, np.array([[-np.inf, 1], [1, 3e38]], np.float32))
        assert np.isinf(_add(x, x.T, alpha=1e300)[1, 1])
    assert np.isnan(result[0]).all()
    assert np.isinf(result[1, 1])


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize("alpha", [1, 0, 3])
def test_out_may_be_exactly_y(dtype: str, alpha: int) -> None:
    x = _random(0, 2, 30, 20, dtype=dtype)
    pool = _random(1, 2, 20, 40, dtype=dtype)
    y = pool[:, ::-1, :30]
    expected, rest = _by_hand(x, y, alpha, 2), pool[..., 30:].copy()
    assert _add(x, y, alpha=alpha, beta=2, out=y) is y
    assert _same(y, expected)
    assert _same(pool[..., 30:], rest)
    again = pool[:, ::-1, :30]
    expected = _by_hand(x, y, alpha, 1)
    _add(x, y, alpha=alpha, out=again)
    assert _same(again, expected)


def test_sums_in_place_take_little_memory() -> None:
    x, y = np.ones((2000, 3000), np.float16), np.ones((3000, 2000), np.float16)
    tracemalloc.start()
    _add(x, y, out=y)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (y == 2).all()
    assert most < y.nbytes / 2


X, Y = _random(0, 3, 4), _random(1, 4, 3)
_FROZEN = np.zeros((4, 3), np.float32)
_FROZEN.flags.writeable = False
_ONES = np.ones((4, 3), np.int8)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "argument", "words"),
    [
        ((X, X), {}, errors.ShapeError, "x, y", "(3, 4) and (3, 4)"),
        ((X[0], Y), {}, errors.ShapeError, "x", "shape (4,)"),
        ((np.zeros((), np.float32), Y), {}, errors.ShapeError, "x", "shape ()"),
        ((X, Y[0]), {}, errors.ShapeError, "y", "shape (3,)"),
        (
            (np.zeros((2, 3, 4), np.float32), np.zeros((5, 4, 3), np.float32)),
            {},
            errors.ShapeError,
            "x, y",
            "broadcast",
        ),
        ((X, Y.astype(np.float64)), {}, errors.DTypeError, "y", "wanted x's float32"),
        ((X, Y.astype(">f4")), {}, errors.DTypeError, "y", "byte order"),
        ((X.astype(np.int64), Y), {}, errors.DTypeError, "x", "bfloat16, int8, int32, complex64 or complex128"),
        ((X, None), {"beta": 0}, errors.DTypeError, "y", "NoneType"),
        ((X, Y), {"alpha": "2"}, errors.ArgumentError, "alpha", "str '2'"),
        ((X, Y), {"beta": True}, errors.ArgumentError, "beta", "bool"),
        ((_ONES.T, _ONES), {"alpha": True}, errors.ArgumentError, "alpha", "bool"),
        ((_ONES.T, _ONES), {"alpha": 0.5}, errors.ArgumentError, "alpha", "got 0.5; wanted a whole number"),
        ((_ONES.T, _ONES), {"beta": np.float32(1.5)}, errors.ArgumentError, "beta", "whole number, for arrays of int8"),
        ((_ONES.T, _ONES), {"beta": math.inf}, errors.ArgumentError, "beta", "got inf"),
        ((_ONES.T, _ONES), {"alpha": math.nan}, errors.ArgumentError, "alpha", "got nan"),
        ((X, Y), {"out": np.zeros((3, 4), np.float32)}, errors.ShapeError, "out", "(3, 4)"),
        ((X, Y), {"out": np.zeros((4, 3))}, errors.DTypeError, "out", "float64"),
        ((X, Y), {"out": _FROZEN}, errors.ReadOnlyError, "out", "read-only"),
        ((X, Y), {"out": X.T}, errors.AliasError, "out", "overlaps x"),
        ((X, Y), {"stream": "0"}, errors.ArgumentError, "stream", "'0'"),
        ((X, Y), {"executor": "gpus"}, errors.UnknownNameError, "executor", "Did you mean 'gpu'"),
    ],
)
def test_bad_input(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[errors.MatmillError], argument: str, words: str
) -> None:
    with pytest.raises(error) as raised:
        _add(*arguments, **options)
    assert raised.value.argument == argument
    assert words in str(raised.value)
    assert raised.value.wanted
    assert raised.value.fix


@pytest.mark.parametrize(
    ("x", "options", "error", "words"),
    [
        (X[0], {}, errors.ShapeError, "x: got shape"),
        ([[1.0]], {}, errors.DTypeError, "x: got builtins.list"),
        (X, {"out": np.zeros((3, 4), np.float32)}, errors.ShapeError, "out: got shape"),
        (X, {"out": np.zeros((4, 3), np.int32)}, errors.DTypeError, "wanted x's float32"),
        (X, {"out": X.reshape(4, 3)}, errors.AliasError, "overlaps x"),
        (X[:, :3], {"out": X[:, :3]}, errors.AliasError, "overlaps x"),
    ],
)
def test_bad_transposes(x: Any, options: dict[str, Any], error: type[errors.MatmillError], words: str) -> None:
    with pytest.raises(error) as raised:
        matmill.transpose(x, executor="cpu", **options)
    assert words in str(raised.value)


@pytest.mark.parametrize("where", ["x", "y", "shifted", "itself", "transposed"])
@pytest.mark.parametrize("alpha", [0, 1])
def test_outputs_that_share_memory_are_refused_before_anything_is_written(where: str, alpha: int) -> None:
    pool = _random(3, 200)
    before = pool.copy()
    x, y = pool[:16].reshape(4, 4), pool[20:36].reshape(4, 4)
    out = {
        "x": pool[15:31].reshape(4, 4),
        "y": pool[21:37].reshape(4, 4),
        "shifted": pool[20:36].reshape(4, 4)[:, ::-1],
        "itself": np.lib.stride_tricks.as_strided(pool[100:], (4, 4), (4, 4)),
        "transposed": y.T,
    }[where]
    with pytest.raises(errors.AliasError) as raised:
        _add(x, y, alpha=alpha, out=out)
    assert raised.value.argument == "out"
    np.testing.assert_array_equal(pool, before)


def test_out_that_is_x_as_well_as_y_is_refused() -> None:
    x = _random(0, 4, 4)
    with pytest.raises(errors.AliasError, match="overlaps x"):
        _add(x.T, x, out=x)


def test_out_may_overlap_a_y_that_is_not_read() -> None:
    pool = np.zeros(20, np.float32)
    assert _same(_add(X, pool[:12].reshape(4, 3), beta=0, out=pool[1:13].reshape(4, 3)), X.T)


def test_inner_goes_on_refusing_integers() -> None:
    ones = np.ones((3, 3), np.int8)
    good = np.ones((3, 3), np.float32)
    for operation, arguments, argument in (
        (matmill.inner, (ones, ones), "e"),
        (matmill.inner, (good, ones.astype(np.int32)), "f"),
        (partial(matmill.inner, c=ones, beta=1), (good, good), "c"),
    ):
        with pytest.raises(
            errors.DTypeError, match=r"wanted float32, float64, float16, bfloat16, complex64 or complex128\."
        ) as raised:
            operation(*arguments, executor="cpu")
        assert raised.value.argument == argument


def test_a_gpu_that_is_demanded_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "unavailable", lambda: "no NVIDIA driver is installed")
    with pytest.raises(errors.NoGPUError, match=r"no NVIDIA driver.*doctor"):
        matmill.transpose(X, executor="gpu")
    assert _same(matmill.transpose_add(X, Y), X.T + Y)


@pytest.fixture
def torch() -> Any:
    """Provide the library, on the host; what needs it is skipped where it is not installed."""
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_torchs_own_sum_to_the_bit(torch: Any, dtype: str) -> None:
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        x, y = (torch.randn(2, 1, 50, 30) * 100).to(kind), torch.randn(3, 30, 50).to(kind)
    else:
        facts = torch.iinfo(kind)
        x, y = (torch.randint(facts.min, facts.max + 1, shape, dtype=kind) for shape in ((2, 1, 50, 30), (3, 30, 50)))
    result = matmill.transpose_add(x, y)
    assert torch.equal(result, x.transpose(-2, -1) + y)
    assert result.dtype == kind
    assert torch.equal(matmill.transpose(x), x.transpose(-2, -1).contiguous())
    view = x[..., ::2, 1:].transpose(-2, -1)
    assert torch.equal(matmill.transpose_add(view, y[:, 1:, ::2].mT), view.transpose(-2, -1) + y[:, 1:, ::2].mT)
    before = y.clone()
    assert matmill.transpose_add(x[0, 0], y[0], out=y[0]).data_ptr() == y.data_ptr()
    assert torch.equal(y[0], x[0, 0].T + before[0])
    assert torch.equal(y[1:], before[1:])
    if not kind.is_floating_point:
        assert torch.equal(matmill.transpose_add(x, y, alpha=3, beta=-5), 3 * x.transpose(-2, -1) - 5 * y)
