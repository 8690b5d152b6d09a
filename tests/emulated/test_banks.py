"""Bank passes and sectors: against an H200's counters, against sets spelled out, and their symmetries."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator.memory.banks import global_sectors, ldmatrix_wavefronts, shared_wavefronts
from matmill.errors import ArgumentError, ShapeError
from support.examples import examples

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "h200_warp_counters.json").read_text())
ALL = np.ones((1, 32), dtype=np.bool_)


def mask_of(bits: int) -> np.ndarray:
    return (np.int64(bits) >> np.arange(32).reshape(1, 32) & 1).astype(np.bool_)


def test_the_golden_file_is_whole() -> None:
    assert len(GOLDEN) == 195


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['op']} {case['name']}")
def test_an_h200_counted_the_same(case: dict[str, Any]) -> None:
    op = case["op"]
    where = np.array([case["offsets"]], dtype=np.int64)
    active = mask_of(case["mask"])
    if op.startswith("g"):
        assert global_sectors(where, active, int(op[3:])).tolist() == [case["sectors"]]
        return
    if op.startswith("ldm"):
        actual, ideal = ldmatrix_wavefronts(where, int(op[3]))
    else:
        actual, ideal = shared_wavefronts(where, active, int(op[2:]), store=op.startswith("st"))
    assert (actual.tolist(), (actual - ideal).tolist()) == ([case["wavefronts"]], [case["conflicts"]])


@pytest.mark.parametrize(
    "piece",
    [
        lambda lane: lane // 2 if lane < 16 else lane,
        lambda lane: lane & ~1 if lane < 16 else lane & ~2,
        lambda lane: lane & ~1 if lane < 16 else lane,
        lambda lane: lane // 2 if lane < 8 else lane,
    ],
    ids=["pairs and apart", "pairs and pairs two apart", "spread pairs and apart", "a quarter of pairs"],
)
def test_lanes_that_pair_up_in_part_of_a_warp_are_not_merged(piece: Callable[[int], int]) -> None:
    # 16-byte loads; an H200 counted 4 wavefronts and no conflict for each of the four (2026-11-20).
    where = np.array([[16 * piece(lane) for lane in range(32)]], dtype=np.int64)
    actual, ideal = shared_wavefronts(where, np.ones((1, 32), dtype=bool), 16, store=False)
    assert (actual.tolist(), ideal.tolist()) == ([4], [4])


def busiest_bank(addresses: list[int], width: int) -> int:
    """Return most distinct 4-byte words in one bank, word by word."""
    words = defaultdict(set)
    for address in addresses:
        for word in range(address // 4, (address + max(width, 4)) // 4):
            words[word % 32].add(word)
    return max(map(len, words.values()), default=0)


def spelled_out(where: list[int], active: list[bool], width: int, *, store: bool) -> tuple[int, int]:
    """Count by the rules of the module's docstring, one lane at a time."""
    size = min(32, 128 // width)
    groups = [range(start, start + size) for start in range(0, 32, size)]
    if not store and width > 4:
        lanes = range(32)
        if any(all(not (active[i] and active[i ^ d]) or where[i] == where[i ^ d] for i in lanes) for d in (1, 2)):
            groups = [range(left.start, left.stop + size) for left in groups[::2]]
    passes = [busiest_bank([where[i] for i in group if active[i]], width) for group in groups]
    return sum(passes), sum(1 for each in passes if each)


widths = st.sampled_from([1, 2, 4, 8, 16])
masks = st.lists(st.booleans(), min_size=32, max_size=32) | st.just([True] * 32)


@st.composite
def requests(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Return one access.

    It has mostly few distinct addresses, so that lanes meet, and often equal pairs, so that groups merge.
    """
    width = draw(widths)
    top = draw(st.sampled_from([3, 40, 800]))
    slots = np.array(draw(st.lists(st.integers(0, top), min_size=32, max_size=32)), dtype=np.int64)
    lanes = np.arange(32)
    partner = draw(st.sampled_from([lanes, lanes & ~1, lanes & ~2, np.where(lanes < 16, lanes & ~1, lanes)]))
    stride = draw(st.sampled_from([1, 1, 32]))
    return slots[partner][None] * width * stride, np.array([draw(masks)]), width


@given(request=requests(), store=st.booleans())
def test_the_vectorized_rules_are_the_ones_spelled_out(
    request: tuple[np.ndarray, np.ndarray, int],
    store: bool,
) -> None:
    where, active, width = request
    actual, ideal = shared_wavefronts(where, active, width, store=store)
    assert (actual[0], ideal[0]) == spelled_out(where[0].tolist(), active[0].tolist(), width, store=store)


@given(requests())
def test_bounds(request: tuple[np.ndarray, np.ndarray, int]) -> None:
    where, active, width = request
    load, load_ideal = shared_wavefronts(where, active, width, store=False)
    store, store_ideal = shared_wavefronts(where, active, width, store=True)
    assert (active.any() != 0) == (load_ideal[0] > 0)
    assert load_ideal[0] <= load[0] <= store[0] <= active.sum()
    assert load_ideal[0] <= store_ideal[0] <= max(1, width // 4)


@given(request=requests(), units=st.integers(1, 200), store=st.booleans())
def test_moving_the_whole_access_only_rotates_the_banks(
    request: tuple[np.ndarray, np.ndarray, int],
    units: int,
    store: bool,
) -> None:
    where, active, width = request
    moved = where + units * max(width, 4)
    before = shared_wavefronts(where, active, width, store=store)
    assert np.array_equal(before, shared_wavefronts(moved, active, width, store=store))


@given(requests(), st.randoms(use_true_random=False))
def test_lanes_of_one_store_group_may_trade_places(request: tuple[np.ndarray, np.ndarray, int], random: Random) -> None:
    where, active, width = request
    size = min(32, 128 // width)
    order = []
    for start in range(0, 32, size):
        group = list(range(start, start + size))
        random.shuffle(group)
        order += group
    before = shared_wavefronts(where, active, width, store=True)
    assert np.array_equal(before, shared_wavefronts(where[:, order], active[:, order], width, store=True))


@examples(25)
@given(st.lists(requests(), min_size=1, max_size=8))
def test_a_batch_is_its_requests_one_by_one(many: list[tuple[np.ndarray, np.ndarray, int]]) -> None:
    width = many[0][2]
    where = np.concatenate([each[0] // each[2] * width for each in many])
    active = np.concatenate([each[1] for each in many])
    for store in (False, True):
        together = shared_wavefronts(where, active, width, store=store)
        alone = [shared_wavefronts(where[i : i + 1], active[i : i + 1], width, store=store) for i in range(len(many))]
        assert np.array_equal(together, np.concatenate(alone, axis=1))
    assert global_sectors(where, active, width).tolist() == [
        len({a // 32 for a, on in zip(row.tolist(), lanes.tolist(), strict=True) if on})
        for row, lanes in zip(where, active, strict=True)
    ]


@given(st.lists(st.integers(0, 100), min_size=32, max_size=32), st.sampled_from([1, 2, 4]))
def test_ldmatrix_serves_each_matrix_like_a_store_of_sixteen_bytes(rows: list[int], matrices: int) -> None:
    where = np.array([rows], dtype=np.int64) * 16
    active = np.arange(32)[None] < 8 * matrices
    assert np.array_equal(ldmatrix_wavefronts(where, matrices), shared_wavefronts(where, active, 16, store=True))


def test_no_requests_and_no_active_lanes() -> None:
    none = np.zeros((0, 32), dtype=np.int64)
    for width in (4, 8, 16):
        assert [len(each) for each in shared_wavefronts(none, none > 0, width, store=False)] == [0, 0]
    assert len(global_sectors(none, none > 0, 4)) == 0
    assert [len(each) for each in ldmatrix_wavefronts(none, 4)] == [0, 0]
    idle = ~np.repeat(ALL, 2, axis=0)
    assert global_sectors(np.zeros((2, 32), dtype=np.int64), idle, 16).tolist() == [0, 0]


def test_what_no_warp_does_is_refused() -> None:
    where = np.zeros((1, 32), dtype=np.int64)
    with pytest.raises(ArgumentError, match="width: got 3"):
        shared_wavefronts(where, ALL, 3, store=False)
    with pytest.raises(ArgumentError, match="matrices: got 3"):
        ldmatrix_wavefronts(where, 3)
    with pytest.raises(ShapeError, match="addresses: got shape"):
        global_sectors(where[0], ALL[0], 4)
    with pytest.raises(ShapeError, match="active: got shape"):
        shared_wavefronts(where, ALL[0], 4, store=False)
