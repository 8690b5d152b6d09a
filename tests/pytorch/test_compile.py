"""torch.compile without a graph break, with symbolic sizes too, and torch's own checks of every operator."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from matmill import errors

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")

BACKENDS = ["eager", "aot_eager", "inductor"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Forget what was compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compile(function: Callable[..., Any], backend: str, **options: Any) -> Callable[..., Any]:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("Inductor needs a C++ compiler for the CPU")
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=backend, **options)
    return compiled


def _random(*shape: int, grad: bool = False) -> Any:
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def _forms(*, grad: bool) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Return an operator's form, arguments and keywords."""
    operators = torch.ops.matmill
    x, y, vector = _random(3, 5, grad=grad), _random(2, 5, 3, grad=grad), _random(5, grad=grad)
    halves = x.detach().half().requires_grad_(grad), y.detach().half().requires_grad_(grad)
    singles = y.detach().float().requires_grad_(grad), x.detach().float().requires_grad_(grad)
    forms: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
        "transpose_add": (operators.transpose_add.default, (x, y), {}),
        "scaled": (operators.transpose_add.default, (x, y), {"alpha": 2.0, "beta": -1}),
        "halves": (operators.transpose_add.default, halves, {}),
        "transpose": (operators.transpose.default, (y,), {}),
        "inner": (operators.inner.default, (x, y[0]), {}),
        "matmul": (operators.matmul.default, (y, x), {}),
        "vectors": (operators.matmul.default, (vector, y), {}),
        "activated": (operators.matmul.default, (y, x, vector), {"activation": "gelu_tanh"}),
        "rows of bias": (operators.matmul.default, (y, x, _random(5, 1, grad=grad)), {}),
        "pieces": (operators.matmul.default, singles, {"precision": "tf32x3"}),
        "wide": (operators.matmul.default, halves, {"out_dtype": torch.float32, "precision": "high"}),
    }
    if grad:  # no derivative is recorded into out
        return forms
    out = {"out": torch.empty(2, 5, 3, dtype=torch.float64)}
    return {
        **forms,
        "integers": (operators.transpose_add.default, (x.int(), y.int()), {"alpha": 3}),
        "transpose_add.out": (operators.transpose_add.out, (x, y), out),
        "transpose.out": (operators.transpose.out, (y.mT,), out),
        "inner.out": (operators.inner.out, (x, y[0]), {"out": torch.empty(3, 3, dtype=torch.float64)}),
        "matmul.out": (operators.matmul.out, (y, x), {"out": torch.empty(2, 5, 5, dtype=torch.float64)}),
        "activated.out": (
            operators.matmul.out,
            (y, x, vector),
            {"activation": "relu", "out": torch.empty(2, 5, 5, dtype=torch.float64)},
        ),
    }


@pytest.mark.parametrize("form", _forms(grad=False))
def test_torch_s_own_checks(form: str) -> None:
    operator, arguments, keywords = _forms(grad=False)[form]
    torch.library.opcheck(operator, arguments, keywords)


