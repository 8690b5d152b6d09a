"""The results of a ladder's run as plain records, and their JSON."""

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
    """One rung's result. Times in seconds, sizes in bytes, fractions of 1; None for values that the run lacks.

    ``error_ratio`` is the largest error over its bound, element by element (at most 1 if ``ok``). Only the emulator has
    ``counters``, ``hazards`` and ``lines`` (the counters of each source line). ``note`` tells the reader, for instance,
    that the rung ran at another size than the requested one. ``bound`` is a
    :class:`~matmill.ladders.runner.bound.Bound` as a record. ``spread`` holds the fastest and slowest of ``rounds``
    timed runs. ``phases``, of the memory ladder, gives seconds, bytes and flops of each phase; ``seconds`` is then the
    wall time of all.

    Ladders that measure traffic have ``bytes`` (the least that must move), their ``tbytes_per_second`` and
    ``bandwidth_fraction``, which refers to the data sheet's bandwidth, or to a copy's if the :class:`Outcome` has one.
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
    bound: Mapping[str, Any] | None = None
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
    """A library's result for the same product: fields as in :class:`Row`."""

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
    """A whole ladder run: its request, its GPU or emulator, and the rows. The code was compiled for ``target``.

    ``copy_bytes_per_s`` is the bandwidth of a copy, read and written, that fractions refer to: one timed interleaved
    with the rungs, or the one of another GPU's arch file. It is None if they refer to the data sheet.
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
        """The kind of measurement, and what fractions refer to."""
        result = LADDERS[self.ladder].subject
        return result if self.copy_bytes_per_s is None else beside_copy(result, self.copy_bytes_per_s)

    @property
    def ok(self) -> bool:
        """False if a row or a baseline is wrong."""
        return all(row.ok is not False for row in self.rows) and all(b.ok for b in self.baselines)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Outcome:
        """Return the outcome that a recorded JSON describes; its arch must be in the table."""
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
        """Return the result as JSON; numbers that are not finite become null."""
        subject = self.subject
        fields: dict[str, Any] = finite(
            {
                "ladder": self.ladder,
                "on": self.on,
                "arch": self.arch.name,
                "target": self.target,
                "problem": subject.record(self.problem),
                "rows": [subject.own_fields(asdict(row)) for row in self.rows],
                "baselines": [subject.own_fields(asdict(row)) for row in self.baselines],
                "environment": dict(self.environment),
                "notes": list(self.notes),
            }
        )
        if self.copy_bytes_per_s is not None:
            fields["copy_bytes_per_s"] = self.copy_bytes_per_s
        for row in fields["rows"]:
            for extra in ("lines", "phases", "bound"):  # in some runs only
                if row[extra] is None:
                    del row[extra]
        return fields


def finite(value: Any) -> Any:
    """Replace numbers that are not finite by None, at any depth, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
