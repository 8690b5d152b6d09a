"""The report of an emulated launch, as text and as an exception."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from matmill.emulator import Hazard, Order
from matmill.emulator.report.hazards import KINDS
from matmill.errors import MatmillError, unknown_name
from matmill.testing.verdict import Advice, EmulatedLaunch, verdict

_LOCATION = re.compile(r"\((PTX line \d+|[^()\s]+:\d+)\)")
_LEVELS = ("error", "warning", "note")
#: Most advice that text shows.
_MOST_ADVICE = 5


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
class LaunchReport(EmulatedLaunch):
    """Counters and hazards of one launch, and the source lines to show them.

    ``hazards`` are without those that a suppression covers: these are in ``suppressed``, each with the reason. A launch
    that ``faulted`` ended early, with its fault as the last hazard, and counts up to it. ``source`` are the lines of
    the user's files by location, ``paths`` the files by their names in locations; ``left_out`` describes the code that
    was not compiled. ``orders`` counts the orders that ran; ``witnesses`` has the shortest that shows a hazard, where
    the usual one does not. With ``strict`` warnings and notes count as errors.
    """

    source: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    paths: dict[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    left_out: tuple[str, ...] = field(default=(), kw_only=True)
    suppressed: tuple[tuple[Hazard, str], ...] = field(default=(), kw_only=True)
    strict: bool = field(default=False, kw_only=True)
    orders: int = field(default=1, kw_only=True)
    witnesses: tuple[tuple[Hazard, Order], ...] = field(default=(), kw_only=True)

    @property
    def ok(self) -> bool:
        """True if no hazard is an error; with ``strict``, if there is no hazard at all."""
        return not self.hazards if self.strict else super().ok

    @property
    def title(self) -> str:
        """The launch and how many hazards it has."""
        return f"{self.launch}: {count_hazards(self.hazards)}"

    @cached_property
    def verdict(self) -> tuple[Advice, ...]:
        """What to improve, the costliest first; empty where nothing is worth saying, and after a fault."""
        return verdict(self)

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

    def text(self, columns: int = 0) -> Iterator[str]:
        """Yield the lines of the report, without the counts.

        Source lines and the verdict fit into ``columns``; 0 means whole source lines, and 80 columns for the verdict.
        """
        yield self.title
        for line in self.left_out:
            yield f"left out: {line}"
        errors = [hazard for hazard in self.hazards if hazard.severity == "error"]
        # The verdict repeats what a note says of outputs.
        others = [hazard for hazard in self.hazards if hazard not in errors and hazard.kind != "unwritten-output"]
        yield from self.hazard_lines(errors, columns)
        yield from self.verdict_lines(columns)
        yield from self.hazard_lines(others, columns)
        if self.verdict or self.hazards:
            yield ""
        if self.orders > 1:
            yield f"{self.orders} orders of warps ran"
        if self.fidelity:
            yield self.fidelity
        for hazard, reason in self.suppressed:
            yield f"suppressed: {hazard.kind} at {hazard.where}: {reason}"

    def brief(self) -> Iterator[str]:
        """Yield the launch and its errors, a line each."""
        yield self.title
        yield from (str(hazard) for hazard in self.hazards if hazard.severity == "error")

    def advice(self) -> str:
        """Return the launch and the verdict on it as text."""
        return "\n".join([self.title, *self.verdict_lines()])

    def verdict_lines(self, columns: int = 0) -> Iterator[str]:
        """Yield the verdict as lines of text: cause, source line, remedy with the bound of the gain."""
        if self.verdict:
            yield ""
            yield "verdict:"
        for advice in self.verdict[:_MOST_ADVICE]:
            yield from wrap(f"{advice.where}{'  ' if advice.where else ''}{advice.cause}", "  ", columns)
            if advice.where in self.source:
                yield f"    {clipped(self.source[advice.where], columns and columns - 4)}"
            yield from wrap(f"→ {advice.remedy}: {advice.gain}", "    ", columns)
        if len(self.verdict) > _MOST_ADVICE:
            yield f"  and {len(self.verdict) - _MOST_ADVICE} more (--json)"

    def hazard_lines(self, hazards: Sequence[Hazard], columns: int) -> Iterator[str]:
        """Yield hazards as lines of text, those of the same lines once."""
        for group, locations in grouped(hazards):
            yield ""
            yield str(group[0])
            if len(group) > 1:
                yield f"  {len(group)} times, in copies of the same lines"
            for location in locations:
                if location in self.source:
                    room = columns and max(columns - len(location) - 4, 16)
                    yield f"  {location}  {clipped(self.source[location], room)}"
            order = next((order for hazard, order in self.witnesses if hazard == group[0]), None)
            if order is not None:
                yield f"  in the order {json.dumps(spelled(order))} (--witness FILE, --order FILE)"

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
            "verdict": [asdict(advice) | {"gain": advice.gain} for advice in self.verdict],
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


def wrap(text: str, indent: str, columns: int = 0) -> list[str]:
    """Return a sentence as lines of ``columns`` (0: 80), the first after ``indent``, the others two columns further.

    >>> wrap("pad tile to [32][33]: shared passes 4,096 → 128", "  ", 30)
    ['  pad tile to [32][33]: shared', '    passes 4,096 → 128']
    """
    further = indent + "  "
    return textwrap.wrap(text, columns or 80, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)


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
