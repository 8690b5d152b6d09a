"""Records of measurements: JSON lines for long searches, JSON documents for comparisons.

The first line of a search's record says what the record is of, with which seed, and where it was measured. Lines are
appended as they come: a run that is stopped leaves all that it has measured, and the next one goes on from there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.tensors import needs_torch
from matmill.bench.environment import describe
from matmill.errors import ArgumentError
from matmill.ladders.runner.results import finite


@dataclass(frozen=True)
class Kind:
    """What a search's record is of, as its first line says, and the script that writes it.

    ``key`` gives what tells a line from all others, from its first fields.
    """

    name: str
    script: str
    key: Callable[[Mapping[str, Any]], Hashable]

    def read(self, path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the header and all whole lines.

        One that a stopped run left half-written is dropped, from the file as well.

        Raises :class:`~matmill.errors.ArgumentError` for a file that is no such record.
        """
        try:
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            lines = [json.loads(line) for line in whole.splitlines()]
        except (ValueError, RecursionError) as error:
            raise self._wrong(path, f"a line that is not JSON ({error})") from None
        if not all(isinstance(line, dict) for line in lines):
            raise self._wrong(path, "a line that is no JSON object")
        if not lines or lines[0].get("record") != self.name:
            raise self._wrong(path, "no header of a search")
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        return lines[0], lines[1:]

    def open(self, path: Path, seed: int, header: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the lines that ``path`` holds already; writes the header where there is no file.

        Raises :class:`~matmill.errors.ArgumentError` where the file holds another seed or is no such record.
        """
        if path.is_file() and path.stat().st_size:
            result, lines = self.read(path)
            if result.get("seed") != seed:
                raise self._wrong(path, f"seed {result.get('seed')!r}, and {seed} was asked for")
            return lines
        append(path, {"record": self.name, "seed": seed, **header})
        return []

    def _wrong(self, path: Path, got: str) -> ArgumentError:
        return ArgumentError(
            argument=f"record {path}",
            got=got,
            wanted=f"what {self.script} wrote with the same seed",
            fix="Name another file.",
        )


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line to the record of a search."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(finite(line)) + "\n")


def by_line(record: Mapping[str, Any], name: str) -> str:
    """Return a record as one JSON document with a line for each entry of its last field, ``name``.

    >>> print(by_line({"group": "few", "sums": [{"m": 1}, {"m": 2}]}, "sums"), end="")
    {"group": "few",
     "sums": [
      {"m": 1},
      {"m": 2}
    ]}
    """
    head = {key: value for key, value in record.items() if key != name}
    entries = ",\n  ".join(json.dumps(finite(entry)) for entry in record[name])
    return f'{json.dumps(finite(head))[:-1]},\n "{name}": [\n  {entries}\n]}}\n'


def beside_torch(
    document: str | None,
    measure: Callable[[str], Iterable[dict[str, Any]]],
    summary: Callable[[Sequence[Mapping[str, Any]]], Iterable[str]],
) -> None:
    """Run a script that compares with torch: measure on ``--device``, print a summary and write ``--out``.

    ``document`` describes the script. A row's ``excess`` is its largest error over the bound. Exits with 1 where one
    is beyond 1. Raises :class:`~matmill.errors.ArgumentError` where torch is not installed.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args()
    needs_torch()
    rows = list(measure(arguments.device))
    print(*summary(rows), sep="\n")
    text = json.dumps({"environment": describe(gpu=arguments.device == "cuda"), "rows": rows}, indent=1)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    raise SystemExit(any(row["excess"] > 1 for row in rows))


#: The field of a comparison's row that holds the median of single calls, in seconds.
MEDIAN = "median"


@dataclass(frozen=True)
class Comparable:
    """One entry of a recorded comparison: a problem, and the rows of ours and of each library."""

    record: Mapping[str, Any]

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Ours and each library's row, by name."""
        return {row["name"]: row for row in self.record["rows"]}

    def rate(self, name: str) -> float:
        """Return least bytes that must move, over the time."""
        return float(self.record["bytes"] / self.rows[name][MEDIAN])


@dataclass(frozen=True)
class Format:
    """How the comparisons of one operation are recorded: a file per group, named after the operation.

    ``kind`` is what a record says it is, ``entries`` the field that holds its entries, ``identity`` the field that
    tells an entry from others.
    """

    operation: str
    kind: str
    entries: str
    identity: str

    def recorded(self, folder: Path, groups: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the comparisons recorded in ``folder``, by group, in the order of ``groups``.

        Of several records of one group the latest counts, and earlier ones for the entries that it lacks: ``others``
        then says how many, and when they were measured.
        """
        paths = sorted(folder.glob(f"{self.operation}_*.json"))
        result = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
        comparisons = [record for record in result if record.get("record") == self.kind]
        merged: dict[str, dict[str, Any]] = {}
        for record in sorted(comparisons, key=lambda record: str(record["environment"]["date"]), reverse=True):
            latest = merged.setdefault(record["group"], {**record, "others": []})
            known = {json.dumps(entry[self.identity]) for entry in latest[self.entries]}
            more = [entry for entry in record[self.entries] if json.dumps(entry[self.identity]) not in known]
            if more:
                latest[self.entries] = [*latest[self.entries], *more]
                latest["others"].append((len(more), record["environment"]["date"]))
        return {group: merged[group] for group in groups if group in merged}
