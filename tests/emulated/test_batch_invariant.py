"""Batch-invariant products in the emulator: all kernels that may be chosen have the same bits, and so has every row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import matmill
from matmill.choose import entries
from matmill.dtypes import ALL
from matmill.kernel import Kernel
from matmill.problem import Gemm
from matmill.testing import audit
from matmill.testing.products.accuracy import errors
from matmill.testing.products.bits import bits
from matmill.testing.products.subject import Subject
from support.strided import COLUMN, H200, Layout
from support.strided_product import StridedProduct

BF16, F16, F32, F64 = (ALL[name] for name in ("bfloat16", "float16", "float32", "float64"))
#: The product that is audited, and the changes of a call that change none of its bits.
SAME_BITS = partial(matmill.matmul, executor="emulator", batch_invariant=True, out_dtype="float32")
CHANGES = ("rows", "batches", "layouts", "addresses", "twice")
APART = Layout(pad=1, start=1)
#: What tells apart the ways in which kernels sum and end a product.
_WAYS = ("SPLIT_K", "CLUSTER_K", "PROMOTED", "EXCHANGED", "A_IN_REGISTERS", "REPACK_A", "STAGES", "MMA_K")
_ALL: dict[str, Any] = {"alpha": 0.7, "bias": "row", "activation": "gelu"}
CASES = {
    "16 bits": StridedProduct((70, 24, 1530), dtype=F16, out_dtype=F32, b=COLUMN, slice_k=768, **_ALL),
    "C": StridedProduct((35, 40, 512), dtype=BF16, c=Layout(), alpha=0.7, slice_k=128),
    "bias without C, unaligned": StridedProduct((66, 40, 512), a=APART, slice_k=256, **_ALL),
    "C and bias": StridedProduct((70, 16, 256), b=COLUMN, c=Layout(), slice_k=64, **_ALL),
    "transposed": StridedProduct((70, 24, 192), dtype=F16, a=COLUMN, d=COLUMN, slice_k=192, **_ALL),
    "a short k": StridedProduct((70, 24, 40), c=Layout(), slice_k=40, **_ALL),
    "promoted": StridedProduct((70, 72, 328), precision="high", out_dtype=F32, slice_k=328),
    "tf32": StridedProduct((70, 40, 256), dtype=F32, precision="tf32", c=Layout(), slice_k=64, **_ALL),
    "float32": StridedProduct((70, 40, 300), dtype=F32, c=Layout(), slice_k=64, **_ALL),
    "float32, bias alone": StridedProduct((33, 130, 300), dtype=F32, b=COLUMN, slice_k=160, **_ALL),
    "float32, unaligned": StridedProduct((20, 21, 300), dtype=F32, a=COLUMN, d=APART, c=APART, slice_k=96, beta=0.3),
    "float32 in float64": StridedProduct((20, 40, 100), dtype=F32, c=Layout(), slice_k=32, out_dtype=F64),
    "float32, a short k": StridedProduct((70, 24, 40), dtype=F32, c=Layout(), slice_k=40, **_ALL),
    "float32 in pieces": StridedProduct((64, 40, 150), dtype=F32, precision="tf32x3", c=Layout(), slice_k=96, **_ALL),
    "float64": StridedProduct((40, 33, 90), dtype=F64, c=Layout(), slice_k=90, **_ALL),
}  # fmt: skip


def ways(problem: Gemm) -> list[Kernel[Gemm]]:
    """Return a legal kernel of each way, the one with the smallest tile; of a single way two."""
    by_way: dict[Hashable, list[Kernel[Gemm]]] = {}
    for entry in entries(problem):
        for kernel in entry.legal(problem, H200):
            config = kernel.config
            way = kernel.entry, *(config.get(name) > 1 if name == "STAGES" else config.get(name) for name in _WAYS)
            by_way.setdefault(way, []).append(kernel)
    for kernels in by_way.values():
        kernels.sort(key=lambda kernel: kernel.config.get("BM") * kernel.config.get("BN"))
    return [kernel for kernels in by_way.values() for kernel in kernels[: 1 if len(by_way) > 1 else 2]]


@pytest.mark.parametrize("name", CASES)
def test_all_kernels_have_the_same_bits(name: str) -> None:
    product = CASES[name]
    kernels = ways(product.problem)
    assert len(kernels) > 1
    bits = {}
    for kernel in kernels:
        product.emulated(kernel, races=False)
        bits[kernel.entry, str(kernel.config)] = product.arrays["D"].tobytes()
    first = next(iter(bits.values()))
    assert [key for key, own in bits.items() if own != first] == []


@pytest.mark.parametrize("late", [False, True])
def test_slices_in_one_block_follow_each_other(*, late: bool) -> None:
    product = CASES["float32"]
    kernels = [kernel for kernel in ways(product.problem) if kernel.config["SPLIT_K"] == 1]
    assert kernels
    for kernel in kernels:
        reports = product.emulated(kernel, late_copies=late)
        assert [list(report.hazards) for report in reports] == [[]]
        answer, limit = product.expected()
        assert (np.abs(product.arrays["D"] - answer) <= limit).all()


def test_signs_of_zeros_are_the_same() -> None:
    product = StridedProduct((70, 24, 512), out_dtype=F32, slice_k=256)
    product.arrays["A"][...], product.arrays["B"][...] = -0.0, 1.0
    results = set()
    for kernel in ways(product.problem):
        product.emulated(kernel, races=False)
        results.add(product.arrays["D"].tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("dtype", "shape", "options"),
    [
        ("float16", (70, 24, 1536), {"out_dtype": "float32"}),
        ("bfloat16", (130, 72, 200), {"activation": "silu"}),
        ("float32", (70, 40, 800), {}),
        ("float32", (70, 40, 800), {"alpha": 0.3}),
        ("float32", (70, 33, 200), {"precision": "float32_tensor"}),
        ("float32", (40, 33, 200), {"out_dtype": "float64"}),
        ("float64", (40, 33, 200), {}),
    ],
)
def test_rows_have_the_same_bits_for_every_m(dtype: str, shape: tuple[int, int, int], options: dict[str, Any]) -> None:
    (m, n, k), rng = shape, np.random.default_rng(1)
    a, b = (rng.standard_normal(each, np.float32).astype(ALL[dtype].numpy) for each in ((m, k), (k, n)))
    multiply: Callable[..., np.ndarray] = partial(
        matmill.matmul, executor="emulator", batch_invariant=True, bias=b[0], **options
    )
    whole = multiply(a, b)
    for first, last in ((0, 1), (1, 3), (3, 20), (m - 33, m)):
        assert multiply(a[first:last], b).tobytes() == whole[first:last].tobytes(), (first, last)
    assert multiply(a[5], b).tobytes() == whole[5].tobytes()
    # Rows of a column-major A, among others of a buffer, and a B that starts anywhere.
    assert multiply(np.asfortranarray(a)[7:12], b).tobytes() == whole[7:12].tobytes()
    moved = np.empty(k * n + 1, b.dtype)[1:].reshape(k, n)
    moved[:] = b
    assert multiply(a[2:9], moved).tobytes() == whole[2:9].tobytes()
    # A matrix alone, and in a batch whose B is shared, or is not.
    assert multiply(np.stack([a[:8], a[8:16]]), b).tobytes() == whole[:16].tobytes()
    both = multiply(np.stack([a[:8], a[8:16]]), np.stack([a[:n].T[:k].copy() if n == k else b * 2, b]))
    assert both[1].tobytes() == whole[8:16].tobytes()


@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 200), st.sampled_from(["float16", "float32"]), st.data())
@settings(deadline=None, max_examples=10)
def test_any_rows_of_any_product(m: int, n: int, k: int, dtype: str, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, m - 1))
    last = data.draw(st.integers(first + 1, m))
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(each, np.float32).astype(dtype) for each in ((m, k), (k, n)))
    multiply: Callable[..., np.ndarray] = partial(
        matmill.matmul, executor="emulator", batch_invariant=True, out_dtype="float32"
    )
    assert multiply(a[first:last], b).tobytes() == multiply(a, b)[first:last].tobytes()


def test_an_audit_finds_it() -> None:
    report = audit(SAME_BITS, dtype="float32", name="matmill", require=CHANGES)
    assert report.ok, report
    assert {report[name].verdict for name in CHANGES} == {"yes"}


def test_bits_of_tensor_cores_do_not_change_either() -> None:
    """Their terms and orders are looked at elsewhere: ``test_summation_orders``."""
    subject = Subject(SAME_BITS, "matmill", F16)
    verdicts = {each.name: each.verdict for each in (*bits(subject, lambda: False), *errors(subject))}
    assert verdicts == dict.fromkeys((*CHANGES, "error", "grade"), "yes")
