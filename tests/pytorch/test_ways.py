"""Which way the functions take: past torch's dispatcher for a GPU's plain tensors alone, for which one stands in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
functions: Any = import_module("matmill.torch.functions")
forward_ad: Any = import_module("torch.autograd.forward_ad")
modes: Any = import_module("torch.utils._python_dispatch")


class OnGPU:
    """What a function asks of a tensor before it decides."""

    is_cuda = True

    def __init__(self, *, requires_grad: bool = False) -> None:
        self.requires_grad = requires_grad


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> OnGPU:
    """Provide a stand-in for a plain tensor on a GPU."""
    monkeypatch.setattr(functions, "PLAIN", {OnGPU})
    return OnGPU()


@contextmanager
def _watched(kind: str) -> Iterator[None]:
    """Put torch in a state in which somebody must see the operator."""
    with ExitStack() as stack:
        if kind == "dispatch mode":
            stack.enter_context(modes.TorchDispatchMode())
        elif kind == "function mode":
            stack.enter_context(torch.overrides.TorchFunctionMode())
        elif kind == "forward derivatives":
            stack.enter_context(forward_ad.dual_level())
        yield


def test_plain_tensors_go_straight(plain: OnGPU) -> None:
    assert functions._plain(plain, plain)


@pytest.mark.parametrize("kind", ["dispatch mode", "function mode", "forward derivatives"])
def test_what_must_see_the_operator_does(plain: OnGPU, kind: str) -> None:
    with _watched(kind):
        assert not functions._plain(plain, plain)
    assert functions._plain(plain, plain)


def test_transformations_and_traces_see_the_operator(plain: OnGPU) -> None:
    seen = []

    def ask(x: Any) -> Any:
        seen.append(functions._plain(plain, plain))
        return x.sum()

    x = torch.ones(2, 2)
    torch.vmap(ask)(x)
    torch.func.grad(ask)(x)
    torch.func.jvp(ask, (x,), (x,))
    torch.jit.trace(ask, x, check_trace=False)
    assert seen == [False] * 4


def test_recorded_gradients_take_the_operator(plain: OnGPU) -> None:
    recorded = OnGPU(requires_grad=True)
    assert not functions._plain(plain, recorded)
    assert not functions._plain(recorded, plain)
    with torch.no_grad():
        assert functions._plain(recorded, plain)


def test_other_classes_and_the_cpu_take_the_operator() -> None:
    class Own(torch.Tensor):  # type: ignore[misc] # torch may be absent, and is Any then
        pass

    x = torch.ones(2, 2)
    assert not functions._plain(x, x)
    assert not functions._plain(x.as_subclass(Own), x)


@pytest.mark.parametrize("name", ["transpose_add", "transpose", "inner", "matmul"])
def test_direct_calls_hand_out_to_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def launch(*tensors: Any, out: Any = None, **_factors: Any) -> Any:
        calls.append(tensors)
        return out

    monkeypatch.setattr(functions, "_plain", lambda *_tensors: True)
    monkeypatch.setattr(functions.ops, name, launch)
    tensors = [torch.ones(2, 2)] * (1 if name == "transpose" else 2)
    out = torch.empty(2, 2)
    assert getattr(functions, name)(*tensors, out=out) is out
    assert getattr(functions, name)(*tensors) is None
    assert [list(call) for call in calls] == [tensors] * 2
