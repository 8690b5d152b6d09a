"""What ``matmill why`` says of one problem: sentences and tables within a width, or a record for ``--json``."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from matmill.analysis.candidates import Candidate, described
from matmill.analysis.cause import cause
from matmill.analysis.changes import LEAST_GAIN, Change
from matmill.analysis.explain import Explanation
from matmill.analysis.floor import Floor
from matmill.analysis.runner_ups import RunnerUp
from matmill.bench import units
from matmill.cli.console import table
from matmill.lowering import SubProblem
from matmill.problem import Gemm

#: The most columns of a configuration, and the fewest of any wrapped text.
_CONFIGURATION, _LEAST = 28, 20
#: What changes start with that a sentence has in lower case.
_STARTS = ("Rows", "Columns", "No ")
#: What numbers and the space between columns take, of the runner-ups and of the list.
_NUMBERS, _LISTED = 23, 42


def record(made: Explanation, offsets: int) -> dict[str, Any]:
    """Return everything, for a JSON document; ``offsets`` is the number of launches at different offsets."""
    chosen = made.chosen
    return {
        "problem": str(made.problem),
        "offsets": offsets,
        "floor": vars(made.floor),
        "share_of_floor": made.share,
        "because": vars(cause(made)),
        "best": {
            name: value for name, value in _row(chosen, chosen).items() if name in {"kernel", "config", "seconds"}
        },
        "chosen": _row(chosen, chosen),
        "runner_ups": [
            {**_row(one.candidate, chosen), "reasons": [vars(reason) for reason in one.reasons]}
            for one in made.runner_ups
        ],
        "changes": [
            {
                "kind": one.kind,
                "words": one.words,
                "problem": str(one.problem),
                "seconds": one.seconds,
                "before": one.before,
                "gain": one.gain,
            }
            for one in made.changes
        ],
        "rows": [_row(one, chosen) for one in made.legal],
        "ruled_out": dict(made.ruled_out),
    }


def _row(one: Candidate, chosen: Candidate) -> dict[str, Any]:
    return {
        "kernel": one.kernel.entry,
        "config": _constants(one),
        "seconds": one.seconds,
        "call_seconds": one.call_seconds,
        "bound": one.bound,
        "terms": dict(one.terms),
        "waves": None if one.waves is None else vars(one.waves),
        "workspace": one.workspace,
        "launches": one.launches,
        "chosen": one is chosen,
    }


def _constants(one: Candidate) -> dict[str, int]:
    return dict((*one.config.constants, *one.config.launch))


def in_parts(stages: Sequence[SubProblem[Any]], seconds: float, width: int) -> Iterator[RenderableType]:
    """Say what a call is made of that takes several launches, and how long all of them take."""
    parts = " and ".join(f"{len(stage.offsets)} x ({stage.problem})" for stage in stages)
    yield _wrapped(f"In all {units.seconds(seconds)} predicted, for {parts}. What follows is about one of each.", width)
    yield Text()


def report(made: Explanation, offsets: int, top: int, width: int) -> Iterator[RenderableType]:
    """Yield one sentence that says it all; where the time goes; the runner-ups; what would be faster.

    With ``top`` the best configurations follow.
    """
    yield _wrapped(_summary(made), width)
    yield Text()
    yield _times(made)
    yield Text()
    for said in _choice(made, offsets):
        yield _wrapped(said, width)
    if made.runner_ups:
        yield Text()
        yield _runner_ups(made, width)
    yield Text()
    yield from (_wrapped(said, width, "  ") for said in _changes(made))
    if top:
        yield Text()
        yield from _list(made, top, width)
    for reason, count in Counter(made.ruled_out.values()).items():
        yield _wrapped(f"Ruled out, {count} configuration{'s' if count > 1 else ''}: {reason}", width)


def _wrapped(text: str, width: int, indent: str = "") -> Text:
    return Text("\n".join(_lines(text, width, indent)))


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    width = max(width, _LEAST)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _summary(made: Explanation) -> str:
    """Say how long it takes, why, and what would be faster."""
    chosen, found = made.chosen, cause(made)
    whole = max(chosen.call_seconds, chosen.seconds)
    floor = f"{units.digits(whole / made.floor.seconds)} times the floor of {units.seconds(made.floor.seconds)}"
    part = f": {units.seconds(found.seconds)} of it" if found.seconds < chosen.seconds else ""
    said = (
        f"{made.problem}, {made.arch.title}: {units.seconds(whole)} predicted, {floor} ({made.floor.bound}), because "
        f"{found.words}{part}."
    )
    if not made.changes:
        return said
    best = made.changes[0]
    words = best.words[0].lower() + best.words[1:] if best.words.startswith(_STARTS) else best.words
    return f"{said} It would be {units.seconds(best.seconds)} with {words}."


def _gain(change: Change) -> str:
    instead = f"{units.seconds(change.seconds)} instead of {units.seconds(change.before)}"
    return f"{change.words}: {instead}, {change.gain:.0%} less."


def _times(made: Explanation) -> RenderableType:
    """Return the floor's terms and the prediction's."""
    chosen, whole = made.chosen, made.chosen.seconds
    rows = [[f"floor: {name}", units.seconds(seconds)] for name, seconds in _floor_terms(made)]
    terms = [[f"predicted: {name.replace('_', ' ')}", units.seconds(value)] for name, value in _shown(chosen)]
    rows += [*terms, ["predicted: all", units.seconds(whole)]]
    values = [*(seconds for _, seconds in _floor_terms(made)), *(value for _, value in _shown(chosen)), whole]
    cells = [[*row, units.percent(value / whole)] for row, value in zip(rows, values, strict=True)]
    return table("Where the time goes", [("term", "left"), ("time", "right"), ("of it all", "right")], cells)


def _shown(one: Candidate) -> list[tuple[str, float]]:
    return [(name, value) for name, value in one.terms.items() if value]


def _floor_terms(made: Explanation) -> Iterator[tuple[str, float]]:
    found: Floor = made.floor
    if found.flops_per_s is not None:
        yield f"operations at {units.quantity(found.flops_per_s, 'FLOP/s')} ({found.unit})", found.compute_seconds
    moved = units.quantity(made.problem.least_bytes, "B")
    rate = units.quantity(made.arch.dram_bytes_per_s, "B/s")
    yield f"least bytes, {moved} at {rate}", found.memory_seconds


def _choice(made: Explanation, offsets: int) -> Iterator[str]:
    chosen = made.chosen
    said = f"Choice: {chosen.kernel.entry}"
    if chosen.waves is not None:
        useful = units.percent(chosen.waves.useful)
        said += f" {described(chosen, chosen)}; {chosen.waves.words}, {useful} of its FMAs for D"
    if chosen.launches > 1:
        said += f"; {chosen.launches} launches"
    if chosen.workspace:
        said += f"; workspace {units.quantity(chosen.workspace, 'B')}"
    yield f"{said}."
    yield f"Constants: {chosen.config}"
    terms = "Main loop and epilogue are parts of compute, which overlaps with memory."
    yield f"{terms if 'main_loop' in chosen.terms else 'Terms may overlap.'} All of it is predicted, not measured."
    if offsets > 1:
        yield f"Launched {offsets} times, each at other offsets."


def _runner_ups(made: Explanation, width: int) -> RenderableType:
    room = width - max(len(one.candidate.kernel.entry) for one in made.runner_ups) - _NUMBERS
    most = min(_CONFIGURATION, room // 2)
    configurations = [_lines(described(one.candidate, made.chosen), most) for one in made.runner_ups]
    room -= max(len(line) for lines in configurations for line in lines)
    cells = [
        [
            one.candidate.kernel.entry,
            "\n".join(lines),
            units.seconds(one.candidate.seconds),
            units.percent(one.candidate.seconds / made.chosen.seconds - 1),
            "\n".join(_lines(_why(one), room)),
        ]
        for one, lines in zip(made.runner_ups, configurations, strict=True)
    ]
    columns = [("kernel", "left"), ("configuration", "left"), ("time", "right"), ("more", "right"), ("because", "left")]
    return table("Runner-ups: the best of other kernels, and of other configurations of this one", columns, cells)


def _why(one: RunnerUp) -> str:
    return "; ".join(
        f"{reason.words} (+{units.seconds(reason.seconds)})" if reason.seconds else reason.words
        for reason in one.reasons
    )


def _changes(made: Explanation) -> Iterator[str]:
    if not isinstance(made.problem, Gemm):
        return
    if not made.changes:
        yield f"No other alignment, sizes, layout or element type would save {LEAST_GAIN:.0%} of a call."
        return
    yield "What would be faster:"
    yield from (f"- {_gain(change)}" for change in made.changes)


def _list(made: Explanation, top: int, width: int) -> Iterator[RenderableType]:
    rows = made.legal[:top]
    constants = [_constants(one) for one in rows]
    names = dict.fromkeys(name for one in constants for name in one)
    differing = [name for name in names if len({one.get(name) for one in constants}) > 1]
    least = min(one.seconds for one in made.legal)
    kernels = {one.kernel.entry for one in rows}
    several = len(kernels) > 1  # one alone is told below the table
    room = width - _LISTED - max(several * len(one.kernel.entry) + len(one.bound) for one in rows)
    cells = [
        [
            *([one.kernel.entry] * several),
            "\n".join(_lines(" ".join(f"{name}={own[name]}" for name in differing if name in own), room)),
            units.seconds(one.seconds),
            units.percent(one.seconds / least - 1),
            units.seconds(one.call_seconds),
            one.bound + (" <- chosen" if one is made.chosen else ""),
        ]
        for one, own in zip(rows, constants, strict=True)
    ]
    columns = [("constants", "left"), ("time", "right"), ("excess", "right"), ("call", "right")]
    columns = [*([("kernel", "left")] * several), *columns]
    count = len(made.legal)
    said = f"The best {len(rows)} of {count} configurations" if count > len(rows) else f"All {count} configurations"
    yield table(said, [*columns, ("bound", "left")], cells)
    yield _wrapped("excess: over the least. call: of many in a row, with the host's part.", width)
    alike = " ".join(f"{name}={value}" for name, value in constants[0].items() if name not in differing)
    if len(rows) > 1:
        alike = " ".join([*([] if several else kernels), alike])
        yield _wrapped(f"Alike in all of these: {alike}", width)
