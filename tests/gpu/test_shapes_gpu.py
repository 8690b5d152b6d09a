"""The kernels for a short k, and for few rows or columns, on a GPU: right, and bit by bit what the emulator gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from matmill.arch import Arch
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernel import Kernel
from matmill.kernels.short_k import SHORT_K
from matmill.kernels.short_k import space as short_k_space
from matmill.kernels.thin import THIN
from matmill.kernels.thin import space as thin_space
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.strided_product import COLUMN, H200, ROW, Layout, StridedProduct

SHORT = [
    StridedProduct((8, 8, 8), batch=700),
    StridedProduct((17, 17, 17), batch=300),
    StridedProduct((33, 10, 14), b=COLUMN, batch=211),
    StridedProduct((24, 24, 9), batch=20, a=Layout(shared=True), c=COLUMN),
    StridedProduct((7, 6, 5), batch=9, a=Layout(pad=1, step=2), b=Layout(transposed=True, pad=2)),
    StridedProduct((2600, 4, 40)),
    StridedProduct((2601, 17, 30)),
    StridedProduct((200, 1, 40), b=COLUMN),
    StridedProduct((169, 167, 17), a=COLUMN, b=COLUMN),
    StridedProduct((70, 66, 5), a=Layout(step=2), b=Layout(pad=3, start=1), d=Layout(pad=2)),
    StridedProduct((129, 8, 24), batch=3, b=Layout(shared=True), d=Layout(pad=8)),
]
FEW = [
    StridedProduct((3, 700, 264), b=COLUMN),
    StridedProduct((3, 701, 513)),
    StridedProduct((1, 900, 1100), b=COLUMN, c=ROW),
    StridedProduct((700, 5, 257), a=COLUMN),
    StridedProduct((301, 16, 512), batch=2),
]
Space = Callable[[Gemm, Arch], tuple[Config, ...]]


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("made", SHORT, ids=lambda made: "x".join(map(str, made.shape)))
def test_a_short_k(made: StridedProduct, dtype: str) -> None:
    _check(SHORT_K, short_k_space, made, dtype, 5)


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("made", FEW, ids=lambda made: "x".join(map(str, made.shape)))
def test_few_rows_or_columns(made: StridedProduct, dtype: str) -> None:
    _check(THIN, thin_space, made, dtype, 3)


def _check(kernel: Kernel[Gemm], space: Space, made: StridedProduct, dtype: str, count: int) -> None:
    """Check some configurations of a kernel, spread over its space."""
    product, gpu = replace(made, dtype=ALL[dtype]), GPU.get(0)
    if product.a.start == product.b.start == product.d.start == 0:
        product.problem = replace(product.problem, base_align=16)
    asked = replace(product.problem, batch=100 * product.batch) if product.batch > 1 else product.problem
    every = [kernel.with_config(config) for config in space(asked, H200)]
    legal = [one for one in every if one.why_not(product.problem, H200) is None]
    assert legal
    for one in legal[:: max(1, len(legal) // count)]:
        product.emulated(one, races=False)
        emulated = product.arrays["D"].tobytes()
        product.on_gpu(one, gpu)
        assert product.excess() <= 1, one.config
        assert product.arrays["D"].tobytes() == emulated, one.config
