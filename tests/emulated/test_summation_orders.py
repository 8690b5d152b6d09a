"""The order in which each kernel family adds terms is the one that its configuration says, as masked sums show it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import matmill
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernel import Kernel
from matmill.kernels.inner import INNER, space
from matmill.problem import Gemm
from matmill.registry import IN_SLICES, PRODUCTION
from matmill.testing import audit
from matmill.testing.products.order import NoOrderError, order_of
from matmill.testing.products.subject import Subject
from support.strided import COLUMN, H200, Layout
from support.strided_product import StridedProduct
from support.summation import as_tree, product_of, terms_of
from support.wgmma_cases import SMALL, SQUARE
from support.wgmma_cases import Case as Wgmma

BF16, F16, F32, F64 = (ALL[name] for name in ("bfloat16", "float16", "float32", "float64"))
#: Results of 16-bit elements in float32, which counts more units.
WIDE = {BF16: F32, F16: F32}
#: The constants of a configuration that make another order, by kernel.
KINDS: dict[str, Callable[[Config], Hashable]] = {
    "gemm_slices": lambda config: config["SPLIT_K"],
    "gemm": lambda config: (config["SLICES"], min(config["SPLIT_K"], 2)),
    "hgemm": lambda config: (config.get("SUM_K", 0), min(config["SPLIT_K"], 2)),
    "short_k": lambda config: config["STAGES"],
    "thin": lambda config: (config["WARPS_K"], config["LANES_K"], config["RUN"], min(config["SPLIT_K"], 2)),
    "inner": lambda config: (
        config["MMA"], config["BK"] > 0, config["SPLIT_K"] > 1, 16 % config["S"] == 0, config["U"] > 1
    ),
}  # fmt: skip
#: Kernels by element type, sizes, and the layout of A.
PRODUCTS = (
    *(("gemm", StridedProduct((64, 40, 90), dtype=dtype)) for dtype in (F32, F64)),
    *(("hgemm", StridedProduct((64, 40, 150), dtype=dtype, out_dtype=WIDE.get(dtype))) for dtype in (F16, BF16, F64)),
    ("hgemm", StridedProduct((64, 40, 150), dtype=F32, precision="tf32x3")),
    *(("short_k", StridedProduct((64, 16, 40), dtype=dtype, out_dtype=WIDE.get(dtype))) for dtype in ALL.values()),
    *(
        ("thin", StridedProduct((70, 4, 300), dtype=dtype, out_dtype=WIDE.get(dtype), a=layout))
        for dtype, layout in ((F32, Layout()), (BF16, Layout()), (F32, COLUMN), (F64, COLUMN))
    ),
    *(
        ("inner", StridedProduct((16, 16, 260), dtype=dtype, out_dtype=WIDE.get(dtype), b=COLUMN))
        for dtype in ALL.values()
    ),
    *(("inner", StridedProduct((5, 2, 131), dtype=dtype, out_dtype=WIDE.get(dtype))) for dtype in (F32, F16)),
    ("gemm_slices", StridedProduct((64, 40, 90), dtype=F32, slice_k=32)),
)
#: Slices of k by blocks and by clusters, promoted sums, tf32, operands through registers and exchanged ones.
WGMMA = (
    Wgmma("slices", SMALL, (70, 72, 200), slices=3, given={"out_dtype": F32, "dtype": F16}),
    Wgmma("one slice", SMALL, (70, 72, 136), given={"out_dtype": F32, "b": COLUMN}),
    Wgmma("slices in a cluster", replace(SMALL, cluster_k=2), (70, 72, 200), given={"out_dtype": F32}),
    Wgmma("promoted sums", SQUARE, (70, 72, 328), given={"precision": "high", "out_dtype": F32}),
    Wgmma("tf32", SMALL, (70, 73, 77), swap=True, slices=2, given={"dtype": F32, "precision": "tf32", "a": COLUMN}),
    Wgmma("registers", SQUARE, (135, 72, 205), slices=3, in_registers=True,
          given={"a": Layout(pad=1, start=1), "dtype": F16, "out_dtype": F32}),
)  # fmt: skip


def kinds(family: str, problem: Gemm) -> list[Kernel[Gemm]]:
    """Return a configuration of each kind."""
    if family == "inner":
        kernels: Iterator[Kernel[Gemm]] = (INNER.with_config(config) for config in space(problem, H200))
        legal = [kernel for kernel in kernels if kernel.why_not(problem, H200) is None]
    else:
        every = (*PRODUCTION, *IN_SLICES)
        legal = list(next(one for one in every if one.kernel.entry == family).legal(problem, H200))
    return list({KINDS[family](kernel.config): kernel for kernel in reversed(legal)}.values())


def same(kernel: Kernel[Gemm], product: StridedProduct) -> bool:
    subject = Subject(product_of(kernel, product), kernel.entry, product.dtype)
    return order_of(subject, product.shape) == as_tree(terms_of(kernel, product.problem))


@pytest.mark.parametrize(
    ("family", "product"), PRODUCTS, ids=lambda x: x if isinstance(x, str) else f"{x.dtype.name} {x.shape}"
)
def test_the_order_is_that_of_the_configuration(
    family: str, product: StridedProduct, request: pytest.FixtureRequest
) -> None:
    every = kinds(family, product.problem)
    assert every
    some = every if request.config.getoption("--exhaustive") else every[:2]
    assert [kernel.config for kernel in some if not same(kernel, replace(product))] == []


@pytest.mark.parametrize("case", WGMMA, ids=str)
def test_the_order_of_wgmma_is_that_of_the_configuration(case: Wgmma) -> None:
    product = case.product()
    assert same(case.kernel(product.problem), product)


def test_families_are_all() -> None:
    known = {one.kernel.entry for one in (*PRODUCTION, *IN_SLICES)} - {"igemm"}  # sums of integers have no order
    assert {family for family, _ in PRODUCTS} | {"wgmma_gemm"} == known


def test_another_order_than_the_configuration_s_is_noticed() -> None:
    product = StridedProduct((64, 40, 90), dtype=F32)
    one, other = kinds("gemm", product.problem)[:2]
    tree = order_of(Subject(product_of(one, product), "gemm"), product.shape)
    assert tree != as_tree(terms_of(other, product.problem))


def test_remainder_rows_of_inner_have_an_order_of_their_own() -> None:
    """Beside tiles of tensor cores the FMA units compute single rows and columns."""
    product = StridedProduct((33, 17, 260), dtype=F32)
    kernel = next(kernel for kernel in kinds("inner", product.problem) if kernel.config["MMA"])
    with pytest.raises(NoOrderError, match="different orders"):
        order_of(Subject(product_of(kernel, product), "inner"), product.shape)


def test_matmul_in_the_emulator_is_right() -> None:
    report = audit(partial(matmill.matmul, executor="emulator", out_dtype="float32"), dtype="bfloat16", name="matmill")
    assert report.ok, report
    assert {finding.verdict for finding in report.findings if finding.name in report.needed} == {"yes"}


def test_a_kernel_of_one_s_own() -> None:
    """It has one thread for each element, which forgets the last term of an odd k."""
    source = """
extern "C" __global__ void multiply(const float* a, const float* b, float* d, int m, int n, int k) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= m * n) return;
  const float *row = a + i / n * k, *column = b + i % n;
  float sum = 0;
  for (int p = 0; p + 1 < k; p += 2) sum += row[p] * column[p * n] + row[p + 1] * column[(p + 1) * n];
  d[i] = sum;
}
"""

    def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        (m, k), n = a.shape, b.shape[1]
        d = np.full((m, n), np.nan, np.float32)
        own = (np.ascontiguousarray(a), np.ascontiguousarray(b), d)
        matmill.emulate(source, "multiply", -(-m * n // 128), 128, *own, m, n, k, races=False)
        return d

    report = audit(multiply, seconds=20)
    assert report.wrong[0].detail.endswith("lost: 64 (of 0…64)")
