"""Generic writes to global memory that a bulk copy accesses later, and the proxy fences between the two.

PTX ISA, "Proxy-preserved base causality order": a fence.proxy.async must be on the path from the write to the copy. It
may be the writer's, behind the write, the copying thread's, or that of a thread between them. A fence is remembered
with what its threads knew, and examined only for writes that happen before a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.races.order.clocks import CLOCK_BITS, CLOCK_MASK, LANE_BITS, Clocks, Ints, Moment
from matmill.emulator.races.order.race_reports import ATOMIC, WRITE
from matmill.emulator.races.order.release_order import Order
from matmill.emulator.races.order.releases import Reach
from matmill.emulator.races.shadow.global_space import GlobalSpace
from matmill.emulator.races.shadow.warp_accesses import WarpAccesses


@dataclass(frozen=True, slots=True)
class _Fence:
    """A fence by some ``lanes`` of a warp at a clock.

    ``view`` are the clocks of the warps of its block that it knew, ``known`` what each lane had acquired.
    """

    warp: int
    lanes: np.uint32
    clock: int
    view: Ints
    known: tuple[tuple[np.uint32, Reach], ...]


class GlobalProxy:
    """The proxy fences of a launch, and the instructions that access global memory in the async proxy."""

    def __init__(self, clocks: Clocks, order: Order) -> None:
        self._clocks, self._order = clocks, order
        self._fences: dict[int, list[_Fence]] = {}
        self.copies: set[int] = set()

    def fence(self, warps: Ints, lanes: NDArray[np.bool_]) -> None:
        """Record a fence by ``lanes`` (bool[n, 32]) of ``warps``, before their clocks advance."""
        for warp, members in zip(warps.tolist(), lanes, strict=True):
            chosen = np.flatnonzero(members)
            if len(chosen):
                known = self._order.acquired(warp, chosen.tolist())
                one = _Fence(
                    warp,
                    np.uint32(LANE_BITS[chosen].sum()),
                    int(self._clocks.now[warp]),
                    self._clocks.view(warp),
                    known,
                )
                self._fences.setdefault(warp, []).append(one)

    def unfenced(self, space: GlobalSpace, rows: WarpAccesses) -> list[tuple[int, int, int, int, int]]:
        """Return the generic writes before a copy that no fence makes visible to it, one for each instruction.

        Each is the writing thread, its instruction, the address, and the copying thread's warp and lane.
        """
        result, seen = [], set()
        for kind in (WRITE, ATOMIC):
            for access, keys, lanes, marks in space.remembered(rows, kind):
                before = lanes & ~self._clocks.unordered(keys, lanes, access.moment)
                generic = (before != 0) & ~np.isin(marks >> 1, list(self.copies))
                for i in np.flatnonzero(generic).tolist():
                    name = int(keys[i]), int(before[i]), int(access.moment.warp[i]), int(access.moment.lane[i])
                    if name in seen:
                        continue
                    seen.add(name)
                    left = self._without_fence(int(keys[i]), before[i], access.moment.take(np.array([i])))
                    if left:
                        lane = (left & -left).bit_length() - 1
                        thread = ((name[0] >> CLOCK_BITS) - 1) * len(LANE_BITS) + lane
                        result.append((thread, int(marks[i]) >> 1, int(access.addresses[i]), *name[2:]))
        return result

    def _without_fence(self, key: int, lanes: np.uint32, moment: Moment) -> int:
        """Return the lanes of a write's key whose write no fence before ``moment`` makes visible."""
        writer, reader, left = (key >> CLOCK_BITS) - 1, int(moment.warp[0]), lanes
        for warp in dict.fromkeys((writer, reader, *self._fences)):
            for fence in reversed(self._fences.get(warp, ())):
                left &= ~self._covered(fence, key, moment)
                if not left:
                    return 0
        return int(left)

    def _covered(self, fence: _Fence, key: int, moment: Moment) -> np.uint32:
        """Return the lanes of a write that happens before a fence which happens before ``moment``."""
        at = np.array([(fence.warp + 1) << CLOCK_BITS | fence.clock])
        effective = fence.lanes & ~self._clocks.unordered(at, np.array([fence.lanes]), moment)[0]
        if not effective:
            return np.uint32(0)
        writer, clock = (key >> CLOCK_BITS) - 1, key & CLOCK_MASK
        first = fence.warp // self._clocks.warps_per_block * self._clocks.warps_per_block
        local = writer - first
        if 0 <= local < self._clocks.warps_per_block and clock <= fence.view[local]:
            return ~np.uint32(0)
        covered = effective if writer == fence.warp and clock <= fence.clock else np.uint32(0)
        for lanes, known in fence.known:
            if lanes & effective:
                covered |= self._order.lanes_before(known, np.array([key]))[0]
        return np.uint32(covered)
