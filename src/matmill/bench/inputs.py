"""Random matrices for a run, and the check of what came out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from matmill.errors import ArgumentError
from matmill.problem import Gemm
from matmill.reference import Check, answer, bound

F32Array = NDArray[np.float32]


@dataclass(frozen=True)
class Inputs:
    """A (m, k) and B (k, n) of one problem, uniform in [-1, 1)."""

    problem: Gemm
    a: F32Array
    b: F32Array

    @classmethod
    def random(cls, problem: Gemm, seed: int) -> Inputs:
        """The same matrices for the same seed and size.

        Raises :class:`~matmill.errors.ArgumentError` where they do not fit in memory.
        """
        generator = np.random.default_rng([seed, problem.m, problem.n, problem.k])

        def matrix(rows: int, columns: int) -> F32Array:
            values = generator.random((rows, columns), dtype=np.float32)
            return (2 * values - 1).astype(np.float32)

        try:
            return cls(problem, matrix(problem.m, problem.k), matrix(problem.k, problem.n))
        except (MemoryError, ValueError) as error:  # ValueError: more bytes than an address can count
            raise ArgumentError(
                argument="--m, --n, --k",
                got=f"{problem.m}, {problem.n}, {problem.k}, and {error}",
                wanted="matrices that fit in this machine's memory",
                fix="Take smaller sizes.",
            ) from error

    @cached_property
    def _answer(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The float64 product and how far each element may lie from it: made once, since every rung needs both."""
        return answer(self.a, self.b), bound(self.a, self.b)

    def check(self, actual: NDArray[np.floating]) -> Check:
        """``actual`` against the float64 product, element by element; what is missing or not finite is wrong."""
        expected, limit = self._answer
        if actual.shape != expected.shape or actual.dtype != np.float32:
            return Check(ok=False, error_ratio=float("inf"))
        ratio = np.abs(actual - expected) / limit
        worst = float(np.max(np.where(np.isnan(ratio), np.inf, ratio), initial=0.0))
        return Check(ok=worst <= 1.0, error_ratio=worst)


class InputsBySize:
    """The inputs of every size that the rungs of one run take, each made once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[int, int, int], Inputs] = {}

    def of(self, problem: Gemm) -> Inputs:
        """The inputs of that size."""
        size = (problem.m, problem.n, problem.k)
        if size not in self._made:
            self._made[size] = Inputs.random(problem, self._seed)
        return self._made[size]
