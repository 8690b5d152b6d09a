"""The form of all cost models: terms with names, how they overlap, and which of them bounds the time.

A model is two pure functions: ``demand`` counts what a problem asks of a GPU with a configuration, ``times`` says what
that costs. The numbers may be arrays of one shape, for as many configurations at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TypeVar

C = TypeVar("C")


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
