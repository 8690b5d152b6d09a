"""Results that are kept for the problems at hand: a choice asks the same of a problem for each configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

R = TypeVar("R")

#: Problems whose results are kept: some, with their forms (exchanged, in pieces), for some threads at a time.
_MOST = 64


def of_each_problem(function: Callable[..., R]) -> Callable[..., R]:
    """Keep a function's results for the latest problems, which are told apart by identity: hashing one takes longer.

    The problem is the first argument. The others are positional and hashable.

    >>> total = of_each_problem(lambda numbers, factor: factor * sum(numbers))
    >>> numbers = [1, 2]
    >>> total(numbers, 2), total(numbers, 3), total([3], 2)
    (6, 9, 6)
    """
    kept: dict[int, tuple[Any, dict[tuple[Any, ...], R]]] = {}

    @wraps(function)
    def result(problem: Any, *others: Any) -> R:
        entry = kept.get(id(problem))
        if entry is None or entry[0] is not problem:
            if len(kept) >= _MOST:
                kept.clear()
            entry = kept[id(problem)] = (problem, {})
        results = entry[1]
        if others not in results:
            results[others] = function(problem, *others)
        return results[others]

    return result
