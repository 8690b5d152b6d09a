"""The production kernels that ``choose`` picks from.

A kernel is registered by one line here; the chooser, ``matmill why``, tests, benchmarks and documentation read these
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matmill.kernel import Production
from matmill.kernels import complex_copy, complex_gemm, gemm, grouped, hgemm, igemm, inner, short_k, thin, wgmma
from matmill.kernels.complex_gemm import tiled
from matmill.kernels.gemm import slices
from matmill.kernels.transpose import add, slim, small
from matmill.problem import ComplexCopy, Geam, Gemm, Grouped, Listed

#: Kernels for products.
PRODUCTION: tuple[Production[Gemm], ...] = (
    gemm.PRODUCTION,
    hgemm.PRODUCTION,
    igemm.PRODUCTION,
    wgmma.PRODUCTION,
    short_k.PRODUCTION,
    inner.PRODUCTION,
    thin.PRODUCTION,
)

#: Kernels for batch-invariant products, whose terms of k all of them add in one order.
IN_SLICES: tuple[Production[Gemm], ...] = (slices.PRODUCTION, hgemm.PRODUCTION, wgmma.PRODUCTION, short_k.PRODUCTION)

#: Kernels for products of complex elements, beside the real product that computes one from copies.
COMPLEX: tuple[Production[Gemm], ...] = (complex_gemm.PRODUCTION, tiled.PRODUCTION)

#: Kernels for transpose-add, with any strides.
TRANSPOSE_ADD_KERNELS: tuple[Production[Geam], ...] = (add.PRODUCTION, small.PRODUCTION, slim.PRODUCTION)

#: Kernels by what they solve, but of products: copies around the real product that computes a complex one, groups whose
#: ends are on the device, and lists of matrices.
KERNELS_OF: dict[type, Sequence[Production[Any]]] = {
    Geam: TRANSPOSE_ADD_KERNELS,
    ComplexCopy: (complex_copy.PRODUCTION,),
    Grouped: grouped.PRODUCTION,
    Listed: grouped.LISTS,
}
