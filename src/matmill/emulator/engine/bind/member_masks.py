"""The lanes of a warp that execute a collective together, because they name the same member mask.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync": a lane waits until all
lanes of its mask that have not exited execute the instruction with the same mask. The mask must name the lane itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.lanes import by_warp
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES

Flags = NDArray[np.bool_]
Masks = NDArray[np.uint32]

FULL = np.uint32(0xFFFFFFFF)
_LANE = np.arange(LANES, dtype=np.uint32)
_BITS = np.uint32(1) << _LANE
# All lanes of every warp: the usual case.
WHOLE = np.ones((1, 1, LANES), np.bool_)


def ballot(flags: Flags) -> Masks:
    """Pack bool[..., 32] into masks [...]."""
    return np.asarray(np.where(flags, _BITS, np.uint32(0)).sum(axis=-1, dtype=np.uint32))


def in_own(masks: Masks) -> Flags:
    """Tell whether each lane's mask (uint32[warps, 32]) contains the lane itself."""
    return np.asarray((masks & _BITS) != 0)


def companions(masks: Masks, lanes: Flags) -> Flags:
    """Return for each lane its companions among ``lanes`` (bool[warps, 32]): they have the same mask, and are in it.

    The result is bool[warps, 32, 32], or [warps, 1, 32] if all lanes of each warp have the same companions.
    """
    lanes = lanes & in_own(masks)
    first = masks[np.arange(len(masks)), lanes.argmax(axis=1)]
    alike = (masks == first[:, None]) | ~lanes
    if alike.all():
        return np.asarray(lanes[:, None, :])
    return np.asarray((masks[:, :, None] == masks[:, None, :]) & lanes[:, None, :])


def missing(masks: Masks, together: Flags, live: Flags) -> Masks:
    """Return, as masks [warps, 32], the live lanes in each lane's mask that are not its companions."""
    return np.asarray(masks & ballot(live)[:, None] & ~ballot(together))


def lane_list(mask: int) -> str:
    """Format the lanes of a mask: "lane 4", "lanes 0-15, 20"."""
    lanes = [lane for lane in range(LANES) if mask >> lane & 1]
    starts = [lane for lane in lanes if lane - 1 not in lanes]
    ends = [lane for lane in lanes if lane + 1 not in lanes]
    spans = [f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True)]
    return f"lane{'s' if len(lanes) > 1 else ''} {', '.join(spans)}"


def leaves_out(thread: str, lane: int, mask: int, i: Instruction) -> str:
    """Return the message for a lane that executes a collective with a mask without that lane."""
    return f"{thread}, lane {lane} of its warp, executes {i.text!r} with mask {mask:#010x}, which leaves it out"


@dataclass(frozen=True)
class Exchange:
    """One execution of a collective by ``lanes`` (bool[warps, 32], None for all active lanes).

    ``companions`` are the lanes that each lane exchanges with, bool[warps, 32 or 1, 32]. The results of ``undefined``
    lanes (bool[warps, 32], None for no lane) are meaningless. ``operands`` are [warps, 32] each; for ``.sync``
    instructions the last one has the member masks.
    """

    lanes: Flags | None
    companions: Flags
    undefined: Flags | None
    operands: list[Row]


