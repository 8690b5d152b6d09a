"""A frame read back as the driver reads it: by addresses alone."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np

from matmill.launch import Argument, Launch, Pointer, Struct, TensorMap
from matmill.tensor_map import decode


def read_launch(config: int, parameters: int, like: Launch) -> tuple[Launch, int]:
    """Return the launch at these addresses, and its stream; ``like`` says which types its parameters have.

    ``pdl`` is whether it has the attribute of programmatic dependent launch.
    """
    numbers = (ctypes.c_uint * 7).from_address(config)
    stream = ctypes.c_uint64.from_address(config + 32).value
    pdl = read_attributes(config).get(6) == 1  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    addresses = (ctypes.c_uint64 * len(like.args)).from_address(parameters)
    args = tuple(_read(address, arg) for address, arg in zip(addresses, like.args, strict=True))
    shape = [int(number) for number in numbers]
    grid, block = (shape[0], shape[1], shape[2]), (shape[3], shape[4], shape[5])
    return replace(like, grid=grid, block=block, dynamic_shared=shape[6], args=args, pdl=pdl), stream


def read_attributes(config: int) -> dict[int, int]:
    """Return values of the launch's attributes by their ids.

    Each takes 72 bytes, the value behind 4 bytes of padding.
    """
    attributes, count = (ctypes.c_uint64 * 2).from_address(config + 40)
    result = [(ctypes.c_uint * 3).from_address(attributes + 72 * i) for i in range(count & 0xFFFFFFFF)]
    return {numbers[0]: numbers[2] for numbers in result}


def _read(place: int, like: Argument) -> Argument:
    if isinstance(like, Struct):
        return Struct(ctypes.string_at(place, len(like.data)), like.align)
    if isinstance(like, TensorMap):
        return decode(ctypes.string_at(place, TensorMap.NBYTES), like.pointer.name)
    if isinstance(like, Pointer):
        return Pointer(like.name, ctypes.c_uint64.from_address(place).value)
    result: np.generic = np.frombuffer(ctypes.string_at(place, like.itemsize), like.dtype)[0]
    return result
