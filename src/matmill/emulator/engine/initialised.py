"""Which bytes of shared memory hold something: loads of others are reported."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.access import Access, Piece


def check_written(access: Access, piece: Piece, vector: int) -> bool:
    """Report shared bytes that nothing was stored to, and return False. Initialised bytes are checked once."""
    key = ("written", access.addresses.low + access.offset, access.width)
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
    lane = int(np.flatnonzero(~good)[0])
    machine, lanes = access.machine, access.addresses.lanes
    address = int(access.addresses.absolute(access.offset).reshape(-1)[lane])
    where = machine.describe(access.addresses.space, address)
    message = (
        f"{machine.launch.kernel}: {lanes.thread_name(lane)} reads {access.width} bytes at {where} that nothing "
        f"was stored to, in {access.instruction.text!r}"
    )
    machine.hazards.add("uninitialised-shared", access.where, message, access.instruction)
    return False


def ones(element: int) -> Row:
    """An element of the size given whose bytes are all 1: shared memory that was stored to."""
    return np.frombuffer(b"\x01" * element, {16: "c16"}.get(element, f"u{element}"))


def mark_written(access: Access, piece: Piece, index: NDArray[np.int64], vector: int) -> None:
    """Mark shared bytes as stored to; done once while the addresses stay the same."""
    if piece.region.written is None:
        return
    key = ("marked", access.addresses.low + access.offset, access.width)
    if len(access.pieces) == 1 and key in access.addresses.memo:
        return
    access.addresses.memo[key] = True
    written = piece.region.written[access.element]
    for i in range(vector):
        written[(piece.start >> access.shift) + i :][index] = ones(access.element)
