"""The form of all cost models: terms with names, how they overlap, and which of them bounds the time.

A model is two pure functions: ``demand`` counts what a problem asks of a GPU with a configuration, ``times`` says what
that costs. Both take one configuration or many at once (``Config`` and ``Columns`` of ``matmill.config``): of many,
every number is an array with one element for each of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np

from matmill.arch import Arch
from matmill.config import Config, Configs

C = TypeVar("C")
D = TypeVar("D")
P = TypeVar("P")


def for_each(config: Configs, count: Callable[[Config], tuple[float, ...]], *names: str) -> Any:
    """Apply ``count`` to one configuration or to each of many: for numbers that no arithmetic gives.

    ``count`` depends on the constants ``names`` alone and runs once for each combination of their values. Each of its
    numbers becomes an array.

    >>> from matmill.config import Columns
    >>> tiles = Columns([Config.of(BM=128, K_INNER=1), Config.of(BM=64, K_INNER=1)])
    >>> for_each(tiles, lambda tile: (4.0, 1.0) if tile["K_INNER"] else (1.0, 4.0), "K_INNER")
    array([[4., 4.],
           [1., 1.]])
    """
    if isinstance(config, Config):
        return count(config)
    examples, which = config.groups(names)
    return np.array([count(one) for one in examples], np.float64)[which].T


def of_each(config: Configs, count: Callable[[Config, int], tuple[float, ...]], number: Any) -> Any:
    """Apply ``count`` to one configuration and a number, or to each of many and its own.

    It runs once for configurations that differ in constants of the launch alone, if their numbers are the same. Each of
    its numbers becomes an array.

    >>> from matmill.config import Columns
    >>> sliced = Columns([Config.of(BM=128), Config.of(BM=64)]).take([0, 0, 1], SPLIT_K=[1, 2, 1])
    >>> of_each(sliced, lambda tile, number: (tile["BM"] * number, number), np.array([1, 1, 3]))
    array([[128., 128., 192.],
           [  1.,   1.,   3.]])
    """
    if isinstance(config, Config):
        return count(config, number)
    numbers = np.broadcast_to(np.asarray(number, np.int64), len(config))
    keys = config.origins * (int(numbers.max(initial=0)) + 1) + numbers
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    counts = [count(config.config(index), int(numbers[index])) for index in first.tolist()]
    return np.array(counts, np.float64)[which].T


def of_tiles(config: Configs, count: Callable[[Configs], tuple[Any, ...]]) -> Any:
    """Apply ``count`` to one configuration, or once to many and all that are taken from them: see Columns.table."""
    return count(config) if isinstance(config, Config) else config.table(count)


def stack(rows: Sequence[D]) -> D:
    """Join dataclasses of numbers into one of arrays, nested ones too."""
    columns = {}
    for each in fields(rows[0]):  # type: ignore[arg-type]
        values = [getattr(row, each.name) for row in rows]
        columns[each.name] = stack(values) if is_dataclass(values[0]) else np.array(values, np.float64)
    return type(rows[0])(**columns)


def columnwise(demand: Callable[[P, Config, Arch], D]) -> Callable[[P, Configs, Arch], D]:
    """Let a ``demand`` that counts for one configuration count for many, one after the other."""

    @wraps(demand)
    def counted(problem: P, config: Configs, arch: Arch) -> D:
        if isinstance(config, Config):
            return demand(problem, config, arch)
        return stack([demand(problem, one, arch) for one in config.configs])

    return counted


def larger(a: Any, b: Any) -> Any:
    """Give the larger of two numbers, or of each pair of elements."""
    return np.maximum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else max(a, b)


def smaller(a: Any, b: Any) -> Any:
    """Give the smaller of two numbers, or of each pair of elements."""
    return np.minimum(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else min(a, b)


def either(condition: Any, if_true: Any, if_false: Any) -> Any:
    """Give one of two numbers, or of each pair of elements.

    >>> either(True, 3, 4), either(np.array([True, False]), 3, 4).tolist()
    (3, [3, 4])
    """
    if isinstance(condition, np.ndarray):
        return np.where(condition, if_true, if_false)
    return if_true if condition else if_false


def load_constants(model: str, kind: type[C], arch: str = "h200") -> C:
    """Read the constants of a cost model that were fitted on a GPU, from ``constants.json`` beside it.

    ``model`` is the name of its module, ``kind`` the dataclass that says what each constant means. The file says what
    they were fitted to; ``benchmarks/fit_model.py`` writes it.
    """
    top, *folders, _ = model.split(".")
    text = files(top).joinpath(*folders, "constants.json").read_text(encoding="utf-8")
    return kind(**json.loads(text)[arch]["values"])


def overlapped(power: float, *terms: float) -> float:
    """Add terms that overlap partly: their norm of that power. 1 gives the sum, infinity the largest.

    >>> overlapped(2, 3.0, 4.0), overlapped(1, 3.0, 4.0)
    (5.0, 7.0)
    """
    total: float = sum(term**power for term in terms) ** (1 / power)
    return total


@dataclass(frozen=True)
class Prices:
    """What launches cost whichever kernel is launched, in seconds but where it says otherwise."""

    #: From launch to the first instruction and from the last to the end of a kernel.
    launch: float
    #: What a launch right before or after another adds, without its own work.
    second: float
    #: The same for the launch that repacks, which finds no cache line that another has loaded.
    repack: float
    #: Each step of the reduction of split-K, in which a thread loads 16 slices, and bytes of partial sums that each SM
    #: stores or loads per cycle.
    reduction_step: float
    reduction_bytes: float
    #: Share of the data sheet's bandwidth that repacking reaches, bytes read and written added up, and cycles of an SM
    #: per cache line that it looks up.
    copy_share: float
    lookup_cycles: float


PRICES = load_constants(__name__, Prices)


@dataclass(frozen=True)
class Prediction:
    """Seconds of all launches of a problem, and the ``terms`` that they come from, in seconds, by name.

    The largest term of ``bounding`` bounds the time. ``pace`` are the cycles of a k-step by what takes them, where a
    model has such steps: the largest of them is named in the place of the term ``paced``.
    """

    seconds: float
    terms: Mapping[str, float]
    bounding: tuple[str, ...]
    pace: Mapping[str, float] = field(default_factory=dict)
    paced: str = ""

    def __getitem__(self, term: str) -> float:
        return self.terms[term]

    @property
    def bound(self) -> str:
        """The name of what bounds the time."""
        largest = max(self.bounding, key=self.terms.__getitem__)
        return max(self.pace, key=self.pace.__getitem__) if largest == self.paced else largest
