"""The events of a thread block from which its timeline is drawn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """An event of a warp, which is numbered in its block, by the instruction at ``where``.

    An mbarrier is the byte of the block's shared window at which it is. ``kind`` is one of

    - "load", an asynchronous copy of ``count`` bytes, for which a ``phase`` of the mbarrier ``barrier`` waits;
    - "arrive", ``count`` threads arrive in a phase of an mbarrier;
    - "wait", a wait for a phase of an mbarrier has ended; phase -1 is that before the first;
    - "product", a ``wgmma``;
    - "read" and "write", ordinary accesses of shared memory, and "store", to global memory by any instruction;
    - "signal", the warp arrives at a barrier of its block and goes on, and "meet", it passes such a barrier: ``phase``
      numbers these meetings.
    """

    warp: int
    kind: str
    barrier: int = -1
    phase: int = -1
    count: int = 0
    where: str = ""