@pytest.mark.parametrize("form", _forms(grad=True))
def test_torch_s_own_checks_with_gradients(form: str) -> None:
    operator, arguments, keywords = _forms(grad=True)[form]
    torch.library.opcheck(operator, arguments, keywords)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_all_functions_and_their_gradients(backend: str, dynamic: bool) -> None:
    def layer(x: Any, y: Any) -> Any:
        summed = mt.transpose_add(x, y, alpha=0.5)
        return (mt.inner(x, summed) * 2 + mt.matmul(mt.transpose(y), summed)).relu()

    compiled = _compile(layer, backend, dynamic=dynamic)
    for rows, columns in ((3, 5), (4, 6), (6, 4)):
        x, y = _random(rows, columns, grad=True), _random(columns, rows, grad=True)
        expected, result = layer(x, y), compiled(x, y)
        assert torch.allclose(result, expected)
        weight = torch.rand_like(expected)
        pairs = zip(
            torch.autograd.grad(result, (x, y), weight), torch.autograd.grad(expected, (x, y), weight), strict=True
        )
        for got, wanted in pairs:
            assert torch.allclose(got, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_and_their_gradients(backend: str) -> None:
    def layers(x: Any, w: Any, b: Any) -> Any:
        hidden = mt.linear(x, w, b, "gelu")
        return mt.matmul(hidden.half(), w.half(), bias=b[:1].half().expand(w.shape[1]), out_dtype="float32")

    compiled = _compile(layers, backend, dynamic=True)
    for rows, columns in ((3, 5), (4, 6)):
        given = _random(7, columns, grad=True), _random(rows, columns, grad=True), _random(rows, grad=True)
        expected, result = layers(*given), compiled(*given)
        assert result.dtype is torch.float32
        assert torch.allclose(result, expected, atol=1e-3)
        weight = torch.rand_like(expected)
        pairs = zip(
            torch.autograd.grad(result, given, weight), torch.autograd.grad(expected, given, weight), strict=True
        )
        for got, wanted in pairs:
            assert torch.allclose(got, wanted, atol=2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_given_and_in_place(backend: str) -> None:
    def layer(x: Any, y: Any, out: Any) -> Any:
        inside = torch.empty_like(y)
        mt.transpose_add(x, y, out=inside)
        mt.transpose_add(x, inside, alpha=2, out=inside)
        return mt.transpose_add(inside, x, out=out) + 1

    compiled = _compile(layer, backend)
    x, y, out = _random(3, 5), _random(5, 3), _random(3, 5)
    result = compiled(x, y, out)
    expected = (3 * x.mT + y).mT + x
    assert torch.allclose(out, expected)
    assert torch.allclose(result, expected + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_only_the_values_tell(backend: str) -> None:
    def layer(x: Any) -> Any:
        return mt.transpose(x[x[:, 0] > 0])

    x = _random(20, 3)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert torch.equal(_compile(layer, backend)(x), x[x[:, 0] > 0].mT)


def test_batches_compiled() -> None:
    x, y = _random(4, 3, 5), _random(4, 5, 3)
    compiled = _compile(torch.vmap(mt.transpose_add), "aot_eager")
    assert torch.allclose(compiled(x, y), x.mT + y)


def test_what_does_not_fit_is_refused_while_compiling() -> None:
    compiled = _compile(mt.transpose_add, "eager")
    with pytest.raises(RuntimeError, match="the last two dimensions of y to be x's, swapped"):
        compiled(_random(3, 5), _random(3, 5))


@pytest.mark.parametrize("backend", BACKENDS[:2])
@pytest.mark.parametrize("dynamic", [None, True])
def test_factors_compiled(backend: str, dynamic: bool | None) -> None:
    floats, whole = torch.tensor([[2.0]]), torch.tensor([[2]], dtype=torch.int32)

    def scaled(x: Any, factor: Any) -> Any:
        return mt.transpose_add(x, x, alpha=factor)

    compiled = _compile(scaled, backend, dynamic=dynamic)
    calls: list[tuple[Any, Any]] = [(floats, factor) for factor in (0.5, 0.25, 2, 3, 1e300)]
    calls += [(whole, factor) for factor in (2, 5, 2.0, 2**63, 2.0**70)]
    for x, factor in calls:
        assert torch.equal(compiled(x, factor), scaled(x, factor)), factor
    for x, factor in ((floats, 1j), (floats, True), (whole, 0.5)):
        # By the compiler, or where it left the number open by the operator itself.
        with pytest.raises((RuntimeError, errors.ArgumentError), match=r"alpha: got .*; wanted a (real|whole) number"):
            compiled(x, factor)


def test_exported_programs_keep_the_operator() -> None:
    class Layer(torch.nn.Module):  # type: ignore[misc] # torch may be absent, and is Any then
        def forward(self, x: Any, y: Any) -> Any:
            return mt.transpose_add(x, y)

    x, y = _random(3, 5), _random(5, 3)
    program = torch.export.export(Layer(), (x, y))
    targets = [node.target for node in program.graph.nodes]
    assert torch.ops.matmill.transpose_add.default in targets
    assert torch.equal(program.module()(x, y), x.mT + y)
