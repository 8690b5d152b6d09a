"""Products of float32 in pieces: decided under enable(float32=...), or by precision=, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from matmill.errors import MatmillError, UnknownNameError
from matmill.problem import SPLIT_METHODS

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
gradients: Any = import_module("matmill.torch.gradients")
decide: Any = import_module("matmill.torch.decide")
session: Any = import_module("matmill.torch.session")
F: Any = torch.nn.functional
PIECES = "float32_tensor"


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Provide the list of the precisions of all calls of matmill's products."""
    seen: list[str | None] = []

    def noted(operator: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: Any, **options: Any) -> Any:
            seen.append(options.get("precision"))
            return operator(*tensors, **options)

        return call

    for name in ("_MATMUL", "_INNER"):
        monkeypatch.setattr(gradients, name, noted(getattr(gradients, name)))
    return seen


def _tensor(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=source, dtype=torch.float64).to(dtype or torch.float32)


def _step(dtype: Any = None) -> None:
    x, w, b = (_tensor(*shape, dtype=dtype).requires_grad_() for shape in ((6, 7), (5, 7), (5,)))
    F.linear(x, w, b).square().sum().backward()


# -- enable -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SPLIT_METHODS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_float32_alone_is_multiplied_in_pieces_forward_and_backward(decided: Any, name: str, dtype: str) -> None:
    with mt.enable(float32=name):
        for _ in range(2):
            _step(getattr(torch, dtype))
    assert decided.precisions == [name if dtype == "float32" else None] * 3
    assert len(decided.ours) == 6
    method = SPLIT_METHODS[name][0]
    assert (f"6 of 6 products (6 in pieces by {method})" in mt.report().conclusion) is (dtype == "float32")
    assert (str(mt.report()).count(f", by {method}\n") > 0) is (dtype == "float32")


def test_the_faster_one_answers(decided: Any) -> None:
    decided.wins = lambda a, _b: a == (6, 7)
    with mt.enable(float32=PIECES):
        for _ in range(2):
            _step()
    assert decided.ours == [((6, 7), (7, 5))] * 2
    assert [row.method for row in mt.report().rows if row.answered_by == "torch"] == [None, None]
    decided.wins = lambda *_shapes: True
    decided.ours.clear()
    decided.workspace = 65 << 20
    for options, count in (({}, 0), ({"float32": PIECES}, 3), ({"float32": PIECES, "workspace_limit": 64 << 20}, 0)):
        with mt.enable(**options):
            _step()
        assert len(decided.ours) == count
        decided.ours.clear()


