"""The order in which the kernels that are chosen add terms, on every executor: the one that their constants say."""

from __future__ import annotations

import pytest

from matmill.choose import choose
from matmill.dtypes import ALL
from matmill.runtime.gpu import GPU
from matmill.settings import Executor as Name
from matmill.testing.products.order import order_of
from matmill.testing.products.subject import Subject
from support.strided import H200
from support.strided_product import StridedProduct
from support.summation import as_tree, product_of, terms_of


@pytest.mark.parametrize("sizes", [(64, 40, 90), (70, 4, 300), (16, 13, 700), (200, 136, 200)], ids=str)
@pytest.mark.parametrize("dtype", ALL)
def test_the_order_is_that_of_the_constants(on: Name, dtype: str, sizes: tuple[int, int, int]) -> None:
    gpu = GPU.get(0) if on == "gpu" else None
    wide = ALL["float32"] if ALL[dtype].itemsize == 2 else None
    product = StridedProduct(sizes, dtype=ALL[dtype], out_dtype=wide)
    kernel = choose(product.problem, H200 if gpu is None else gpu.arch).kernel
    subject = Subject(product_of(kernel, product, gpu), kernel.entry, ALL[dtype])
    some = range(0, sizes[2], 1 + sizes[2] // 200)
    assert order_of(subject, sizes, some) == as_tree(terms_of(kernel, product.problem), some), kernel.config
