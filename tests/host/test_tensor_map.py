"""The bits of tensor maps: as recorded, there and back, altered field by field, and each refusal with its reason."""

from __future__ import annotations

import json
import struct
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.errors import ArgumentError, EmulationError, UnknownNameError
from matmill.launch import Pointer, TensorMap
from matmill.tensor_map import ELEMENTS, decode, encode, replace
from support.examples import examples
from support.tensor_maps import any_maps

ADDRESS = 1 << 36
TENSOR = TensorMap(Pointer("A", ADDRESS), "bfloat16", (64, 8, 3), (128, 1024), (64, 4, 1), swizzle=128)
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tensor_maps.json").read_text())


def words(data: bytes) -> tuple[int, ...]:
    return struct.unpack("<32I", data)


def bits_set(at: int, width: int, value: int) -> bytes:
    """Return the map of ``TENSOR`` with other bits."""
    number = int.from_bytes(encode(TENSOR, ADDRESS), "little")
    return (number & ~((1 << width) - 1 << at) | value << at).to_bytes(128, "little")


def test_a_tensor_may_start_behind_its_pointer() -> None:
    behind = changed(TENSOR, first=256)
    assert decode(encode(behind, ADDRESS)).pointer.address == ADDRESS + 256
    with pytest.raises(ArgumentError, match="multiple of 16"):
        encode(changed(TENSOR, first=8), ADDRESS)


@pytest.mark.parametrize("record", GOLDEN, ids=lambda record: f"{record['element']} {len(record['sizes'])}d")
def test_maps_have_the_bytes_that_the_driver_writes(record: dict[str, Any]) -> None:
    record = dict(record)
    address, expected = record.pop("address"), bytes.fromhex(record.pop("first_64_bytes"))
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    encoded = encode(TensorMap(Pointer("A", 0), **fields), address)
    assert encoded == expected + bytes(64)


