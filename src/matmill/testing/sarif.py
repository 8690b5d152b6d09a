"""Hazards as SARIF, the format that code review tools read.

OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matmill import __version__
from matmill.emulator import Hazard
from matmill.testing.report import LaunchReport, locations_of

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Iterable[LaunchReport], root: Path | None = None) -> dict[str, Any]:
    """Return the hazards of launches as one SARIF log; suppressed ones have their reason as a justification.

    Files below ``root`` are named relative to it, as those of a repository must be.
    """
    results: list[dict[str, Any]] = []
    kinds: dict[str, str] = {}
    for report in reports:
        marked: list[tuple[Hazard, str | None]] = [(hazard, None) for hazard in report.hazards]
        for hazard, reason in [*marked, *report.suppressed]:
            kinds[hazard.kind] = hazard.severity
            results.append(_result(report, hazard, reason, root))
    rules = [
        {"id": kind, "shortDescription": {"text": kind.replace("-", " ")}, "defaultConfiguration": {"level": level}}
        for kind, level in sorted(kinds.items())
    ]
    return _log(rules, results)


def merged(logs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one log of several, with equal results once."""
    runs = [run for log in logs for run in log["runs"]]
    rules = {rule["id"]: rule for run in runs for rule in run["tool"]["driver"]["rules"]}
    results = {json.dumps(result): result for run in runs for result in run["results"]}
    return _log([rules[kind] for kind in sorted(rules)], list(results.values()))


def _log(rules: list[dict[str, Any]], results: list[dict[str, Any]]) -> dict[str, Any]:
    driver = {"name": "matmill emulate", "version": __version__, "rules": rules}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(report: LaunchReport, hazard: Hazard, reason: str | None, root: Path | None) -> dict[str, Any]:
    first, *others = locations_of(hazard)
    result: dict[str, Any] = {
        "ruleId": hazard.kind,
        "level": hazard.severity,
        "message": {"text": hazard.message},
        "locations": [_location(report, first, root)],
    }
    if others:
        result["relatedLocations"] = [_location(report, other, root) for other in others]
    if reason is not None:
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _location(report: LaunchReport, location: str, root: Path | None) -> dict[str, Any]:
    if location.startswith("PTX line "):
        name, line = "PTX", location.removeprefix("PTX line ")
    else:
        name, _, line = location.rpartition(":")
    uri = report.paths.get(name, name or location)
    path = Path(uri).resolve()
    if root is not None and Path(uri).is_absolute() and path.is_relative_to(root.resolve()):
        uri = path.relative_to(root.resolve()).as_posix()
    region = {"region": {"startLine": int(line)}} if line.isdigit() else {}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **region}}
