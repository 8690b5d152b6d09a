"""TMA's swizzle of each chunk of shared memory that it wrote, to compare with wgmma's descriptors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.frontend.syntax import Instruction

Ints = NDArray[np.int64]
_CHUNK = 16


class SwizzleMarks:
    """The last bulk load into each 16-byte chunk of a batch's shared memory that has not been overwritten.

    It is kept as the number of a pair, the load's instruction and its swizzle; 0 means none.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._marks: NDArray[np.uint16] | None = None
        self._loads: list[tuple[Instruction | None, int]] = [(None, 0)]

    @property
    def used(self) -> bool:
        """True if any load has written anything."""
        return self._marks is not None

    def begin(self) -> None:
        """Start a batch, without loads."""
        if self._marks is not None:
            self._marks.fill(0)

    def mark(self, chunks: Ints, swizzle: int, i: Instruction) -> None:
        """Mark 16-byte chunks that a load has written."""
        if self._marks is None:
            self._marks = np.zeros(self._nbytes // _CHUNK, np.uint16)
        load = (i, swizzle)
        if load not in self._loads:
            self._loads.append(load)
        self._marks[chunks] = self._loads.index(load)

    def overwrite(self, index: Ints) -> None:
        """Remove the marks of bytes that threads store to."""
        if self._marks is not None:
            self._marks[index // _CHUNK] = 0

    def differs(self, chunks: Ints, swizzle: int) -> tuple[int, Instruction, int] | None:
        """Return a chunk that a load wrote with another swizzle, or None: its index, the load, and its swizzle."""
        if self._marks is None:
            return None
        marks = self._marks[chunks]
        for mark in np.unique(marks).tolist():
            i, other = self._loads[mark]
            if i is not None and other != swizzle:
                return int(np.flatnonzero(marks == mark)[0]), i, other
        return None
