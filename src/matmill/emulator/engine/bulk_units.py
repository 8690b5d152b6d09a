"""What bulk copies of all forms share: spans in shared memory, checks, events for the race detector, completion.

A copy belongs to the thread that issues it. Copies issued by one execution of an instruction act together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.async_queue import Operation
from matmill.emulator.engine.bulk_groups import BulkStore
from matmill.emulator.engine.machine import Machine
from matmill.emulator.engine.mbarriers import Key
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import Allocation
from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.hazards import fault

Ints = NDArray[np.int64]
_POISON = 0xFF
_GRAIN = 16


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of shared memory: of each its block in the batch and the offset of its first byte (int64[n])."""

    block: Ints
    offset: Ints

    def take(self, chosen: Ints) -> Spans:
        """Some of the spans."""
        return Spans(self.block[chosen], self.offset[chosen])


@dataclass(frozen=True, eq=False)
class Landing:
    """What copies into shared memory write: spans of so many bytes, which copy writes each, and its mbarriers.

    ``swizzle`` is the span of bytes within which 16-byte chunks are exchanged there.
    """

    to: Spans
    spans: Ints
    copies: Ints
    barriers: list[list[Key]]
    swizzle: int = 0


class BulkUnit:
    """The bulk copies of one machine that one instruction issues; ``columns`` are the threads of the batch."""

    def __init__(self, machine: Machine, i: Instruction) -> None:
        self.machine = machine
        self.i = i
        self.where = machine.program.index_of(i)

    def spans(self, addresses: Ints, columns: Ints, nbytes: Ints, align: int) -> Spans:
        """Where shared addresses are; raises ``KernelFault`` outside the cluster's shared memory and off ``align``."""
        machine, shared = self.machine, self.machine.shared
        block, offset = machine.shared_targets(addresses, columns)
        outside = (block < 0) | (offset < shared.start) | (offset + nbytes > shared.end)
        for kind, wrong in (("out-of-bounds", outside), ("misaligned", offset % align != 0)):
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                where = machine.describe("shared", int(offset[at]))
                what = f"{int(nbytes[at])} bytes at {where}" + (f", no multiple of {align}" if not outside[at] else "")
                self.stop(kind, int(columns[at]), f"copies {what}")
        return Spans(block, offset)

    def stop(self, kind: str, column: int, problem: str) -> NoReturn:
        """Raise ``KernelFault`` for what a thread asks for."""
        machine = self.machine
        thread = machine.geometry.thread_name(column)
        raise fault(kind, f"{machine.launch.kernel}: {thread} {problem}, in {self.i.text!r}", self.i)

    def allocation(self, low: int, high: int, column: int, *, writes: bool) -> Allocation:
        """The global memory that holds a span; raises ``KernelFault`` where none does, or it is read-only."""
        found = self.machine.space.find(low)
        if found is None or high > found.end:
            at = low if found is None else found.end
            where = self.machine.space.describe(at)
            self.stop("out-of-bounds", column, f"copies {high - low} bytes, to {where}")
        if writes and not found.writable:
            self.stop("read-only", column, f"writes to {found.name}, which is read-only")
        return found

    def check_dependency(self, columns: Ints, did: str) -> None:
        """Report a thread that copies from or to global memory before it has waited for the grid ahead."""
        dependency = self.machine.dependency
        if dependency is not None and dependency.left:
            unmet = dependency.unmet(columns)
            if unmet is not None:
                dependency.add(self.where, self.machine.geometry.thread_name(unmet), did, self.i)

    def index(self, spans: Spans) -> Ints:
        """Spans as indices of the bytes of shared memory."""
        return spans.block * self.machine.geometry.shared_stride + spans.offset - self.machine.shared.start

    def origin(self, spans: Spans) -> Ints:
        """Where byte 0 of each span's block would be among the bytes of shared memory."""
        return self.index(spans) - spans.offset

    # Loads

    def load(self, columns: Ints, nbytes: Ints, landing: Landing, act: Callable[[], None]) -> None:
        """Start copies of threads into shared memory, ``nbytes`` each."""
        machine, events = self.machine, self.machine.events
        to, copies, barriers = landing.to, landing.copies, landing.barriers
        self._meets_mbarrier(to, landing.spans)
        agents = [self.agent(int(column)) for column in columns]
        if events is not None:
            where = zip(to.block.tolist(), to.offset.tolist(), landing.spans.tolist(), copies.tolist(), strict=True)
            for block, offset, span, copy in where:
                self.touch(agents[copy], "write", block, offset, span)
        spans = list(zip(self.index(to).tolist(), landing.spans.tolist(), strict=True))

        def land() -> None:
            act()
            for first, length in spans:
                machine.written[first : first + length] = 1
                machine.swizzles.mark(first, length, landing.swizzle, self.i)
            for agent, keys, count in zip(agents, barriers, nbytes.tolist(), strict=True):
                for key in keys:
                    if events is not None:
                        events.agent_completes(agent, machine.in_grid(key), where=self.where)
                    machine.mbarriers.expect(key, -count, self.i)
            machine.progress += 1

        if machine.queue.late:
            for first, length in spans:
                machine.shared.data[first : first + length] = _POISON
        machine.queue.issue(Operation(land, frozenset(key for keys in barriers for key in keys)))

    def _meets_mbarrier(self, to: Spans, nbytes: Ints) -> None:
        """Report a copy over a live mbarrier."""
        barriers = self.machine.mbarriers
        for block, offset, count in zip(to.block.tolist(), to.offset.tolist(), nbytes.tolist(), strict=True):
            if barriers.near(offset, offset + count) and barriers.hit(block, offset, count) is not None:
                where = self.machine.describe("shared", offset)
                barriers.report(self.i, f"copies {count} bytes to {where}, over a live mbarrier")

    # Stores

    def store(self, column: int, span: tuple[int, int], nbytes: int, read: Callable[[], Callable[[], None]]) -> None:
        """Start a thread's copy of ``nbytes`` out of the shared memory at ``span``, a block and an offset."""
        machine = self.machine
        first = int(self.index(Spans(np.array(span[:1]), np.array(span[1:])))[0])
        if not machine.written[first : first + nbytes].all():
            offset = span[1] + int(np.flatnonzero(machine.written[first : first + nbytes] == 0)[0])
            thread, where = machine.geometry.thread_name(column), machine.describe("shared", offset)
            message = (
                f"{machine.launch.kernel}: {thread} copies from {where}, where nothing was stored, in {self.i.text!r}"
            )
            machine.hazards.add("uninitialised-shared", self.where, message, self.i)
        agent = self.agent(column)
        self.touch(agent, "read", *span, nbytes)
        machine.bulk.issue(BulkStore(column, self.i, read, agent))
        machine.progress += 1

    # Events

    def agent(self, column: int) -> int:
        """The race detector's name for a copy that a thread starts; -1 without a detector."""
        events = self.machine.events
        if events is None:
            return -1
        warps, lanes = self.machine.threads(np.array([column]))
        return events.issue(int(warps[0]), lanes[0])

    def touch(self, agent: int, kind: str, block: int, offset: int, nbytes: int) -> None:
        """Tell the race detector what a copy does to shared memory."""
        events = self.machine.events
        if events is not None:
            width = _GRAIN if not (offset | nbytes) % _GRAIN else 4
            events.agent_access(
                agent,
                kind,
                block=int(self.machine.geometry.block_ids[block]),
                offsets=np.arange(offset, offset + nbytes, width),
                width=width,
                where=self.where,
            )

    def watch_global(self, column: int, starts: Ints, ends: Ints, kind: str) -> None:
        """Tell the race detector what global memory a copy reads or writes, as done by its thread when it issues it."""
        detector = self.machine.detector
        if detector is None or not len(starts):
            return
        # The widest accesses of which all ranges are made.
        width = int(np.gcd.reduce(np.concatenate([starts, ends, [_GRAIN]])))
        addresses = np.concatenate(
            [np.arange(*span, width) for span in zip(starts.tolist(), ends.tolist(), strict=True)]
        )
        warps, lanes = self.machine.threads(np.array([column]))
        count = len(addresses)
        detector.access(
            "global",
            warp=np.repeat(warps, count),
            addresses=np.repeat(addresses[:, None], LANES, axis=1),
            active=np.repeat(lanes, count, axis=0),
            width=width,
            kind=kind,
            where=self.where,
        )
