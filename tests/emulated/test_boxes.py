"""Boxes of tensor maps: every byte and every count as element by element, in Python's integers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.emulator.memory.boxes import (
    Boxes,
    check_store,
    read_global,
    read_shared,
    reduce_global,
    write_global,
    write_shared,
)
from matmill.errors import ArgumentError, EmulationError
from matmill.launch import Pointer, TensorMap
from matmill.tensor_map import ELEMENTS
from support.examples import examples
from support.tensor_maps import START, box_bytes, box_elements, load_one, shared_bytes, small_maps, span, store_one

TILE = TensorMap(Pointer("tensor map", START), "bfloat16", (100, 70), (208,), (64, 8), swizzle=128)
MATRIX = TensorMap(Pointer("tensor map", START), "float32", (8, 4), (32,), (4, 2))
BLOCK = 16384  # bytes of shared memory of each block, a multiple of 128


def noise(seed: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def draw_boxes(data: st.DataObject, tensor: TensorMap, *, least: int) -> tuple[Boxes, NDArray[np.int64], Any]:
    """Return some boxes of a map, where they are in the shared memory of a block each, and their coordinates."""
    limits = [(least * box, size + 1) for box, size in zip(tensor.box, tensor.sizes, strict=True)]
    chunk = 16 // ELEMENTS[tensor.element].itemsize
    along = st.integers(limits[0][0] // chunk, limits[0][1] // chunk).map(lambda n: n * chunk)
    one = st.tuples(along, *(st.integers(*limit) for limit in limits[1:]))
    coordinates = data.draw(st.lists(one, min_size=1, max_size=3))
    slots = st.integers(0, (BLOCK - shared_bytes(tensor)) // 128)
    address = data.draw(st.lists(slots, min_size=len(coordinates), max_size=len(coordinates)))
    return Boxes.of(tensor, np.array(coordinates, np.int32)), 128 * np.array(address), coordinates


def fits(tensor: TensorMap) -> bool:
    return shared_bytes(tensor) <= BLOCK


@examples(150)
@given(small_maps(overlap=True).filter(fits), st.data())
def test_loads_fill_shared_memory_as_element_by_element(tensor: TensorMap, data: st.DataObject) -> None:
    boxes, address, coordinates = draw_boxes(data, tensor, least=-1)
    memory = noise(1, span(tensor))
    shared = noise(2, len(address) * BLOCK)
    expected = shared.copy()
    base = BLOCK * np.arange(len(address))
    for first, at, where in zip(base, coordinates, address, strict=True):
        load_one(memory, expected[first : first + BLOCK], tensor, at, int(where))
    write_shared(shared, base, boxes, address, read_global(memory, START, boxes))
    np.testing.assert_array_equal(shared, expected)
    assert (boxes.nbytes, boxes.shared_bytes) == (box_bytes(tensor), shared_bytes(tensor))


@examples(100)
@given(small_maps().filter(fits), st.data())
def test_stores_write_what_is_inside_and_the_rest_of_16_bytes(tensor: TensorMap, data: st.DataObject) -> None:
    boxes, address, coordinates = draw_boxes(data, tensor, least=0)
    memory, shared = noise(3, span(tensor)), noise(4, BLOCK)
    expected = memory.copy()
    for n, (at, where) in enumerate(zip(coordinates, address, strict=True)):
        one = boxes.take(np.array([n]))
        store_one(expected, shared, tensor, at, int(where))
        contents = read_shared(shared, np.zeros(1, np.int64), one, address[n : n + 1])
        write_global(memory, START, one.stored(), contents)
    np.testing.assert_array_equal(memory, expected)


@examples(100)
@given(small_maps(overlap=True).filter(fits), st.data())
def test_counts_and_ranges_are_those_of_the_bytes(tensor: TensorMap, data: st.DataObject) -> None:
    boxes, _, coordinates = draw_boxes(data, tensor, least=-1)
    low, high = boxes.hull()
    itemsize = box_bytes(tensor) // max(1, len(list(box_elements(tensor, coordinates[0], 0))))
    for n, at in enumerate(coordinates):
        where = [source for source, _ in box_elements(tensor, at, 0) if source is not None]
        touched = sorted({source + byte for source in where for byte in range(itemsize)})
        starts, ends = boxes.ranges(n)
        result = [byte for start, end in zip(starts, ends, strict=True) for byte in range(start, end)]
        assert result == touched
        assert (starts[1:] > ends[:-1]).all()
        assert boxes.global_bytes()[n] == len(where) * itemsize
        assert boxes.sectors()[n] == len({byte // 32 for byte in touched})
        assert (low[n], high[n]) == ((touched[0], touched[-1] + 1) if touched else (tensor.pointer.address,) * 2)


REDUCTIONS = [
    *((op, e, w) for op in ("add", "min", "max") for e, w in (("uint32", "u4"), ("int32", "i4"), ("uint64", "u8"))),
    *((op, "int64", "i8") for op in ("min", "max", "and", "or", "xor")),
    *((op, "float16", "f2") for op in ("add", "min", "max")),
    *((op, "uint32", "u4") for op in ("inc", "dec", "and", "or", "xor")),
    *(("add", f"float{bits}", f"f{bits // 8}") for bits in (32, 64)),
]


def combined(operation: str, old: Any, new: Any) -> Any:
    """Combine scalars by PTX's definition of each operation."""
    if operation == "inc":
        return 0 if old >= new else old + 1
    if operation == "dec":
        return new if old == 0 or old > new else old - 1
    names = {"min": "minimum", "max": "maximum", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}
    return getattr(np, names.get(operation, operation))(old, new)


