"""Moves: mov with packing and unpacking, cvta, isspacep.

PTX ISA, "Data Movement and Conversion Instructions". Special registers, addresses of variables and literals are
operands like others, whose rows the bound block has.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import TYPE_BYTES, Immediate, Instruction, PtxOperand, Register, Special, Vector
from matmill.emulator.memory.address_space import FIRST_ADDRESS, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from matmill.emulator.program.special_registers import CLOCKS
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, computed, instructions

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


def copy(a: Row, out: Row) -> None:
    """Execute ``mov``."""
    out[...] = a


@instructions("mov")
def move(i: Instruction) -> Action:
    """Bind mov, mov with {…} on one side, and reads of special registers."""
    m = Modifiers(i)
    type_name = m.type()
    m.done()
    d, a = i.operands
    kind = KIND_OF_TYPE[type_name].replace("i", "u")
    if isinstance(a, Special) and a.name in CLOCKS:
        return Action(i, (), (Value(d, kind),), bind=lambda bound: _clock(bound.machine, a.name), tally="other")
    if isinstance(a, Vector):
        if isinstance(d, Vector):
            return computed(i, copy_all, [(x, kind) for x in a.items], [(x, kind) for x in d.items], tally="other")
        return _pack(i, type_name, d, a)
    if isinstance(d, Vector):
        return _unpack(i, type_name, d, a)
    if isinstance(a, Special) and kind == "u8":
        return computed(i, copy, [(a, "u4")], [(d, kind)], tally="other")
    return computed(i, copy, [(a, kind)], [(d, kind)], tally="other", in_place=True)


def _clock(machine: Machine, name: str) -> Call:
    """Return %clock and the like: the number of steps so far."""

    def call(out: Row) -> None:
        machine.ticks += 1
        out[...] = machine.ticks >> 32 if name.endswith("_hi") else machine.ticks & ((1 << 8 * out.dtype.itemsize) - 1)

    return call


def copy_all(*rows: Row) -> None:
    """Move several registers at once."""
    half = len(rows) // 2
    for a, out in zip([np.array(r) for r in rows[:half]], rows[half:], strict=True):
        out[...] = a


def _part_kinds(i: Instruction, type_name: str, items: tuple[PtxOperand, ...]) -> list[str]:
    size = TYPE_BYTES[type_name] // len(items)
    if size * len(items) != TYPE_BYTES[type_name] or size not in {1, 2, 4, 8} or type_name == "b128":
        raise i.unsupported("its vector")
    return [f"u{size}"] * len(items)


def _pack(i: Instruction, type_name: str, d: PtxOperand, a: Vector) -> Action:
    kind = "u" + KIND_OF_TYPE[type_name][1]
    parts = _part_kinds(i, type_name, a.items)
    step = 8 * int(parts[0][1])

    def call(*rows: Row) -> None:
        *sources, out = rows
        whole = np.zeros(out.shape, out.dtype)
        for index, part in enumerate(sources):
            whole |= np.asarray(part, out.dtype) << out.dtype.type(step * index)
        out[...] = whole

    return computed(i, call, list(zip(a.items, parts, strict=True)), [(d, kind)], tally="other")


def _unpack(i: Instruction, type_name: str, d: Vector, a: PtxOperand) -> Action:
    kind = "u" + KIND_OF_TYPE[type_name][1]
    parts = _part_kinds(i, type_name, d.items)
    step = 8 * int(parts[0][1])
    wide = []
    for item, part in zip(d.items, parts, strict=True):
        wide.append(f"u{TYPE_BYTES[item.type]}" if isinstance(item, Register) else part)

    def call(source: Row, *outs: Row) -> None:
        for index, out in enumerate(outs):
            shifted = source >> source.dtype.type(step * index)
            out[...] = shifted.astype(f"u{step // 8}")

    return computed(i, call, [(a, kind)], list(zip(d.items, wide, strict=True)), tally="other")


@instructions("cvta")
def convert_address(i: Instruction) -> Action:
    """Bind cvta: addresses in one state space to generic ones and back.

    For global and constant memory they are the same.
    """
    m = Modifiers(i)
    back = m.flag("to")
    space = m.pick(("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster"), "global")
    space = space.split("::", maxsplit=1)[0]
    kind = KIND_OF_TYPE[m.type("u64")]
    m.done()
    base = WINDOWS.get(space)
    d, a = i.operands
    if base is None:
        return computed(i, copy, [(a, kind)], [(d, kind)], tally="other", in_place=True)
    window = np.uint64(base)

    def call(a: Row, out: Row) -> None:
        out[...] = a - window if back else a + window

    return computed(i, call, [(a, kind)], [(d, kind)], tally="other", in_place=True)


@instructions("isspacep")
def is_in_space(i: Instruction) -> Action:
    """Bind isspacep: whether a generic address is in a state space."""
    m = Modifiers(i)
    space = m.need("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster").split(
        "::", maxsplit=1
    )[0]
    m.done()
    low = np.uint64(WINDOWS.get(space, FIRST_ADDRESS))
    high = np.uint64(2 * WINDOWS[space] if space in WINDOWS else SHARED_WINDOW)

    def call(a: Row, out: Row) -> None:
        out[...] = (a >= low) & (a < high)

    p, a = i.operands
    if isinstance(a, Immediate):
        raise i.unsupported("a literal address")
    return computed(i, call, [(a, "u8")], [(p, "p")], tally="other")
