"""Layouts of shared memory: bijections, their places, their costs, the search, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matmill.analysis.swizzle import (
    ACCESSES,
    MODES,
    SharedLayout,
    Swizzle,
    addresses,
    cost,
    layout,
    requests,
    search,
    smallest_pad,
    touched,
    words,
)
from matmill.dtypes import ELEMENTWISE, F16, F32, F64, I8, DType
from matmill.errors import ArgumentError, UnknownNameError
from support.examples import examples

TYPES = [ELEMENTWISE[name] for name in ("int8", "float16", "float32", "float64")]
powers = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@st.composite
def swizzles(draw: st.DrawFn) -> Swizzle:
    bits = draw(st.integers(0, 5))
    shift = draw(st.integers(bits, 8)) * draw(st.sampled_from([1, -1]))
    return Swizzle(bits, draw(st.integers(0, 8)), shift)


@given(swizzles())
def test_a_swizzle_is_a_bijection_and_its_own_inverse(swizzle: Swizzle) -> None:
    offsets = np.arange(1 << max(swizzle.width, 1) + 1)
    moved = swizzle(offsets)
    np.testing.assert_array_equal(np.sort(moved), offsets)
    np.testing.assert_array_equal(swizzle(moved), offsets)
    assert [swizzle(int(i)) for i in offsets[:: len(offsets) // 8 + 1]] == moved[:: len(offsets) // 8 + 1].tolist()
    kept = 1 << swizzle.base
    np.testing.assert_array_equal(moved % kept, offsets % kept)
    assert swizzle.mask.bit_count() == swizzle.bits


def test_the_toy_case_of_s2() -> None:
    assert [Swizzle(2, 0, 2)(i) for i in range(16)] == [i ^ ((i & 0b1100) >> 2) for i in range(16)]
    assert layout(4, 4, F32, "2,0,2").offsets()[3].tolist() == [15, 14, 13, 12]


@examples(60)
@given(powers, powers, st.sampled_from(TYPES), swizzles(), st.integers(0, 9))
def test_no_two_elements_meet_and_none_leaves(
    rows: int, columns: int, dtype: DType, swizzle: Swizzle, pad: int
) -> None:
    names = [
        str(swizzle),
        f"pad:{pad}",
        *(mode for mode, (span, _) in MODES.items() if columns * dtype.itemsize >= span),
    ]
    for name in names:
        try:
            result = layout(rows, columns, dtype, name)
        except ArgumentError:
            assume(name == str(swizzle))
            continue
        offsets = result.offsets()
        assert len(np.unique(offsets)) == rows * columns
        assert 0 <= offsets.min() <= offsets.max() < result.bytes // dtype.itemsize
        assert result.name == name


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("mode", MODES)
def test_hardware_modes_are_their_byte_swizzles_over_panels(mode: str, dtype: DType) -> None:
    span, numbers = MODES[mode]
    size = dtype.itemsize
    result = layout(24, 3 * span // size, dtype, mode)
    swizzle = Swizzle(*numbers)
    for row, column in ((0, 0), (5, 7 % result.columns), (23, result.columns - 1), (9, span // size)):
        byte = column * size
        plain = byte // span * 24 * span + row * span + byte % span
        assert int(result.offset(np.array(row), np.array(column))) * size == swizzle(plain)


@pytest.mark.parametrize(
    ("shape", "dtype", "access", "name", "ideal", "actual"),
    [
        ((64, 64), F16, "ldmatrix", "none", 4, 32),
        ((64, 64), F16, "ldmatrix", "3,3,3", 4, 4),
        ((64, 64), F16, "ldmatrix", "2,3,3", 4, 8),
        ((64, 64), F16, "ldmatrix", "128B", 4, 4),
        ((64, 32), F16, "ldmatrix", "64B", 4, 4),
        ((64, 16), F16, "ldmatrix", "32B", 4, 4),
        ((64, 16), F16, "ldmatrix", "none", 4, 8),
        ((64, 128), F16, "ldmatrix", "128B", 4, 4),
        ((64, 64), F16, "ldmatrix", "pad:8", 4, 4),
        ((64, 64), F16, "column", "none", 1, 32),
        ((64, 64), F16, "column", "3,3,3", 1, 4),
        ((64, 64), F16, "column", "5,1,5", 1, 1),
        ((64, 64), F16, "row", "3,3,3", 1, 1),
        ((64, 64), F16, "vec16", "3,3,3", 4, 4),
        ((32, 32), F32, "column", "none", 1, 32),
        ((32, 32), F32, "column", "pad:1", 1, 1),
        ((32, 32), F64, "row", "none", 2, 2),
        ((32, 32), F64, "column", "none", 2, 32),
        ((64, 64), I8, "column", "none", 1, 16),
    ],
)
def test_wavefronts_of_one_access(  # noqa: PLR0917 — a case's columns
    shape: tuple[int, int], dtype: DType, access: str, name: str, ideal: int, actual: int
) -> None:
    result = cost(layout(*shape, dtype, name), access)
    assert (int(result.ideal[result.worst]), int(result.actual[result.worst])) == (ideal, actual)
    assert result.conflicts == int((result.actual - result.ideal).sum())


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("shape", [(64, 64), (16, 32), (32, 96)])
def test_requests_go_over_every_element_once(access: str, shape: tuple[int, int]) -> None:
    asked = requests(*shape, F16, access)
    seen = np.zeros(shape, dtype=np.int64)
    for element in range(asked.width // 2):
        np.add.at(seen, (asked.rows[asked.active], asked.columns[asked.active] + element), 1)
    assert (seen == 1).all()


def test_lanes_are_as_described() -> None:
    row, column = (requests(40, 40, F32, access) for access in ("row", "column"))
    assert row.columns[0].tolist() == column.rows[0].tolist() == list(range(32))
    assert not row.rows[0].any()
    assert not column.columns[0].any()
    assert row.active.sum(axis=1)[:2].tolist() == column.active.sum(axis=1)[:2].tolist() == [32, 8]
    vectors = requests(64, 64, F16, "vec16")
    assert vectors.rows[0].tolist() == [lane // 8 for lane in range(32)]
    assert vectors.columns[0].tolist() == [lane % 8 * 8 for lane in range(32)]
    matrices = requests(16, 16, F16, "ldmatrix")
    assert matrices.rows[0].tolist() == [lane % 16 for lane in range(32)]
    assert matrices.columns[0].tolist() == [lane // 16 * 8 for lane in range(32)]


@examples(40)
@given(st.sampled_from([8, 16, 32, 64, 24]), st.sampled_from([16, 32, 64, 40]), st.sampled_from(TYPES), st.data())
def test_what_the_search_finds_has_no_conflicts_and_fewer_bits_have(
    rows: int, columns: int, dtype: DType, data: st.DataObject
) -> None:
    access = data.draw(st.sampled_from(sorted(ACCESSES)))
    try:
        requests(rows, columns, dtype, access)
    except ArgumentError:
        assume(False)  # noqa: FBT003 — Hypothesis's own signature
    result = search(rows, columns, dtype, access)
    if result is not None:
        priced = cost(layout(rows, columns, dtype, result.name), access)
        assert priced.conflicts == 0
        assert (result.swizzle.bits == 0) == (cost(SharedLayout(rows, columns, dtype), access).conflicts == 0)
        base, shift = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
        bits = result.swizzle.bits - 1
        if bits > 0 and shift >= bits:
            try:
                smaller = cost(layout(rows, columns, dtype, f"{bits},{base},{shift}"), access)
            except ArgumentError:
                return  # it leaves the matrix, or tears vectors apart
            assert smaller.conflicts > 0
    padded = smallest_pad(rows, columns, dtype, access)
    if padded is not None:
        assert cost(padded, access).conflicts == 0


def test_the_search_s_order() -> None:
    names = {
        (64, 64, F16, "ldmatrix"): ("3,3,3", 8),
        (64, 32, F16, "ldmatrix"): ("2,3,3", 8),
        (32, 32, F32, "column"): ("5,0,5", 1),
        (64, 64, F16, "column"): ("5,1,5", 2),
        (64, 64, F16, "row"): ("none", 0),
    }
    for (rows, columns, dtype, access), (name, pad) in names.items():
        result, padded = search(rows, columns, dtype, access), smallest_pad(rows, columns, dtype, access)
        assert result is not None
        assert padded is not None
        assert (result.name, padded.pad) == (name, pad)
    # Of 34 bytes per row only neighbours can change places, which stay in their word.
    assert search(32, 34, I8, "column") is None


def test_words_tell_where_elements_lie() -> None:
    rows, columns = words(layout(4, 30, F32, "pad:2"))
    assert rows.shape == (4, 32)
    assert rows[1].tolist() == [1] * 30 + [-1] * 2
    assert columns[2, :30].tolist() == list(range(30))
    halves = words(layout(2, 64, F16))[1]
    assert halves[0].tolist() == list(range(0, 64, 2))
    doubles = words(layout(2, 16, F64))[1]
    assert doubles[1].tolist() == [column // 2 for column in range(32)]
    swapped = words(layout(8, 64, F16, "128B"))[1]
    assert swapped[1, :8].tolist() == [8, 10, 12, 14, 0, 2, 4, 6]


def test_touched_words_are_those_of_the_access() -> None:
    result = layout(64, 64, F16, "3,3,3")
    wanted = touched(result, "ldmatrix", 0)
    assert wanted.sum() == 32 * 4
    assert wanted.sum(axis=0).tolist() == [4] * 32
    assert touched(layout(64, 64, F16), "column", 0).sum(axis=0).tolist() == [32] + [0] * 31
    assert touched(layout(4, 40, F32), "row", 1).sum() == 8


@pytest.mark.parametrize(
    ("rows", "columns", "name", "words"),
    [
        (64, 64, "3,3", "got '3,3'; wanted B,M,S"),
        (64, 64, "three", "wanted B,M,S"),
        (64, 64, "pad:-1", "wanted B,M,S"),
        (64, 64, "3,3,2", "swizzle: got 3,3,2; wanted .* shift of at least as many positions"),
        (64, 64, "3,8,3", "swizzle: got 3,8,3, which moves elements by bits up to bit 13; wanted bits of the 4096"),
        (64, 64, "3,3,99", "up to bit 104"),
        (8, 8, "3,0,3", None),
        (8, 8, "3,0,4", "wanted bits of the 64 offsets"),
        (6, 6, "2,1,2", "got 2,1,2"),
        (6, 6, "1,1,-3", "got 1,1,-3"),
        (64, 32, "128B", "shape: got rows of 64 bytes for 128B; wanted rows of a multiple of 128 bytes"),
        (64, 24, "32b", "got rows of 48 bytes for 32B"),
        (0, 64, "none", "shape: got 0x64"),
        (4096, 4096, "none", "at most 262144 bytes"),
        (64, 64, "pad:99999", "at most 262144 bytes"),
    ],
)
def test_layouts_that_are_none(rows: int, columns: int, name: str, words: str | None) -> None:
    if words is None:
        assert layout(rows, columns, F16, name).offsets().max() == rows * columns - 1
        return
    with pytest.raises(ArgumentError, match=words) as caught:
        layout(rows, columns, F16, name)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "access"),
    [("2,0,2", "ldmatrix"), ("1,2,5", "vec16"), ("pad:1", "vec16"), ("pad:4", "ldmatrix"), ("2,2,-4", "vec16")],
)
def test_vectors_must_stay_together(name: str, access: str) -> None:
    result = layout(64, 64, F16, name)
    with pytest.raises(ArgumentError, match=r"keeps 16 bytes \(8 elements of a row\) together .* base of 3 or more"):
        addresses(result, requests(64, 64, F16, access))
    assert cost(result, "row").actual.min() >= 1


def test_matrices_that_no_access_can_be_cut_from() -> None:
    with pytest.raises(ArgumentError, match="shape: got 64x60 float16; wanted rows of whole 16-byte vectors of 8"):
        requests(64, 60, F16, "vec16")
    with pytest.raises(ArgumentError, match="shape: got 8x16 float16; wanted matrices of 8 rows by 8 columns"):
        requests(8, 16, F16, "ldmatrix")
    with pytest.raises(ArgumentError, match="shape: got 12x64"):
        requests(12, 64, F16, "ldmatrix")
    with pytest.raises(UnknownNameError, match=r"access: got 'columns'.* Did you mean 'column'"):
        requests(64, 64, F16, "columns")
