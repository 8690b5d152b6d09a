"""Launches in memory as the driver reads them, so that what changes from call to call is all that a call must write."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct as Packer

from matmill.arch import Arch
from matmill.errors import LaunchError
from matmill.kernel import ceil_div
from matmill.launch import HOPPER, Encode, Launch, Pointer, TensorMap, in_memory, size_and_alignment

#: The largest alignment of a parameter, that of a tensor map.
_ALIGN = TensorMap.ALIGN
#: Bytes of all parameters of a kernel (CUDA C++ programming guide, "__global__ Function Parameters").
_MOST_BYTES = 4096
# CUlaunchAttributeID of the CUDA driver API: CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION,
# PREFERRED_SHARED_MEMORY_CARVEOUT.
_CLUSTER, _PDL, _CARVEOUT = 4, 6, 14


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
    """Launches that follow each other, with their parameters.

    Every argument has a slot of its own size and alignment. ``bind(addresses, stream)`` writes the pointers with one of
    ``names``, given a tuple of their addresses, and the stream with that handle. Tensor maps of such pointers are
    encoded anew by it where the address is another one; all else is written once. ``calls`` has, for each launch, the
    addresses of its ``CUlaunchConfig`` and of its array of slots.
    ``arch`` is the GPU that they are for: launches with ``pdl`` overlap the one before them where it can, and shared
    memory is kept only for the blocks that each of its SMs gets, see ``Launch.resident``. ``encode`` makes
    the bytes of a tensor map.

    A frame serves one launch at a time: threads that launch at the same time need one each. The driver has read it
    when the launch returns.

    Raises :class:`~matmill.errors.LaunchError` for parameters that a kernel cannot have.
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        names: Sequence[str] = (),
        arch: Arch | None = None,
        encode: Encode | None = None,
    ) -> None:
        slots = [_slots(launch, names) for launch in launches]
        size = sum(end for _, end in slots)
        self._buffer = ctypes.create_string_buffer(size + _ALIGN)
        self._first = -ctypes.addressof(self._buffer) % _ALIGN
        self._configs = [_LaunchConfig(launch.grid, launch.block, launch.dynamic_shared) for launch in launches]
        self._stream = 0
        self._names = names
        self._attributes = [_attributes(launch, arch) for launch in launches]  # for as long as configs point to them
        for attributes, config in zip(self._attributes, self._configs, strict=True):
            config.attributes, config.attribute_count = ctypes.addressof(attributes), len(attributes)
        self._encode = encode or _no_encoder
        self._maps: list[tuple[int, int, TensorMap]] = []  # offset, index of the name, and what to encode
        self._encoded: dict[int, tuple[int, bytes]] = {}  # addresses and maps by offset
        self._arrays = []
        bound: dict[int, int] = {}  # indices of names by offset
        start = self._first
        for launch, (offsets, end) in zip(launches, slots, strict=True):
            bound |= self._place(launch, [start + offset for offset in offsets], names)
            first = ctypes.addressof(self._buffer) + start
            self._arrays.append((ctypes.c_void_p * max(1, len(offsets)))(*(first + offset for offset in offsets)))
            start += end
        self.bind = self._binder(bound)
        self.calls = tuple(
            (ctypes.addressof(config), ctypes.addressof(array))
            for config, array in zip(self._configs, self._arrays, strict=True)
        )

    def _binder(self, bound: dict[int, int]) -> Callable[[tuple[int, ...], int], None]:
        """``Frame.bind``; ``bound`` has the indices of names by offset.

        One call writes all pointers, and the constants between them again: a second call would take as long.
        """
        buffer, maps, runs = self._buffer, self._maps, _runs(bound)
        layout, end = "=", 0
        indices: list[int] = []
        between: list[bytes] = []
        for offset, run in runs:
            if indices:
                layout += f"{offset - end}s"
                indices.append(len(self._names) + len(between))
                between.append(buffer.raw[end:offset])
            layout += f"{len(run)}Q"
            indices += run
            end = offset + 8 * len(run)
        first, constants, write = runs[0][0] if runs else 0, tuple(between), Packer(layout).pack_into
        whole = indices == list(range(len(self._names)))
        pick: Callable[[tuple[object, ...]], tuple[object, ...]] = (
            itemgetter(*indices) if len(indices) > 1 else lambda values: tuple(values[i] for i in indices)
        )

        def bind(addresses: tuple[int, ...], stream: int) -> None:
            write(buffer, first, *(addresses if whole else pick(addresses + constants if constants else addresses)))
            if maps:
                self._write_maps(addresses)
            if stream != self._stream:
                self._stream = stream
                for config in self._configs:
                    config.stream = stream

        return bind

    def _write_maps(self, addresses: Sequence[int]) -> None:
        for offset, index, tensor in self._maps:
            address, data = self._encoded.get(offset, (None, b""))
            if address != addresses[index]:
                data = self._encode(tensor, addresses[index])
                self._encoded[offset] = addresses[index], data
            self._put(offset, data, TensorMap.NBYTES)

    def _place(self, launch: Launch, offsets: Sequence[int], names: Sequence[str]) -> dict[int, int]:
        """Writes a launch's arguments to their slots; the indices of the names that ``bind`` writes, by offset."""
        bound: dict[int, int] = {}  # indices of names by offset
        for value, offset in zip(launch.args, offsets, strict=True):
            pointer = value.pointer if isinstance(value, TensorMap) else value
            if not (isinstance(pointer, Pointer) and pointer.name in names):
                self._put(offset, in_memory(value, self._encode), size_and_alignment(value)[0])
            elif isinstance(value, TensorMap):
                self._maps.append((offset, names.index(pointer.name), value))
            else:
                bound[offset] = names.index(pointer.name)
        return bound

    def _put(self, offset: int, data: bytes, size: int) -> None:
        if len(data) != size:
            raise LaunchError(
                argument="a parameter",
                got=f"{len(data)} bytes",
                wanted=f"the {size} of its slot",
                fix="A tensor map is encoded in 128 bytes; other sizes follow from the argument's type.",
            )
        ctypes.memmove(ctypes.addressof(self._buffer) + offset, data, size)


