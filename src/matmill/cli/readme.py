"""The README's samples of the ladder's output, rendered from recorded runs by the command's own tables."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matmill.bench.ladder.results import Outcome
from matmill.cli.console import show
from matmill.cli.tables import report

BEGIN, END = "<!-- output: written by `make docs` -->\n", "<!-- end of output -->\n"
#: Few enough to read at a glance, far enough apart to tell a story.
RUNGS = ("naive", "shared(32)", "register-tile", "conflict-free")


_MEASURED_SIZE = 4096


def with_output(text: str, records: Sequence[Mapping[str, Any]]) -> str:
    """``text`` with the samples between its two marks replaced by what the records say."""
    emulated = next(r for r in records if r["on"] == "emulator")
    parts = [f"On a machine without a GPU:\n\n{sample_output(Outcome.from_dict(emulated))}"]
    measured = [Outcome.from_dict(r) for r in records if r["on"] == "gpu" and r["problem"]["n"] == _MEASURED_SIZE]
    parts += [f"On an {outcome.arch.title}:\n\n{sample_output(outcome)}" for outcome in measured]
    sample = "\n".join(parts)
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{sample}\n{END}{after}"


def sample_output(outcome: Outcome) -> str:
    """A console block: the command, and what it prints for the rungs shown."""
    names = [row.rung for row in outcome.rows if row.rung in RUNGS or row is outcome.rows[-1]]
    shown = replace(outcome, rows=tuple(row for row in outcome.rows if row.rung in names))
    file = io.StringIO()
    show(report(shown), file)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    command = f"$ matmill ladder {outcome.ladder} --n {outcome.problem.n} --rungs '{','.join(names)}'"
    return "\n".join(["```console", command, *lines, "```", ""])
