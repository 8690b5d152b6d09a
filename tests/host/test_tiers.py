"""The table of rows that the nightly run has alone: its tests exist, and the first row of each always runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.tiers import TABLE, of_the_night, thinned


def test_the_table_names_tests() -> None:
    for test, each in thinned().items():
        file, _, function = test.partition("::")
        assert f"\ndef {function}(" in (TABLE.parent / file).read_text(encoding="utf-8"), test
        assert each > 1, test


def test_every_nth_row_runs_by_day() -> None:
    test, each = next(iter(thinned().items()))
    items: list[Any] = [
        SimpleNamespace(nodeid=f"tests/{test}[{row}]", callspec=SimpleNamespace(params={})) for row in range(7)
    ]
    assert [item for item in items if item not in list(of_the_night(items))] == items[::each]
    on_gpu: Any = SimpleNamespace(nodeid=f"tests/{test}[gpu]", callspec=SimpleNamespace(params={"on": "gpu"}))
    assert list(of_the_night([items[0], on_gpu, on_gpu])) == []
