"""Which lanes of a warp execute a collective together: those that name the same member mask.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "elect.sync", "bar.warp.sync": a lane waits until all
lanes of its mask that have not exited execute the instruction with the same mask. The mask must name the lane itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.site import Site
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import HazardLog

Flags = NDArray[np.bool_]
Masks = NDArray[np.uint32]

FULL = np.uint32(0xFFFFFFFF)
_LANE = np.arange(LANES, dtype=np.uint32)
_BITS = np.uint32(1) << _LANE
# All lanes of every warp, for the usual collective.
WHOLE = np.ones((1, 1, LANES), np.bool_)


def ballot(flags: Flags) -> Masks:
    """bool[..., 32] to masks [...]."""
    return np.asarray(np.where(flags, _BITS, np.uint32(0)).sum(axis=-1, dtype=np.uint32))


def named(masks: Masks) -> Flags:
    """Masks [...] to the lanes that they name, bool[..., 32]."""
    return (masks[..., None] & _BITS) != 0


def in_own(masks: Masks) -> Flags:
    """Whether each lane's mask (uint32[warps, 32]) names the lane itself."""
    return (masks & _BITS) != 0


def companions(masks: Masks, lanes: Flags) -> Flags:
    """For each lane those of ``lanes`` (bool[warps, 32]) that name its mask and are named by it.

    bool[warps, 32, 32], or [warps, 1, 32] where all lanes of each warp have the same companions.
    """
    lanes = lanes & in_own(masks)
    first = masks[np.arange(len(masks)), lanes.argmax(axis=1)]
    alike = (masks == first[:, None]) | ~lanes
    if alike.all():
        return np.asarray(lanes[:, None, :])
    return np.asarray((masks[:, :, None] == masks[:, None, :]) & lanes[:, None, :])


def missing(masks: Masks, together: Flags, live: Flags) -> Masks:
    """The lanes that each lane's mask names and that live, but are not among its companions, as masks [warps, 32]."""
    return np.asarray(masks & ballot(live)[:, None] & ~ballot(together))


def lane_list(mask: int) -> str:
    """The lanes of a mask in words: "lane 4", "lanes 0-15, 20"."""
    lanes = [lane for lane in range(LANES) if mask >> lane & 1]
    starts = [lane for lane in lanes if lane - 1 not in lanes]
    ends = [lane for lane in lanes if lane + 1 not in lanes]
    spans = [f"{a}-{b}" if b > a else f"{a}" for a, b in zip(starts, ends, strict=True)]
    return f"lane{'s' if len(lanes) > 1 else ''} {', '.join(spans)}"


def report_outside(hazards: HazardLog, kernel: str, thread: str, lane: int, mask: int, i: Instruction) -> None:
    """Report a lane that executes a collective with a mask that does not name it."""
    message = f"{kernel}: {thread}, lane {lane} of its warp, executes {i.text!r} with mask {mask:#010x}, which leaves it out"
    hazards.add("shuffle", (i, "outside"), message, i)


class Together:
    """Who executes a collective together, for an instruction bound to a site.

    Called with the rows of the member masks (none for the old forms without ``.sync``), it returns the lanes that each
    lane exchanges with, bool[warps, 32 or 1, 32] (``WHOLE`` itself where all warps are whole), and the lanes whose
    result is undefined, bool[warps, 32] or None. It reports masks that leave out the lane itself, and lanes of one mask
    that name different masks.
    """

    def __init__(self, site: Site, i: Instruction) -> None:
        self.site = site
        self.machine = site.machine
        self.lanes = site.lanes
        self.instruction = i
        self.active: Callable[[], Flags] = site.participants()

    def __call__(self, *rows: Row) -> tuple[Flags, Flags | None]:
        """The companions of each lane, and the lanes whose result is undefined."""
        active = self.active()
        if active.all() and all((row == FULL).all() for row in rows):
            return WHOLE, None
        if not rows:
            return active[:, None, :], None
        masks = self.masks(rows[0])
        together = companions(masks, active)
        outside = active & ~in_own(masks)
        if outside.any():
            lane = int(np.flatnonzero(outside)[0])
            mask = int(masks.flat[lane])
            hazards, kernel = self.machine.hazards, self.machine.launch.kernel
            report_outside(hazards, kernel, self.lanes.thread_name(lane), lane % LANES, mask, self.instruction)
        absent = missing(masks, together, self.live())
        deserted = active & ~outside & (absent != 0)
        if deserted.any():
            self._report_others(masks, absent, deserted, active)
        undefined = outside | deserted
        return together, undefined if undefined.any() else None

    def unreadable(self, source: Row, companions: Flags, undefined: Flags | None, *rows: Row) -> Flags:
        """The lanes, bool[warps, 32], whose result is undefined or which read a lane (``source``) not with them.

        Of the latter one is reported.
        """
        active = self.active()
        readable = np.take_along_axis(np.broadcast_to(companions, (*active.shape, LANES)), source[:, :, None], axis=2)
        lost = active & ~readable[:, :, 0]
        if undefined is not None:
            lost &= ~undefined
        if lost.any():
            self._report_read(source, lost, *rows)
        return lost if undefined is None else lost | undefined

    def _report_read(self, source: Row, lost: Flags, *rows: Row) -> None:
        i, lane = self.instruction, int(np.flatnonzero(lost)[0])
        read = lane // LANES * LANES + int(source.flat[lane])
        if not self.lanes.geometry.exists[self.lanes.columns[read]]:
            why = "which the block does not have"
        elif not self.live().flat[read]:
            why = f"{self.lanes.thread_name(read)}, which has exited"
        elif rows:
            mask = int(self.masks(rows[0]).flat[lane])
            why = f"{self.lanes.thread_name(read)}, which its mask {mask:#010x} does not name"
        else:
            why = f"{self.lanes.thread_name(read)}, which does not execute it"
        message = (
            f"{self.machine.launch.kernel}: {self.lanes.thread_name(lane)} reads lane {read % LANES} of its warp, {why}, "
            f"in {i.text!r}"
        )
        self.machine.hazards.add("shuffle", (i, "source"), message, i)

    def masks(self, row: Row) -> Masks:
        """A row (or scalar) of masks as uint32[warps, 32]."""
        return np.broadcast_to(row, self.lanes.count).reshape(-1, LANES)

    def live(self) -> Flags:
        """The lanes that exist and have not exited: bool[warps, 32]."""
        return self.machine.live[self.lanes.warps]

    def _report_others(self, masks: Masks, absent: Masks, deserted: Flags, active: Flags) -> None:
        """Report lanes that are here too, but name another mask. Of others that never came the scheduler tells."""
        others = absent & ballot(active)[:, None]
        found = np.flatnonzero(deserted & (others != 0))
        if not len(found):
            return
        i, lane = self.instruction, int(found[0])
        missed = int(others.flat[lane])
        other = lane // LANES * LANES + (missed & -missed).bit_length() - 1
        message = (
            f"{self.machine.launch.kernel}: {self.lanes.thread_name(lane)} executes {i.text!r} with mask "
            f"{int(masks.flat[lane]):#010x}, but {lane_list(missed)} of its warp with another: "
            f"{self.lanes.thread_name(other)} with {int(masks.flat[other]):#010x}"
        )
        self.machine.hazards.add("shuffle", (i, "members"), message, i)
