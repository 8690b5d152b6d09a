"""E, F and D of an inner product made by torch on the GPU: filled at random, and checked against float64.

NumPy takes minutes to fill and to check a product of 1e9 elements, a GPU milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab import tensors
from lab.tensors import Tensors
from matmill.bench.problems.error_bounds import random_limit
from matmill.kernel import GemmOperands
from matmill.launch import Pointer
from matmill.problem import Gemm
from matmill.reference import excess

#: Bytes of float64 copies of E and F that are made at a time for the answer.
_BLOCK = 2**30


@dataclass(frozen=True)
class Errors:
    """How far a result is from the float64 product.

    ``excess`` is the largest error of an element over its bound, at most 1 where ``ok``; ``relative`` the Frobenius
    norm of the error over that of the product, without elements beyond the type's range. Both are infinite where an
    element is missing.
    """

    ok: bool
    excess: float
    relative: float


class InnerMatrices(Tensors):
    """The matrices of ``problem``, uniform in [-1, 1): the same for the same seed, element type and device.

    ``e``, ``f`` and ``out`` (D) are torch's tensors; ``f`` is a view of ``e`` where the product is a Gram matrix.
    """

    def __init__(self, problem: Gemm, seed: int) -> None:
        super().__init__(seed)
        self.problem = problem
        self._dtype = getattr(self.torch, problem.dtype.name)
        m, n, k = problem.m, problem.n, problem.k
        self.e = self._uniform(m * k).view(m, k)
        if problem.gram:
            self.f = self.e.t()
        elif problem.b_row_col == (n, 1):
            self.f = self._uniform(k * n).view(k, n)
        else:
            self.f = self._uniform(n * k).view(n, k).t()
        self.out = self.torch.empty((m, n), dtype=self._dtype, device=tensors.DEVICE)
        self.poison()

    def _uniform(self, count: int) -> Any:
        result = self.torch.empty(count, dtype=self._dtype, device=tensors.DEVICE)
        return result.uniform_(-1, 1, generator=self.generator)

    def operands(self, nbytes: int) -> GemmOperands:
        """Return the addresses of the matrices, with C = D, and of what these matrices keep from now on besides.

        That is a workspace of so many bytes, all of them ones, NaN in every type; and a word of zeros, for kernels that
        count their blocks.
        """
        torch, device = self.torch, self.out.device
        self._workspace = torch.empty(max(1, nbytes), dtype=torch.uint8, device=device).fill_(255)
        self._counter = torch.zeros(4, dtype=torch.uint8, device=device)
        self.synchronize()
        d, e = Pointer("D", self.out.data_ptr()), Pointer("E", self.e.data_ptr())
        f = e if self.problem.gram else Pointer("F", self.f.data_ptr())
        kept = Pointer("workspace", self._workspace.data_ptr()), Pointer("counter", self._counter.data_ptr())
        return GemmOperands(a=e, b=f, c=d, d=d, workspace=kept[0], counter=kept[1])

    @cached_property
    def answer(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The product in float64 and how far a right result may be from it, see :func:`random_limit`."""
        torch, k = self.torch, self.problem.k
        step = max(1, _BLOCK // (8 * (self.problem.m + self.problem.n)))
        total = torch.zeros(self.out.shape, dtype=torch.float64, device=self.out.device)
        size = torch.zeros_like(total)
        for start in range(0, k, step):
            x = self.e[:, start : start + step].double()
            y = x.t() if self.problem.gram else self.f[start : start + step].double()
            total += x @ y
            sizes = x.abs()
            size += sizes @ (sizes.t() if self.problem.gram else y.abs())
        product = total.cpu().numpy()
        return product, random_limit(product, size.cpu().numpy(), k, self.problem.dtype)

    def result(self) -> NDArray[Any]:
        """Return D, copied to the host; as bytes first, since NumPy does not take torch's bfloat16."""
        host: NDArray[Any] = self.out.cpu().contiguous().view(self.torch.uint8).numpy()
        return host.view(self.problem.dtype.numpy)

    def errors(self, actual: NDArray[Any]) -> Errors:
        """Say how far ``actual``, of D's shape and type, is from the float64 product."""
        expected, limit = self.answer
        kind = self.problem.dtype.numpy
        worst = excess(actual, expected, limit)
        with np.errstate(over="ignore"):
            held = np.isfinite(expected.astype(kind))  # a Gram matrix of float16 may not be
        difference = np.where(held, actual.astype(np.float64) - expected, 0.0)
        if not np.isfinite(difference).all():
            return Errors(ok=False, excess=worst, relative=inf)
        size = float(np.linalg.norm(np.where(held, expected, 0.0)))
        return Errors(worst <= 1.0, worst, float(np.linalg.norm(difference)) / size if size else 0.0)
