"""Products on a GPU whose kernels are being compiled: right before, in captured graphs, and after their arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import matmill
from matmill.choose import choose_general, choose_stage
from matmill.dispatch import plan_cache
from matmill.dtypes import F16
from matmill.jit import background
from matmill.jit.compile import entry_name
from matmill.jit.source import generate
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.gated_worker import Gate, wait_for

SHAPES = [(300, 512, 200), (37, 129, 53), (8, 4096, 64), (1000, 24, 72), (64, 64, 1024), (5, 77, 3)]
#: The largest error of an element, over the root of k, for factors of normal numbers.
BOUNDS = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-1}


@pytest.fixture(autouse=True)
def _empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MATMILL_COMPILE", "background")
    monkeypatch.setattr(plan_cache, "calls", {})
    monkeypatch.setattr(plan_cache, "_outdated", {})


def _operands(torch: Any, m: int, k: int, n: int, dtype: str) -> tuple[Any, Any]:
    a, b = (torch.randn(shape, device="cuda", dtype=getattr(torch, dtype)) for shape in ((m, k), (k, n)))
    return a, b


def _check(torch: Any, result: Any, a: Any, b: Any) -> None:
    bound = BOUNDS[str(a.dtype).removeprefix("torch.")] * a.shape[-1] ** 0.5
    torch.testing.assert_close(result.double(), a.double() @ b.double(), rtol=bound, atol=bound)


def _arrive() -> None:
    for call in list(plan_cache.calls.values()):
        if call.arrival is not None:
            wait_for(call.arrival)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_products_are_right_before_and_after(torch: Any, device: GPU, dtype: str) -> None:
    for _ in range(2):
        for shape in SHAPES:
            a, b = _operands(torch, *shape, dtype)
            _check(torch, matmill.matmul(a, b), a, b)
        _arrive()
    stages = [one for call in plan_cache.calls.values() for one in call.plan.ready]
    assert len(stages) == len(SHAPES)
    assert all(one.choice.kernel.config == choose_stage(one.stage, device.arch).kernel.config for one in stages)
    assert not background.compiler().failures


def test_a_captured_graph_keeps_its_kernel(torch: Any, device: GPU, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _operands(torch, *SHAPES[0], "float16")
    general, store = choose_general(Gemm(8, 8, 8, F16), device.arch), background.store()
    assert general is not None
    assert store is not None
    store.listed().add(entry_name(generate(general.kernel, F16), device.arch.target))
    gate = Gate()
    monkeypatch.setattr(background, "_current", [gate.compiler()])
    for _ in range(2):
        _check(torch, matmill.matmul(a, b), a, b)
    (provisional,) = (call for call in plan_cache.calls.values() if call.arrival is not None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = matmill.matmul(a, b)
        gate.opened.set()
        wait_for(provisional.arrival)
        second = matmill.matmul(a, b)
    a.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(first, second)
    _check(torch, first, a, b)
    _check(torch, matmill.matmul(a, b), a, b)
    assert all(call.arrival is None for call in plan_cache.calls.values())
