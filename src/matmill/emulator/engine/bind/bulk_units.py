"""The part that all forms of bulk copies share: ranges in shared memory, checks, race-detector events, completion.

A copy belongs to the thread that issues it. Copies issued by one execution of an instruction act together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.async_units.async_queue import AsyncOperation
from matmill.emulator.engine.async_units.bulk_groups import BulkStore
from matmill.emulator.engine.async_units.mbarriers import Key
from matmill.emulator.engine.bind.initialised import note_store
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import Allocation
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.ordering import Ordering
from matmill.emulator.report.hazards import fault

Ints = NDArray[np.int64]
_CHUNK = 16
_POISON = np.frombuffer(b"\xff" * _CHUNK, "V16")
_WRITTEN = np.frombuffer(b"\x01" * _CHUNK, "V16")


@dataclass(frozen=True, eq=False)
class Spans:
    """Ranges of shared memory: the block in the batch and the offset of the first byte of each (int64[n])."""

    block: Ints
    offset: Ints

    def take(self, chosen: Ints) -> Spans:
        """Return the chosen ranges."""
        return Spans(self.block[chosen], self.offset[chosen])


@dataclass(frozen=True, eq=False)
class Landing:
    """The ranges that copies into shared memory write, the copy of each, and the mbarriers of each copy.

    ``chunks`` are the 16-byte chunks of each range, numbered through the batch's shared memory. ``swizzle`` is the
    number of bytes within which they are exchanged. A copy that ``combines`` also reads them. ``sources`` are the
    blocks and the chunks that copies from shared memory read.
    """

    to: Spans
    chunks: list[Ints]
    copies: Ints
    barriers: list[list[Key]]
    swizzle: int = 0
    combines: bool = False
    sources: list[tuple[int, Ints]] = field(default_factory=list)


class BulkUnit:
    """The bulk copies that one instruction issues; ``columns`` are the threads of the batch."""

    def __init__(self, machine: Machine, i: Instruction) -> None:
        self.machine = machine
        self.i = i
        self.where = machine.program.index_of(i)

    def spans(self, addresses: Ints, columns: Ints, nbytes: Ints, align: int) -> Spans:
        """Convert shared addresses to ranges.

        Raises ``KernelFault`` outside the cluster's shared memory and off ``align``.
        """
        machine, shared = self.machine, self.machine.shared
        block, offset = machine.shared_targets(addresses, columns)
        outside = (block < 0) | (offset < shared.start) | (offset + nbytes > shared.end)
        for kind, wrong in (("out-of-bounds", outside), ("misaligned", offset % align != 0)):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                where = machine.describe("shared", int(offset[at]))
                why = "not all of them in the block's shared memory" if outside[at] else f"no multiple of {align}"
                self.stop(kind, int(columns[at]), f"copies {int(nbytes[at])} bytes at {where}, {why}")
        return Spans(block, offset)

    def stop(self, kind: str, column: int, problem: str, why: str = "") -> NoReturn:
        """Raise ``KernelFault`` for a thread's invalid copy."""
        machine = self.machine
        thread = machine.geometry.thread_name(column)
        message = f"{machine.launch.kernel}: {thread} {problem}, in {self.i.text!r}" + (f": {why}" if why else "")
        raise fault(kind, message, self.i)

    def use_global(self, column: int, span: tuple[int, int], kind: str) -> Allocation:
        """Return the global memory of the range that a thread's copy reads, writes or updates.

        Raises ``KernelFault`` if no allocation contains it, or it is read-only.
        """
        low, high = span
        region = self.machine.space.find(low)
        if region is None or high > region.end:
            at = low if region is None else region.end
            where = self.machine.space.describe(at)
            self.stop("out-of-bounds", column, f"copies {high - low} bytes, to {where}")
        if kind != "read" and not region.writable:
            self.stop("read-only", column, f"writes to {region.name}, which is read-only")
        return region

    def check_dependency(self, columns: Ints, did: str, array: str, *, reads: bool) -> None:
        """Report a thread that copies from or to an array before it has waited for the preceding grid."""
        dependency = self.machine.dependency
        if dependency is not None and dependency.left and dependency.concerns(array, reads=reads):
            unmet = dependency.unmet(columns)
            if unmet is not None:
                dependency.add(self.where, self.machine.geometry.thread_name(unmet), did, self.i)

    def index(self, spans: Spans) -> Ints:
        """Return the indices of ranges in the bytes of shared memory."""
        return spans.block * self.machine.geometry.shared_stride + spans.offset - self.machine.shared.start

    def origin(self, spans: Spans) -> Ints:
        """Return the index of byte 0 of each range's block in the bytes of shared memory."""
        return self.index(spans) - spans.offset

    # Loads

    def load(self, columns: Ints, nbytes: Ints, landing: Landing, act: Callable[[], None]) -> None:
        """Start copies of threads into shared memory, ``nbytes`` each."""
        machine, events = self.machine, self.machine.events
        copies, barriers = landing.copies, landing.barriers
        agents = [self.agent(int(column)) for column in columns]
        for n, (block, chunks) in enumerate(landing.sources):
            self.check_written(int(columns[n]), block, chunks)
            self.touch(agents[n], "read", block, chunks)
        for block, chunks, copy in zip(landing.to.block.tolist(), landing.chunks, copies.tolist(), strict=True):
            self._meets_mbarrier(block, chunks, int(nbytes[copy]))
            if landing.combines:
                self.check_written(int(columns[copy]), block, chunks)
            self.touch(agents[copy], "write", block, chunks)
        self._count_in_flight(barriers, nbytes, columns // LANES)
        everything = np.concatenate([np.zeros(0, np.int64), *landing.chunks])
        if machine.dependency is not None:
            machine.dependency.release_each(barriers, columns)

        def land() -> None:
            act()
            machine.written.view("V16")[everything] = _WRITTEN
            machine.swizzles.mark(everything, landing.swizzle, self.i)
            for agent, keys, count in zip(agents, barriers, nbytes.tolist(), strict=True):
                for key in keys:
                    if events is not None:
                        events.agent_completes(agent, machine.in_grid(key), where=self.where)
                    machine.mbarriers.bring(key, count, self.i)
            machine.progress += 1

        if machine.queue.late and not landing.combines:
            machine.shared.data.view("V16")[everything] = _POISON
        machine.queue.issue(AsyncOperation(land, frozenset(key for keys in barriers for key in keys)))

    def _count_in_flight(self, barriers: list[list[Key]], nbytes: Ints, warps: Ints) -> None:
        """Record copies of ``nbytes`` each by ``warps`` that phases of mbarriers wait for, for the counts of waits."""
        waits, phase = self.machine.copy_waits, self.machine.mbarriers.phase
        if waits is not None:
            for keys, count, warp in zip(barriers, nbytes.tolist(), warps.tolist(), strict=True):
                for key in keys:
                    waits.load(key, phase(key), count, warp)

    def _meets_mbarrier(self, block: int, chunks: Ints, nbytes: int) -> None:
        """Report a copy that overwrites a live mbarrier."""
        barriers = self.machine.mbarriers
        offsets = self._offsets(block, chunks)
        if not len(offsets) or not barriers.near(int(offsets.min()), int(offsets.max()) + _CHUNK):
            return
        hit = next((o for o in offsets.tolist() if barriers.hit(block, o, _CHUNK) is not None), None)
        if hit is not None:
            where = self.machine.describe("shared", hit)
            barriers.report(self.i, f"copies {nbytes} bytes, over a live mbarrier at {where}")

    def _offsets(self, block: int, chunks: Ints) -> Ints:
        """Return chunks of a block as offsets in its window."""
        return chunks * _CHUNK - (block * self.machine.geometry.shared_stride - self.machine.shared.start)

    # Stores

    def store(self, column: int, block: int, chunks: Ints, read: Callable[[], Callable[[], None]]) -> None:
        """Start a thread's copy from some 16-byte chunks of a block's shared memory."""
        self.check_written(column, block, chunks)
        agent = self.agent(column)
        self.touch(agent, "read", block, chunks)
        self.machine.bulk.issue(BulkStore(column, self.i, read, agent))
        self.machine.progress += 1

    def check_written(self, column: int, block: int, chunks: Ints) -> None:
        """Report a thread that copies from bytes of shared memory that were never stored to."""
        machine = self.machine
        if not (machine.written.view("c16")[chunks] == _WRITTEN.view("c16")).all():
            unset = np.flatnonzero(machine.written.reshape(-1, _CHUNK)[chunks] == 0)
            chunk, byte = divmod(int(unset[0]), _CHUNK)
            where = machine.describe("shared", int(self._offsets(block, chunks[chunk : chunk + 1])[0]) + byte)
            self._report_unset("uninitialised-shared", column, where)

    def _report_unset(self, kind: str, column: int, where: str) -> None:
        """Report a thread that copies from memory that was never stored to."""
        machine = self.machine
        thread = machine.geometry.thread_name(column)
        message = f"{machine.launch.kernel}: {thread} copies from {where}, where nothing was stored, in {self.i.text!r}"
        machine.hazards.add(kind, self.where, message, self.i)

    # Events

    def agent(self, column: int) -> int:
        """Return the race detector's number of a new copy of a thread; -1 without a detector."""
        events = self.machine.events
        if events is None:
            return -1
        warps, lanes = self.machine.threads(np.array([column]))
        return events.issue(int(warps[0]), lanes[0])

    def touch(self, agent: int, kind: str, block: int, chunks: Ints) -> None:
        """Report a copy's access to 16-byte chunks of a block's shared memory to the race detector."""
        events = self.machine.events
        if events is not None:
            events.agent_access(
                agent,
                kind,
                block=int(self.machine.geometry.block_ids[block]),
                offsets=self._offsets(block, chunks),
                width=_CHUNK,
                where=self.where,
            )

    # Global memory

    def watch_global(self, column: int, memory: Allocation, ranges: tuple[Ints, Ints], kind: str, width: int) -> None:
        """Report a copy's access to ranges of global memory to the race detector, as its thread's access at issue.

        ``kind`` is "read", "write" or "atomic", by elements of ``width`` bytes.
        """
        if kind != "write":
            self._check_global(column, memory, ranges)
        events, (starts, ends) = self.machine.events, ranges
        if events is None or not memory.writable or not len(starts):
            return
        # The widest accesses that make up all ranges.
        if kind != "atomic":
            width = int(np.gcd.reduce(np.concatenate([starts, ends, [_CHUNK]])))
        addresses = np.concatenate(
            [np.arange(*span, width) for span in zip(starts.tolist(), ends.tolist(), strict=True)]
        )
        warps, lanes = self.machine.threads(np.array([column]))
        count = len(addresses)
        events.copies_global(
            warp=np.repeat(warps, count),
            addresses=np.repeat(addresses[:, None], LANES, axis=1),
            active=np.repeat(lanes, count, axis=0),
            width=width,
            kind=kind,
            where=self.where,
            ordering=Ordering() if kind == "atomic" else None,
        )

    def _check_global(self, column: int, memory: Allocation, ranges: tuple[Ints, Ints]) -> None:
        """Report global memory that a copy reads and that was never stored to."""
        if memory.written is None:
            return
        for start, end in zip(*(x.tolist() for x in ranges), strict=True):
            unset = np.flatnonzero(memory.written[1][start - memory.start : end - memory.start] == 0)
            if len(unset):
                where = self.machine.space.describe(start + int(unset[0]))
                self._report_unset("uninitialised-global", column, where)
                return


def mark_global(memory: Allocation, ranges: tuple[Ints, Ints], i: Instruction) -> None:
    """Mark ranges of global memory as stored to by an instruction."""
    note_store(memory, i)
    for marks in memory.marks:
        for start, end in zip(*(x.tolist() for x in ranges), strict=True):
            marks[1][start - memory.start : end - memory.start] = 1
