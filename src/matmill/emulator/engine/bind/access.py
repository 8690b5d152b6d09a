"""The memory accesses of one instruction: addresses checked, counted, and converted to indices of host arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.addresses import Addresses, Piece
from matmill.emulator.engine.bind.race_watch import RaceWatch
from matmill.emulator.engine.state.dependent_launch import GridDependency
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.names import byte_count
from matmill.emulator.frontend.syntax import Instruction, Variable
from matmill.emulator.memory import banks
from matmill.emulator.memory.address_space import MAPPED, OFFSET_MASK, SHARED_BASE, SHARED_WINDOW
from matmill.emulator.memory.regions import Region
from matmill.emulator.program.ordering import Ordering, access_ordering
from matmill.emulator.report.counters import Conflict
from matmill.emulator.report.hazards import KernelFault, fault

#: Requests, sectors or wavefronts, fewest wavefronts, bytes.
Cost: TypeAlias = "tuple[int, int, int, int]"
_COSTS: dict[tuple[object, ...], Cost] = {}
_MOST_COSTS = 1 << 9


class Access:
    """One memory instruction in one bound block: ``vector`` elements of ``element`` bytes per lane.

    ``kind`` is "read", "write", "atomic" or "copy" (the shared side of cp.async, whose family reports it to the race
    detector itself). ``counted_as`` is the kind under which its traffic counts. :meth:`locate` updates ``pieces``,
    checks bounds, alignment and permissions, and counts; a piece's elements are then
    ``region.words[element][start // element + index + i]``.
    """

    def __init__(
        self, machine: Machine, addresses: Addresses, instruction: Instruction,
        *, offset: int, element: int, vector: int, kind: str,
    ) -> None:  # fmt: skip
        self.machine = machine
        self.addresses = addresses
        self.instruction = instruction
        self.where = machine.program.index_of(instruction)
        self.offset = offset
        self.element = element
        self.shift = element.bit_length() - 1
        self.width = element * vector
        self.kind = kind
        verb = {"read": "reads", "write": "writes", "atomic": "updates", "copy": "copies"}[kind]
        self._doing = f"{verb} {byte_count(self.width)} at"
        self.counted_as = kind
        self.ordering = Ordering() if instruction in machine.program.compared else access_ordering(instruction)
        self.epoch = -1
        self.races = (
            RaceWatch(
                machine, machine.detector, addresses, self.where, offset, element, self.width, kind, self.ordering
            )
            if machine.detector is not None and kind != "copy"
            else None
        )
        self.pieces: list[Piece] = []
        self.traffic: tuple[list[int], ...] = ()
        self.counts: tuple[Cost, ...] = ()
        self.array = machine.program.arrays.get(instruction)
        if self.array is not None:
            self.bounds = machine.program.bounds(self.array, machine.launch.dynamic_shared)

    def locate(self, values: tuple[Row, ...] = ()) -> bool:
        """Update everything for one execution, which stores ``values``; return False if no lane takes part."""
        addresses = self.addresses
        if addresses.none:
            return False
        if addresses.epoch != self.epoch:
            self._find()
            self.epoch = addresses.epoch
        if self.machine.mbarriers.live:
            self._check_mbarriers()
        if self.machine.heap.used:
            self._check_heap()
        if self.kind != "read" and self.machine.swizzles.used:
            self._forget_swizzles()
        for total, now in zip(self.traffic, self.counts, strict=True):
            total[0] += now[0]
            total[1] += now[1]
            total[2] += now[2]
            total[3] += now[3]
        self._watch(values)
        dependency = self.machine.dependency
        if dependency is not None and dependency.left:
            self._check_dependency(dependency)
        return True

    def _watch(self, values: tuple[Row, ...]) -> None:
        """Report the access to the race detector."""
        if self.races is not None:
            self.races.tell(self.pieces, values)

    def _find(self) -> None:
        addresses = self.addresses
        low = addresses.low + self.offset
        region, start = self.machine.region_at(addresses.space, low)
        if (
            region is None
            or start + addresses.span + self.width > region.end
            or (low | addresses.bits) & (self.width - 1)
            or (self.kind != "read" and not region.writable)
        ):
            self.pieces = self._search()
        else:
            self.pieces = [
                Piece(region, start - region.start, addresses.index(region.kind, self.shift), addresses.mask)
            ]
            if region.allocation is not None and region.allocation.followed:
                region.allocation.used(self.instruction, writes=self.kind != "read")
            array = self.array
            if array is not None and array.space == region.kind:
                begin, end = self.bounds
                if start < begin or start + addresses.span + self.width > end:
                    self._report_beyond(array, start - low)
        if self.machine.counting:
            self._count()

    def _report_beyond(self, array: Variable, shift: int) -> None:
        """Report the first lane outside the array that is accessed; a GPU accesses the memory there.

        ``shift`` converts addresses to offsets in the array's state space.
        """
        begin, end = self.bounds
        absolute = self.addresses.absolute(self.offset).reshape(-1)
        outside = (absolute + shift < begin) | (absolute + shift + self.width > end)
        lane = int(np.flatnonzero(outside & self.addresses.active_lanes().reshape(-1))[0])
        address, machine = int(absolute[lane]), self.machine
        distance = address + shift - begin
        message = (
            f"{machine.launch.kernel}: {self.addresses.lanes.thread_name(lane)} {self._doing} {array.spelled} "
            f"{'-' if distance < 0 else '+'} {abs(distance)} B of {end - begin}, which is "
            f"{machine.describe(self.addresses.space, address)}, in {self.instruction.text!r}"
        )
        machine.hazards.add("out-of-bounds", self.where, message, self.instruction)

    def _check_dependency(self, dependency: GridDependency) -> None:
        addresses = self.addresses
        for piece in self.pieces:
            memory = piece.region.allocation
            if memory is not None and dependency.concerns(memory.name, reads=self.kind == "read"):
                self.check_dependency(
                    dependency, piece.active(addresses).reshape(-1), addresses.absolute(self.offset).reshape(-1)
                )

    def _search(self) -> list[Piece]:
        """Return the pieces lane by lane, for lanes in several regions, or raise a fault."""
        addresses = self.addresses
        absolute = addresses.absolute(self.offset).reshape(-1)
        active = addresses.active_lanes().reshape(-1)
        by_region: dict[int, tuple[Region, list[int]]] = {}
        starts = np.zeros(len(absolute), np.int64)
        peers = self._peers(absolute)
        for lane in np.flatnonzero(active):
            address = int(absolute[lane])
            region, start = self.machine.region_at(addresses.space, address)
            if peers is not None and address & MAPPED:
                region, start = (self.machine.shared if peers[lane] >= 0 else None), address & OFFSET_MASK
            if region is None or start + self.width > region.end:
                raise self.fault("out-of-bounds", int(lane), address)
            if address & (self.width - 1):
                raise self.fault("misaligned", int(lane), address)
            if self.kind != "read" and not region.writable:
                raise self.fault("read-only", int(lane), address)
            key = id(region.allocation) if region.allocation is not None else id(region.words)
            by_region.setdefault(key, (region, []))[1].append(int(lane))
            starts[lane] = start
        pieces = []
        for region, lanes in by_region.values():
            mask = np.zeros(len(absolute), np.bool_)
            mask[lanes] = True
            local = np.where(mask, starts, starts[lanes[0]]) - region.start
            base = addresses.lanes.base(region.kind)
            owners = peers if region.kind == "shared" else None
            if owners is not None:
                base = owners * self.machine.geometry.shared_stride
            local = local if base is None else local + base
            pieces.append(Piece(region, 0, local >> self.shift, mask, owners))
        return pieces

    def _peers(self, absolute: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the block of the batch whose shared memory each lane accesses.

        It is None if no lane names a block by its rank.
        """
        if self.addresses.space not in {"shared", "generic"} or not (absolute & MAPPED).any():
            return None
        shared = (absolute < 2 * MAPPED) | (absolute >= SHARED_WINDOW)
        named = np.where(shared, absolute, 0)
        return self.machine.shared_targets(named, self.addresses.lanes.columns)[0] if shared.any() else None

    def _forget_swizzles(self) -> None:
        """Drop the swizzle marks of shared memory that is overwritten: it no longer has TMA's layout."""
        for piece in self.pieces:
            if piece.region.kind == "shared":
                index = piece.index if piece.mask is None else piece.index[piece.mask]
                self.machine.swizzles.overwrite(piece.start + (index << self.shift))

    def _check_heap(self) -> None:
        """Report the first lane that accesses freed memory; raise for memory that malloc did not return."""
        machine, heap = self.machine, self.machine.heap
        for piece in self.pieces:
            first = (piece.start >> self.shift) + piece.index
            lane = heap.first_wrong(piece.region.allocation, self.element, first, self.width, piece.mask)
            if lane is None:
                continue
            address = int(self.addresses.absolute(self.offset).reshape(-1)[lane])
            if not heap.was_freed(address, self.width):
                raise self.fault("out-of-bounds", lane, address)
            did = f"{self.addresses.lanes.thread_name(lane)} {self._did(address)}"
            message = f"{machine.launch.kernel}: {did}, in {self.instruction.text!r}"
            machine.hazards.add("use-after-free", self.where, message, self.instruction)

    def _check_mbarriers(self) -> None:
        """Report an ordinary access to the 64 bits of a live mbarrier."""
        machine, addresses = self.machine, self.addresses
        if not any(piece.region.kind == "shared" for piece in self.pieces):
            return
        low = (addresses.low + self.offset) & OFFSET_MASK
        if not machine.mbarriers.near(low, low + addresses.span + self.width):
            return
        lanes = np.flatnonzero(addresses.active_lanes())
        absolute = addresses.absolute(self.offset).reshape(-1)[lanes]
        blocks, offsets = machine.shared_targets(absolute, addresses.lanes.columns[lanes])
        for lane, block, offset in zip(lanes.tolist(), blocks.tolist(), offsets.tolist(), strict=True):
            key = machine.mbarriers.hit(block, offset, self.width)
            if key is not None:
                did = f"{self._doing} {machine.describe('shared', offset)}"
                machine.mbarriers.report(
                    self.instruction, f"of {addresses.lanes.thread_name(lane)} {did}, a live mbarrier"
                )
                return

    def fault(self, kind: str, lane: int, address: int, space: str | None = None) -> KernelFault:
        """Return the error for one lane's illegal access, in the access's own state space or in ``space``."""
        i, machine = self.instruction, self.machine
        problems = {"misaligned": f", which is no multiple of {self.width}", "read-only": ", which is read-only"}
        message = (
            f"{machine.launch.kernel}: {self.addresses.lanes.thread_name(lane)} {self._did(address, space)}"
            f"{problems.get(kind, '')}, in {i.text!r}"
        )
        return fault(kind, message, i)

    def _did(self, address: int, space: str | None = None) -> str:
        """Describe the access to an address, in its own state space or in ``space``, for messages."""
        return f"{self._doing} {self.machine.describe(space or self.addresses.space, address)}"

    def check_dependency(
        self, dependency: GridDependency, active: Mask, addresses: Row, space: str | None = None
    ) -> None:
        """Report the first ``active`` lane that accesses global memory before it has waited for the preceding grid.

        ``addresses`` are in the access's state space, or in ``space``.
        """
        lanes = self.addresses.lanes
        lane = dependency.first_unmet(lanes, active)
        if lane is not None:
            did = self._did(int(addresses[lane]), space)
            dependency.add(self.where, lanes.thread_name(lane), did, self.instruction)

    def _count(self) -> None:
        """Count requests, sectors or wavefronts (actual, ideal) and bytes of one execution, by kind of region."""
        traffic, counts = [], []
        addresses = self.addresses
        for piece in self.pieces:
            kind = piece.region.kind
            if kind not in {"global", "shared", "local"}:
                continue
            key = (kind, self.width, self.counted_as, (addresses.low + self.offset) % 128)
            simple = len(self.pieces) == 1
            now = addresses.memo.get(key) if simple else None
            if now is None:
                now = self._known_cost(piece, key) if simple else self._cost(kind, piece.active(addresses))
                if simple:
                    addresses.memo[key] = now
            traffic.append(self.machine.tally.traffic(self.where, kind, self.counted_as))
            counts.append(now)
            if kind == "global" and self.where not in self.machine.tally.patterns:
                active, absolute = piece.active(addresses), addresses.absolute(self.offset)
                self.machine.tally.pattern(self.where, self.width, absolute, active, addresses.lanes)
            elif kind == "shared" and self.kind != "copy":
                self.machine.tally.patterns.setdefault(self.where, (self.width, None, None))
        self.traffic, self.counts = tuple(traffic), tuple(counts)

    def _known_cost(self, piece: Piece, key: tuple[object, ...]) -> Cost:
        """Return the cost of an access in one piece, from a cache that instructions and launches share.

        Accesses with bank conflicts are not cached, because the worst of them is recorded when it is counted.
        """
        alike = (type(self), key, *self.addresses.identity())
        now = _COSTS.get(alike)
        if now is None:
            now = self._cost(piece.region.kind, piece.active(self.addresses))
            if piece.region.kind != "shared" or now[1] == now[2]:
                if len(_COSTS) >= _MOST_COSTS:
                    _COSTS.clear()
                _COSTS[alike] = now
        return now

    def _cost(self, kind: str, active: Mask) -> Cost:
        absolute = self.addresses.absolute(self.offset)
        requests = int(active.any(axis=1).sum())
        elements = int(active.sum()) * self.width
        if kind == "global":
            return requests, int(banks.global_sectors(absolute, active, self.width).sum()), 0, elements
        if kind == "local":
            return requests, 0, 0, elements
        # Generic addresses of shared memory are in a window far above 2**31.
        offsets = absolute & 0x7FFFFFFF
        actual, ideal = banks.shared_wavefronts(offsets, active, self.width, store=self.kind != "read")
        warp = int(np.argmax(actual - ideal))
        if actual[warp] > ideal[warp]:
            rows = zip((offsets[warp] & OFFSET_MASK).tolist(), active[warp].tolist(), strict=True)
            i, lanes = self.instruction, tuple(offset - SHARED_BASE if takes else None for offset, takes in rows)
            first = next(offset for offset in lanes if offset is not None)
            array = self.machine.program.shared_array(SHARED_BASE + first, self.machine.launch.dynamic_shared)
            conflict = Conflict(i.location, i.text, int(actual[warp]), int(ideal[warp]), self.width, lanes, *array)
            self.machine.tally.conflict(self.where, conflict)
        return requests, int(actual.sum()), int(ideal.sum()), elements
