"""Kernels that make no progress: warps that spin, warps that wait for each other, and arithmetic without end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from matmill.emulator.engine.schedule.block_barriers import BlockBarriers
from matmill.emulator.engine.schedule.lane_waits import LaneWaits
from matmill.emulator.engine.schedule.thread_names import end_instruction, representative, who
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.engine.state.program_counters import DONE, HOLD, POLL, Flags, Ints, ProgramCounters
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.report.hazards import KernelFault, fault

# Blocks of code that may run without a store, a changing atomic, a barrier or an exit, before the kernel is stuck.
STEP_LIMIT = 2_000_000
_WATCH_AFTER = 64


@dataclass
class _Watch:
    """The start of a loop that changes no memory: how often it was entered, and the registers then."""

    visits: int = 0
    sample: bytes = b""
    whole: bytes | None = None


class StuckWarps:
    """Detects the warps of a batch that are stuck, and describes where they wait.

    ``waits`` are the waits of the program, by the block that follows.
    """

    def __init__(
        self,
        machine: Machine,
        counters: ProgramCounters,
        waits: Mapping[int, Terminator],
        lane_waits: LaneWaits,
        barriers: BlockBarriers,
    ) -> None:
        self._machine = machine
        self._blocks = machine.program.blocks
        self._counters = counters
        self._waits = waits
        self._lane_waits = lane_waits
        self._barriers = barriers
        # The machine's progress when each warp began to spin.
        self._stalled = np.full(len(counters.first), -1, np.int64)
        self._last_instruction: dict[int, Instruction] = {}
        # The machine's progress when lanes of each warp last let others run, and how often they have since.
        self._yielded_at = np.full(len(counters.first), -1, np.int64)
        self._yields = np.zeros(len(counters.first), np.int64)

    def begin(self) -> None:
        """Start a batch, in which nobody is stuck."""
        self._stalled[...] = -1
        self._yielded_at[...] = -1
        self._watch_after = _WATCH_AFTER
        self._quiet = 0
        self._seen_progress = self._machine.progress
        self._watches: dict[tuple[int, int, int], _Watch] = {}

    def spin(self) -> Flags:
        """Return the warps that spin until memory changes: bool[warps]."""
        spin: Flags = self._stalled == self._machine.progress
        return spin

    def quiet(self) -> bool:
        """Tell whether so many steps changed no memory that loops are watched."""
        return self._quiet > self._watch_after

    def note(self, block: int) -> None:
        """Count a step, and detect kernels that make no progress."""
        machine = self._machine
        machine.ticks += 1
        if machine.progress != self._seen_progress:
            self._seen_progress = machine.progress
            self._quiet = 0
            self._watches.clear()
            return
        self._quiet += 1
        if self._quiet > STEP_LIMIT:
            instruction = representative(self._blocks[block])
            message = (
                f"{machine.launch.kernel}: {STEP_LIMIT:,} steps without a store, a barrier or an exit; "
                f"{who(machine.geometry, self._counters.first < HOLD)} at {instruction.location}"
            )
            raise fault("step-limit", message, instruction)

    def watch(self, block: int, warps: Ints) -> None:
        """Stall warps that return to a block with the same registers while memory is unchanged.

        The state of visits 1, 2, 4, … is kept, so that a cycle of any length is detected. Only the first warp's
        registers are compared until they repeat: in most loops they never do, and there are many registers.
        """
        watch = self._watches.setdefault((block, int(warps[0]), len(warps)), _Watch())
        watch.visits += 1
        sample = self._machine.snapshot(warps[:1])
        if sample != watch.sample:
            if watch.visits & (watch.visits - 1) == 0:
                watch.sample, watch.whole = sample, None
            return
        whole = self._machine.snapshot(warps) + self._counters.counter[warps].tobytes()
        if whole == watch.whole:
            self._stalled[self._without_others(block, warps)] = self._machine.progress
            self._last_instruction[int(warps[0])] = representative(self._blocks[block])
        watch.whole = whole

    def _without_others(self, block: int, warps: Ints) -> Ints:
        """Let other lanes of warps run before those that spin at a block of code; return the warps that have none.

        Since sm_70 each lane goes on for itself: one that spins does not keep the others of its warp from running.
        """
        counters, progress = self._counters, self._machine.progress
        fresh = self._yielded_at[warps] != progress
        self._yields[warps[fresh]] = 0
        self._yielded_at[warps] = progress
        counter = counters.counter[warps]
        spins = (counter == block) & ~counters.aside[warps]
        others = ((counter < POLL) & ~spins).any(axis=1) & (self._yields[warps] <= 2 * LANES)
        if others.any():
            self._yields[warps[others]] += 1
            self._watch_after = _WATCH_AFTER // 8
            counters.put_aside(warps[others], spins[others])
        alone: Ints = warps[~others]
        return alone

    def spinning(self) -> KernelFault:
        """Return the error for a batch with only spinning warps left."""
        spinners = self._counters.can_run()
        warp = int(np.flatnonzero(spinners)[0])
        instruction = self._last_instruction.get(warp) or representative(self._blocks[int(self._counters.first[warp])])
        message = (
            f"{self._machine.launch.kernel}: {who(self._machine.geometry, spinners)} spins at {instruction.location} "
            f"on memory that nobody changes any more{self._waiters()}"
        )
        return fault("deadlock", message, instruction)

    def deadlock(self) -> KernelFault:
        """Return the error for a batch in which every warp waits for another."""
        self._machine.products.warpgroups.finish()  # raises if a warp did not execute an instruction of its warpgroup
        first = self._counters.first
        point = int(first[(first >= POLL) & (first < DONE)][0])
        instruction = end_instruction(self._waits[point % POLL])
        return fault("deadlock", f"{self._machine.launch.kernel}: no warp can run{self._waiters()}", instruction)

    def _waiters(self) -> str:
        """Describe who waits where, for messages."""
        mbarriers = self._machine.mbarriers.describe(self._machine.geometry.block_name)
        return "".join(f"; {part}" for part in (*self._lane_waits.describe(), *self._barriers.describe(), *mbarriers))
