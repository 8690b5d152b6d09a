"""Regions: ranges of one state space that are backed by host arrays."""

from __future__ import annotations

import numpy as np

from matmill.emulator.memory.address_space import Allocation, Words


class Region:
    """An allocation of global memory, or the shared, local or parameter memory of a batch of thread blocks.

    ``start`` and ``end`` are offsets in the region's own space. The bytes of lane ``i`` begin at
    ``Lanes.base(kind)[i]``. ``written`` has a byte per byte, 1 once it was stored to, or is None if all bytes are
    initialised. ``marks`` are all arrays in which stores are marked.
    """

    def __init__(
        self,
        kind: str,
        start: int,
        end: int,
        words: Words,
        *,
        allocation: Allocation | None = None,
        written: Words | None = None,
    ) -> None:
        self.kind = kind
        self.start = start
        self.end = end
        self.words = words
        self.data = words[1].view(np.uint8)
        self.allocation = allocation
        self.written = written
        self.marks: tuple[Words, ...] = () if written is None else (written,)
        # A kernel's parameters are constants (PTX ISA, "Kernel Function Parameters").
        self.writable = kind != "param"
        if allocation is not None:
            self.written, self.marks, self.writable = allocation.written, allocation.marks, allocation.writable
