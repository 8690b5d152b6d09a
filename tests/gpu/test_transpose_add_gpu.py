"""transpose_add and transpose on a GPU: torch's sum to the bit for every type and layout, in place, streams, graphs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from gpu.torch_threads import wrong_threads
from matmill import errors
from matmill.dtypes import ELEMENTWISE

Array = NDArray[Any]

#: Tiny, narrow, wide, odd pitches, and enough for several waves of blocks.
SIZES = [(1, 1), (1, 1000), (1000, 1), (7, 3), (64, 64), (127, 129), (33, 2050), (2051, 34), (1021, 1500)]


def _random(seed: int, *shape: int, dtype: str) -> Array:
    kind: Any = ELEMENTWISE[dtype].numpy
    rng = np.random.default_rng(seed)
    if kind.kind == "i":
        return rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape)).astype(kind)


def _tensor(torch: Any, dtype: str, *shape: int, seed: int = 5) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(*shape, device="cuda", generator=generator).mul_(100).to(kind)
    facts = torch.iinfo(kind)
    return torch.randint(facts.min, facts.max + 1, shape, device="cuda", generator=generator, dtype=kind)


def _views(torch: Any, dtype: str, r: int, c: int) -> dict[str, tuple[Any, Any]]:
    """Return X and Y in many layouts."""
    x, y = _tensor(torch, dtype, c, r, seed=1), _tensor(torch, dtype, r, c, seed=2)
    wide, steps = _tensor(torch, dtype, c, r + 3, seed=3), _tensor(torch, dtype, r, 2 * c, seed=4)
    pool = _tensor(torch, dtype, r * c + 1, seed=5)
    return {
        "packed": (x, y),
        "transposed already": (_tensor(torch, dtype, r, c, seed=6).T, y),
        "y in columns": (x, _tensor(torch, dtype, c, r, seed=7).T),
        "gaps": (wide[:, :r], steps[:, ::2]),
        "odd starts": (wide[:, 1 : r + 1], pool[1:].view(r, c)),
        "one row": (x, y[:1].expand(r, c)),
        "one column": (x[:1].expand(c, r), y),
    }


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize(("r", "c"), SIZES)
def test_torchs_sum_to_the_bit(torch: Any, r: int, c: int, dtype: str) -> None:
    for name, (x, y) in _views(torch, dtype, r, c).items():
        result = matmill.transpose_add(x, y)
        assert (result.dtype, result.device, result.is_contiguous()) == (y.dtype, y.device, True)
        assert torch.equal(result, x.T + y), name
        assert torch.equal(matmill.transpose(x), x.T.contiguous()), name
        out = torch.zeros(r, c + 5, device="cuda", dtype=y.dtype)
        assert matmill.transpose_add(x, y, out=out[:, 2 : c + 2]) is not None
        assert torch.equal(out[:, 2 : c + 2], x.T + y), name
        assert not out[:, :2].any(), name
        assert not out[:, c + 2 :].any(), name
        columns = torch.zeros(c, r, device="cuda", dtype=y.dtype).T
        matmill.transpose_add(x, y, out=columns)
        assert torch.equal(columns, x.T + y), name


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_batches_broadcast(torch: Any, dtype: str) -> None:
    for left, right in (((3, 40, 50), (50, 40)), ((5, 1, 33, 7), (4, 7, 33)), ((40, 50), (2, 3, 50, 40))):
        x, y = _tensor(torch, dtype, *left), _tensor(torch, dtype, *right, seed=6)
        assert torch.equal(matmill.transpose_add(x, y), x.mT + y)
        columns = x.mT.contiguous().mT
        assert torch.equal(matmill.transpose_add(columns, y), columns.mT + y)
    x, y = _tensor(torch, "int8", 70_000, 3, 2), _tensor(torch, "int8", 70_000, 2, 3)
    assert torch.equal(matmill.transpose_add(x, y), x.mT + y)
    for empty in ((0, 3), (3, 0), (0, 3, 4)):
        x = _tensor(torch, dtype, *empty)
        assert matmill.transpose_add(x, x.mT).shape == x.mT.shape


@pytest.mark.parametrize("dtype", ELEMENTWISE)
@pytest.mark.parametrize("pad", [0, 1])
def test_out_may_be_exactly_y(torch: Any, pad: int, dtype: str) -> None:
    x, pool = _tensor(torch, dtype, 2, 700, 900), _tensor(torch, dtype, 2, 900, 700 + pad, seed=6)
    y = pool[..., :700]
    for view, other in ((y, x), (y.mT, x.mT)):
        expected = other.mT + view
        assert matmill.transpose_add(other, view, out=view) is view
        assert torch.equal(view, expected)
    with pytest.raises(errors.AliasError, match="overlaps x"):
        matmill.transpose_add(x, y, out=x.mT)
    with pytest.raises(errors.AliasError, match="overlaps y"):
        matmill.transpose_add(x[:, :, 1:], y[:, 1:], out=y[:, :-1])


def test_nan_that_is_not_read(torch: Any) -> None:
    y = _tensor(torch, "float32", 300, 200)
    nan = torch.full_like(y, float("nan"))
    assert torch.equal(matmill.transpose_add(nan.T, y, alpha=0), y)
    assert torch.equal(matmill.transpose_add(y.T, nan, beta=0), y)
    assert torch.equal(matmill.transpose_add(nan.T, nan, alpha=0, beta=0), torch.zeros_like(y))


def test_long_vectors(torch: Any) -> None:
    x, y = _tensor(torch, "float32", 3_000_001, 1), _tensor(torch, "float32", 1, 3_000_001, seed=6)
    assert torch.equal(matmill.transpose_add(x, y), x.T + y)
    assert torch.equal(matmill.transpose_add(y, x), y.T + x)


def test_torch_streams(torch: Any) -> None:
    x, y = _tensor(torch, "bfloat16", 2000, 3001), _tensor(torch, "bfloat16", 3001, 2000, seed=6)
    expected = x.T + y
    torch.cuda.synchronize()
    sides = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for turn in range(30):
        with torch.cuda.stream(sides[turn % 3]):
            results.append(matmill.transpose_add(x, y))
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in results)
    for stream in (sides[0], sides[0].cuda_stream):
        out = torch.full_like(expected, float("nan"))
        torch.cuda.synchronize()
        matmill.transpose_add(x, y, out=out, stream=stream)
        sides[0].synchronize()
        assert torch.equal(out, expected)


def test_threads_share_a_plan(torch: Any) -> None:
    y = _tensor(torch, "float32", 300, 200, seed=9)
    pairs = [(_tensor(torch, "float32", 200, 300, seed=i), y) for i in range(4)]
    calls = [partial(matmill.transpose_add, *pair, alpha=1.0 + i) for i, pair in enumerate(pairs)]
    expected = [call() for call in calls]
    torch.cuda.synchronize()
    assert wrong_threads(torch, calls, expected) == []


def test_torch_cuda_graphs(torch: Any) -> None:
    x, y = _tensor(torch, "float16", 900, 1001), _tensor(torch, "float16", 1001, 900, seed=6)
    total = y.clone()
    matmill.transpose_add(x, total, out=total)  # compiled and loaded before anything is captured
    matmill.transpose(x)
    total.copy_(y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        transposed = matmill.transpose(x)
        matmill.transpose_add(x, total, out=total)
    expected = y
    for _ in range(3):
        x.mul_(-0.5)
        graph.replay()
        expected = x.T + expected
        torch.cuda.synchronize()
        assert torch.equal(transposed, x.T)
        assert torch.equal(total, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32"])
def test_cupy_arrays(cupy: Any, dtype: str) -> None:
    x, y = _random(0, 70, 91, dtype=dtype), _random(1, 91, 70, dtype=dtype)
    result = matmill.transpose_add(cupy.asarray(x), cupy.asarray(y))
    assert isinstance(result, cupy.ndarray)
    assert cupy.asnumpy(result).tobytes() == matmill.transpose_add(x, y, executor="cpu").tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32"])
def test_jax_arrays(jax: Any, dtype: str) -> None:
    x, y = _random(0, 70, 91, dtype=dtype), _random(1, 91, 70, dtype=dtype)
    result = matmill.transpose_add(jax.numpy.asarray(x), jax.numpy.asarray(y))
    assert isinstance(result, jax.Array)
    assert np.asarray(result).tobytes() == matmill.transpose_add(x, y, executor="cpu").tobytes()
