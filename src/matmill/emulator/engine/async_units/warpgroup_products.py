"""Products of warpgroups in flight: wgmma's groups, when a product acts, and who waits for it.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A product is the warpgroup's: a warp passes a wait for its
groups once all four warps have committed them, and they are complete for all four then (measured on an H100,
2026-11-25). Each warp computes its quarter when it issues the product or, in the late schedule, at the first of the
four waits that cover its group: only then it reads A and B. Meanwhile its sums are kept aside, and their registers
hold a NaN, which shows where a kernel uses them too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.async_units.warpgroups import Warpgroups
from matmill.emulator.engine.lanes import Geometry
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import HazardLog

Ints: TypeAlias = "NDArray[np.int64]"
#: Rows of a register file: consecutive ones, or any.
Rows: TypeAlias = "slice | Ints"
_POISON = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Issued:
    """One instruction that some ``warps`` of the batch issued, each into its open ``group``.

    ``descriptors`` are uint64[operands in shared memory, warps]; where ``adds`` (bool[warps]) is false the old sums are
    ignored. ``multiply`` gets this, the sums (uint32[registers, 32 warps]) and A's registers if it has any, and returns
    the new sums. ``agents`` are the race detector's names of the products, one for each warp, if it wants to know.
    """

    instruction: Instruction
    warps: Ints
    descriptors: NDArray[np.uint64]
    adds: Mask
    sums: Rows
    factors: Rows | None
    multiply: Callable[[Issued, Row, Row | None], Row]
    group: Ints
    agents: tuple[int, ...] = ()

    def part(self, mask: Mask) -> Issued:
        """Return that of the warps in ``mask``."""
        return replace(
            self, warps=self.warps[mask], descriptors=self.descriptors[:, mask], adds=self.adds[mask],
            group=self.group[mask],
        )  # fmt: skip


def columns_of(warps: Ints) -> Ints:
    """Return the columns of whole warps in the register files of a batch."""
    return (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)


def perform(issued: Issued, file: Row, columns: slice | Ints, sums: Row) -> Row:
    """Return the new sums of a product whose A may be in ``file``, at these columns."""
    factors = None if issued.factors is None else file[issued.factors][:, columns]
    return issued.multiply(issued, sums, factors)


class WarpgroupProducts:
    """The products of one batch, by warp. ``file`` are the machine's registers of 32 bits."""

    def __init__(
        self, geometry: Geometry, file: Row, kernel: str, hazards: HazardLog, *, late: bool, own_waits: bool
    ) -> None:
        self.late = late
        self._own_waits = own_waits
        self.warpgroups = Warpgroups(geometry, kernel)
        self._geometry, self._file, self._kernel, self._hazards = geometry, file, kernel, hazards
        count = geometry.warp_count
        self._committed = np.zeros(count, np.int64)
        # Per warp the group of its newest product, and the groups below which all are done, or it has waited for all.
        self._newest = np.full(count, -1, np.int64)
        self._done = np.zeros(count, np.int64)
        self._waited = np.zeros(count, np.int64)
        #: How often warps have committed a group.
        self.commits = 0
        self._last: dict[int, Instruction] = {}
        self._queue: list[Issued] = []
        # Per warp the group and the agent of each product of its warpgroup (or its own alone) that the race detector
        # knows and that it has not waited for.
        self._agents: dict[int, list[tuple[int, int]]] = {}
        # In the late schedule: the sums of products in flight, and how many of these each register of a warp has.
        self._sums: Row | None = None
        self._busy: Row | None = None

    def open_groups(self, warps: Ints) -> Ints:
        """Return the number of each warp's open group."""
        return self._committed[warps]

    def issue(self, issued: Issued, file: Row) -> None:
        """Start a product whose registers are in ``file``, for its warps alone."""
        warps = issued.warps
        self._newest[warps] = issued.group
        self._last.update(dict.fromkeys(warps.tolist(), issued.instruction))
        for warp, group, agent in zip(warps.tolist(), issued.group.tolist(), issued.agents, strict=False):
            for each in [warp] if self._own_waits else self.warpgroups.members[warp].tolist():
                self._agents.setdefault(each, []).append((group, agent))
        if not self.late:
            file[issued.sums] = perform(issued, file, slice(None), file[issued.sums])
            return
        if self._sums is None or self._busy is None:
            self._sums = np.empty_like(self._file)
            self._busy = np.zeros((len(self._file), self._geometry.warp_count), np.int32)
        rows, columns = self._numbers(issued.sums)[:, None], columns_of(warps)
        fresh = np.repeat(self._busy[rows, warps] == 0, LANES, axis=1)
        self._sums[rows, columns] = np.where(fresh, file[issued.sums], self._sums[rows, columns])
        self._busy[rows, warps] += 1
        file[issued.sums] = _POISON
        self._queue.append(issued)

    def commit(self, warps: Ints) -> None:
        """Close the open groups of these warps."""
        self._committed[warps] += 1
        self.commits += 1

    def committed_by_all(self, warps: Ints, allowed: int) -> Mask:
        """Tell of which warps the warpgroup has committed all but the ``allowed`` newest groups: bool[n]."""
        all_have = self._committed[self.warpgroups.members[warps]].min(axis=1)
        return np.asarray(all_have >= self._committed[warps] - allowed)

    def wait(self, warps: Ints, allowed: int) -> bool:
        """Let all but the ``allowed`` newest groups of these warps' warpgroups end; tell whether any acts here."""
        closed = self._committed[warps] - allowed
        self._waited[warps] = np.maximum(self._waited[warps], closed)
        np.maximum.at(self._done, self.warpgroups.members[warps], closed[:, None])
        left: list[Issued] = []
        acted = False
        for issued in self._queue:
            due = issued.group < self._done[issued.warps]
            if due.any():
                self._act(issued.part(due))
                acted = True
            if not due.all():
                left.append(issued.part(~due))
        self._queue = left
        return acted

    def ended(self, warp: int) -> list[int]:
        """Return the agents of the products of a warp's warpgroup that it has waited for since the last call."""
        mine, done = self._agents.get(warp, []), int(self._waited[warp])
        self._agents[warp] = [(group, agent) for group, agent in mine if group >= done]
        return [agent for group, agent in mine if group < done]

    def _act(self, issued: Issued) -> None:
        """Perform a product that was kept, and give back its sums unless others follow on them."""
        if self._sums is None or self._busy is None:
            return
        rows, columns = self._numbers(issued.sums)[:, None], columns_of(issued.warps)
        sums = perform(issued, self._file, columns, self._sums[rows, columns])
        self._sums[rows, columns] = sums
        self._busy[rows, issued.warps] -= 1
        ended = np.repeat(self._busy[rows, issued.warps] == 0, LANES, axis=1)
        self._file[rows, columns] = np.where(ended, sums, self._file[rows, columns])

    def _numbers(self, rows: Rows) -> Ints:
        return np.arange(len(self._file))[rows]

    def finish(self) -> None:
        """Report products that nobody waited for: the batch has ended."""
        self.warpgroups.finish()
        for warp in np.flatnonzero(self._newest >= self._waited).tolist():
            i, geometry = self._last[warp], self._geometry
            never = "committed" if self._newest[warp] >= self._committed[warp] else "waited for"
            message = f"{self._kernel}: {geometry.warp_name(warp)} ends, and the product {i.text!r} was never {never}"
            self._hazards.add("unwaited", i, message, i)
        self._queue.clear()
        self._last.clear()
        self._agents.clear()
        self._newest[...] = -1
        self._committed[...] = self._done[...] = self._waited[...] = 0
        if self._busy is not None:
            self._busy[...] = 0
