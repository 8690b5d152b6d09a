"""Products in Inductor's graphs with what is before and behind them: which of it is one kernel.

Inductor writes an activation out in arithmetic before its own passes; it is recognised by that of torch's function,
traced. One whose operand is needed for a gradient too is left: then Inductor's kernel has to read it anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import torch
from torch._inductor import pattern_matcher

from matmill.torch.host import ACTIVATIONS
from matmill.torch.schemas import FUNCTIONAL

_aten = torch.ops.aten
_MATMUL = FUNCTIONAL["matmul"]
_CONVERT = torch.ops.prims.convert_element_type.default
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default}  # noqa: SLF001 — an operator's name

#: Decides on (product, its operands (a, b, bias or None), activation): keywords of matmill's operator, or None.
Decide = Callable[[Any, tuple[Any, Any, Any], str | None], dict[str, Any] | None]


def fuse(graph: Any, decide: Decide) -> None:
    """Replace each product and its activation by matmill's operator where ``decide`` says so."""
    if not any(node.target in {_aten.mm.default, _aten.addmm.default} for node in graph.nodes):
        return
    passes = pattern_matcher.PatternMatcherPass()
    for name, pattern in _patterns():

        def handler(match: Any, x: Any, name: str = name) -> None:
            _replace(match, x, name, decide)

        pattern_matcher.register_graph_pattern(pattern, pass_dict=passes)(handler)
    passes.apply(graph)


def separate(graph: Any, decide: Decide) -> None:
    """Replace a product with a matrix added by product and sum, where ``decide`` says so of the product alone.

    Inductor has joined the two. Where it computes the matrix itself, the sum costs nothing there.
    """
    for node in graph.find_nodes(op="call_function", target=_aten.addmm.default):
        added, a, b = node.args
        own = added.op == "call_function" and (torch.Tag.pointwise in added.target.tags or added.target is _CONVERT)
        whole = added.meta["val"].shape == node.meta["val"].shape
        if node.kwargs or not whole or not own or len(added.users) != 1 or decide(node, (a, b, None), None) is None:
            continue
        with graph.inserting_before(node):
            product = graph.call_function(_aten.mm.default, (a, b))
            total = graph.call_function(_aten.add.Tensor, (product, added))
        for each in (product, total):
            each.meta.update(node.meta)
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _replace(match: Any, x: Any, activation: str, decide: Decide) -> None:
    """Replace a match whose operand is a product that nothing else uses, or a view of one."""
    views, users = [], set(match.nodes)
    while x.target in _VIEWS and users.issuperset(x.users):
        views.append(x)
        x, users = x.args[0], {x}
    if x.target not in {_aten.mm.default, _aten.addmm.default} or not users.issuperset(x.users) or x.kwargs:
        return
    a, b = x.args[-2:]
    bias = x.args[0] if len(x.args) == 3 else None
    options = None if bias is not None and bias.meta["val"].dim() != 1 else decide(x, (a, b, bias), activation)
    if options is None:
        return
    graph, output = match.graph, match.output_node()
    with graph.inserting_before(output):
        result = graph.call_function(_MATMUL, (a, b, bias), options)
        result.meta.update(x.meta)
        for view in reversed(views):
            result = graph.call_function(view.target, (result, *view.args[1:]), view.kwargs)
            result.meta.update(view.meta)
    output.replace_all_uses_with(result)
    match.erase_nodes()
    for node in (*views, x):
        graph.erase_node(node)


@cache
def _patterns() -> list[tuple[str, Any]]:
    """Return the arithmetic of each activation, for each element type, as Inductor writes it."""
    result = []
    for name, dtype in product(ACTIVATIONS, (torch.float32, torch.float16, torch.bfloat16)):
        traced = pattern_matcher.fwd_only(_of_one_argument(name), [torch.empty(2, 3, dtype=dtype)])
        result.append((name, pattern_matcher.fx_to_pattern(traced, argnames=["x"])))
    return result


def _of_one_argument(name: str) -> Callable[[Any], Any]:
    """Return an activation as a function whose signature tracing can read."""
    return lambda x: ACTIVATIONS[name](x)  # noqa: PLW0108 — see above
