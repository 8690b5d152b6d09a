"""Runs a launch: parameters, batches of blocks, threads, and the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.bind.interpreter import Interpreter
from matmill.emulator.engine.schedule.scheduler import Scheduler
from matmill.emulator.engine.schedule.warp_order import Order
from matmill.emulator.engine.state.clusters import cluster_order
from matmill.emulator.engine.state.dependent_launch import is_dependent, never_waited
from matmill.emulator.engine.state.launch import LaunchContext, SourceFacts, check_launch, parameter_bytes
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.engine.state.tally import Tally
from matmill.emulator.engine.state.variables import Symbols, allocate_variables, note_unset, read_back
from matmill.emulator.frontend.parse import parse
from matmill.emulator.frontend.syntax import Module
from matmill.emulator.memory.address_space import AddressSpace, Memory
from matmill.emulator.memory.banks import LANES
from matmill.emulator.memory.heap import Heap
from matmill.emulator.program.ordering import ordering_of
from matmill.emulator.program.translate import EmulatedProgram, translate
from matmill.emulator.races.async_units.async_detector import AsyncDetector
from matmill.emulator.races.async_units.timeline import TimelineDetector
from matmill.emulator.races.detector import Race, RaceDetector
from matmill.emulator.report.fidelity import fidelity
from matmill.emulator.report.hazards import HazardLog, KernelFault, Report
from matmill.launch import Launch, coordinates

# Lanes in a batch: rows long enough for NumPy, and registers that nearly fit a core's cache.
_BATCH_LANES = 4096


def run(
    module: Module | str, launch: Launch, memory: Memory, *, races: bool = True, late_copies: bool = False,
    schedule: int = 0, order: Order | None = None, counters: bool = True, threads: int | None = None,
    symbols: Symbols | None = None, source: SourceFacts | None = None, own_waits: bool = False,
    pdl_writes: Collection[str] | None = None, until: float = math.inf,
    progress: Callable[[int, int], None] | None = None, timeline: bool = False,
) -> Report:  # fmt: skip
    """Run one launch of a PTX module on the arrays bound in ``memory``.

    ``races`` detects unordered accesses. ``late_copies`` lets asynchronous copies and wgmma take effect as late as
    their waits allow, instead of at once. ``schedule`` chooses the order of warps between barriers: 0 keeps them
    together, other numbers are seeds of orders in which some run far ahead, and in half of which diverged lanes meet
    late. ``order`` replaces ``schedule`` and ``late_copies``. ``threads`` is the number of Python
    threads, one by default: NumPy releases the interpreter lock only inside its loops, and two threads were not faster.
    With races or atomics it is always one, so that results never depend on it. Without ``counters`` the counts of
    memory traffic stay 0. ``symbols`` are arrays by the names of ``__device__`` and ``__constant__`` variables: their
    bytes are the variables' initial values, and writable arrays get the final values. ``source`` tells which barriers
    the CUDA C++ has inside branches, and more; None means unknown. With ``own_waits`` the race detector treats a wait
    for products of wgmma as one warp's, as in the PTX ISA, instead of its warpgroup's, as on Hopper. ``pdl_writes`` are
    the names of the arrays that the launch before a dependent one writes; None means any. ``progress`` gets the batches
    of blocks that are done, and their number. With ``timeline`` the report has the events of the first block, if the
    program has mbarriers.

    Raises ``EmulationError`` for PTX that the emulator does not support, ``ArgumentError`` for a launch that does not
    match the entry, ``KernelFault`` if a GPU would stop the kernel, or if it would never end, and ``TimeoutError`` when
    ``time.perf_counter`` has passed ``until``.
    """
    module = _parsed(module) if isinstance(module, str) else module
    order = order or Order(schedule, late_lanes=bool(schedule % 2), late_copies=late_copies)
    program = translate(module, launch.entry)
    space = AddressSpace(memory, note_stores=races, note_all=races and program.has_constant_loads)
    warps = -(-launch.threads_per_block // LANES)
    cluster = program.entry.cluster if launch.cluster == (1, 1, 1) else None
    launch = replace(launch, pdl=is_dependent(launch, module), cluster=cluster or launch.cluster)
    check_launch(program, launch, module.capability)
    clusters = cluster_order(launch)
    detector = _detector(program, clusters, warps, timeline=timeline) if races or timeline else None
    room = space.allocate("the grid's workspace", np.zeros(16, np.uint8), "rw") if launch.cooperative else None
    context = LaunchContext(
        program=program, launch=launch, space=space, heap=Heap(space),
        symbols=allocate_variables(module, space, symbols or {}), parameters=parameter_bytes(program, launch),
        detector=detector, counting=counters, late_copies=order.late_copies, source=source, own_waits=own_waits,
        pdl_writes=pdl_writes, until=until, progress=progress,
        workspace=0 if room is None else room.start,
    )  # fmt: skip
    per_batch = max(1, _BATCH_LANES // (warps * LANES * clusters.shape[1]))
    if order.seed:
        clusters = np.random.default_rng(order.seed).permutation(clusters)
    if order.ahead is not None:
        clusters = clusters[np.argsort(~(clusters == order.ahead[0]).any(axis=1), kind="stable")]
    batches = [clusters[i : i + per_batch].reshape(-1) for i in range(0, len(clusters), per_batch)]
    workers = 1 if detector is not None or program.has_atomics else min(threads or 1, len(batches))

    shares = [batches[i::workers] for i in range(workers)]
    pools = [_Pool(context, order) for _ in shares]
    try:
        if workers == 1:
            pools[0].run(shares[0])
        else:
            with ThreadPoolExecutor(workers) as executor:
                list(executor.map(_Pool.run, pools, shares))
    except KernelFault as fault:
        report = _report(context, *_totals(context, pools), counters=counters)
        fault.after(report.hazards)
        fault.report = replace(report, hazards=(*report.hazards, fault.hazard))
        raise
    finally:
        read_back(module, space, context.symbols, symbols or {})
    tally, hazards = _totals(context, pools)
    note_unset(context, symbols or {}, hazards)
    if launch.pdl and not context.waits.anybody:
        never_waited(launch, program.instructions[-1], hazards)
    return _report(context, tally, hazards, counters=counters)


def _report(context: LaunchContext, tally: Tally, hazards: HazardLog, *, counters: bool) -> Report:
    by_line = tally.by_line() if counters else {}
    program = context.program
    executed = (
        (action.instruction, int(tally.block_warps[block.number]))
        for block in program.blocks
        for action in block.actions
    )
    exact = fidelity(executed, program.target) if counters else ""
    return Report(
        tally.counters(by_line), hazards.hazards(), by_line, "".join(context.printed.parts), tally.worst, exact,
        tally.accesses() if counters else (), tally.threads_by_line() if counters else {},
        tuple(context.detector.events) if isinstance(context.detector, TimelineDetector) else (),
    )  # fmt: skip


# Parsing a kernel's PTX takes longer than many of its launches, and most callers launch the same text again.
@lru_cache(maxsize=32)
def _parsed(text: str) -> Module:
    return parse(text)


class _Pool:
    """Runs batches one after another, but sets aside those that only spin: they may wait for a later one."""

    def __init__(self, context: LaunchContext, order: Order) -> None:
        self.context = context
        self.order = order
        self.idle: dict[int, Scheduler] = {}
        self.machines: list[Machine] = []
        self.waiting: list[Scheduler] = []

    def _scheduler(self, blocks: int) -> Scheduler:
        scheduler = self.idle.pop(blocks, None)
        if scheduler is None:
            machine = Machine(self.context, blocks)
            self.machines.append(machine)
            scheduler = Scheduler(Interpreter(machine), self.order)
        return scheduler

    def run(self, batches: list[NDArray[np.int64]]) -> None:
        """Run all batches."""

        def noted(_kind: str, _flag: int) -> None:
            for machine in self.machines:
                machine.underflow[0] = True

        with np.errstate(all="ignore"), np.errstate(under="call", call=noted):
            for done, batch in enumerate(batches, 1):
                scheduler = self._scheduler(len(batch))
                scheduler.begin(batch)
                self._finish(scheduler, batch)
                if self.context.progress is not None:
                    self.context.progress(done, len(batches))
            while self.waiting:
                if not self._wake():
                    raise self.waiting[0].spinning()

    def _finish(self, scheduler: Scheduler, batch: NDArray[np.int64]) -> None:
        if not scheduler.run():
            self.waiting.append(scheduler)
            return
        self.idle[len(batch)] = scheduler
        self._wake()

    def _wake(self) -> bool:
        """Resume the batches that were set aside; return True if one of them made progress."""
        moved = False
        for scheduler in list(self.waiting):
            scheduler.machine.progress += 1
            before = scheduler.machine.progress
            if scheduler.run():
                self.waiting.remove(scheduler)
                moved = True
            moved = moved or scheduler.machine.progress != before
        return moved


def _totals(context: LaunchContext, pools: list[_Pool]) -> tuple[Tally, HazardLog]:
    """Return the counts and hazards so far."""
    program, launch = context.program, context.launch
    tally, hazards = Tally(program), HazardLog()
    for pool in pools:
        for machine in pool.machines:
            tally.merge(machine.tally)
            hazards.merge(machine.hazards)
    for misuse in program.misuses:
        if tally.block_warps[misuse.block]:
            key = (misuse.instruction, misuse.other)
            hazards.add(misuse.kind, key, f"{launch.kernel}: {misuse.message}", misuse.instruction)
    if context.detector is not None:
        _report_races(context.detector, context, hazards)
    return tally, hazards


def _detector(
    program: EmulatedProgram, clusters: NDArray[np.int64], warps_per_block: int, *, timeline: bool
) -> RaceDetector:
    """Return the race detector that a program needs."""
    if program.has_async_units and timeline:
        return TimelineDetector(program.instructions, clusters=clusters, warps_per_block=warps_per_block)
    if program.has_async_units:
        return AsyncDetector(clusters=clusters, warps_per_block=warps_per_block)
    return RaceDetector(
        blocks=clusters.size,
        warps_per_block=warps_per_block,
        partial_barriers=program.has_partial_barriers,
        releases=program.has_releases,
    )


def _hint(race: Race, context: LaunchContext) -> str:
    """Return what a race lacks: warps at a barrier between its accesses, or a fence in one of two blocks."""
    program = context.program
    (one, first), (two, second) = race.first_thread, race.second_thread
    if one == two:
        warps = {first // LANES, second // LANES}
        low, high = sorted((race.first_where, race.second_where))
        for barrier, groups in context.meetings.items():
            if low <= program.index_of(barrier) <= high and not any(warps <= set(group) for group in groups):
                came, at = sorted(min(groups)), f"{barrier.text!r} ({barrier.location})"
                if len(came) == 1:
                    return f": only warp {came[0]} came to {at}"
                return f": only warps {', '.join(map(str, came))} came to {at} together"
        return ""
    if not program.has_releases:
        return ""
    low, high = sorted((race.first_where, race.second_where))
    orders = [ordering_of(i) for i in program.instructions[low:high]]
    fences = [o for o in orders if o is not None and o.wide and (o.release or o.acquire)]
    if len(fences) > 1 or any(o.release and o.acquire and not o.sc for o in fences):
        return " (both blocks have fences: one must read, before its own, what the other sets behind its own)"
    # The usual mistake of a kernel with fences: the block that reads has none after its atomic.
    return " (a block that passes on data and the one that takes it up each need a fence)"


# The explanation of a race, by its kind.
_WHY = {
    "same-value": "both of one value, with nothing that orders them",
    "missing-proxy-fence": "ordered, but with no fence.proxy.async by the first thread before it synchronizes",
    "missing-proxy-fence global": "ordered, but with no fence.proxy.async between the two, by either thread",
    "mbarrier": "of which the second may come first",
    "cluster": "with nothing that makes the block wait for the access",
}


def _report_races(detector: RaceDetector, context: LaunchContext, hazards: HazardLog) -> None:
    """Add races as hazards, with their source lines and buffers."""
    program, launch, space = context.program, context.launch, context.space
    for race in detector.races():
        first, second = (program.instructions[n] for n in (race.first_where, race.second_where))
        if race.space == "shared":
            where = program.describe("shared", race.address, launch.dynamic_shared)
        else:
            where = space.describe(race.address)
        parties = (race.first_kind, race.first_thread, first), (race.second_kind, race.second_thread, second)
        one, two = (
            f"{kind} by thread {coordinates(t, launch.block)} of block {coordinates(b, launch.grid)} in {i.text!r} "
            f"({i.location})"
            for kind, (b, t), i in parties
        )
        why = _WHY.get(f"{race.kind} {race.space}") or _WHY.get(race.kind, "with nothing that orders them")
        if race.kind == "race":
            why += _hint(race, context)
        message = f"{launch.kernel}: {where}: {one} and {two}, {why}"
        hazards.add(
            race.kind, (race.first_where, race.second_where, race.first_kind, race.second_kind), message, second
        )
