"""Programs that ``torch.compile`` compiles under ``enable()``: which products are matmill's, and that all are right.

The GPU is a stand-in of CPU tensors, for which Inductor compiles with g++: only padding and real kernels need a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matmill.errors import CompileError

torch: Any = pytest.importorskip("torch")
if shutil.which("g++") is None:
    pytest.skip("Inductor needs a C++ compiler for the CPU", allow_module_level=True)
mt: Any = import_module("matmill.torch")
compiled: Any = import_module("matmill.torch.compiled")
compiling: Any = import_module("matmill.torch.compiling")
inductor: Any = import_module("matmill.torch.inductor")
session: Any = import_module("matmill.torch.session")
config: Any = import_module("torch._inductor.config")
caches: Any = import_module("torch._functorch.config")
custom: Any = import_module("torch._inductor.custom_graph_pass")
pad_mm: Any = import_module("torch._inductor.fx_passes.pad_mm")
import_module("torch._inductor.compile_fx")  # where it is imported, sessions enter Inductor at once
F: Any = torch.nn.functional
ROOT = Path(__file__).parents[2]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SHAPES = (6, 8), (8, 5)


@pytest.fixture(autouse=True)
def gpu(decided: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Provide the stand-in of a GPU. Nothing that was compiled before is left, and no cache is read."""
    torch._dynamo.reset()
    decided.aligned = True
    monkeypatch.setattr(compiled, "_ANSWERS", {})
    monkeypatch.setattr(compiled, "_counting", [])
    with config.patch(fx_graph_cache=False), caches.patch(enable_autograd_cache=False):
        yield decided
        mt.disable()
    torch._dynamo.reset()


def _random(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(-3, 3, shape, dtype=dtype)


def _near(results: Any, expected: Any) -> bool:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (results, expected)), strict=True)
    return all(
        got.dtype is want.dtype and torch.allclose(got.double(), want.double(), rtol=3e-2, atol=3e-2)
        for got, want in pairs
    )


def _ours(
    gpu: Any, function: Callable[..., Any], *tensors: Any, enabled: dict[str, Any] | None = None, **options: Any
) -> list[Any]:
    """Return the operands' shapes of matmill's products in a function that is compiled, and look at its results."""
    expected, before = function(*tensors), len(gpu.ours)
    with mt.enable(**enabled or {}):
        results = torch.compile(function, fullgraph=True, **options)(*tensors)
    assert _near(results, expected)
    return list(gpu.ours[before:])


def _product(a: Any, b: Any) -> Any:
    return torch.mm(a, b)


# -- products ---------------------------------------------------------------------------------------------------------


def _layers(x: Any, w: Any, b: Any, v: Any) -> Any:
    return (F.gelu(torch.relu(F.linear(x, w, b)) @ v) * 2).sum()


@pytest.mark.parametrize("wins", ["all", "some", "none"])
def test_values_and_gradients(gpu: Any, wins: str) -> None:
    if wins != "all":
        gpu.wins = lambda a, _b: wins == "some" and a == (9, 6)  # gradients of weights
    operands = [_random(*shape).requires_grad_() for shape in ((6, 7), (9, 7), (9,), (9, 5))]
    expected = torch.autograd.grad(_layers(*operands), operands)
    with mt.enable():
        function = torch.compile(_layers, fullgraph=True)
        first = torch.autograd.grad(function(*operands), operands)
        second = torch.autograd.grad(function(*operands), operands)
    forwards = [((6, 7), (7, 9)), ((6, 9), (9, 5))]
    backwards = [((6, 5), (5, 9)), ((6, 9), (9, 7)), ((9, 6), (6, 5)), ((9, 6), (6, 7))]
    products = {"all": [*forwards, *backwards], "some": backwards[2:], "none": []}[wins]
    assert sorted(gpu.ours) == sorted(2 * products)
    assert set(gpu.timed) == {*forwards, *backwards}
    assert sum(row.calls for row in mt.report().rows if row.answered_by == "matmill") == len(gpu.ours)
    assert _near((*first, *second), (*expected, *expected))


def test_after_the_end(gpu: Any) -> None:
    """A compiled program goes on, unless it is compiled anew; from then on programs are compiled with torch's."""
    a, b = _random(6, 8), _random(8, 5)
    later = torch.compile(lambda x, y: x @ y, fullgraph=True)
    with mt.enable():
        earlier = torch.compile(lambda x, y: y.mT @ x.mT, fullgraph=True)
        earlier(a, b)
        count = len(gpu.timed)
    assert _near((earlier(a, b), later(a, b)), ((a @ b).mT, a @ b))
    assert gpu.ours == [((5, 8), (8, 6))] * 2
    compiled._ANSWERS.clear()  # as of layouts that were not met before
    assert _near(earlier(a, b), (a @ b).mT)
    assert len(gpu.ours) == 3
    assert len(gpu.timed) == count


