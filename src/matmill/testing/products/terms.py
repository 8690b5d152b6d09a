"""Which terms of k a product has, and how often, by sums that are whole numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

#: Intervals that are counted at most: a product that is wrong everywhere is described by a part of its terms.
_MOST_COUNTS = 400


def miscounted(count: Callable[[int, int], float], k: int, roundoff: float = 2.0**-24) -> dict[int, float]:
    """Return the terms of k that a sum does not have once, and how often it has them.

    ``count(first, last)`` is the product where the terms from ``first`` to before ``last`` are 1 and all others 0.
    ``roundoff`` is that of results, which hold whole numbers up to its inverse.

    >>> miscounted(lambda first, last: sum(term not in {5, 6} for term in range(first, last)), 8)
    {5: 0, 6: 0}
    """
    result: dict[int, float] = {}
    exact = round(1 / roundoff)
    intervals = [(first, min(first + exact, k)) for first in range(0, k, exact)]
    for _ in range(_MOST_COUNTS):
        if not intervals:
            break
        first, last = intervals.pop()
        terms = count(first, last)
        if terms == last - first:
            continue
        if last - first == 1:
            result[first] = terms
        else:
            middle = (first + last) // 2
            intervals += [(first, middle), (middle, last)]
    return dict(sorted(result.items()))


def in_words(terms: dict[int, float], k: int) -> str:
    """Return :func:`miscounted` in words.

    >>> in_words({5: 0, 6: 0, 7: 2}, 9)
    'lost: 5, 6; 2 times: 7 (of 0…8)'
    """
    times = sorted(set(terms.values()), key=str)
    named = {time: in_runs(term for term in terms if str(terms[term]) == str(time)) for time in times}
    words = [f"{'lost' if time == 0 else f'{time:g} times'}: {which}" for time, which in named.items()]
    return f"{'; '.join(words)} (of 0…{k - 1})"


def in_runs(terms: Iterable[int]) -> str:
    """Return numbers, or the runs that they make.

    >>> in_runs([0, 1, 2, 3, 4]), in_runs([0, 8, 16, 24]), in_runs([0, 1, 2, 32, 33, 34, 64, 65, 66, 96, 97, 98])
    ('0…4', '0, 8, …, 24', '0…2, 32…34, …, 96…98')
    """
    runs: list[list[int]] = []
    for term in terms:
        if runs and term == runs[-1][1] + 1:
            runs[-1][1] = term
        else:
            runs.append([term, term])
    shown = [
        str(first) if first == last else f"{first}…{last}" if last > first + 1 else f"{first}, {last}"
        for first, last in runs
    ]
    return ", ".join(shown if len(shown) < 4 else (*shown[:2], "…", shown[-1]))
