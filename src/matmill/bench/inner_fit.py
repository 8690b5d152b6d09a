"""The constants of the inner kernel's cost model, fitted to measured times; and how well any constants meet them.

What is made least is the mean over products of two things: the error of the predicted times, in logarithms, of which
those of configurations near the best count most; and how much slower the predicted choice is than the best one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.arch import Arch
from matmill.bench.fitting import least
from matmill.bench.inner_search import Found
from matmill.cost.inner import DEFAULT, Constants, Demand, demand, explain, times

Vector = NDArray[np.float64]

NAMES = tuple(field.name for field in fields(Constants))
#: A constant lies within this factor of its estimate, or within bounds of its own.
_FACTOR = 30.0
_BOUNDS = {"read_share": (0.5, 1.0), "fma_share": (0.3, 1.0), "overlap": (1.0, 16.0), "line_cycles": (0.25, 8.0)}
#: Starts besides the estimates, each a random factor away from the best found so far.
_STARTS, _AWAY = 4, 0.5


class Samples:
    """The measured configurations of several products, side by side."""

    def __init__(self, found: Sequence[Found], arch: Arch) -> None:
        rows = [demand(one.problem, config, arch) for one in found for config in one.configs]
        columns = {f.name: np.array([getattr(row, f.name) for row in rows], np.float64) for f in fields(Demand)}
        stacked: dict[str, Any] = columns
        self._demand = Demand(**stacked)
        self._seconds = np.concatenate([np.array(one.seconds) for one in found])
        counts = np.array([len(one.seconds) for one in found])
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._product = np.repeat(np.arange(len(found)), counts)
        self._best = np.minimum.reduceat(self._seconds, self._starts)
        near = (self._best[self._product] / self._seconds) ** 2
        self._weights = near / np.add.reduceat(near, self._starts)[self._product] / len(found)

    def loss(self, constants: Constants) -> float:
        """What a fit makes least."""
        # A sum of four powers: the largest decides, whatever overflows beside it.
        predicted: Any = times(self._demand, constants).seconds
        errors = np.abs(np.log(predicted / self._seconds))
        chosen = predicted == np.minimum.reduceat(predicted, self._starts)[self._product]
        taken = np.minimum.reduceat(np.where(chosen, self._seconds, np.inf), self._starts)
        return float((self._weights * errors).sum() + np.log(taken / self._best).mean())


def fit(samples: Samples, start: Constants = DEFAULT, seed: int = 0, starts: int = _STARTS) -> Constants:
    """The constants that meet ``samples`` best, found from ``start`` and others by steps in their logarithms."""
    low, high = (np.log(np.array(side)) for side in zip(*map(_bounds, NAMES), strict=True))
    generator = np.random.default_rng(seed)

    def loss(place: Vector) -> float:
        return samples.loss(_constants(place))

    place, value = least(loss, _logs(start), (low, high))
    for _ in range(starts):
        away = place + generator.normal(0, _AWAY, len(NAMES))
        other, lower = least(loss, away, (low, high))
        if lower < value:
            place, value = other, lower
    # Once more with long steps, until they lead nowhere.
    for _ in range(starts):
        other, lower = least(loss, place, (low, high))
        if lower > 0.999 * value:
            break
        place, value = other, lower
    return _rounded(_constants(place))


def _bounds(name: str) -> tuple[float, float]:
    estimate = getattr(Constants(), name)
    return _BOUNDS.get(name, (estimate / _FACTOR, estimate * _FACTOR))


def _logs(constants: Constants) -> Vector:
    logs: Vector = np.log(np.array([getattr(constants, name) for name in NAMES]))
    return logs


def _constants(place: Vector) -> Constants:
    return Constants(**dict(zip(NAMES, np.exp(place).tolist(), strict=True)))


def _rounded(constants: Constants) -> Constants:
    """Three significant digits of each: more are not known."""
    return replace(constants, **{name: float(f"{getattr(constants, name):.3g}") for name in NAMES})


@dataclass(frozen=True)
class Judged:
    """How one product was met: the time of the predicted choice, what was predicted for it, and the best time.

    ``errors`` are those of all its configurations, relative to what was measured.
    """

    found: Found
    predicted: float
    chosen: float
    best: float
    bound: str
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """Of the predicted time of the choice, relative to what was measured."""
        return self.predicted / self.chosen - 1

    @property
    def regret(self) -> float:
        """Time of the choice over that of the best configuration."""
        return self.chosen / self.best


def judge(found: Iterable[Found], arch: Arch, constants: Constants) -> list[Judged]:
    """How ``constants`` meet each product, whose choice is the best by them among what was timed."""
    judged = []
    for one in found:
        made = [explain(one.problem, config, arch, constants) for config in one.configs]
        chosen = int(np.argmin([prediction.seconds for prediction in made]))
        errors = [prediction.seconds / time - 1 for prediction, time in zip(made, one.seconds, strict=True)]
        best, taken = min(one.seconds), made[chosen]
        judged.append(Judged(one, taken.seconds, one.seconds[chosen], best, taken.bound, tuple(errors)))
    return judged


@dataclass(frozen=True)
class Verdict:
    """How several products were met: errors are medians of absolute values, ``tenth`` the worst decile of regret.

    ``error`` is of the choices, ``every_error`` of all configurations. Regret is of ``searched`` products, those with
    an exhaustive search; it is None where there are none.
    """

    products: int
    error: float
    every_error: float
    searched: int
    regret: float | None
    tenth: float | None

    @classmethod
    def of(cls, judged: Sequence[Judged]) -> Verdict:
        """Of one product or more."""
        regrets = np.array([one.regret for one in judged if one.found.exhaustive])
        return cls(
            len(judged),
            float(np.median([abs(one.error) for one in judged])),
            float(np.median([abs(error) for one in judged for error in one.errors])),
            len(regrets),
            float(np.exp(np.log(regrets).mean())) if len(regrets) else None,
            float(np.quantile(regrets, 0.9)) if len(regrets) else None,
        )


def grouped(judged: Sequence[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """``judged`` by what ``key`` says of each, in the order of first meeting."""
    found: dict[str, list[Judged]] = {}
    for one in judged:
        found.setdefault(key(one), []).append(one)
    return found


def written(source: str, constants: Constants) -> str:
    """``source``, the text of cost/inner.py, with the defaults of :class:`Constants` replaced.

    Raises ``ValueError`` where one of them is not found in it exactly once.
    """
    for name in NAMES:
        line = re.compile(rf"^(    {name}: float = ).*$", re.MULTILINE)
        source, count = line.subn(rf"\g<1>{getattr(constants, name)!r}", source)
        if count != 1:
            raise ValueError(f"{count} lines for {name}")
    return source


def write(path: Path, constants: Constants) -> None:
    """Writes ``constants`` into the file of the model."""
    path.write_text(written(path.read_text(encoding="utf-8"), constants), encoding="utf-8")
