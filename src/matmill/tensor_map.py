"""Tensor maps as bits: the 128 bytes that describe a tensor to TMA, encoded, decoded and changed without a driver.

The emulator and the GPU read the same bytes. The layout is that of ``cuTensorMapEncodeTiled`` (CUDA driver API, "Tensor
Map Object Management") on compute capability 9.0, which uses the first 64 bytes. :func:`encode` returns the driver's
bits (``tests/gpu/test_tensor_map_gpu.py``), followed by zeros, and refuses what the driver refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.errors import ArgumentError, EmulationError, unknown_name
from matmill.launch import Pointer, TensorMap


@dataclass(frozen=True)
class Element:
    """An element type of tensor maps: its code in PTX, its size in bytes, and whether it is floating point."""

    code: int
    itemsize: int
    floating: bool


#: Element types by the names of the driver's ``CUtensorMapDataType`` in lower case; their codes are those of
#: ``tensormap.replace``.
ELEMENTS = {
    "uint8": Element(0, 1, floating=False),
    "uint16": Element(1, 2, floating=False),
    "uint32": Element(2, 4, floating=False),
    "int32": Element(3, 4, floating=False),
    "uint64": Element(4, 8, floating=False),
    "int64": Element(5, 8, floating=False),
    "float16": Element(6, 2, floating=True),
    "float32": Element(7, 4, floating=True),
    "float32_ftz": Element(8, 4, floating=True),
    "float64": Element(9, 8, floating=True),
    "bfloat16": Element(10, 2, floating=True),
    "tfloat32": Element(11, 4, floating=True),
    "tfloat32_ftz": Element(12, 4, floating=True),
}
_NAMES = tuple(ELEMENTS)
# In a map the two tf32 types are the float32 types with one more bit set.
_FIRST_TF32 = ELEMENTS["tfloat32"].code
_TF32_TO_BITS = ELEMENTS["tfloat32"].code - ELEMENTS["float32"].code

_INTERLEAVES = (0, 16, 32)
_SWIZZLES = (0, 32, 64, 128)
_PROMOTIONS = (0, 64, 128, 256)
_MOST_DIMENSIONS = 5
_MOST_BOX = 256
_MOST_STEP = 8
#: The shared memory of a block, in bytes.
_MOST_BOX_BYTES = 227 * 1024
_ADDRESS_BITS = 57
_STRIDE_BITS = 40
_LABEL = "tensor map"
_NO_MAP = "If it should be a map at all, look at its address and at what was stored there."


@dataclass(frozen=True)
class _Field:
    """A bit field of a map that starts at bit ``at`` of its little-endian number."""

    at: int
    width: int

    def of(self, bits: int) -> int:
        return bits >> self.at & (1 << self.width) - 1

    def put(self, bits: int, value: int) -> int:
        return bits & ~((1 << self.width) - 1 << self.at) | value << self.at


def _fields(word: int, width: int, count: int, *, shift: int = 0, step: int = 0) -> tuple[_Field, ...]:
    """Return ``count`` fields, the first ``shift`` bits into 32-bit ``word``, each further one ``step`` bits later."""
    return tuple(_Field(32 * word + shift + i * (step or width), width) for i in range(count))


_ADDRESS = _Field(0, 64)
(_KIND,) = _fields(2, 4, 1)
(_RANK,) = _fields(2, 3, 1, shift=4)
(_ELEMENT,) = _fields(2, 4, 1, shift=7)
(_INTERLEAVE,) = _fields(2, 2, 1, shift=11)
(_SWIZZLE,) = _fields(2, 2, 1, shift=13)
(_NAN_FILL,) = _fields(2, 1, 1, shift=15)
(_TF32,) = _fields(2, 1, 1, shift=16)
(_PROMOTION,) = _fields(2, 2, 1, shift=17)
(_SWIZZLE_96,) = _fields(2, 1, 1, shift=22)
_STRIDE_LOW = _fields(3, 32, 4)
_STRIDE_HIGH = _fields(7, 4, 4)
_SIZE = _fields(8, 32, 5)
_STEP = _fields(13, 3, 5)
_BOX = (*_fields(13, 8, 1, shift=24), *_fields(14, 8, 4))
# Bit 21 of word 2 is not reserved: CuTe DSL sets it for large tensors, the driver never does, and both work.
_RESERVED = (
    *_fields(2, 2, 1, shift=19), *_fields(2, 9, 1, shift=23), *_fields(7, 16, 1, shift=16),
    *_fields(13, 9, 1, shift=15), *_fields(15, 32, 1),
)  # fmt: skip
#: Bits that the driver and CuTe DSL set in a tiled map.
_TILED = (0, 2)


def encode(tensor: TensorMap, address: int) -> bytes:
    """Return the 128 bytes for ``tensor`` at ``address``, which replaces the address of its own pointer.

    Raises :class:`~matmill.errors.ArgumentError` for what the driver refuses, and
    :class:`~matmill.errors.UnknownNameError` for another element type.
    """
    address += tensor.first
    _check_address(f"{_LABEL} of {tensor.pointer.name}", address, tensor.interleave)
    return (_shape_bits(tensor) | address).to_bytes(TensorMap.NBYTES, "little")


def encode_alike(
    tensor: TensorMap, addresses: NDArray[Any], sizes: tuple[NDArray[Any], ...], pitches: NDArray[Any]
) -> NDArray[np.uint8]:
    """Return the 128 bytes for many matrices like ``tensor``, one in each row.

    They differ in their ``addresses``, the ``sizes`` of the first dimensions, of which 0 counts as 1, and the elements
    from a row to the next, ``pitches``. Callers make sure that addresses and rows start on 16 bytes.
    """
    words = np.zeros((len(addresses), TensorMap.NBYTES // 4), "<u4")
    words[:] = np.frombuffer(_shape_bits(tensor).to_bytes(TensorMap.NBYTES, "little"), "<u4")
    words[:, :2] = addresses.astype("<u8").view("<u4").reshape(-1, 2)
    for field, size in zip(_SIZE, sizes, strict=False):
        words[:, field.at // 32] = np.maximum(size, 1) - 1
    chunks = pitches.astype(np.int64) * ELEMENTS[tensor.element].itemsize >> 4
    words[:, _STRIDE_LOW[0].at // 32] = chunks & 0xFFFFFFFF
    words[:, _STRIDE_HIGH[0].at // 32] |= (chunks >> 32).astype("<u4")
    return words.view(np.uint8)


# Repeated calls encode the same tensor at another address.
@lru_cache(maxsize=256)
def _shape_bits(tensor: TensorMap) -> int:
    """Return all bits but those of the address."""
    _check(f"{_LABEL} of {tensor.pointer.name}", tensor)
    bits = _RANK.put(0, len(tensor.sizes) - 1)
    bits = _put_element(bits, ELEMENTS[tensor.element].code)
    bits = _INTERLEAVE.put(bits, _INTERLEAVES.index(tensor.interleave))
    bits = _SWIZZLE.put(bits, _SWIZZLES.index(tensor.swizzle))
    bits = _NAN_FILL.put(bits, int(tensor.nan_fill))
    bits = _PROMOTION.put(bits, _PROMOTIONS.index(tensor.promotion))
    for i, stride in enumerate(tensor.strides):
        bits = _put_stride(bits, i, stride)
    for fields, values in ((_SIZE, tensor.sizes), (_STEP, tensor.element_strides), (_BOX, tensor.box)):
        for field, value in zip(fields, values, strict=False):
            bits = field.put(bits, value - 1)
    return bits


def _put_element(bits: int, code: int) -> int:
    tf32 = code >= _FIRST_TF32
    return _TF32.put(_ELEMENT.put(bits, code - _TF32_TO_BITS if tf32 else code), int(tf32))


def _put_stride(bits: int, index: int, stride: int) -> int:
    chunks = stride >> 4
    return _STRIDE_HIGH[index].put(_STRIDE_LOW[index].put(bits, chunks & 0xFFFFFFFF), chunks >> 32)


# TMA reads the map at every copy, and a kernel has few maps.
@lru_cache(maxsize=1024)
def decode(data: bytes, label: str = _LABEL) -> TensorMap:
    """Return the tensor that 128 bytes describe to TMA. Its pointer has the map's address and the name ``label``.

    Raises :class:`~matmill.errors.ArgumentError` with the argument ``label`` for bytes that are no tensor map or that
    break one of :func:`encode`'s rules, as ``tensormap.replace`` may, and :class:`~matmill.errors.EmulationError` for
    maps of other GPUs and im2col maps.

    >>> tensor = TensorMap(Pointer("A", 4096), "bfloat16", (64, 8), (128,), (64, 4), swizzle=128)
    >>> decode(encode(tensor, 4096), "A") == tensor
    True
    """
    _check_size(label, data)
    bits = int.from_bytes(data[:64], "little")
    if _KIND.of(bits) not in _TILED:
        raise _not_emulated(label, f"kind {_KIND.of(bits)}", "a tiled map", f"im2col maps are not emulated. {_NO_MAP}")
    if _SWIZZLE_96.of(bits):
        raise _not_emulated(label, "96-byte swizzle", "0, 32, 64 or 128 bytes", "It needs sm_100.")
    code = _ELEMENT.of(bits) + _TF32_TO_BITS * _TF32.of(bits)
    rank = _RANK.of(bits) + 1
    floats = (ELEMENTS["float32"].code, ELEMENTS["float32_ftz"].code)
    broken = {
        f"rank {rank}": rank > _MOST_DIMENSIONS,
        f"element type {_ELEMENT.of(bits)}": _ELEMENT.of(bits) >= _FIRST_TF32,
        f"tf32 of element type {_ELEMENT.of(bits)}": _TF32.of(bits) and _ELEMENT.of(bits) not in floats,
        f"interleave {_INTERLEAVE.of(bits)}": _INTERLEAVE.of(bits) >= len(_INTERLEAVES),
        "reserved bits that are set": any(field.of(bits) for field in _RESERVED),
    }
    for what, value in broken.items():
        if value:
            raise ArgumentError(
                argument=label, got=what, wanted="128 bytes that encode or tensormap.replace made", fix=_NO_MAP
            )
    tensor = TensorMap(
        Pointer(label, _ADDRESS.of(bits)),
        _NAMES[code],
        tuple(field.of(bits) + 1 for field in _SIZE[:rank]),
        tuple(
            (low.of(bits) | high.of(bits) << 32) << 4
            for low, high in zip(_STRIDE_LOW[: rank - 1], _STRIDE_HIGH, strict=False)
        ),
        tuple(field.of(bits) + 1 for field in _BOX[:rank]),
        _SWIZZLES[_SWIZZLE.of(bits)],
        element_strides=tuple(field.of(bits) + 1 for field in _STEP[:rank]),
        interleave=_INTERLEAVES[_INTERLEAVE.of(bits)],
        promotion=_PROMOTIONS[_PROMOTION.of(bits)],
        nan_fill=bool(_NAN_FILL.of(bits)),
    )
    _check(label, tensor)
    _check_address(label, tensor.pointer.address, tensor.interleave)
    return tensor


#: Fields of ``tensormap.replace`` with one value: the bits, the limit and the reason for refusing larger values.
_SINGLE = {
    "rank": (_MOST_DIMENSIONS, "0 to 4, the dimensions less 1"),
    "elemtype": (len(ELEMENTS), "0 to 12; packed types of 4 and 6 bits need sm_100"),
    "interleave_layout": (len(_INTERLEAVES), "0 (none), 1 (16 bytes) or 2 (32 bytes)"),
    "swizzle_mode": (len(_SWIZZLES), "0 to 3; 96 bytes need sm_100"),
    "fill_mode": (2, "0 (zeros) or 1 (NaN)"),
}
_CODES = {"rank": _RANK, "interleave_layout": _INTERLEAVE, "swizzle_mode": _SWIZZLE, "fill_mode": _NAN_FILL}
#: Fields with a value for each dimension: their bits, and the largest value.
_PER_DIMENSION = {
    "box_dim": (_BOX, _MOST_BOX),
    "global_dim": (_SIZE, (1 << 32) - 1),
    "element_stride": (_STEP, _MOST_STEP),
}


def replace(data: bytes, field: str, value: int, ordinal: int = 0) -> bytes:
    """Return ``data`` after ``tensormap.replace.tile.FIELD.b1024`` (PTX ISA, "tensormap.replace").

    ``value`` is the operand: the rank less 1, sizes, boxes and element strides as they are, strides in bytes, and PTX's
    codes of types and modes. ``ordinal`` is the dimension; for ``global_stride``, 0 means dimension 1. Other fields do
    not change: :func:`decode` checks whether all fit together.

    Raises :class:`~matmill.errors.ArgumentError` for a value that the field cannot hold,
    :class:`~matmill.errors.UnknownNameError` for another field.
    """
    argument = f"tensormap.replace.tile.{field}"
    _check_size(argument, data)
    bits = int.from_bytes(data, "little")
    if field == "global_address":
        _check_address(argument, value, 0)
        bits = _ADDRESS.put(bits, value)
    elif field == "global_stride":
        _check_range(argument, "ordinal", ordinal, 0, len(_STRIDE_LOW) - 1)
        _check_stride(argument, value, 16)
        bits = _put_stride(bits, ordinal, value)
    elif field in _PER_DIMENSION:
        fields, most = _PER_DIMENSION[field]
        _check_range(argument, "ordinal", ordinal, 0, _MOST_DIMENSIONS - 1)
        _check_range(argument, "value", value, 1, most)
        bits = fields[ordinal].put(bits, value - 1)
    elif field in _SINGLE:
        count, wanted = _SINGLE[field]
        if not 0 <= value < count:
            raise ArgumentError(argument=argument, got=str(value), wanted=wanted, fix="Use a code of PTX for sm_90a.")
        bits = _put_element(bits, value) if field == "elemtype" else _CODES[field].put(bits, value)
        # tensormap.replace of the swizzle mode clears the bit of the 96-byte mode.
        bits = _SWIZZLE_96.put(bits, 0) if field == "swizzle_mode" else bits
    else:
        raise unknown_name("tensormap.replace", field, ("global_address", "global_stride", *_PER_DIMENSION, *_SINGLE))
    return bits.to_bytes(TensorMap.NBYTES, "little")


def _check(argument: str, tensor: TensorMap) -> None:
    """Refuse a tensor that the driver would refuse at any address."""
    for name, got, wanted, fix in _broken_rules(tensor):
        raise ArgumentError(argument=f"{argument}: {name}", got=got, wanted=wanted, fix=fix)


def _broken_rules(tensor: TensorMap) -> Iterator[tuple[str, str, str, str]]:
    """Yield field, actual value, wanted value and advice for each of the driver's rules that the tensor breaks."""
    yield from _broken_modes(tensor)
    yield from _broken_dimensions(tensor)
    element = ELEMENTS[tensor.element]
    row = tensor.box[0] * element.itemsize
    if not tensor.interleave and row % 16:
        yield "box[0]", f"{row} bytes", "a multiple of 16 bytes", "Widen the box; what is outside the tensor is filled."
    if not tensor.interleave and tensor.swizzle and row > tensor.swizzle:
        wanted = f"at most the {tensor.swizzle} of the swizzle"
        yield "box[0]", f"{row} bytes", wanted, "Copy several boxes, each as wide as the swizzle."
    # The driver rounds the quotient down, so that a box narrower than an element stride has no elements.
    along = zip(tensor.box, tensor.element_strides, strict=True)
    nbytes = element.itemsize * prod(extent // step for extent, step in along)
    if nbytes > _MOST_BOX_BYTES:
        wanted = f"at most {_MOST_BOX_BYTES}, the shared memory of a block"
        yield "box", f"{nbytes} bytes", wanted, "Copy several smaller boxes."
    if tensor.nan_fill and not element.floating:
        yield "nan_fill", f"elements of type {tensor.element}", "floating-point elements", "Fill with zeros."


def _broken_modes(tensor: TensorMap) -> Iterator[tuple[str, str, str, str]]:
    if tensor.element not in ELEMENTS:
        raise unknown_name("TensorMap.element", tensor.element, ELEMENTS)
    for name, value, known in (
        ("swizzle", tensor.swizzle, _SWIZZLES),
        ("interleave", tensor.interleave, _INTERLEAVES),
        ("promotion", tensor.promotion, _PROMOTIONS),
    ):
        if value not in known:
            yield name, f"{value} bytes", f"one of {', '.join(map(str, known))}", "TMA knows no others on sm_90."
    if tensor.interleave and len(tensor.sizes) < 3:
        yield "interleave", f"{len(tensor.sizes)} dimensions", "at least 3", "Set interleave=0."


def _broken_dimensions(tensor: TensorMap) -> Iterator[tuple[str, str, str, str]]:
    rank = len(tensor.sizes)
    if not 1 <= rank <= _MOST_DIMENSIONS:
        yield "sizes", f"{rank} dimensions", f"1 to {_MOST_DIMENSIONS}", "Merge dimensions that are contiguous."
    lengths = [len(numbers) for numbers in (tensor.strides, tensor.box, tensor.element_strides)]
    if lengths != [rank - 1, rank, rank]:
        got = "{} strides, {} of the box, {} element strides".format(*lengths)
        yield "dimensions", got, f"{rank - 1}, {rank} and {rank}", "The contiguous dimension has no stride."
    yield from _outside("sizes", tensor.sizes, 1 << 32)
    yield from _outside("box", tensor.box, _MOST_BOX)
    yield from _outside("element_strides", tensor.element_strides, _MOST_STEP)
    for i, stride in enumerate(tensor.strides):
        yield from _broken_stride(f"strides[{i}]", stride, max(16, tensor.interleave))


def _outside(name: str, values: tuple[int, ...], most: int) -> Iterator[tuple[str, str, str, str]]:
    for i, value in enumerate(values):
        if not 1 <= value <= most:
            yield f"{name}[{i}]", str(value), f"1 to {most}", "Split the tensor, or copy in several boxes."


def _broken_stride(name: str, stride: int, align: int) -> Iterator[tuple[str, str, str, str]]:
    if stride % align or not 0 <= stride < 1 << _STRIDE_BITS:
        wanted = f"a multiple of {align} bytes, below 2^{_STRIDE_BITS}"
        yield name, f"{stride} bytes", wanted, "Repack the tensor so that its rows are so far apart."


def _check_stride(argument: str, stride: int, align: int) -> None:
    for _, got, wanted, fix in _broken_stride("", stride, align):
        raise ArgumentError(argument=argument, got=got, wanted=wanted, fix=fix)


def _check_address(argument: str, address: int, interleave: int) -> None:
    align = max(16, interleave)
    if address % align or not 0 <= address < 1 << _ADDRESS_BITS:
        raise ArgumentError(
            argument=f"{argument}: address",
            got=f"{address:#x}",
            wanted=f"a multiple of {align} bytes, below 2^{_ADDRESS_BITS}",
            fix="Let the tensor begin there, or copy it to memory that does.",
        )


def _check_range(argument: str, name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentError(
            argument=f"{argument}: {name}", got=str(value), wanted=f"{least} to {most}",
            fix="The bits of the field hold no other: the instruction would store another number.",
        )  # fmt: skip


def _check_size(argument: str, data: bytes) -> None:
    if len(data) != TensorMap.NBYTES:
        raise ArgumentError(
            argument=argument, got=f"{len(data)} bytes", wanted=f"{TensorMap.NBYTES}", fix="Pass the whole map."
        )


def _not_emulated(label: str, got: str, wanted: str, fix: str) -> EmulationError:
    return EmulationError(argument=label, got=got, wanted=wanted, fix=fix)
