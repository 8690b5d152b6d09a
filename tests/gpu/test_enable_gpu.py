"""matmill.torch.enable() on a GPU: values and gradients of every function, graphs, streams, threads, what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pytest

from matmill.dtypes import ALL
from matmill.problem import SPLIT_METHODS


def _random(torch: Any, dtype: str, *shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))


_CALLS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "linear": (lambda t, x, w, b: t.nn.functional.linear(x, w, b), ((4, 70, 63), (91, 63), (91,))),
    "linear, aligned": (lambda t, x, w, b: t.nn.functional.linear(x, w, b), ((4, 64, 128), (256, 128), (256,))),
    "linear without bias": (lambda t, x, w: t.nn.functional.linear(x, w), ((300, 65), (129, 65))),
    "mm": (lambda t, a, b: t.mm(a, b), ((130, 77), (77, 33))),
    "mm of a transpose": (lambda _t, a, b: a.T @ b, ((77, 130), (77, 33))),
    "bmm": (lambda t, a, b: t.bmm(a, b), ((5, 49, 32), (5, 32, 49))),
    "matmul": (lambda _t, a, b: a @ b, ((2, 3, 40, 24), (2, 3, 24, 56))),
    "addmm": (lambda t, a, b, c: t.addmm(c, a, b), ((130, 77), (77, 33), (33,))),
    "addmm of a matrix": (lambda t, a, b, c: t.addmm(c, a, b), ((130, 77), (77, 33), (130, 33))),
    "baddbmm": (lambda t, a, b, c: t.baddbmm(c, a, b), ((5, 49, 32), (5, 32, 49), (5, 49, 49))),
}


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", _CALLS)
def test_values_and_gradients(torch: Any, always: Any, name: str, dtype: str) -> None:
    call, shapes = _CALLS[name]
    operands = [_random(torch, dtype, *shape).requires_grad_() for shape in shapes]
    exact = [x.detach().double().requires_grad_() for x in operands]
    expected = call(torch, *exact)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, exact, weight)
    with always.enable():
        result = call(torch, *operands)
        gradients = torch.autograd.grad(result, operands, weight.to(result.dtype))
        with torch.no_grad():
            again = call(torch, *operands)
    rows = [row for row in always.report().rows if row.answered_by == "matmill"]
    assert sum(row.calls for row in rows) == 4  # twice forwards, and two gradients
    roundoff = ALL[dtype].roundoff
    terms = max(max(shape) for shape in shapes) * 8
    for got, want in zip((result, again, *gradients), (expected, expected, *wanted), strict=True):
        assert got.dtype is operands[0].dtype
        assert torch.isfinite(got).all()
        assert ((got.double() - want).abs() <= terms * roundoff * want.abs().max()).all()


def _near(got: Any, a: Any, b: Any, bias: Any = 0) -> bool:
    """Tell whether a product, with a bias, is as exact as of float32: errors are a few units, of tf32 hundreds."""
    a, b = a.detach().double(), b.detach().double()
    limit = 32 * 2.0**-24 * (a.abs() @ b.abs() + abs(bias))
    return bool(((got.double() - (a @ b + bias)).abs() <= limit).all())


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("name", SPLIT_METHODS)
@pytest.mark.parametrize("way", ["enable", "linear", "matmul"])
def test_float32_in_pieces(torch: Any, always: Any, way: str, name: str, tf32: bool) -> None:
    """Values and gradients are bounded; precision= allows no rounding to tf32, whatever torch may do."""
    if tf32 and way == "enable":
        pytest.skip("torch's tf32 is not changed by the option")
    import_module("matmill.torch.gradients").decider.cache_clear()
    calls: dict[str, Callable[..., Any]] = {
        "enable": lambda x, w, b: torch.nn.functional.linear(x, w, bias=b),
        "linear": lambda x, w, b: always.linear(x, w, b, precision=name),
        "matmul": lambda x, w, b: always.matmul(x, w.mT, bias=b, precision=name),
    }
    shapes = (2048, 1500), (1000, 1500), (1000,), (2048, 1000)
    x, w, b, weight = (_random(torch, "float32", *shape) for shape in shapes)
    if name == "fp16x3":
        x[0, :5] *= 2.0**-40  # more than its pieces span
    before = torch.backends.cuda.matmul.allow_tf32
    operands = [one.requires_grad_() for one in (x, w, b)]
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        with always.enable(float32=name) if way == "enable" else nullcontext():
            for _ in range(2):
                result = calls[way](*operands)
                to_x, to_w, to_b = torch.autograd.grad(result, operands, weight)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert _near(result, x, w.mT, b.detach().double())
    assert _near(to_x, weight, w)
    assert _near(to_w, weight.mT, x)
    assert torch.allclose(to_b, weight.sum(0), rtol=1e-4, atol=1e-3)
    if way == "enable":
        rows = [row for row in always.report().rows if row.answered_by == "matmill"]
        assert len(rows) == 3
        assert all(name in row.key and row.method in SPLIT_METHODS for row in rows)


def test_what_is_measured_is_kept(torch: Any, mt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _random(torch, "bfloat16", 2048, 1023), _random(torch, "bfloat16", 1023, 2049)
    with mt.enable():
        torch.mm(a, b)
    (first,) = mt.report().rows
    assert first.torch_seconds > first.matmill_seconds > 1e-6  # rows off 16 bytes: torch takes twice as long
    assert first.answered_by == "matmill"
    gpu = import_module("matmill.torch.gpu").CudaGPU

    def fail(*_arguments: Any) -> None:
        raise AssertionError("timed again")

    monkeypatch.setattr(gpu, "seconds", fail)
    with mt.enable():
        torch.mm(a, b)
    (second,) = mt.report().rows
    assert (second.key, second.torch_seconds) == (first.key, first.torch_seconds)


def test_a_captured_graph_has_the_same_products(torch: Any, always: Any) -> None:
    layer = torch.nn.Linear(63, 91, device="cuda", dtype=torch.float16)
    x = _random(torch, "float16", 70, 63)

    def step() -> Any:
        layer.zero_grad(set_to_none=False)
        result = layer(x)
        result.float().square().sum().backward()
        return result

    with always.enable():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                expected = step().detach().clone(), layer.weight.grad.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
            torch.mm(x, x.T)  # not met before: torch's
    layer.weight.grad.fill_(7)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected[0])
    assert torch.equal(layer.weight.grad, expected[1])
    assert not any("70x63 row/2 @ 63x70" in row.key for row in always.report().rows)


def test_threads_on_streams_of_their_own(torch: Any, always: Any) -> None:
    a, b = _random(torch, "float16", 300, 129), _random(torch, "float16", 129, 301)
    expected = a.double() @ b.double()
    worst: list[float] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                result = a @ b
            worst.append(float((result.double() - expected).abs().max()))

    torch.cuda.synchronize()
    with always.enable():
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(worst) == 6
    assert max(worst) <= 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_autocast(torch: Any, always: Any, dtype: str) -> None:
    layer = torch.nn.Linear(65, 33, device="cuda")
    x = _random(torch, "float32", 12, 65)
    with torch.autocast("cuda", getattr(torch, dtype)):
        expected = layer(x)
        with always.enable():
            result = layer(x)
    result.sum().backward()
    assert result.dtype is expected.dtype is getattr(torch, dtype)
    assert layer.weight.grad.dtype is torch.float32
    assert torch.allclose(result.float(), expected.float(), atol=0.05)
    assert any(row.answered_by == "matmill" for row in always.report().rows)


def test_float32_is_rounded_only_where_torch_may(torch: Any, always: Any) -> None:
    a, b = _random(torch, "float32", 256, 512), _random(torch, "float32", 512, 256)
    exact = a.double() @ b.double()

    def error() -> float:
        return float((torch.mm(a, b).double() - exact).abs().max())

    with always.enable():
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            assert (error() > 1e-3) is allowed


def test_steps_are_compared_on_the_gpu_s_clock(torch: Any, mt: Any) -> None:
    layer = torch.nn.Linear(1023, 4097, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    x = _random(torch, "bfloat16", 8192, 1023)
    with mt.enable():
        for _ in range(60):
            optimizer.zero_grad()
            layer(x).sum().backward()
            optimizer.step()
    report = mt.report()
    assert report.step_seconds is not None
    with_matmill, without = report.step_seconds
    assert 1e-5 < with_matmill < without  # both products have rows off 16 bytes
