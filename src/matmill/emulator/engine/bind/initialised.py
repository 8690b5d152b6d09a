"""Bytes that were stored to, and bytes that were not, where a load of them is a mistake.

Uninitialised bytes are those of shared memory and of uninitialised buffers. Loads through the read-only cache
(ld.global.nc, which __ldg and const __restrict__ pointers become) must not read what their own launch has stored.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.addresses import Piece
from matmill.emulator.frontend.names import byte_count
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.memory.address_space import Allocation


def check_written(access: Access, piece: Piece, vector: int) -> bool:
    """Report bytes that were never stored to, and return False if there are any. Initialised bytes are checked once."""
    key = ("written", access.addresses.low + access.offset, access.width, _unset_stores(access))
    if key in access.addresses.memo or piece.region.written is None:
        return True
    full = ones(access.element)
    first = piece.start >> access.shift
    good = np.ones(len(piece.index), np.bool_)
    for i in range(vector):
        good &= piece.region.written[access.element][first + i + piece.index] == full
    if piece.mask is not None:
        good |= ~piece.mask
    if good.all():
        access.addresses.memo[key] = True
        return True
    if access.machine.unset is not None and piece.region.kind in {"shared", "local"}:
        # The load marks what it reads, and only a use of that is a mistake.
        good |= piece.region.kind == "local" or _holds_unset(access, piece, vector)
        if good.all():
            return False
    lane = int(np.flatnonzero(~good)[0])
    address = int(access.addresses.absolute(access.offset).reshape(-1)[lane])
    _report(access, lane, address, access.addresses.space, piece.region.kind)
    return False


def _unset_stores(access: Access) -> int:
    """Return how many stores have put values into memory that nothing has set."""
    return access.machine.unset.stores if access.machine.unset is not None else 0


def _holds_unset(access: Access, piece: Piece, vector: int) -> NDArray[np.bool_]:
    """Return the lanes whose bytes were all stored to, some of them with a value that nothing has set."""
    at = ((piece.start >> access.shift) + piece.index) << access.shift
    written = piece.region.written
    held = [written[1][at + byte] for byte in range(access.element * vector)] if written is not None else []
    return np.asarray(np.minimum.reduce(held) > 0)


def check_constant(access: Access, vector: int) -> None:
    """Report bytes that this launch has stored to, read through a cache that does not see stores."""
    for piece in access.pieces:
        memory = piece.region.allocation
        if memory is None or memory.stored is None or not memory.stores:
            continue
        first, stored = piece.start >> access.shift, memory.stored[access.element]
        changed = np.zeros(len(piece.index), np.bool_)
        for i in range(vector):
            changed |= stored[first + i + piece.index] != 0
        if piece.mask is not None:
            changed &= piece.mask
        if changed.any():
            lane, machine = int(np.flatnonzero(changed)[0]), access.machine
            thread = access.addresses.lanes.thread_name(lane)
            address = int(access.addresses.absolute(access.offset).reshape(-1)[lane])
            message = (
                f"{machine.launch.kernel}: {thread} reads {byte_count(access.width)} at "
                f"{machine.space.describe(address)} through the read-only cache, which does not see the stores of this "
                f"launch ({', '.join(memory.stores)}), in {access.instruction.text!r}: read it by a plain load"
            )
            machine.hazards.add("read-only-cache", access.where, message, access.instruction)


def check_copied(access: Access, source: Row, amount: Row) -> None:
    """Report bytes of uninitialised buffers that a cp.async reads: ``amount`` of them, each lane at its ``source``."""
    for buffer in access.machine.space.uninitialised:
        if buffer.written is None:
            continue
        inside = (source >= buffer.start) & (source < buffer.end)
        for byte in range(int(amount[inside].max(initial=0))):
            lanes = np.flatnonzero(inside & (amount > byte))
            unset = lanes[buffer.written[1][source[lanes] - buffer.start + byte] == 0]
            if unset.size:
                _report(access, int(unset[0]), int(source[unset[0]]), "global", "global")
                return


def _report(access: Access, lane: int, address: int, space: str, kind: str) -> None:
    machine = access.machine
    message = (
        f"{machine.launch.kernel}: {access.addresses.lanes.thread_name(lane)} reads {byte_count(access.width)} at "
        f"{machine.describe(space, address)} that nothing was stored to, in {access.instruction.text!r}"
    )
    machine.hazards.add(f"uninitialised-{kind}", access.where, message, access.instruction)


def note_store(memory: Allocation | None, instruction: Instruction) -> None:
    """Record where a launch stores to global memory, if its stores are tracked."""
    if memory is not None and memory.stored is not None:
        memory.stores[instruction.location] = None


def ones(element: int) -> Row:
    """Return an element of the given size whose bytes are all 1, which marks stored-to memory."""
    return np.frombuffer(b"\x01" * element, {16: "c16"}.get(element, f"u{element}"))


def mark_written(access: Access, piece: Piece, index: NDArray[np.int64], vector: int) -> None:
    """Mark bytes as stored to, once while the addresses stay the same."""
    if not piece.region.marks:
        return
    note_store(piece.region.allocation, access.instruction)
    key = ("marked", access.addresses.low + access.offset, access.width, _unset_stores(access))
    if len(access.pieces) == 1 and key in access.addresses.memo:
        return
    access.addresses.memo[key] = True
    for marks in piece.region.marks:
        for i in range(vector):
            marks[access.element][(piece.start >> access.shift) + i :][index] = ones(access.element)
