"""A ladder's result as a picture whose title says what it shows: rates, phases, or what the emulator counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from matmill.bench import units
from matmill.ladders.runner.bars import Bar, Group, draw_bars, groups_of, notes_of, sentence
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.traffic import read_over_least, used_over_moved

#: Bytes of a sector.
_SECTOR = 32
#: The counters of a rung without any.
_NOTHING = dict.fromkeys(("global_load_bytes", "cp_async_bytes", "global_load_sectors", "cp_async_sectors"), 0)
#: More wavefronts than this, over the fewest, are bank conflicts; a smaller share of moved bytes in use is a waste.
_CONFLICT, _WASTE = 1.05, 0.5


def draw(outcome: Outcome, path: Path, source: str = "") -> None:
    """Draw ``outcome`` into ``path``; for the suffix and ``source`` see :func:`.style.save`."""
    draw_bars(conclusion(outcome), notes_of(outcome), bars_of(outcome), path, source)


def bars_of(outcome: Outcome) -> list[Group]:
    """Return the bars of the picture."""
    if any(row.phases for row in outcome.rows):
        return _phases(outcome)
    return groups_of(outcome) if outcome.on == "gpu" else _counted(outcome)


def conclusion(outcome: Outcome) -> str:
    """Return what the picture shows, as a sentence."""
    groups = bars_of(outcome)
    if not any(row.ok for row in outcome.rows):
        return "No rung has a right result"
    if any(row.phases for row in outcome.rows):
        verb, text, totals = _totals(outcome)
        amounts = {row.rung: totals[row.rung] for row in outcome.rows if row.ok}
    elif outcome.on == "gpu":
        return sentence(groups)
    elif len(groups) == 1:
        verb, text = "reads", lambda ratio: f"{units.digits(ratio)} times the least"
        amounts = {bar.label: bar.share for bar in groups[0].bars if bar.ok}
    else:
        conflicts = _named(bar for bar in groups[0].bars if bar.share > _CONFLICT)
        wasteful = _named(bar for bar in groups[1].bars if 0 < bar.share < _WASTE)
        banks = f"Banks conflict in {conflicts}" if conflicts else "No bank conflicts"
        return f"{banks}; " + (f"less than half of the bytes moved are used in {wasteful}" if wasteful else "no waste")
    least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.__getitem__)
    return f"{least} {verb} {text(amounts[least])}" + f", {most} {text(amounts[most])}" * (least != most)


def _named(bars: Iterable[Bar]) -> str:
    return ", ".join(bar.label for bar in bars if bar.ok)


def _counted(outcome: Outcome) -> list[Group]:
    """Return what the emulator counted as bars; the last group is of the bytes that threads load."""
    rows = [(row, row.counters or _NOTHING) for row in outcome.rows if row.ok is not None]
    if "read over least" in outcome.subject.counted:
        reads = [Bar(row.rung, read_over_least(c, row.bytes), ok=bool(row.ok)) for row, c in rows]
        return [Group("Bytes that all threads read", "the least", "that must move", reads)]
    uses, passes = [], []
    for row, c in rows:
        moved = _SECTOR * (c["global_load_sectors"] + c["cp_async_sectors"])
        uses.append(Bar(row.rung, used_over_moved(c) or 0.0, units.quantity(moved, "B"), ok=bool(row.ok)))
        actual, fewest = (_wavefronts(c, suffix) for suffix in ("", "_ideal"))
        passes.append(Bar(row.rung, actual / fewest if fewest else 0.0, units.count(actual), ok=bool(row.ok)))
    return [
        Group("Wavefronts of shared memory", "the fewest", "for these accesses", passes),
        Group("Uses of the bytes that global loads move", "once", "each", uses),
    ]


def _wavefronts(counters: Mapping[str, int], suffix: str) -> int:
    return sum(counters.get(f"shared_{kind}_wavefronts{suffix}", 0) for kind in ("load", "store"))


def _totals(outcome: Outcome) -> tuple[str, Callable[[float], str], dict[str, float]]:
    """Return a verb, the format of amounts, and each rung's time; without times, the bytes that it moves."""
    rows = [row for row in outcome.rows if row.phases]
    timed = any(row.seconds for row in rows)
    measure = "seconds" if timed else "bytes"
    totals = {row.rung: sum(one[measure] or 0.0 for one in (row.phases or {}).values()) for row in rows}
    return ("takes", units.seconds, totals) if timed else ("moves", partial(units.quantity, unit="B"), totals)


def _phases(outcome: Outcome) -> list[Group]:
    """Return a group for each rung: its phases, as shares of the longest rung's time or bytes."""
    verb, text, totals = _totals(outcome)
    measure, whole, groups = "seconds" if verb == "takes" else "bytes", max(totals.values()) or 1.0, []
    for row in outcome.rows:
        if row.phases and row.ok is not None:
            amounts = {name: one[measure] or 0.0 for name, one in row.phases.items()}
            bars = [Bar(name, amount / whole, text(amount)) for name, amount in amounts.items()]
            name = f"{row.rung}{'' if row.ok else ': WRONG'}, it {verb} {text(totals[row.rung])}"
            groups.append(Group(name, "the longest rung", text(whole), bars))
    return groups
