"""What a kernel launch is, independent of where it runs.

A :class:`Launch` is plain data: the CUDA executor (``runtime.gpu``) and the PTX emulator (``emulator``) take the same
record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np

from matmill.errors import ArgumentError

Dim3: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Pointer:
    """An address in the address space of the executor that made it, with the name to use in messages."""

    name: str
    address: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor for TMA, as ``cuTensorMapEncodeTiled`` takes it (CUDA driver API, "Tensor Map Object Management").

    ``element`` is a row of its data types in lower case, such as ``"float16"``. ``sizes`` and ``box`` count elements of
    each dimension, the contiguous one first; ``strides`` are bytes, of every dimension but the first. ``swizzle`` is 0
    or the 32, 64 or 128 bytes within which the 16-byte chunks of the box are exchanged in shared memory.

    The 128 bytes that the device reads hold the tensor's address, so an executor encodes them for each launch.
    """

    NBYTES: ClassVar[int] = 128
    ALIGN: ClassVar[int] = 64

    pointer: Pointer
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


Value: TypeAlias = "Pointer | TensorMap | np.generic"
#: From a tensor map and the address of its tensor to the bytes that the device reads.
Encode: TypeAlias = Callable[[TensorMap, int], bytes]


def size_and_alignment(value: Argument) -> tuple[int, int]:
    """Bytes of a parameter and what its address must be a multiple of.

    >>> size_and_alignment(np.float64(0)), size_and_alignment(Pointer("A", 0))
    ((8, 8), (8, 8))
    """
    if isinstance(value, Struct):
        return value.nbytes, value.align
    if isinstance(value, TensorMap):
        return TensorMap.NBYTES, TensorMap.ALIGN
    size = 8 if isinstance(value, Pointer) else value.nbytes
    return size, size


@dataclass(frozen=True)
class Struct:
    r"""A struct that a kernel takes by value: named fields in order, each at the next multiple of its alignment.

    That is where C++ puts them, and where :class:`~matmill.parameters.Parameters` asserts that they are.

    >>> args = Struct((("m", np.int32(3)), ("A", Pointer("A", 4096)), ("alpha", np.float32(1))))
    >>> args.offsets, args.nbytes, args.align
    ({'m': 0, 'A': 8, 'alpha': 16}, 24, 8)
    >>> args["m"], args.data[:4]
    (np.int32(3), b'\x03\x00\x00\x00')
    """

    fields: tuple[tuple[str, Value], ...]

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each field begins, in bytes."""
        found, end = {}, 0
        for name, value in self.fields:
            size, align = size_and_alignment(value)
            found[name] = -(-end // align) * align
            end = found[name] + size
        return found

    @cached_property
    def align(self) -> int:
        """What the struct's address must be a multiple of."""
        return max((size_and_alignment(value)[1] for _, value in self.fields), default=1)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the struct, a multiple of its alignment."""
        name, value = self.fields[-1]
        return -(-(self.offsets[name] + size_and_alignment(value)[0]) // self.align) * self.align

    @property
    def data(self) -> bytes:
        """The struct in memory, padding as zeros.

        Raises :class:`~matmill.errors.ArgumentError` where there is a tensor map, which :meth:`encoded` takes.
        """
        return self.encoded(_unencoded)

    def encoded(self, encode: Encode) -> bytes:
        """The struct in memory, with tensor maps as ``encode`` makes them."""
        data = bytearray(self.nbytes)
        for name, value in self.fields:
            part = in_memory(value, encode)
            data[self.offsets[name] : self.offsets[name] + len(part)] = part
        return bytes(data)

    def __getitem__(self, name: str) -> Value:
        return dict(self.fields)[name]


Argument: TypeAlias = "Struct | Pointer | TensorMap | np.generic"
#: The first compute capability with programmatic dependent launch, with clusters and with tensor maps (CUDA
#: programming guide).
HOPPER = (9, 0)


def in_memory(value: Argument, encode: Encode) -> bytes:
    """A parameter as the device reads it: little-endian, and tensor maps as ``encode`` makes them."""
    if isinstance(value, Struct):
        return value.encoded(encode)
    if isinstance(value, TensorMap):
        return encode(value, value.pointer.address)
    return value.address.to_bytes(8, "little") if isinstance(value, Pointer) else value.tobytes()


def _unencoded(tensor: TensorMap, _address: int) -> bytes:
    raise ArgumentError(
        argument=f"tensor map of {tensor.pointer.name}",
        got="a launch whose executor encodes none",
        wanted="pointers, numbers, or structs of them",
        fix="Run the kernel on a GPU of compute capability 9.0 or newer.",
    )


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block in blocks and threads, shared memory in bytes.

    ``args`` follow the entry point's parameters in order: one :class:`Struct` for kernels that declare
    :class:`~matmill.parameters.Parameters`; else pointers, NumPy scalars of the parameter's exact type, and tensor
    maps. ``cluster`` is the blocks of one thread block cluster along each axis of the grid, which it divides.
    ``pdl`` asks for programmatic dependent launch: the kernel may start while the launch before it on the stream still
    runs, and waits for its end itself (``ptx/dependent_launch.cuh``). ``resident`` is the number of blocks per
    SM that the kernel is made for: where the launch has no more per SM, shared memory is reserved for those that it
    has, and the rest is L1 cache. 0 leaves that to the driver, which reserves it for as many blocks as registers allow.
    """

    kernel: str
    entry: str
    grid: Dim3
    block: Dim3
    args: tuple[Argument, ...]
    dynamic_shared: int = 0
    pdl: bool = False
    resident: int = 0
    cluster: Dim3 = (1, 1, 1)

    @property
    def threads_per_block(self) -> int:
        """Threads in one block."""
        x, y, z = self.block
        return x * y * z

    @property
    def blocks(self) -> int:
        """Blocks in the grid."""
        x, y, z = self.grid
        return x * y * z

    def __str__(self) -> str:
        cluster = f", cluster {self.cluster}" if self.cluster != (1, 1, 1) else ""
        return f"{self.kernel}<<<grid {self.grid}, block {self.block}{cluster}, {self.dynamic_shared} B shared>>>"