def test_tf32_and_autocast_are_as_before(decided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("decide", "sites", "gradients", "functions"):
        monkeypatch.setattr(import_module(f"matmill.torch.{name}"), "tf32", lambda: True)
    with mt.enable(float32=PIECES):
        _step()
    assert decided.precisions == ["tf32"] * 3
    monkeypatch.undo()
    decided.precisions.clear()
    monkeypatch.setattr(session, "_DEVICE", decided)
    with mt.enable(float32=PIECES), torch.autocast("cpu", torch.bfloat16):
        _step()
    assert decided.precisions == [None] * 3


def test_decisions_are_kept_by_precision(decided: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATMILL_CACHE")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    a, b = _tensor(2, 3), _tensor(3, 4)
    decided.wins = lambda *_shapes: False
    with mt.enable():
        torch.mm(a, b)
    decided.wins = lambda *_shapes: True
    for options, timed, ours in (({}, 1, 0), ({"float32": PIECES}, 2, 1), ({"float32": "fp16x3"}, 3, 2)):
        for _ in range(2):
            with mt.enable(**options):
                torch.mm(a, b)
        assert (len(decided.timed), len(decided.ours)) == (timed, 2 * ours)
    with mt.enable(float32=PIECES), mt.enable(float32=None):
        torch.mm(a, b)
        assert len(decided.ours) == 4  # the innermost answers
    with mt.enable(float32=PIECES):
        torch.mm(a, b)
    mt.save_decisions(tmp_path / "table.json")
    monkeypatch.setenv("MATMILL_CACHE", "off")
    mt.load_decisions(tmp_path / "table.json")
    decided.ours.clear()
    for options, count in (({"float32": PIECES}, 1), ({}, 1), ({"float32": "tf32x3"}, 1)):
        with mt.enable(**options):
            torch.mm(a, b)
        assert len(decided.ours) == count
    assert len(decided.timed) == 3


def test_the_models_decide_against_torch_s_fma(decided: Any) -> None:
    """An H100's FMA takes 5.3 us for this product, three times as many tensor-core products 1.1 us."""
    a, b = torch.ones(512, 600), torch.ones(600, 512)
    for seconds, count in ((5e-6, 1), (9e-6, 1)):
        decided.seconds_each = seconds
        with mt.enable(benchmark=False, float32=PIECES):
            torch.mm(a, b)
        assert len(decided.ours) == count


@pytest.mark.parametrize("name", ["tf32", "high", "float32_tensors", "", 3])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(UnknownNameError, match=r"float32: got .*; wanted one of fp16x3, tf32x3, float32_tensor"):
        mt.enable(float32=name)


# -- precision --------------------------------------------------------------------------------------------------------

_CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (mt.matmul, ((2, 6, 90), (90, 5))),
    "activated": (lambda a, b, **options: mt.matmul(a, b, activation="gelu", **options), ((6, 90), (90, 5))),
    "vector": (mt.matmul, ((2, 6, 90), (90,))),
    "linear": (mt.linear, ((2, 6, 90), (5, 90), (5,))),
    "inner": (mt.inner, ((6, 90), (90, 5))),
}


@pytest.mark.parametrize("precision", SPLIT_METHODS)
@pytest.mark.parametrize("name", _CALLS)
def test_derivatives_have_the_product_s_precision(name: str, precision: str, multiplied: list[str | None]) -> None:
    call, shapes = _CALLS[name]
    operands = [_tensor(*shape, seed=index).requires_grad_() for index, shape in enumerate(shapes)]
    expected = call(*operands)
    weight = torch.rand_like(expected)
    wanted = torch.autograd.grad(expected, operands, weight)
    multiplied.clear()
    result = call(*operands, precision=precision)
    got = torch.autograd.grad(result, operands, weight, create_graph=True)
    got[0].square().sum().backward()
    assert len(multiplied) > 6  # each is seen in front of autograd and behind it
    assert set(multiplied) == {precision}
    for one, other in zip((result, *got), (expected, *wanted), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        plain = [x.detach() for x in operands]
        assert torch.equal(call(*plain, precision=precision), result)


@pytest.mark.parametrize("name", _CALLS)
def test_transformations_have_it_too(name: str, multiplied: list[str | None]) -> None:
    call, shapes = _CALLS[name]
    operands = [_tensor(*shape, seed=index) for index, shape in enumerate(shapes)]
    many = [torch.stack([x, 2 * x, -x]) for x in operands]

    def gradients_of(*given: Any) -> Any:
        loss = lambda *these: call(*these, precision=PIECES).square().sum()  # noqa: E731 — of the outer function
        return torch.func.grad(loss, argnums=tuple(range(len(given))))(*given)

    results = []
    ways: tuple[Callable[[], Any], ...] = (
        lambda: torch.vmap(lambda *given: call(*given, precision=PIECES))(*many),
        lambda: torch.func.jvp(lambda a: call(a, *operands[1:], precision=PIECES), (operands[0],), (operands[0],))[1],
        lambda: torch.vmap(gradients_of)(*many),
    )
    for transformed in ways:
        multiplied.clear()
        results.append(transformed())
        assert set(multiplied) == {PIECES}
    batched, tangent, slopes = results
    expected = [call(*each) for each in zip(*many, strict=True)]
    assert torch.allclose(batched, torch.stack(expected), rtol=1e-4, atol=1e-3)
    assert tangent.shape == expected[0].shape
    for slope, x in zip(slopes, many, strict=True):
        assert slope.shape == x.shape


def test_a_compiled_backward_has_it() -> None:
    torch.compiler.reset()
    seen: list[str | None] = []

    def backend(module: Any, _inputs: Any) -> Any:
        nodes = [node for node in module.graph.nodes if node.target is torch.ops.matmill.matmul.default]
        seen.extend(node.kwargs.get("precision") for node in nodes)
        return import_module("functorch.compile").make_boxed_func(module.forward)

    aot = import_module("torch._dynamo.backends.common").aot_autograd(fw_compiler=backend, bw_compiler=backend)
    layer = torch.compile(lambda *given: mt.linear(*given, precision=PIECES), backend=aot, fullgraph=True)
    operands = [_tensor(*shape).requires_grad_() for shape in ((6, 90), (5, 90), (5,))]
    result = layer(*operands)
    result.sum().backward()
    assert seen == [PIECES] * 3
    assert torch.allclose(result, F.linear(*operands), atol=1e-4)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_on_a_gpu_goes_straight(
    decided: Any, multiplied: list[str | None], monkeypatch: pytest.MonkeyPatch, *, bias: bool
) -> None:
    """Layers of one shape differ by precision, and torch's tf32 is never taken for pieces."""
    functions = import_module("matmill.torch.functions")
    deciders = {name: decide.Decider(decided, decide.Options(float32=name)) for name in (None, PIECES)}
    monkeypatch.setattr(gradients, "decider", deciders.__getitem__)
    monkeypatch.setattr(functions, "_layer", lambda *_tensors: True)
    monkeypatch.setattr(functions, "_LAYERS", {})
    operands = [_tensor(*shape).requires_grad_() for shape in ((6, 90), (5, 90), (5,))[: 2 + bias]]
    for precision in (PIECES, None):
        decided.precisions.clear()
        for _ in range(2):
            result = mt.linear(*operands, precision=precision)
            assert torch.allclose(result, F.linear(*operands), atol=1e-4)
            torch.autograd.grad(result.square().sum(), operands)
        assert decided.precisions == [precision] * 3
    assert len(functions._LAYERS) == 2
    decided.precisions.clear()
    monkeypatch.setattr(functions, "tf32", lambda: True)
    mt.linear(*operands, precision=PIECES)
    assert decided.precisions == []
    assert set(multiplied) == {PIECES}


def test_gradients_on_a_gpu_are_decided_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGPU(torch.Tensor):  # type: ignore[misc] # torch may be absent, and is Any then
        """A tensor that says it is on a GPU."""

        device = torch.device("cuda", 0)

    class Named:
        """A decider that answers by its name."""

        def __init__(self, name: str | None) -> None:
            self.name = name

        def answer(self, _product: Any) -> str | None:
            """Return the name."""
            return self.name

    monkeypatch.setattr(gradients, "decider", Named)
    monkeypatch.setattr(import_module("matmill.torch.states"), "PLAIN", frozenset({OnGPU}))
    monkeypatch.setattr(gradients, "matmul", lambda _x, _y, precision: f"matmill's {precision}")
    x, y = (torch.ones(shape).as_subclass(OnGPU) for shape in ((2, 3), (3, 4)))
    with torch.no_grad():
        assert [gradients._product(x, y, name) for name in (PIECES, "high", None)] == [PIECES, None, None]
        monkeypatch.setattr(gradients, "tf32", lambda: True)
        assert [gradients._product(x, y, name) for name in (PIECES, None)] == [f"matmill's {PIECES}", None]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": PIECES, "dtype": "bfloat16"}, r"float32 elements \(or complex64\), which it splits"),
        ({"precision": PIECES, "out_dtype": "float64"}, "float32 sums"),
        ({"precision": "fp16x4"}, "Did you mean 'fp16x3'"),
    ],
)
def test_what_has_no_pieces_is_refused(options: dict[str, Any], words: str) -> None:
    dtype = getattr(torch, options.pop("dtype", "float32"))
    a, b = _tensor(3, 90, dtype=dtype), _tensor(90, 4, dtype=dtype)
    for x in (a, a.to("meta"), a.clone().requires_grad_()):
        for call in (mt.matmul, mt.inner):
            with pytest.raises(MatmillError, match=words):
                call(x, b.to(x.device), **options)


def test_autocast_stays_in_16_bits() -> None:
    x, w = _tensor(6, 90).requires_grad_(), _tensor(5, 90).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result = mt.linear(x, w, precision=PIECES)
        result.float().sum().backward()
        assert torch.equal(result, mt.linear(x, w))
    assert result.dtype is torch.bfloat16


def test_a_scaled_inner_product() -> None:
    e, f = _tensor(6, 90), _tensor(90, 5)
    assert torch.allclose(mt.inner(e, f, alpha=2, precision=PIECES), 2 * e @ f, atol=1e-4)
    with pytest.raises(UnknownNameError, match="fp16x3"):
        mt.inner(e, f, alpha=2, precision="fp16")


def test_the_host_is_as_exact() -> None:
    a, b = _tensor(7, 5000), _tensor(5000, 3)
    exact = a.double() @ b.double()
    limit = 5000 * 2.0**-24 * (a.double().abs() @ b.double().abs())
    assert ((mt.matmul(a, b, precision=PIECES) - exact).abs() <= limit).all()
