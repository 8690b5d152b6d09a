"""Lanes of a warp that wait for each other: at collectives, at warp barriers, and before operations of whole warps.

Operations of whole warps are the barriers of their thread block and the waits for products of wgmma.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.bind.member_masks import FULL, Masks, companions, in_own, lane_list, leaves_out, missing
from matmill.emulator.engine.schedule.thread_names import end_instruction, representative
from matmill.emulator.engine.state.machine import PendingCollective
from matmill.emulator.engine.state.program_counters import BARRIER, DONE, HOLD, Flags, Ints, ProgramCounters
from matmill.emulator.frontend.syntax import Immediate
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Value
from matmill.emulator.program.waits import Barrier, Converge, GroupWait


def _kind(end: Terminator) -> tuple[object, ...]:
    """Return the part that instructions must share for lanes to meet at them: opcode and modifiers."""
    return () if end.instruction is None else (end.instruction.name, end.instruction.modifiers)


class WarpMeetings:
    """The meetings of lanes of a batch's warps. ``waits`` are the waits of the program, by the block that follows."""

    def __init__(self, interpreter: Interpreter, counters: ProgramCounters, waits: Mapping[int, Terminator]) -> None:
        self._interpreter = interpreter
        self._machine = interpreter.machine
        self._blocks = interpreter.program.blocks
        self._counters = counters
        self._waits = waits
        self._group_waits = {n: end for n, end in waits.items() if isinstance(end.detail, GroupWait)}
        self._commits = 0

    def pass_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Let whole warps pass a collective or, if all lanes name all lanes, a barrier: the usual ``__syncwarp()``."""
        if not end.detail.barrier:
            return True
        warps = np.arange(first, last)
        members = end.detail.members
        literal = isinstance(members, Immediate) and int(members.value) & int(FULL) == FULL
        if not literal and not (self._members(end, warps) == FULL).all():
            return False
        self._meet_lanes(warps, np.ones((len(warps), LANES), np.bool_))
        return True

    def _meet_lanes(self, warps: Ints, lanes: Flags) -> None:
        """Record that ``lanes`` (bool[n, 32]) of warps have met at a warp barrier."""
        machine = self._machine
        if machine.detector is not None:
            machine.detector.warp_barrier(machine.warp_ids(warps), lanes)
        if machine.dependency is not None and machine.dependency.left:
            for warp, some in zip(warps.tolist(), lanes, strict=True):
                machine.dependency.meet(warp * LANES + np.flatnonzero(some))

    def meet(self, end: Terminator, warps: Ints) -> tuple[Ints, Flags]:
        """Return those of ``warps`` with lanes that have all met at a wait, and these lanes: bool[n, 32].

        Lanes that wait at other collectives of the same kind may be among them.
        """
        counter = self._counters.counter[warps]
        here, masks = self._waiting(end, warps)
        outside = here & ~in_own(masks)
        together = companions(masks, here)
        met = here & ((missing(masks, together, counter < DONE) == 0) | outside)
        rows = met.any(axis=1)
        if not rows.any():
            return warps[rows], met[rows]
        if isinstance(end.detail, Converge) and end.detail.barrier:
            if outside.any():
                self._report_outside(end, warps, masks, outside)
            self._order(warps, np.broadcast_to(together, (*met.shape, LANES)), met & ~outside)
        elif isinstance(end.detail, Converge):
            for row in np.flatnonzero((met & (counter != HOLD + end.next)).any(axis=1)):
                self._keep_sources(int(warps[row]), met[row])
        return warps[rows], met[rows]

    def left_behind(self, warps: Ints) -> Iterator[tuple[Terminator, Ints]]:
        """Yield the waits at which lanes of ``warps`` wait for others, maybe exited ones, with these warps."""
        counter = self._counters.counter[warps]
        held = warps[((counter >= HOLD) & (counter < BARRIER)).any(axis=1)]
        for following, end in self._waits.items() if len(held) else ():
            waiting = held[(self._counters.counter[held] == HOLD + following).any(axis=1)]
            if len(waiting):
                yield end, waiting

    def _waiting(self, end: Terminator, warps: Ints) -> tuple[Flags, Masks]:
        """Return the lanes that wait here or, for a collective, at another one of its kind, and their masks.

        Both are [warps, 32].
        """
        counter = self._counters.counter[warps]
        here = counter == HOLD + end.next
        if not isinstance(end.detail, Converge):
            return here, np.full(counter.shape, FULL)
        masks = self._members(end, warps)
        elsewhere = (counter >= HOLD) & (counter < BARRIER) & ~here
        for point in np.unique(counter[elsewhere]):
            other = self._waits[int(point) - HOLD]
            if isinstance(other.detail, Converge) and _kind(other) == _kind(end):
                there = counter == point
                here = here | there
                masks = np.where(there, self._members(other, warps), masks)
        return here, masks

    def _members(self, end: Terminator, warps: Ints) -> Masks:
        return self._interpreter.operand_row(Value(end.detail.members, "u4"), warps)

    def _keep_sources(self, warp: int, met: Flags) -> None:
        """Keep the operands of lanes that meet at different instructions until each has executed its own."""
        counter, warps = self._counters.counter[warp], np.array([warp])
        kept: list[NDArray[Any]] = []
        for point in np.unique(counter[met]):
            action = self._blocks[int(point) - HOLD].actions[0]
            rows = [self._interpreter.operand_row(source, warps)[0] for source in action.sources]
            kept = [np.where(counter == point, *pair) for pair in zip(rows, kept or rows, strict=True)]
        self._machine.pending_collectives.setdefault(warp, []).append(PendingCollective(met, met.copy(), kept))

    def _order(self, warps: Ints, together: Flags, met: Flags) -> None:
        """Record that lanes met at a warp barrier, those of one mask after those of another."""
        while met.any():
            rows = np.flatnonzero(met.any(axis=1))
            group = met[rows] & together[rows, met[rows].argmax(axis=1)]
            self._meet_lanes(warps[rows], group)
            met[rows] &= ~group

    def begin(self) -> None:
        """Start a batch, in which nobody waits."""
        self._commits = self._machine.products.commits

    def groups_closed(self) -> Iterator[tuple[Terminator, Ints]]:
        """Yield each wait for products, with the whole warps at it, if a group was committed since the last call."""
        commits = self._machine.products.commits
        if commits == self._commits:
            return
        self._commits = commits
        counters = self._counters
        for following, end in self._group_waits.items():
            waiting = np.flatnonzero(counters.whole & (counters.first == HOLD + following))
            if len(waiting):
                yield end, waiting

    def committed_by_all(self, end: Terminator, warps: Ints) -> Flags:
        """Return which whole warps need not wait for their warpgroups to commit: bool[n]."""
        flags: Flags = self._machine.products.committed_by_all(warps, end.detail.allowed)
        return flags

    def wait_for_products(self, end: Terminator, warps: Ints) -> None:
        """Wait for products of the warpgroups of whole warps; products that were delayed take effect now."""
        wait: GroupWait = end.detail
        products = self._machine.products
        if end.instruction is not None:
            products.warpgroups.executed(warps, end.instruction)
        self._machine.progress += products.wait(warps, wait.allowed)
        events = self._machine.events
        if events is not None:
            everybody = np.ones((1, LANES), np.bool_)
            for warp in warps.tolist():
                for agent in products.ended(warp):
                    events.agent_joined(agent, self._machine.warp_ids(np.array([warp])), everybody)

    def abandon(self) -> tuple[Terminator, Ints, Flags] | None:
        """Release lanes that wait in vain for others of their warp, which is a hazard: nobody can run.

        Returns the wait, the warps, and these lanes (bool[n, 32]), or None if there are none.
        """
        held = self._counters.held()
        # Whole warps that wait for their warpgroups are not deserted by lanes of their own.
        groups = [HOLD + following for following in self._group_waits]
        held = held[~(self._counters.whole[held] & np.isin(self._counters.first[held], groups))]
        if not len(held):
            return None
        first = self._counters.first[held]
        point = int(first.min())
        warps = held[first == point]
        end = self._waits[point - HOLD]
        self._report_desertion(end, int(warps[0]), point)
        return end, warps, self._counters.counter[warps] == point

    def _report_desertion(self, end: Terminator, warp: int, point: int) -> None:
        """Report that lanes of a warp wait at a point for others that never come, and where those are."""
        machine, instruction = self._machine, end_instruction(end)
        counter, warps = self._counters.counter[warp], np.array([warp])
        here, masks = self._waiting(end, warps)
        absent = missing(masks, companions(masks, here), counter[None] < DONE)[0]
        lane = int(np.flatnonzero((counter == point) & (absent != 0))[0])
        gone = int(absent[lane])
        other = (gone & -gone).bit_length() - 1
        mask = "" if isinstance(end.detail, Barrier) else f" with mask {int(masks[0, lane]):#010x}"
        message = (
            f"{machine.launch.kernel}: {machine.geometry.thread_name(warp * LANES + lane)} waits in "
            f"{instruction.text!r}{mask} for {lane_list(gone)} of its warp, which never come: "
            f"{machine.geometry.thread_name(warp * LANES + other)} {self._doing(int(counter[other]))}"
        )
        if here[0, other]:
            message += f" with mask {int(masks[0, other]):#010x}"
        exchange = isinstance(end.detail, Converge) and not end.detail.barrier
        kind, key = ("shuffle", (instruction, "members")) if exchange else ("divergent-barrier", instruction)
        machine.hazards.add(kind, key, message, instruction)

    def _doing(self, counter: int) -> str:
        """Describe what a lane with this counter does, for messages."""
        waits = counter >= HOLD
        instruction = end_instruction(self._waits[counter % HOLD]) if waits else representative(self._blocks[counter])
        return f"{'waits' if waits else 'is'} at {instruction.location} ({instruction.text!r})"

    def _report_outside(self, end: Terminator, warps: Ints, masks: Masks, outside: Flags) -> None:
        """Report a lane that waits at a warp barrier with a mask without that lane."""
        row, lane = (int(x[0]) for x in np.nonzero(outside))
        thread, i = self._machine.geometry.thread_name(int(warps[row]) * LANES + lane), end_instruction(end)
        message = f"{self._machine.launch.kernel}: {leaves_out(thread, lane, int(masks[row, lane]), i)}"
        self._machine.hazards.add("shuffle", (i, "outside"), message, i)
