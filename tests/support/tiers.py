"""Which rows of slow tests a run leaves to the nightly one: the table is ``tests/nightly.toml``."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TABLE = Path(__file__).parents[1] / "nightly.toml"


def thinned() -> dict[str, int]:
    """Return, for tests by ``folder/file::function``, how many rows there are for each one that always runs."""
    folders = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {f"{folder}/{test}": each for folder, tests in folders.items() for test, each in tests.items()}


def of_the_night(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the items that the nightly run alone has. On a GPU rows are fast: all of them run."""
    table, rows = thinned(), Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0].removeprefix("tests/")
        parameters = getattr(item, "callspec", None)
        if test in table and parameters and "gpu" not in map(parameters.params.get, ("on", "anywhere")):
            if rows[test] % table[test]:
                yield item
            rows[test] += 1
