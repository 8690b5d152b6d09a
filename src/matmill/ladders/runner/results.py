"""What a ladder run found, as plain records, and their JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from matmill.arch import Arch, get
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.subject import Subject, beside_copy
from matmill.problem import Geam, Gemm


@dataclass(frozen=True)
class Row:
    """One rung's result. Times in seconds, sizes in bytes, fractions of 1; None where the run does not say.

    ``error_ratio`` is the largest error over its bound, element by element (at most 1 where ``ok``). ``counters``,
    ``hazards`` and ``lines`` (the counters of each source line) come from the emulator alone. ``note`` says in words
    what else a reader must know, for instance that the rung ran at another size than asked for.
    ``spread`` holds the fastest and slowest of ``rounds`` timed runs. ``phases``, of the memory ladder, gives seconds,
    bytes and flops of each phase; ``seconds`` is then the wall time of all.

    ``bytes`` (the least that must move), ``tbytes_per_second`` of those and ``bandwidth_fraction`` are of ladders that
    measure traffic; the fraction is of the data sheet's, or of a copy's where the :class:`Outcome` has one.
    """

    rung: str
    source: str
    ok: bool | None
    error_ratio: float | None
    seconds: float | None = None
    tflops: float | None = None
    peak_fraction: float | None = None
    library_fraction: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    counters: Mapping[str, int] | None = None
    hazards: tuple[Mapping[str, str], ...] = ()
    lines: tuple[Mapping[str, Any], ...] | None = None
    note: str = ""
    problem: Mapping[str, Any] | None = None
    spread: tuple[float, float] | None = None
    rounds: int | None = None
    phases: Mapping[str, Mapping[str, float | None]] | None = None
    bytes: int | None = None
    tbytes_per_second: float | None = None
    bandwidth_fraction: float | None = None


@dataclass(frozen=True)
class BaselineRow:
    """What a library took for the same product: fields as in :class:`Row`."""

    name: str
    version: str
    ok: bool
    error_ratio: float | None
    seconds: float
    tflops: float | None = None
    peak_fraction: float | None = None
    spread: tuple[float, float] | None = None
    rounds: int | None = None
    bytes: int | None = None
    tbytes_per_second: float | None = None
    bandwidth_fraction: float | None = None


@dataclass(frozen=True)
class Outcome:
    """A whole ladder run: what was asked, where it ran, and the rows. ``target`` is what the code was compiled for.

    ``copy_bytes_per_s`` is the bandwidth of a copy, read and written, that fractions refer to: one timed interleaved
    with the rungs, or that of another GPU's arch file. None where they refer to the data sheet.
    """

    ladder: str
    on: str
    arch: Arch
    target: str
    problem: Gemm | Geam
    rows: tuple[Row, ...]
    baselines: tuple[BaselineRow, ...]
    environment: Mapping[str, object]
    notes: tuple[str, ...] = field(default=())
    copy_bytes_per_s: float | None = None

    @property
    def subject(self) -> Subject[Any]:
        """What was measured, and what fractions refer to."""
        result = LADDERS[self.ladder].subject
        return result if self.copy_bytes_per_s is None else beside_copy(result, self.copy_bytes_per_s)

    @property
    def ok(self) -> bool:
        """False where a row, or a baseline, is wrong."""
        return all(row.ok is not False for row in self.rows) and all(b.ok for b in self.baselines)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Outcome:
        """Return the outcome that a recorded JSON describes; its arch must be one of the table's."""
        return cls(
            ladder=record["ladder"],
            on=record["on"],
            arch=get(record["arch"]),
            target=record["target"],
            problem=LADDERS[record["ladder"]].subject.problem(record["problem"]),
            rows=tuple(Row(**row) for row in record["rows"]),
            baselines=tuple(BaselineRow(**row) for row in record["baselines"]),
            environment=record["environment"],
            notes=tuple(record["notes"]),
            copy_bytes_per_s=record.get("copy_bytes_per_s"),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON holds it; numbers that are not finite become null, which JSON can say."""
        subject = self.subject
        fields: dict[str, Any] = finite(
            {
                "ladder": self.ladder,
                "on": self.on,
                "arch": self.arch.name,
                "target": self.target,
                "problem": subject.record(self.problem),
                "rows": [subject.only(asdict(row)) for row in self.rows],
                "baselines": [subject.only(asdict(row)) for row in self.baselines],
                "environment": dict(self.environment),
                "notes": list(self.notes),
            }
        )
        if self.copy_bytes_per_s is not None:
            fields["copy_bytes_per_s"] = self.copy_bytes_per_s
        for row in fields["rows"]:
            for extra in ("lines", "phases"):  # of some runs only
                if row[extra] is None:
                    del row[extra]
        return fields


def finite(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: numbers that are not finite become null, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
