"""The constants of a cost model, fitted to measured times; and how well any constants meet them.

A model that can be fitted says in two steps what a problem takes with a configuration: ``demand`` counts what is asked
of the GPU, ``times`` says what that costs with given constants, of one configuration or of many side by side.

What is made least is the mean over problems of two things: the error of the predicted times, in logarithms, of which
those of configurations near the best count most; and how much slower the predicted choice is than the best one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from lab.fitting import least
from matmill.arch import Arch
from matmill.config import Config
from matmill.kernel import P
from matmill.kernels.shared.model import stack

Vector = NDArray[np.float64]

#: A constant is within this factor of its estimate, or within bounds of its own.
_FACTOR = 30.0
#: Starts besides the estimates, each a random factor away from the best found so far.
_STARTS, _AWAY = 4, 0.5


@dataclass(frozen=True)
class Found(Generic[P]):
    """What was measured of one problem: seconds of each configuration, of which the first is the model's choice.

    ``part`` is the grid that it belongs to, ``fit`` or ``judge``, ``exhaustive`` whether every configuration was timed,
    ``library`` the seconds of what users would take instead, or None.
    """

    problem: P
    part: str
    exhaustive: bool
    configs: tuple[Config, ...]
    seconds: tuple[float, ...]
    library: float | None


@dataclass(frozen=True)
class Model(Generic[P]):
    """A cost model: its constants, its two steps, and the file whose class ``Constants`` holds their defaults.

    ``constants`` and what ``demand`` gives are dataclasses of floats. What ``times`` gives has ``seconds`` and
    ``bound``. ``bounds`` are those of constants that may not be a factor of 30 away from their estimates.
    """

    constants: Any
    demand: Callable[[P, Config, Arch], Any]
    times: Callable[[Any, Any], Any]
    path: Path
    bounds: Mapping[str, tuple[float, float]]
    #: The name in the file of what the constants were fitted on: a GPU, and what is special to them.
    section: str = "h200"

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the constants."""
        return tuple(field.name for field in fields(self.constants))

    def made(self, names: Sequence[str], logs: Vector) -> Any:
        """Return the constants, of which those of ``names`` have these logarithms."""
        return replace(self.constants, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def limits(self, names: Sequence[str], within: float) -> tuple[Vector, Vector]:
        """Return the logarithms of the least and the greatest that each constant may be within a factor."""
        result = []
        for name in names:
            estimate = getattr(self.constants, name)
            low, high = self.bounds.get(name, (estimate / _FACTOR, estimate * _FACTOR))
            result.append((max(low, estimate / within), min(high, estimate * within)))
        least_logs, greatest_logs = np.log(np.array(result)).T
        return least_logs, greatest_logs


class Samples(Generic[P]):
    """The measured configurations of several problems, side by side."""

    def __init__(self, model: Model[P], found: Sequence[Found[P]], arch: Arch) -> None:
        self.model = model
        rows = [model.demand(one.problem, config, arch) for one in found for config in one.configs]
        self._demand = stack(rows)
        self._seconds = np.concatenate([np.array(one.seconds) for one in found])
        counts = np.array([len(one.seconds) for one in found])
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._problem = np.repeat(np.arange(len(found)), counts)
        self._best = np.minimum.reduceat(self._seconds, self._starts)
        near = (self._best[self._problem] / self._seconds) ** 2
        self._weights = near / np.add.reduceat(near, self._starts)[self._problem] / len(found)

    def loss(self, constants: Any) -> float:
        """Return what a fit makes least."""
        # A sum of powers: the largest decides, whatever overflows beside it.
        predicted = self.model.times(self._demand, constants).seconds
        errors = np.abs(np.log(predicted / self._seconds))
        chosen = predicted == np.minimum.reduceat(predicted, self._starts)[self._problem]
        taken = np.minimum.reduceat(np.where(chosen, self._seconds, np.inf), self._starts)
        return float((self._weights * errors).sum() + np.log(taken / self._best).mean())


def fit(
    samples: Samples[P], seed: int = 0, starts: int = _STARTS, *, only: Sequence[str] = (), within: float = inf
) -> Any:
    """Return the constants that meet ``samples`` best, found from the model's and others by steps in their logarithms.

    Where names are given, those ``only`` change; none changes by more than the factor ``within``.
    """
    model = samples.model
    names = tuple(only) or model.names
    limits = model.limits(names, within)
    generator = np.random.default_rng(seed)

    def loss(point: Vector) -> float:
        return samples.loss(model.made(names, point))

    start = np.log(np.array([getattr(model.constants, name) for name in names]))
    point, value = least(loss, start, limits)
    for _ in range(starts):
        away = point + generator.normal(0, _AWAY, len(start))
        other, lower = least(loss, away, limits)
        if lower < value:
            point, value = other, lower
    # Once more with long steps, until they lead nowhere.
    for _ in range(starts):
        other, lower = least(loss, point, limits)
        if lower > 0.999 * value:
            break
        point, value = other, lower
    return _rounded(model.made(names, point))


def _rounded(constants: Any) -> Any:
    """Round each constant to three significant digits: more are not known."""
    return replace(constants, **{f.name: float(f"{getattr(constants, f.name):.3g}") for f in fields(constants)})


@dataclass(frozen=True)
class Judged(Generic[P]):
    """How one problem was met: the time of the predicted choice, what was predicted for it, and the best time.

    ``errors`` are those of all its configurations, relative to what was measured.
    """

    found: Found[P]
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


def judge(model: Model[P], found: Iterable[Found[P]], arch: Arch, constants: Any) -> list[Judged[P]]:
    """Say how ``constants`` meet each problem, whose choice is the best by them among what was timed."""
    judged = []
    for one in found:
        result = [model.times(model.demand(one.problem, config, arch), constants) for config in one.configs]
        chosen = int(np.argmin([prediction.seconds for prediction in result]))
        errors = [prediction.seconds / time - 1 for prediction, time in zip(result, one.seconds, strict=True)]
        best, taken = min(one.seconds), result[chosen]
        judged.append(Judged(one, taken.seconds, one.seconds[chosen], best, taken.bound, tuple(errors)))
    return judged


@dataclass(frozen=True)
class Verdict:
    """How several problems were met: errors are medians of absolute values, ``tenth`` the worst decile of regret.

    ``error`` is of the choices, ``every_error`` of all configurations. Regret is of ``searched`` problems, those with
    an exhaustive search; it is None where there are none.
    """

    problems: int
    error: float
    every_error: float
    searched: int
    regret: float | None
    tenth: float | None

    @classmethod
    def of(cls, judged: Sequence[Judged[Any]]) -> Verdict:
        """Judge one problem or more."""
        regrets = np.array([one.regret for one in judged if one.found.exhaustive])
        return cls(
            len(judged),
            float(np.median([abs(one.error) for one in judged])),
            float(np.median([abs(error) for one in judged for error in one.errors])),
            len(regrets),
            float(np.exp(np.log(regrets).mean())) if len(regrets) else None,
            float(np.quantile(regrets, 0.9)) if len(regrets) else None,
        )


def grouped(judged: Sequence[Judged[P]], key: Callable[[Judged[P]], str]) -> dict[str, list[Judged[P]]]:
    """Return ``judged`` by what ``key`` says of each, in the order of first meeting."""
    result: dict[str, list[Judged[P]]] = {}
    for one in judged:
        result.setdefault(key(one), []).append(one)
    return result


def write(path: Path, constants: Any, section: str = "h200") -> None:
    """Write ``constants`` into a section of a model's file."""
    known = json.loads(path.read_text(encoding="utf-8"))
    known[section]["values"] = asdict(constants)
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
