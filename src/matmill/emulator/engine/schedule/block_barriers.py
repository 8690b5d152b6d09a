"""Barriers of thread blocks: bar.sync, bar.arrive and bar.red, for whole blocks or for a number of threads.

PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.splits import Splits
from matmill.emulator.engine.schedule.thread_names import end_instruction, who
from matmill.emulator.engine.schedule.warp_order import WarpOrder
from matmill.emulator.engine.state.dependent_launch import GridDependency
from matmill.emulator.engine.state.program_counters import BARRIER, DONE, Flags, Ints, ProgramCounters
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Value
from matmill.emulator.program.waits import Barrier
from matmill.emulator.races.detector import Arrival
from matmill.emulator.report.hazards import fault


class BlockBarriers:
    """The barriers of a batch's thread blocks. ``waits`` are the waits of the program, by the block that follows.

    When a barrier opens, a new ``order`` of warps is drawn. ``splits`` has the branches at which warps diverged.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        counters: ProgramCounters,
        waits: Mapping[int, Terminator],
        order: WarpOrder,
        splits: Splits,
    ) -> None:
        self._interpreter = interpreter
        self._machine = interpreter.machine
        self._geometry = interpreter.geometry
        self._counters = counters
        self._waits = waits
        self._order = order
        self._splits = splits
        # The number of the barrier at which each lane waits, or waited last.
        self._number = np.zeros(counters.counter.shape, np.int64)
        # By (block, barrier number): the arrivals of warps that do not wait, as the race detector has them, and the
        # number of threads that it needs.
        self._arrived: dict[tuple[int, int], list[Arrival | None]] = {}
        self._wanted: dict[tuple[int, int], int] = {}

    def begin(self) -> None:
        """Start a batch, in which nobody has arrived."""
        self._arrived.clear()
        self._wanted.clear()

    def pass_at_once(self, end: Terminator, first: int, last: int) -> bool:
        """Let whole warps pass if they are the whole batch: the usual ``__syncthreads()``."""
        machine, geometry = self._machine, self._geometry
        barrier: Barrier = end.detail
        if last - first != geometry.warp_count:
            return False
        if self._order.order.seed or barrier.mode != "sync" or barrier.threads is not None or self._arrived:
            return False
        if not isinstance(barrier.number, Immediate):
            return False
        machine.tally.barriers += geometry.warp_count
        machine.progress += 1
        if machine.dependency is not None:
            for index in range(geometry.blocks) if machine.dependency.left else ():
                self._come_after(machine.dependency, np.arange(geometry.warps) * geometry.blocks + index)
        if machine.detector is not None:
            ids = machine.warp_ids(np.arange(geometry.warp_count)).reshape(geometry.warps, geometry.blocks)
            machine.detector.barriers(ids.T)
        return True

    def arrive(self, end: Terminator, warps: Ints, here: Flags) -> None:
        """Record that the lanes ``here`` of some warps arrive at a barrier of their thread block."""
        barrier: Barrier = end.detail
        self._machine.tally.barriers += len(warps)
        self._machine.progress += 1
        number = self._interpreter.operand_row(Value(barrier.number, "u4"), warps).astype(np.int64)
        self._number[warps] = np.where(here, number, self._number[warps])
        self._counters.send(warps, here, end.next if barrier.mode == "arrive" else BARRIER + end.next)
        numbers = number[np.arange(len(warps)), here.argmax(axis=1)]
        for n in np.unique(numbers):
            self._count_arrivals(end, int(n), warps[numbers == n], here[numbers == n])

    def _count_arrivals(self, end: Terminator, number: int, warps: Ints, here: Flags) -> None:
        machine, geometry = self._machine, self._geometry
        barrier: Barrier = end.detail
        if barrier.mode == "arrive":
            for warp, launched in zip(warps.tolist(), machine.warp_ids(warps).tolist(), strict=True):
                arrival = machine.detector.arrival(launched) if machine.detector is not None else None
                key = int(geometry.block_of_warp[warp]), number
                self._arrived.setdefault(key, []).append(arrival)
                if machine.dependency is not None:
                    machine.dependency.release(("bar", *key), warp * LANES + np.arange(LANES))
        wanted = 0
        if barrier.threads is not None:
            wanted = int(self._interpreter.operand_row(Value(barrier.threads, "u4"), warps)[0, int(here[0].argmax())])
            if wanted % LANES or not 0 < wanted <= geometry.warps * LANES:
                instruction = end_instruction(end)
                message = f"{machine.launch.kernel}: barrier {number} for {wanted} threads in {instruction.text!r}"
                raise fault("deadlock", message, instruction)
        for block_index in np.unique(geometry.block_of_warp[warps]):
            self._wanted[int(block_index), number] = wanted
        self._complete(number, np.unique(geometry.block_of_warp[warps]))

    def exited(self, warps: Ints) -> None:
        """Release barriers that only wait for threads of ``warps``, which have exited."""
        blocks = np.unique(self._geometry.block_of_warp[warps])
        state = self._by_block(self._counters.counter)[:, blocks]
        waiting = (state >= BARRIER) & (state < DONE)
        if waiting.any():
            for number in np.unique(self._by_block(self._number)[:, blocks][waiting]):
                self._complete(int(number), blocks)

    def _by_block(self, lanes: Ints) -> Ints:
        """Return lanes' values, int64[warps of the batch, 32], as [warps of a block, blocks, 32]."""
        return lanes.reshape(self._geometry.warps, self._geometry.blocks, LANES)

    def _complete(self, number: int, block_indices: Ints) -> None:
        """Open barrier ``number`` of these thread blocks if enough threads have arrived."""
        state = self._by_block(self._counters.counter)
        there = (state >= BARRIER) & (state < DONE) & (self._by_block(self._number) == number)
        gone = state >= DONE
        met, detector = [], self._machine.detector
        for index in block_indices:
            waiting = there[:, index]
            key = int(index), number
            arrived = self._arrived.get(key, ())
            if not waiting.any() and not arrived:
                continue
            wanted = self._wanted.get(key, 0)
            whole = (waiting | gone[:, index]).all(axis=1)
            present = (int((waiting.any(axis=1) & whole).sum()) + len(arrived)) * LANES
            if present < wanted if wanted else not whole.all():
                continue
            self._arrived.pop(key, None)
            self._wanted.pop(key, None)
            self._machine.progress += 1
            # A phase of arrivals alone ends too: whoever comes then waits in the next one.
            if not waiting.any():
                continue
            warps = self._open(number, int(index), waiting, gone=gone[:, index], wanted=wanted)
            if arrived and detector is not None:
                detector.barrier(warps, [each for each in arrived if each is not None])
            else:
                met.append(warps)
        if met and detector is not None:
            alike = len({len(warps) for warps in met}) == 1
            detector.barriers(np.array(met) if alike else met)

    def _open(self, number: int, index: int, waiting: Flags, *, gone: Flags, wanted: int) -> Ints:
        """Release the waiting threads of one thread block; return the warps that met, as numbered in the launch."""
        geometry, machine = self._geometry, self._machine
        roles = np.flatnonzero(waiting.any(axis=1))
        warps = roles * geometry.blocks + index
        points = np.unique(self._counters.counter[warps][waiting[roles]])
        ends = [self._waits[int(point) - BARRIER] for point in points]
        self._report_early_exits(ends[0], warps, (gone & self._exists(index))[roles], waiting[roles])
        if not wanted and not number:
            self._report_others(ends, warps, np.delete(np.arange(geometry.warps), roles) * geometry.blocks + index)
        reduction = next((end for end in ends if end.detail.mode in {"popc", "and", "or"}), None)
        if reduction is not None:
            self._reduce(reduction, warps, waiting[roles])
        if machine.dependency is not None:
            columns = self._come_after(machine.dependency, warps)
            machine.dependency.acquire(("bar", index, number), columns)
        self._counters.release(warps, waiting[roles], BARRIER)
        self._order.shuffle()
        # Exited threads count as arrived, except for a barrier that counts threads (PTX ISA, "bar, barrier").
        if wanted:
            for end in ends:
                machine.context.meetings.setdefault(end_instruction(end), set()).add(tuple(roles.tolist()))
        met = warps if wanted else np.arange(geometry.warps) * geometry.blocks + index
        return machine.warp_ids(met)

    def _come_after(self, dependency: GridDependency, warps: Ints) -> Ints:
        """Let all threads of warps that meet come after the preceding grid if one does; return these threads."""
        columns: Ints = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        dependency.meet(columns)
        return columns

    def _exists(self, index: int) -> Flags:
        """Return the threads that exist in a thread block of the batch: bool[its warps, 32]."""
        exists: Flags = self._geometry.exists.reshape(self._geometry.warps, self._geometry.blocks, LANES)[:, index]
        return exists

    def _report_early_exits(self, end: Terminator, warps: Ints, left: Flags, waiting: Flags) -> None:
        """Report one of the threads that had ``left`` (bool[n, 32]) when others of its warp passed a barrier.

        It is an error if the source has the barrier in the branch that they did not take. Threads that have returned
        before a barrier count as arrived.
        """
        machine, instruction = self._machine, end_instruction(end)
        for row in np.flatnonzero(left.any(axis=1)):
            lane = int(left[row].argmax())
            thread = self._geometry.thread_name(int(warps[row]) * LANES + lane)
            branch = self._splits.between(int(warps[row]), left[row], waiting[row])
            diverges = self._diverges(branch, instruction)
            if branch is not None and diverges:
                message = (
                    f"{machine.launch.kernel}: {thread} did not come to {instruction.text!r}, which others of its warp "
                    f"passed: the branch at {branch.location} has gone round it"
                )
                machine.hazards.add("divergent-barrier", instruction, message, instruction)
                return
            had = "had returned" if diverges is False else "had ended"
            message = (
                f"{machine.launch.kernel}: {thread} {had} when threads of its warp passed {instruction.text!r}: right "
                "since sm_70, undefined before"
            )
            machine.hazards.add("early-exit", instruction, message, instruction)

    def _report_others(self, ends: list[Terminator], warps: Ints, absent: Ints) -> None:
        """Report warps that pass barrier 0 of the whole block at another line of the source, or not at all.

        Copies of one barrier, as unrolling makes them, have one line. ``absent`` warps have ended.
        """
        machine, source = self._machine, self._machine.context.source
        first, *others = map(end_instruction, ends)
        for other in others:
            same = first.lines == other.lines and not (source is not None and source.opposed(first.lines))
            if first.lines and other.lines and not same:
                one, two = (self._at(end, warps) for end in (ends[0], ends[1 + others.index(other)]))
                message = f"{machine.launch.kernel}: {one}, and {two}: one barrier of the block cannot be both"
                machine.hazards.add("divergent-barrier", (first, other), message, other)
                return
        if len(absent) and first.lines and source is not None and source.conditional(first.lines):
            chosen = np.isin(np.arange(self._geometry.warp_count), absent)
            message = (
                f"{machine.launch.kernel}: {who(self._geometry, chosen)} ended without {first.text!r}, which the "
                "others passed inside a branch or loop"
            )
            machine.hazards.add("divergent-barrier", (first, "absent"), message, first)

    def _at(self, end: Terminator, warps: Ints) -> str:
        """Describe which of some warps wait at an end of a block."""
        here = (self._counters.counter[warps] == BARRIER + end.next).any(axis=1)
        chosen = np.isin(np.arange(self._geometry.warp_count), warps[here])
        i = end_instruction(end)
        inlined = "".join(f", called at {each}" for each in i.callers)
        return f"{who(self._geometry, chosen)} waited in {i.text!r} ({i.location}{inlined})"

    def _diverges(self, branch: Instruction | None, barrier: Instruction) -> bool | None:
        """Tell whether the source has a barrier inside a branch; None if it is unknown."""
        source = self._machine.context.source
        if source is None or branch is None:
            return None
        return source.diverges([branch.location, *branch.callers], [barrier.location, *barrier.callers])

    def _reduce(self, end: Terminator, warps: Ints, here: Flags) -> None:
        """Store the result of bar.red for all threads that waited."""
        barrier: Barrier = end.detail
        if end.action is None or barrier.source is None:
            return
        flags = self._interpreter.operand_row(Value(barrier.source, "p"), warps) != barrier.negated
        yes = flags & here
        value = {"popc": int(yes.sum()), "and": bool((yes | ~here).all()), "or": bool(yes.any())}[barrier.mode]
        row = self._interpreter.result_row(end.action.results[0])
        columns = (warps[:, None] * LANES + np.arange(LANES))[here]
        row[columns] = value

    def describe(self) -> list[str]:
        """Describe which warps wait at which barrier, for messages."""
        counters, geometry = self._counters, self._geometry
        parts = []
        waiting = (counters.first >= BARRIER) & (counters.first < DONE)
        for point in np.unique(counters.first[waiting]):
            here = waiting & (counters.first == point)
            warp = int(np.flatnonzero(here)[0])
            number = int(self._number[warp][counters.counter[warp] == point][0])
            threads = self._wanted.get((int(geometry.block_of_warp[warp]), number), 0)
            wanted = f" for {threads} threads" if threads else ""
            location = end_instruction(self._waits[int(point) - BARRIER]).location
            parts.append(f"{who(geometry, here)} waits at barrier {number}{wanted} ({location})")
        return parts
