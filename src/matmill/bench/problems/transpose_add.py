"""The sums of the transpose_add ladder, x transposed plus y, and their matrices.

x has m rows and n columns, y and the result n rows and m columns, all packed row-major: the sizes that users name are
those of x. A :class:`~matmill.problem.Geam` counts rows and columns of the result, so that its m is x's n.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from matmill.bench.problems.asked import Asked, fitting_in_memory, named_case
from matmill.bench.problems.inner import alignment
from matmill.bench.problems.random_numbers import integers, uniform
from matmill.dtypes import BF16, ELEMENTWISE, DType
from matmill.errors import ArgumentError
from matmill.problem import Geam, View
from matmill.reference import Check

Array = NDArray[Any]

#: (m, n) of x, by name: the article's rows of 24300 bfloat16 start on 8 bytes, not on 16.
CASES: dict[str, tuple[int, int]] = {"article": (24300, 11520)}
ARTICLE = CASES["article"]
#: What is emulated where a user names nothing: rows of the result start on 8 bytes in bfloat16, as the article's do,
#: and every rung takes it.
EMULATED = (604, 512)

_POISON = -1  # all bits set
_BLOCK = 1024  # rows and columns of x whose elements a core's cache holds


def case(name: str) -> tuple[int, int]:
    """(m, n) of x in a named case; upper and lower case are alike.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> case("Article")
    (24300, 11520)
    """
    return named_case(name, CASES)


def asked_problem(asked: Asked, default: tuple[int, int]) -> Geam:
    """The sum that a user asks for: ``m`` and ``n`` are the rows and columns of x.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name, and
    :class:`~matmill.errors.ArgumentError` where ``k`` is given.
    """
    dtype = asked.element_type(ELEMENTWISE, BF16)
    if asked.k is not None:
        raise ArgumentError(
            argument="--k",
            got=f"{asked.k} for ladder transpose_add",
            wanted="--m and --n alone, the rows and columns of x",
            fix="Omit it.",
        )
    m, n = default if asked.case is None else case(asked.case)
    return transpose_add_problem(asked.m or m, asked.n or n, dtype)


def transpose_add_problem(m: int, n: int, dtype: DType = BF16) -> Geam:
    """The sum for a packed x of m rows and n columns.

    >>> found = transpose_add_problem(24300, 11520)
    >>> found.m, found.n, found.x.align, found.d.align
    (11520, 24300, 16, 8)
    """
    across = View((m, 1), align=alignment(n, m, dtype))
    return Geam(n, m, dtype, View((1, n), align=alignment(m, n, dtype)), across, across)


def sizes(problem: Geam) -> dict[str, int]:
    """Rows and columns of x."""
    return {"m": problem.n, "n": problem.m}


def resized(problem: Geam, m: int, n: int) -> Geam:
    """The sum for an x of other sizes."""
    return transpose_add_problem(m, n, problem.dtype)


def words(problem: Geam) -> str:
    """Shapes and element type, for headings."""
    return f"x {problem.n}x{problem.m}, y {problem.m}x{problem.n} {problem.dtype.name}"


def described(problem: Geam) -> dict[str, Any]:
    """Sizes of x and element type, as a record holds them; :func:`restored` reads them back."""
    return {**sizes(problem), "dtype": problem.dtype.name}


def restored(record: Mapping[str, Any]) -> Geam:
    """The sum that a record describes.

    >>> asked = transpose_add_problem(30, 50)
    >>> restored(described(asked)) == asked
    True
    """
    return transpose_add_problem(record["m"], record["n"], ELEMENTWISE[record["dtype"]])


@dataclass(frozen=True)
class TransposeAddInputs:
    """x transposed and y of one sum, and the only right answer: ``a`` is a view of x, whose rows are packed.

    Floats are uniform in [-1, 1), integers anything that their type holds. No sum of integers has all bits set, which
    is what outputs are filled with beforehand.
    """

    problem: Geam
    a: Array
    b: Array

    names: ClassVar[tuple[str, str, str]] = ("X", "Y", "D")
    scalars: ClassVar[tuple[float, float]] = (1.0, 1.0)
    shared: ClassVar[bool] = False

    @classmethod
    def random(cls, problem: Geam, seed: int) -> TransposeAddInputs:
        """The same matrices for the same seed, size and type.

        Raises :class:`~matmill.errors.ArgumentError` where they do not fit in memory.
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
        """The sum: made once, for every rung."""
        return exact_sum(self.a, self.b)

    def check(self, actual: Array) -> Check:
        """Every bit of ``actual`` against the sum: an element that differs is infinitely wrong."""
        wanted = self.expected
        if actual.shape != wanted.shape or actual.dtype != wanted.dtype:
            return Check(ok=False, error_ratio=inf)
        bits = f"i{wanted.itemsize}"
        same = np.array_equal(actual.view(bits), wanted.view(bits))
        return Check(ok=same, error_ratio=0.0 if same else inf)


def exact_sum(left: Array, right: Array) -> Array:
    """``left + right`` rounded once from the exact sum, or, for 16-bit floats, from that in float32, as torch does.

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
    """The inputs of every sum that the rungs of one run take, each made once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[Geam, TransposeAddInputs] = {}

    def of(self, problem: Geam) -> TransposeAddInputs:
        """The inputs of that sum."""
        if problem not in self._made:
            self._made[problem] = TransposeAddInputs.random(problem, self._seed)
        return self._made[problem]
