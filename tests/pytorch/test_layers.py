"""What layers are made of: products of gradients, autocast, sums with a product, and modules, all as torch's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from matmill.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from matmill.jit.background import Arrival

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
gradients: Any = import_module("matmill.torch.gradients")
F: Any = torch.nn.functional


def _tensor(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype or torch.float64)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_gradients_are_one_product_each_and_keep_only_what_they_need(
    wanted: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = _tensor(4, 6, 7).requires_grad_(wanted[0]), _tensor(5, 7, seed=1).requires_grad_(wanted[1])
    products: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    kept: list[tuple[int, ...]] = []
    product = gradients._product

    def counted(a: Any, b: Any, precision: str | None, **options: Any) -> Any:
        products.append((tuple(a.shape), tuple(b.shape)))
        return product(a, b, precision, **options)

    def pack(tensor: Any) -> Any:
        kept.append(tuple(tensor.shape))
        return tensor

    monkeypatch.setattr(gradients, "_product", counted)
    known = [tensor for tensor in (x, w) if tensor.requires_grad]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = mt.linear(x, w)
    weight = _tensor(4, 6, 5, seed=2)
    ours = torch.autograd.grad(result, known, weight)
    expected = torch.autograd.grad(F.linear(x, w), known, weight)
    assert all(torch.allclose(*pair) for pair in zip(ours, expected, strict=True))
    assert all(got.stride() == want.stride() for got, want in zip(ours, expected, strict=True))
    assert products == [((4, 6, 5), (5, 7))] * wanted[0] + [((5, 24), (24, 7))] * wanted[1]
    assert kept == [(4, 6, 7)] * wanted[1] + [(7, 5)] * wanted[0]


def test_gradients_on_a_gpu_are_decided_but_those_of_gradients(decided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision is that of enable(); a CPU tensor stands in for a GPU's."""
    decide = import_module("matmill.torch.decide")
    decider = decide.Decider(decided, decide.Options())
    product = gradients._product
    assert product(torch.ones(2, 3), torch.ones(3, 4), None).shape == (2, 4)
    assert decided.ours == []  # not on a GPU

    class OnGPU(torch.Tensor):  # type: ignore[misc] # torch may be absent, and is Any then
        """A tensor that says it is on a GPU."""

        device = torch.device("cuda", 0)

    monkeypatch.setattr(gradients, "decider", lambda _precision: decider)
    monkeypatch.setattr(import_module("matmill.torch.states"), "PLAIN", frozenset({OnGPU}))
    x, y = (torch.ones(shape).as_subclass(OnGPU) for shape in ((2, 3), (3, 4)))
    monkeypatch.setattr(decider, "answer", lambda one: ("decided", one.layout[2:]))
    with torch.no_grad():
        assert product(x, y, None)[0] == "decided"
    with torch.enable_grad():
        assert torch.equal(product(x, y, None), torch.full((2, 4), 3.0))


@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_on_a_gpu_goes_straight(
    decided: Any, monkeypatch: pytest.MonkeyPatch, *, bias: bool, wins: bool
) -> None:
    """The layer is matmill's whatever the times, its gradients are the winner's; CPU tensors stand in for a GPU's."""
    functions, decide = (import_module(f"matmill.torch.{name}") for name in ("functions", "decide"))
    decided.wins = lambda *_shapes: wins
    decider = decide.Decider(decided, decide.Options())
    monkeypatch.setattr(gradients, "decider", lambda _precision: decider)
    monkeypatch.setattr(functions, "_layer", lambda *tensors: all(x is None or x.is_contiguous() for x in tensors))
    monkeypatch.setattr(functions, "_LAYERS", {})
    operands = [_tensor(4, 6, 7), _tensor(5, 7, seed=1), *([_tensor(5, seed=2)] if bias else [])]
    for recorded in (True, False, True):
        for x in operands:
            x.requires_grad_(recorded)
        decided.ours.clear()
        result, expected = mt.linear(*operands), F.linear(*operands)
        assert torch.allclose(result, expected)
        if recorded:
            pairs = zip(*(torch.autograd.grad(one.square().sum(), operands) for one in (result, expected)), strict=True)
            assert all(torch.allclose(*pair) for pair in pairs)
        assert len(decided.ours) == 1 + 2 * (recorded and wins)
    assert torch.allclose(mt.linear(operands[0].mT.contiguous().mT, *operands[1:]), F.linear(*operands))
    assert len(functions._LAYERS) == 2


