"""A frame read back as the driver reads it: by addresses alone."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np

from matmill.execute import Argument, Launch, Pointer


def read_launch(config: int, parameters: int, like: Launch) -> tuple[Launch, int]:
    """The launch at these addresses, and its stream; ``like`` says which types its parameters have.

    ``early`` is whether it has the one attribute of early launches.
    """
    numbers = (ctypes.c_uint * 7).from_address(config)
    stream, attributes, count = (ctypes.c_uint64 * 3).from_address(config + 32)
    early = bool(count & 0xFFFFFFFF)
    if early:  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, its value behind 4 bytes of padding
        assert count & 0xFFFFFFFF == 1
        assert (ctypes.c_uint * 3).from_address(attributes)[::2] == [6, 1]
    places = (ctypes.c_uint64 * len(like.args)).from_address(parameters)
    args = tuple(_read(place, arg) for place, arg in zip(places, like.args, strict=True))
    shape = [int(number) for number in numbers]
    grid, block = (shape[0], shape[1], shape[2]), (shape[3], shape[4], shape[5])
    return replace(like, grid=grid, block=block, dynamic_shared=shape[6], args=args, early=early), stream


def _read(place: int, like: Argument) -> Argument:
    if isinstance(like, Pointer):
        return Pointer(like.name, ctypes.c_uint64.from_address(place).value)
    found: np.generic = np.frombuffer(ctypes.string_at(place, like.itemsize), like.dtype)[0]
    return found
