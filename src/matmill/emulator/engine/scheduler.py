"""Which warps run next, and what happens between blocks of code: branches, waits, exits.

A lane's program counter is a block number, plus ``POLL`` while it waits alone (for a phase of an mbarrier, or for its
cluster), ``HOLD`` while it waits for lanes of its warp, ``BARRIER`` while it waits at a barrier of its thread block, or
``DONE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.interpreter import Interpreter
from matmill.emulator.engine.machine import Meeting
from matmill.emulator.engine.members import FULL, companions, in_own, lane_list, leaves_out, missing
from matmill.emulator.engine.polls import Polls, columns_of
from matmill.emulator.engine.stuck import blame, blame_end, who
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Value
from matmill.emulator.program.waits import Barrier, Converge, GroupWait, PhaseWait, Poll
from matmill.emulator.races.async_events import AsyncEvents
from matmill.emulator.report.hazards import KernelFault, fault

POLL = 1 << 25
HOLD = 1 << 26
BARRIER = 1 << 27
DONE = 1 << 28
# Blocks of code that may run without any store, changed atomic, barrier or exit, before the kernel counts as stuck.
STEP_LIMIT = 2_000_000
_WATCH_AFTER = 64

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Masks = NDArray[np.uint32]


def _kind(end: Terminator) -> tuple[object, ...]:
    """What lanes at different instructions must have in common to meet: opcode and modifiers."""
    return () if end.instruction is None else (end.instruction.name, end.instruction.modifiers)


@dataclass
class _Watch:
    """A loop that changes no memory, at its start: how often it was entered, and the registers then."""

    visits: int = 0
    sample: bytes = b""
    whole: bytes | None = None


class Scheduler:
    """Runs one machine's batch to its end, or until only spinning warps are left."""

    def __init__(self, interpreter: Interpreter, *, schedule: int) -> None:
        self.interpreter = interpreter
        self.machine = machine = interpreter.machine
        self.geometry = machine.geometry
        self.blocks = machine.program.blocks
        # The blocks of code that end with a wait, by the block that follows.
        self.waits = {b.end.next: b for b in self.blocks if b.end.kind == "wait"}
        self.schedule = schedule
        self.random = np.random.default_rng(schedule)
        warps = self.geometry.warp_count
        self.counter = np.zeros((warps, LANES), np.int64)
        self.first = np.zeros(warps, np.int64)
        self.whole = np.ones(warps, np.bool_)
        self.barrier_of = np.zeros((warps, LANES), np.int64)
        self.stalled = np.full(warps, -1, np.int64)
        self.priority = np.zeros(warps, np.int64)
        self.last_place: dict[int, Instruction] = {}
        self.polls = Polls(interpreter)

    def begin(self, block_ids: Ints) -> None:
        """Take up a batch, the numbers of its thread blocks in the grid: all threads at the first block of code."""
        self.interpreter.begin(block_ids)
        self.machine.live[...] = self.geometry.exists.reshape(-1, LANES)
        self.counter[...] = np.where(self.machine.live, 0, DONE)
        self.stalled[...] = -1
        self._look(np.arange(self.geometry.warp_count))
        self.steps = 0
        self.quiet = 0
        self.seen_progress = self.machine.progress
        self.watch: dict[tuple[int, int, int], _Watch] = {}
        self.polled = self.polls.completions()
        self.timed_out = -1
        self._shuffle()

    def _look(self, warps: Ints) -> None:
        """Recompute what is derived from the lanes' counters."""
        counters = self.counter[warps]
        self.first[warps] = counters.min(axis=1)
        self.whole[warps] = (counters == counters[:, :1]).all(axis=1)

    def _shuffle(self) -> None:
        """New priorities: with schedule 0 all warps run together, else some run far ahead of others."""
        if not self.schedule:
            return
        order = self.random.permutation(self.geometry.warps)
        by_role = order[self.geometry.warp_in_block]
        if self.schedule % 3 == 0:
            # Two halves; within each the warps stay together.
            by_role = by_role * 2 // max(self.geometry.warps, 1)
        blocks = self.random.permutation(self.geometry.blocks)[self.geometry.block_of_warp]
        self.priority = by_role + (blocks % 2) * self.geometry.warps if self.schedule % 2 == 0 else by_role

    def run(self) -> bool:
        """Run until all threads are done (True), or only warps that spin on memory are left (False)."""
        while True:
            self._wake_polling()
            ready = (self.first < POLL) & (self.stalled != self.machine.progress)
            chosen = np.flatnonzero(ready)
            if not len(chosen):
                if self._act() or self._time_out() or self._release_held():
                    continue
                if (self.first >= DONE).all():
                    self.machine.copies.finish()
                    self._finish_units()
                    self.machine.products.finish()
                    self.machine.registers.finish()
                    if self.machine.detector is not None:
                        self.machine.detector.release(self.geometry.block_ids)
                    return True
                if (self.first < POLL).any():
                    return False
                raise self._deadlock()
            if self.schedule:
                chosen = chosen[self.priority[chosen] == self.priority[chosen].min()]
            counters = self.first[chosen]
            block = int(counters.min())
            self._run(block, chosen[counters == block])

    def _run(self, block: int, warps: Ints) -> None:
        """Run a block of code for these warps, and on while they stay together and nobody else may run."""
        whole = self.whole[warps]
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
        active = self.counter[warps] == block
        self._note(block)
        self.interpreter.run_masked(block, warps, active)
        self._advance(block, warps, active)

    def _run_together(self, block: int, first: int, last: int) -> None:
        """Neighbouring whole warps: stay with them as long as they alone may run and take one branch."""
        warps = np.arange(first, last)
        alone = bool((self.first[:first] >= POLL).all() and (self.first[last:] >= POLL).all())
        while True:
            self._note(block)
            self.interpreter.run_slice(block, first, last)
            end = self.blocks[block].end
            following = self._common_way(end, first, last)
            if following is None:
                self.counter[first:last] = block
                self._advance(block, warps, np.ones((last - first, LANES), np.bool_))
                return
            back = following <= block
            block = following
            if not alone or self.polled != self.polls.completions() or (back and self.quiet > _WATCH_AFTER):
                self.counter[first:last] = block
                self.first[first:last] = block
                if back and self.quiet > _WATCH_AFTER:
                    self._watch_loop(block, warps)
                return

    def _common_way(self, end: Terminator, first: int, last: int) -> int | None:
        """Where all lanes of whole warps go next, if that is one block and nobody has to wait."""
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
        if end.kind == "wait" and isinstance(end.detail, Converge):
            return end.next if not end.detail.barrier or self._meet_at_once(end, first, last) else None
        if isinstance(end.detail, GroupWait):
            self._wait_for_products(end.detail, np.arange(first, last), end.instruction)
            return end.next
        return end.next if end.kind == "wait" and self._passes_at_once(end, first, last) else None

    def _meet_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Whether whole warps, being here, just pass a warp barrier: the usual ``__syncwarp()``."""
        warps = np.arange(first, last)
        members = end.detail.members
        literal = isinstance(members, Immediate) and int(members.value) & int(FULL) == FULL
        if not literal and not (self._members(end, warps) == FULL).all():
            return False
        if self.machine.detector is not None:
            self.machine.detector.warp_barrier(self.machine.warp_ids(warps), np.ones((len(warps), LANES), np.bool_))
        return True

    def _passes_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Whether whole warps need not wait: as for a phase that has completed, or the usual ``__syncthreads()``."""
        if isinstance(end.detail, Poll):
            warps, lanes = np.arange(first, last), np.ones((last - first, LANES), np.bool_)
            passes = bool(self.polls.past(end, warps, lanes).all())
            if passes:
                self.polls.count(end, len(warps))
                self.polls.finish(end, warps, lanes, succeeds=True)
            return passes
        barrier: Barrier = end.detail
        if last - first != self.geometry.warp_count:
            return False
        if self.schedule or barrier.mode != "sync" or barrier.threads is not None or self.machine.arrived:
            return False
        if not isinstance(barrier.number, Immediate):
            return False
        machine, geometry = self.machine, self.geometry
        machine.tally.barriers += geometry.warp_count
        machine.progress += 1
        if machine.detector is not None:
            ids = self.machine.warp_ids(np.arange(geometry.warp_count)).reshape(geometry.warps, geometry.blocks)
            for block in range(geometry.blocks):
                machine.detector.barrier(ids[:, block])
        return True

    def _guard(self, end: Terminator) -> Flags:
        if end.guard is None:
            return np.ones(self.geometry.columns, np.bool_)
        row: Flags = self.machine.files["p"][self.machine.program.layout.rows[end.guard]]
        return row

    def _note(self, block: int) -> None:
        """Count a step, and watch for kernels that make no progress."""
        self.steps += 1
        self.machine.ticks += 1
        if self.machine.progress != self.seen_progress:
            self.seen_progress = self.machine.progress
            self.quiet = 0
            self.watch.clear()
        else:
            self.quiet += 1
            if self.quiet > STEP_LIMIT:
                instruction = blame(self.blocks[block])
                message = (
                    f"{self.machine.launch.kernel}: {STEP_LIMIT:,} steps without a store, a barrier or an exit; "
                    f"{who(self.geometry, self.first < HOLD)} at {instruction.location}"
                )
                raise fault("step-limit", message, instruction)

    # Ends of blocks

    def _advance(self, block: int, warps: Ints, active: Flags) -> None:
        """Give the active lanes of these warps their next counters."""
        end = self.blocks[block].end
        counter = self.counter[warps]
        before = counter.copy()
        if end.kind == "jump":
            counter[active] = end.target
        elif end.kind == "branch":
            taken = self._guard(end).reshape(-1, LANES)[warps] != end.negated
            counter[active & taken] = end.target
            counter[active & ~taken] = end.next
        elif end.kind == "exit":
            leaving = active
            if end.guard is not None:
                leaving = active & (self._guard(end).reshape(-1, LANES)[warps] != end.negated)
                counter[active & ~leaving] = end.next
            counter[leaving] = DONE
            self.machine.live[warps] = counter < DONE
        elif end.kind == "switch":
            chosen = (
                self.interpreter.operand_row(Value(end.selector, "u4"), warps) if end.selector is not None else before
            )
            table = np.array(end.table)
            counter[active] = table[np.minimum(chosen, len(table) - 1)][active]
        elif isinstance(end.detail, Poll):
            counter[active] = POLL + end.next
        else:
            counter[active] = HOLD + end.next
        self.counter[warps] = counter
        self._look(warps)
        if end.kind == "wait":
            self._wait(block, end, warps)
        elif end.kind == "exit":
            self._exited(warps, blame_end(end))
        elif self.quiet > _WATCH_AFTER and (counter[active] <= block).any():
            self._watch_loop(int(counter[active].min()), warps)

    def _wait(self, block: int, end: Terminator, warps: Ints) -> None:
        """Lanes have come to a wait; those that need not wait go on."""
        if isinstance(end.detail, Poll):
            self.polls.count(end, len(warps))
            self._poll(end, warps, self.counter[warps] == POLL + end.next)
        else:
            self._converge(block, end, warps)

    def _converge(self, block: int, end: Terminator, warps: Ints) -> None:
        """Release the lanes that have all met; at a block barrier whole warps then wait there."""
        counter = self.counter[warps]
        here, masks = self._waiting(end, warps)
        outside = here & ~in_own(masks)
        together = companions(masks, here)
        met = here & ((missing(masks, together, counter < DONE) == 0) | outside)
        if not met.any():
            return
        if isinstance(end.detail, Converge) and end.detail.barrier:
            if outside.any():
                self._report_outside(block, warps, masks, outside)
            self._order(warps, np.broadcast_to(together, (*met.shape, LANES)), met & ~outside)
        elif isinstance(end.detail, Converge):
            for row in np.flatnonzero((met & (counter != HOLD + end.next)).any(axis=1)):
                self._keep_sources(int(warps[row]), met[row])
        rows = met.any(axis=1)
        self._pass(block, end, warps[rows], met[rows])

    def _waiting(self, end: Terminator, warps: Ints) -> tuple[Flags, Masks]:
        """Which lanes wait here or, for a collective, at another one of its kind, and their masks: [warps, 32] both."""
        counter = self.counter[warps]
        here = counter == HOLD + end.next
        if not isinstance(end.detail, Converge):
            return here, np.full(counter.shape, FULL)
        masks = self._members(end, warps)
        elsewhere = (counter >= HOLD) & (counter < BARRIER) & ~here
        for point in np.unique(counter[elsewhere]):
            other = self.waits[int(point) - HOLD].end
            if isinstance(other.detail, Converge) and _kind(other) == _kind(end):
                there = counter == point
                here = here | there
                masks = np.where(there, self._members(other, warps), masks)
        return here, masks

    def _members(self, end: Terminator, warps: Ints) -> Masks:
        return self.interpreter.operand_row(Value(end.detail.members, "u4"), warps)

    def _keep_sources(self, warp: int, met: Flags) -> None:
        """Lanes of a warp meet at different instructions: keep the operands of all until each has executed its own."""
        counter, warps = self.counter[warp], np.array([warp])
        kept: list[NDArray[Any]] = []
        for point in np.unique(counter[met]):
            action = self.blocks[int(point) - HOLD].actions[0]
            rows = [self.interpreter.operand_row(source, warps)[0] for source in action.sources]
            kept = [np.where(counter == point, *pair) for pair in zip(rows, kept or rows, strict=True)]
        self.machine.meetings.setdefault(warp, []).append(Meeting(met, met.copy(), kept))

    def _order(self, warps: Ints, together: Flags, met: Flags) -> None:
        """Tell the detector that lanes met at a warp barrier, those of one mask after those of another."""
        while self.machine.detector is not None and met.any():
            rows = np.flatnonzero(met.any(axis=1))
            group = met[rows] & together[rows, met[rows].argmax(axis=1)]
            self.machine.detector.warp_barrier(self.machine.warp_ids(warps[rows]), group)
            met[rows] &= ~group

    def _pass(self, block: int, end: Terminator, warps: Ints, here: Flags) -> None:
        """The lanes ``here`` of these warps have met."""
        if isinstance(end.detail, Barrier):
            self._arrive(block, end, warps, here)
            return
        if isinstance(end.detail, GroupWait):
            self._wait_for_products(end.detail, warps, end.instruction)
        counter = self.counter[warps]
        counter[here] -= HOLD
        self.counter[warps] = counter
        self._look(warps)

    def _wait_for_products(self, wait: GroupWait, warps: Ints, i: Instruction | None) -> None:
        """Whole warps wait for products of theirs, which act now if they have not."""
        products = self.machine.products
        if i is not None:
            products.warpgroups.executed(warps, i)
        self.machine.progress += products.wait(warps, wait.allowed)
        events = self.machine.events
        if events is not None:
            everybody = np.ones((1, LANES), np.bool_)
            for warp in warps.tolist():
                for agent in products.ended(warp):
                    events.agent_joined(agent, self.machine.warp_ids(np.array([warp])), everybody)

    def _release_held(self) -> bool:
        """Nobody can run: lanes that wait for others of their warp in vain go on alone, which is a hazard."""
        held = np.flatnonzero((self.first >= HOLD) & (self.first < BARRIER))
        if not len(held):
            return False
        point = int(self.first[held].min())
        warps = held[self.first[held] == point]
        block = self.waits[point - HOLD].number
        end = self.blocks[block].end
        self._report_desertion(block, end, int(warps[0]), point)
        self._pass(block, end, warps, self.counter[warps] == point)
        return True

    def _report_desertion(self, block: int, end: Terminator, warp: int, point: int) -> None:
        """Report that lanes of a warp wait at a point for others that never come, and where those are."""
        instruction = blame(self.blocks[block])
        counter, warps = self.counter[warp], np.array([warp])
        here, masks = self._waiting(end, warps)
        absent = missing(masks, companions(masks, here), counter[None] < DONE)[0]
        lane = int(np.flatnonzero((counter == point) & (absent != 0))[0])
        gone = int(absent[lane])
        other = (gone & -gone).bit_length() - 1
        mask = "" if isinstance(end.detail, Barrier) else f" with mask {int(masks[0, lane]):#010x}"
        message = (
            f"{self.machine.launch.kernel}: {self.geometry.thread_name(warp * LANES + lane)} waits in "
            f"{instruction.text!r}{mask} for {lane_list(gone)} of its warp, which never come: "
            f"{self.geometry.thread_name(warp * LANES + other)} {self._doing(int(counter[other]))}"
        )
        if here[0, other]:
            message += f" with mask {int(masks[0, other]):#010x}"
        exchange = isinstance(end.detail, Converge) and not end.detail.barrier
        kind, key = ("shuffle", (instruction, "members")) if exchange else ("divergent-barrier", instruction)
        self.machine.hazards.add(kind, key, message, instruction)

    def _doing(self, counter: int) -> str:
        """What a lane with this counter does, for messages."""
        waits = counter >= HOLD
        instruction = blame(self.waits[counter % HOLD] if waits else self.blocks[counter])
        return f"{'waits' if waits else 'is'} at {instruction.location} ({instruction.text!r})"

    def _report_outside(self, block: int, warps: Ints, masks: Masks, outside: Flags) -> None:
        """Report a lane that waits at a warp barrier with a mask that does not name it."""
        row, lane = (int(x[0]) for x in np.nonzero(outside))
        thread, i = self.geometry.thread_name(int(warps[row]) * LANES + lane), blame(self.blocks[block])
        message = f"{self.machine.launch.kernel}: {leaves_out(thread, lane, int(masks[row, lane]), i)}"
        self.machine.hazards.add("shuffle", (i, "outside"), message, i)

    def _finish_units(self) -> None:
        """The batch has ended: what is in flight acts, and what nobody waited for is reported."""
        machine = self.machine
        machine.queue.finish()
        for (block, offset), i in machine.mbarriers.unwaited():
            message = (
                f"{machine.launch.kernel}: block {self.geometry.block_ids[block]} ends without a wait at the mbarrier "
                f"at byte {offset} of its shared memory for {i.text!r}, which may still write there"
            )
            machine.hazards.add("unwaited", i, message, i)
        for store in machine.bulk.finish():
            thread = machine.geometry.thread_name(store.column)
            message = (
                f"{machine.launch.kernel}: {thread} ends without cp.async.bulk.wait_group.read for "
                f"{store.instruction.text!r}, which may still read the shared memory of its block"
            )
            machine.hazards.add("unwaited", store.instruction, message, store.instruction)

    # Waits of single lanes

    def _polling(self) -> list[tuple[Terminator, Ints, Flags]]:
        """Where lanes wait alone, with the warps that have lanes there, and these lanes."""
        points = np.unique(self.counter[(self.counter >= POLL) & (self.counter < HOLD)])
        found = []
        for point in points.tolist():
            warps = np.flatnonzero((self.counter == point).any(axis=1))
            found.append((self.waits[point - POLL].end, warps, self.counter[warps] == point))
        return found

    def _wake_polling(self) -> None:
        """Look again at all lanes that wait alone, if anything that they may wait for has come to pass."""
        if self.polled != self.polls.completions():
            self.polled = self.polls.completions()
            for end, warps, lanes in self._polling():
                self._poll(end, warps, lanes)

    def _poll(self, end: Terminator, warps: Ints, lanes: Flags) -> None:
        """Let those ``lanes`` that wait at ``end`` go on for which what they wait for holds."""
        self._go_on(end, warps, self.polls.past(end, warps, lanes), succeeds=True)

    def _go_on(self, end: Terminator, warps: Ints, lanes: Flags, *, succeeds: bool) -> None:
        counter = self.counter[warps]
        counter[lanes] = end.next
        self.counter[warps] = counter
        self._look(warps)
        self.polls.finish(end, warps, lanes, succeeds=succeeds)

    def _act(self) -> bool:
        """Nobody can run: let an asynchronous operation act, one that lanes wait for if there is one."""
        awaited = {
            key
            for end, warps, lanes in self._polling()
            if isinstance(end.detail, PhaseWait)
            for key, _, _ in self.polls.barriers(end, warps, lanes)
        }
        return self.machine.queue.act_for(awaited)

    def _time_out(self) -> bool:
        """Nobody can run: each try_wait fails once, as after the hardware's time limit. False if all have done so."""
        if self.timed_out == self.machine.progress:
            return False
        self.timed_out = self.machine.progress
        waiting = [where for where in self._polling() if isinstance(where[0].detail, PhaseWait)]
        for end, warps, lanes in waiting:
            self.polls.count(end, -len(warps))
            self._go_on(end, warps, lanes, succeeds=False)
        return bool(waiting)

    # Barriers

    def _arrive(self, block: int, end: Terminator, warps: Ints, here: Flags) -> None:
        """Lanes reach a barrier of their thread block."""
        machine = self.machine
        barrier: Barrier = end.detail
        machine.tally.barriers += len(warps)
        machine.progress += 1
        number = self.interpreter.operand_row(Value(barrier.number, "u4"), warps).astype(np.int64)
        counter = self.counter[warps]
        counter[here] = end.next if barrier.mode == "arrive" else BARRIER + end.next
        self.counter[warps] = counter
        ids = self.barrier_of[warps]
        ids[here] = number[here]
        self.barrier_of[warps] = ids
        self._look(warps)
        first_lane = here.argmax(axis=1)
        numbers = number[np.arange(len(warps)), first_lane]
        for n in np.unique(numbers):
            mine = warps[numbers == n]
            self._count_arrivals(block, end, int(n), mine, here[numbers == n])

    def _count_arrivals(self, block: int, end: Terminator, number: int, warps: Ints, here: Flags) -> None:
        machine, geometry = self.machine, self.geometry
        barrier: Barrier = end.detail
        if barrier.mode == "arrive":
            for warp in warps:
                block_index = int(geometry.block_of_warp[warp])
                machine.arrived.setdefault((block_index, number), []).append(int(warp))
        wanted = 0
        if barrier.threads is not None:
            wanted = int(self.interpreter.operand_row(Value(barrier.threads, "u4"), warps)[0, int(here[0].argmax())])
            if wanted % LANES or not 0 < wanted <= geometry.warps * LANES:
                instruction = blame(self.blocks[block])
                message = f"{machine.launch.kernel}: barrier {number} for {wanted} threads in {instruction.text!r}"
                raise fault("deadlock", message, instruction)
        for block_index in np.unique(geometry.block_of_warp[warps]):
            machine.expected[int(block_index), number] = wanted
        self._complete(number, np.unique(geometry.block_of_warp[warps]))

    def _complete(self, number: int, block_indices: Ints) -> None:
        """Open barrier ``number`` of these thread blocks where enough threads have arrived."""
        geometry, machine = self.geometry, self.machine
        state = self.counter.reshape(geometry.warps, geometry.blocks, LANES)
        ids = self.barrier_of.reshape(geometry.warps, geometry.blocks, LANES)
        there = (state >= BARRIER) & (state < DONE) & (ids == number)
        gone = state >= DONE
        for index in block_indices:
            waiting = there[:, index]
            if not waiting.any():
                continue
            wanted = machine.expected.get((int(index), number), 0)
            early = np.zeros(geometry.warps, np.bool_)
            early[[warp // geometry.blocks for warp in machine.arrived.get((int(index), number), [])]] = True
            whole = (waiting | gone[:, index]).all(axis=1) | early
            present = int((waiting.any(axis=1) & whole | early).sum()) * LANES
            if present >= wanted if wanted else whole.all():
                self._open(number, int(index), waiting, gone=gone[:, index], wanted=wanted)

    def _open(self, number: int, index: int, waiting: Flags, *, gone: Flags, wanted: int) -> None:
        """Let the waiting threads of one thread block go on."""
        geometry, machine = self.geometry, self.machine
        roles = np.flatnonzero(waiting.any(axis=1))
        warps = roles * geometry.blocks + index
        early = machine.arrived.pop((index, number), [])
        machine.expected.pop((index, number), None)
        machine.progress += 1
        points = np.unique(self.counter[warps][waiting[roles]])
        ends = {
            BARRIER + b.end.next: b for b in self.blocks if b.end.kind == "wait" and isinstance(b.end.detail, Barrier)
        }
        exists = geometry.exists.reshape(-1, LANES).reshape(geometry.warps, geometry.blocks, LANES)[:, index]
        left = (gone & exists)[roles]
        if left.any():
            role, lane = np.argwhere(left)[0]
            instruction = blame(ends[int(points[0])])
            message = (
                f"{machine.launch.kernel}: {geometry.thread_name(int(warps[role]) * LANES + int(lane))} had returned "
                f"when threads of its warp passed {instruction.text!r}: right since sm_70, undefined before"
            )
            machine.hazards.add("early-exit", instruction, message, instruction)
        reduction = next((ends[int(p)] for p in points if ends[int(p)].end.detail.mode in {"popc", "and", "or"}), None)
        if reduction is not None:
            self._reduce(reduction.end, warps, waiting[roles])
        if machine.detector is not None:
            # Who has returned counts as arrived, but for a barrier that counts threads (PTX ISA, "bar, barrier").
            met = np.append(warps, early) if wanted else np.arange(geometry.warps) * geometry.blocks + index
            machine.detector.barrier(machine.warp_ids(met.astype(np.int64)))
        counter = self.counter[warps]
        counter[waiting[roles]] -= BARRIER
        self.counter[warps] = counter
        self._look(warps)
        self._shuffle()

    def _reduce(self, end: Terminator, warps: Ints, here: Flags) -> None:
        """The result of bar.red for all threads that waited."""
        barrier: Barrier = end.detail
        if end.action is None or barrier.source is None:
            return
        flags = self.interpreter.operand_row(Value(barrier.source, "p"), warps) != barrier.negated
        yes = flags & here
        value = {"popc": int(yes.sum()), "and": bool((yes | ~here).all()), "or": bool(yes.any())}[barrier.mode]
        row = self.interpreter.result_row(end.action.results[0])
        columns = (warps[:, None] * LANES + np.arange(LANES))[here]
        row[columns] = value

    def _exited(self, warps: Ints, instruction: Instruction) -> None:
        """Threads that ended: warps, barriers and clusters may have waited for them alone."""
        self.machine.progress += 1
        if self.machine.events is not None:
            self._tell_of_ends(self.machine.events, np.unique(self.geometry.block_of_warp[warps]), instruction)
        self.machine.cluster.exited(columns_of(warps, self.counter[warps] == DONE))
        held = warps[((self.counter[warps] >= HOLD) & (self.counter[warps] < BARRIER)).any(axis=1)]
        for block in self.blocks if len(held) else ():
            if block.end.kind == "wait":
                waiting = held[(self.counter[held] == HOLD + block.end.next).any(axis=1)]
                if len(waiting):
                    self._converge(block.number, block.end, waiting)
        blocks = np.unique(self.geometry.block_of_warp[warps])
        waiting_blocks = self.counter.reshape(self.geometry.warps, self.geometry.blocks, LANES)[:, blocks]
        stuck = (waiting_blocks >= BARRIER) & (waiting_blocks < DONE)
        if stuck.any():
            ids = self.barrier_of.reshape(self.geometry.warps, self.geometry.blocks, LANES)[:, blocks]
            for number in np.unique(ids[stuck]):
                self._complete(int(number), blocks)

    def _tell_of_ends(self, events: AsyncEvents, blocks: Ints, instruction: Instruction) -> None:
        """Tell the race detector of those of the ``blocks`` whose last thread has ended."""
        machine, geometry = self.machine, self.geometry
        left = machine.live.reshape(geometry.warps, geometry.blocks, LANES)[:, blocks].any(axis=(0, 2))
        where = machine.program.numbers.get(instruction, 0)
        for block in geometry.block_ids[blocks[~left]].tolist():
            events.exited(block, where)

    # Trouble

    def _watch_loop(self, block: int, warps: Ints) -> None:
        """Stall warps that come back to a block with the registers they had there before, memory being unchanged.

        The state of visits 1, 2, 4, … is kept, so a cycle of any length is found. Only the first warp's registers are
        compared until they repeat: in most loops they never do, and all registers are many.
        """
        watch = self.watch.setdefault((block, int(warps[0]), len(warps)), _Watch())
        watch.visits += 1
        sample = self.machine.snapshot(warps[:1])
        if sample != watch.sample:
            if watch.visits & (watch.visits - 1) == 0:
                watch.sample, watch.whole = sample, None
            return
        whole = self.machine.snapshot(warps) + self.counter[warps].tobytes()
        if whole == watch.whole:
            self.stalled[warps] = self.machine.progress
            self.last_place[int(warps[0])] = blame(self.blocks[block])
        watch.whole = whole

    def spinning(self) -> KernelFault:
        """The error for a batch of which only spinning warps are left."""
        spinners = self.first < POLL
        warp = int(np.flatnonzero(spinners)[0])
        instruction = self.last_place.get(warp) or blame(self.blocks[int(self.first[warp])])
        message = (
            f"{self.machine.launch.kernel}: {who(self.geometry, spinners)} spins at {instruction.location} on memory "
            f"that nobody changes any more{self._waiters()}"
        )
        return fault("deadlock", message, instruction)

    def _deadlock(self) -> KernelFault:
        """The error for a batch in which every warp waits for another."""
        waiting = (self.first >= POLL) & (self.first < DONE)
        instruction = blame(self.waits[int(self.first[np.flatnonzero(waiting)[0]]) % POLL])
        return fault("deadlock", f"{self.machine.launch.kernel}: no warp can run{self._waiters()}", instruction)

    def _waiters(self) -> str:
        """Who waits where, for messages."""
        parts = []
        for end, warps, lanes in self._polling():
            here = np.isin(np.arange(len(self.first)), warps)
            what = self.polls.describe(end, warps, lanes)
            parts.append(f"{who(self.geometry, here)} waits {what} ({blame_end(end).location})")
        waiting = (self.first >= BARRIER) & (self.first < DONE)
        for point in np.unique(self.first[waiting]):
            here = waiting & (self.first == point)
            warp = int(np.flatnonzero(here)[0])
            number = int(self.barrier_of[warp][self.counter[warp] == point][0])
            instruction = blame(self.waits[int(point) - BARRIER])
            block = int(self.geometry.block_of_warp[warp])
            threads = self.machine.expected.get((block, number), 0)
            wanted = f" for {threads} threads" if threads else ""
            parts.append(f"{who(self.geometry, here)} waits at barrier {number}{wanted} ({instruction.location})")
        barriers = self.machine.mbarriers.describe(self.geometry.block_ids)
        return "".join(f"; {part}" for part in (*parts, *barriers))
