"""Global memory as kernels see it: host arrays at virtual addresses that do not depend on the host.

The address space of one launch, from low to high: bound arrays and module variables (global), then windows through
which generic addresses reach shared, local and parameter memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.frontend.names import element_at
from matmill.emulator.frontend.syntax import Instruction
from matmill.errors import ArgumentError, DTypeError, ReadOnlyError
from matmill.launch import Pointer
from matmill.textures import Surface, Texture

# cudaMalloc promises 256; allocators return multiples of 512.
ALIGNMENT = 512
# Empty space after each buffer, at least as long as the buffer: an index past the end should hit no other buffer.
GUARD = 1 << 20
FIRST_ADDRESS = 1 << 36
SHARED_WINDOW = 1 << 52
LOCAL_WINDOW = 1 << 53
PARAM_WINDOW = 1 << 54
# Handles of textures and surfaces are below all buffers: a kernel that uses one as an address hits nothing.
FIRST_HANDLE = 1 << 35
# sm_90 reserves the first KiB of shared memory; starting after it also catches a null shared pointer.
SHARED_BASE = 1024
# A shared::cluster address from mapa: this bit, the block's rank in its cluster, the offset in its window. A block's
# own addresses have neither bit nor rank. (An H200 has the rank in these bits, in own addresses too.)
MAPPED = 1 << 30
RANK_SHIFT = 24
RANKS = 0x3F
OFFSET_MASK = (1 << RANK_SHIFT) - 1

Words = dict[int, NDArray[np.generic]]
Ints = NDArray[np.int64]
_WORD_TYPES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def window_of(address: int) -> tuple[str, int]:
    """Return the state space of a generic address above global memory, and the start of its window."""
    if address >= PARAM_WINDOW:
        return "param", PARAM_WINDOW
    return ("local", LOCAL_WINDOW) if address >= LOCAL_WINDOW else ("shared", SHARED_WINDOW)


def shared_targets(addresses: Ints, owner: Ints, cluster: int) -> tuple[Ints, Ints]:
    """Return the block of a batch and the offset in its window for each shared address, with or without a rank.

    ``addresses`` may be generic or of shared memory, ``owner`` is the block whose thread uses each, and ``cluster`` the
    number of blocks of a cluster. The block is -1 for a rank outside the cluster.
    """
    mapped = addresses & MAPPED != 0
    rank = addresses >> RANK_SHIFT & RANKS
    peer = np.where(rank < cluster, owner - owner % cluster + rank, -1)
    return np.where(mapped, peer, owner), addresses & np.where(mapped, OFFSET_MASK, SHARED_WINDOW - 1)


def words(data: NDArray[np.uint8]) -> Words:
    """Return ``data`` (flat bytes) viewed as 1-, 2-, 4-, 8- and 16-byte elements, each as many as fit."""
    return {size: data[: len(data) - len(data) % size].view(kind) for size, kind in _WORD_TYPES.items()}


class Allocation:
    """A range of virtual addresses backed by host bytes.

    ``written`` has a byte per byte: 1 once it was stored to, or None if all bytes are initialised. ``stored`` is the
    same for the stores of one launch, if they are tracked, and ``stores`` are the source lines that made them.
    """

    def __init__(self, name: str, start: int, data: NDArray[np.uint8], access: str, *, initialised: bool) -> None:
        self.name = name
        self.start = start
        self.size = len(data)
        self.readable = "r" in access
        self.writable = "w" in access
        self.data = data
        self.words = words(data)
        self.written = None if initialised else words(np.zeros(len(data), np.uint8))
        self.stored: Words | None = None
        self.stores: dict[str, None] = {}
        # Of a module's variable or an output: the first instruction that reads it, and whether any writes it.
        self.followed = False
        self.first_read: Instruction | None = None
        self.changed = False
        # True if it has nothing before a kernel fills it.
        self.output = False
        # Bytes of an element and extents, for messages that name elements.
        self.itemsize = 0
        self.shape: tuple[int, ...] = ()
        # Describes an address in it for messages.
        self.describe: Callable[[int], str] = self._by_offset

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.start + self.size

    @property
    def marks(self) -> tuple[Words, ...]:
        """The arrays in which stores are marked."""
        return tuple(each for each in (self.written, self.stored) if each is not None)

    def used(self, i: Instruction, *, writes: bool) -> None:
        """Record an instruction that accesses a module's variable or an output."""
        self.changed = self.changed or writes
        if not writes:
            self.first_read = self.first_read or i

    def _by_offset(self, address: int) -> str:
        offset = address - self.start
        if self.itemsize:
            return element_at(self.name, offset, self.itemsize, self.shape)
        return f"{self.name} + {offset} B of {self.size}"


