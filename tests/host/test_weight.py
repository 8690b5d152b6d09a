"""Each wing has a ceiling of lines (``WEIGHT.toml``): what outgrows it is paid for by deleting, or says why it may."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WINGS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "WEIGHT.toml").read_text(encoding="utf-8"))


def _files(wing: str) -> list[Path]:
    """List the files of a wing: those in its folders with its endings that are in no folder of another wing."""
    row = WINGS[wing]
    others = [
        ROOT / folder
        for name, other in WINGS.items()
        if name != wing and set(other["suffixes"]) & set(row["suffixes"])
        for folder in other["folders"]
    ]
    result = []
    for folder in row["folders"]:
        inside = [other for other in others if other != ROOT / folder and other.is_relative_to(ROOT / folder)]
        paths = (path for suffix in row["suffixes"] for path in sorted((ROOT / folder).rglob(f"*{suffix}")))
        result += [path for path in paths if not any(path.is_relative_to(other) for other in inside)]
    return result


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_is_within_its_ceiling(wing: str) -> None:
    files = _files(wing)
    assert files, f"{wing} has no files: see WEIGHT.toml"
    lines = sum(map(_lines, files))
    assert lines <= WINGS[wing]["most"], f"{wing}: {lines} lines. CONTRIBUTING.md (Weight) says what to do."


def test_every_source_is_in_one_wing() -> None:
    counted = [path for wing in WINGS for path in _files(wing)]
    assert len(counted) == len(set(counted))
    sources = {path for suffix in (".py", ".cuh") for path in (ROOT / "src").rglob(f"*{suffix}")}
    assert sources <= set(counted)
