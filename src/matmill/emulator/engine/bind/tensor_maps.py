"""The tensor maps of a launch: read from the kernel's memory, with a check that changes were fenced.

PTX ISA, "fence.proxy.tensormap". The tensor-map unit caches maps. After a change, a fence that acquires the map must
come before the next use.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import FIRST_ADDRESS, PARAM_WINDOW, SHARED_WINDOW
from matmill.emulator.memory.regions import Region
from matmill.emulator.report.hazards import fault
from matmill.errors import ArgumentError
from matmill.launch import TensorMap
from matmill.tensor_map import decode, replace


def read_map(machine: Machine, column: int, address: int, i: Instruction) -> TensorMap:
    """Return the tensor map at a thread's generic address, as TMA sees it.

    Raises ``KernelFault`` if there is none, ``EmulationError`` for kinds of maps that are not emulated.
    """
    data = map_data(machine, column, address, i).tobytes()
    changed = machine.maps.changed(address, data)
    if changed is not None:
        message = (
            f"{_who(machine, column)} uses the tensor map at {machine.describe('generic', address)}, which {changed} "
            f"has changed, without fence.proxy.tensormap::generic.acquire on it since, in {i.text!r}"
        )
        machine.hazards.add("tensor-map", i, message, i)
    try:
        return decode(data, f"tensor map at {machine.describe('generic', address)}")
    except ArgumentError as problem:
        raise fault("tensor-map", f"{_who(machine, column)}, in {i.text!r}: {problem}", i) from problem


def change_map(machine: Machine, column: int, address: int, change: tuple[str, int, int], i: Instruction) -> None:
    """Execute ``tensormap.replace`` by a thread: change a field of the map at an address."""
    data = map_data(machine, column, address, i)
    field, value, ordinal = change
    try:
        data[:] = np.frombuffer(replace(data.tobytes(), field, value, ordinal), np.uint8)
    except ArgumentError as problem:
        raise fault("tensor-map", f"{_who(machine, column)}, in {i.text!r}: {problem}", i) from problem
    machine.maps.change(address, repr(i.text))
    machine.progress += 1


def copy_map(machine: Machine, column: int, to: int, source: int, i: Instruction) -> None:
    """Execute ``tensormap.cp_fenceproxy`` by a thread: copy a map from shared to global memory, and release it."""
    map_data(machine, column, to, i)[:] = map_data(machine, column, source, i)
    machine.maps.change(to, repr(i.text))
    machine.progress += 1


def map_data(machine: Machine, column: int, address: int, i: Instruction) -> NDArray[np.uint8]:
    """Return the 128 bytes of a tensor map in parameters, global or shared memory, at a thread's address.

    Raises ``KernelFault`` unless they are all in one allocation.
    """
    size = TensorMap.NBYTES
    if address < SHARED_WINDOW + (1 << 32) and (address >= SHARED_WINDOW or address < FIRST_ADDRESS):
        block, offset = (int(x[0]) for x in machine.shared_targets(np.array([address]), np.array([column])))
        region: Region | None = machine.shared
        start, base = offset, block * machine.geometry.shared_stride
    else:
        space, at = ("param", address - PARAM_WINDOW) if address >= PARAM_WINDOW else ("generic", address)
        region, start = machine.region_at(space, at)
        base = 0
    outside = region is None or start < region.start or start + size > region.end
    if region is None or outside or address % TensorMap.ALIGN:
        why = "not all of it in one buffer" if outside else f"no multiple of {TensorMap.ALIGN}"
        where = machine.describe("generic", address)
        message = f"{_who(machine, column)} names a tensor map at {where}, {why}, in {i.text!r}"
        raise fault("out-of-bounds" if outside else "misaligned", message, i)
    first = base + start - region.start
    return region.data[first : first + size]


def _who(machine: Machine, column: int) -> str:
    return f"{machine.launch.kernel}: {machine.geometry.thread_name(column)}"
