"""Tensor maps that kernels change: tensormap.replace, tensormap.cp_fenceproxy, and the fence that acquires a map.

PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar/fence". The fields are described in ``tensor_map``.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.tensor_maps import change_map, copy_map
from matmill.emulator.families.addresses import address_of, base_registers
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, instructions

_SPACES = ("global", "shared::cta")


@instructions("tensormap")
def tensormap(i: Instruction) -> Action:
    """Bind tensormap.replace and tensormap.cp_fenceproxy."""
    return _replace(i) if "replace" in i.modifiers else _copy(i)


def _replace(i: Instruction) -> Action:
    m = Modifiers(i, "replace", "tile", "b1024")
    m.pick(_SPACES)
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    (field,) = m.left
    target, *numbers = i.operands
    address = address_of(i, target)
    *ordinals, value = numbers
    if len(ordinals) > 1 or any(not isinstance(o, Immediate) for o in ordinals):
        raise i.unsupported("its operands")
    ordinal = int(ordinals[0].value) if ordinals and isinstance(ordinals[0], Immediate) else 0

    def bind(bound: BoundBlock) -> Call:
        lanes, participants = bound.lanes, bound.participants()
        row, offset = bound.address_row(address)

        def call(values: Row) -> None:
            for lane in np.flatnonzero(participants()):
                at, new = (int(np.broadcast_to(x, lanes.count)[lane]) for x in (row, values))
                change_map(bound.machine, int(lanes.columns[lane]), at + offset, (field, new, ordinal), i)

        return call

    return Action(i, (Value(value, kind),), bind=bind, tally="memory", masks_itself=True, uses=base_registers(address))


def _copy(i: Instruction) -> Action:
    m = Modifiers(i, "cp_fenceproxy", "global", "shared::cta", "tensormap::generic", "release", "sync", "aligned")
    m.need("cta", "cluster", "gpu", "sys")
    m.done()
    target, source, _size = i.operands
    to, origin = address_of(i, target), address_of(i, source)

    def bind(bound: BoundBlock) -> Call:
        lanes, participants, whole = bound.lanes, bound.participants(), bound.whole_warps(i)
        rows = bound.address_row(to), bound.address_row(origin)

        def call() -> None:
            if whole is not None:
                whole()
            # All lanes of a warp name one map.
            for lane in np.flatnonzero(participants())[::32]:
                maps = [int(np.broadcast_to(row, lanes.count)[lane]) + offset for row, offset in rows]
                copy_map(bound.machine, int(lanes.columns[lane]), maps[0], maps[1], i)

        return call

    return Action(i, bind=bind, tally="memory", masks_itself=True, uses=base_registers(to, origin))


def acquire_map(i: Instruction) -> Action:
    """Bind ``fence.proxy.tensormap::generic.acquire.SCOPE [map], 128``: TMA reads the map again."""
    address = address_of(i, i.operands[0])

    def bind(bound: BoundBlock) -> Call:
        lanes, participants, maps = bound.lanes, bound.participants(), bound.machine.maps
        row, offset = bound.address_row(address)

        def call() -> None:
            active = participants().reshape(-1)
            for at in np.unique(np.broadcast_to(row, lanes.count)[active]).tolist():
                maps.acquire(at + offset)

        return call

    return Action(i, bind=bind, tally="control", masks_itself=True, uses=base_registers(address))