def test_a_layer_goes_straight_when_its_kernels_have_arrived(decided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    functions, decide = (import_module(f"matmill.torch.{name}") for name in ("functions", "decide"))
    decider = decide.Decider(decided, decide.Options())
    monkeypatch.setattr(gradients, "decider", lambda _precision: decider)
    monkeypatch.setattr(functions, "_layer", lambda *_tensors: True)
    monkeypatch.setattr(functions, "_LAYERS", {})
    x, w = _tensor(6, 7).requires_grad_(), _tensor(5, 7, seed=1)
    layer, gradient = Arrival(["layer"]), Arrival(["gradient"])
    arrivals = {(7, 5): layer, (5, 7): gradient}  # by the right operand
    monkeypatch.setattr(decided, "request", lambda _a, b, *_others: arrivals.get(tuple(b.shape)))

    def counts() -> tuple[int, int]:
        decided.ours.clear()
        mt.linear(x, w).square().sum().backward()
        return len(decided.ours), len(functions._LAYERS)

    assert counts() == (0, 0)
    del arrivals[7, 5]
    layer.end("layer")
    assert [counts(), counts()] == [(1, 1)] * 2  # the gradient is torch's
    del arrivals[5, 7]
    gradient.end("gradient")
    assert functions._LAYERS == {}
    assert [counts(), counts()] == [(2, 1)] * 2


# -- autocast ---------------------------------------------------------------------------------------------------------

_PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (mt.linear, F.linear, ((4, 6), (5, 6), (5,))),
    "matmul": (mt.matmul, torch.matmul, ((2, 4, 6), (6, 5))),
    "operator": (torch.ops.matmill.matmul, torch.matmul, ((4, 6), (6, 5))),
    "inner": (mt.inner, torch.matmul, ((4, 60), (60, 5))),
    "inner's operator": (torch.ops.matmill.inner, torch.matmul, ((4, 60), (60, 5))),
    "gram": (mt.gram, lambda x: torch.matmul(x.mT, x), ((60, 4),)),
    "addmm": (mt.addmm, torch.addmm, ((5,), (4, 6), (6, 5))),
    "baddbmm": (mt.baddbmm, torch.baddbmm, ((2, 4, 5), (2, 4, 6), (2, 6, 5))),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", _PAIRS)
def test_autocast_converts_as_torch_does(name: str, compiled: bool) -> None:
    ours, theirs, shapes = _PAIRS[name]
    torch.compiler.reset()
    ours = torch.compile(ours, backend="aot_eager", fullgraph=True) if compiled else ours
    for dtypes in ((torch.float32,) * 3, (torch.bfloat16, torch.float32, torch.float32), (torch.float64,) * 3):
        operands = [
            _tensor(*shape, seed=index, dtype=dtype).requires_grad_()
            for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
        ]
        with torch.autocast("cpu", torch.bfloat16):
            result, expected = ours(*operands), theirs(*operands)
            with torch.no_grad():
                assert torch.equal(ours(*operands), result)
        assert result.dtype is expected.dtype is (torch.float64 if dtypes[0] is torch.float64 else torch.bfloat16)
        assert torch.allclose(result, expected, rtol=0.02, atol=0.1)
        grads = [torch.autograd.grad(one.double().sum(), operands) for one in (result, expected)]
        for got, wanted in zip(*grads, strict=True):
            assert got.dtype is wanted.dtype
            assert torch.allclose(got.double(), wanted.double(), rtol=0.02, atol=0.2)


def test_without_autocast_types_are_not_mixed() -> None:
    x, w = torch.ones(2, 3), torch.ones(4, 3, dtype=torch.bfloat16)
    with pytest.raises(DTypeError, match="weight: got dtype bfloat16; wanted input's float32"):
        mt.linear(x, w)
    with torch.autocast("cpu", enabled=False), pytest.raises(DTypeError):
        mt.linear(x, w)
    assert mt.transpose_add(x, x.mT.contiguous()).dtype is torch.float32


# -- sums with a product ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "factors", [{}, {"beta": 0.5}, {"alpha": -2}, {"beta": 0, "alpha": 3}, {"beta": 2, "alpha": 0}]
)
@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_sums_with_a_product(name: str, factors: dict[str, float], dtype: str) -> None:
    batch = (3,) if name == "baddbmm" else ()
    kind = getattr(torch, dtype)
    for added in ((*batch, 4, 5), (5,), (4, 1), ()):
        operands = [
            _tensor(*shape, seed=index).to(kind).requires_grad_()
            for index, shape in enumerate((added, (*batch, 4, 6), (*batch, 6, 5)))
        ]
        wide = [x.detach().double().requires_grad_() for x in operands]
        result, expected = getattr(mt, name)(*operands, **factors), getattr(torch, name)(*wide, **factors)
        tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
        assert (result.dtype, result.shape) == (kind, expected.shape)
        once = torch.finfo(kind).eps / 2 * expected.abs() + (1e-13 if dtype == "float64" else 1e-5)
        assert ((result.double() - expected).abs() <= once).all()
        weight = _tensor(*expected.shape, seed=7)
        known = range(3) if factors.get("beta") != 0 else (1, 2)
        ours = torch.autograd.grad(result, [operands[i] for i in known], weight.to(kind))
        theirs = torch.autograd.grad(expected, [wide[i] for i in known], weight)
        for got, wanted in zip(ours, theirs, strict=True):
            assert torch.allclose(got.double(), wanted, rtol=tolerance, atol=10 * tolerance)
        out = torch.full(expected.shape, float("nan"), dtype=kind)
        with torch.no_grad():
            assert getattr(mt, name)(*operands, **factors, out=out) is out
        assert torch.equal(out, result)


