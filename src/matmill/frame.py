"""Launches in memory as the driver reads them, so that what changes from call to call is all that a call must write."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct

from matmill.arch import Arch
from matmill.execute import STARTS_EARLY, Launch, Pointer
from matmill.kernel import ceil_div

_SLOT = 8  # bytes of a value's place: no kernel of ours takes larger parameters
_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_CARVEOUT = 14  # CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute`` of the CUDA driver API: an id, and a number at the start of 64 bytes."""

    _fields_ = (("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint), ("rest", ctypes.c_uint * 15))


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

    Every value has a place, and every launch an array of the places of its parameters, in their order. Pointers with
    one of ``names`` share one place by name, which :meth:`aim` writes; all else is written once. ``calls`` has, for
    each launch, the addresses of its ``CUlaunchConfig`` and of its array. ``arch`` is the GPU that they are for: those
    that may start early do so where it can, and shared memory is kept for the blocks alone that each of its
    multiprocessors gets, see ``Launch.resident``.

    A frame serves one launch at a time: threads that launch at the same time need one each. The driver has read it
    when the launch returns.
    """

    def __init__(self, launches: Sequence[Launch], names: Sequence[str] = (), arch: Arch | None = None) -> None:
        count = len(names) + sum(len(launch.args) for launch in launches)
        self._values = ctypes.create_string_buffer(max(1, count) * _SLOT)
        first = ctypes.addressof(self._values)
        shared = {name: first + place * _SLOT for place, name in enumerate(names)}
        self._write = Struct(f"={len(names)}Q").pack_into
        self._configs = [_LaunchConfig(launch.grid, launch.block, launch.dynamic_shared) for launch in launches]
        self._stream = 0
        self._attributes = [_attributes(launch, arch) for launch in launches]  # for as long as configs point to them
        for attributes, config in zip(self._attributes, self._configs, strict=True):
            config.attributes, config.attribute_count = ctypes.addressof(attributes), len(attributes)
        self._arrays = []
        free = first + len(names) * _SLOT
        for launch in launches:
            places = []
            for arg in launch.args:
                if isinstance(arg, Pointer) and arg.name in shared:
                    places.append(shared[arg.name])
                    continue
                value = arg.address.to_bytes(_SLOT, "little") if isinstance(arg, Pointer) else arg.tobytes()
                ctypes.memmove(free, value, len(value))
                places.append(free)
                free += _SLOT
            self._arrays.append((ctypes.c_void_p * max(1, len(places)))(*places))
        self.calls = tuple(
            (ctypes.addressof(config), ctypes.addressof(array))
            for config, array in zip(self._configs, self._arrays, strict=True)
        )

    def aim(self, addresses: Sequence[int], stream: int) -> None:
        """Sets what the pointers of ``names`` point to, in their order, and the stream with that handle."""
        self._write(self._values, 0, *addresses)
        if stream != self._stream:
            self._stream = stream
            for config in self._configs:
                config.stream = stream


def _attributes(launch: Launch, arch: Arch | None) -> ctypes.Array[_Attribute]:
    """What ``launch`` asks of a driver for ``arch`` besides its shape."""
    found: dict[int, int] = {}
    if arch is not None:
        if launch.early and arch.capability >= STARTS_EARLY:
            found[_EARLY] = 1
        blocks = ceil_div(launch.blocks, arch.sms)
        kept = arch.carveout(blocks, launch.dynamic_shared) if blocks <= launch.resident else None
        if kept is not None:
            found[_CARVEOUT] = 100 * kept // arch.shared_per_sm  # which the driver rounds up to what there is
    return (_Attribute * len(found))(*(_Attribute(id=name, value=value) for name, value in found.items()))
