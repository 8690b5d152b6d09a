"""The report of an emulated launch, as text and as an exception."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from matmill.emulator import Hazard, Order, Report
from matmill.emulator.report.hazards import KINDS
from matmill.errors import MatmillError, unknown_name
from matmill.launch import Launch

_LOCATION = re.compile(r"\((PTX line \d+|[^()\s]+:\d+)\)")
_LEVELS = ("error", "warning", "note")


class HazardError(MatmillError, AssertionError):
    """Hazards in a kernel; ``report`` has all results. As an ``AssertionError`` it fails a test."""

    def __init__(self, report: LaunchReport) -> None:
        self.report = report
        super().__init__(
            argument=f"kernel {report.launch.kernel}",
            got=count_hazards(report.hazards),
            wanted="no hazards" if report.strict else "no errors",
            fix=f"The report:\n{report}",
        )


@dataclass(frozen=True)
class LaunchReport(Report):
    """Counters and hazards of one launch, and the source lines to show them.

    ``hazards`` are without those that a suppression covers: these are in ``suppressed``, each with the reason. A launch
    that ``faulted`` ended early, with its fault as the last hazard, and counts up to it. ``source`` are the lines of
    the user's files by location, ``paths`` the files by their names in locations; ``left_out`` describes the code that
    was not compiled. ``orders`` counts the orders that ran; ``witnesses`` has the shortest that shows a hazard, where
    the usual one does not. With ``strict`` warnings and notes count as errors.
    """

    launch: Launch = field(kw_only=True)
    ptx: str = field(default="", kw_only=True, repr=False)
    source: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    paths: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    static_shared: int = field(default=0, kw_only=True)
    left_out: tuple[str, ...] = field(default=(), kw_only=True)
    suppressed: tuple[tuple[Hazard, str], ...] = field(default=(), kw_only=True)
    strict: bool = field(default=False, kw_only=True)
    faulted: bool = field(default=False, kw_only=True)
    orders: int = field(default=1, kw_only=True)
    witnesses: tuple[tuple[Hazard, Order], ...] = field(default=(), kw_only=True)

    @property
    def ok(self) -> bool:
        """True if no hazard is an error; with ``strict``, if there is no hazard at all."""
        return not self.hazards if self.strict else super().ok

    @property
    def finished(self) -> bool:
        """True if the launch ran to its end without an error, so that its results are meaningful."""
        return not self.faulted and super().ok

    def raise_if(self, *kinds: str) -> LaunchReport:
        """Return the report itself, or raise :class:`HazardError` if it is not ``ok``.

        With ``kinds`` (kinds of hazards or severities, such as "race" or "warning") it is raised for those instead.
        """
        __tracebackhide__ = True  # pytest shows the line that calls this
        for kind in kinds:
            if kind not in KINDS and kind not in _LEVELS:
                raise unknown_name("raise_if", kind, [*_LEVELS, *KINDS])
        bad = any(h.kind in kinds or h.severity in kinds for h in self.hazards) if kinds else not self.ok
        if bad:
            raise HazardError(self)
        return self

    def __str__(self) -> str:
        return "\n".join(self.text())

    def text(self, width: int = 0) -> Iterator[str]:
        """Yield the lines of the report, without the counts; source lines are cut to ``width``, unless it is 0."""
        yield f"{self.launch}: {count_hazards(self.hazards)}"
        for line in self.left_out:
            yield f"left out: {line}"
        for group, locations in grouped(self.hazards):
            yield ""
            yield str(group[0])
            if len(group) > 1:
                yield f"  {len(group)} times, in copies of the same lines"
            for location in locations:
                if location in self.source:
                    yield f"  {location}  {clipped(self.source[location], width)}"
            order = next((order for hazard, order in self.witnesses if hazard == group[0]), None)
            if order is not None:
                yield f"  in the order {json.dumps(spelled(order))} (--witness FILE, --order FILE)"
        if self.orders > 1:
            yield f"{self.orders} orders of warps ran"
        if self.fidelity:
            yield self.fidelity
        for hazard, reason in self.suppressed:
            yield f"suppressed: {hazard.kind} at {hazard.where}: {reason}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON, without the counts of a launch that faulted."""
        launch = self.launch
        return {
            "ok": self.ok,
            "kernel": launch.kernel,
            "grid": list(launch.grid),
            "block": list(launch.block),
            "shared": launch.dynamic_shared,
            "left_out": list(self.left_out),
            "printed": self.printed,
            "counters": {} if self.faulted else self.counters.as_dict(),
            "hazards": [_as_dict(hazard) for hazard in self.hazards],
            "suppressed": [_as_dict(hazard) | {"reason": reason} for hazard, reason in self.suppressed],
            "orders": self.orders,
            "fidelity": self.fidelity,
            "witnesses": [_as_dict(hazard) | {"order": spelled(order)} for hazard, order in self.witnesses],
            "by_line": {}
            if self.faulted
            else {location: counted(vars(counts)) for location, counts in self.by_line.items()},
        }


def spelled(order: Order) -> dict[str, Any]:
    """Return what distinguishes an order from the usual one, for JSON.

    >>> spelled(Order(ahead=(1, -1), steps=3))
    {'ahead': (1, -1), 'steps': 3}
    """
    return {name: value for name, value in vars(order).items() if value != getattr(Order(), name)}


def _as_dict(hazard: Hazard) -> dict[str, str]:
    return {"severity": hazard.severity, **vars(hazard)}


def counted(counts: dict[str, int]) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {name: count for name, count in counts.items() if count}


def clipped(line: str, width: int) -> str:
    """Return a source line without its indentation, cut to ``width`` characters unless ``width`` is 0.

    >>> clipped("    x[i] = 1;  // one", 8)
    'x[i] = …'
    """
    line = line.strip()
    return line if not width or len(line) <= width else line[: width - 1] + "…"


def count_hazards(hazards: Sequence[Hazard]) -> str:
    """Describe the number of hazards of each severity; those of the same lines are one.

    >>> count_hazards([])
    'no hazards'
    """
    findings = [group[0] for group, _ in grouped(hazards)]
    counts = {each: sum(hazard.severity == each for hazard in findings) for each in _LEVELS}
    parts = [f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count]
    return ", ".join(parts) or "no hazards"


def locations_of(hazard: Hazard) -> tuple[str, ...]:
    """Return the source lines of a hazard, its own first."""
    return tuple(dict.fromkeys([hazard.where, *_LOCATION.findall(hazard.message)]))


def grouped(hazards: Sequence[Hazard]) -> list[tuple[list[Hazard], tuple[str, ...]]]:
    """Group hazards of one kind and one pair of lines, with these lines: an unrolled loop has one in each copy."""
    alike: dict[tuple[str, tuple[str, ...]], list[Hazard]] = {}
    for hazard in hazards:
        alike.setdefault((hazard.kind, locations_of(hazard)), []).append(hazard)
    return [(group, locations) for (_, locations), group in alike.items()]
