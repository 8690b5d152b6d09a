"""Matrix descriptors: the positions in shared memory of a wgmma operand's elements.

PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout" and "Matrix Descriptor Format". An operand has
``rows`` of M or N and 32 bytes of K. Everything is in chunks of 16 bytes, which no layout splits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

CHUNK = 16
# An instruction takes 32 bytes of K: two chunks of a K-major row, or 16 MN-major rows of 16-bit elements.
_K_CHUNKS, _K_ROWS = 2, 16
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}
_CORE_ROWS = 8
# All swizzles repeat after 1024 bytes.
_PERIOD = 1024
_FIELD = (1 << 14) - 1
_RESERVED = 0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3FF << 52
_BASE_OFFSET = 0b111 << 49


class DescriptorError(ValueError):
    """A descriptor that is not valid, with the reason."""


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A decoded descriptor, in bytes: start address, distances, and the swizzle's bytes (0, 32, 64 or 128)."""

    start: int
    leading: int
    stride: int
    swizzle: int

    def __str__(self) -> str:
        swizzle = f"swizzled by {self.swizzle} B" if self.swizzle else "not swizzled"
        return f"start {self.start:#x}, leading {self.leading} B, stride {self.stride} B, {swizzle}"


@lru_cache(maxsize=4096)
def decode(bits: int) -> MatrixDescriptor:
    """Decode the 64 ``bits`` of a descriptor.

    A swizzle applies to addresses, so a tile may start at any row of its pattern: an H200 reads it correctly, but
    incorrectly with a base offset. Raises ``DescriptorError`` for reserved bits and for a base offset.
    """
    if bits & _RESERVED:
        raise DescriptorError(f"its reserved bits {bits & _RESERVED:#x} are set")
    if bits & _BASE_OFFSET:
        raise DescriptorError(
            f"its base offset is {bits >> 49 & 7}; the hardware then reads other bytes than the tile has"
        )
    return MatrixDescriptor(
        start=(bits & _FIELD) << 4,
        leading=(bits >> 16 & _FIELD) << 4,
        stride=(bits >> 32 & _FIELD) << 4,
        swizzle=_SPANS[bits >> 62],
    )


def chunks(descriptor: MatrixDescriptor, rows: int, *, mn_major: bool) -> Ints:
    """Return the chunks of shared memory, by address // 16, of an operand with ``rows`` rows.

    K-major: int64[rows, 2], the two halves of K. MN-major, only for elements of 16 bits: int64[16, rows / 8], for each
    k the chunks of 8 rows.
    """
    start, phase = divmod(descriptor.start, _PERIOD)
    return _pattern(replace(descriptor, start=phase), rows, mn_major=mn_major) + start * (_PERIOD // CHUNK)


@lru_cache(maxsize=1024)
def _pattern(descriptor: MatrixDescriptor, rows: int, *, mn_major: bool) -> Ints:
    """Return the chunks of an operand that starts within the first 1024 bytes, after which patterns repeat."""
    leading, stride, swizzle = descriptor.leading, descriptor.stride, descriptor.swizzle
    if mn_major:
        k, across = np.arange(_K_ROWS)[:, None], np.arange(rows // _CORE_ROWS)
        width = max(swizzle // CHUNK, 1)
        row = k % _CORE_ROWS * max(swizzle, CHUNK)
        if swizzle:
            address = row + k // _CORE_ROWS * stride + across % width * CHUNK + across // width * leading
        else:
            address = row + k // _CORE_ROWS * leading + across * stride
    else:
        row, half = np.arange(rows)[:, None], np.arange(_K_CHUNKS)
        step = CHUNK if swizzle else leading
        address = row % _CORE_ROWS * max(swizzle, CHUNK) + row // _CORE_ROWS * stride + half * step
    address = address + descriptor.start
    if swizzle:
        address ^= (address >> 7 & (swizzle // CHUNK - 1)) << 4
    chunk = address // CHUNK
    chunk.flags.writeable = False
    return chunk
