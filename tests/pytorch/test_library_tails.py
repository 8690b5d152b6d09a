"""``benchmarks/library_tails.py`` finds terms that a library loses, and says which."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import library_tails
from lab.tails_page import library_tails as page

torch = pytest.importorskip("torch")
#: Of the products looked at, the k of which the planted library loses the last terms.
SHORT = 11528


def losing(a: Any, b: Any, out: Any) -> list[tuple[str, Any]]:
    """Return a right algorithm and one that loses the last 8 terms of some k."""
    k = a.shape[1] - 8 * (a.shape[1] == SHORT)
    return [("whole", partial(torch.mm, a, b, out=out)), ("cut", partial(torch.mm, a[:, :k], b[:k], out=out))]


def incomplete(a: Any, b: Any, out: Any) -> list[tuple[str, Any]]:
    """Return a product that never writes its last row."""
    return [("", lambda: out[:-1].copy_((a @ b)[:-1]))]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("layouts", ["nn", "tt"])
def test_lost_terms_are_found_and_named(dtype: str, layouts: str) -> None:
    library = library_tails.Library("planted", losing)
    look = library_tails.Look(torch, "cpu", library, dtype, layouts)
    row = look.run([(8, 8, 8192), (8, 8, SHORT), (16, 16, SHORT)], seconds=60)
    assert (row["products"], row["wrong_products"], row["algorithms"], row["wrong_algorithms"]) == (3, 2, 6, 2)
    assert row["wrong"] == [(8, 8, SHORT), (16, 16, SHORT)]
    for described in row["described"]:
        assert described["algorithm"] == "cut"
        assert described["terms"] == f"lost: {SHORT - 8}…{SHORT - 1} (of 0…{SHORT - 1})"
        assert described["error"] > row["errors_expected_below"] > row["worst_error"]


def test_ours_begins_with_what_was_wrong_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def watched(a: Any, b: Any, out: Any) -> list[tuple[str, Any]]:
        looked.append(a.shape[1])
        return [("", partial(torch.mm, a, b, out=out))]

    monkeypatch.setattr(library_tails, "drawn", lambda _count, _seed: [(8, 8, 8192), (8, 8, 8200), (8, 8, SHORT)])
    every = [library_tails.Library("planted", losing), library_tails.Library("watched", watched, last=True)]
    given = {"device": "cpu", "dtypes": ["float64"], "layouts": ["nn"], "count": None, "seed": 1, "seconds": 60.0}
    rows = library_tails.measure(torch, argparse.Namespace(**given), every, lambda _row: None)
    assert [row["wrong_products"] for row in rows] == [1, 0]
    assert looked[:3] == [SHORT, 8192, 8200]


def test_what_is_not_written_is_wrong() -> None:
    library = library_tails.Library("planted", incomplete)
    look = library_tails.Look(torch, "cpu", library, "bfloat16", "nn")
    assert look.run([(8, 8, 8192)], seconds=60)["wrong_products"] == 1


def test_the_record_of_this_machine_makes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "record.json"
    words = ["--device", "cpu", "--count", "2", "--dtypes", "float32", "bfloat16", "--layouts", "nt", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["library_tails.py", *words])
    library_tails.main()
    record = json.loads(out.read_text(encoding="utf-8"))
    assert {row["library"] for row in record["rows"]} >= {"torch.mm", "matmill.matmul"}
    assert all(row["products"] == 2 and not row["wrong_products"] for row in record["rows"])
    assert "| matmill.matmul | bfloat16 | 2 | 0 |" in page([record])
