"""Programs that ``torch.compile`` compiles under enable() on a GPU: values and gradients, graphs, pieces of float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib import import_module
from math import inf
from typing import Any

import pytest

_MODES = [None, "reduce-overhead"]


@pytest.fixture(autouse=True)
def _fresh(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was compiled, and read no cache."""
    torch._dynamo.reset()
    inductor, caches = import_module("torch._inductor.config"), import_module("torch._functorch.config")
    # Products that save little are matmill's here, too.
    monkeypatch.setattr(import_module("matmill.torch.inductor"), "_LEAST_SECONDS", -inf)
    with inductor.patch(fx_graph_cache=False), caches.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


def _perceptron(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(nn.Linear(479, 1024), nn.ReLU(), nn.Linear(1024, 131), nn.GELU(), nn.Linear(131, 479))


def _transformer(torch: Any) -> Any:
    """Return a block whose rows are off 16 bytes: 131 features, and heads of 33."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined] # torch may be absent, and is Any then
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(131) for _ in range(2))
            self.heads, self.back = nn.Linear(131, 3 * 4 * 33), nn.Linear(4 * 33, 131, bias=False)
            self.wide = nn.Sequential(nn.Linear(131, 515), nn.GELU(approximate="tanh"), nn.Linear(515, 131))

        def forward(self, x: Any) -> Any:
            batch, length = x.shape[:2]
            parts = self.heads(self.norms[0](x)).view(batch, length, 3, 4, 33).permute(2, 0, 3, 1, 4)
            query, key, value = parts.unbind()
            weights = (query @ key.mT / 33**0.5).softmax(-1)
            x = x + self.back((weights @ value).transpose(1, 2).reshape(batch, length, -1))
            return x + self.wide(self.norms[1](x))

    return Block()


_PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], int]] = {
    "perceptron": (_perceptron, (2048, 479), 8),
    "transformer": (_transformer, (8, 65, 131), 10),
}


def _step(torch: Any, module: Any, x: Any, weight: Any) -> list[Any]:
    """Return the result, the gradient of x and those of all parameters, of which nobody overwrites the memory."""
    torch.compiler.cudagraph_mark_step_begin()
    operands = [x.detach().clone().requires_grad_(), *module.parameters()]
    result = module(operands[0])
    gradients = torch.autograd.grad(result, operands, weight.to(result.dtype))
    return [each.detach().clone() for each in (result, *gradients)]


def _errors(torch: Any, got: list[Any], exact: list[Any]) -> Any:
    """Return the error of each tensor in norm: behind a ReLU a rounding may change the sign of one gradient's term."""
    pairs = zip(got, exact, strict=True)
    return torch.stack([(x.double() - want).norm() / want.norm() for x, want in pairs])


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("name", _PROGRAMS)
def test_programs(torch: Any, always: Any, name: str, mode: str | None) -> None:
    """Values and gradients are as near to float64's as those of torch's own kernels, also when graphs are replayed."""
    torch.manual_seed(0)
    build, shape, least = _PROGRAMS[name]
    module = build(torch).cuda().bfloat16()
    exact = deepcopy(module).double()
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    weight = torch.randn(module(inputs[0]).shape, device="cuda", dtype=torch.bfloat16)
    with always.enable():
        function = torch.compile(module, fullgraph=True, mode=mode)
        results = [_step(torch, function, x, weight) for x in inputs]
    rows = [row for row in always.report().rows if row.answered_by == "matmill" and row.calls]
    assert len(rows) >= least
    for x, got in zip(inputs, results, strict=True):
        wanted = _step(torch, exact, x.double(), weight)
        ours = _errors(torch, got, wanted)
        theirs = _errors(torch, _step(torch, module, x, weight), wanted)
        assert torch.isfinite(ours).all()
        assert (ours <= 1.5 * theirs + 2**-10).all(), (ours, theirs)


_FORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "mm": (lambda t, a, b: t.mm(a, b), ((130, 77), (77, 33)), 1),
    "slices": (lambda _t, a, b: a[:, :72] @ b[:72], ((130, 77), (77, 40)), 1),
    "bmm": (lambda t, a, b: t.bmm(a, b.mT), ((5, 49, 33), (5, 41, 33)), 1),
    "addmm": (lambda t, a, b, c: t.addmm(c, a, b), ((130, 77), (77, 33), (33,)), 1),
    "addmm of a repeated row": (lambda t, a, b, c: t.addmm(c.expand(130, 33), a, b), ((130, 77), (77, 33), (33,)), 1),
    "addmm of a matrix": (lambda t, a, b, c: t.addmm(c, a, b), ((130, 77), (77, 33), (130, 33)), 1),
    "baddbmm": (lambda t, a, b, c: t.baddbmm(c, a, b), ((5, 49, 33), (5, 33, 49), (5, 49, 49)), 1),
    "cat": (lambda t, a, b: t.cat([a @ b, a[:, :77] @ b], 1), ((130, 77), (77, 40)), 1),
    "rows that Inductor pads": (lambda t, a, b: t.mm(a, b).mT @ a, ((130, 1077), (1077, 1033)), 2),
    "activation": (lambda t, a, b, c: t.nn.functional.silu(t.addmm(c, a, b)), ((130, 77), (77, 33), (33,)), 1),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", _FORMS)
def test_forms(torch: Any, always: Any, name: str, dtype: str) -> None:
    call, shapes, least = _FORMS[name]
    operands = [(torch.randn(shape, device="cuda") / shape[-1] ** 0.5).to(getattr(torch, dtype)) for shape in shapes]
    with always.enable():
        function = torch.compile(lambda *x: call(torch, *x), fullgraph=True)
        results = [function(*operands) for _ in range(2)]
    assert sum(row.answered_by == "matmill" and row.calls >= 2 for row in always.report().rows) >= least
    wanted = call(torch, *(x.double() for x in operands))
    bound = 8 * torch.finfo(operands[0].dtype).eps * max(1, wanted.abs().max())
    for got in results:
        assert got.dtype is operands[0].dtype
        assert ((got.double() - wanted).abs() <= bound).all()


def test_a_captured_graph(torch: Any, always: Any) -> None:
    """A compiled program in somebody's own graph: its kernels are loaded before, and replayed on new operands."""
    x, w, b = (torch.randn(shape, device="cuda", dtype=torch.float16) / 8 for shape in ((300, 131), (77, 131), (77,)))
    with always.enable(), torch.no_grad():
        function = torch.compile(
            lambda *each: torch.nn.functional.gelu(torch.nn.functional.linear(*each)), fullgraph=True
        )
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                function(x, w, b)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function(x, w, b)
    assert any(row.calls >= 3 for row in always.report().rows if row.answered_by == "matmill")
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    wanted = torch.nn.functional.gelu(torch.nn.functional.linear(x.double(), w.double(), b.double()))
    assert ((result.double() - wanted).abs() <= 2**-9 * wanted.abs().max()).all()


def test_float32_in_pieces(torch: Any, always: Any) -> None:
    """The option reaches compiled products, forwards and backwards, and their bound holds."""
    x, w, weight = (torch.randn(shape, device="cuda") for shape in ((2048, 1500), (1000, 1500), (2048, 1000)))
    operands = [x.requires_grad_(), w.requires_grad_()]
    with always.enable(float32="tf32x3"):
        function = torch.compile(torch.nn.functional.linear, fullgraph=True)
        result = function(*operands)
        to_x, to_w = torch.autograd.grad(result, operands, weight)
    rows = [row for row in always.report().rows if row.answered_by == "matmill" and row.calls]
    assert len(rows) == 3
    assert {row.method for row in rows} == {"tf32x3"}
    x, w = x.detach(), w.detach()
    for got, a, b in ((result, x, w.mT), (to_x, weight, w), (to_w, weight.mT, x)):
        a, b = a.double(), b.double()  # noqa: PLW2901 — the same operands
        assert ((got.double() - a @ b).abs() <= 32 * 2.0**-24 * (a.abs() @ b.abs())).all()
