"""The report of ``matmill why`` on one problem: sentences and tables within a width, or a record for ``--json``."""

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
from matmill.kernels.shared.model import PRICES
from matmill.kernels.splitk import batch_invariant_slices
from matmill.lowering import SubProblem
from matmill.problem import Gemm

#: The most columns of a configuration, and the fewest of any wrapped text.
_CONFIGURATION, _LEAST = 28, 20
#: The first words of changes that are in lower case inside a sentence.
_STARTS = ("Rows", "Columns", "No ")
#: Columns that numbers and the space between columns take, in the table of runner-ups and in the list.
_NUMBERS, _LISTED = 23, 42


def record(explanation: Explanation, offsets: int) -> dict[str, Any]:
    """Return everything for a JSON document; ``offsets`` is the number of launches at different offsets."""
    chosen, near = explanation.chosen, explanation.recorded
    return {
        "problem": str(explanation.problem),
        "offsets": offsets,
        "floor": vars(explanation.floor),
        "share_of_floor": explanation.share,
        "because": vars(cause(explanation)),
        "best": {
            name: value for name, value in _row(chosen, chosen).items() if name in {"kernel", "config", "seconds"}
        },
        "chosen": _row(chosen, chosen),
        "runner_ups": [
            {**_row(one.candidate, chosen), "reasons": [vars(reason) for reason in one.reasons]}
            for one in explanation.runner_ups
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
            for one in explanation.changes
        ],
        "rows": [_row(one, chosen) for one in explanation.legal],
        "ruled_out": dict(explanation.ruled_out),
        "covering_set": explanation.covered,
        "exhaustive_seconds": explanation.exhaustive_seconds,
        "free_seconds": explanation.free_seconds,
        "recorded": near and {**near._asdict(), "faster": near.faster},
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
    """Yield the launches of a call that has several, and their total time."""
    parts = " and ".join(f"{len(stage.offsets)} x ({stage.problem})" for stage in stages)
    yield _wrapped(f"In all {units.seconds(seconds)} predicted, for {parts}. What follows is about one of each.", width)
    yield Text()


def report(explanation: Explanation, offsets: int, top: int, width: int) -> Iterator[RenderableType]:
    """Yield a summary sentence, the terms of the time, the runner-ups, and faster calls.

    With ``top`` the best configurations follow.
    """
    yield _wrapped(_summary(explanation), width)
    yield Text()
    if isinstance(explanation.problem, Gemm):
        yield _wrapped(_beside_torch(explanation), width)
        yield Text()
    yield _times(explanation)
    yield Text()
    for line in _choice(explanation, offsets):
        yield _wrapped(line, width)
    if explanation.runner_ups:
        yield Text()
        yield _runner_ups(explanation, width)
    yield Text()
    yield from (_wrapped(line, width, "  ") for line in _changes(explanation))
    if top:
        yield Text()
        yield from _list(explanation, top, width)
    for reason, count in Counter(explanation.ruled_out.values()).items():
        yield _wrapped(f"Ruled out, {count} configuration{'s' if count > 1 else ''}: {reason}", width)


def _wrapped(text: str, width: int, indent: str = "") -> Text:
    return Text("\n".join(_lines(text, width, indent)))


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    width = max(width, _LEAST)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _summary(explanation: Explanation) -> str:
    """Return a sentence with the time, its main reason, and the best change."""
    chosen, reason = explanation.chosen, cause(explanation)
    whole = max(chosen.call_seconds, chosen.seconds)
    least = explanation.floor
    floor = f"{units.digits(whole / least.seconds)} times the floor of {units.seconds(least.seconds)}"
    part = f": {units.seconds(reason.seconds)} of it" if reason.seconds < chosen.seconds else ""
    text = (
        f"{explanation.problem}, {explanation.arch.title}: {units.seconds(whole)} predicted, {floor} ({least.bound}), "
        f"because {reason.words}{part}."
    )
    if not explanation.changes:
        return text
    best = explanation.changes[0]
    words = best.words[0].lower() + best.words[1:] if best.words.startswith(_STARTS) else best.words
    return f"{text} It would be {units.seconds(best.seconds)} with {words}."


#: What to do by who is faster.
_ADVICE = {"matmill": "Use matmill", "torch": "Keep torch", "equal": "Either will do"}
_ORDERS = {"n": "rows", "t": "columns"}


def _beside_torch(explanation: Explanation) -> str:
    """Return the sentence on whether to keep torch: the nearest product that was timed beside cuBLAS."""
    near, title = explanation.recorded, explanation.arch.title
    if near is None:
        return f"Keep torch or switch: no product near this one was timed beside cuBLAS on an {title}; time both."
    a, b = (_ORDERS[layout] for layout in near.layouts)
    return (
        f"{_ADVICE[near.faster]}: torch, with cuBLAS, took {units.digits(near.ratio)} times matmill's time for "
        f"{near.problem} with A by {a} and B by {b}, the nearest product that was timed on an {title}."
    )


def _gain(change: Change) -> str:
    instead = f"{units.seconds(change.seconds)} instead of {units.seconds(change.before)}"
    return f"{change.words}: {instead}, {change.gain:.0%} less."


def _times(explanation: Explanation) -> RenderableType:
    """Return the floor's terms and the prediction's; all of it is what the summary begins with."""
    chosen = explanation.chosen
    whole = max(chosen.call_seconds, chosen.seconds)
    rows = [(f"floor: {name}", seconds) for name, seconds in _floor_terms(explanation)]
    if isinstance(explanation.problem, Gemm):
        rows.append(("predicted: launch", PRICES.launch))
    rows += [(f"predicted: {name.replace('_', ' ')}", value) for name, value in _shown(chosen)]
    if whole > chosen.seconds:
        rows += [
            ("predicted: all on the GPU", chosen.seconds),
            ("predicted: wait for the host", whole - chosen.seconds),
        ]
    rows.append(("predicted: all", whole))
    cells = [[name, units.seconds(value), units.percent(value / whole)] for name, value in rows]
    return table("Where the time goes", [("term", "left"), ("time", "right"), ("of it all", "right")], cells)


def _shown(one: Candidate) -> list[tuple[str, float]]:
    return [(name, value) for name, value in one.terms.items() if value]


def _floor_terms(explanation: Explanation) -> Iterator[tuple[str, float]]:
    floor: Floor = explanation.floor
    if floor.flops_per_s is not None:
        yield f"operations at {units.quantity(floor.flops_per_s, 'FLOP/s')} ({floor.unit})", floor.compute_seconds
    moved = units.quantity(explanation.problem.least_bytes, "B")
    rate = units.quantity(explanation.arch.dram_bytes_per_s, "B/s")
    yield f"least bytes, {moved} at {rate}", floor.memory_seconds


def _choice(explanation: Explanation, offsets: int) -> Iterator[str]:
    chosen = explanation.chosen
    text = f"Choice: {chosen.kernel.entry}"
    if chosen.waves is not None:
        useful = units.percent(chosen.waves.useful)
        text += f" {described(chosen, chosen)}; {chosen.waves.words}, {useful} of its FMAs for D"
    if chosen.launches > 1:
        text += f"; {chosen.launches} launches"
    if chosen.workspace:
        text += f"; workspace {units.quantity(chosen.workspace, 'B')}"
    yield f"{text}."
    yield f"Constants: {chosen.config}"
    if explanation.covered is not None:
        yield _covered(explanation)
    if explanation.free_seconds is not None:
        yield _batch_invariant(explanation.problem, explanation.chosen.seconds, explanation.free_seconds)
    terms = "Main loop and epilogue are parts of compute, which overlaps with memory."
    yield f"{terms if 'main_loop' in chosen.terms else 'Terms may overlap.'} All of it is predicted, not measured."
    if offsets > 1:
        yield f"Launched {offsets} times, each at other offsets."


def _batch_invariant(problem: Any, seconds: float, free: float) -> str:
    """Return the sentence about the order of a batch-invariant sum, and what it costs."""
    slices = batch_invariant_slices(problem)
    order = "in one slice of k" if slices == 1 else f"in {slices} slices of {problem.slice_k} terms of k"
    cost = f"costs {units.percent(seconds / free - 1)}" if seconds > free else "costs nothing"
    return f"Batch-invariant: summed {order} for every m, which {cost}; in any order it is {units.seconds(free)}."


def _covered(explanation: Explanation) -> str:
    """Return the sentence about the covering set, and what the choice among all configurations would save."""
    legal = len(explanation.legal)
    text = f"Chosen among {explanation.covered} of {legal} legal configurations, those of the covering set"
    saved = explanation.chosen.seconds - explanation.exhaustive_seconds
    if saved <= 0:
        return f"{text}; the choice among all is no faster."
    share = units.percent(saved / explanation.chosen.seconds)
    return f"{text}; the choice among all would save {units.seconds(saved)}, {share}."


def _runner_ups(explanation: Explanation, width: int) -> RenderableType:
    room = width - max(len(one.candidate.kernel.entry) for one in explanation.runner_ups) - _NUMBERS
    most = min(_CONFIGURATION, room // 2)
    configurations = [_lines(described(one.candidate, explanation.chosen), most) for one in explanation.runner_ups]
    room -= max(len(line) for lines in configurations for line in lines)
    cells = [
        [
            one.candidate.kernel.entry,
            "\n".join(lines),
            units.seconds(one.candidate.seconds),
            units.percent(one.candidate.seconds / explanation.chosen.seconds - 1),
            "\n".join(_lines(_why(one), room)),
        ]
        for one, lines in zip(explanation.runner_ups, configurations, strict=True)
    ]
    columns = [("kernel", "left"), ("configuration", "left"), ("time", "right"), ("more", "right"), ("because", "left")]
    return table("Runner-ups: the best of other kernels, and of other configurations of this one", columns, cells)


def _why(one: RunnerUp) -> str:
    return "; ".join(
        f"{reason.words} (+{units.seconds(reason.seconds)})" if reason.seconds else reason.words
        for reason in one.reasons
    )


def _changes(explanation: Explanation) -> Iterator[str]:
    if not isinstance(explanation.problem, Gemm):
        return
    if not explanation.changes:
        yield f"No other alignment, sizes, layout or element type would save {LEAST_GAIN:.0%} of a call."
        return
    yield "What would be faster:"
    yield from (f"- {_gain(change)}" for change in explanation.changes)


def _list(explanation: Explanation, top: int, width: int) -> Iterator[RenderableType]:
    rows = explanation.legal[:top]
    if explanation.chosen not in rows:  # others of all configurations are better than those of the covering set
        rows = (*rows, explanation.chosen)
    constants = [_constants(one) for one in rows]
    names = dict.fromkeys(name for one in constants for name in one)
    differing = [name for name in names if len({one.get(name) for one in constants}) > 1]
    least = min(one.seconds for one in explanation.legal)
    kernels = {one.kernel.entry for one in rows}
    several = len(kernels) > 1  # a single kernel is named below the table
    room = width - _LISTED - max(several * len(one.kernel.entry) + len(one.bound) for one in rows)
    cells = [
        [
            *([one.kernel.entry] * several),
            "\n".join(_lines(" ".join(f"{name}={own[name]}" for name in differing if name in own), room)),
            units.seconds(one.seconds),
            units.percent(one.seconds / least - 1),
            units.seconds(one.call_seconds),
            one.bound + (" <- chosen" if one is explanation.chosen else ""),
        ]
        for one, own in zip(rows, constants, strict=True)
    ]
    columns = [("constants", "left"), ("time", "right"), ("excess", "right"), ("call", "right")]
    columns = [*([("kernel", "left")] * several), *columns]
    count = len(explanation.legal)
    best = f"The best {min(top, count)} of {count} configurations"
    title = f"All {count} configurations" if top >= count else best if len(rows) == top else f"{best}, and the choice"
    yield table(title, [*columns, ("bound", "left")], cells)
    yield _wrapped("excess: over the least. call: of many in a row, with the host's part.", width)
    alike = " ".join(f"{name}={value}" for name, value in constants[0].items() if name not in differing)
    if len(rows) > 1:
        alike = " ".join([*([] if several else kernels), alike])
        yield _wrapped(f"Alike in all of these: {alike}", width)
