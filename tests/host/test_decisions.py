"""Measured decisions on disk: the first row stands, for threads and processes; bad files count as empty."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from matmill.decisions import Decisions, default_path
from matmill.errors import ArgumentError


def test_a_row_outlives_the_process_and_the_first_stands(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "rows.json"
    assert Decisions(path).put("mm", {"winner": "torch"}) == {"winner": "torch"}
    again = Decisions(path)
    assert again.get("mm") == {"winner": "torch"}
    assert again.put("mm", {"winner": "matmill"}) == {"winner": "torch"}
    assert len(again) == 1


def test_a_row_that_another_process_wrote_meanwhile_is_adopted(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    early = Decisions(path)
    Decisions(path).put("mm", {"winner": "matmill"})
    assert early.put("mm", {"winner": "torch"}) == {"winner": "matmill"}
    assert early.put("bmm", {"winner": "torch"}) == {"winner": "torch"}
    assert dict(Decisions(path).items()) == {"mm": {"winner": "matmill"}, "bmm": {"winner": "torch"}}


def test_a_row_is_replaced_where_that_is_asked_for_and_all_are_cleared(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    decisions = Decisions(path)
    decisions.put("mm", {"winner": "torch"})
    assert decisions.put("mm", {"winner": "matmill"}, anew=True) == {"winner": "matmill"}
    assert Decisions(path).get("mm") == decisions.get("mm") == {"winner": "matmill"}
    assert (decisions.clear(), len(decisions), path.exists()) == (1, 0, False)
    assert decisions.clear() == 0


def _decide(path: Path, rank: int) -> dict[str, object]:
    decisions = Decisions(path)
    return {str(key): decisions.put(f"key {key}", {"rank": rank}) for key in range(20)}


def test_processes_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        answers = pool.starmap(_decide, [(tmp_path / "rows.json", rank) for rank in range(3)])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "other"}', '{"format": "matmill-decisions-1"}'])
def test_a_bad_file_counts_as_empty_and_is_replaced(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(content)
    decisions = Decisions(path)
    assert len(decisions) == 0
    decisions.put("mm", {"winner": "torch"})
    assert json.loads(path.read_text())["rows"] == {"mm": {"winner": "torch"}}
    path.write_text(content)
    with pytest.raises(ArgumentError, match="no decisions"):
        Decisions.load(path)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    decisions = Decisions(tmp_path / "file" / "rows.json")
    assert decisions.put("mm", {"winner": "torch"}) == {"winner": "torch"}
    assert decisions.get("mm") == {"winner": "torch"}


def test_saved_rows_are_loaded_unconnected(tmp_path: Path) -> None:
    decisions = Decisions(None)
    decisions.put("mm", {"winner": "torch"})
    decisions.save(tmp_path / "table.json")
    loaded = Decisions.load(tmp_path / "table.json")
    loaded.put("bmm", {"winner": "matmill"})
    assert loaded.path is None
    assert len(Decisions.load(tmp_path / "table.json")) == 1


def test_nothing_is_kept_where_the_cache_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert default_path("GPU", {"driver": "1"}) is None
