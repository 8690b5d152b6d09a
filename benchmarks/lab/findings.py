"""What the sources claim about bank conflicts, answered from the counters of each source line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lab.markdown import markdown
from matmill.jit.source import read_source

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Reads:
    """The shared-memory loads of one source line: its number and code, warp requests and wavefronts."""

    number: int
    code: str
    requests: int
    wavefronts: int
    ideal: int

    @property
    def ways(self) -> float:
        """Wavefronts where one would do: 1 is free of conflicts, n is an n-way conflict."""
        return self.wavefronts / self.ideal


def shared_reads(row: Record, file: str) -> list[Reads]:
    """Return the source lines of a rung that read shared memory, in order."""
    source = read_source("matmill.ladders.sgemm", file).splitlines()
    result = []
    for line in row["lines"]:
        if line.get("shared_load_wavefronts"):
            number = int(line["line"].rpartition(":")[2])
            counts = (line[f"shared_load_{what}"] for what in ("requests", "wavefronts", "wavefronts_ideal"))
            result.append(Reads(number, source[number - 1].strip(), *counts))
    return sorted(result, key=lambda reads: reads.number)


def conflicts(emulated: Record) -> str:
    """Return the section that answers what the forum post claims about bank conflicts."""
    parts = ["## What the forum post claims about bank conflicts, answered\n"]
    rows = {row["rung"]: row for row in emulated["rows"] if row.get("lines")}
    for question in _questions():
        row = rows.get(question.rung)
        if row is not None:
            parts.append(_answer(question, shared_reads(row, question.file)))
    return "\n".join(parts)


@dataclass(frozen=True)
class _Question:
    rung: str
    file: str
    text: str
    #: The ways that the source claims for reads of each tile.
    claims: Mapping[str, int]


def _questions() -> Iterator[_Question]:
    yield _Question(
        "shared(32)", "shared.cuh", "Is the `shared` rung's read of the A tile 32-way conflicted?", {"As": 32}
    )
    yield _Question(
        "register-tile",
        "register_tile.cuh",
        "Are `register-tile`'s reads of A and B 2- and 4-way conflicted?",
        {"a": 2, "b": 4},
    )
    yield _Question("conflict-free", "conflict_free.cuh", "Does the rotation remove all of it?", {"As": 1, "Bs": 1})


def _answer(question: _Question, reads: list[Reads]) -> str:
    verdicts = []
    for tile, claimed in question.claims.items():
        ways = max(r.ways for r in reads if re.search(rf"\b{tile}(_words)?\[", r.code))
        verdicts.append((tile, claimed, ways))
    held = all(abs(ways - claimed) < 0.005 for _, claimed, ways in verdicts)
    text = "; ".join(f"reads of `{tile}` take {_times(ways)} (claimed: {claimed})" for tile, claimed, ways in verdicts)
    table = markdown(
        [f"line of `{question.file}`", "warp requests", "wavefronts", "ideal", "ways"],
        [[f"{r.number}: `{r.code}`", str(r.requests), str(r.wavefronts), str(r.ideal), f"{r.ways:.2f}"] for r in reads],
    )
    return f"### {question.text}\n\n**{'Yes' if held else 'No'}**: {text}.\n\n{table}"


def _times(ways: float) -> str:
    """Say how many wavefronts a read takes, in words."""
    return "one wavefront each, no conflict" if abs(ways - 1) < 0.005 else f"{ways:.2f} times the fewest wavefronts"
