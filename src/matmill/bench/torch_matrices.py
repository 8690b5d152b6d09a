"""E, F and D of an inner product made by torch where they are used: filled at random, and checked against float64.

A product of 1e9 elements takes NumPy minutes to fill and to check, and a GPU milliseconds. torch is imported when a
product is made.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    norm of the error over that of the product, elements beyond the type's range apart. Both are infinite where an
    element is missing.
    """

    ok: bool
    excess: float
    relative: float


class TorchMatrices:
    """The matrices of ``problem``, uniform in [-1, 1): the same for the same seed, element type and device.

    ``e``, ``f`` and ``d`` are torch's tensors; ``f`` is a view of ``e`` where the product is a Gram matrix.
    """

    def __init__(self, problem: Gemm, seed: int, device: str = "cuda") -> None:
        self._torch: Any = importlib.import_module("torch")
        torch, self.problem = self._torch, problem
        self._dtype = getattr(torch, problem.dtype.name)
        generator = torch.Generator(device=device)
        generator.manual_seed(seed)

        def uniform(count: int) -> Any:
            return torch.empty(count, dtype=self._dtype, device=device).uniform_(-1, 1, generator=generator)

        m, n, k = problem.m, problem.n, problem.k
        self.e = uniform(m * k).view(m, k)
        if problem.gram:
            self.f = self.e.t()
        elif problem.b_row_col == (n, 1):
            self.f = uniform(k * n).view(k, n)
        else:
            self.f = uniform(n * k).view(n, k).t()
        self.d = torch.empty((m, n), dtype=self._dtype, device=device)
        self.poison()

    def poison(self) -> None:
        """Sets D to NaN."""
        self.d.fill_(float("nan"))
        self.synchronize()

    def synchronize(self) -> None:
        """Waits until torch's work on the device is done."""
        if self.d.is_cuda:
            self._torch.cuda.synchronize()

    def room(self, nbytes: int) -> Any:
        """A tensor of bytes on the same device, all of them ones: NaN in every type."""
        made = self._torch.empty(max(1, nbytes), dtype=self._torch.uint8, device=self.d.device).fill_(255)
        self.synchronize()
        return made

    @cached_property
    def counter(self) -> Any:
        """A word of zeros on the same device, for kernels that count their blocks."""
        return self._torch.zeros(4, dtype=self._torch.uint8, device=self.d.device)

    def operands(self, workspace: Any) -> GemmOperands:
        """Where the matrices lie, with C = D, a workspace of :meth:`room` and the counter."""
        d = Pointer("D", self.d.data_ptr())
        e = Pointer("E", self.e.data_ptr())
        f = e if self.problem.gram else Pointer("F", self.f.data_ptr())
        room, counter = Pointer("workspace", workspace.data_ptr()), Pointer("counter", self.counter.data_ptr())
        return GemmOperands(a=e, b=f, c=d, d=d, workspace=room, counter=counter)

    @cached_property
    def answer(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The product in float64 and how far a right result may be from it, see :func:`random_limit`."""
        torch, k = self._torch, self.problem.k
        step = max(1, _BLOCK // (8 * (self.problem.m + self.problem.n)))
        total = torch.zeros(self.d.shape, dtype=torch.float64, device=self.d.device)
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
        """D, copied to the host; as bytes first, since NumPy does not take torch's bfloat16."""
        host: NDArray[Any] = self.d.cpu().contiguous().view(self._torch.uint8).numpy()
        return host.view(self.problem.dtype.numpy)

    def errors(self, actual: NDArray[Any]) -> Errors:
        """How far ``actual``, of D's shape and type, is from the float64 product."""
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
