"""The transpose+add kernel's own PTX in the emulator: every element, whatever the layout, and no access too many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matmill.dtypes import ELEMENTWISE, TRANSPOSES
from matmill.kernel import ceil_div
from matmill.kernels.transpose.add import TRANSPOSE_ADD
from matmill.kernels.transpose.tiles import COL_UNALIGNED, ROW_UNALIGNED, layout, space, tiles
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_sum import StridedSum, check


def test_a_signalling_nan_stays_what_it_is() -> None:
    trial = StridedSum((1, 33, 20), ELEMENTWISE["float32"], (COLUMN, None, ROW))
    bits = trial.x.view(np.uint32)
    bits[0, 5, 7] = 0x7F800001
    trial.run()
    assert trial.d.view(np.uint32)[0, 5, 7] == 0x7F800001


@pytest.mark.parametrize("name", ["int8", "float16", "float32", "float64", "complex128"])  # one of each size
def test_every_tile_without_shifts(name: str) -> None:
    trial = StridedSum((1, 35, 261), TRANSPOSES[name], (COLUMN, ROW, ROW))
    narrow = tiles(trial.problem, H200, layout(trial.problem, shifted=False))
    assert {config["V"] for config in narrow} == {1}
    for config in narrow:
        trial.kernel = TRANSPOSE_ADD.with_config(config)
        check(trial)


def test_strides_that_take_64_bits_are_told_apart() -> None:
    problem = StridedSum((1, 50, 70), ELEMENTWISE["float32"], (COLUMN, ROW, ROW)).problem
    for stride, far in ((2**29 - 1, 0), (2**29, 1)):
        asked = replace(problem, x=replace(problem.x, strides=(1, stride)))
        assert {config["FAR"] for config in space(asked, H200)} == {far}
    near = TRANSPOSE_ADD.with_config(space(asked, H200)[0].replace(FAR=0))
    assert near.why_not(asked, H200) == "FAR = 0 where strides take 64 bits"


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize(("pad", "before"), [(0, 1), (3, 0), (5, 7)])
def test_rows_of_y_that_start_elsewhere_are_loaded_in_whole_vectors(name: str, pad: int, before: int) -> None:
    dtype = ELEMENTWISE[name]
    trial = StridedSum((2, 65, 200), dtype, (COLUMN, Layout(pad=pad, start=before), ROW), (1.0, -2.0))
    (mode,) = {config["Y_MODE"] for config in space(trial.problem, H200) if config["V"] * dtype.itemsize == 16}
    assert mode == ROW_UNALIGNED
    for config in space(trial.problem, H200)[::7]:
        trial.kernel = TRANSPOSE_ADD.with_config(config)
        check(trial)


def test_rows_of_y_that_start_elsewhere_take_few_loads() -> None:
    trial = StridedSum((1, 64, 2047), ELEMENTWISE["bfloat16"], (COLUMN, Layout(pad=3), ROW))
    assert trial.kernel.config["Y_MODE"] == ROW_UNALIGNED
    counters = check(trial).counters
    # A vector of eight for each of X and of Y, one more a line, and more at the ends of rows; single ones would be 8.
    assert (counters.global_load_requests + counters.cp_async_requests) * 32 < 5 * 64 * 2047 / 8


def copying(trial: StridedSum, **constants: int) -> StridedSum:
    """Return a configuration with a tile whose columns of X start anywhere, of these constants."""
    result = (c for c in space(trial.problem, H200) if c["X_MODE"] == COL_UNALIGNED)
    trial.kernel = TRANSPOSE_ADD.with_config(next(c for c in result if all(c[k] == v for k, v in constants.items())))
    return trial


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_columns_that_start_anywhere_are_copied_as_they_lie_in_whole_vectors(name: str) -> None:
    dtype = ELEMENTWISE[name]
    m, n = 512 // dtype.itemsize, 130
    trial = copying(
        StridedSum((1, m, n), dtype, (Layout(transposed=True, pad=1), None, Layout(pad=-n % 16)), (2.0, 0.0))
    )
    counters = check(trial).counters
    config, v = trial.kernel.config, 16 // dtype.itemsize
    # Of each column's part all vectors that hold some of it: one more than it has, unless it starts on one.
    parts = n * ceil_div(m, config["BR"])
    assert counters.cp_async_bytes <= 16 * parts * (config["BR"] // v + 1)
    assert counters.cp_async_bytes > 16 * parts * (config["BR"] // v)
    # What is not in whole vectors of the matrix goes by elements: at its two ends in memory.
    assert counters.global_load_bytes < 2 * 16 * ceil_div(m, config["BR"])


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "float64"])
@pytest.mark.parametrize(("pad", "before"), [(1, 0), (3, 5), (7, 1), (2, 3)])
def test_columns_of_any_pitch_and_start(name: str, pad: int, before: int) -> None:
    dtype = ELEMENTWISE[name]
    x = Layout(transposed=True, pad=pad, start=before)
    trial = StridedSum((2, 100, 137), dtype, (x, Layout(start=1), Layout(pad=1)))
    moved = [config for config in space(trial.problem, H200) if config["X_MODE"] == COL_UNALIGNED]
    assert bool(moved) == (pad * dtype.itemsize % 16 != 0 or before * dtype.itemsize % 16 != 0)
    for config in moved[:: max(1, len(moved) // 3)]:
        trial.kernel = TRANSPOSE_ADD.with_config(config)
        check(trial)


def test_columns_that_start_anywhere_and_run_backwards() -> None:
    trial = StridedSum((1, 70, 90), ELEMENTWISE["bfloat16"], (Layout(transposed=True, pad=1), ROW, Layout(pad=1)))
    row, column = trial.problem.x.strides
    trial.problem = replace(trial.problem, x=replace(trial.problem.x, strides=(row, -column)))
    trial.arrays["X"] = trial.x[:, :, ::-1]
    check(copying(trial))


@pytest.mark.parametrize("name", ["float64", "bfloat16", "int8"])
def test_edges_of_a_batch_are_copied_in_whole_vectors_but_for_its_two_ends(name: str) -> None:
    dtype = ELEMENTWISE[name]
    trial = copying(StridedSum((3, 151, 203), dtype, (COLUMN, None, ROW), (2.0, 0.0)))
    counters = check(trial).counters
    assert 0 < counters.global_load_bytes < 2 * 16
    assert counters.cp_async_bytes > 3 * 151 * 203 * dtype.itemsize


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("in_place", [False, True])
def test_vectors_of_y_that_stick_out_of_rows_are_loaded_whole_unless_others_write_there(
    name: str, *, in_place: bool
) -> None:
    dtype = ELEMENTWISE[name]
    rows, columns = 151, 203
    trial = copying(StridedSum((1, rows, columns), dtype, (COLUMN, ROW, ROW), in_place=in_place))
    counters = check(trial).counters
    # Each row has two vectors, at the most, that hold other rows' elements as well.
    most = rows * (columns * dtype.itemsize + 2 * 16)
    assert counters.global_load_bytes < most
    if in_place:
        assert counters.global_load_bytes <= dtype.itemsize * rows * columns + 2 * 16
    else:
        assert counters.global_load_bytes > dtype.itemsize * rows * columns + 8 * rows


def test_blocks_that_copy_leave_room_for_a_cache() -> None:
    trial = StridedSum((1, 5000, 5001), ELEMENTWISE["int8"], (Layout(transposed=True, pad=3), Layout(pad=7), ROW))
    configs = space(trial.problem, H200)
    assert any(config["Y_MODE"] == ROW_UNALIGNED for config in configs)
    for config in configs:
        taken = config["BLOCKS_PER_SM"] * (config["SHARED_BYTES"] + H200.shared_reserved)
        assert config["X_MODE"] != COL_UNALIGNED or taken <= 0.9 * H200.shared_per_sm


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_rows_of_y_that_start_elsewhere_and_run_backwards(name: str) -> None:
    trial = StridedSum((1, 40, 150), ELEMENTWISE[name], (COLUMN, Layout(pad=1), ROW))
    assert trial.y is not None
    assert trial.problem.y is not None
    backwards = trial.y[:, ::-1]
    row, column = trial.problem.y.strides
    trial.problem = replace(trial.problem, y=replace(trial.problem.y, strides=(-row, column)))
    trial.arrays["Y"] = backwards
    wide = [config for config in space(trial.problem, H200) if config["Y_MODE"] == ROW_UNALIGNED]
    trial.kernel = TRANSPOSE_ADD.with_config(wide[len(wide) // 2])
    check(trial)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_few_long_rows_are_made_down_their_columns(name: str) -> None:
    trial = StridedSum((1, 70, 1500), ELEMENTWISE[name], (COLUMN, ROW, ROW))
    result = sorted(space(trial.problem, H200), key=lambda config: config["BR"])
    assert result[0]["BR"] < 70
    for config in (result[0], result[1], result[-1]):
        trial.kernel = TRANSPOSE_ADD.with_config(config)
        check(trial)


@pytest.mark.parametrize("name", TRANSPOSES)
def test_an_aligned_transpose_reads_each_sector_once_and_meets_in_no_bank(name: str) -> None:
    dtype = TRANSPOSES[name]
    side = 256 // dtype.itemsize
    trial = StridedSum((1, side, side), dtype, (COLUMN, ROW, ROW))
    lines = 128 // dtype.itemsize  # of a tile whose lines are 128 bytes both ways, or twice that down
    shapes = [(lines, lines), (2 * lines, lines)]
    configs = sorted(space(trial.problem, H200), key=lambda c: c["BR"])
    trial.kernel = TRANSPOSE_ADD.with_config(next(c for c in configs if (c["BR"], c["BC"]) in shapes))
    counters = check(trial).counters
    assert counters.global_load_sectors * 32 == 2 * side * side * dtype.itemsize
    assert counters.global_store_sectors * 32 == side * side * dtype.itemsize
    # Numbers of less than a word share words, which costs stores passes that no layout of ours avoids.
    assert counters.shared_load_wavefronts == counters.shared_load_wavefronts_ideal


def test_rows_of_any_pitch_are_stored_in_whole_vectors() -> None:
    trial = StridedSum((1, 64, 1023), ELEMENTWISE["float32"], (COLUMN, ROW, ROW))
    trial.kernel = TRANSPOSE_ADD.with_config(next(one for one in space(trial.problem, H200) if one["SHIFTED"]))
    counters = check(trial).counters
    assert counters.global_store_bytes == 64 * 1023 * 4
    # Four elements to a lane but for the ends of the rows, where stores of one element would need 32 lanes for 32.
    assert counters.global_store_requests * 32 < 64 * 1023 / 2
