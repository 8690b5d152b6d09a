"""Random matrices for a run, and the check of its results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from matmill.bench.problems.error_bounds import Exact, any_sum
from matmill.bench.problems.options import fitting_in_memory
from matmill.bench.problems.random_numbers import uniform
from matmill.dtypes import DType
from matmill.problem import Gemm
from matmill.reference import Check, excess

ALLOCATED = 16  # bytes to which every matrix's first element is aligned, at least
Array = NDArray[Any]
F32Array = NDArray[np.float32]


class Matrices(Protocol):
    """The interface of a problem's matrices for the runner, whatever is computed from them.

    ``names`` are the names of the two inputs and the output, ``scalars`` alpha and beta. ``shared`` says that both
    inputs are the same memory.
    """

    @property
    def problem(self) -> Any:
        """The problem; its m and n are the output's."""

    @property
    def a(self) -> Array:
        """The first input."""

    @property
    def b(self) -> Array:
        """The second input."""

    @property
    def names(self) -> tuple[str, str, str]:
        """The names of a, b and the output."""

    @property
    def scalars(self) -> tuple[float, float]:
        """Alpha and beta."""

    @property
    def shared(self) -> bool:
        """True if a and b are one matrix."""

    def check(self, actual: Array) -> Check:
        """Compare an output with the reference."""


@dataclass(frozen=True)
class Inputs:
    """A (m, k) and B (k, n) of one problem, uniform in [-1, 1), and the reference result."""

    problem: Gemm
    a: Array
    b: Array
    exact: Exact = any_sum

    names: ClassVar[tuple[str, str, str]] = ("A", "B", "C")
    scalars: ClassVar[tuple[float, float]] = (1.0, 0.0)

    @property
    def shared(self) -> bool:
        """True if A and B are the same memory."""
        return self.problem.gram

    @classmethod
    def random(cls, problem: Gemm, seed: int, exact: Exact = any_sum) -> Self:
        """Return matrices that depend only on seed and size, in the problem's element type and with B in its layout.

        Raises :class:`~matmill.errors.ArgumentError` if they do not fit in memory.
        """
        key, dtype = (seed, problem.m, problem.n, problem.k), problem.dtype
        behind = problem.m * problem.k
        by_column = problem.b_row_col != (problem.n, 1)
        with fitting_in_memory(m=problem.m, n=problem.n, k=problem.k):
            a = uniform(key, 0, (problem.m, problem.k), dtype)
            if problem.gram:
                b = a.T
            elif by_column:
                b = uniform(key, behind, (problem.n, problem.k), dtype).T
            else:
                b = uniform(key, behind, (problem.k, problem.n), dtype)
        return cls(problem, a, b, exact)

    @cached_property
    def _answer(self) -> tuple[Array, Array]:
        """The product in higher precision and the largest error of each element, computed once for all rungs."""
        return self.exact(self.a, self.b)

    def check(self, actual: Array) -> Check:
        """Compare ``actual`` with the reference, element by element; missing and non-finite elements are wrong."""
        expected, limit = self._answer
        if actual.shape != expected.shape or actual.dtype != self.problem.dtype.numpy:
            return Check(ok=False, error_ratio=float("inf"))
        worst = excess(actual, expected, limit)
        return Check(ok=worst <= 1.0, error_ratio=worst)


class InputsBySize:
    """The inputs of all problems that the rungs of one run take, each created once."""

    def __init__(self, seed: int, exact: Exact = any_sum, kind: type[Inputs] = Inputs) -> None:
        self._seed = seed
        self._exact = exact
        self._kind = kind
        self._made: dict[Gemm, Inputs] = {}

    def of(self, problem: Gemm) -> Inputs:
        """Return the inputs of that problem.

        For a Gram matrix they are the inputs of the product with its sizes, if those exist.
        """
        if problem not in self._made:
            twin = next(
                (other for other in self._made.values() if problem.gram and _same_a(other.problem, problem)), None
            )
            self._made[problem] = (
                self._kind(problem, twin.a, twin.a.T, self._exact)
                if twin is not None
                else self._kind.random(problem, self._seed, self._exact)
            )
        return self._made[problem]


def _same_a(one: Gemm, other: Gemm) -> bool:
    return (one.m, one.n, one.k, one.dtype) == (other.m, other.n, other.k, other.dtype)


def alignment(lines: int, length: int, dtype: DType) -> int:
    """Return the bytes, at most 16, that divide the address of each of ``lines`` packed runs of ``length`` elements.

    >>> from matmill.dtypes import F32
    >>> alignment(2, 6, F32), alignment(1, 6, F32)
    (8, 16)
    """
    return ALLOCATED if lines == 1 else gcd(ALLOCATED, length * dtype.itemsize)