@dataclass(frozen=True)
class ImageView:
    """A texture or surface of a launch: ``first`` is the offset in its allocation of the texel at 0, 0, 0."""

    name: str
    image: Texture | Surface
    allocation: Allocation
    first: int

    def __str__(self) -> str:
        return f"the {type(self.image).__name__.lower()} {self.name}"


class Memory:
    """Arrays bound to virtual addresses, in binding order.

    >>> memory = Memory()
    >>> memory.bind("A", np.zeros(4, np.float32), access="r")
    Pointer(name='A', address=68719476736)
    """

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self.next_address = FIRST_ADDRESS
        # Textures and surfaces by handle.
        self.images: dict[int, ImageView] = {}

    def bind(
        self,
        name: str,
        array: NDArray[np.generic] | None,
        *,
        access: str,
        initialised: bool = True,
        by_element: bool = False,
        output: bool = False,
    ) -> Pointer:
        """Bind ``array`` to an address and return the pointer to its first element; kernels read and write it in place.

        Strides may be anything, also negative: the allocation is the array's span of bytes, at a 512-aligned virtual
        address. ``None`` is the null pointer. ``access`` is "r", "w" or "rw"; storing without "w" is a fault. Without
        ``initialised`` the array counts as memory from ``cudaMalloc``, and a kernel's reads of bytes that no kernel of
        this or an earlier launch has stored are reported. With ``by_element`` messages name the array's elements,
        ``A[3][0]``, instead of bytes, if it is contiguous. An ``output`` has nothing that a kernel reads: the stores of
        the next launch are recorded in its allocation.

        Raises ``ArgumentError`` for another ``access``, ``DTypeError`` for arrays of Python objects, ``ReadOnlyError``
        for a writable binding of a read-only array.
        """
        if access not in {"r", "w", "rw"}:
            raise ArgumentError(argument="access", got=repr(access), wanted='"r", "w" or "rw"', fix="Pick one of them.")
        if array is None:
            return Pointer(name, 0)
        if array.dtype.hasobject:
            raise DTypeError(argument=name, got=f"dtype {array.dtype}", wanted="plain numbers", fix="Convert it first.")
        data, first = _span(array)
        if "w" in access and len(data) and not data.flags.writeable:
            raise ReadOnlyError(
                argument=name, got="a read-only array", wanted="a writable one", fix='Copy it, or bind it with "r".'
            )
        allocation = self.allocate(name, data, access, initialised=initialised)
        allocation.output = allocation.followed = output
        if by_element and array.flags.c_contiguous and array.size:
            allocation.itemsize, allocation.shape = array.itemsize, array.shape or (1,)
        return Pointer(name, allocation.start + first)

    def attach(self, name: str, image: Texture | Surface, pointer: Pointer | None = None) -> Pointer:
        """Give a texture or surface a handle, the address in the pointer that a launch takes for it.

        ``pointer`` is the binding of its array. Without it the array is bound here; kernels may store to a surface
        whose array is writable.

        >>> memory = Memory()
        >>> memory.attach("image", Texture(np.zeros((4, 4), np.float32)))
        Pointer(name='image', address=34359738368)
        """
        if pointer is None:
            stored = isinstance(image, Surface) and image.array.flags.writeable
            pointer = self.bind(name, image.array, access="rw" if stored else "r", by_element=True)
        allocation = self.holding(pointer)
        handle = FIRST_HANDLE + len(self.images)
        self.images[handle] = ImageView(name, image, allocation, pointer.address - allocation.start)
        return Pointer(name, handle)

    def allocate(self, name: str, data: NDArray[np.uint8], access: str, *, initialised: bool = True) -> Allocation:
        """Allocate flat bytes at the next free address."""
        allocation = Allocation(name, self.next_address, data, access, initialised=initialised)
        self.next_address += (2 * allocation.size + GUARD) // ALIGNMENT * ALIGNMENT
        self.allocations.append(allocation)
        return allocation

    def holding(self, pointer: Pointer) -> Allocation:
        """Return the allocation, maybe empty, that a pointer of this memory points into."""
        return next(each for each in self.allocations if each.start <= pointer.address <= each.end)


