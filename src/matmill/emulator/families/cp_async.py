"""Asynchronous copies from global to shared memory: cp.async, its commit and its waits.

PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy". A copy completes at once, or as late as the waits
allow, as the launch's option says. Each thread has its own groups.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.async_units.async_queue import AsyncOperation
from matmill.emulator.engine.async_units.mbarriers import Key
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.barrier_operand import BarrierOperand
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.initialised import check_copied, mark_written
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.families.addresses import address_of, base_registers
from matmill.emulator.families.bulk_copy import bulk
from matmill.emulator.frontend.syntax import Address, Immediate, Instruction, PtxOperand, Register
from matmill.emulator.memory import banks
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions


@instructions("cp")
def copy_async(i: Instruction) -> Action:
    """Bind cp.async.{ca,cg}.shared.global, cp.async.commit_group, cp.async.wait_group, cp.async.wait_all."""
    if "bulk" in i.modifiers:
        return bulk(i)
    if "mbarrier" in i.modifiers:
        return _arrive(i)
    hints = [m for m in i.modifiers if m.startswith(("L1::", "L2::", "level::"))]
    m = Modifiers(i, *hints)
    if "L2::cache_hint" in hints or not m.flag("async"):
        raise i.unsupported("its form")
    if m.flag("commit_group"):
        m.done()
        return Action(i, bind=_bind_commit, tally="memory", masks_itself=True)
    if m.flag("wait_group") or m.flag("wait_all"):
        m.done()
        allowed = _literal(i, i.operands[0]) if i.operands else -1
        return Action(i, bind=lambda bound: _bind_wait(bound, i, allowed), tally="memory", masks_itself=True)
    bypasses = m.need("ca", "cg") == "cg"
    if not (m.flag("shared") or m.flag("shared::cta")) or not m.flag("global"):
        raise i.unsupported("its state spaces")
    m.done()
    return _copy(i, bypasses=bypasses)


def _arrive(i: Instruction) -> Action:
    """Bind cp.async.mbarrier.arrive: each thread arrives when its copies are complete.

    Without .noinc the phase expects one more arrival.
    """
    m = Modifiers(i, "async", "mbarrier", "shared", "shared::cta", "b64")
    m.need("arrive")
    awaited = not m.flag("noinc")
    m.done()
    address = address_of(i, i.operands[0])

    def bind(bound: BoundBlock) -> Call:
        operand, machine, columns = BarrierOperand(bound, i, address), bound.machine, bound.lanes.columns

        def call() -> None:
            for key, lanes in operand.by_barrier():
                if awaited:
                    machine.mbarriers.add_pending(key, len(lanes), i)
                if machine.copy_waits is not None:
                    machine.copy_waits.hand_over(columns[lanes], key, machine.mbarriers.phase(key))

                act = partial(_arrive_after_copies, machine, key, columns[lanes], i)
                machine.queue.issue(AsyncOperation(act, frozenset({key})))

        return call

    return Action(i, bind=bind, tally="memory", masks_itself=True, uses=base_registers(address))


def _arrive_after_copies(machine: Machine, key: Key, columns: NDArray[np.int64], i: Instruction) -> None:
    """Let these threads, whose copies are complete, arrive at the mbarrier."""
    machine.copies.wait(columns, -1)
    warps, lanes = machine.threads(columns)
    if machine.detector is not None:
        machine.detector.copy_commit(warps)
        machine.detector.copy_wait(warps, 0)
    if machine.events is not None:
        machine.events.arrive(machine.in_grid(key), warps, lanes, where=machine.program.index_of(i))
    machine.mbarriers.arrive(key, len(columns), i)
    machine.progress += 1


def _bind_commit(bound: BoundBlock) -> Call:
    """Bind cp.async.commit_group to lanes."""
    lanes, participants, machine = bound.lanes, bound.participants(), bound.machine

    def call() -> None:
        active = participants()
        machine.copies.commit(lanes.columns[active.reshape(-1)])
        if machine.copy_waits is not None:
            machine.copy_waits.commit(lanes.warps[active.any(axis=1)])
        if machine.detector is not None:
            machine.detector.copy_commit(lanes.warp_ids[active.any(axis=1)])

    return call


def _bind_wait(bound: BoundBlock, i: Instruction, allowed: int) -> Call:
    """Bind cp.async.wait_group ``allowed`` to lanes; -1 is wait_all, which needs no commit."""
    lanes, participants, machine = bound.lanes, bound.participants(), bound.machine

    def call() -> None:
        active = participants()
        machine.copies.wait(lanes.columns[active.reshape(-1)], allowed)
        if machine.copy_waits is not None:
            machine.copy_waits.wait(lanes.warps[active.any(axis=1)], allowed, i)
        if machine.detector is not None:
            warps = lanes.warp_ids[active.any(axis=1)]
            if allowed < 0:
                machine.detector.copy_commit(warps)
            machine.detector.copy_wait(warps, max(allowed, 0))

    return call


def _literal(i: Instruction, operand: PtxOperand) -> int:
    if not isinstance(operand, Immediate):
        raise i.unsupported("a count that is no literal")
    return int(operand.value)


def _copy(i: Instruction, *, bypasses: bool) -> Action:
    target, source, size_operand, *rest = i.operands
    if len(rest) > 1:
        raise i.unsupported("the number of its operands")
    size = _literal(i, size_operand)
    if size not in {4, 8, 16}:
        raise i.unsupported("its size")
    to, origin = address_of(i, target), address_of(i, source)
    limit: tuple[Value, ...] = ()
    if rest:
        ignore = isinstance(rest[0], Register) and rest[0].type == "pred"
        limit = (Value(rest[0], "p" if ignore else "u4"),)

    def bind(bound: BoundBlock) -> Call:
        # A lane whose source is ignored reads nothing, so its source address may be anything.
        access = bound.access(i, to, "shared", element=size, vector=1, kind="copy")
        return AsyncCopy(bound, access, i, origin, size, bypasses=bypasses)

    return Action(i, limit, (), bind=bind, tally="memory", masks_itself=True, uses=base_registers(to, origin))


class AsyncCopy:
    """A bound cp.async: ``size`` bytes per lane, of which the first ``limit`` come from global memory."""

    def __init__(
        self, bound: BoundBlock, to: Access, i: Instruction, origin: Address, size: int, *, bypasses: bool
    ) -> None:
        self.to = to
        self.instruction = i
        self.size = size
        self.bypasses = bypasses
        self.row, self.offset = bound.address_row(origin)

    def __call__(self, *limit: Row) -> None:
        """Issue the copy for the active lanes."""
        to = self.to
        if not to.locate():
            return
        machine = to.machine
        lanes = to.addresses.lanes
        active = to.addresses.active_lanes().reshape(-1)
        amount = np.full(lanes.count, self.size, np.int64)
        if limit:
            row = np.broadcast_to(limit[0], lanes.count)
            amount = (
                np.where(row, 0, self.size) if row.dtype == np.bool_ else np.minimum(row, self.size).astype(np.int64)
            )
        source = np.broadcast_to(self.row, lanes.count).astype(np.int64) + self.offset
        self._check(source, active, amount)
        check_copied(to, source, np.where(active, amount, 0))
        if machine.counting:
            self._count(source, active, amount)
        piece = to.pieces[0]
        shared = (piece.index << to.shift) + piece.start
        if machine.detector is not None:
            self._watch(source, active, amount)
        dependency = machine.dependency
        if dependency is not None and dependency.left:
            read = active & (amount > 0)
            memory = machine.space.find(int(source[read][0])) if read.any() else None
            if memory is not None and dependency.concerns(memory.name, reads=True):
                to.check_dependency(dependency, read, source, "global")
        chosen = np.flatnonzero(active)
        mark_written(to, piece, piece.index[chosen], 1)
        machine.progress += 1
        if machine.copy_waits is not None:
            machine.copy_waits.issue(lanes.columns[chosen], amount[chosen])
        machine.copies.issue(lanes.columns[chosen], shared[chosen], source[chosen], amount[chosen], self.size)

    def _check(self, source: Row, active: NDArray[np.bool_], amount: Row) -> None:
        """Raise if a lane's source is out of bounds or misaligned."""
        reading = active & (amount > 0)
        if not reading.any():
            return
        low, high = int(source[reading].min()), int((source + amount)[reading].max())
        allocation = self.to.machine.space.find(low)
        bits = int(np.bitwise_or.reduce(source[reading]))
        if allocation is not None and high <= allocation.end and not bits & (self.size - 1):
            return
        for lane in np.flatnonzero(reading):
            address = int(source[lane])
            allocation = self.to.machine.space.find(address)
            if allocation is None or address + int(amount[lane]) > allocation.end:
                raise self.to.fault("out-of-bounds", int(lane), address, "global")
            if address & (self.size - 1):
                raise self.to.fault("misaligned", int(lane), address, "global")

    def _count(self, source: Row, active: NDArray[np.bool_], amount: Row) -> None:
        reading = (active & (amount > 0)).reshape(-1, LANES)
        low = int(source[reading.reshape(-1)].min()) if reading.any() else 0
        addresses = np.where(reading, source.reshape(-1, LANES), low)
        if self.bypasses:
            sectors = banks.copy_sectors(addresses, self._targets(), reading, self.size)
        else:
            sectors = banks.global_sectors(addresses, reading, self.size)
        tally, lanes = self.to.machine.tally, self.to.addresses.lanes
        if self.to.where not in tally.patterns and reading.any():
            tally.pattern(self.to.where, self.size, addresses, reading, lanes)
        traffic = tally.traffic(self.to.where, "global", "copy")
        traffic[0] += int(active.reshape(-1, LANES).any(axis=1).sum())
        traffic[1] += int(sectors.sum())
        traffic[2] += int(reading.any(axis=1).sum())
        traffic[3] += int(amount[active].sum())

    def _watch(self, source: Row, active: NDArray[np.bool_], amount: Row) -> None:
        detector = self.to.machine.detector
        if detector is None:
            return
        lanes = self.to.addresses.lanes
        reading = (active & (amount > 0)).reshape(-1, LANES)
        low = int(source[reading.reshape(-1)].min()) if reading.any() else 0
        origin = self.to.machine.space.find(low)
        # Reads of a buffer that cannot be stored to do not race.
        harmless = origin is not None and not origin.writable and bool((source[reading.reshape(-1)] < origin.end).all())
        if reading.any() and not harmless:
            addresses = np.where(reading, source.reshape(-1, LANES), low)
            detector.access(
                "global", warp=lanes.warp_ids, addresses=addresses, active=reading, width=self.size, kind="read",
                where=self.to.where,
            )  # fmt: skip
        detector.copy(
            warp=lanes.warp_ids,
            addresses=self._targets(),
            active=active.reshape(-1, LANES),
            width=self.size,
            where=self.to.where,
        )

    def _targets(self) -> NDArray[np.int64]:
        """Return each lane's destination, int64[n, 32], as offsets in its block's shared memory."""
        return self.to.machine.shared_offset(self.to.addresses.absolute(self.to.offset))
