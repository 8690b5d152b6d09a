"""The order of a block's events: roles as rows, runs of events as bars, each as far left as the barriers allow.

A position is an order, not a time. An event comes after those before it in its row and after what it waited for; a
product or a store takes one step, a load a quarter of one, and everything else none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TypeAlias

from matmill.emulator import Event

#: A use of a stage of the pipeline: the mbarrier that its loads complete on, and the phase.
Use: TypeAlias = tuple[int, int]
_STEPS = {"load": 0.25, "product": 1.0, "store": 1.0}
_WARP_GROUP = 4
_NUMBERS, _TIMES = {2: "two", 3: "three", 4: "four"}, {1: "once", 2: "twice"}


@dataclass(frozen=True)
class Bar:
    """A run of events in a row: "load", "product" or "store", or a "wait"; ``use`` is what they fill or read."""

    row: int
    kind: str
    start: float
    end: float
    use: Use | None = None


@dataclass
class Row:
    """A role: warps of the block, the kinds of their events, how far they are, and the loads that they waited for."""

    warps: Sequence[int]
    kinds: frozenset[str]
    name: str = ""
    now: float = 0
    use: Use | None = None

    @property
    def multiplies(self) -> bool:
        """True if the role computes with what was copied."""
        return not self.kinds.isdisjoint({"product", "read"})


class Placement:
    """The ``rows`` and ``bars`` of a block's events, and the ``turns`` that rows give: (from, to, position)."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.rows = _roles(events)
        self.bars: list[Bar] = []
        self.turns: set[tuple[int, int, float]] = set()
        #: The mbarriers of loads: the stages of the pipeline, in the order of their numbers.
        self.stages = sorted({event.barrier for event in events if event.kind == "load"})
        self.on_tensor_cores = any(event.kind == "product" for event in events)
        self.units = "the tensor cores" if self.on_tensor_cores else "the readers"
        self._row_of = {warp: n for n, row in enumerate(self.rows) for warp in row.warps}
        # When each phase of an mbarrier is complete, and by meeting its rows and the signal that it waits for.
        self._done: dict[Use, float] = {}
        self._met: dict[int, set[int]] = {}
        self._signals: dict[int, tuple[float, int]] = {}
        self._open: dict[tuple[int, bool], Bar] = {}
        for event in events:
            if event.kind == "meet" and event.warp in self._row_of:
                self._met.setdefault(event.phase, set()).add(self._row_of[event.warp])
        for event in events:
            if event.warp in self._row_of:
                self._place(event, self._row_of[event.warp])

    def _place(self, event: Event, n: int) -> None:
        row, use = self.rows[n], (event.barrier, event.phase)
        if event.kind == "wait":
            self._wait(n, self._done.get(use, 0))
            row.use = use if event.barrier in self.stages else row.use
        elif event.kind in {"load", "arrive"}:
            end = self._extend(n, "load", use) if event.kind == "load" else row.now
            self._done[use] = max(self._done.get(use, 0), end)
        elif event.kind == "signal":
            self._signals[event.phase] = max(self._signals.get(event.phase, (0.0, n)), (row.now, n))
        elif event.kind == "meet":
            self._meet(event.phase, n)
        elif event.kind == "product" or (event.kind == "read" and not self.on_tensor_cores and row.use):
            self._extend(n, "product", row.use)
        elif event.kind == "store" or (event.kind == "write" and "product" in row.kinds):
            self._extend(n, "store", None)

    def _wait(self, n: int, until: float) -> None:
        """Let a row wait until a position."""
        if until > self.rows[n].now:
            self.bars.append(Bar(n, "wait", self.rows[n].now, until))
            self.rows[n].now = until

    def _meet(self, meeting: int, n: int) -> None:
        """Let a row wait for the others that meet, or for the signal of one that does not wait."""
        at, giver = self._signals.get(meeting, (0.0, n))
        self._wait(n, max(at, *(self.rows[other].now for other in self._met[meeting]), 0.0))
        if giver != n:
            self.turns.add((giver, n, at))

    def _extend(self, n: int, kind: str, use: Use | None) -> float:
        """Add to a row's last bar, or begin another; return its end. Loads of a role that multiplies take no step."""
        row = self.rows[n]
        aside = kind == "load" and row.multiplies
        last = self._open.get((n, aside))
        if last is None or (last.kind, last.use) != (kind, use):
            start = max(row.now, last.end) if last is not None and aside else row.now
            last = self._open[n, aside] = Bar(n, kind, start, start + _STEPS[kind], use)
            self.bars.append(last)
            row.now = row.now if aside else last.end
        return last.end

    def of_kind(self, kind: str) -> list[Bar]:
        """Return the bars of a kind from left to right."""
        return sorted((bar for bar in self.bars if bar.kind == kind), key=lambda bar: bar.start)

    def gaps(self) -> list[tuple[float, float]]:
        """Return where between products there is none."""
        products = self.of_kind("product")
        until = accumulate((bar.end for bar in products), max)
        return [(end, bar.start) for end, bar in zip(until, products[1:], strict=False) if bar.start > end]

    def conclusion(self) -> str:
        """Describe how roles share the products, or reads, and whether anything interrupts these."""
        products, stores, gaps = self.of_kind("product"), self.of_kind("store"), self.gaps()
        if not products:
            return "what the warps wait for"
        rows, last = sorted({bar.row for bar in products}), max(bar.end for bar in products)
        one, many = ("multiplies", "multiply") if self.on_tensor_cores else ("reads", "read")
        if len(rows) == 1:
            who = f"one role {'copies and ' if 'load' in self.rows[rows[0]].kinds else ''}{one}"
        else:
            alone = all(first.end <= second.start for first, second in pairwise(products))
            how = "alternate" if alone else f"{many} side by side"
            who = f"{_NUMBERS.get(len(rows), str(len(rows)))} consumers {how}"
        if gaps:
            stored = all(any(bar.start < end and bar.end > start for bar in stores) for start, end in gaps)
            times = _TIMES.get(len(gaps), f"{len(gaps)} times")
            return f"{who}, and {self.units} wait {times}, {'while tiles are stored' if stored else 'for data'}"
        until = " until the tile is stored" if stores and stores[0].start >= last else ""
        return f"{who}, and no barrier holds up {self.units}{until}"


def _roles(events: Sequence[Event]) -> list[Row]:
    """Group warps to roles: warp groups where there is wgmma, else neighbours with events at the same lines."""
    of_warp: dict[int, set[tuple[str, str]]] = {}
    for event in events:
        of_warp.setdefault(event.warp, set()).add((event.kind, event.where))
    groups = any(event.kind == "product" for event in events)
    rows = []
    for _, members in groupby(sorted(of_warp), lambda warp: warp // _WARP_GROUP if groups else sorted(of_warp[warp])):
        warps = list(members)
        kinds = frozenset(kind for warp in warps for kind, _ in of_warp[warp])
        if kinds != {"meet"}:
            rows.append(Row(warps, kinds))
    consumers = [row for row in rows if row.multiplies and "load" not in row.kinds]
    for row in rows:
        if row in consumers:
            row.name = f"consumer {consumers.index(row)}" if len(consumers) > 1 else "consumer"
        else:
            row.name = "one role" if row.multiplies else "producer"
    return rows
