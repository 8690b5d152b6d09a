"""Tensor maps to test with, and copies of their boxes element by element, in Python's integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.launch import Pointer, TensorMap
from matmill.tensor_map import ELEMENTS

START = 1 << 36
#: The shared memory of a block, which no box exceeds.
MOST_BOX_BYTES = 227 * 1024


@st.composite
def any_maps(draw: st.DrawFn) -> TensorMap:
    """Return maps that the driver takes, of every rank, element and mode."""
    rank = draw(st.integers(1, 5))
    element = draw(st.sampled_from(sorted(ELEMENTS)))
    interleave = draw(st.sampled_from((0, 0, 16, 32))) if rank > 2 else 0
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    itemsize, align = ELEMENTS[element].itemsize, max(16, interleave)
    widest = min(256 * itemsize, swizzle or 256)
    sizes = st.integers(1, 1 << 32) | st.integers(1, 1000)
    strides = st.integers(0, (1 << 40) // align - 1) | st.integers(1, 1000)
    steps = st.integers(1, 8) | st.just(1)
    box = [draw(st.integers(1, widest // 16)) * 16 // itemsize]
    for _ in range(rank - 1):
        box.append(draw(st.integers(1, min(256, MOST_BOX_BYTES // (prod(box) * itemsize)))))
    return TensorMap(
        Pointer("A", align * draw(st.integers(1, (1 << 57) // align - 1))),
        element,
        tuple(draw(st.lists(sizes, min_size=rank, max_size=rank))),
        tuple(align * n for n in draw(st.lists(strides, min_size=rank - 1, max_size=rank - 1))),
        tuple(box),
        swizzle,
        tuple(draw(st.lists(steps, min_size=rank, max_size=rank))),
        interleave,
        draw(st.sampled_from((0, 64, 128, 256))),
        nan_fill=ELEMENTS[element].floating and draw(st.booleans()),
    )


@st.composite
def small_maps(draw: st.DrawFn, elements: tuple[str, ...] = tuple(ELEMENTS), *, overlap: bool = False) -> TensorMap:
    """Return maps of small tensors whose boxes the emulator copies; ``overlap`` allows rows that share bytes."""
    rank = draw(st.integers(1, 5))
    element = draw(st.sampled_from(elements))
    itemsize = ELEMENTS[element].itemsize
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    width = 16 * draw(st.integers(1, swizzle // 16 or min(10, 16 * itemsize)))
    most = 9 if rank < 4 else 3
    outer = st.lists(st.integers(1, most), min_size=rank - 1, max_size=rank - 1)
    sizes = (draw(st.integers(1, 2 * width // itemsize)), *draw(outer))
    strides, dense = [], sizes[0] * itemsize
    for size in sizes[1:]:
        stride = 16 * draw(st.integers(0, 8)) if overlap else -(-dense // 16) * 16 + 16 * draw(st.integers(0, 2))
        strides.append(stride)
        dense = size * stride
    steps = (1, *draw(st.lists(st.integers(1, 3), min_size=rank - 1, max_size=rank - 1)))
    box = (width // itemsize, *draw(outer))
    nan_fill = ELEMENTS[element].floating and draw(st.booleans())
    address = START + 16 * draw(st.integers(0, 3))
    return TensorMap(
        Pointer("tensor map", address), element, sizes, tuple(strides), box, swizzle, steps, nan_fill=nan_fill
    )


def span(tensor: TensorMap) -> int:
    """Count the bytes from the address ``START`` to the tensor's end, and to that of the 16 bytes in which it is."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.sizes[1:], tensor.strides, strict=True))
    return tensor.pointer.address - START + last + -(-tensor.sizes[0] * ELEMENTS[tensor.element].itemsize // 16) * 16


def box_extents(tensor: TensorMap) -> tuple[int, ...]:
    """Return elements that a box copies along each dimension."""
    return (tensor.box[0], *(-(-n // s) for n, s in zip(tensor.box[1:], tensor.element_strides[1:], strict=True)))


def box_bytes(tensor: TensorMap) -> int:
    """Count the bytes that a box copies."""
    return prod(box_extents(tensor)) * ELEMENTS[tensor.element].itemsize


def pitch(tensor: TensorMap) -> int:
    """Count the bytes in shared memory from one row of a box to the next."""
    return tensor.swizzle or tensor.box[0] * ELEMENTS[tensor.element].itemsize


def shared_bytes(tensor: TensorMap) -> int:
    """Count the bytes of shared memory that a box spans."""
    return prod(box_extents(tensor)[1:]) * pitch(tensor)


def box_elements(
    tensor: TensorMap, coordinates: tuple[int, ...], address: int, *, whole: bool = False
) -> Iterator[tuple[int | None, int]]:
    """Yield each element of a box: its global address, or None outside the tensor, and its shared address.

    With ``whole``, rows of the tensor end at the next multiple of 16 bytes.
    """
    itemsize = ELEMENTS[tensor.element].itemsize
    sizes = (-(-tensor.sizes[0] * itemsize // 16) * 16 // itemsize if whole else tensor.sizes[0], *tensor.sizes[1:])
    steps, strides = (1, *tensor.element_strides[1:]), (itemsize, *tensor.strides)
    for n, backwards in enumerate(np.ndindex(*box_extents(tensor)[::-1])):
        at = [c + i * s for c, i, s in zip(coordinates, backwards[::-1], steps, strict=True)]
        inside = all(0 <= x < size for x, size in zip(at, sizes, strict=True))
        where = tensor.pointer.address + sum(x * stride for x, stride in zip(at, strides, strict=True))
        row, column = divmod(n, tensor.box[0])
        yield where if inside else None, swizzled(address + row * pitch(tensor) + column * itemsize, tensor.swizzle)


def swizzled(address: int, swizzle: int) -> int:
    """Return a shared address whose 16-byte chunk was exchanged with another one of its 128 bytes."""
    line, chunk, byte = address // 128, address // 16 % 8, address % 16
    return 128 * line + 16 * (chunk ^ line % {0: 1, 32: 2, 64: 4, 128: 8}[swizzle]) + byte


def load_one(
    memory: NDArray[np.uint8], shared: NDArray[np.uint8], tensor: TensorMap, coordinates: tuple[int, ...], address: int
) -> None:
    """Load a box element by element into ``shared``, whose first byte has address 0."""
    itemsize = ELEMENTS[tensor.element].itemsize
    for source, target in box_elements(tensor, coordinates, address):
        if source is None:
            fill = b"\xf7\x7f" * 4 if tensor.nan_fill else bytes(8)
            value = np.frombuffer(fill[:itemsize], np.uint8)
        else:
            value = memory[source - START : source - START + itemsize]
            if tensor.element.startswith("tfloat32"):
                value = np.frombuffer(_nearest_tf32(value.tobytes()), np.uint8)
        shared[target : target + itemsize] = value


def _nearest_tf32(data: bytes) -> bytes:
    """Return the nearer of the two neighbours, or the one whose last bit is 0."""
    bits = int.from_bytes(data, "little")
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFFE000.to_bytes(4, "little")
    below = bits >> 13 << 13
    rest = bits - below
    up = rest > 0x1000 or (rest == 0x1000 and below >> 13 & 1)
    return (below + 0x2000 * int(up)).to_bytes(4, "little")


def store_one(
    memory: NDArray[np.uint8],
    shared: NDArray[np.uint8],
    tensor: TensorMap,
    coordinates: tuple[int, ...],
    address: int,
    *,
    combine: Callable[[Any, Any], Any] = lambda _old, new: new,
    word: str = "",
) -> None:
    """Store a box element by element, or ``combine`` each, as NumPy's type ``word``, with what was there.

    Without a type it is a plain store, which writes whole 16 bytes.
    """
    itemsize = ELEMENTS[tensor.element].itemsize
    dtype = np.dtype(word or f"V{itemsize}")
    for target, source in box_elements(tensor, coordinates, address, whole=not word):
        if target is not None:
            old = memory[target - START : target - START + itemsize].view(dtype)
            old[0] = combine(old[0], shared[source : source + itemsize].view(dtype)[0])
