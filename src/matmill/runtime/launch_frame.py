"""Launches in memory in the driver's format, so that a call only writes what differs from the last one."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct as Packer

from matmill.arch import Arch
from matmill.errors import LaunchError
from matmill.kernel import ceil_div
from matmill.launch import HOPPER, Argument, Encode, Launch, Pointer, TensorMap, in_memory, size_and_alignment

#: The largest alignment of a parameter: a tensor map's.
_ALIGN = TensorMap.ALIGN
#: Bytes of all parameters of a kernel (CUDA C++ programming guide, "__global__ Function Parameters").
_MOST_BYTES = 4096
# CUlaunchAttributeID of the CUDA driver API: CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION,
# PREFERRED_SHARED_MEMORY_CARVEOUT.
_CLUSTER, _PDL, _CARVEOUT = 4, 6, 14

#: Writes the address that an encoded map begins with (``matmill.tensor_map``).
_write_address = Packer("=Q").pack_into


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` of the CUDA driver API: an id, and up to three numbers at the start of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_uint * 13),
    )


class _LaunchConfig(ctypes.Structure):
    """``CUlaunchConfig`` of the CUDA driver API."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Frame:
    """Consecutive launches, with their parameters.

    Every value has a slot of its size and alignment, and every launch an array with the addresses of its parameters'
    slots. Pointers with one of ``names`` share one slot per name, which :meth:`bind` writes. It also writes the address
    into their tensor maps if it has changed. All other slots are written once. ``calls`` has, for each launch, the
    addresses of its ``CUlaunchConfig`` and of its array. ``arch`` is the GPU of the launches: those with ``pdl``
    overlap their predecessor if it supports that, and ``Launch.resident`` is applied to its number of SMs. ``encode``
    returns the bytes of a tensor map.

    A frame serves one launch at a time: threads that launch concurrently need one each. When a launch returns, the
    driver has read it.

    Raises :class:`~matmill.errors.LaunchError` for parameters that a kernel cannot have.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        names: Sequence[str] = (),
        arch: Arch | None = None,
        encode: Encode | None = None,
    ) -> None:
        self._encode = encode or _no_encoder
        self._maps: list[tuple[int, int, TensorMap]] = []  # offset, index of the name, and the tensor map
        self._encoded: dict[int, int] = {}  # the address for which the map at an offset was encoded
        size = 8 * len(names) + sum(_slot_bytes(launch) for launch in launches)
        self._buffer = ctypes.create_string_buffer(size + _ALIGN)
        self._first = -ctypes.addressof(self._buffer) % _ALIGN
        self._write = Packer(f"={len(names)}Q").pack_into
        self._free = self._first + 8 * len(names)
        self._configs = [_LaunchConfig(launch.grid, launch.block, launch.dynamic_shared) for launch in launches]
        self._stream = 0
        self._attributes = [
            _attributes(launch, arch) for launch in launches
        ]  # kept alive, because configs point to them
        for attributes, config in zip(self._attributes, self._configs, strict=True):
            config.attributes, config.attribute_count = ctypes.addressof(attributes), len(attributes)
        start = ctypes.addressof(self._buffer)
        slots = [[start + self._slot(arg, names) for arg in launch.args] for launch in launches]
        self._arrays = [(ctypes.c_void_p * max(1, len(own)))(*own) for own in slots]
        self.calls = tuple(
            (ctypes.addressof(config), ctypes.addressof(array))
            for config, array in zip(self._configs, self._arrays, strict=True)
        )

    def bind(self, addresses: Sequence[int], stream: int) -> None:
        """Set the addresses of the pointers in ``names``, in order, and the stream's handle."""
        self._write(self._buffer, self._first, *addresses)
        for offset, index, tensor in self._maps:
            address, known = addresses[index], self._encoded.get(offset)
            if address == known:
                continue
            start = address + tensor.first
            if known is None or start % _ALIGN:  # the encoder checks what is less aligned than any map demands
                self._put(offset, self._encode(tensor, address), TensorMap.NBYTES)
            else:  # in a tenth of the time
                _write_address(self._buffer, offset, start)
            self._encoded[offset] = address
        if stream != self._stream:
            self._stream = stream
            for config in self._configs:
                config.stream = stream

    def _slot(self, arg: Argument, names: Sequence[str]) -> int:
        """Return the offset of the argument's slot, and write the slot unless :meth:`bind` will."""
        if isinstance(arg, Pointer) and arg.name in names:
            return self._first + 8 * names.index(arg.name)
        size, align = size_and_alignment(arg)
        offset = ceil_div(self._free - self._first, align) * align + self._first
        self._free = offset + size
        if isinstance(arg, TensorMap) and arg.pointer.name in names:
            self._maps.append((offset, names.index(arg.pointer.name), arg))
        else:
            self._put(offset, in_memory(arg, self._encode), size)
        return offset

    def _put(self, offset: int, data: bytes, size: int) -> None:
        if len(data) != size:
            raise LaunchError(
                argument="a parameter",
                got=f"{len(data)} bytes",
                wanted=f"the {size} of its slot",
                fix="A tensor map is encoded in 128 bytes; other sizes follow from the argument's type.",
            )
        ctypes.memmove(ctypes.addressof(self._buffer) + offset, data, size)


def _slot_bytes(launch: Launch) -> int:
    """Return an upper bound of the bytes of a launch's parameters, each at a multiple of its alignment."""
    sizes = [size_and_alignment(arg) for arg in launch.args]
    total = sum(size for size, _ in sizes)
    if total > _MOST_BYTES:
        raise LaunchError(
            argument=f"launch {launch}",
            got=f"{total} bytes of parameters",
            wanted=f"at most {_MOST_BYTES}",
            fix="Pass a pointer to the larger ones.",
        )
    return sum(size + align for size, align in sizes)


def _no_encoder(tensor: TensorMap, _address: int) -> bytes:
    raise LaunchError(
        argument=f"tensor map of {tensor.pointer.name}",
        got="a frame without an encoder",
        wanted="a GPU of compute capability 9.0 or newer",
        fix="Choose a kernel without TMA.",
    )


def _attributes(launch: Launch, arch: Arch | None) -> ctypes.Array[_Attribute]:
    """Return the launch attributes of ``launch`` on ``arch``."""
    result: dict[int, tuple[int, ...]] = {}
    if launch.cluster != (1, 1, 1):
        result[_CLUSTER] = launch.cluster
    if arch is not None:
        if launch.pdl and arch.capability >= HOPPER:
            result[_PDL] = (1,)
        blocks = ceil_div(launch.blocks, arch.sms)
        kept = arch.carveout(blocks, launch.dynamic_shared) if blocks <= launch.resident else None
        if kept is not None:
            result[_CARVEOUT] = (100 * kept // arch.shared_per_sm,)  # the driver rounds this up to a possible size
    attributes = (_Attribute * len(result))()
    for attribute, (name, values) in zip(attributes, result.items(), strict=True):
        attribute.id = name
        attribute.value[: len(values)] = values
    return attributes
