"""Products of float32 in pieces by the kernels themselves, on matrices that a test chooses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.dtypes import F32
from matmill.kernel import Kernel
from matmill.kernels.hgemm.tiles import split_tile
from matmill.kernels.pieces import METHODS as IN_MEMORY
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import Shape, configured
from matmill.precision import METHODS
from matmill.problem import Gemm
from support.hard_matrices import Pair, matrices
from support.mma_product import on_tiles
from support.split_products import Array, share_of_bound, summed_by
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_product import StridedProduct

#: Tiles of few outputs and of many.
_FEW, _SQUARE, _MANY = Shape(64, 8, 1), Shape(64, 64, 1), Shape(128, 128, 2)
_REGISTERS = split_tile(32, 32, 32, 2, 2, stages=3)
#: Runs a kernel on a product, whose D then has the result.
Run = Callable[[StridedProduct, Kernel[Gemm]], object]


def product_of(
    method: str, a: Array, b: Array, *, a_layout: Layout = ROW, b_layout: Layout = COLUMN
) -> tuple[StridedProduct, Kernel[Gemm]]:
    """Return the product of A (m, k) and B (k, n), and the kernel of a method of :data:`~matmill.precision.METHODS`."""
    shape = len(a), b.shape[1], len(b)
    product = StridedProduct(shape, a_layout, b_layout, dtype=F32, precision=method.removesuffix("_registers"))
    product.arrays["A"][0], product.arrays["B"][0] = a, b
    if METHODS[method].shared:
        return product, on_tiles(product, _REGISTERS)
    tile = _MANY if shape[1] > _FEW.bn else _FEW if b_layout == COLUMN else _SQUARE
    config = configured(tile, product.problem, H200, pieces=1 + IN_MEMORY.index(method))
    return product, WGMMA.with_config(config)


def multiplied(method: str, pair: Pair, run: Run) -> Array:
    """Return the product of two matrices; nothing is written beside it."""
    product, kernel = product_of(method, *pair)
    run(product, kernel)
    assert product.untouched()
    result: Array = product.arrays["D"][0]
    return result


def check_bound(method: str, kind: str, sizes: tuple[int, int, int], run: Run) -> None:
    """Check that no element of m x k times k x n hard matrices is further off than the method that summed it allows."""
    a, b = matrices(kind, *sizes)
    result = multiplied(method, (a, b), run)
    assert np.isfinite(result).all()
    assert share_of_bound(summed_by(method, a, b), a, b, result) <= 1
