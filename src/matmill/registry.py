"""The production kernels that ``choose`` picks from.

A kernel is registered by one line here; the chooser, ``matmill why``, tests, benchmarks and documentation read these
tables.
"""

from __future__ import annotations

from matmill.kernel import Production
from matmill.kernels import complex_copy, complex_gemm, gemm, hgemm, igemm, inner, short_k, thin, wgmma
from matmill.kernels.gemm import slices
from matmill.kernels.transpose import add, slim, small
from matmill.problem import ComplexCopy, ComplexGemm, Geam, Gemm

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

#: Kernels for transpose-add, with any strides.
TRANSPOSE_ADD_KERNELS: tuple[Production[Geam], ...] = (add.PRODUCTION, small.PRODUCTION, slim.PRODUCTION)

#: Kernels around the real product that computes a complex one.
COMPLEX_COPIES: tuple[Production[ComplexCopy], ...] = (complex_copy.PRODUCTION,)

#: Kernels for complex products of small matrices, which need no other.
COMPLEX_PRODUCTS: tuple[Production[ComplexGemm], ...] = (complex_gemm.PRODUCTION,)
