"""Runs one launch in several orders of its warps and with early and late copies; different results are a hazard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Hazard
from matmill.testing.arguments import At, array_key
from matmill.testing.call import emulate
from matmill.testing.handles import objects, replaced
from matmill.testing.report import LaunchReport, locations_of
from matmill.testing.suppressions import Suppression, apply, read
from matmill.textures import Surface, Texture

#: Instructions that complete asynchronously; without them late copies change nothing.
_ASYNCHRONOUS = ("cp.async", "wgmma", "cp.reduce.async")


class Emulate:
    """``emulate`` for one test: paths from ``folder``, settings by default, and the ``reports`` of all its calls."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        self.reports: list[LaunchReport] = []

    def __call__(
        self,
        source: str | Path,
        entry: str | None,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: object,
        check: bool = True,
        **keywords: Any,
    ) -> LaunchReport:
        """Run a launch and return its report.

        Raises :class:`~matmill.testing.report.HazardError` if it has errors and ``check`` is true. Arrays have the
        results of the first order. If another order, or late copies, give other results, that is a hazard of kind
        "order".
        """
        settings = self.settings | keywords
        schedules, late = settings.pop("schedules"), settings.pop("late_copies")
        accepted = _suppressions(settings.pop("suppressions"), self.folder)
        source = self._resolve_path(source)
        symbols: dict[str, object] = dict(settings.pop("symbols", None) or {})
        before = _copied((*args, *symbols.values()))
        report = emulate(source, entry, grid, block, *args, symbols=symbols, **settings)
        late = late and any(word in report.ptx for word in _ASYNCHRONOUS)
        orders: list[dict[str, Any]] = [{"schedule": n} for n in range(1, schedules + 1)]
        orders += [{"late_copies": True}] if late else []
        # A launch that ended early or has errors gives no results to compare.
        for order in orders if report.finished else ():
            again = _copied(before)
            variables = dict(zip(symbols, again[len(args) :], strict=True))
            other = emulate(source, entry, grid, block, *again[: len(args)], symbols=variables, **settings, **order)
            known = {(h.kind, locations_of(h)) for h in report.hazards}
            hazards = [*report.hazards, *(h for h in other.hazards if (h.kind, locations_of(h)) not in known)]
            if other.finished:
                hazards += _differences(report, order, symbols, (*args, *symbols.values()), again)
            report = replace(report, hazards=tuple(hazards))
        left, suppressed = apply(report.hazards, accepted)
        report = replace(report, hazards=left, suppressed=suppressed)
        self.reports.append(report)
        return report.raise_if() if check else report

    def _resolve_path(self, source: str | Path) -> str | Path:
        """Return a path relative to the test's folder, if there is such a file."""
        if isinstance(source, str) and ("\n" in source or "{" in source):
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


def _copied(values: Sequence[object]) -> tuple[Any, ...]:
    """Return arguments with copied memory; an array that is passed twice is copied once. Other values are kept."""
    copies: dict[object, Any] = {}

    def copied(value: object) -> Any:
        key = array_key(value) if isinstance(value, np.ndarray) and not value.dtype.hasobject else id(value)
        if key not in copies:
            copies[key] = copy(value)
        return copies[key]

    def copy(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(copied(each) for each in value)
        if isinstance(value, At):
            return At(copied(value.array), value.index)
        if isinstance(value, Texture | Surface):
            return replace(value, array=copied(value.array))
        if isinstance(value, np.ndarray | np.void) and value.dtype.hasobject:
            return replaced("", np.asarray(value), value.dtype, lambda _, each: copied(each))
        if isinstance(value, np.ndarray) and value.flags.writeable:
            return value.copy(order="K")
        return value

    return tuple(copied(each) for each in values)


def _arrays(values: Iterable[object]) -> Iterable[NDArray[Any]]:
    """Yield all arrays, including those of textures and surfaces."""
    for value in values:
        if isinstance(value, tuple):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray | np.void) and value.dtype.hasobject:
            yield from _arrays(objects(np.asarray(value)))
        elif isinstance(value, Texture | Surface | At):
            yield from _arrays((value.array,))
        elif isinstance(value, np.ndarray):
            yield value


def _differences(
    report: LaunchReport,
    order: dict[str, Any],
    symbols: Iterable[str],
    first: Sequence[object],
    other: Sequence[object],
) -> Iterable[Hazard]:
    """Yield a hazard for the first array with other values in another order, beyond the rounding of sums."""
    names = [argument.name for argument in report.launch.args if hasattr(argument, "name")] + [*symbols]
    how = "late copies" if "late_copies" in order else f"the order of warps {order['schedule']}"
    for number, (one, two) in enumerate(zip(_arrays(first), _arrays(other), strict=True)):
        different = _different(one, two)
        if different.any():
            name = names[number] if number < len(names) else f"array {number}"
            index = tuple(int(n) for n in np.argwhere(different)[0])
            where = "".join(f"[{n}]" for n in index)
            message = (
                f"{report.launch.kernel}: {int(different.sum())} of {one.size} elements of {name} differ with {how}: "
                f"{name}{where} is {two[index]}, and {one[index]} in the usual order"
            )
            yield Hazard("order", message, report.launch.kernel, "")
            return


def _different(one: NDArray[Any], two: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where two results differ. Sums of floats may be rounded differently, because atomics add in any order."""
    if one.dtype.kind in "fc":
        rtol = float(np.finfo(one.dtype).eps) ** 0.5
        atol = rtol * float(np.max(np.abs(one), where=np.isfinite(one), initial=0.0))
        return np.asarray(~np.isclose(one, two, rtol=rtol, atol=atol, equal_nan=True))
    return np.asarray(one != two)
