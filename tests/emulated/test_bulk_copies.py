"""Bulk copies of contiguous bytes, their reductions, and the receivers of a multicast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.emulator.memory.bulk import BulkCopies, copy_bulk, multicast_ranks, reduce_bulk
from matmill.errors import ArgumentError
from matmill.launch import TensorMap

NAME = "cp.async.bulk"


def copies(*rows: tuple[int, int, int], **ignored: list[int]) -> BulkCopies:
    """Return copies as (source, destination, size), with what is ignored of each."""
    columns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return BulkCopies(*columns, **{side: np.array(n, np.int64) for side, n in ignored.items()})


def test_each_copy_moves_its_bytes() -> None:
    source, target = np.arange(256, dtype=np.uint8), np.zeros(128, np.uint8)
    chosen = copies((16, 0, 32), (160, 64, 16), (0, 96, 0))
    chosen.check(NAME)
    copy_bulk(source, target, chosen)
    expected = np.zeros(128, np.uint8)
    expected[:32], expected[64:80] = source[16:48], source[160:176]
    np.testing.assert_array_equal(target, expected)


def test_ignored_bytes_are_not_read_and_undefined() -> None:
    # Row 1 of 30 bytes of an array of 60: its copy starts 2 bytes before it, and ends 0 or 2 behind it.
    source, target = np.arange(60, dtype=np.uint8), np.zeros(48, np.uint8)
    chosen = copies((16, 0, 48), left=[14], right=[4])
    chosen.check(NAME)
    starts, ends = chosen.read()
    assert (starts.tolist(), ends.tolist()) == ([30], [60])
    copy_bulk(source, target, chosen)
    assert target.tolist() == [255] * 14 + list(range(30, 60)) + [255] * 4


@pytest.mark.parametrize(
    ("chosen", "match"),
    [
        (copies((0, 0, 16), (8, 0, 16)), r"cp\.async\.bulk: source: got 8; wanted a multiple of 16 bytes"),
        (copies((0, 24, 16)), "destination: got 24"),
        (copies((0, 0, 20)), "size: got 20"),
        (copies((0, 0, 32), left=[16], right=[0]), "ignored bytes: got 16 left and 0 right of 32; wanted 0 to 15"),
        (copies((0, 0, 16), left=[8], right=[9]), "got 8 left and 9 right of 16"),
    ],
)
def test_copies_that_are_refused(chosen: BulkCopies, match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        chosen.check(NAME)


def test_a_tensor_map_is_copied_to_a_multiple_of_64() -> None:
    copies((0, 64, 128)).check("tensormap.cp_fenceproxy", align=TensorMap.ALIGN)
    with pytest.raises(ArgumentError, match=r"cp_fenceproxy: destination: got 48; wanted a multiple of 64"):
        copies((0, 48, 128)).check("tensormap.cp_fenceproxy", align=TensorMap.ALIGN)


@pytest.mark.parametrize(
    ("operation", "kind", "word", "expected"),
    [
        ("add", "u32", "u4", [4, 7]),
        ("min", "s64", "i8", [1, 3]),
        ("max", "f16", "f2", [3, 4]),
        ("inc", "u32", "u4", [2, 0]),
        ("xor", "b64", "u8", [2, 7]),
        ("add", "f64", "f8", [4, 7]),
    ],
)
def test_reductions_into_global_memory(operation: str, kind: str, word: str, expected: list[int]) -> None:
    target, source = np.zeros(64 // np.dtype(word).itemsize, word), np.zeros(64 // np.dtype(word).itemsize, word)
    target[:2], source[:2] = (1, 4), (3, 3)
    # A second reduction of zeros, elsewhere.
    reduce_bulk(source.view(np.uint8), target.view(np.uint8), copies((0, 0, 16), (32, 32, 16)), operation, kind)
    assert target[:2].tolist() == expected
    assert not target[2:].any()


def test_sums_of_float32_flush_subnormals() -> None:
    target, source = np.ones(4, np.uint32), np.array([1, 0x00800000, 0x3F800000, 0], np.uint32)
    reduce_bulk(source.view(np.uint8), target.view(np.uint8), copies((0, 0, 16)), "add", "f32")
    assert target.tolist() == [0, 0x00800000, 0x3F800000, 0]


@pytest.mark.parametrize(("operation", "kind"), [("add", "f32"), ("min", "u64"), ("xor", "b64"), ("add", "s64")])
def test_fewer_reductions_reach_shared_memory(operation: str, kind: str) -> None:
    memory: Any = np.zeros(16, np.uint8)
    with pytest.raises(ArgumentError, match=f"reduction {operation}: got elements of type {kind}"):
        reduce_bulk(memory, memory, copies((0, 0, 16)), operation, kind, shared=True)


@pytest.mark.parametrize(("mask", "blocks"), [(0, 4), (0b10000, 4), (1 << 16, 16)])
def test_masks_name_blocks_of_the_cluster(mask: int, blocks: int) -> None:
    with pytest.raises(ArgumentError, match=f"multicast mask: got {mask:#x}; wanted some of the {blocks} lowest bits"):
        multicast_ranks(mask, blocks)
