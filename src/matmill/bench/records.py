"""Records of long measurements: files of JSON lines, to which lines are appended as they come.

The first line says what the record is of, with which seed, and where it was measured. A run that is stopped leaves all
that it has measured, and the next one goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmill.bench.ladder.results import finite
from matmill.errors import ArgumentError


@dataclass(frozen=True)
class Kind:
    """What a record is of, as its first line says, and the script that writes it."""

    name: str
    script: str

    def read(self, path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The header and all whole lines: one that a stopped run left half-written is dropped, from the file as well.

        Raises :class:`~matmill.errors.ArgumentError` for a file that is no such record.
        """
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise self._wrong(path, f"a line that is not JSON ({error})") from None
        if not lines or lines[0].get("record") != self.name:
            raise self._wrong(path, "no header of a search")
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        return lines[0], lines[1:]

    def open(self, path: Path, seed: int, header: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The lines that ``path`` holds already; writes the header where there is no file.

        Raises :class:`~matmill.errors.ArgumentError` where the file holds another seed or is no such record.
        """
        if path.is_file() and path.stat().st_size:
            found, lines = self.read(path)
            if found.get("seed") != seed:
                raise self._wrong(path, f"seed {found.get('seed')!r}, and {seed} was asked for")
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


def by_line(record: Mapping[str, Any], name: str) -> str:
    """A record as one JSON document with a line for each entry of its last field, ``name``.

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


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(finite(line)) + "\n")
