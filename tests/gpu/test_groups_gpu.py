"""Groups on a GPU: lists of torch's tensors in one launch, offsets that a graph reads, streams."""

from __future__ import annotations

from typing import Any

import pytest

import matmill

SIZES = ((16, 64, 72), (130, 128, 264), (0, 8, 8), (7, 0, 16), (200, 72, 40), (1, 8, 8))
OFF_VECTORS = ((3, 5, 7), (130, 129, 65), (64, 33, 1))


def _close(torch: Any, got: Any, expected: Any, dtype: str) -> None:
    tolerance = {"bfloat16": 2e-2, "float16": 2e-3}.get(dtype, 1e-4)
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("sizes", [SIZES, OFF_VECTORS, SIZES * 60], ids=["on vectors", "off vectors", "many"])
def test_lists(torch: Any, dtype: str, sizes: tuple[tuple[int, int, int], ...]) -> None:
    def matrices(first: int, last: int) -> list[Any]:
        kind = getattr(torch, dtype)
        return [torch.randn(size[first], size[last], device="cuda", dtype=kind) for size in sizes]

    a, b, c = matrices(0, 1), matrices(1, 2), matrices(0, 2)
    for x, y, got in zip(a, b, matmill.matmul(a, b), strict=True):
        _close(torch, got, x.double() @ y.double(), dtype)
    for left in (a, [x.T.contiguous().T for x in a]):
        for x, y, z, got in zip(left, b, c, matmill.matmul(left, b, c=c, alpha=2, beta=-1), strict=True):
            _close(torch, got, 2 * (x.double() @ y.double()) - z.double(), dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_graph_reads_the_offsets_of_its_replay(torch: Any, dtype: str) -> None:
    a = torch.randn(300, 64, device="cuda", dtype=getattr(torch, dtype))
    b = torch.randn(3, 64, 48, device="cuda", dtype=a.dtype)
    offsets = torch.tensor([10, 20, 300], device="cuda", dtype=torch.int32)
    matmill.grouped_mm(a, b, offsets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = matmill.grouped_mm(a, b, offsets)
    for ends in ([10, 20, 300], [0, 0, 0], [128, 256, 257]):
        offsets.copy_(torch.tensor(ends))
        graph.replay()
        expected = torch.zeros(300, 48, device="cuda", dtype=torch.double)
        for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            expected[start:end] = a[start:end].double() @ b[group].double()
        _close(torch, result, expected, dtype)


def test_a_stream_of_one_s_own(torch: Any) -> None:
    a = [torch.randn(100, 64, device="cuda") for _ in range(40)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    products = matmill.matmul(a, [x.T for x in a], stream=stream)
    stream.synchronize()
    for x, got in zip(a, products, strict=True):
        _close(torch, got, x.double() @ x.double().T, "float32")
