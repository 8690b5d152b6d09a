"""Recorded rates of rungs at a size that fills a GPU, beside a library's in the same run.

``benchmarks/pages.py`` writes ``recorded.json`` from the records of ``benchmarks/results``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Recorded:
    """One ladder's recorded run: ``rates`` has for each rung its rate and its share of the ``library``'s."""

    gpu: str
    sizes: str
    library: str
    rates: Mapping[str, tuple[float, float]]


@cache
def recorded(ladder: str) -> Recorded | None:
    """Return the recorded run of ``ladder``, or None for a ladder without one.

    >>> recorded("sgemm").gpu, recorded("memory")
    ('H100', None)
    """
    document = json.loads(files("matmill.ladders").joinpath("recorded.json").read_text(encoding="utf-8"))
    return Recorded(**document[ladder]) if ladder in document else None