@pytest.mark.parametrize(
    ("element", "rank", "swizzle", "word"),
    [
        *(("bfloat16", 2, swizzle, word) for swizzle, word in ((128, 0x46510), (64, 0x44510), (32, 0x42510))),
        *(("bfloat16", rank, 128, word) for rank, word in ((3, 0x46520), (5, 0x46540))),
        ("bfloat16", 2, 0, 0x40510),
        *(
            (element, 2, 128, word)
            for element, word in (
                *(("float16", 0x46310), ("float32", 0x46390), ("tfloat32", 0x56390)),
                *(("uint8", 0x46010), ("uint32", 0x46110)),
            )
        ),
    ],
)
def test_the_word_of_modes(element: str, rank: int, swizzle: int, word: int) -> None:
    box = (16 // ELEMENTS[element].itemsize, *[8] * (rank - 1))
    tensor = TensorMap(Pointer("A", 0), element, (64,) * rank, (128,) * (rank - 1), box, swizzle, promotion=128)
    assert words(encode(tensor, ADDRESS))[2] == word


def test_the_words_of_a_box() -> None:
    tensor = TensorMap(Pointer("A", 0), "bfloat16", (4096, 4096), (8192,), (64, 128), swizzle=128)
    assert words(encode(tensor, ADDRESS))[13:16] == (0x3F000000, 0x7F, 0)


@examples(200)
@given(any_maps())
def test_what_is_encoded_is_decoded(tensor: TensorMap) -> None:
    data = encode(tensor, tensor.pointer.address)
    assert decode(data, "A") == tensor
    # CuTe DSL sets these two bits: a kind of 2, and one for large tensors.
    number = int.from_bytes(data, "little") | 2 << 64 | 1 << 85
    assert decode(number.to_bytes(128, "little"), "A") == tensor


REFUSED = [
    ({"sizes": (), "strides": (), "box": ()}, r"tensor map of A: sizes: got 0 dimensions; wanted 1 to 5"),
    ({"sizes": (1,) * 6, "strides": (16,) * 5, "box": (64,) + (1,) * 5}, "sizes: got 6 dimensions"),
    ({"strides": (128,)}, "dimensions: got 1 strides, 3 of the box, 3 element strides; wanted 2, 3 and 3"),
    ({"box": (64, 4)}, "dimensions: got 2 strides, 2 of the box"),
    ({"element_strides": (1, 1)}, "dimensions: .* 2 element strides"),
    ({"swizzle": 96}, "swizzle: got 96 bytes; wanted one of 0, 32, 64, 128"),
    ({"interleave": 8}, "interleave: got 8 bytes"),
    ({"promotion": 32}, "promotion: got 32 bytes"),
    ({"sizes": (64, 0, 3)}, r"sizes\[1\]: got 0; wanted 1 to 4294967296"),
    ({"sizes": (64, 8, 2**32 + 1)}, r"sizes\[2\]"),
    ({"box": (64, 257, 1)}, r"box\[1\]: got 257; wanted 1 to 256"),
    ({"box": (64, 0, 1)}, r"box\[1\]: got 0"),
    ({"element_strides": (1, 9, 1)}, r"element_strides\[1\]: got 9; wanted 1 to 8"),
    ({"element_strides": (0, 1, 1)}, r"element_strides\[0\]: got 0"),
    ({"strides": (128, 1032)}, r"strides\[1\]: got 1032 bytes; wanted a multiple of 16 bytes, below 2\^40"),
    ({"strides": (128, 2**40)}, r"strides\[1\]"),
    ({"strides": (-128, 1024)}, r"strides\[0\]"),
    ({"box": (60, 4, 1)}, r"box\[0\]: got 120 bytes; wanted a multiple of 16 bytes"),
    ({"swizzle": 64}, r"box\[0\]: got 128 bytes; wanted at most the 64 of the swizzle"),
    ({"element": "int32", "box": (32, 4, 1), "nan_fill": True}, "nan_fill: got elements of type int32"),
    ({"interleave": 16, "sizes": (64, 8), "strides": (128,), "box": (64, 4)}, "interleave: got 2 dimensions"),
    ({"box": (64, 256, 8)}, "box: got 262144 bytes; wanted at most 232448"),
    ({"interleave": 32, "swizzle": 32, "strides": (144, 1024)}, r"strides\[0\]: .* multiple of 32 bytes"),
]


@pytest.mark.parametrize(("change", "match"), REFUSED, ids=[match[:30] for _, match in REFUSED])
def test_what_the_driver_refuses_is_refused_with_the_field(change: dict[str, Any], match: str) -> None:
    dimensions: dict[str, Any] = {} if "element_strides" in change else {"element_strides": ()}
    with pytest.raises(ArgumentError, match=match):
        encode(changed(TENSOR, **change, **dimensions), ADDRESS)


@pytest.mark.parametrize(("address", "interleave"), [(ADDRESS + 8, 0), (ADDRESS + 16, 32), (1 << 57, 0), (-16, 0)])
def test_addresses_are_refused(address: int, interleave: int) -> None:
    tensor = changed(TENSOR, interleave=interleave, swizzle=32 if interleave else 128)
    with pytest.raises(
        ArgumentError, match=f"A: address: got -?0x.*; wanted a multiple of {max(16, interleave)} bytes"
    ):
        encode(tensor, address)


def test_another_element_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'float16'"):
        encode(changed(TENSOR, element="float15"), ADDRESS)


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (b"\0" * 64, ArgumentError, "where: got 64 bytes; wanted 128"),
        (b"\0" * 128, ArgumentError, r"where: box\[0\]: got 1 bytes"),
        (b"\xff" * 128, EmulationError, "where: got kind 15; wanted a tiled map"),
        (bits_set(64, 4, 1), EmulationError, "got kind 1; .* im2col"),
        (bits_set(86, 1, 1), EmulationError, "96-byte swizzle; .* sm_100"),
        (bits_set(68, 3, 5), ArgumentError, "got rank 6"),
        (bits_set(71, 4, 11), ArgumentError, "got element type 11"),
        (bits_set(80, 1, 1), ArgumentError, "got tf32 of element type 10"),
        (bits_set(75, 2, 3), ArgumentError, "got interleave 3"),
        *(
            (bits_set(at, 1, 1), ArgumentError, "reserved bits that are set")
            for at in (83, 84, 87, 95, 240, 255, 431, 439, 480, 511)
        ),
        (bits_set(0, 4, 8), ArgumentError, "where: address: got 0x1000000008"),
        (bits_set(440, 8, 62), ArgumentError, r"where: box\[0\]: got 126 bytes"),
    ],
)
def test_bytes_that_are_no_map_are_refused(data: bytes, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        decode(data, "where")


@examples(300)
@given(any_maps(), st.lists(st.integers(0, 511), max_size=3))
def test_altered_bits_are_another_map_or_refused(tensor: TensorMap, flipped: list[int]) -> None:
    number = int.from_bytes(encode(tensor, tensor.pointer.address), "little")
    for bit in flipped:
        number ^= 1 << bit
    try:
        result = decode(number.to_bytes(128, "little"), "A")
    except (ArgumentError, EmulationError):
        assert flipped
    else:
        assert decode(encode(result, result.pointer.address), "A") == result


@pytest.mark.parametrize(
    ("field", "ordinal", "value", "change"),
    [
        ("rank", 0, 1, {"sizes": (64, 8), "strides": (128,), "box": (64, 4), "element_strides": (1, 1)}),
        *(("box_dim", i, 2 * i + 8, {"box": (*TENSOR.box[:i], 2 * i + 8, *TENSOR.box[i + 1 :])}) for i in range(3)),
        *(("global_dim", i, 5, {"sizes": (*TENSOR.sizes[:i], 5, *TENSOR.sizes[i + 1 :])}) for i in range(3)),
        ("global_dim", 2, 2**32 - 1, {"sizes": (64, 8, 2**32 - 1)}),
        ("global_stride", 0, 2**39 + 16, {"strides": (2**39 + 16, 1024)}),
        ("global_stride", 1, 2**40 - 16, {"strides": (128, 2**40 - 16)}),
        *(("element_stride", i, 8, {"element_strides": (*(1,) * i, 8, *(1,) * (2 - i))}) for i in range(3)),
        ("swizzle_mode", 0, 0, {"swizzle": 0}),
        ("interleave_layout", 0, 1, {"interleave": 16}),
        ("fill_mode", 0, 1, {"nan_fill": True}),
        *(("elemtype", 0, e.code, {"element": name}) for name, e in ELEMENTS.items() if e.itemsize < 4),
    ],
)
def test_replacing_a_field_is_encoding_another_tensor(
    field: str, ordinal: int, value: int, change: dict[str, Any]
) -> None:
    data = replace(encode(TENSOR, ADDRESS), field, value, ordinal)
    assert decode(data, "A") == changed(TENSOR, **change)


@given(st.sampled_from(sorted(ELEMENTS)), st.sampled_from(sorted(ELEMENTS)))
def test_every_element_type_replaces_every_other(before: str, after: str) -> None:
    tensor = TensorMap(Pointer("A", ADDRESS), before, (64,), (), (16,))
    data = replace(encode(tensor, ADDRESS), "elemtype", ELEMENTS[after].code)
    assert data == encode(changed(tensor, element=after), ADDRESS)


def test_an_address_is_replaced_and_the_96_byte_swizzle_undone() -> None:
    assert replace(encode(TENSOR, ADDRESS), "global_address", 64) == encode(TENSOR, 64)
    assert replace(bits_set(86, 1, 1), "swizzle_mode", 3) == encode(TENSOR, ADDRESS)


@pytest.mark.parametrize(
    ("field", "value", "ordinal", "match"),
    [
        ("global_address", 8, 0, r"tile\.global_address: address: got 0x8"),
        ("rank", 5, 0, "got 5; wanted 0 to 4, the dimensions less 1"),
        ("box_dim", 0, 0, "value: got 0; wanted 1 to 256"),
        ("box_dim", 257, 1, "value: got 257"),
        ("box_dim", 1, 5, "ordinal: got 5; wanted 0 to 4"),
        ("global_dim", 0, 0, "value: got 0; wanted 1 to 4294967295"),
        ("global_stride", 8, 0, "got 8 bytes; wanted a multiple of 16"),
        ("global_stride", 16, 4, "ordinal: got 4; wanted 0 to 3"),
        ("element_stride", 9, 0, "wanted 1 to 8"),
        ("elemtype", 13, 0, "4 and 6 bits need sm_100"),
        ("swizzle_mode", 4, 0, "96 bytes need sm_100"),
        ("interleave_layout", 3, 0, "got 3"),
        ("fill_mode", 2, 0, "got 2"),
    ],
)
def test_values_that_a_field_does_not_hold(field: str, value: int, ordinal: int, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        replace(encode(TENSOR, ADDRESS), field, value, ordinal)


def test_fields_have_ptx_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'box_dim'"):
        replace(encode(TENSOR, ADDRESS), "box_dims", 1)
