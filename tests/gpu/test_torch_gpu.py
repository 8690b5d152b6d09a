"""matmill.torch on a GPU: values, streams, CUDA graphs, gradients, compiled programs, and the article's example."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import matmill
from matmill import errors
from matmill.dtypes import ALL, ELEMENTWISE

ROOT = Path(__file__).parents[2]
SHAPES = [((3, 5), (5, 3)), ((1, 1), (1, 1)), ((243, 115), (115, 243)), ((2, 1, 33, 70), (3, 70, 33)), ((0, 5), (5, 0))]


@pytest.fixture
def mt(torch: Any) -> Any:
    """Provide the operators, where torch sees the GPU."""
    assert torch.cuda.is_available()
    return import_module("matmill.torch")


def _random(torch: Any, *shape: int, dtype: str = "float32") -> Any:
    if dtype.startswith("int"):
        return torch.randint(-100, 100, shape, device="cuda").to(getattr(torch, dtype))
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_sums_are_torch_s_own_to_the_bit(
    torch: Any, mt: Any, left: tuple[int, ...], right: tuple[int, ...], dtype: str
) -> None:
    x, y = _random(torch, *left, dtype=dtype), _random(torch, *right, dtype=dtype)
    expected = x.mT + y
    for call in (mt.transpose_add, torch.ops.matmill.transpose_add):
        result = call(x, y)
        assert torch.equal(result, expected)
        assert (result.device, result.dtype, result.is_contiguous()) == (x.device, x.dtype, True)
    assert torch.equal(mt.transpose_add(x.mT.contiguous().mT, y), expected)
    assert torch.equal(mt.transpose(x), x.mT)
    if y.shape == expected.shape:
        assert mt.transpose_add(x, y, out=y) is y
        assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("alpha", "beta"), [(2, 1), (1, -4), (-1, 0), (0, 2), (0, 0)])
def test_the_cpu_gives_the_gpu_s_results(torch: Any, mt: Any, alpha: int, beta: int, dtype: str) -> None:
    x, y = _random(torch, 3, 65, 40, dtype=dtype), _random(torch, 40, 65, dtype=dtype)
    here = mt.transpose_add(x, y, alpha=alpha, beta=beta)
    there = mt.transpose_add(x.cpu(), y.cpu(), alpha=alpha, beta=beta)
    assert torch.equal(here.cpu(), there)  # scaling by powers of two rounds nothing


@pytest.mark.parametrize("dtype", ALL)
def test_products(torch: Any, mt: Any, dtype: str) -> None:
    e, f = _random(torch, 5, 3001, dtype=dtype), _random(torch, 3001, 7, dtype=dtype)
    exact, terms = e.double() @ f.double(), e.double().abs() @ f.double().abs()
    # Sums of 3001 terms in the type that sums are kept in, and one rounding to the elements'.
    bound = terms * 3001 * ALL[dtype].accumulator.roundoff + exact.abs() * ALL[dtype].roundoff
    for call in (mt.inner, mt.matmul, torch.ops.matmill.inner):
        assert ((call(e, f).double() - exact).abs() <= bound).all()


def test_refusals(torch: Any, mt: Any) -> None:
    x, y = _random(torch, 3, 5), _random(torch, 5, 3)
    for call in (mt.transpose_add, torch.ops.matmill.transpose_add):
        with pytest.raises(errors.ShapeError, match="swapped"):
            call(x, x)
        with pytest.raises(errors.DeviceError, match="GPU 0"):
            call(x, y.cpu())
    square = _random(torch, 4, 4)
    with pytest.raises(errors.AliasError, match="overlaps x"):
        mt.transpose_add(square, square.clone(), out=square)
    with pytest.raises(errors.ArgumentError, match="derivative"):
        mt.transpose_add(x.requires_grad_(), y, out=y)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_layers_and_their_gradients(torch: Any, mt: Any, dtype: str) -> None:
    x, w, b = (
        _random(torch, 4, 70, 60, dtype=dtype),
        _random(torch, 90, 60, dtype=dtype),
        _random(torch, 90, dtype=dtype),
    )
    wide = [one.double().requires_grad_() for one in (x, w, b)]
    expected = torch.nn.functional.gelu(torch.nn.functional.linear(*wide))
    given = [one.clone().requires_grad_() for one in (x, w, b)]
    tolerance = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 2e-1}[dtype]
    result = mt.linear(*given, "gelu")
    for one in (result, mt.linear(x, w, b, "gelu"), torch.ops.matmill.matmul(x, w.mT, b, activation="gelu")):
        assert torch.allclose(one.double(), expected, rtol=tolerance, atol=tolerance)
    weight = torch.rand_like(expected)
    gradients = torch.autograd.grad(result, given, weight.to(result.dtype)), torch.autograd.grad(expected, wide, weight)
    for got, wanted in zip(*gradients, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=tolerance, atol=10 * tolerance)
    assert mt.matmul(x, w.mT, bias=b, out_dtype="float32").dtype is torch.float32


# -- what torch knows beside the memory -------------------------------------------------------------------------------

NAMES = ["transpose_add", "transpose", "inner", "matmul"]


def _operands(torch: Any, name: str) -> list[Any]:
    shapes = {"transpose": [(3, 5)], "transpose_add": [(3, 5), (5, 3)]}.get(name, [(5, 40), (40, 3)])
    return [_random(torch, *shape) for shape in shapes]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", ["core", "direct", "operator"])
def test_every_write_counts_up_the_version(torch: Any, mt: Any, way: str, name: str) -> None:
    operands = _operands(torch, name)
    call = {"core": getattr(matmill, name), "direct": getattr(mt, name)}.get(way) or getattr(torch.ops.matmill, name)
    for _ in range(3):  # the first is checked, the others are like it
        saved = torch.ones(10, 3, device="cuda")
        weight = torch.ones_like(saved, requires_grad=True)
        total = (weight * saved).sum()
        call(*operands, out=saved[:5])
        assert saved._version > 0
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()
    scaled = torch.zeros(5, 3, device="cuda")
    if name == "transpose_add" and way == "core":
        matmill.transpose_add(*operands, alpha=2, out=scaled)
        assert scaled._version == 1


@pytest.mark.parametrize("name", NAMES)
def test_inference_tensors_are_written_in_inference_mode_alone(torch: Any, mt: Any, name: str) -> None:
    operands = _operands(torch, name)
    for home in (matmill, mt):
        with torch.inference_mode():
            out = torch.zeros(5, 3, device="cuda")
            for _ in range(2):
                assert getattr(home, name)(*operands, out=out) is out
        kept = out.clone()
        for _ in range(2):
            with pytest.raises(errors.ReadOnlyError, match="inference"):
                getattr(home, name)(*(2 * x for x in operands), out=out)
        assert torch.equal(out, kept)


@pytest.mark.parametrize("name", NAMES)
def test_what_core_calls_would_lose_is_refused(torch: Any, mt: Any, name: str) -> None:
    forward_ad, call, own = torch.autograd.forward_ad, getattr(matmill, name), getattr(mt, name)
    operands = _operands(torch, name)
    for _ in range(2):  # like calls that the fast path knows
        call(*operands)
        call(*operands, out=torch.zeros(5, 3, device="cuda"))

    def first(x: Any, function: Any = call) -> Any:
        return function(x, *operands[1:])

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(operands[0], torch.ones_like(operands[0]))
        with pytest.raises(errors.ArgumentError, match=r"tangent.*matmill\.torch"):
            first(dual)
        assert forward_ad.unpack_dual(first(dual, own)).tangent is not None
        out = forward_ad.make_dual(torch.zeros(5, 3, device="cuda"), torch.ones(5, 3, device="cuda"))
        with pytest.raises(errors.ArgumentError, match="tangent"):
            call(*operands, out=out)
        assert torch.equal(call(*operands), own(*operands))
    transformations: tuple[Callable[[Callable[..., Any]], Any], ...] = (
        lambda function: torch.vmap(function)(operands[0][None]),
        lambda function: torch.func.grad(lambda x: function(x).sum())(operands[0]),
        lambda function: torch.func.jvp(function, (operands[0],), (operands[0],)),
        lambda function: torch.func.functionalize(function)(operands[0]),
        lambda function: torch.jit.trace(function, operands[0], check_trace=False),
    )
    for transformed in transformations:
        with pytest.raises(errors.ArgumentError, match=r"matmill\.torch"):
            transformed(first)
    # Constants in transformed functions: torch wraps new tensors inside grad.
    with pytest.raises(errors.ArgumentError, match="transformation"):
        torch.func.grad(lambda x: x.sum() + call(*operands).sum())(operands[0])
    negated = torch._neg_view(torch.zeros(5, 3, device="cuda"))
    for home in (call, own, getattr(torch.ops.matmill, name)):
        with pytest.raises(errors.ArgumentError, match="negated"):
            home(*operands, out=negated)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_devices_do_not_mix(torch: Any, mt: Any, name: str, device: str) -> None:
    operands, out = _operands(torch, name), torch.zeros(5, 3, device=device)
    for home in (matmill, mt, torch.ops.matmill):
        with pytest.raises(errors.DeviceError):
            getattr(home, name)(*operands, out=out)
        if len(operands) > 1:
            with pytest.raises(errors.DeviceError):
                getattr(home, name)(operands[0], operands[1].to(device))


# -- streams and graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False])
def test_work_goes_to_the_current_stream(torch: Any, mt: Any, direct: bool) -> None:
    call = mt.transpose_add if direct else torch.ops.matmill.transpose_add
    x, y = _random(torch, 4096, 4096), _random(torch, 4096, 4096)
    expected = 3 * x.mT + y
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for turn in range(12):
        with torch.cuda.stream(sides[turn % 3]):
            late = x * 3  # must be done before the operator reads it
            results.append(call(late, y))
            torch.full((4096, 4096), float("nan"), device="cuda")  # may be given memory that was freed too early
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("direct", [True, False])
def test_cuda_graphs(torch: Any, mt: Any, direct: bool) -> None:
    home = mt if direct else torch.ops.matmill
    x, y, e = _random(torch, 120, 70), _random(torch, 70, 120), _random(torch, 5, 100_001)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # compiled and loaded before anything is captured
        home.transpose_add(home.transpose(y), home.transpose(x), alpha=2)
        home.inner(e, e.T)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        summed = home.transpose_add(home.transpose(y), home.transpose(x), alpha=2)
        gram = home.inner(e, e.T)
    for _ in range(3):
        for tensor in (x, y, e):
            tensor.mul_(-0.5)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(summed, 2 * y + x.mT)
        assert torch.equal(gram, mt.inner(e, e.T))


# -- derivatives and compiled programs --------------------------------------------------------------------------------


def test_gradients(torch: Any, mt: Any) -> None:
    x, y = _random(torch, 3, 5).double().requires_grad_(), _random(torch, 5, 3).double().requires_grad_()
    e, f = _random(torch, 2, 6).double().requires_grad_(), _random(torch, 6, 3).double().requires_grad_()

    def scaled(left: Any, right: Any) -> Any:
        return mt.transpose_add(left, right, alpha=2.0, beta=-0.5)

    for function, arguments in ((scaled, (x, y)), (mt.transpose, (x,)), (mt.inner, (e, f)), (mt.matmul, (e, f))):
        warnings.simplefilter("error", RuntimeWarning)  # no product of batched gradients may fail
        assert torch.autograd.gradcheck(function, arguments, check_forward_ad=True, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(function, arguments)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_without_a_graph_break(torch: Any, mt: Any, mode: str) -> None:
    pytest.importorskip("triton")

    def layer(x: Any, y: Any) -> Any:
        return torch.relu(mt.transpose_add(x, y, alpha=2)) + mt.inner(y, x).sum()

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    for _ in range(3):  # reduce-overhead replays a graph from the third call on
        x, y = _random(torch, 120, 70), _random(torch, 70, 120)
        assert torch.allclose(compiled(x, y), layer(x, y), rtol=1e-4, atol=1e-3)
    torch._dynamo.reset()


@pytest.mark.parametrize("form", ["transpose_add", "transpose_add.out", "transpose", "inner", "matmul"])
def test_torch_s_own_checks(torch: Any, mt: Any, form: str) -> None:
    name, _, overload = form.partition(".")
    operator = getattr(getattr(torch.ops.matmill, name), overload or "default")
    assert getattr(mt, name)
    x, y = _random(torch, 3, 5), _random(torch, 5, 3)
    arguments = {"transpose": (x,)}.get(name, (x, y))
    keywords = {"out": torch.empty(5, 3, device="cuda")} if overload else {}
    torch.library.opcheck(operator, arguments, keywords)


# -- the example ------------------------------------------------------------------------------------------------------


def test_the_article_s_example_times_itself(torch: Any) -> None:
    assert torch.cuda.is_available()
    command = [sys.executable, str(ROOT / "examples" / "transpose_add.py"), "--rows", "2430", "--columns", "1152"]
    path = {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **path})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("x 2430 x 1152 bfloat16 on cuda: the same bits")
    assert [line.split()[0] for line in lines[1:]] == ["torch", "matmill", "of"]
