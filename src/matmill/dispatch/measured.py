"""Measured preferences on disk: loaded when the first plan for a GPU is prepared, written when a product is tuned."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict

import matmill
from matmill.choose import Preference, prefer, prefer_all, problem_text
from matmill.decisions import Decisions, Row, default_path
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

#: Rows by the index of a GPU, read once in a process.
_decisions: dict[int, Decisions] = {}


def decisions(gpu: GPU) -> Decisions:
    """Return the rows for a GPU with its driver and this matmill; the first call makes ``choose`` follow them."""
    rows = _decisions.get(gpu.index)
    if rows is None:
        versions = {"driver": gpu.driver_version, "matmill": matmill.__version__}
        rows = Decisions(default_path(gpu.arch.title, versions))
        read = {key: _preference(row) for key, row in rows.items()}
        prefer_all(gpu.arch, {key: preference for key, preference in read.items() if preference is not None})
        _decisions[gpu.index] = rows
    return rows


def keep(gpu: GPU, problem: Gemm, preference: Preference | None) -> None:
    """Write a preference in place of an earlier one and let ``choose`` follow it; None is the model's first choice.

    Plans prepared before are the caller's to drop: see :func:`matmill.dispatch.plan_cache.forget_plans`.
    """
    key = problem_text(problem)
    if preference is not None or decisions(gpu).get(key) is not None:
        decisions(gpu).put(key, {} if preference is None else asdict(preference), anew=True)
    prefer(problem, gpu.arch, preference)


def _preference(row: Row) -> Preference | None:
    """Return the preference of a row, or None for a row of anything else: a file may hold anything."""
    with suppress(KeyError, TypeError, ValueError):
        return Preference(str(row["entry"]), str(row["config"]), float(row["seconds"]), float(row["first_seconds"]))
    return None
