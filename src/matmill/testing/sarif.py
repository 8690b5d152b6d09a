"""Hazards as SARIF, the format that code review tools read.

OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from matmill import __version__
from matmill.emulator import Hazard
from matmill.testing.report import LaunchReport, locations_of

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(reports: Iterable[LaunchReport]) -> dict[str, Any]:
    """Return the hazards of launches as one SARIF log; suppressed ones have their reason as a justification."""
    results: list[dict[str, Any]] = []
    kinds: dict[str, str] = {}
    for report in reports:
        marked: list[tuple[Hazard, str | None]] = [(hazard, None) for hazard in report.hazards]
        for hazard, reason in [*marked, *report.suppressed]:
            kinds[hazard.kind] = hazard.severity
            results.append(_result(report, hazard, reason))
    rules = [
        {"id": kind, "shortDescription": {"text": kind.replace("-", " ")}, "defaultConfiguration": {"level": level}}
        for kind, level in sorted(kinds.items())
    ]
    driver = {"name": "matmill emulate", "version": __version__, "rules": rules}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(report: LaunchReport, hazard: Hazard, reason: str | None) -> dict[str, Any]:
    first, *others = locations_of(hazard)
    result: dict[str, Any] = {
        "ruleId": hazard.kind,
        "level": hazard.severity,
        "message": {"text": hazard.message},
        "locations": [_location(report, first)],
    }
    if others:
        result["relatedLocations"] = [_location(report, other) for other in others]
    if reason is not None:
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _location(report: LaunchReport, location: str) -> dict[str, Any]:
    if location.startswith("PTX line "):
        name, line = "PTX", location.removeprefix("PTX line ")
    else:
        name, _, line = location.rpartition(":")
    uri = report.paths.get(name, name or location)
    region = {"region": {"startLine": int(line)}} if line.isdigit() else {}
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, **region}}
