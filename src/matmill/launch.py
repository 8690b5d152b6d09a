"""Kernel launches as data, independent of where they run.

A :class:`Launch` is plain data: the CUDA executor (``runtime.gpu``) and the PTX emulator (``emulator``) take the same
record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Dim3: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True)
class Pointer:
    """An address in the address space of one executor, with a name for messages."""

    name: str
    address: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor for TMA, as ``cuTensorMapEncodeTiled`` takes it (CUDA driver API, "Tensor Map Object Management").

    ``element`` is a row of its data types in lower case, such as ``"float16"``; float32 data of type ``"tfloat32"`` is
    rounded as it is loaded. ``sizes`` and ``box`` count elements of each dimension, the contiguous one first;
    ``strides`` are bytes, of every dimension but the first. ``swizzle`` is 0 or the 32, 64 or 128 bytes within which
    the 16-byte chunks of the box are exchanged in shared memory. ``element_strides`` gives the step between copied
    elements for each dimension; empty means 1 everywhere, and the first dimension's counts only with ``interleave``.
    ``interleave`` is 0, or 16 or 32 for the bytes of neighbouring channels. ``promotion`` is 0, or the 64, 128 or 256
    bytes that L2 reads at once. Elements outside the tensor are loaded as NaN with ``nan_fill``, else as zeros. The
    tensor starts ``first`` bytes after the pointer's address.

    The 128 bytes that the device reads hold the tensor's address, so an executor encodes them for each launch
    (:func:`matmill.tensor_map.encode`).
    """

    NBYTES: ClassVar[int] = 128
    ALIGN: ClassVar[int] = 64

    pointer: Pointer
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0
    element_strides: tuple[int, ...] = ()
    interleave: int = 0
    promotion: int = 256
    nan_fill: bool = False
    first: int = 0

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * len(self.sizes))


@dataclass(frozen=True)
class Struct:
    """A struct that a kernel takes by value: its bytes and its alignment."""

    data: bytes
    align: int

    @classmethod
    def of(cls, *members: Pointer | np.generic) -> Struct:
        r"""Return the struct of these members, each at the next multiple of its size, as C++ lays them out.

        >>> Struct.of(np.int32(3), np.float64(0)).data[:8]
        b'\x03\x00\x00\x00\x00\x00\x00\x00'
        """
        values = [np.uint64(member.address) if isinstance(member, Pointer) else member for member in members]
        layout = np.dtype([(str(n), value.dtype) for n, value in enumerate(values)], align=True)
        record = np.zeros((), layout)
        for n, value in enumerate(values):
            record[str(n)] = value
        return cls(record.tobytes(), layout.alignment)


Value: TypeAlias = "Pointer | TensorMap | np.generic"
Argument: TypeAlias = "Value | Struct"
#: Encodes a tensor map: takes the map and the address of its tensor, returns the 128 bytes that the device reads.
Encode: TypeAlias = Callable[[TensorMap, int], bytes]


def size_and_alignment(value: Argument) -> tuple[int, int]:
    """Return a parameter's size and alignment in bytes.

    >>> size_and_alignment(np.float64(0)), size_and_alignment(Pointer("A", 0))
    ((8, 8), (8, 8))
    """
    if isinstance(value, Struct):
        return len(value.data), value.align
    if isinstance(value, TensorMap):
        return TensorMap.NBYTES, TensorMap.ALIGN
    size = 8 if isinstance(value, Pointer) else value.nbytes
    return size, size


def in_memory(value: Argument, encode: Encode) -> bytes:
    """Return a parameter as the device reads it: little-endian, and tensor maps encoded by ``encode``."""
    if isinstance(value, Struct):
        return value.data
    if isinstance(value, TensorMap):
        return encode(value, value.pointer.address)
    return value.address.to_bytes(8, "little") if isinstance(value, Pointer) else value.tobytes()


#: The first compute capability with programmatic dependent launch, with clusters and with tensor maps (CUDA
#: programming guide).
HOPPER = (9, 0)


# Most shared memory per block in KiB, by compute capability (CUDA programming guide, "Compute Capabilities").
_SHARED_PER_BLOCK = {
    (7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227,
    (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
#: Bytes of static shared memory that a block may have on every GPU.
STATIC_SHARED = 48 << 10


def shared_per_block(capability: tuple[int, int]) -> int:
    """Return the most bytes of shared memory per block for a compute capability, the least of all if it is unknown.

    >>> shared_per_block((9, 0)), shared_per_block((6, 1))
    (232448, 49152)
    """
    if capability < min(_SHARED_PER_BLOCK):
        return STATIC_SHARED
    return _SHARED_PER_BLOCK.get(capability, max(_SHARED_PER_BLOCK.values())) << 10


# The most blocks of a grid and threads of a block along x, y and z, on every GPU since compute capability 3.0 (CUDA
# programming guide, "Compute Capabilities").
_MOST = {"grid": (2**31 - 1, 65535, 65535), "block": (1024, 1024, 64)}


def why_not_shape(
    grid: Dim3, block: Dim3, dynamic: int, *, most_threads: int, most_shared: int, static: int = 0
) -> str | None:
    """Return why a GPU cannot launch this shape, or None.

    ``dynamic`` and ``static`` are a block's bytes of shared memory; their sum is at most ``most_shared``. A block has
    at most ``most_threads`` threads.

    >>> why_not_shape((1, 70000, 1), (256, 1, 1), 0, most_threads=1024, most_shared=49152)
    'grid.y = 70000 > 65535'
    """
    for name, extents in (("grid", grid), ("block", block)):
        for axis, extent, most in zip("xyz", extents, _MOST[name], strict=True):
            if not 1 <= extent <= most:
                return f"{name}.{axis} = {extent} " + ("< 1" if extent < 1 else f"> {most}")
    threads = prod(block)
    if threads > most_threads:
        return f"{threads} threads per block > {most_threads}"
    if dynamic < 0:
        return f"{dynamic} bytes of dynamic shared memory"
    shared = dynamic + static
    return f"shared memory {shared} > {most_shared} bytes per block" if shared > most_shared else None


Numbers = TypeVar("Numbers", int, NDArray[np.int64])


def coordinates(number: Numbers, shape: Dim3) -> tuple[Numbers, Numbers, Numbers]:
    """Convert a linear index, or an array of them, to x, y, z in a grid or block of ``shape``.

    >>> coordinates(7, (2, 3, 4))
    (1, 0, 1)
    """
    x, y, _ = shape
    return number % x, number // x % y, number // (x * y)


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid and block in blocks and threads, shared memory in bytes.

    ``args`` follow the entry point's parameters in order: pointers, NumPy scalars of the parameter's exact type,
    structs and tensor maps (:class:`~matmill.parameters.Parameters` gives them by name). ``cluster`` is the blocks of
    one thread block cluster along each axis of the grid, which it divides.
    ``pdl`` asks for programmatic dependent launch: the kernel may start while the launch before it on the stream still
    runs, and waits for its end itself (``ptx/dependent_launch.cuh``). ``resident`` is the number of blocks per
    SM that the kernel is made for: where the launch has no more per SM, shared memory is reserved for those that it
    has, and the rest is L1 cache. 0 leaves that to the driver, which reserves it for as many blocks as registers allow.
    ``even`` says that blocks are long and few: with ``pdl`` they start while blocks of the launch before still hold
    some SMs, and the others would get several. Shared memory is then reserved so that no SM holds more than its share.
    ``cooperative`` promises that all blocks run at once, so that ``grid.sync()`` may wait for them; only the emulator
    makes such launches.
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
    even: bool = False
    cooperative: bool = False

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
