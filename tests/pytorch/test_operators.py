"""The operators on CPU tensors and on fake ones: values, element types, layouts, out forms and refusals."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import matmill
from matmill import errors
from matmill.dtypes import ALL, ELEMENTWISE, TRANSPOSES
from matmill.problem import ACTIVATIONS
from matmill.reference import check
from support.epilogues import error
from support.examples import examples

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")

FACTORS = [(1, 1), (2, 1), (1, -3), (-1, 2), (0, 1), (1, 0), (0, 0)]


def _tensor(seed: int, *shape: int, dtype: str = "float32") -> Any:
    generator = torch.Generator().manual_seed(seed)
    if dtype.startswith("int"):
        return torch.randint(-100, 100, shape, generator=generator).to(getattr(torch, dtype))
    kind = getattr(torch, dtype)
    return torch.randn(shape, generator=generator, dtype=kind if kind.is_complex else torch.float64).to(kind)


def _host(x: Any) -> NDArray[Any]:
    if x.dtype is torch.bfloat16:
        host: NDArray[Any] = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return host
    array: NDArray[Any] = x.numpy()
    return array


def _bits(x: Any) -> Any:
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return parts.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.element_size()])


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TRANSPOSES)
@pytest.mark.parametrize(
    ("left", "right"), [((7, 5), (5, 7)), ((2, 1, 7, 5), (3, 5, 7)), ((0, 5), (5, 0)), ((1, 1), (4, 1, 1))]
)
def test_sums_are_torch_s_own_to_the_bit(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    x, y = _tensor(0, *left, dtype=dtype), _tensor(1, *right, dtype=dtype)
    result = mt.transpose_add(x, y)
    assert torch.equal(result, x.mT + y)
    assert result.is_contiguous()
    assert result.dtype is x.dtype


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("alpha", "beta"), FACTORS)
def test_scaled_sums_are_matmill_s_own(alpha: int, beta: int, dtype: str) -> None:
    x, y = _tensor(0, 3, 33, 20, dtype=dtype), _tensor(1, 20, 33, dtype=dtype)
    expected = matmill.transpose_add(_host(x), _host(y), alpha=alpha, beta=beta, executor="cpu")
    # Powers of two and 0 scale without rounding, and so do integers: nothing is left to differ.
    if beta != -3 or dtype.startswith("int"):
        assert np.array_equal(_host(mt.transpose_add(x, y, alpha=alpha, beta=beta)), expected)
    wide = alpha * _host(x).astype(np.float64).swapaxes(-1, -2) + beta * _host(y).astype(np.float64)
    if not dtype.startswith("int"):
        near = _host(mt.transpose_add(x, y, alpha=alpha, beta=beta)).astype(np.float64)
        size = abs(alpha) * np.abs(_host(x).astype(np.float64)).swapaxes(-1, -2) + abs(beta) * np.abs(
            _host(y).astype(np.float64)
        )
        assert (np.abs(near - wide) <= 2 * ALL[dtype].roundoff * size).all()


def test_16_bit_sums_are_rounded_once() -> None:
    # 1 + 2**-9 is no bfloat16: rounded after the first step, the product would be 1 and the sum 0.
    x = torch.full((1, 1), 1 + 2.0**-7, dtype=torch.bfloat16)
    y = torch.full((1, 1), -1.0, dtype=torch.bfloat16)
    factor = (1 + 2.0**-9) / (1 + 2.0**-7)
    assert mt.transpose_add(x, y, alpha=factor).item() == pytest.approx(2.0**-9, rel=1e-2)


def test_integers_wrap_around() -> None:
    x, y = torch.full((1, 1), 100, dtype=torch.int8), torch.full((1, 1), 27, dtype=torch.int8)
    assert mt.transpose_add(x, y, alpha=3, beta=-1).item() == (300 - 27 + 128) % 256 - 128
    assert mt.transpose_add(x, y, alpha=2**40 + 1).item() == 127
    big = torch.full((1, 1), 2**31 - 1, dtype=torch.int32)
    assert mt.transpose_add(big, big, alpha=2, beta=2**31).item() == 2**31 - 2


FACTOR_VALUES = (2, 0.3, 1e300, -1e300, 1e-300, 1e39, 2**63, np.float32(2), np.int64(-3), float("inf"), float("nan"))
WHOLE_VALUES = (2**32, 2**40 + 3, 2**63, -(2**63) - 1, 10**400, 1e300, 2.0**70, -(2.0**33), np.int8(-3), np.float32(2))


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize("argument", ["alpha", "beta"])
def test_factors_of_any_size_are_the_core_s(dtype: str, argument: str) -> None:
    # Elements of one digit: what is scaled or added rounds at most once, and there is one answer.
    x, y = torch.tensor([[2, 0, -1]]).to(getattr(torch, dtype)), torch.zeros(3, 1, dtype=getattr(torch, dtype))
    x, y = (x, y) if argument == "alpha" else (y, x)
    values: tuple[Any, ...] = WHOLE_VALUES if dtype.startswith("int") else FACTOR_VALUES
    for value in values:
        expected = matmill.transpose_add(_host(x), _host(y), **{argument: value}, executor="cpu")
        out = torch.empty_like(y)
        results = [mt.transpose_add(x, y, **{argument: value}), mt.transpose_add(x, y, **{argument: value}, out=out)]
        if type(value) is float:
            results.append(torch.ops.matmill.transpose_add(x, y, **{argument: value}))
        for result in results:
            assert np.array_equal(_host(result).astype(float), expected.astype(float), equal_nan=True), value


def test_factors_that_round_to_zero_still_read() -> None:
    nan, y = torch.full((1, 1), float("nan")), torch.ones(1, 1)
    assert mt.transpose_add(nan, y, alpha=1e-300).isnan().all()
    assert mt.transpose_add(y, nan, beta=1e-300).isnan().all()


def test_an_output_over_what_a_multiple_of_2_to_the_32_scales() -> None:
    x, pair = torch.ones(3, 3, dtype=torch.int32), torch.zeros(4, 3, dtype=torch.int32)
    mt.transpose_add(x, pair[:3], beta=2**32, out=pair[1:])
    assert torch.equal(pair[1:], x)


@pytest.mark.parametrize("value", [1j, True, None, "2", torch.tensor(2.0), 10**400], ids=lambda x: repr(x)[:9])
@pytest.mark.parametrize("argument", ["alpha", "beta"])
def test_factors_that_are_no_real_numbers(value: Any, argument: str) -> None:
    x = _tensor(0, 2, 2)

    def call(x: Any) -> Any:
        return mt.transpose_add(x, x, **{argument: value})

    calls: list[Callable[[], Any]] = [lambda: call(x), lambda: call(x.to("meta")), lambda: torch.vmap(call)(x[None])]
    if isinstance(value, complex | bool):  # which torch's schema lets pass
        calls.append(lambda: torch.ops.matmill.transpose_add(x, x, **{argument: value}))
    for refused in calls:
        with pytest.raises(errors.ArgumentError) as raised:
            refused()
        assert raised.value.argument == argument


def test_what_is_multiplied_by_zero_is_not_read() -> None:
    x, nan = torch.ones(2, 3), torch.full((3, 2), float("nan"))
    assert torch.equal(mt.transpose_add(x, nan, beta=0), torch.ones(3, 2))
    assert torch.equal(mt.transpose_add(nan, x, alpha=0, beta=2), torch.full((2, 3), 2.0))
    assert torch.equal(mt.transpose_add(x, nan, alpha=0, beta=0), torch.zeros(3, 2))


@examples(60)
@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=4),
    st.permutations(range(4)),
    st.sampled_from([1, 2, 3]),
    st.sampled_from(list(TRANSPOSES)),
)
def test_any_strides(shape: list[int], order: list[int], step: int, dtype: str) -> None:
    rank = len(shape)
    order = [place for place in order if place < rank]
    permuted = _tensor(0, *(shape[place] * step for place in order), dtype=dtype)
    x = permuted[tuple(slice(None, None, step) for _ in order)].permute([order.index(place) for place in range(rank)])
    y = _tensor(1, *x.mT.shape, dtype=dtype)
    assert torch.equal(mt.transpose_add(x, y), x.mT + y)
    transposed = mt.transpose(x)
    assert torch.equal(_bits(transposed), _bits(x.mT.contiguous()))
    assert transposed.is_contiguous()


def test_transposing_moves_bits() -> None:
    x = torch.tensor([[0x7FA1, -0x5F]], dtype=torch.int16).view(torch.bfloat16)  # two NaNs with payloads
    assert torch.equal(_bits(mt.transpose(x)), _bits(x).mT)


@pytest.mark.parametrize("dtype", ALL)
def test_products(dtype: str) -> None:
    e, f = _tensor(0, 5, 3001, dtype=dtype), _tensor(1, 3001, 7, dtype=dtype)
    for product in (mt.inner, mt.matmul):
        result = product(e, f)
        assert result.dtype is e.dtype
        assert result.is_contiguous()
        assert check(_host(result), _host(e), _host(f)).ok
    assert check(_host(mt.inner(e, e.T)), _host(e), _host(e.T)).ok
    assert torch.equal(mt.inner(e[:, :0], f[:0]), torch.zeros(5, 7, dtype=e.dtype))


@pytest.mark.parametrize(
    ("left", "right"), [((4,), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((2, 1, 3, 4), (5, 4, 6)), ((2, 3), (3, 0))]
)
def test_products_of_all_ranks(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = _tensor(0, *left, dtype="float64"), _tensor(1, *right, dtype="float64")
    result = mt.matmul(a, b)
    assert torch.allclose(result, a @ b, rtol=1e-14)
    assert result.is_contiguous()


def test_16_bit_products_convert_a_bounded_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = torch.matmul

    def noted(a: Any, b: Any) -> Any:
        seen.append(a.nbytes + b.nbytes)
        return real(a, b)

    monkeypatch.setattr("matmill.dispatch.gemm._WIDENED_BYTES", 4096)
    shapes = (((3, 5000), (5000, 4)), ((2, 1, 3, 70), (5, 70, 4)), ((900,), (900, 3)), ((3, 900), (900,)))
    for (left, right), dtype in zip(shapes, ("bfloat16", "float16") * 2, strict=True):
        a, b = _tensor(0, *left, dtype=dtype), _tensor(1, *right, dtype=dtype)
        seen.clear()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "matmul", noted)
            result = mt.matmul(a, b)
        assert check(_host(result), _host(a), _host(b)).ok
        assert len(seen) > 2
        assert max(seen) <= 4096


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("dtype", ALL)
def test_epilogues(dtype: str, activation: str | None) -> None:
    a, b = _tensor(0, 2, 9, 40, dtype=dtype), _tensor(1, 40, 7, dtype=dtype)
    options: dict[str, Any] = {"activation": activation}
    for bias in (_tensor(2, 7, dtype=dtype), _tensor(3, 9, 1, dtype=dtype), None):
        added = None if bias is None else _host(bias)
        results = [mt.matmul(a, b, bias=bias, **options), torch.ops.matmill.matmul(a, b, bias, **options)]
        results.append(mt.matmul(a, b, bias=bias, out=torch.full_like(results[0], float("nan")), **options))
        if a.dtype.itemsize == 2:
            results.append(mt.matmul(a, b, bias=bias, out_dtype=torch.float32, precision="high", **options))
        results.append(mt.matmul(a.clone().requires_grad_(), b, bias=bias, **options).detach())
        for result in results:
            assert error(_host(result), _host(a), _host(b), bias=added, activation=activation) <= 1
        assert torch.equal(results[0], results[-1])
        assert results[-2].dtype is (torch.float32 if a.dtype.itemsize == 2 else a.dtype)


def test_epilogues_of_vectors() -> None:
    a, b, vector = _tensor(0, 3, 5, 4), _tensor(1, 4), _tensor(2, 5)
    assert torch.allclose(mt.matmul(a, b, bias=vector), a @ b + vector)
    assert torch.allclose(mt.matmul(b, b, bias=vector[:1], activation="relu"), (b @ b + vector[0]).relu())
    assert mt.matmul(b, a.mT, bias=vector[:, None].mT).shape == (3, 5)


def test_layers() -> None:
    x, layer = _tensor(0, 2, 6, 4), torch.nn.Linear(4, 3)
    assert torch.allclose(mt.linear(x, layer.weight, layer.bias), layer(x), atol=1e-6)
    activated = torch.nn.functional.silu(layer.weight @ x[0, 0])
    assert torch.allclose(mt.linear(x[0, 0], layer.weight, None, "silu"), activated, atol=1e-6)
    with pytest.raises(errors.ShapeError, match=r"bias: got shape \(4,\); wanted one element for each row of weight"):
        mt.linear(x, layer.weight, torch.zeros(4))
    with pytest.raises(errors.ShapeError, match=r"weight: got shape \(3,\)"):
        mt.linear(x, layer.bias)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"activation": "tanh"}, errors.UnknownNameError, "activation"),
        ({"precision": "tf32"}, errors.ArgumentError, "float32 elements"),
        ({"out_dtype": torch.float64}, errors.DTypeError, "float16 or float32"),
        ({"out_dtype": "float64"}, errors.DTypeError, "float16 or float32"),
        ({"bias": torch.zeros(7)}, errors.DTypeError, "a's float16"),
        ({"bias": torch.zeros(9).half()}, errors.ShapeError, r"wanted \(7,\)"),
    ],
)
def test_refusals_of_epilogues(options: dict[str, Any], kind: type[Exception], words: str, batched: bool) -> None:
    a, b = _tensor(0, 9, 4, dtype="float16"), _tensor(1, 4, 7, dtype="float16")
    bias = options.get("bias", torch.zeros(7).half())
    others = {name: value for name, value in options.items() if name != "bias"}

    def call(a: Any, b: Any, bias: Any) -> Any:
        return mt.matmul(a, b, bias=bias, **others)

    calls: list[Callable[..., Any]] = [call, lambda *given: call(*(x.to("meta") for x in given))]
    calls.append(lambda a, b, bias: call(a.requires_grad_(), b, bias))
    if batched:
        calls = [lambda *given: torch.vmap(call)(*(x.detach()[None] for x in given))]
        calls.append(lambda a, b, bias: torch.vmap(call, in_dims=(0, None, None))(a.detach()[None], b, bias))
    for refused in calls:
        with pytest.raises(kind, match=words):
            refused(a, b, bias)


# -- out --------------------------------------------------------------------------------------------------------------


def test_results_are_written_where_they_are_wanted() -> None:
    x, y, e, f = _tensor(0, 7, 5), _tensor(1, 5, 7), _tensor(2, 3, 40), _tensor(3, 40, 2)
    for function, arguments in (
        (mt.transpose_add, (x, y)),
        (mt.transpose, (x,)),
        (mt.inner, (e, f)),
        (mt.matmul, (e, f)),
    ):
        expected = function(*arguments)
        across = torch.full(expected.mT.shape, float("nan")).mT
        spread = torch.full((*expected.shape, 2), float("nan"))[..., 1]
        for out in (torch.full_like(expected, float("nan")), across, spread):
            version = out._version
            assert function(*arguments, out=out) is out
            assert torch.allclose(out, expected, rtol=1e-6)
            assert out._version > version
        operator = getattr(torch.ops.matmill, function.__name__)
        assert operator.out(*arguments, out=out.zero_()) is None
        assert torch.allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", TRANSPOSES)
def test_a_sum_in_place(dtype: str) -> None:
    x, y = _tensor(0, 7, 5, dtype=dtype), _tensor(1, 5, 7, dtype=dtype)
    for factor in (1, 2):
        expected = mt.transpose_add(x, y, alpha=factor)
        out = y.clone()
        assert mt.transpose_add(x, out, alpha=factor, out=out) is out
        assert torch.equal(out, expected)


def test_a_changed_output_is_noticed_by_autograd() -> None:
    kept = torch.randn(3, 3, requires_grad=True)
    out = torch.randn(3, 3)
    squared = (kept * out).sum()
    mt.transpose(torch.randn(3, 3), out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


# -- refusals ---------------------------------------------------------------------------------------------------------

#: Function, tensors, and the error with some of its words.
REFUSED = {
    "shapes": (mt.transpose_add, (_tensor(0, 2, 3), _tensor(1, 2, 3)), errors.ShapeError, "swapped"),
    "batches": (mt.transpose_add, (_tensor(0, 2, 2, 3), _tensor(1, 3, 3, 2)), errors.ShapeError, "broadcast"),
    "a vector": (mt.transpose, (_tensor(0, 3),), errors.ShapeError, "two dimensions"),
    "two types": (mt.transpose_add, (_tensor(0, 2, 3), _tensor(1, 3, 2).half()), errors.DTypeError, "x's float32"),
    "a type": (mt.transpose, (torch.zeros(2, 2, dtype=torch.bool),), errors.DTypeError, "bool"),
    "integers": (mt.inner, (_tensor(0, 2, 3).int(), _tensor(1, 3, 2).int()), errors.DTypeError, "int32"),
    "wide": (mt.inner, (_tensor(0, 129, 3), _tensor(1, 3, 2)), errors.ShapeError, "Use matmul"),
    "unequal k": (mt.matmul, (_tensor(0, 2, 3), _tensor(1, 2, 3)), errors.ShapeError, "second-last"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_of_tensors_with_memory_and_without(name: str) -> None:
    function, tensors, error, words = REFUSED[name]
    operator = getattr(torch.ops.matmill, function.__name__)
    with pytest.raises(error, match=words):
        function(*tensors)
    with pytest.raises(error, match=words):
        operator(*(x.to("meta") for x in tensors))


def test_refusals_of_outputs() -> None:
    x, y = _tensor(0, 3, 3), _tensor(1, 3, 3)
    with pytest.raises(errors.AliasError, match="overlaps x"):
        mt.transpose_add(x, y, out=x)
    pair, line = torch.zeros(4, 3), torch.zeros(3)
    with pytest.raises(errors.AliasError, match="or exactly y"):
        mt.transpose_add(x, pair[:3], out=pair[1:])
    with pytest.raises(errors.AliasError, match="elements may coincide"):
        mt.transpose(x, out=line.expand(3, 3))
    for device in ("cpu", "meta"):
        left, right = x.to(device), y.to(device)
        with pytest.raises(errors.ShapeError, match="exactly the result's"):
            mt.transpose_add(left, right, out=torch.zeros(2, 3, device=device))
        with pytest.raises(errors.DTypeError, match="x's float32"):
            mt.transpose_add(left, right, out=torch.zeros(3, 3, dtype=torch.float64, device=device))


def test_integers_are_scaled_by_integers() -> None:
    x = torch.ones(2, 2, dtype=torch.int32)
    for tensor in (x, x.to("meta")):
        with pytest.raises(errors.ArgumentError, match="alpha"):
            mt.transpose_add(tensor, tensor, alpha=0.5)
    assert torch.equal(mt.transpose_add(x, x, alpha=2.0), 3 * x)


# -- tensors without memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fake_tensors_have_the_results_shape_and_strides(dtype: str) -> None:
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 — there only where torch is

    x, y = _tensor(0, 2, 1, 7, 5, dtype=dtype), _tensor(1, 3, 5, 7, dtype=dtype)
    e, f = _tensor(2, 3, 40, dtype=dtype), _tensor(3, 2, 40, dtype=dtype).T
    calls = (
        (mt.transpose_add, x.mT.mT, y),
        (mt.transpose_add, x, y.mT.contiguous().mT),
        (mt.transpose, x),
        (mt.inner, e, f),
    )
    for function, *tensors in calls:
        real = function(*tensors)
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            fake = function(*(mode.from_tensor(tensor) for tensor in tensors))
        facts = [(t.shape, t.stride(), t.dtype, t.device) for t in (real, fake)]
        assert facts[0] == facts[1]


def test_a_gpu_s_fake_tensors_need_no_gpu() -> None:
    from torch._subclasses import FakeTensorMode  # noqa: PLC0415 — there only where torch is

    with FakeTensorMode():
        x, y = torch.empty(7, 5, device="cuda"), torch.empty(5, 7, device="cuda")
        result = mt.transpose_add(x, y)
        with pytest.raises(errors.DeviceError, match="GPU 0"):
            mt.inner(x, y.cpu())
    assert (result.shape, result.device.type) == ((5, 7), "cuda")


@pytest.mark.parametrize("stranger", [None, np.ones((2, 2), np.float32), 3], ids=["None", "ndarray", "int"])
def test_what_is_no_tensor_is_refused_by_name(stranger: Any) -> None:
    x = torch.ones(2, 2)
    calls: dict[str, Callable[[], object]] = {
        "a": lambda: mt.matmul(stranger, x),
        "b": lambda: mt.matmul(x, stranger),
        "e": lambda: mt.inner(stranger, x),
        "f": lambda: mt.inner(x, stranger),
        "x": lambda: mt.transpose(stranger),
        "y": lambda: mt.transpose_add(x, stranger),
        "weight": lambda: mt.linear(x, stranger),
        "mat2": lambda: mt.addmm(x, x, stranger),
    }
    if stranger is not None:
        calls |= {"bias": lambda: mt.matmul(x, x, bias=stranger), "out": lambda: mt.transpose(x, out=stranger)}
    for argument, call in calls.items():
        with pytest.raises(errors.DTypeError, match=rf"^{argument}: got .*; wanted a torch.Tensor"):
            call()


def test_float32_sums_in_float64() -> None:
    """Of the operators, compiled, differentiated, batched and by ranks' code: as of torch's product in float64."""
    x = torch.randn(2000, 3, generator=torch.Generator().manual_seed(1)) + 1000
    wanted = x.mT.double() @ x.double()
    limit = {"rtol": 1e-13, "atol": 0.0}
    for got in (
        mt.gram(x, out_dtype="float64"),
        mt.gram(x, alpha=2.0, out_dtype=torch.float64) / 2,
        mt.inner(x.mT, x, out_dtype=torch.float64),
        mt.inner(x.mT, x, c=wanted, beta=0.5, out_dtype="f64") - 0.5 * wanted,
        mt.matmul(x.mT, x, out_dtype=torch.float64, activation="relu"),
        torch.vmap(lambda a: mt.matmul(a.mT, a, out_dtype=torch.float64))(x[None])[0],
        torch.compile(lambda a: mt.gram(a, out_dtype=torch.float64), fullgraph=True, backend="aot_eager")(x),
    ):
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, wanted, **limit)
    recorded = x.clone().requires_grad_()
    product = mt.matmul(recorded.mT, recorded, activation="relu", out_dtype=torch.float64)
    torch.testing.assert_close(product.detach(), wanted, **limit)
    product.sum().backward()
    assert recorded.grad.dtype == torch.float32
    torch.testing.assert_close(recorded.grad, (2 * x @ torch.ones(3, 3)), rtol=1e-5, atol=0.0)
    with pytest.raises(errors.DTypeError, match="float64 on cpu"):
        mt.gram(x, out=torch.empty(3, 3), out_dtype="float64")


def test_rows_of_batch_invariant_products_have_the_same_bits() -> None:
    """On the CPU, and where a derivative is recorded, in the gradient of a too."""
    a, b, bias = torch.randn(40, 300), torch.randn(300, 33), torch.randn(33)

    def both(x: Any) -> Any:
        x = x.clone().requires_grad_()
        result = mt.matmul(x, b, bias=bias, batch_invariant=True)
        return result, torch.autograd.grad(result.square().sum(), x)[0]

    whole = both(a)
    for rows in (slice(0, 1), slice(3, 20), slice(39, 40)):
        assert all(torch.equal(part, one[rows]) for part, one in zip(both(a[rows]), whole, strict=True))
        linear = mt.linear(a[rows], b.T.contiguous(), bias, batch_invariant=True)
        assert torch.allclose(linear, whole[0][rows], atol=1e-4)
    halves = mt.matmul(a.half(), b.half(), batch_invariant=True, out_dtype=torch.float32)
    assert torch.equal(mt.matmul(a[5:9].half(), b.half(), batch_invariant=True, out_dtype=torch.float32), halves[5:9])