def test_rest_compiles_nothing_anew(gpu: Any) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 8))
    optimizer = torch.optim.SGD(layers.parameters())
    x = _random(6, 8)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with mt.enable():
        function = torch.compile(layers, fullgraph=True)
        for _ in range(30):
            gpu.now += 1
            function(x).sum().backward()
            optimizer.step()
    assert len(gpu.ours) == 30 * 5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


_FORMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = {
    "mm": (torch.mm, SHAPES, 1),
    "mm of a transpose": (lambda a, b: a.mT @ b, ((8, 6), (8, 5)), 1),
    "slices": (lambda a, b: a[:, :7] @ b[:7], ((6, 9), (8, 5)), 1),
    "off 16 bytes": (lambda a, b: a[:, 1:] @ b, ((6, 9), (8, 5)), 0),
    "steps": (lambda a, b: a[:, ::2] @ b, ((6, 16), (8, 5)), 1),
    "batches and a matrix": (torch.matmul, ((3, 6, 8), (8, 5)), 1),
    "bmm": (torch.bmm, ((3, 6, 8), (3, 8, 5)), 1),
    "addmm": (torch.addmm, ((5,), *SHAPES), 1),
    "addmm of a row": (torch.addmm, ((1, 5), *SHAPES), 1),
    "addmm of a repeated row": (lambda c, a, b: torch.addmm(c.expand(6, 5), a, b), ((5,), *SHAPES), 1),
    "addmm of a column": (torch.addmm, ((6, 1), *SHAPES), 0),
    "addmm of a matrix": (torch.addmm, ((6, 5), *SHAPES), 1),
    "addmm with factors": (lambda c, a, b: torch.addmm(c, a, b, alpha=2, beta=3), ((5,), *SHAPES), 0),
    "baddbmm": (torch.baddbmm, ((3, 6, 5), (3, 6, 8), (3, 8, 5)), 1),
    "cat": (lambda a, b: torch.cat([a @ b, b.mT @ a.mT], 1), ((4, 8), (8, 4)), 2),
    "cat off 16 bytes": (lambda a, b: torch.cat([a @ b, b.mT @ a.mT], 1), ((5, 8), (8, 5)), 1),
}


@pytest.mark.parametrize("name", _FORMS)
def test_forms(gpu: Any, name: str) -> None:
    function, shapes, count = _FORMS[name]
    assert len(_ours(gpu, function, *(_random(*shape) for shape in shapes))) == count


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int32])
def test_element_types(gpu: Any, dtype: Any) -> None:
    operands = [_random(*shape, dtype=dtype) for shape in ((5,), *SHAPES)]
    assert len(_ours(gpu, torch.addmm, *operands)) == (dtype in DTYPES)


def test_an_operand_that_begins_off_16_bytes_in_a_later_call_is_torch_s(gpu: Any) -> None:
    a, b = _random(6, 8), _random(8, 5)
    shifted = _random(49)[1:].view(6, 8)
    with mt.enable():
        function = torch.compile(_product, fullgraph=True)
        results = function(a, b), function(shifted, b), function(a, b)
    assert gpu.ours == [SHAPES] * 2
    assert _near(results, (a @ b, shifted @ b, a @ b))
    (row,) = session.latest().decisions()
    assert row[1:] == (2, 1)


def test_a_matrix_that_inductor_computes_is_added_by_inductor(gpu: Any) -> None:
    def sums(a: Any, b: Any, c: Any, d: Any) -> Any:
        used_twice = torch.relu(a[:3])
        return a @ b + torch.relu(c), b.mT @ a.mT + d, a[:3] @ b @ b.mT + used_twice, used_twice

    ours = [SHAPES, ((5, 8), (8, 6)), ((3, 8), (8, 5)), ((3, 5), (5, 8))]
    assert sorted(_ours(gpu, sums, _random(6, 8), _random(8, 5), _random(6, 5), _random(5, 6))) == sorted(ours)
    keys = [row.key for row in mt.report().rows if row.calls]
    assert sorted(key.partition(" + ")[2] for key in keys) == ["", "", "3x8", "5x6"]


def test_operands_are_timed_as_inductor_lays_them_out(gpu: Any) -> None:
    """Inductor copies a transpose in the order of its memory, whatever order the program asked for."""
    assert _ours(gpu, lambda a, b: (a @ b).mT.contiguous() @ a, _random(6, 8), _random(8, 5)) == [
        SHAPES,
        ((5, 6), (6, 8)),
    ]
    assert [row.calls for row in mt.report().rows] == [1, 1]


