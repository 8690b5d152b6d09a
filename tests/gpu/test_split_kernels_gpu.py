"""float32 products in pieces on a GPU: no error of a million outputs is above the bound."""

from __future__ import annotations

import pytest

from matmill.kernel import Kernel
from matmill.precision import METHODS
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.hard_matrices import KINDS
from support.split_kernels import check_bound
from support.strided_product import StridedProduct


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_million_outputs(kind: str, method: str, device: GPU) -> None:
    def run(product: StridedProduct, kernel: Kernel[Gemm]) -> None:
        reason = kernel.why_not(product.problem, device.arch)
        if reason is not None:
            pytest.skip(reason)
        product.on_gpu(kernel, device)

    check_bound(method, kind, (1000, 200, 1000), run)
