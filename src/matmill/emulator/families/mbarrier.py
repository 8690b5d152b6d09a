"""mbarrier: init, inval, arrive, arrive_drop, expect_tx, complete_tx, test_wait, try_wait, pending_count.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". Lanes act in their order. A try_wait that
must wait blocks its lane until the phase completes. It fails, as the hardware's does after a time limit, only if no
thread and no asynchronous operation can proceed otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.async_units.mbarriers import MOST_ARRIVALS
from matmill.emulator.engine.bind.barrier_operand import BarrierOperand, of_lane
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.families.addresses import address_of, base_registers
from matmill.emulator.frontend.syntax import Address, Immediate, Instruction, Sink
from matmill.emulator.program.table import Action, Call, Modifiers, Value, computed, instructions
from matmill.emulator.program.waits import PhaseWait

_ORDER = ("release", "acquire", "relaxed", "cta", "cluster", "b64")
_SPACES = ("shared", "shared::cta", "shared::cluster")
_ONE = Immediate(1, "int")


@instructions("mbarrier")
def mbarrier(i: Instruction) -> Action:
    """Bind any mbarrier instruction."""
    m = Modifiers(i, *_ORDER)
    verb = m.need(*_VERBS)
    return _VERBS[verb](i, m)


def _take_space(m: Modifiers) -> None:
    """Drop the modifiers for the space of the address, whose bits tell shared from generic ones."""
    m.pick(_SPACES)


def _action(
    i: Instruction, address: Address, bind: Callable[[BoundBlock], Call], *, sources: tuple[Value, ...] = (),
    results: tuple[Value, ...] = (),
) -> Action:  # fmt: skip
    return Action(
        i, sources, results, bind=bind, tally="memory", masks_itself=not results, uses=base_registers(address)
    )


def _init(i: Instruction, m: Modifiers) -> Action:
    _take_space(m)
    m.done()
    target, count = i.operands
    address = address_of(i, target)

    def bind(bound: BoundBlock) -> Call:
        operand, barriers = BarrierOperand(bound, i, address), bound.machine.mbarriers

        def call(counts: Row) -> None:
            for key, lanes in operand.by_barrier():
                for lane in lanes:
                    barriers.init(key, of_lane(counts, lane), i)
                operand.began(key, lanes)
            bound.machine.progress += 1

        return call

    return _action(i, address, bind, sources=(Value(count, "u4"),))


def _inval(i: Instruction, m: Modifiers) -> Action:
    _take_space(m)
    m.done()
    address = address_of(i, i.operands[0])

    def bind(bound: BoundBlock) -> Call:
        operand, barriers = BarrierOperand(bound, i, address), bound.machine.mbarriers

        def call() -> None:
            for key, lanes in operand.by_barrier():
                for _ in lanes:
                    barriers.inval(key, i)

        return call

    return _action(i, address, bind)


def _arrive(i: Instruction, m: Modifiers, *, drop: bool = False) -> Action:
    """Bind mbarrier.arrive and arrive_drop, with .expect_tx too.

    With .expect_tx the operand is the number of bytes, and one thread arrives.
    """
    _take_space(m)
    expects, completes = m.flag("expect_tx"), not m.flag("noComplete")
    m.done()
    operands = list(i.operands)
    state = None if isinstance(operands[0], Address) else operands.pop(0)
    address = address_of(i, operands.pop(0))
    amount = operands.pop(0) if operands else _ONE
    if operands:
        raise i.unsupported("the number of its operands")
    results = () if state is None or isinstance(state, Sink) else (Value(state, "u8"),)

    def bind(bound: BoundBlock) -> Call:
        operand, machine = BarrierOperand(bound, i, address), bound.machine
        barriers = machine.mbarriers

        def call(amounts: Row, *outs: Row) -> None:
            for key, lanes in operand.by_barrier():
                first = 0
                for number, lane in enumerate(lanes, 1):
                    value = of_lane(amounts, lane)
                    count = 1 if expects else value
                    if number == len(lanes) or barriers.closes(key, count):
                        # Lanes release into the phase in which they arrive.
                        operand.release(key, lanes[first:number])
                        first = number
                    if expects:
                        barriers.expect(key, value, i)
                    token = barriers.arrive(key, count, i, drop=drop, completes=completes)
                    for out in outs:
                        out[lane] = token
                operand.count("mbarrier arrival", len(lanes))
            machine.progress += 1

        return call

    return _action(i, address, bind, sources=(Value(amount, "u4"),), results=results)


def _transactions(i: Instruction, m: Modifiers, *, sign: int) -> Action:
    """Bind mbarrier.expect_tx and complete_tx: bytes that are expected, or have arrived."""
    _take_space(m)
    m.done()
    target, nbytes = i.operands
    address = address_of(i, target)

    def bind(bound: BoundBlock) -> Call:
        operand, machine = BarrierOperand(bound, i, address), bound.machine

        def call(amounts: Row) -> None:
            for key, lanes in operand.by_barrier():
                for lane in lanes:
                    machine.mbarriers.expect(key, sign * of_lane(amounts, lane), i)
            machine.progress += 1

        return call

    return _action(i, address, bind, sources=(Value(nbytes, "u4"),))


def _test_wait(i: Instruction, m: Modifiers) -> Action:
    _take_space(m)
    parity = m.flag("parity")
    m.done()
    complete, source, phase = i.operands
    address = address_of(i, source)

    def bind(bound: BoundBlock) -> Call:
        operand, barriers = BarrierOperand(bound, i, address), bound.machine.mbarriers
        queue = bound.machine.queue

        def call(phases: Row, out: Row) -> None:
            operand.count("mbarrier wait", operand.warps())
            for key, lanes in operand.by_barrier():
                for lane in lanes:
                    out[lane] = barriers.past(key, of_lane(phases, lane), i, parity=parity)
                operand.acquire(key, lanes[out[lanes]])
                if not out[lanes].all():
                    queue.tested(key)

        return call

    kind = "u4" if parity else "u8"
    return _action(i, address, bind, sources=(Value(phase, kind),), results=(Value(complete, "p"),))


def _try_wait(i: Instruction, m: Modifiers) -> Action:
    _take_space(m)
    parity = m.flag("parity")
    m.done()
    # A fourth operand hints at a time limit, which does not exist here.
    complete, source, phase = i.operands[:3]
    address = address_of(i, source)
    return Action(
        i,
        (Value(phase, "u4" if parity else "u8"),),
        (Value(complete, "p"),),
        tally="memory",
        ends_block=True,
        uses=base_registers(address),
        detail=PhaseWait(address, phase, parity),
    )


def _pending_count(i: Instruction, m: Modifiers) -> Action:
    m.done()
    count, state = i.operands

    def call(tokens: Row, out: Row) -> None:
        out[...] = tokens & np.uint64(MOST_ARRIVALS)

    return computed(i, call, [(state, "u8")], [(count, "u4")])


_VERBS: dict[str, Callable[[Instruction, Modifiers], Action]] = {
    "init": _init,
    "inval": _inval,
    "arrive": _arrive,
    "arrive_drop": lambda i, m: _arrive(i, m, drop=True),
    "expect_tx": lambda i, m: _transactions(i, m, sign=1),
    "complete_tx": lambda i, m: _transactions(i, m, sign=-1),
    "test_wait": _test_wait,
    "try_wait": _try_wait,
    "pending_count": _pending_count,
}
