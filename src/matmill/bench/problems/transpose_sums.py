"""The matrices of transpose-add problems, and their exact sums."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from matmill.bench.problems.options import fitting_in_memory
from matmill.bench.problems.random_numbers import integers, uniform
from matmill.problem import Geam
from matmill.reference import Check

Array = NDArray[Any]
_POISON = -1  # all bits set
_BLOCK = 1024  # rows and columns of x whose elements a core's cache holds


@dataclass(frozen=True)
class TransposeAddInputs:
    """x transposed and y of one sum, and the exact result: ``a`` is a view of x, whose rows are packed.

    Floats are uniform in [-1, 1), integers in the whole range of their type. No sum of integers has all bits set, the
    initial contents of outputs.
    """

    problem: Geam
    a: Array
    b: Array

    names: ClassVar[tuple[str, str, str]] = ("X", "Y", "D")
    scalars: ClassVar[tuple[float, float]] = (1.0, 1.0)
    shared: ClassVar[bool] = False

    @classmethod
    def random(cls, problem: Geam, seed: int) -> TransposeAddInputs:
        """Return matrices that depend only on seed, size and type.

        Raises :class:`~matmill.errors.ArgumentError` if they do not fit in memory.
        """
        rows, columns, dtype = problem.n, problem.m, problem.dtype
        draw = integers if dtype.numpy.kind == "i" else uniform
        with fitting_in_memory(m=rows, n=columns):
            x = draw((seed, rows, columns), 0, (rows, columns), dtype)
            y = draw((seed, rows, columns), rows * columns, (columns, rows), dtype)
        if dtype.numpy.kind == "i":
            y += exact_sum(x.T, y) == _POISON
        return cls(problem, x.T, y)

    @cached_property
    def expected(self) -> Array:
        """The sum, computed once for all rungs."""
        return exact_sum(self.a, self.b)

    def check(self, actual: Array) -> Check:
        """Compare every bit of ``actual`` with the sum: the error of an element that differs is infinite."""
        wanted = self.expected
        if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
            return Check(ok=False, error_ratio=inf)
        bits = f"i{wanted.itemsize}"
        same = np.array_equal(actual.view(bits), wanted.view(bits))
        return Check(ok=same, error_ratio=0.0 if same else inf)


def exact_sum(left: Array, right: Array) -> Array:
    """Add ``left`` and ``right``, rounded once from the exact sum or, for 16-bit floats, from the float32 sum.

    Integers wrap around. Several threads add blocks, because one operand is transposed in memory.

    >>> exact_sum(np.int8([[100, 1]]), np.int8([[100, 1]])).tolist()
    [[-56, 2]]
    """
    out = np.empty(right.shape, right.dtype)
    wide = np.float32 if right.dtype.kind not in "iu" and right.itemsize == 2 else right.dtype

    def add(row: int) -> None:
        for column in range(0, right.shape[1], _BLOCK):
            part = slice(row, row + _BLOCK), slice(column, column + _BLOCK)
            with np.errstate(over="ignore"):
                out[part] = left[part].astype(wide) + right[part].astype(wide)

    starts = range(0, right.shape[0], _BLOCK)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(add, starts))
    return out


class SumsBySize:
    """The inputs of all sums that the rungs of one run take, each created once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[Geam, TransposeAddInputs] = {}

    def of(self, problem: Geam) -> TransposeAddInputs:
        """Return the inputs of that sum."""
        if problem not in self._made:
            self._made[problem] = TransposeAddInputs.random(problem, self._seed)
        return self._made[problem]
