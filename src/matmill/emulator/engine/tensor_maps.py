"""The tensor maps that a launch uses: read where the kernel keeps them, and whether what was changed has been fenced.

PTX ISA, "fence.proxy.tensormap". The unit that reads tensor maps keeps those that it has read. After a change, a fence
that acquires the map must come before the next use.
"""

from __future__ import annotations

from matmill.emulator.engine.machine import Machine
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import PARAM_WINDOW
from matmill.emulator.report.hazards import fault
from matmill.errors import ArgumentError
from matmill.launch import TensorMap
from matmill.tensor_map import decode


def read_map(machine: Machine, address: int, i: Instruction) -> TensorMap:
    """The tensor map at a generic address, as TMA sees it.

    Raises ``KernelFault`` where there is none, ``EmulationError`` for maps of kinds that are not emulated.
    """
    data = map_bytes(machine, address, i)
    changed = machine.maps.changed(address, data)
    if changed is not None:
        message = (
            f"{machine.launch.kernel}: {i.text!r} uses the tensor map at {machine.describe('generic', address)}, which "
            f"{changed} has changed, without fence.proxy.tensormap::generic.acquire on it since"
        )
        machine.hazards.add("tensor-map", i, message, i)
    try:
        return decode(data, f"tensor map at {machine.describe('generic', address)}")
    except ArgumentError as problem:
        raise fault("tensor-map", f"{machine.launch.kernel}: {i.text!r}: {problem}", i) from problem


def map_bytes(machine: Machine, address: int, i: Instruction) -> bytes:
    """The 128 bytes of a tensor map; raises ``KernelFault`` where they are not all in one allocation."""
    space, at = ("param", address - PARAM_WINDOW) if address >= PARAM_WINDOW else ("generic", address)
    region, start = machine.region_at(space, at)
    size = TensorMap.NBYTES
    kind = None
    if region is None or region.kind not in {"param", "global", "const"} or start + size > region.end:
        kind = "out-of-bounds"
    elif address % TensorMap.ALIGN:
        kind = "misaligned"
    if kind is not None or region is None:
        where = machine.describe("generic", address)
        raise fault(kind or "out-of-bounds", f"{machine.launch.kernel}: {i.text!r} names a tensor map at {where}", i)
    first = start - region.start
    return bytes(region.data[first : first + size].tobytes())