def test_what_sums_refuse() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(ShapeError, match=r"mat2: got shape \(1, 2, 2\); wanted 2 dimensions"):
        mt.addmm(x, x, x[None])
    with pytest.raises(ShapeError, match="batch1"):
        mt.baddbmm(x, x, x[None])
    with pytest.raises(ArgumentError, match="alpha"):
        mt.addmm(x, x, x, alpha="2")
    with pytest.raises(DTypeError, match=r"input: got .*ndarray"):
        mt.addmm(x.numpy(), x, x)
    nothing = torch.full((2, 2), float("nan"))
    assert torch.equal(mt.addmm(nothing, x, x, beta=0), torch.full((2, 2), 2.0))


# -- modules ----------------------------------------------------------------------------------------------------------


def _model() -> Any:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), inner, torch.nn.Linear(4, 4, bias=False))
    model[2].weight = model[1][0].weight
    return model.double()


def test_a_model_is_swapped_in_its_modules_alone() -> None:
    model, x, seen = _model(), _tensor(2, 3), []
    expected, states, parameters = model(x), model.state_dict(), list(model.parameters())
    model[0].register_forward_hook(lambda *_: seen.append(1))
    model[0].eval()
    assert mt.swap(model, exclude=["1"]) is model
    assert [type(model[i]) for i in (0, 2)] == [mt.Linear] * 2
    assert type(model[1][0]) is torch.nn.Linear
    assert torch.allclose(model(x), expected)
    assert (seen, model[0].training) == ([1], False)
    assert list(model.state_dict()) == list(states)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model[2].weight is model[1][0].weight
    again = pickle.loads(pickle.dumps(copy.deepcopy(model[2])))  # noqa: S301 — our own bytes
    assert torch.equal(again(_tensor(2, 4)), model[2](_tensor(2, 4)))
    alone = mt.swap(torch.nn.Linear(3, 4))
    assert type(alone) is mt.Linear
    special = type("Special", (torch.nn.Linear,), {})(3, 4)
    assert type(mt.swap(special)) is not mt.Linear


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_a_layer_with_its_activation(activation: str | None) -> None:
    layer, x = mt.Linear(3, 4, activation=activation, dtype=torch.float64), _tensor(2, 3)
    assert torch.allclose(layer(x), mt.linear(x, layer.weight, layer.bias, activation))
    assert (f"activation={activation!r}" in repr(layer)) is (activation is not None)
    graph = torch.fx.symbolic_trace(torch.nn.Sequential(layer)).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"]
    assert torch.allclose(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))
    with pytest.raises(UnknownNameError, match="activation"):
        mt.Linear(3, 4, activation="rely")


def test_keywords_are_torch_s() -> None:
    x, w, b = _tensor(2, 3), _tensor(4, 3), _tensor(4)
    assert torch.equal(mt.linear(input=x, weight=w, bias=b), mt.linear(x, w, b))
    assert torch.equal(mt.addmm(input=b, mat1=x, mat2=w.mT, beta=1, alpha=1), mt.addmm(b, x, w.mT))
