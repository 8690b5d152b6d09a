"""Derivatives of the operators, backwards and forwards, their second ones, and batches under vmap."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from matmill import errors

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
batched: Any = import_module("matmill.torch.states").batched


def _random(seed: int, *shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def _scaled(x: Any, y: Any) -> Any:
    return mt.transpose_add(x, y, alpha=2.0, beta=-0.5)


def _activated(a: Any, b: Any, bias: Any) -> Any:
    return mt.matmul(a, b, bias=bias, activation="gelu")


def _silu(x: Any, w: Any, b: Any) -> Any:
    return mt.linear(x, w, b, "silu")


def _biased(a: Any, b: Any, bias: Any) -> Any:
    return mt.matmul(a, b, bias=bias)


#: Functions with arguments to differentiate at.
CASES = {
    "transpose_add": (mt.transpose_add, (_random(0, 3, 5), _random(1, 5, 3))),
    "scaled": (_scaled, (_random(0, 3, 5), _random(1, 5, 3))),
    "broadcast": (_scaled, (_random(0, 2, 1, 3, 2), _random(1, 3, 2, 3))),
    "transpose": (mt.transpose, (_random(0, 2, 3, 5),)),
    "inner": (mt.inner, (_random(0, 2, 6), _random(1, 6, 3))),
    "matmul": (mt.matmul, (_random(0, 2, 1, 3, 4), _random(1, 2, 4, 2))),
    "dot": (mt.matmul, (_random(0, 4), _random(1, 4))),
    "row": (mt.matmul, (_random(0, 4), _random(1, 3, 4, 2))),
    "column": (mt.matmul, (_random(0, 3, 2, 4), _random(1, 4))),
    "bias of rows": (_biased, (_random(0, 2, 3, 4), _random(1, 4, 2), _random(2, 3, 1))),
    "bias of vectors": (_biased, (_random(0, 4), _random(1, 4), _random(2, 1))),
    "bias of a column": (_biased, (_random(0, 2, 3, 4), _random(1, 4), _random(2, 3))),
    "gelu": (_activated, (_random(0, 3, 4), _random(1, 2, 4, 2), _random(2, 1, 2))),
    "layer": (_silu, (_random(0, 2, 4), _random(1, 3, 4), _random(2, 3))),
}

#: Those whose function is an operator.
OPERATORS = [case for case, (function, _) in CASES.items() if hasattr(torch.ops.matmill, function.__name__)]


def _plain(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.detach() for x in arguments)


@pytest.mark.parametrize("case", CASES)
def test_first_derivatives(case: str) -> None:
    function, arguments = CASES[case]
    assert torch.autograd.gradcheck(
        function, arguments, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )


@pytest.mark.parametrize("case", CASES)
def test_second_derivatives(case: str) -> None:
    function, arguments = CASES[case]
    assert torch.autograd.gradgradcheck(function, arguments, check_fwd_over_rev=True)


@pytest.mark.parametrize("case", OPERATORS)
def test_operators_have_the_functions_derivatives(case: str) -> None:
    function, arguments = CASES[case]
    operator = getattr(torch.ops.matmill, function.__name__)
    assert torch.autograd.gradcheck(operator, arguments, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(operator, arguments)


def test_gradients_of_a_plain_sum_are_views() -> None:
    x, y = _random(0, 3, 5), _random(1, 5, 3)
    weight = torch.ones(5, 3, dtype=torch.float64)
    to_x, to_y = torch.autograd.grad(mt.transpose_add(x, y), (x, y), weight)
    assert to_x.data_ptr() == to_y.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_gradient_alone(wanted: int) -> None:
    for function, arguments in CASES.values():
        if len(arguments) == 2:
            given = list(_plain(arguments))
            given[wanted].requires_grad_()
            weight = torch.ones_like(function(*given))
            (alone,) = torch.autograd.grad(function(*given), given[wanted], weight)
            both = torch.autograd.grad(function(*arguments), arguments, weight)
            given[wanted].requires_grad_(requires_grad=False)
            assert torch.equal(alone, both[wanted])


@pytest.mark.parametrize("case", CASES)
def test_functional_transformations(case: str) -> None:
    function, arguments = CASES[case]
    plain = _plain(arguments)

    def energy(*tensors: Any) -> Any:
        return function(*tensors).pow(2).sum()

    assert torch.allclose(torch.func.jacfwd(function)(*plain), torch.func.jacrev(function)(*plain))
    reference = torch.autograd.grad(energy(*arguments), arguments[0])[0]
    assert torch.allclose(torch.func.grad(energy)(*plain), reference)
    assert torch.func.hessian(energy)(*plain).shape == (*plain[0].shape, *plain[0].shape)
    several = tuple(torch.stack([x, 2 * x, -x]) for x in plain)
    per_sample = torch.vmap(torch.func.grad(energy))(*several)
    for number, gradient in enumerate(per_sample):
        assert torch.allclose(gradient, torch.func.grad(energy)(*(x[number] for x in several)))
    through = torch.func.grad(lambda *tensors: torch.vmap(function)(*tensors).pow(2).sum())(*several)
    assert torch.allclose(through, per_sample)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", [0, -1])
def test_batches_by_function_and_operator(case: str, place: int) -> None:
    function, arguments = CASES[case]
    plain = _plain(arguments)
    stacked = tuple(torch.stack([x, 2 * x], place) for x in plain)
    expected = torch.stack([function(*plain), function(*(2 * x for x in plain))])
    assert torch.allclose(torch.vmap(function, in_dims=place)(*stacked), expected)
    if case in OPERATORS:
        operator = getattr(torch.ops.matmill, function.__name__)
        assert torch.allclose(torch.vmap(operator, in_dims=place)(*stacked), expected)
    if len(plain) > 1:
        dims = (*[None] * (len(plain) - 1), place)
        one = torch.vmap(function, in_dims=dims)(*plain[:-1], stacked[-1])
        assert torch.allclose(one[1], function(*plain[:-1], 2 * plain[-1]))
        alone = torch.vmap(function, in_dims=(place, *[None] * (len(plain) - 1)))(stacked[0], *plain[1:])
        assert torch.allclose(alone[1], function(2 * plain[0], *plain[1:]))


def test_tangents_are_not_lost() -> None:
    forward_ad = torch.autograd.forward_ad
    x, y = _plain(CASES["transpose_add"][1])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for call in (mt.transpose_add, torch.ops.matmill.transpose_add):
            assert torch.equal(forward_ad.unpack_dual(call(dual, y)).tangent, torch.ones(5, 3, dtype=torch.float64))
        assert forward_ad.unpack_dual(mt.transpose_add(x, y)).tangent is None
        with pytest.raises(errors.ArgumentError, match="derivative"):
            mt.transpose_add(dual, y, out=torch.empty(5, 3, dtype=torch.float64))


def test_no_derivative_is_recorded_into_out() -> None:
    x, y = CASES["transpose_add"][1]
    out = torch.empty(5, 3, dtype=torch.float64)
    for call in (mt.transpose_add, torch.ops.matmill.transpose_add.out):
        with pytest.raises(errors.ArgumentError, match=r"torch\.no_grad"):
            call(x, y, out=out)
    with torch.no_grad():
        mt.transpose_add(x, y, out=out)
    assert torch.equal(out, x.detach().mT + y.detach())


def test_inference_mode() -> None:
    x, y = CASES["transpose_add"][1]
    with torch.inference_mode():
        out = mt.transpose_add(x, y)
        mt.transpose_add(x, y, alpha=2, out=out)
    assert out.is_inference()
    assert torch.equal(out, 2 * x.detach().mT + y.detach())


def test_batched_gradients_are_told() -> None:
    """They have no memory that a kernel could read."""
    seen: list[bool] = []

    class Noted(torch.autograd.Function):  # type: ignore[misc]  # torch is Any
        @staticmethod
        def forward(_ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(_ctx: Any, given: Any) -> Any:
            seen.append(batched(given, torch.ones(1)))
            return 2 * given

    x = torch.ones(3, requires_grad=True)
    torch.autograd.grad(Noted.apply(x), x, torch.eye(3), is_grads_batched=True)
    Noted.apply(x).sum().backward()
    assert seen == [True, False]
