"""The scheduler: which warps run next, and where their lanes go at the ends of blocks: branches, waits, exits."""

from __future__ import annotations

import time

import numpy as np

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.block_barriers import BlockBarriers
from matmill.emulator.engine.schedule.call_stack import CallStack
from matmill.emulator.engine.schedule.deadlocks import StuckWarps
from matmill.emulator.engine.schedule.lane_polls import columns_of
from matmill.emulator.engine.schedule.lane_waits import LaneWaits
from matmill.emulator.engine.schedule.splits import Splits
from matmill.emulator.engine.schedule.thread_ends import finish_batch, tell_of_exits
from matmill.emulator.engine.schedule.thread_names import end_instruction
from matmill.emulator.engine.schedule.warp_meetings import WarpMeetings
from matmill.emulator.engine.schedule.warp_order import Order, WarpOrder
from matmill.emulator.engine.state.program_counters import DONE, HOLD, POLL, Flags, Ints, ProgramCounters
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Value
from matmill.emulator.program.waits import Barrier, Converge, GroupWait, Poll
from matmill.emulator.report.hazards import KernelFault

# So many atomics change nothing before all warps have so many turns.
_PATIENCE = 64


class Scheduler:
    """Runs one machine's batch to its end, or until only spinning warps are left."""

    def __init__(self, interpreter: Interpreter, order: Order) -> None:
        self.interpreter = interpreter
        self.machine = machine = interpreter.machine
        self.geometry = machine.geometry
        self.blocks = machine.program.blocks
        # By the block that follows, which belongs to one wait only.
        waits = {b.end.next: b.end for b in self.blocks if b.end.kind == "wait"}
        self.order = WarpOrder(self.geometry, order)
        self.counters = counters = ProgramCounters(self.geometry.warp_count)
        self.warp_meetings = WarpMeetings(interpreter, counters, waits)
        self.lane_waits = LaneWaits(interpreter, counters, waits)
        self.splits = Splits(self.geometry.warp_count)
        self.barriers = BlockBarriers(interpreter, counters, waits, self.order, self.splits)
        self.stuck_warps = StuckWarps(machine, counters, waits, self.lane_waits, self.barriers)
        self.calls = CallStack(interpreter)
        # Only kernels that can see it let diverged lanes meet late.
        self.late = order.late_lanes and machine.program.sees_convergence
        self._turns = 0

    def begin(self, block_ids: Ints) -> None:
        """Start a batch of thread blocks, numbered ``block_ids`` in the grid: all threads are at the first block."""
        self.interpreter.begin(block_ids)
        self.machine.live[...] = self.geometry.exists.reshape(-1, LANES)
        self.counters.begin(self.machine.live)
        self.lane_waits.begin()
        self.warp_meetings.begin()
        self.barriers.begin()
        self.splits.begin()
        self.stuck_warps.begin()
        self.calls.begin()
        self.order.begin()

    def run(self) -> bool:
        """Run until all threads are done (True), or until only warps that spin on memory are left (False)."""
        first, until = self.counters.first, self.machine.context.until
        while True:
            if time.perf_counter() > until:
                raise TimeoutError
            self.lane_waits.look_again()
            for end, waiting in self.warp_meetings.groups_closed():
                self._wait(end, waiting)
            chosen = np.flatnonzero((first < POLL) & ~self.stuck_warps.spin())
            if not len(chosen):
                if self.lane_waits.act() or self.lane_waits.time_out() or self._release_held():
                    continue
                if (first >= DONE).all():
                    finish_batch(self.machine)
                    return True
                if self.counters.can_run().any():
                    return False
                raise self.stuck_warps.deadlock()
            self._run(*self._next(chosen))

    def _next(self, warps: Ints) -> tuple[int, Ints]:
        """Return the block of code that runs next, and those of ``warps`` that run it.

        Warps that try in vain to lock what others have locked pass barriers as they do so, and look busy. After many
        such atomics everybody who may run has turns.
        """
        if self.machine.vain > _PATIENCE:
            self.machine.vain, self._turns = 0, _PATIENCE
        if self._turns:
            self._turns -= 1
            blocks = np.unique(self.counters.first[warps])
            block = int(blocks[self._turns % len(blocks)])
        else:
            warps = self.order.foremost(warps)
            block = int(self.counters.first[warps].min())
        return block, warps[self.counters.first[warps] == block]

    def _release_held(self) -> bool:
        """Release lanes that wait in vain for others of their warp; return whether there are any. Nobody can run."""
        deserted = self.warp_meetings.abandon()
        if deserted is not None:
            self._pass(*deserted)
        return deserted is not None

    def spinning(self) -> KernelFault:
        """Return the error for a batch with only spinning warps left."""
        return self.stuck_warps.spinning()

    def _run(self, block: int, warps: Ints) -> None:
        """Run a block of code for these warps, and further blocks while they stay together and nobody else may run."""
        whole = self.counters.whole[warps]
        if whole.all() and (warps[-1] - warps[0] == len(warps) - 1):
            self._run_together(block, int(warps[0]), int(warps[-1]) + 1)
            return
        if whole.any() and not whole.all():
            warps = warps[whole]
            whole = whole[whole]
        if whole.all():
            breaks = np.flatnonzero(np.diff(warps) != 1)
            first_run = warps[: breaks[0] + 1] if len(breaks) else warps
            if len(first_run) * 4 >= len(warps):
                self._run_together(block, int(first_run[0]), int(first_run[-1]) + 1)
                return
        active = (self.counters.counter[warps] == block) & ~self.counters.aside[warps]
        self.stuck_warps.note(block)
        self.interpreter.run_masked(block, warps, active)
        self._advance(block, warps, active)

    def _run_together(self, block: int, first: int, last: int) -> None:
        """Run consecutive whole warps as long as only they may run and they take one branch."""
        warps = np.arange(first, last)
        alone = self.counters.alone(first, last)
        while True:
            self.stuck_warps.note(block)
            self.interpreter.run_slice(block, first, last)
            following = self._common_way(self.blocks[block].end, first, last)
            if following is None:
                self.counters.put_slice(first, last, block)
                self._advance(block, warps, np.ones((last - first, LANES), np.bool_))
                return
            watched = following <= block and self.stuck_warps.quiet()
            block = following
            if not alone or watched or self.lane_waits.changed():
                self.counters.put_slice(first, last, block)
                if watched:
                    self.stuck_warps.watch(block, warps)
                return

    # Ends of blocks

    def _common_way(self, end: Terminator, first: int, last: int) -> int | None:
        """Return the next block of all lanes of whole warps, or None if it differs or somebody must wait."""
        if end.kind == "jump":
            return end.target
        if end.kind == "branch":
            taken = self._guard(end)[first * LANES : last * LANES]
            count = int(np.count_nonzero(taken))
            if end.negated:
                count = len(taken) - count
            if count == len(taken):
                return end.target
            return end.next if count == 0 else None
        return end.next if end.kind == "wait" and self._pass_at_once(end, first, last) else None

    def _pass_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Let whole warps pass a wait at which none of their lanes needs to wait."""
        if isinstance(end.detail, Converge):
            return self.warp_meetings.pass_at_once(end, first, last)
        if isinstance(end.detail, GroupWait):
            warps = np.arange(first, last)
            if not self.warp_meetings.committed_by_all(end, warps).all():
                return False
            self.warp_meetings.wait_for_products(end, warps)
            return True
        waits = self.lane_waits if isinstance(end.detail, Poll) else self.barriers
        return waits.pass_at_once(end, first, last)

    def _guard(self, end: Terminator) -> Flags:
        if end.guard is None:
            return np.ones(self.geometry.columns, np.bool_)
        row: Flags = self.machine.files["p"][self.machine.program.layout.rows[end.guard]]
        return row

    def _advance(self, block: int, warps: Ints, active: Flags) -> None:
        """Set the next counters of the active lanes of these warps."""
        end = self.blocks[block].end
        counter = self.counters.counter[warps]
        if end.kind == "jump":
            counter[active] = end.target
        elif end.kind == "branch":
            self._branch(end, warps, active, counter)
        elif end.kind in {"exit", "return"}:
            self._leave(end, warps, active, counter)
        elif end.kind == "call":
            counter[active] = self.calls.enter(end, warps, active)
        elif end.selector is not None:
            table, index = np.array(end.table), self.interpreter.operand_row(Value(end.selector, "u4"), warps)
            counter[active] = table[np.minimum(index, len(table) - 1)][active]
        elif isinstance(end.detail, Poll):
            counter[active] = POLL + end.next
        else:
            counter[active] = HOLD + end.next
        self.counters.put(warps, counter)
        if end.kind == "wait":
            self._wait(end, warps)
        elif end.kind == "exit":
            self._exited(warps, end_instruction(end))
        elif self.stuck_warps.quiet() and (counter[active] <= block).any():
            self.stuck_warps.watch(int(counter[active].min()), warps)

    def _branch(self, end: Terminator, warps: Ints, active: Flags, counter: Ints) -> None:
        """Set the next counters of the active lanes at a branch; where lanes meet late, one side runs on alone."""
        taken = self._guard(end).reshape(-1, LANES)[warps] != end.negated
        sides = active & taken, active & ~taken
        counter[sides[0]], counter[sides[1]] = end.target, end.next
        self.splits.note(end.instruction, warps, *sides)
        both = sides[0].any(axis=1) & sides[1].any(axis=1)
        if self.late and both.any():
            self.counters.put(warps, counter)
            self.counters.put_aside(warps[both], sides[end.target < end.next][both])

    def _leave(self, end: Terminator, warps: Ints, active: Flags, counter: Ints) -> None:
        """Set the next counters of the active lanes that exit or return from a call, where a guard holds."""
        leaving = active
        if end.guard is not None:
            leaving = active & (self._guard(end).reshape(-1, LANES)[warps] != end.negated)
            counter[active & ~leaving] = end.next
            self.splits.note(end.instruction, warps, leaving, active & ~leaving)
        if end.kind == "return":
            counter[leaving] = self.calls.leave(warps, leaving)
        else:
            counter[leaving] = DONE
            self.machine.live[warps] = counter < DONE

    def _wait(self, end: Terminator, warps: Ints) -> None:
        """Begin a wait of lanes; those that need not wait continue."""
        if isinstance(end.detail, Poll):
            self.lane_waits.look(end, warps)
            return
        warps, met = self.warp_meetings.meet(end, warps)
        if len(warps):
            self._pass(end, warps, met)

    def _pass(self, end: Terminator, warps: Ints, met: Flags) -> None:
        """Release the lanes ``met`` of these warps without others of their warp; block barriers still hold."""
        if isinstance(end.detail, Barrier):
            self.barriers.arrive(end, warps, met)
            return
        if isinstance(end.detail, GroupWait):
            ready = self.warp_meetings.committed_by_all(end, warps)
            warps, met = warps[ready], met[ready]
            self.warp_meetings.wait_for_products(end, warps)
        self.counters.release(warps, met, HOLD)

    def _exited(self, warps: Ints, instruction: Instruction) -> None:
        """Release warps, barriers and clusters that only wait for threads that have exited."""
        self.machine.progress += 1
        tell_of_exits(self.machine, warps, instruction)
        self.machine.cluster.exited(columns_of(warps, self.counters.counter[warps] == DONE))
        for end, waiting in self.warp_meetings.left_behind(warps):
            self._wait(end, waiting)
        self.barriers.exited(warps)
