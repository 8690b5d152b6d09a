"""matmill's functions inside of what torch traces and compiles by other means than torch.compile."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")


def test_linear_is_traced_by_torch_fx() -> None:
    def layer(x: Any, w: Any) -> Any:
        return mt.linear(x, w, None, "relu")

    graph = torch.fx.symbolic_trace(layer)
    assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [mt.linear]
    x, w = torch.randn(4, 5), torch.randn(3, 5)
    assert torch.equal(graph(x, w), layer(x, w))


def _all_functions(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    layer = mt.linear(x, w, b, "relu")
    products = mt.matmul(x, w.t(), activation="relu") + mt.inner(x, w.t())
    return layer + products + mt.transpose_add(mt.transpose(layer), layer, alpha=2.0) + mt.gram(w.t())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated")
def test_functions_are_operators_in_torchscript() -> None:
    x, w, b = torch.randn(3, 5), torch.randn(3, 5, requires_grad=True), torch.randn(3)
    d = torch.jit.script(_all_functions)(x, w, b)
    expected = _all_functions(x, w, b)
    assert torch.allclose(d, expected)
    (result,), (wanted,) = (torch.autograd.grad(one.sum(), w) for one in (d, expected))
    assert torch.allclose(result, wanted)