# -- activations ------------------------------------------------------------------------------------------------------

_ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", _ACTIVATIONS)
def test_activations(gpu: Any, name: str, dtype: Any) -> None:
    then = _ACTIVATIONS[name]

    def layers(x: Any, w: Any, b: Any) -> Any:
        return then(F.linear(x, w, b)), then(w @ x[0].mT)

    operands = (_random(*shape, dtype=dtype) for shape in ((2, 3, 8), (5, 8), (5,)))
    assert sorted(_ours(gpu, layers, *operands)) == [((5, 8), (8, 3)), ((6, 8), (8, 5))]
    assert gpu.activations == [name] * 2
    assert {row.calls for row in mt.report().rows} == {1}


def test_activations_that_stay_inductor_s(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation stays Inductor's where something else needs the product, or one kernel is slower."""
    original = gpu.seconds

    def seconds(calls: list[Any], x: Any, nbytes: int) -> list[float]:
        ours, theirs = original(calls, x, nbytes)
        return [2 * theirs if gpu.activations[-1] == "gelu" else ours, theirs]

    monkeypatch.setattr(gpu, "seconds", seconds)

    def layers(x: Any, w: Any, c: Any) -> Any:
        product = w @ x
        return product, F.relu(product), F.gelu(x @ w), F.silu(torch.addmm(c, x, w)), F.relu(x @ w + 1)

    x, w, c = _random(6, 8), _random(8, 6), _random(6, 6)
    assert len(_ours(gpu, layers, x, w, c)) == 4
    assert gpu.activations.count("gelu") == 1
    assert {row.key.partition(", ")[2] for row in mt.report().rows if row.calls} == {""}


def test_the_operand_of_a_gradient_is_kept(gpu: Any) -> None:
    operands = [_random(*shape).requires_grad_() for shape in SHAPES]
    expected = torch.autograd.grad(F.silu(_product(*operands)).sum(), operands)
    with mt.enable():
        result = torch.compile(lambda a, b: F.silu(_product(a, b)), fullgraph=True)(*operands)
        gradients = torch.autograd.grad(result.sum(), operands)
    assert _near(gradients, expected)
    assert gpu.activations == [None] * 3


def test_an_explicit_layer_writes_to_inductor_s_buffer(gpu: Any) -> None:
    def layers(x: Any, w: Any, b: Any) -> Any:
        return torch.cat([mt.linear(x, w, b, "gelu"), mt.linear(x, w)], 1)

    assert _ours(gpu, layers, _random(6, 8), _random(4, 8), _random(4)) == [((6, 8), (8, 4))] * 2
    assert sorted(gpu.activations, key=str) == [None, "gelu"]
    with mt.enable():  # no decision describes a vector
        x, w = _random(8), _random(5, 8)
        assert _near(torch.compile(mt.linear, fullgraph=True)(x, w), F.linear(x, w))


# -- torch.compile's options ------------------------------------------------------------------------------------------


def test_sizes_that_are_symbols_are_torch_s(gpu: Any) -> None:
    with mt.enable():
        for dynamic, marked in ((True, False), (None, True)):
            torch._dynamo.reset()
            function = torch.compile(_product, fullgraph=True, dynamic=dynamic)
            results, expected = [], []
            for rows in (6, 9):
                a, b = torch.ones(rows, 8), torch.ones(8, 5)
                if marked:
                    torch._dynamo.mark_dynamic(a, 0)
                results.append(function(a, b))
                expected.append(torch.full((rows, 5), 8.0))
            assert _near(tuple(results), tuple(expected))
    assert gpu.ours == []


@pytest.mark.parametrize("ratio", [2.0, 1.05])
def test_max_autotune(gpu: Any, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Inductor times its own kernels and matmill's, but where that is far ahead; activations are Triton's to fuse."""
    original = gpu.seconds
    monkeypatch.setattr(gpu, "seconds", lambda *x: [original(*x)[0], ratio * gpu.seconds_each])
    offered = []
    get = inductor.Compiling._choices

    def choices(*arguments: Any) -> Any:
        offered.append([choice.name for choice in get(*arguments)])
        return get(*arguments)

    monkeypatch.setattr(inductor.Compiling, "_choices", choices)
    _ours(gpu, _product, *(_random(*shape) for shape in SHAPES), mode="max-autotune")
    assert [name.startswith("matmill_mm") for name in offered[0]] == ([True] if ratio == 2 else [False, True])
    assert len(_ours(gpu, lambda a, b: F.relu(a @ b), *(_random(*shape) for shape in SHAPES), mode="max-autotune")) == 1
    assert any("relu, beside the product alone" in row.key for row in mt.report().rows)


@pytest.mark.parametrize(("mode", "saved", "count"), [(None, 1e-6, 0), (None, 3e-6, 1), ("reduce-overhead", 1e-6, 1)])
def test_small_gains(gpu: Any, monkeypatch: pytest.MonkeyPatch, mode: str | None, saved: float, count: int) -> None:
    """A product that saves the GPU less than a call may cost the host is matmill's in CUDA graphs alone."""
    original = gpu.seconds
    monkeypatch.setattr(gpu, "seconds", lambda *x: [original(*x)[0], gpu.seconds_each + saved])
    gpu.seconds_each = 1e-5
    assert len(_ours(gpu, _product, *(_random(*shape) for shape in SHAPES), mode=mode)) == count


def test_reduce_overhead(gpu: Any) -> None:
    assert _ours(gpu, _product, *(_random(*shape) for shape in SHAPES), mode="reduce-overhead") == [SHAPES]


# -- enable()'s options -----------------------------------------------------------------------------------------------


def test_excluded_modules(gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module's products, and those of a package's modules, are torch's; names that merely begin alike are others."""
    layers = []
    for name in ("foreign/__init__", "foreign/layer", "foreign_too/__init__", "layers", "layers_too"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("def layer(a, b):\n    return a @ b\n")
        imported = name.removesuffix("/__init__").replace("/", ".")
        spec = importlib.util.spec_from_file_location(imported, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, imported, module)
        layers.append(module.layer)

    def products(*operands: Any) -> Any:
        return tuple(layer(a, operands[-1]) for layer, a in zip(layers, operands[:-1], strict=True))

    operands = [_random(rows, 8) for rows in (2, 3, 4, 5, 6)]
    ours = _ours(gpu, products, *operands, _random(8, 5), enabled={"exclude": ("foreign", "layers", "nowhere")})
    assert ours == [((4, 8), (8, 5)), ((6, 8), (8, 5))]


def test_float32_in_pieces(gpu: Any) -> None:
    operands = [_random(*shape).requires_grad_() for shape in SHAPES]
    with mt.enable(float32="tf32x3"):
        function = torch.compile(_product, fullgraph=True)
        function(*operands).sum().backward()
    assert gpu.precisions == ["tf32x3"] * 3
    with mt.enable():
        function(*operands)
    assert gpu.precisions == ["tf32x3"] * 4  # as compiled


def test_batch_invariant_products(gpu: Any) -> None:
    def function(a: Any, b: Any, c: Any) -> Any:
        return torch.relu(a @ b) @ c + 1

    tensors = [_random(*shape) for shape in ((6, 8), (8, 5), (5, 7))]
    gpu.wins = lambda *_shapes: False
    _ours(gpu, function, *tensors, enabled={"batch_invariant": True})
    assert gpu.others, "compiled programs call the kernels of batch-invariant products"
    assert set(gpu.invariant) == {True}


@pytest.mark.parametrize("seconds", [1e-9, 1.0])
def test_deterministic_programs_are_predicted(gpu: Any, seconds: float) -> None:
    gpu.seconds_each = seconds
    torch.use_deterministic_algorithms(mode=True)
    try:
        ours = _ours(gpu, _product, _random(6, 8), _random(8, 5))
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert (len(ours), gpu.timed) == (seconds == 1e-9, [])


def test_a_table_decides(gpu: Any, tmp_path: Path) -> None:
    gpu.wins = lambda a, _b: a == SHAPES[0]

    def products(a: Any, b: Any) -> Any:
        return torch.mm(a, b), b.mT @ a.mT, F.gelu(a @ b)

    operands = _random(6, 8), _random(8, 5)
    assert _ours(gpu, products, *operands) == [SHAPES] * 2
    assert len(gpu.timed) == 3
    mt.save_decisions(tmp_path / "table.json")
    uuids = []
    for _ in range(2):
        torch._dynamo.reset()
        gpu.timed.clear()
        mt.load_decisions(tmp_path / "table.json")
        assert _ours(gpu, products, *operands) == [SHAPES] * 2
        with mt.enable():
            uuids.append(config.post_grad_custom_pre_pass.uuid())
    assert gpu.timed == []
    assert uuids[0] == uuids[1]
    mt.load_decisions(None)
    with mt.enable():
        assert config.post_grad_custom_pre_pass.uuid() != uuids[0]


# -- failures ---------------------------------------------------------------------------------------------------------


def _warned(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(each.message) for each in caught if "matmill" in str(each.message)]


@pytest.mark.parametrize("when", ["preparation", "launch", "later launch"])
def test_a_kernel_that_fails(gpu: Any, when: str) -> None:
    error = CompileError(argument="x", got="y", wanted="z", fix="Do it.")
    a, b = _random(6, 8), _random(8, 5)
    with mt.enable():
        function = torch.compile(_product, fullgraph=True)
        if when == "later launch":
            function(a, b)
        if when == "preparation":
            gpu.broken_preparation = error
        else:
            gpu.broken_launch = error
        result, first = _warned(lambda: function(a, b))
        again, second = _warned(lambda: function(a, b))
    assert len(first) == 1
    assert "torch computes float32 6x8" in first[0]
    assert "CompileError" in first[0]
    assert second == []
    assert _near((result, again), (a @ b, a @ b))


@pytest.mark.parametrize("error", [ValueError("unknown Inductor"), MemoryError()])
def test_a_hook_that_fails(gpu: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(inductor, "_memory", fail)
    operands = _random(6, 8), _random(8, 5)
    ours, said = _warned(lambda: _ours(gpu, lambda a, b: F.relu(a @ b), *operands))
    assert ours == []
    expected = {"ValueError: unknown Inductor Please report it."} if isinstance(error, ValueError) else set()
    assert {each.partition("while it compiled, with ")[2] for each in said} == expected


def test_an_unknown_release(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "RELEASES", ((1, 0), (1, 1)))
    compiling.known_release.cache_clear()
    try:
        operands = _random(6, 8), _random(8, 5)
        (ours, explicit), said = _warned(lambda: (_ours(gpu, _product, *operands), _ours(gpu, mt.matmul, *operands)))
    finally:
        compiling.known_release.cache_clear()
    assert ours == explicit == []
    assert len(said) == 1
    assert f"1.0 to 1.1, and this is {torch.__version__}" in said[0]


# -- sessions ---------------------------------------------------------------------------------------------------------


class Foreign(custom.CustomGraphPass):  # type: ignore[misc] # torch may be absent, and is Any then
    """A pass of somebody else."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _graph: Any) -> None:
        """Count a graph."""
        self.calls += 1

    def uuid(self) -> Any:
        """Return a name."""
        return "foreign"


@pytest.mark.parametrize("name", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_a_pass_of_somebody_else(gpu: Any, name: str) -> None:
    foreign, operands = Foreign(), (_random(6, 8), _random(8, 5))
    with config.patch({name: foreign}):
        assert _ours(gpu, _product, *operands) == [SHAPES]
        assert foreign.calls == 1
        assert getattr(config, name) is foreign
        with mt.enable():
            assert "foreign" in getattr(config, name).uuid()
    functions: list[Any] = []
    with config.patch({name: functions.append}), mt.enable():
        assert getattr(config, name).uuid() is None
        torch.compile(lambda a, b: a @ b, fullgraph=True)(*operands)
        setattr(config, name, foreign)  # set while matmill is on: it stays
        mt.disable()
        assert getattr(config, name) is foreign
    assert len(functions) == 1


def _hooks() -> tuple[Any, ...]:
    own = inductor.choices.InductorChoices.get_template_configs, pad_mm.should_pad
    return *own, config.post_grad_custom_pre_pass, config.post_grad_custom_post_pass


def test_sessions_in_sessions(gpu: Any) -> None:
    before = _hooks()
    operands = _random(6, 8), _random(8, 5)
    with mt.enable():
        outer = _hooks()
        with mt.enable(float32="tf32x3"):
            assert not set(_hooks()) & set(outer)
            torch.compile(lambda a, b: a @ b, fullgraph=True)(*operands)
        torch.compile(torch.mm, fullgraph=True)(*operands)
    assert gpu.precisions == ["tf32x3", None]
    assert _hooks() == before
    with mt.enable(), mt.enable():
        mt.disable()
        assert _hooks() == before


def test_other_threads(gpu: Any) -> None:
    """Configurations belong to threads: where caches do not know of matmill, products are torch's."""
    operands = _random(6, 8), _random(8, 5)

    def in_a_thread(call: Callable[[], Any]) -> Any:
        results: list[Any] = []

        def run() -> None:
            with config.patch(fx_graph_cache=False), caches.patch(enable_autograd_cache=False):
                results.append(call())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return results[0]

    with mt.enable():
        own = in_a_thread(lambda: config.post_grad_custom_pre_pass)
        in_a_thread(lambda: torch.compile(lambda a, b: F.relu(a @ b), fullgraph=True)(*operands))
        assert gpu.ours == ([] if own is None else [SHAPES])  # torch 2.11 has one configuration
        gpu.ours.clear()
        in_a_thread(mt.disable)
        torch.compile(lambda a, b: F.gelu(a @ b), fullgraph=True)(*operands)
    assert gpu.ours == []


def test_inductor_is_loaded_by_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    original, before = torch.compile, _hooks()
    monkeypatch.delitem(sys.modules, "torch._inductor.compile_fx")
    with mt.enable():
        assert torch.compile is not original
        assert torch.compile.__doc__ == original.__doc__
        assert _hooks() == before
        torch.compile(_product, backend="eager")
        assert not set(_hooks()) & set(before)
    assert torch.compile is original
    assert _hooks() == before
    with mt.enable():
        mt.disable()
        assert torch.compile is original


# -- padding ----------------------------------------------------------------------------------------------------------


def _columns(x: Any) -> Any:
    return x.mT.contiguous().mT


@pytest.mark.parametrize("added", [None, "row", "matrix of a row", "matrix", "columns"])
@pytest.mark.parametrize("orders", ["rr", "rc", "cr", "cc"])
def test_torch_s_product_of_padded_operands(monkeypatch: pytest.MonkeyPatch, orders: str, added: str | None) -> None:
    calls: list[Any] = []

    def by_torch(*operands: Any) -> Any:
        calls.append(operands)
        return original(*operands)

    original = compiled.by_torch
    monkeypatch.setattr(compiled, "by_torch", by_torch)
    for m, n, k in ((6, 5, 7), (8, 16, 24), (1, 5, 3), (13, 1, 9)):
        a, b = (
            x if order == "r" else _columns(x) for order, x in zip(orders, (_random(m, k), _random(k, n)), strict=True)
        )
        addends = {"row": _random(n), "matrix of a row": _random(1, n), "matrix": _random(m, n)}
        addend = None if added is None else addends.get(added, _columns(addends["matrix"]))
        result = inductor._with_padding(a, b, addend, (0.5, 1.0))(a, b, addend)
        assert _near(result, a @ b + (0 if addend is None else addend))
        left, right = calls[-1][:2]
        for x, whole in ((a, left), (b, right)):
            assert all(size == 1 or size % 4 == 0 for size in whole.shape)
            assert (x.stride(0) == 1 != x.stride(1)) == (whole.stride(0) == 1 != whole.stride(1))


def _match(operator: Any, *tensors: Any, computed: bool = False, **kwargs: Any) -> Any:
    """Return what Inductor finds of a product of placeholders, or of what is computed from them."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{index}") for index in range(len(tensors))]
    if computed:
        nodes = [graph.call_function(torch.ops.aten.relu.default, (node,)) for node in nodes]
    for node, x in zip(nodes, tensors, strict=True):
        node.meta["val"] = x
    names = ("mat1", "mat2") if len(nodes) == 2 else ("input", "mat1", "mat2")
    product = graph.call_function(operator.default, tuple(nodes))
    product.meta["stack_trace"] = f'File "{__file__}", line 1'
    matched = dict(zip(names, nodes, strict=True)) | kwargs
    return SimpleNamespace(kwargs=matched, output_node=lambda: product, product=product, nodes=nodes)


def test_products_beside_padded_ones(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    aten = torch.ops.aten
    mode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    symbols = import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv()
    with mode():
        a, b, row = torch.empty(6, 7), torch.empty(7, 5), torch.empty(5)
        elsewhere = torch.empty(6, 7, device="meta"), torch.empty(7, 5, device="meta")
    symbolic = mode(shape_env=symbols).from_tensor(torch.empty(6, 7))
    pads = [True]
    monkeypatch.setattr(pad_mm, "should_pad", lambda *_arguments: pads[0])

    def kept(operator: Any, *tensors: Any, **kwargs: Any) -> bool:
        match = _match(operator, *tensors, **kwargs)
        return bool(pad_mm.should_pad(match, *tensors[-2:], operator))

    assert kept(aten.mm, a, b)
    with mt.enable():
        assert not kept(aten.mm, a, b)
        assert not kept(aten.addmm, row, a, b)
        assert not kept(aten.mm, a, b, computed=True)
        assert kept(aten.addmm, row, a, b, alpha=2)
        assert kept(aten.bmm, a[None], b[None])
        assert kept(aten.mm, *elsewhere)
        assert kept(aten.mm, symbolic, b) is not isinstance(symbolic.shape[0], int)
        decisions = session.latest().decider.decisions.values()
        assert sorted(each.key.rpartition("beside ")[2] for each in decisions) == [
            "padding",
            *["padding, copying 1 and 1"] * 2,
        ]
        pads[0] = False
        assert not kept(aten.mm, a, b)
        pads[0] = True
    gpu.wins = lambda *_shapes: False
    with mt.enable():
        assert kept(aten.mm, a, b)
    assert mt.report().rows == ()
    gpu.wins = lambda *_shapes: True
    with mt.enable(exclude=[__name__]):
        assert kept(aten.mm, a, b)


def test_shares_of_copies() -> None:
    aten = torch.ops.aten
    match = _match(aten.mm, torch.empty(6, 7), torch.empty(7, 5))
    a, b = match.nodes
    assert [inductor._copies(match, name) for name in ("mat1", "mat2")] == [1, 1]
    graph = match.product.graph
    transposed = graph.call_function(aten.t.default, (a,))
    graph.call_function(aten.mm.default, (b, transposed))
    assert [inductor._copies(match, name) for name in ("mat1", "mat2")] == [0.5, 0.5]
    computed = _match(aten.mm, torch.empty(6, 7), _columns(torch.empty(7, 5)), computed=True)
    assert [inductor._copies(computed, name) for name in ("mat1", "mat2")] == [0, 1]


def test_layouts() -> None:
    ir, x = inductor.ir, torch.empty(4, 1030)
    (taken,), (computed,) = (_match(torch.ops.aten.mm, x, x, computed=each).nodes[:1] for each in (False, True))
    rest = torch.float32, torch.device("cpu")
    assert inductor._expected(taken) == ((4, 1030), (1030, 1), *rest)
    assert inductor._expected(computed) == ((4, 1030), (1056, 1), *rest)
    with config.patch(comprehensive_padding=False):
        assert inductor._expected(computed) == inductor._expected(taken)
    cpu = torch.device("cpu")
    assert inductor._fixed(ir.FixedLayout(cpu, torch.float32, [4, 6], [6, 1])) == ((4, 6), (6, 1), *rest)
    assert inductor._fixed(ir.FixedLayout(cpu, torch.float32, [4, 6], [6, 1], 4)) == ((4, 6), (6, 1), *rest)
    assert inductor._fixed(ir.FixedLayout(cpu, torch.float32, [4, 6], [6, 1], 3)) is None
    assert inductor._fixed(ir.FlexibleLayout(cpu, torch.float32, [4, 6])) == ((4, 6), (6, 1), *rest)
    assert inductor._fixed(ir.FixedLayout(cpu, torch.float32, [inductor.sympy.Symbol("s"), 6], [6, 1])) is None


# -- what compiled code calls -----------------------------------------------------------------------------------------

_CALLS: dict[str, Callable[..., Any]] = {
    "mm": lambda a, b, _c, out: compiled.mm(a, b, out=out),
    "addmm": lambda a, b, c, out: compiled.addmm(c, a, b, out=out),
    "repeated row": lambda a, b, c, out: compiled.addmm(c.expand(out.shape), a, b, out=out),
    "matmul": lambda a, b, c, out: compiled.matmul(a, b, c, out=out),
    "activation": lambda a, b, c, out: compiled.matmul(a, b, c, activation="silu", out=out),
    "vector": lambda a, b, _c, out: compiled.matmul(a[0], b, out=out[0]),
    "wide": lambda a, b, _c, out: compiled.matmul(a.half(), b.half(), out_dtype=torch.float32, out=out),
}


@contextmanager
def _counted() -> Iterator[None]:
    """Count products in the decisions of a session, as one does in which Inductor is loaded."""
    with mt.enable():
        compiled.count_in(session.latest().decider)
        yield


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", _CALLS)
def test_calls(gpu: Any, name: str, padded: bool) -> None:
    a, b, c = _random(6, 8), _random(8, 5), _random(5)
    expected = a @ b + (0 if name in {"mm", "vector", "wide"} else c)
    out = torch.zeros(6, 32)[:, :5] if padded else torch.zeros(6, 5)
    with _counted():
        for _ in range(2):
            _CALLS[name](a, b, c, out)
    expected = F.silu(expected) if name == "activation" else expected
    assert _near(out[:1] if name == "vector" else out, expected[:1] if name == "vector" else expected)
    if name in {"vector", "wide"}:  # no decision describes them: the operator computes them
        assert compiled._ANSWERS == {}
        return
    assert gpu.ours == [SHAPES] * 2
    (row,) = mt.report().rows
    assert row.calls == 2
    assert ("to 6x5 row" in row.key) is padded
    assert (" + bias" in row.key) is (name != "mm")


def test_options_are_products_of_their_own(gpu: Any) -> None:
    a, b = _random(6, 8), _random(8, 5)
    expected = a @ b
    with _counted():
        for activation in (None, "relu", "silu"):
            for out in (torch.empty(6, 5), torch.empty(6, 32)[:, :5]):
                compiled.matmul(a, b, activation=activation, out=out)
                assert _near(out, expected if activation is None else getattr(F, activation)(expected))
        compiled.matmul(a, b, precision="tf32x3", out=torch.empty(6, 5))
        compiled._ANSWERS.clear()
        compiled.matmul(a, b, out=torch.empty(6, 5))
    assert gpu.activations == [None] * 2 + ["relu"] * 2 + ["silu"] * 2 + [None]
    assert gpu.precisions == [None] * 6 + ["tf32x3"]


def test_activations_have_the_precision_that_they_were_decided_in(gpu: Any) -> None:
    a, b = _random(6, 8), _random(8, 5)
    with mt.enable(float32="tf32x3"):
        function = torch.compile(lambda x, y: F.relu(x @ y), fullgraph=True)
        function(a, b)
    with _counted():
        function(a, b)
    assert gpu.precisions == ["tf32x3"] * 2


def test_answers_do_not_grow_without_end(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_MOST_LAYOUTS", 3)
    b = _random(8, 5)
    cases = [(a, torch.empty(len(a), 5)) for a in (_random(rows, 8) for rows in range(1, 9))]
    with _counted():
        for a, out in cases:
            compiled.mm(a, b, out=out)
            assert len(compiled._ANSWERS) <= 3
    assert all(_near(out, a @ b) for a, out in cases)
    assert len(gpu.ours) == len(cases)


def test_what_fails_in_a_captured_graph_is_tried_again(gpu: Any) -> None:
    a, b, out = _random(6, 8), _random(8, 5), torch.empty(6, 5)
    with _counted():
        gpu.captures, gpu.broken_preparation = True, MemoryError()
        compiled.mm(a, b, out=out)
        gpu.captures, gpu.broken_preparation = False, None
        assert gpu.ours == []
        compiled.mm(a, b, out=torch.empty(6, 5))
    assert gpu.ours == [SHAPES]
    assert _near(out, a @ b)


# -- caches and packages ----------------------------------------------------------------------------------------------

_PROCESS = """
import torch
import matmill.torch as mt
from matmill.torch import session
from support.decided_gpu import DecidedGPU

def activated(a, b):
    return torch.relu(a @ b)

a, b = torch.ones(6, 8), torch.ones(8, 5)
addmm = torch.addmm
with mt.enable():  # before Dynamo is loaded, which reads torch's functions then
    torch.compile(addmm, fullgraph=True, backend="eager")(torch.ones(5), a, b)
assert torch.compile(torch.addmm, fullgraph=True, backend="eager")(torch.ones(5), a, b).eq(9).all()
gpu = session._DEVICE = DecidedGPU()
counters = torch._dynamo.utils.counters
with mt.enable():
    for function in (torch.mm, activated):
        assert torch.compile(function)(a, b).eq(8).all()
print(counters["aot_autograd"]["autograd_cache_hit"], len(gpu.ours), len(gpu.timed), gpu.activations)
torch._dynamo.reset()
assert torch.compile(torch.mm)(a, b).eq(8).all()
print(counters["aot_autograd"]["autograd_cache_hit"], len(gpu.ours))
"""


def test_caches_on_disk(tmp_path: Path) -> None:
    """A process that enables matmill loads what another one compiled; without matmill products are torch's."""
    path = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "MATMILL_CACHE": "off"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    for hits, timed in ((0, 2), (2, 0)):
        process = subprocess.run(
            [sys.executable, "-c", _PROCESS], capture_output=True, text=True, env=environment, check=False
        )
        printed = [f"{hits} 2 {timed} [None, 'relu']", f"{hits and 3} 2"]
        assert process.stdout.splitlines() == printed, process.stderr


class Layers(torch.nn.Module):  # type: ignore[misc] # as above
    """A layer of torch's and one of matmill's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        """Return both results."""
        return F.relu(self.layer(x)), mt.linear(x, self.layer.weight, self.layer.bias, "relu")


def test_packages_have_torch_s_products_and_matmill_s_operators(gpu: Any, tmp_path: Path) -> None:
    layers, x = Layers().eval(), _random(6, 8)
    path = str(tmp_path / "layers.pt2")
    with torch.no_grad():
        expected = layers(x)
        with mt.enable():
            program = torch.export.export(layers, (x,))
            targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
            assert {each for each in targets if "linear" in each or "mm" in each or "matmul" in each} == {
                "aten.linear.default",
                "matmill.matmul.default",
            }
            torch._inductor.aoti_compile_and_package(program, package_path=path)
        assert (gpu.ours, gpu.timed) == ([], [])
        assert _near(tuple(torch._inductor.aoti_load_package(path)(x)), expected)