class AddressSpace:
    """The global allocations of one launch: those of a :class:`Memory` and the module's variables.

    With ``note_stores`` the launch's stores to memory behind textures and surfaces are recorded, and with
    ``note_all`` those to any memory.
    """

    def __init__(self, memory: Memory, *, note_stores: bool = False, note_all: bool = False) -> None:
        self._memory = Memory()
        self._memory.allocations = list(memory.allocations)
        self._memory.next_address = memory.next_address
        self.images = memory.images
        self._note_all = note_all
        behind_images = [view.allocation for view in self.images.values()] if note_stores else []
        for each in self._memory.allocations:
            each.stored = None
        outputs = [each for each in self._memory.allocations if each.output]
        for each in self._memory.allocations if note_all else [*behind_images, *outputs]:
            self._note(each)
        self._index()

    def _note(self, allocation: Allocation) -> None:
        """Record the launch's stores to an allocation."""
        allocation.stores.clear()
        allocation.stored = words(np.zeros(allocation.size, np.uint8)) if allocation.writable else None

    def _index(self) -> None:
        self.allocations: Sequence[Allocation] = self._memory.allocations
        self.starts = [a.start for a in self.allocations]
        self.uninitialised = [a for a in self.allocations if a.written is not None]

    def allocate(self, name: str, data: NDArray[np.uint8], access: str, *, initialised: bool = True) -> Allocation:
        """Add a module variable, or memory for malloc, for the duration of the launch."""
        allocation = self._memory.allocate(name, data, access, initialised=initialised)
        if self._note_all:
            self._note(allocation)
        self._index()
        return allocation

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that contains ``address``, or None."""
        at = bisect.bisect_right(self.starts, address) - 1
        if at >= 0 and address < self.allocations[at].end:
            return self.allocations[at]
        return None

    def describe(self, address: int) -> str:
        """Describe ``address`` for messages: "A + 40 B", "12 B behind the end of A (64 B)" or "no buffer, …"."""
        if address < 8 * ALIGNMENT or address in self.images:
            return str(self.images.get(address, "the null pointer"))
        at = bisect.bisect_right(self.starts, address) - 1
        if at >= 0:
            near = self.allocations[at]
            if address < near.end:
                return near.describe(address)
            if address < near.end + GUARD // 2 + near.size // 2:
                return f"{address - near.end} B behind the end of {near.name} ({near.size} B)"
        if at + 1 < len(self.starts) and self.starts[at + 1] - address <= GUARD:
            near = self.allocations[at + 1]
            return f"{near.start - address} B before {near.name} ({near.size} B)"
        nearest = [a for a in self.allocations[max(at, 0) : at + 2] if a.size]
        if not nearest:
            return "no buffer"
        distance, near = min(((max(a.start - address, address - a.end), a) for a in nearest), key=lambda each: each[0])
        side = "before" if address < near.start else "behind the end of"
        return f"no buffer, {distance} B {side} {near.name} ({near.size} B)"


def _span(array: NDArray[np.generic]) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes from the array's lowest to its highest element, and the offset of its first element in them."""
    if array.size == 0:
        return np.zeros(0, np.uint8), 0
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    below = -sum(s for s in steps if s < 0)
    size = below + sum(s for s in steps if s > 0) + array.dtype.itemsize
    corner = tuple(slice(n - 1, n) if s < 0 else slice(0, 1) for n, s in zip(array.shape, array.strides, strict=True))
    lowest = array[(*corner, ...)]
    element = lowest.reshape(1).view(np.uint8)
    return np.lib.stride_tricks.as_strided(element, (size,), (1,)), below