def _slots(launch: Launch, names: Sequence[str]) -> tuple[list[int], int]:
    """Where the launch's arguments go from its first byte on, and the bytes of all, a multiple of any alignment.

    Pointers with one of ``names`` come first, in that order, so that one write sets them all.
    """
    ranks = {name: rank for rank, name in enumerate(names)}

    def rank(index: int) -> int:
        arg = launch.args[index]
        return ranks.get(arg.name, len(names)) if isinstance(arg, Pointer) else len(names)

    order = sorted(range(len(launch.args)), key=rank)
    offsets, end, total = [0] * len(order), 0, 0
    for i in order:
        size, align = size_and_alignment(launch.args[i])
        offsets[i] = ceil_div(end, align) * align
        end = offsets[i] + size
        total += size
    if total > _MOST_BYTES:
        raise LaunchError(
            argument=f"launch {launch}",
            got=f"{total} bytes of parameters",
            wanted=f"at most {_MOST_BYTES}",
            fix="Pass a pointer to the larger ones.",
        )
    return offsets, ceil_div(end, _ALIGN) * _ALIGN


def _runs(bound: dict[int, int]) -> list[tuple[int, list[int]]]:
    """Where pointers begin that follow each other, and the indices of their names; ``bound`` has these by offset."""
    runs: list[tuple[int, list[int]]] = []
    for offset, index in sorted(bound.items()):
        if runs and offset == runs[-1][0] + 8 * len(runs[-1][1]):
            runs[-1][1].append(index)
        else:
            runs.append((offset, [index]))
    return runs


def _no_encoder(tensor: TensorMap, _address: int) -> bytes:
    raise LaunchError(
        argument=f"tensor map of {tensor.pointer.name}",
        got="a frame without an encoder",
        wanted="a GPU of compute capability 9.0 or newer",
        fix="Choose a kernel without TMA.",
    )


def _attributes(launch: Launch, arch: Arch | None) -> ctypes.Array[_Attribute]:
    """What ``launch`` asks of a driver for ``arch`` besides its shape."""
    found: dict[int, tuple[int, ...]] = {}
    if launch.cluster != (1, 1, 1):
        found[_CLUSTER] = launch.cluster
    if arch is not None:
        if launch.pdl and arch.capability >= HOPPER:
            found[_PDL] = (1,)
        blocks = ceil_div(launch.blocks, arch.sms)
        kept = arch.carveout(blocks, launch.dynamic_shared) if blocks <= launch.resident else None
        if kept is not None:
            found[_CARVEOUT] = (100 * kept // arch.shared_per_sm,)  # which the driver rounds up to what there is
    attributes = (_Attribute * len(found))()
    for attribute, (name, values) in zip(attributes, found.items(), strict=True):
        attribute.id = name
        attribute.value[: len(values)] = values
    return attributes
