"""Handles: the numbers by which kernels name textures and surfaces."""

from __future__ import annotations

from dataclasses import dataclass

from matmill.emulator.memory.address_space import Allocation, Memory
from matmill.emulator.memory.textures import Surface, Texture
from matmill.launch import Pointer

# Below all buffers, so that nothing is there for a kernel that takes a handle for an address.
_FIRST_HANDLE = 1 << 35


@dataclass(frozen=True)
class View:
    """A texture or surface of a launch: ``first`` is the offset in its allocation of the texel at 0, 0, 0."""

    name: str
    image: Texture | Surface
    allocation: Allocation
    first: int

    def __str__(self) -> str:
        return f"the {type(self.image).__name__.lower()} {self.name}"


def attach(memory: Memory, name: str, image: Texture | Surface, pointer: Pointer | None = None) -> Pointer:
    """Give a texture or surface a handle, which is the address of the pointer that a launch takes for it.

    ``pointer`` is where its array is bound already; without it the array is bound here, and kernels may store to a
    writable surface.

    >>> import numpy as np
    >>> memory = Memory()
    >>> attach(memory, "image", Texture(np.zeros((4, 4), np.float32)))
    Pointer(name='image', address=34359738368)
    """
    if pointer is None:
        stored = isinstance(image, Surface) and image.array.flags.writeable
        pointer = memory.bind(name, image.array, access="rw" if stored else "r", by_element=True)
    allocation = memory.holding(pointer)
    handle = _FIRST_HANDLE + len(memory.views)
    memory.views[handle] = View(name, image, allocation, pointer.address - allocation.start)
    return Pointer(name, handle)
