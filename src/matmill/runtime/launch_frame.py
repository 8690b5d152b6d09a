"""Launches in memory in the driver's format, so that a call only writes what differs from the last one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct as Packer
from typing import Any, NamedTuple

from matmill.arch import Arch
from matmill.errors import LaunchError
from matmill.kernel import ceil_div
from matmill.launch import HOPPER, Encode, Launch, Pointer, TensorMap, in_memory, size_and_alignment

#: The largest alignment of a parameter: a tensor map's.
_ALIGN = TensorMap.ALIGN
#: Bytes of all parameters of a kernel, since Volta and CUDA 12.1 (CUDA C++ programming guide, "__global__ Function
#: Parameters").
_MOST_BYTES = 32764
# CUlaunchAttributeID of the CUDA driver API: CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION,
# PREFERRED_SHARED_MEMORY_CARVEOUT.
_CLUSTER, _PDL, _CARVEOUT = 4, 6, 14

#: Writes the address that an encoded map begins with (``matmill.tensor_map``).
_write_address = Packer("=Q").pack_into


class _Layout(NamedTuple):
    """The slots of a launch's parameters: the name of a pointer that shares one, or an offset from the first.

    ``size`` is the bytes of all slots, ``parameters`` those that the kernel takes. ``write`` writes the bytes of
    parameters without a name.
    """

    slots: tuple[str | int, ...]
    size: int
    parameters: int
    write: Callable[..., None]


@lru_cache(maxsize=1024)
def _layout(kinds: tuple[str | tuple[int, int], ...]) -> _Layout:
    """Lay out parameters by their names, or sizes and alignments: once for all launches that have such."""
    slots: list[str | int] = []
    form, end, total = "=", 0, 0
    for kind in kinds:
        if isinstance(kind, str):
            slots.append(kind)
            total += 8
        else:
            size, align = kind
            start = ceil_div(end, align) * align
            slots.append(start)
            form += f"{start - end}x{size}s"
            end = start + size
            total += size
    return _Layout(tuple(slots), ceil_div(end, _ALIGN) * _ALIGN, total, Packer(form).pack_into)


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
        layouts = [
            _layout(
                tuple(
                    arg.name if isinstance(arg, Pointer) and arg.name in names else size_and_alignment(arg)
                    for arg in launch.args
                )
            )
            for launch in launches
        ]
        first = ceil_div(8 * len(names), _ALIGN) * _ALIGN
        self._buffer = ctypes.create_string_buffer(first + sum(layout.size for layout in layouts) + _ALIGN)
        self._first = -ctypes.addressof(self._buffer) % _ALIGN
        self._write = Packer(f"={len(names)}Q").pack_into
        self._configs = [_LaunchConfig(launch.grid, launch.block, reserved_shared(launch, arch)) for launch in launches]
        self._stream = 0
        self._attributes = [
            _attributes(launch, arch) for launch in launches
        ]  # kept alive, because configs point to them
        for attributes, config in zip(self._attributes, self._configs, strict=True):
            config.attributes, config.attribute_count = ctypes.addressof(attributes), len(attributes)
        self._arrays, free = [], self._first + first
        for launch, layout in zip(launches, layouts, strict=True):
            self._arrays.append(self._filled(launch, layout, free, names))
            free += layout.size
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
                data = self._checked(tensor, address)
                ctypes.memmove(ctypes.addressof(self._buffer) + offset, data, TensorMap.NBYTES)
            else:  # in a tenth of the time
                _write_address(self._buffer, offset, start)
            self._encoded[offset] = address
        if stream != self._stream:
            self._stream = stream
            for config in self._configs:
                config.stream = stream

    def _filled(self, launch: Launch, layout: _Layout, free: int, names: Sequence[str]) -> ctypes.Array[Any]:
        """Return the addresses of a launch's slots, which begin at an offset; write all but those of ``names``."""
        if layout.parameters > _MOST_BYTES:
            raise LaunchError(
                argument=f"launch {launch}",
                got=f"{layout.parameters} bytes of parameters",
                wanted=f"at most {_MOST_BYTES}",
                fix="Pass a pointer to the larger ones.",
            )
        start, data, slots = ctypes.addressof(self._buffer), [], []
        for arg, slot in zip(launch.args, layout.slots, strict=True):
            if isinstance(slot, str):
                slots.append(start + self._first + 8 * names.index(slot))
                continue
            slots.append(start + free + slot)
            if isinstance(arg, TensorMap) and arg.pointer.name in names:
                self._maps.append((free + slot, names.index(arg.pointer.name), arg))
                data.append(b"")
            else:
                data.append(in_memory(arg, self._checked))
        layout.write(self._buffer, free, *data)
        return (ctypes.c_void_p * max(1, len(slots)))(*slots)

    def _checked(self, tensor: TensorMap, address: int) -> bytes:
        """Encode a tensor map, whose size a slot has."""
        data = self._encode(tensor, address)
        if len(data) != TensorMap.NBYTES:
            raise LaunchError(
                argument="a parameter",
                got=f"{len(data)} bytes",
                wanted=f"the {TensorMap.NBYTES} of its slot",
                fix="A tensor map is encoded in 128 bytes; other sizes follow from the argument's type.",
            )
        return data


def _no_encoder(tensor: TensorMap, _address: int) -> bytes:
    raise LaunchError(
        argument=f"tensor map of {tensor.pointer.name}",
        got="a frame without an encoder",
        wanted="a GPU of compute capability 9.0 or newer",
        fix="Choose a kernel without TMA.",
    )


def reserved_shared(launch: Launch, arch: Arch | None) -> int:
    """Return the bytes of dynamic shared memory with which a launch is made on ``arch``."""
    if launch.even and launch.pdl and arch is not None and arch.capability >= HOPPER:
        return arch.even_shared(launch.blocks, launch.dynamic_shared)
    return launch.dynamic_shared


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
