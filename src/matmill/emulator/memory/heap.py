"""The heap of malloc and free in device code, for one launch.

Freed memory is not allocated again, so that any later use of it is detected. After each piece there is empty space, 256
bytes and as many as the piece has, at most 1 MiB: an index past the end hits no other piece.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask
from matmill.emulator.memory.address_space import AddressSpace, Allocation, Words, words

_ALIGNMENT = 16
_GAP, _WIDEST = 256, 1 << 20
_ARENA = 1 << 20
_LARGEST = 1 << 30
# The state of a byte in a piece: allocated or freed.
_HELD, _FREED = 1, 2


@dataclass
class HeapBlock:
    """A result of malloc: its start, its bytes, its owner, and "… freed it", or "" while it is allocated."""

    start: int
    size: int
    owner: str
    freed: str = ""


class Heap:
    """Pieces of memory in allocations of an address space, many in each."""

    def __init__(self, space: AddressSpace) -> None:
        self._space = space
        self._pieces: list[HeapBlock] = []
        self._starts: list[int] = []
        self._next = self._end = 0
        self._states: dict[int, Words] = {}
        # True after the first call of malloc.
        self.used = False

    def allocate(self, size: int, owner: str) -> int:
        """Return the address of ``size`` uninitialised bytes, or 0 if ``size`` is 0 or too large."""
        if not 0 < size < _LARGEST:
            return 0
        taken = -(-(size + min(size, _WIDEST) + _GAP) // _ALIGNMENT) * _ALIGNMENT
        if self._next + taken > self._end:
            self._grow(taken)
        piece = HeapBlock(self._next, size, owner)
        self._next += taken
        self._pieces.append(piece)
        self._starts.append(piece.start)
        self._mark(piece, _HELD)
        return piece.start

    def _grow(self, least: int) -> None:
        size = max(least, _ARENA)
        data = np.full(size // _ALIGNMENT, np.nan, np.complex128).view(np.uint8)
        arena = self._space.allocate("the heap", data, "rw", initialised=False)
        arena.describe = self.describe
        self.used = True
        self._states[arena.start] = words(np.zeros(size // _ALIGNMENT, np.complex128).view(np.uint8))
        self._next, self._end = arena.start, arena.end

    def free(self, address: int, freed: str) -> str:
        """Free the piece that begins at ``address``, as ``freed`` describes; return what is wrong with that, or ""."""
        piece = self._at(address)
        if piece is None or piece.start != address:
            return f"{self._space.describe(address)}, where no memory from malloc begins"
        if piece.freed:
            return f"{self.describe(address)} again"
        piece.freed = freed
        self._mark(piece, _FREED)
        return ""

    def first_wrong(
        self, allocation: Allocation | None, element: int, first: NDArray[np.int64], width: int, mask: Mask | None
    ) -> int | None:
        """Return the first lane of a ``mask`` that accesses bytes outside of allocated pieces, or None.

        Each accesses ``width`` bytes of an ``allocation`` as elements from ``first`` on.
        """
        states = None if allocation is None else self._states.get(allocation.start)
        if states is None:
            return None
        held = np.frombuffer(bytes([_HELD]) * element, states[element].dtype)
        wrong = np.zeros(len(first), np.bool_)
        for i in range(width // element):
            wrong |= states[element][first + i] != held
        if mask is not None:
            wrong &= mask
        return int(np.argmax(wrong)) if wrong.any() else None

    def was_freed(self, address: int, width: int) -> bool:
        """Tell whether any of ``width`` bytes was freed."""
        allocation = self._space.find(address)
        if allocation is None or allocation.start not in self._states:
            return False
        offset = address - allocation.start
        return bool((self._states[allocation.start][1][offset : offset + width] == _FREED).any())

    def describe(self, address: int) -> str:
        """Describe an address of the heap, for messages."""
        piece = self._at(address)
        if piece is None:
            return "the heap"
        freed = f" until {piece.freed}" if piece.freed else ""
        name = f"what {piece.owner} {'had' if freed else 'has'} from malloc{freed}"
        offset = address - piece.start
        if offset < piece.size:
            return f"{name} + {offset} B of {piece.size}"
        return f"{offset - piece.size} B behind the end of {name} ({piece.size} B)"

    def _at(self, address: int) -> HeapBlock | None:
        """Return the piece at an address, or the last one before it."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._pieces[at] if at >= 0 else None

    def _mark(self, piece: HeapBlock, state: int) -> None:
        arena = self._space.find(piece.start)
        if arena is not None:
            first = piece.start - arena.start
            self._states[arena.start][1][first : first + piece.size] = state
