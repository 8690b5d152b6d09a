"""Accepted hazards: by kind and line, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matmill.emulator import Hazard
from matmill.emulator.report.hazards import KINDS
from matmill.errors import ArgumentError, unknown_name

_LINE = re.compile(r"(?P<kind>\S+)\s+(?P<location>\S+:\d+)\s+(?P<reason>\S.*)")


@dataclass(frozen=True)
class Suppression:
    """One kind of hazard at one source line ("k.cu:15"), and why it is accepted."""

    kind: str
    location: str
    reason: str

    def covers(self, hazard: Hazard) -> bool:
        """Tell whether the hazard is of this kind, and at this line or between it and another one."""
        return hazard.kind == self.kind and (hazard.where == self.location or f"({self.location})" in hazard.message)


def read(path: str | Path) -> tuple[Suppression, ...]:
    """Read the suppressions of a file: one per line with kind, source line and reason.

    ``#`` begins a comment. Raises :class:`~matmill.errors.ArgumentError` for a file or a line that cannot be read, and
    :class:`~matmill.errors.UnknownNameError` for a kind that does not exist.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ArgumentError(
            argument="suppressions", got=f"{str(path)!r}: {problem}", wanted="a text file", fix="Check the name."
        ) from problem
    return parse(text, str(path))


def parse(text: str, name: str = "suppressions") -> tuple[Suppression, ...]:
    """Parse the suppressions of a text.

    >>> parse("race  rowsum.cu:15  all threads store the same flag")
    (Suppression(kind='race', location='rowsum.cu:15', reason='all threads store the same flag'),)
    """
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ArgumentError(
                argument=f"{name}:{number}",
                got=repr(line.strip()),
                wanted="a kind, a source line and a reason, as in: race rowsum.cu:15 all threads store the same flag",
                fix="Write down why it is accepted, behind the line.",
            )
        if match["kind"] not in KINDS:
            raise unknown_name(f"{name}:{number}", match["kind"], KINDS)
        entries.append(Suppression(match["kind"], match["location"], match["reason"]))
    return tuple(entries)


def apply(
    hazards: Iterable[Hazard], suppressions: Sequence[Suppression]
) -> tuple[tuple[Hazard, ...], tuple[tuple[Hazard, str], ...]]:
    """Return the hazards that no suppression covers, and the others with the reason."""
    left, accepted = [], []
    for hazard in hazards:
        reason = next((each.reason for each in suppressions if each.covers(hazard)), None)
        if reason is None:
            left.append(hazard)
        else:
            accepted.append((hazard, reason))
    return tuple(left), tuple(accepted)
