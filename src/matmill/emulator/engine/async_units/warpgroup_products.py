"""Products of warpgroups in flight: wgmma's groups, when products take effect, and the waits for them.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A product belongs to the warpgroup: a warp passes a wait
for its groups once all four warps have committed them, and they are then complete for all four (measured on an H100,
2026-11-25). Each warp computes its quarter when it issues the product or, in the late schedule, at the first of the
four waits that cover its group: only then it reads A and B. Until then its sums are stored elsewhere and their
registers contain NaN, which exposes a kernel that uses them too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.async_units.warpgroups import Warpgroups
from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import HazardLog

Ints: TypeAlias = "NDArray[np.int64]"
#: Rows of a register file: consecutive ones, or any.
RowIndex: TypeAlias = "slice | Ints"
_POISON = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class Issued:
    """One instruction that some ``warps`` of the batch issued, each into its open ``group``.

    ``descriptors`` are uint64[operands in shared memory, warps]; where ``adds`` (bool[warps]) is false the old sums are
    ignored. ``multiply`` takes this object, the sums (uint32[registers, 32 warps]) and A's registers, if any, and
    returns the new sums. ``agents`` are the products' numbers in the race detector, one for each warp, if it is on.
    """

    instruction: Instruction
    warps: Ints
    descriptors: NDArray[np.uint64]
    adds: Mask
    sums: RowIndex
    factors: RowIndex | None
    multiply: Callable[[Issued, Row, Row | None], Row]
    group: Ints
    agents: tuple[int, ...] = ()

    def part(self, mask: Mask) -> Issued:
        """Return the part of the warps in ``mask``."""
        return replace(
            self, warps=self.warps[mask], descriptors=self.descriptors[:, mask], adds=self.adds[mask],
            group=self.group[mask],
        )  # fmt: skip


def columns_of(warps: Ints) -> Ints:
    """Return the columns of whole warps in the register files of a batch."""
    return (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)


def perform(issued: Issued, file: Row, columns: slice | Ints, sums: Row) -> Row:
    """Return the new sums of a product for these columns; A may be in ``file``."""
    factors = None if issued.factors is None else file[issued.factors][:, columns]
    return issued.multiply(issued, sums, factors)


class WarpgroupProducts:
    """The products of one batch, by warp. ``file`` has the machine's 32-bit registers."""

    def __init__(
        self, geometry: BatchGeometry, file: Row, kernel: str, hazards: HazardLog, *, late: bool, own_waits: bool
    ) -> None:
        self.late = late
        self.own_waits = own_waits
        self.warpgroups = Warpgroups(geometry, kernel)
        self._geometry, self._file, self._kernel, self._hazards = geometry, file, kernel, hazards
        count = geometry.warp_count
        self._committed = np.zeros(count, np.int64)
        # Per warp: the group of its newest product; and the groups below which all are complete, or waited for.
        self._newest = np.full(count, -1, np.int64)
        self._done = np.zeros(count, np.int64)
        self._waited = np.zeros(count, np.int64)
        #: The number of groups that warps have committed.
        self.commits = 0
        self._last: dict[int, Instruction] = {}
        self._queue: list[Issued] = []
        # Per warp: group and agent of each product of its warpgroup that it has not waited for and that the race
        # detector knows.
        self._agents: dict[int, list[tuple[int, int]]] = {}
        # In the late schedule: the sums of products in flight, and how many products each register of a warp belongs
        # to.
        self._sums: Row | None = None
        self._busy: Row | None = None

    def open_groups(self, warps: Ints) -> Ints:
        """Return the number of each warp's open group."""
        return self._committed[warps]

    def issue(self, issued: Issued, file: Row) -> None:
        """Start a product for its warps, with its registers in ``file``."""
        warps = issued.warps
        self._newest[warps] = issued.group
        self._last.update(dict.fromkeys(warps.tolist(), issued.instruction))
        for warp, group, agent in zip(warps.tolist(), issued.group.tolist(), issued.agents, strict=False):
            for each in [warp] if self.own_waits else self.warpgroups.members[warp].tolist():
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
        """Return for which warps the whole warpgroup has committed all but the ``allowed`` newest groups: bool[n]."""
        all_have = self._committed[self.warpgroups.members[warps]].min(axis=1)
        return np.asarray(all_have >= self._committed[warps] - allowed)

    def wait(self, warps: Ints, allowed: int) -> bool:
        """Complete all but the ``allowed`` newest groups of these warps' warpgroups; tell whether any took effect."""
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
        """Compute a product that was delayed, and write its sums back unless another product continues them."""
        if self._sums is None or self._busy is None:
            return
        rows, columns = self._numbers(issued.sums)[:, None], columns_of(issued.warps)
        sums = perform(issued, self._file, columns, self._sums[rows, columns])
        self._sums[rows, columns] = sums
        self._busy[rows, issued.warps] -= 1
        ended = np.repeat(self._busy[rows, issued.warps] == 0, LANES, axis=1)
        self._file[rows, columns] = np.where(ended, sums, self._file[rows, columns])

    def _numbers(self, rows: RowIndex) -> Ints:
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
