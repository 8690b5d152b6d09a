"""inner on a GPU: every type, layout and length, gram matrices, streams, graphs, and the same bits in every run."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from gpu.torch_threads import wrong_threads
from matmill import errors
from matmill.dtypes import ALL
from matmill.reference import check
from matmill.runtime.gpu import GPU
from matmill.runtime.stream_scratch import Scratch

Array = NDArray[Any]

#: Odd, short, and long enough for two launches.
LENGTHS = [1, 7, 1001, 65_537]


def _random(seed: int, *shape: int, dtype: str) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(ALL[dtype].numpy)


# -- torch ------------------------------------------------------------------------------------------------------------


def _tensors(torch: Any, dtype: str, m: int, n: int, k: int) -> tuple[Any, Any]:
    generator = torch.Generator(device="cuda").manual_seed(5)
    kind = getattr(torch, dtype)
    e = torch.rand(m, k, device="cuda", generator=generator).mul_(2).sub_(1).to(kind)
    return e, torch.rand(k, n, device="cuda", generator=generator).mul_(2).sub_(1).to(kind)


def _host(x: Any, dtype: str) -> Array:
    host: Array = x.double().cpu().numpy().astype(ALL[dtype].numpy)
    return host


def _right(result: Any, e: Any, f: Any, dtype: str, **factors: Any) -> bool:
    return check(_host(result, dtype), _host(e, dtype), _host(f, dtype), **factors).ok


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("k", LENGTHS)
def test_torch_tensors(torch: Any, k: int, dtype: str) -> None:
    e, f = _tensors(torch, dtype, 7, 3, k)
    result = matmill.inner(e, f)
    assert (result.device, result.dtype, tuple(result.shape)) == (e.device, e.dtype, (7, 3))
    assert _right(result, e, f, dtype)
    assert _right(matmill.inner(e, e.T), e, e.T, dtype)
    assert _right(matmill.inner(f.T, e.T), f.T, e.T, dtype)
    out = torch.full((3, 7), float("nan"), device="cuda", dtype=e.dtype).T
    assert matmill.inner(e, f, out=out) is out
    assert _right(out, e, f, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_torch_16_bit_tensors_on_the_host(torch: Any, dtype: str) -> None:
    e, f = (x.cpu() for x in _tensors(torch, dtype, 7, 3, 1001))
    result = matmill.inner(e, f)
    assert (result.device.type, result.dtype) == ("cpu", e.dtype)
    assert _right(result, e, f, dtype)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("k", [1001, 300_001])
def test_the_same_arguments_give_the_same_bits(torch: Any, k: int, dtype: str) -> None:
    e, f = _tensors(torch, dtype, 5, 5, k)
    for right in (f, e.T):
        first = matmill.inner(e, right)
        noise = torch.rand(2048, 2048, device="cuda")
        side = torch.cuda.Stream()
        for _ in range(20):
            with torch.cuda.stream(side):
                torch.mm(noise, noise)  # company on the SMs changes the order in which blocks run
            again = matmill.inner(e, right)
            assert torch.equal(again.view(torch.uint8), first.view(torch.uint8))


def test_torch_streams_and_reused_workspaces(torch: Any) -> None:
    e, f = _tensors(torch, "float32", 5, 5, 300_001)
    expected = matmill.inner(e, f)
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for turn in range(30):
        with torch.cuda.stream(sides[turn % 3]):
            results.append(matmill.inner(e, f))
            torch.full((1 << 20,), float("nan"), device="cuda")  # may be given the workspace's memory, in stream order
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)
    for stream in (sides[0], sides[0].cuda_stream):
        out = torch.full((5, 5), float("nan"), device="cuda")
        torch.cuda.synchronize()
        matmill.inner(e, f, out=out, stream=stream)
        sides[0].synchronize()
        assert torch.equal(out, expected)


def test_threads_share_a_plan(torch: Any) -> None:
    pairs = [_tensors(torch, "float32", 5, 5, 200_000 + 8 * (i % 2)) for i in range(4)]
    calls = [partial(matmill.inner, *pair, alpha=1.0 + i) for i, pair in enumerate(pairs)]
    expected = [call() for call in calls]
    torch.cuda.synchronize()
    assert wrong_threads(torch, calls, expected) == []


@pytest.mark.parametrize("k", [1001, 300_001])
def test_torch_cuda_graphs(torch: Any, k: int) -> None:
    e, f = _tensors(torch, "float32", 5, 5, k)
    matmill.inner(e, f)  # compiled and loaded before anything is captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = matmill.inner(e, f)
        doubled = matmill.inner(e, f, c=result, beta=1.0)
    for _ in range(3):
        e.mul_(-0.5)
        graph.replay()
        expected = matmill.inner(e, f)
        torch.cuda.synchronize()
        assert torch.equal(result, expected)
        assert _right(doubled, e, f, "float32", c=_host(expected, "float32"), beta=1.0)


def test_graphs_run_beside_each_other_and_beside_calls(torch: Any) -> None:
    e, f = _tensors(torch, "float32", 5, 5, 300_001)
    expected = matmill.inner(e, f)
    torch.cuda.synchronize()
    graphs, captured = [], []
    for _ in range(3):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            captured.append([matmill.inner(e, f) for _ in range(4)])
    sides = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(20):
        called = []
        for graph, side in zip(graphs, sides, strict=True):
            with torch.cuda.stream(side):
                graph.replay()
                called.append(matmill.inner(e, f))
        called.append(matmill.inner(e, f))
        torch.cuda.synchronize()
        for result in (*called, *(one for some in captured for one in some)):
            assert torch.equal(result, expected)
            result.fill_(float("nan"))
        torch.cuda.synchronize()


def test_memory_for_counters_may_be_made_while_a_graph_captures(torch: Any) -> None:
    made, x = Scratch(GPU.get(0)), torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = [made.find(torch.cuda.current_stream().cuda_stream) for _ in range(5000)]
        x += 1
    assert {room for room, _ in result} == {0}
    assert len({counter for _, counter in result}) == 5000
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [3.0] * 8


def test_torch_refusals(torch: Any) -> None:
    e, f = _tensors(torch, "float32", 5, 5, 100)
    for _ in range(2):
        with pytest.raises(errors.ShapeError, match="Use matmul"):
            matmill.inner(torch.zeros(129, 100, device="cuda"), f)
        with pytest.raises(errors.AliasError, match="overlaps e"):
            matmill.inner(e, f, out=e[:, :5])
        with pytest.raises(errors.DTypeError, match="e's float32"):
            matmill.inner(e, f.half())
        matmill.inner(e, f)


# -- CuPy and JAX -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cupy_arrays(cupy: Any, dtype: str) -> None:
    for k in LENGTHS:
        e, f = _random(0, 7, k, dtype=dtype), _random(1, k, 3, dtype=dtype)
        x, y = cupy.asarray(e), cupy.asarray(f)
        result = matmill.inner(x, y)
        assert isinstance(result, cupy.ndarray)
        assert check(cupy.asnumpy(result), e, f).ok
        assert check(cupy.asnumpy(matmill.inner(x, x.T)), e, e.T).ok


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_jax_arrays(jax: Any, dtype: str) -> None:
    for k in LENGTHS:
        e, f = _random(0, 7, k, dtype=dtype), _random(1, k, 3, dtype=dtype)
        result = matmill.inner(jax.numpy.asarray(e), jax.numpy.asarray(f))
        assert isinstance(result, jax.Array)
        assert result.dtype == e.dtype
        assert check(np.asarray(result), e, f).ok
        host = jax.devices("cpu")[0]
        there = matmill.inner(jax.device_put(e, host), jax.device_put(f, host))
        assert there.devices() == {host}
        assert check(np.asarray(there), e, f).ok
