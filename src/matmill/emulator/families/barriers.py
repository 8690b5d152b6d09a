"""Barriers, fences and waits: bar, barrier, membar, fence, griddepcontrol, nanosleep, trap.

PTX ISA, "Parallel Synchronization and Communication Instructions". Fences change no values, since each access takes
effect at once; the race detector records them.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.families.cluster import cluster_barrier
from matmill.emulator.families.tensormap import acquire_map
from matmill.emulator.frontend.syntax import Immediate, Instruction, Negated, PtxOperand
from matmill.emulator.program.ordering import fence_ordering
from matmill.emulator.program.table import Action, Call, Modifiers, Value, instructions
from matmill.emulator.program.waits import Barrier, Converge
from matmill.emulator.report.hazards import fault


@instructions("bar", "barrier")
def barrier(i: Instruction) -> Action:
    """Bind bar.sync, bar.arrive, bar.red, bar.warp.sync and their barrier.* spellings."""
    if "cluster" in i.modifiers:
        return cluster_barrier(i)
    m = Modifiers(i, "cta", "aligned")
    if m.flag("warp"):
        m.flag("sync")
        m.done()
        return Action(i, tally="control", ends_block=True, detail=Converge(i.operands[0], barrier=True))
    mode = m.pick(("sync", "arrive", "red"))
    operation = m.pick(("popc", "and", "or")) if mode == "red" else ""
    if mode == "red":
        m.pick(("pred", "u32"))
    m.done()
    if not mode or (mode == "red") != bool(operation):
        raise i.unsupported("its form")
    operands = list(i.operands)
    results: tuple[Value, ...] = ()
    source: PtxOperand | None = None
    negated = False
    if mode == "red":
        results = (Value(operands.pop(0), "u4" if operation == "popc" else "p"),)
        source = operands.pop()
        if isinstance(source, Negated):
            source, negated = source.register, True
    number = operands[0] if operands else Immediate(0, "int")
    threads = operands[1] if len(operands) > 1 else None
    sources = [Value(o, "u4") for o in (number, threads) if o is not None]
    if source is not None:
        sources.append(Value(source, "p"))
    detail = Barrier(operation or mode, number, threads, source, negated)
    return Action(i, tuple(sources), results, tally="control", ends_block=True, detail=detail)


@instructions("membar", "fence")
def fence(i: Instruction) -> Action:
    """Bind fences, which only the race detector needs: the emulator accesses memory in program order."""
    if "tensormap::generic" in i.modifiers and "acquire" in i.modifiers:
        return acquire_map(i)
    ordering = fence_ordering(i)
    to_async = {"proxy", "async"} <= set(i.modifiers)
    space = next((m.split("::")[0] for m in i.modifiers if m.startswith(("shared", "global"))), "")

    def bind(bound: BoundBlock) -> Call:
        machine, participants, lanes = bound.machine, bound.participants(), bound.lanes
        detector, events = machine.detector, machine.events
        if to_async and events is not None:
            return lambda: events.proxy_fence(lanes.warp_ids, participants(), space=space)
        if "mbarrier_init" in i.modifiers and events is not None:
            return lambda: events.init_fence(lanes.warp_ids, participants())
        if detector is None or ordering is None:
            return _nothing
        return lambda: detector.fence(lanes.warp_ids, participants(), ordering)

    return Action(i, bind=bind, tally="control", masks_itself=True)


@instructions("nanosleep")
def delay(i: Instruction) -> Action:
    """Bind a delay, which does nothing: the emulator has no time."""
    return Action(i, call=_nothing, tally="control")


@instructions("griddepcontrol")
def launch_order(i: Instruction) -> Action:
    """Bind griddepcontrol. Launches run one after another; the emulator checks that dependent ones wait in time."""
    m = Modifiers(i)
    waits = m.need("wait", "launch_dependents") == "wait"
    m.done()

    def bind(bound: BoundBlock) -> Call:
        dependency, participants, lanes = bound.machine.dependency, bound.participants(), bound.lanes
        if dependency is None or not waits:
            return _nothing
        return lambda: dependency.wait(lanes, participants())

    return Action(i, bind=bind, tally="control", masks_itself=True)


def _nothing(*_: object) -> None:
    """Do nothing: a delay has no effect here."""


@instructions("trap", "brkpt")
def trap(i: Instruction) -> Action:
    """Bind trap: ends the kernel with a fault."""

    def bind(bound: BoundBlock) -> Call:
        lanes, kernel, participants = bound.lanes, bound.machine.launch.kernel, bound.participants()

        def call() -> None:
            active = participants().reshape(-1)
            if active.any():
                name = lanes.thread_name(int(np.flatnonzero(active)[0]))
                raise fault("trap", f"{kernel}: {name} executes {i.text!r}", i)

        return call

    return Action(i, bind=bind, tally="control", masks_itself=True)
