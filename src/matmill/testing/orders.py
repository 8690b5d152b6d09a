"""Runs one launch in several orders of its warps and with early and late copies; different results are a hazard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matmill.emulator import Order
from matmill.testing.call import emulate
from matmill.testing.report import LaunchReport
from matmill.testing.suppressions import Suppression, read


class Emulate:
    """``emulate`` for one test: paths from ``folder``, settings by default, and the ``reports`` of all its calls."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.reports: list[LaunchReport] = []

    def __call__(
        self,
        source: object,
        entry: str | None,
        grid: Any,
        block: int | Sequence[int] | None,
        *args: object,
        check: bool = True,
        **keywords: Any,
    ) -> LaunchReport:
        """Run a launch and return its report.

        Raises :class:`~matmill.testing.report.HazardError` if it has errors and ``check`` is true. Arrays have the
        results of the first order. If another order, or late copies, give other results, that is a hazard of kind
        "order".
        """
        __tracebackhide__ = True  # pytest shows the test's line
        settings = self.settings | keywords
        schedules, late = settings.pop("schedules"), settings.pop("late_copies")
        accepted = _suppressions(settings.pop("suppressions"), self.folder)
        source = self._resolve_path(source)
        orders = [Order(n, late_lanes=bool(n % 2)) for n in range(1, schedules + 1)]
        orders += [Order(late_copies=True)] if late else []
        report = emulate(source, entry, grid, block, *args, orders=orders, suppressions=accepted, **settings)
        self.reports.append(report)
        return report.raise_if() if check else report

    def _resolve_path(self, source: object) -> object:
        """Return a path relative to the test's folder, if there is such a file."""
        if not isinstance(source, str | Path) or "\n" in str(source) or "{" in str(source):
            return source
        beside = self.folder / source
        return beside if beside.is_file() else source


def _suppressions(given: Any, folder: Path) -> tuple[Suppression, ...]:
    if given is None:
        return ()
    if isinstance(given, str | Path):
        beside = folder / given
        return read(beside if beside.is_file() else given)
    return tuple(given)
