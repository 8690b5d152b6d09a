"""Recorded emulated runs are today's: what each rung needs in every record, and what it does where a run is short.

The counters of the SGEMM ladder are compared in ``test_golden_counters.py`` and those of the hgemm ladder in float16 in
``test_ladders.py``, which run these ladders anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from matmill.arch import get
from matmill.jit.compile import Binary
from matmill.jit.source import generate
from matmill.kernel import Rung
from matmill.ladders.inner.launches import for_emulator
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.emulated import emulate, kernel_like
from matmill.ladders.runner.rows import facts
from support.compiled import resources
from support.recorded import AGAIN, EMULATED, differences, rows_of

#: m = n = k that benchmarks/ladder.py has rungs choose their constants for.
LARGE = 4096
#: Rungs to run, of the records whose ladders no other test runs whole; None for all of them.
RUN = {
    "transpose_add_emulated_604x512_bfloat16": None,
    "transpose_add_emulated_604x512_float32": ("wide", "shifted"),
    "inner_emulated_100000": ("gram", "production"),
    "hgemm_emulated_256x256x128_bfloat16": ("float32-sums", "production"),
}


def rungs_of(ladder: str) -> Sequence[Rung[Any]]:
    """Return the rungs as they were recorded."""
    rungs = LADDERS[ladder].rows
    return for_emulator(rungs)[0] if ladder == "inner" else rungs


def large(record: dict[str, Any]) -> Any:
    """Return the problem that rungs choose their constants for, or None for the recorded one."""
    ladder = LADDERS[record["ladder"]]
    return (
        ladder.subject.resized(ladder.subject.problem(record["problem"]), LARGE, LARGE, LARGE)
        if ladder.as_on_gpu
        else None
    )


@pytest.mark.parametrize("name", EMULATED)
def test_every_rung_needs_what_is_recorded(name: str) -> None:
    record, subject = EMULATED[name], LADDERS[EMULATED[name]["ladder"]].subject
    arch = get(record["arch"])
    assert [row["rung"] for row in record["rows"]] == [rung.label for rung in rungs_of(record["ladder"])], AGAIN
    for rung in rungs_of(record["ladder"]):
        row = rows_of(name)[rung.label]
        size = subject.problem(row["problem"])
        kernel = kernel_like(rung, size, large(record), arch)
        needs = resources(generate(kernel, size.dtype), arch.target)
        binary = Binary(kernel.entry, kernel.entry, arch.target, b"", "", needs)
        result = facts(rung, kernel, binary, arch, size=size, note=row["note"], subject=subject)
        assert differences(result, row) == {}, f"{rung.label}: {AGAIN}"


@pytest.mark.parametrize("name", RUN)
def test_a_fresh_run_counts_what_is_recorded(name: str) -> None:
    record, names = EMULATED[name], RUN[name]
    rungs = [rung for rung in rungs_of(record["ladder"]) if names is None or rung.label in names]
    problem = LADDERS[record["ladder"]].subject.problem(record["problem"])
    result = emulate(record["ladder"], rungs, problem, get(record["arch"]), seed=1, like=large(record)).as_dict()
    assert len(result["rows"]) == len(names or rungs)
    for row in result["rows"]:
        assert differences(row, rows_of(name)[row["rung"]]) == {}, f"{row['rung']}: {AGAIN}"
