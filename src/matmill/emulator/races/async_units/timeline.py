"""The events of one thread block in the order of execution: what its warps copy, wait for, multiply and store.

``TimelineDetector`` is a race detector that also writes them down. The engine reports to it what it reports to every
detector, so that a launch without a timeline pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.races.async_units.async_detector import AsyncDetector, Flags
from matmill.emulator.races.async_units.async_events import Name
from matmill.emulator.races.detector import Arrival
from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.report.events import Event


class TimelineDetector(AsyncDetector):
    """A race detector with the ``events`` of the launch's first block, by the program's ``instructions``."""

    def __init__(self, instructions: Sequence[Instruction], *, clusters: Ints, warps_per_block: int) -> None:
        super().__init__(clusters=clusters, warps_per_block=warps_per_block)
        self.events: list[Event] = []
        self._instructions = instructions
        self._block = int(clusters[0, 0])
        self._open_phases: dict[int, int] = {}
        # By operation in flight: the warp that issued it, and the bytes that it writes.
        self._issued: dict[int, tuple[int, int]] = {}
        # Signals that no meeting has taken yet: their event's index, by the identity of what they pass on.
        self._signals: dict[int, int] = {}
        self._meetings = 0

    def _note(self, warp: int, kind: str, where: int = -1, **what: int) -> None:
        """Append an event of a warp, numbered in the launch, if it is of the block."""
        block, number = divmod(int(warp), self._warps_per_block)
        if block == self._block:
            location = self._instructions[where].location if where >= 0 else ""
            self.events.append(Event(number, kind, **what, where=location))

    def _note_threads(self, kind: str, barrier: Name, warps: Ints, lanes: Flags, **event: int) -> None:
        """Append an event for each warp with any of ``lanes`` at an mbarrier of the block."""
        for warp, count in zip(warps.tolist(), lanes.sum(axis=1).tolist(), strict=True):
            if count and barrier[0] == self._block:
                self._note(warp, kind, barrier=barrier[1], count=count, **event)

    def access(self, space: str, **access: Any) -> None:
        """Record an access, as an event if it writes or is to shared memory."""
        super().access(space, **access)
        kind = access["kind"] if space == "shared" else "store" if access["kind"] == "write" else ""
        for warp, active in zip(access["warp"].tolist(), access["active"], strict=True):
            if kind in {"store", "read", "write"} and active.any():
                self._note(warp, kind, access["where"], count=int(active.sum()) * access["width"])

    # Barriers of blocks

    def arrival(self, warp: int) -> Arrival:
        """Record an arrival without a wait as a signal."""
        arrival = super().arrival(warp)
        self._note(warp, "signal")
        self._signals[id(arrival)] = len(self.events) - 1 if warp // self._warps_per_block == self._block else -1
        return arrival

    def barrier(self, warps: Ints, arrivals: Sequence[Arrival] = ()) -> None:
        """Record a meeting of warps, and which signals it was for."""
        for index in (self._signals.pop(id(each)) for each in arrivals):
            if index >= 0:
                self.events[index] = replace(self.events[index], phase=self._meetings)
        if len(warps) != self._warps_per_block:
            self._meet(warps.tolist())
        super().barrier(warps, arrivals)

    def _meet_in_full(self, blocks: Ints) -> None:
        for block in blocks.tolist():
            self._meet(range(block * self._warps_per_block, (block + 1) * self._warps_per_block))
        super()._meet_in_full(blocks)

    def _meet(self, warps: Iterable[int]) -> None:
        for warp in warps:
            self._note(warp, "meet", phase=self._meetings)
        self._meetings += 1

    # mbarriers

    def init_barrier(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Record a barrier, in its first phase."""
        super().init_barrier(barrier, warps, lanes, where=where)
        if barrier[0] == self._block:
            self._open_phases[barrier[1]] = 0

    def phase_done(self, barrier: Name) -> None:
        """Count the completed phase."""
        super().phase_done(barrier)
        if barrier[0] == self._block:
            self._open_phases[barrier[1]] += 1

    def arrive(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Record arrivals."""
        super().arrive(barrier, warps, lanes, where=where)
        self._note_threads("arrive", barrier, warps, lanes, phase=self._open_phases.get(barrier[1], 0), where=where)

    def passed(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Record waits that have ended."""
        super().passed(barrier, warps, lanes, where=where)
        phase = self._open_phases.get(barrier[1], 0) - 1
        self._note_threads("wait", barrier, warps, lanes, phase=phase, where=where)

    # Asynchronous units

    def issue(self, warp: int, lanes: Flags, *, fenced: bool = False) -> int:
        """Remember who issues an operation."""
        agent = super().issue(warp, lanes, fenced=fenced)
        self._issued[agent] = warp, 0
        return agent

    def agent_access(self, agent: int, kind: str, *, block: int, offsets: Ints, width: int, where: int) -> None:
        """Record the first operand of a product, and count the bytes of a copy."""
        super().agent_access(agent, kind, block=block, offsets=offsets, width=width, where=where)
        if kind == "write" and agent in self._issued:
            warp, nbytes = self._issued[agent]
            self._issued[agent] = warp, nbytes + len(offsets) * width
        elif self._instructions[where].name == "wgmma" and agent in self._issued:
            self._note(self._issued.pop(agent)[0], "product", where, count=1)

    def agent_completes(self, agent: int, barrier: Name, *, where: int) -> None:
        """Record a load, for the open phase of its mbarrier."""
        super().agent_completes(agent, barrier, where=where)
        if barrier[0] == self._block and agent in self._issued:
            warp, nbytes = self._issued[agent]
            self._note(
                warp, "load", where, barrier=barrier[1], phase=self._open_phases.get(barrier[1], 0), count=nbytes
            )