class Together:
    """The lanes that execute a collective together, for a bound instruction.

    It reports masks that lack the lane itself, lanes of one mask that name different masks, and shuffles that read a
    lane that does not take part.
    """

    def __init__(self, bound: BoundBlock, i: Instruction, *, synchronous: bool) -> None:
        self.machine = bound.machine
        self.lanes = bound.lanes
        self.instruction = i
        self.synchronous = synchronous
        self.active: Callable[[], Flags] = bound.participants()
        self._always_whole = bound.lanes.active is None and bound.guard is None
        self._known: tuple[list[Row], Flags] | None = None

    def whole(self, last: Row) -> bool:
        """Tell whether whole warps name all their lanes, as nearly always; ``last`` is the last operand."""
        if not self._always_whole and not self.active().all():
            return False
        return not self.synchronous or bool((last == FULL).all())

    def exchanges(self, *rows: Row) -> list[Exchange]:
        """Return the executions by the active lanes: one, and one for each meeting with lanes at other instructions."""
        active = self.active()
        operands = [by_warp(row, self.lanes.count) for row in rows]
        if not self.synchronous:
            return [Exchange(None, active[:, None, :], None, operands)]
        if not self.machine.pending_collectives:
            return [self._again(active, operands)]
        result, alone = [], active.copy()
        for lanes, present, joined in self._pending(active, operands):
            result.append(self._exchange(lanes, present, joined))
            alone &= ~lanes
        return [*result, self._exchange(alone, alone, operands)]

    def _again(self, active: Flags, operands: list[Row]) -> Exchange:
        """Return the exchange of all active lanes; companions are cached while the masks stay the same."""
        key = [operands[-1], active, self._live()]
        if self._known is not None and all(map(np.array_equal, self._known[0], key)):
            return Exchange(active, self._known[1], None, operands)
        exchange = self._exchange(active, active, operands)
        if exchange.undefined is None:
            self._known = [part.copy() for part in key], exchange.companions.copy()
        return exchange

    def _pending(self, active: Flags, operands: list[Row]) -> Iterator[tuple[Flags, Flags, list[Row]]]:
        """Yield meetings with lanes at other instructions.

        Each has the lanes that execute this instruction, all lanes that take part, and all operands.
        """
        for index, warp in enumerate(self.lanes.warps.tolist()):
            for meeting in list(self.machine.pending_collectives.get(warp, ())):
                mine = meeting.pending & active[index]
                if not mine.any():
                    continue
                lanes, present = np.zeros((2, *active.shape), np.bool_)
                lanes[index], present[index] = mine, meeting.lanes
                yield lanes, present, [np.where(present, *pair) for pair in zip(meeting.sources, operands, strict=True)]
                meeting.pending &= ~mine
                if not meeting.pending.any():
                    self.machine.pending_collectives[warp].remove(meeting)

    def _exchange(self, lanes: Flags, present: Flags, operands: list[Row]) -> Exchange:
        """Return the exchange of ``lanes`` with the lanes of their mask among all that are ``present``."""
        masks = operands[-1]
        together = companions(masks, present)
        outside = lanes & ~in_own(masks)
        if outside.any():
            lane = int(np.flatnonzero(outside)[0])
            i, thread = self.instruction, self.lanes.thread_name(lane)
            message = f"{self.machine.launch.kernel}: {leaves_out(thread, lane % LANES, int(masks.flat[lane]), i)}"
            self.machine.hazards.add("shuffle", (i, "outside"), message, i)
        absent = missing(masks, together, self._live())
        deserted = lanes & ~outside & (absent != 0)
        if deserted.any():
            self._report_others(masks, absent & ballot(present)[:, None], deserted)
        undefined = outside | deserted
        return Exchange(lanes, together, undefined if undefined.any() else None, operands)

    def unreadable(self, exchange: Exchange, source: Row) -> Flags:
        """Return the lanes, bool[warps, 32], whose result is undefined, or whose ``source`` does not take part.

        One of the latter is reported.
        """
        lanes = exchange.lanes if exchange.lanes is not None else self.active()
        readable = np.take_along_axis(
            np.broadcast_to(exchange.companions, (*lanes.shape, LANES)), source[:, :, None], 2
        )
        lost = lanes & ~readable[:, :, 0]
        undefined = exchange.undefined if exchange.undefined is not None else np.False_
        read = lost & ~undefined
        if read.any():
            self._report_read(source, int(np.flatnonzero(read)[0]), exchange.operands[-1])
        return lost | undefined

    def _live(self) -> Flags:
        """Return the lanes that exist and have not exited: bool[warps, 32]."""
        return self.machine.live[self.lanes.warps]

    def _report_read(self, source: Row, lane: int, masks: Row) -> None:
        """Report a lane that reads a lane that does not take part."""
        read = lane // LANES * LANES + int(source.flat[lane])
        name = self.lanes.thread_name
        if not self.lanes.geometry.exists[self.lanes.columns[read]]:
            why = "which the block does not have"
        elif not self._live().flat[read]:
            why = f"{name(read)}, which has exited"
        elif self.synchronous:
            why = f"{name(read)}, which its mask {int(masks.flat[lane]):#010x} does not name"
        else:
            why = f"{name(read)}, which does not execute it"
        i, kernel = self.instruction, self.machine.launch.kernel
        message = f"{kernel}: {name(lane)} reads lane {read % LANES} of its warp, {why}, in {i.text!r}"
        self.machine.hazards.add("shuffle-source", i, message, i)

    def _report_others(self, masks: Masks, others: Masks, deserted: Flags) -> None:
        """Report lanes that arrived with another mask; ``WarpMeetings`` reports lanes that never came."""
        positions = np.flatnonzero(deserted & (others != 0))
        if not len(positions):
            return
        i, lane = self.instruction, int(positions[0])
        missed = int(others.flat[lane])
        other = lane // LANES * LANES + (missed & -missed).bit_length() - 1
        message = (
            f"{self.machine.launch.kernel}: {self.lanes.thread_name(lane)} executes {i.text!r} with mask "
            f"{int(masks.flat[lane]):#010x}, but {lane_list(missed)} of its warp with another: "
            f"{self.lanes.thread_name(other)} with {int(masks.flat[other]):#010x}"
        )
        self.machine.hazards.add("shuffle", (i, "members"), message, i)