@pytest.mark.parametrize(("operation", "element", "word"), REDUCTIONS)
@pytest.mark.parametrize("stride", [32, 16])
def test_reductions_combine_each_element(operation: str, element: str, word: str, stride: int) -> None:
    # With a stride of 16 bytes rows overlap; with two boxes at one place the second finds the first one's results.
    width = 16 // np.dtype(word).itemsize
    tensor = replace(MATRIX, element=element, sizes=(2 * width - 1, 4), strides=(stride,), box=(2 * width, 3))
    rng = np.random.default_rng(5)
    memory = rng.integers(0, 50, 256 // np.dtype(word).itemsize).astype(word).view(np.uint8)
    shared = rng.integers(0, 50, 256 // np.dtype(word).itemsize).astype(word).view(np.uint8)
    expected = memory.copy()
    coordinates = np.array([(0, 1), (width, 2), (0, 1)])
    with np.errstate(over="ignore"):
        for at in coordinates.tolist():
            combine = partial(combined, operation)
            store_one(expected, shared, tensor, tuple(at), 128, combine=combine, word=word)
        boxes = Boxes.of(tensor, coordinates)
        contents = read_shared(shared, np.zeros(3, np.int64), boxes, np.full(3, 128))
        reduce_global(memory, START, boxes, contents, operation)
    np.testing.assert_array_equal(memory, expected)


def reduced_by_one(element: str, word: str, old: int, new: int, operation: str = "add") -> int:
    """Return what memory with the bits ``old`` has after a reduction with ``new``."""
    size = np.dtype(word).itemsize
    memory = np.array([old], word).view(np.uint8)
    boxes = Boxes.of(TensorMap(Pointer("tensor map", START), element, (1,), (), (16 // size,)), np.array([[0]]))
    reduce_global(memory, START, boxes, np.full((1, 16 // size), new, word).view(np.uint8), operation)
    return int(memory.view(word)[0])


def test_sums_of_floats_round_once_and_flush_where_the_type_says() -> None:
    assert reduced_by_one("bfloat16", "u2", 0x3F80, 0x3B80) == 0x3F80  # 1 + 2**-8: a tie, to even
    assert reduced_by_one("bfloat16", "u2", 0x3F80, 0x3B81) == 0x3F81
    assert reduced_by_one("float32", "u4", 1, 2) == 3
    assert reduced_by_one("float32_ftz", "u4", 1, 2) == 0
    assert reduced_by_one("bfloat16", "u2", 0x3F80, 0xBF80, "min") == 0xBF80


@pytest.mark.parametrize(
    ("operation", "element", "match"),
    [
        ("add", "int64", r"got elements of type s64; wanted u32, s32, u64, f16, bf16, f32"),
        ("min", "float32", r"reduction min: got elements of type f32"),
        ("inc", "int32", r"wanted u32\."),
        ("and", "float16", r"wanted b32, b64"),
        ("add", "tfloat32", r"got elements of type tfloat32"),
        ("add", "uint8", r"got elements of type uint8"),
        ("exch", "uint32", r"wanted one of add, min"),
    ],
)
def test_reductions_that_ptx_does_not_have_are_refused(operation: str, element: str, match: str) -> None:
    tensor = replace(MATRIX, element=element, sizes=(4, 4), box=(16, 1))
    boxes = Boxes.of(tensor, np.zeros((1, 2), int))
    with pytest.raises(ArgumentError, match=match):
        reduce_global(np.zeros(512, np.uint8), START, boxes, np.zeros((1, boxes.nbytes), np.uint8), operation)


def test_a_tile_costs_its_sectors_and_a_wavefront_for_128_bytes() -> None:
    inside, at_the_edge = np.array([[0, 0], [64, 66]])
    boxes = Boxes.of(TILE, np.stack([inside, at_the_edge]))
    assert (boxes.nbytes, boxes.wavefronts, boxes.row_bytes) == (1024, 8, 128)
    assert boxes.global_bytes().tolist() == [1024, 4 * 36 * 2]
    # Rows start 208 bytes apart: every second one at half a sector.
    assert boxes.sectors().tolist() == [4 * 4 + 4 * 5, 4 * 3]
    assert Boxes.of(MATRIX, np.zeros((1, 2), int)).wavefronts == 1


def test_outside_the_tensor_there_are_zeros_or_the_nan_of_tma() -> None:
    memory = np.ones(span(MATRIX), np.uint8)
    outside = np.array([[8, 0], [-4, 0], [0, 4], [0, -2], [2**31 - 4, -(2**31)]])
    for tensor, fill in ((MATRIX, 0), (replace(MATRIX, nan_fill=True), 0x7FF77FF7)):
        loaded = read_global(memory, START, Boxes.of(tensor, outside)).view(np.uint32)
        assert (loaded == fill).all()
    assert np.isnan(loaded.view(np.float32)).all()


def test_tf32_is_rounded_on_the_way_in_alone() -> None:
    tensor = replace(MATRIX, element="tfloat32", sizes=(4,), strides=(), box=(4,), element_strides=(1,))
    memory = np.array([0x3F801000, 0x3F803000, 0x7F800001, 0x00001001], np.uint32).view(np.uint8)
    boxes = Boxes.of(tensor, np.array([[0]]))
    contents = read_global(memory, START, boxes)
    assert contents.view(np.uint32).tolist() == [[0x3F800000, 0x3F804000, 0x7FFFE000, 0x00002000]]
    target = np.zeros(16, np.uint8)
    write_global(target, START, boxes, memory.reshape(1, 16))
    np.testing.assert_array_equal(target, memory)


@pytest.mark.parametrize(
    ("change", "coordinates", "error", "match"),
    [
        ({}, [[0]], ArgumentError, "got 1 coordinates; wanted 2"),
        ({}, [[0, 0], [12, 3]], ArgumentError, r"a box at \(12, 3\); wanted a first coordinate .* multiple of 8: 16"),
        ({"interleave": 16}, [[0, 0]], EmulationError, "an interleave of 16 bytes"),
        (
            {"box": (64, 256, 8), "sizes": (64, 9, 9), "strides": (128, 128)},
            [[0] * 3],
            ArgumentError,
            "of 262144 bytes",
        ),
    ],
)
def test_boxes_that_are_refused(
    change: dict[str, Any], coordinates: list[list[int]], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Boxes.of(replace(TILE, element_strides=(), **change), np.array(coordinates))


def test_stores_never_start_before_the_tensor() -> None:
    check_store(TILE, np.array([[0, 0], [99, 69]]))
    with pytest.raises(ArgumentError, match=r"a store at \(0, -1\)"):
        check_store(TILE, np.array([[0, 0], [0, -1]]))


def test_shared_addresses_are_multiples_of_128() -> None:
    boxes = Boxes.of(TILE, np.array([[0, 0]]))
    with pytest.raises(ArgumentError, match="shared address 1040; wanted a multiple of 128"):
        read_shared(np.zeros(4096, np.uint8), np.zeros(1, np.int64), boxes, np.array([1040]))
