"""The kernel for few rows or columns as its own PTX: every element of every type, and no byte more than there are."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
import pytest

from matmill.choose import choose_transpose_add
from matmill.dtypes import BF16, ELEMENTWISE, F16, F32, F64, I8, DType
from matmill.kernel import ceil_div
from matmill.kernels.shared import bank_padding
from matmill.kernels.transpose.slim import TRANSPOSE_SLIM, space
from matmill.ladders.transpose_add.subject import transpose_add_problem
from matmill.problem import Geam, View
from support.chunked import in_blocks
from support.strided import COLUMN, H200, ROW, Layout, without
from support.strided_sum import StridedSum, check

#: A type of each size. The others of their sizes are moved alike.
SIZED = ("float32", "float64", "bfloat16", "int8")
#: x of the sums that tiles are slow at.
SLOW = (
    (30, 3_000_000, I8),
    (17, 1_000_000, BF16),
    (3, 4_000_000, F64),
    (8, 2_000_000, F16),
    (1_000_000, 17, BF16),
    (2_000_000, 8, F16),
    (4_000_000, 3, F32),
    (3_000_000, 30, I8),
)


def slim(trial: StridedSum, number: int = 0, blocks: int | None = None, ahead: int = 1) -> StridedSum:
    """Return the trial with this kernel, whatever the model would choose.

    With few blocks each processes many chunks, of which so many are ahead.
    """
    configs = space(trial.problem, H200)
    trial.kernel = TRANSPOSE_SLIM.with_config(configs[number % len(configs)])
    if blocks is not None:
        trial.kernel = in_blocks(trial.kernel, trial.problem, blocks, ahead)
    return trial


def shape_of(short: int, long: int, *, wide: bool) -> tuple[int, int, int]:
    """Return the shape of D."""
    return (1, short, long) if wide else (1, long, short)


def made(trial: StridedSum) -> int:
    """Count the vectors of D in a chunk."""
    config = trial.kernel.config
    return config["G"] * config["M"] * config["N"] * trial.problem.dtype.itemsize // bank_padding.VECTOR_BYTES


@pytest.mark.parametrize("name", ["float64", "float16", "int8"])
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
@pytest.mark.parametrize(("x", "y", "d"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 0), (8, 8, 1), (0, 1, 1)])
def test_each_operand_starts_where_it_likes(name: str, x: int, y: int, d: int, *, wide: bool) -> None:
    places = Layout(transposed=True, start=x), Layout(start=y), Layout(start=d)
    trial = slim(StridedSum(shape_of(5, 1024, wide=wide), ELEMENTWISE[name], places, (2.0, -1.0)))
    vectors = 16 // ELEMENTWISE[name].itemsize
    assert trial.kernel.config["Y_WIDTH"] == (gcd(y - d, vectors) if y != d else vectors)
    check(trial)


@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_a_signalling_nan_stays_what_it_is(*, wide: bool) -> None:
    trial = slim(StridedSum(shape_of(5, 333, wide=wide), F32, (COLUMN, None, ROW)))
    place = (0, 4, 7) if wide else (0, 7, 4)
    trial.x.view(np.uint32)[place] = 0x7F800001
    trial.run()
    assert trial.d.view(np.uint32)[place] == 0x7F800001


@pytest.mark.parametrize(("m", "n", "dtype"), SLOW)
def test_it_is_chosen_where_tiles_are_slow(m: int, n: int, dtype: DType) -> None:
    problem = transpose_add_problem(m, n, dtype)
    assert problem.y is not None
    for one in (problem, replace(problem, x=problem.y, y=problem.x)):
        assert choose_transpose_add(one, H200).kernel.entry == "transpose_slim"


@pytest.mark.parametrize(("m", "n"), [(64, 1_000_000), (1_000_000, 64), (100, 500_000), (4096, 4096), (604, 512)])
def test_it_is_not_where_both_sides_fill_tiles(m: int, n: int) -> None:
    problem = transpose_add_problem(m, n, F32)
    assert space(problem, H200) == ()
    assert choose_transpose_add(problem, H200).kernel.entry == "transpose_add"


TALL = Geam(5000, 17, F32, View((1, 5000)), View((17, 1), align=4), View((17, 1), align=4))
WIDE = Geam(17, 5000, F32, View((1, 17), align=4), View((5000, 1)), View((6000, 1)))


@pytest.mark.parametrize(
    ("taken", "change", "reason"),
    [
        (TALL, {"batch": 2}, "2 x 5000 x 17 is not one matrix with one side of 2 to 63"),
        (TALL, {"n": 64}, "not one matrix"),
        (TALL, {"m": 2**30 + 1}, "not one matrix"),
        (TALL, {"n": 18}, "Y with strides (17, 1) is not packed"),
        (TALL, {"x": View((17, 1))}, "X with strides (17, 1) is not contiguous in its columns"),
        (TALL, {"d": View((18, 1))}, "D with strides (18, 1) is not packed"),
        (TALL, {"y": None}, "HAS_Y = 1 where the operands need 0"),
        (TALL, {"x": View((1, 5001), align=4)}, "APART = 0 where the operands need 1"),
        (TALL, {"y": View((17, 1), relative_align=4)}, "Y_WIDTH = 4 where the operands need 1"),
        (WIDE, {"x": View((1, 18))}, "X with strides (1, 18) is not packed"),
        (WIDE, {"y": View((1, 17))}, "Y with strides (1, 17) is not contiguous in its rows"),
        (WIDE, {"d": View((6001, 1), align=4)}, "APART = 0 where the operands need 1"),
        (WIDE, {"m": 16, "x": View((1, 16))}, "constants for a short side of 17"),
        (TALL, {"x": View((17, 1)), "y": View((1, 5000))}, "SWAPPED = 0 where the operands need 1"),
        (TALL, {"x": View((18, 1)), "y": View((1, 5000))}, "X with strides (18, 1) is not packed"),
        (WIDE, {"x": View((5000, 1)), "y": View((1, 18))}, "Y with strides (1, 18) is not packed"),
    ],
)
def test_what_it_does_not_take(taken: Geam, change: dict[str, object], reason: str) -> None:
    kernel = TRANSPOSE_SLIM.with_config(space(taken, H200)[0])
    assert kernel.why_not(taken, H200) is None
    assert reason in (kernel.why_not(replace(taken, **change), H200) or "")  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
@pytest.mark.parametrize(("short", "ahead"), [(16, 1), (17, 2), (17, 0)])
def test_aligned_rows_move_in_whole_vectors_each_sector_once(short: int, ahead: int, name: str, *, wide: bool) -> None:
    dtype = ELEMENTWISE[name]
    trial = StridedSum(shape_of(short, 4096, wide=wide), dtype, (COLUMN, ROW, ROW))
    slim(trial, blocks=3 if ahead else None, ahead=ahead)
    assert trial.kernel.config["AHEAD"] == ahead
    copied = 2 if ahead > 1 else 1
    counters = check(trial).counters
    nbytes = short * 4096 * dtype.itemsize
    # X is copied without registers, and Y where several chunks are ahead; otherwise it is loaded.
    assert counters.cp_async_bytes == counters.cp_async_sectors * 32 == copied * nbytes
    assert counters.global_load_bytes == counters.global_load_sectors * 32 == (2 - copied) * nbytes
    assert counters.global_store_bytes == counters.global_store_sectors * 32 == nbytes
    vectors = made(trial)
    assert counters.global_store_requests == ceil_div(vectors, 32) * nbytes // 16 // vectors


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("wide", [False, True], ids=["tall", "wide"])
def test_rows_of_any_pitch_are_loaded_and_stored_in_whole_vectors(name: str, *, wide: bool) -> None:
    dtype = ELEMENTWISE[name]
    short, long = 17, 16383
    trial = slim(StridedSum(shape_of(short, long, wide=wide), dtype, (COLUMN, ROW, ROW)))
    assert trial.kernel.config["APART"] == 1
    counters = check(trial).counters
    nbytes = short * long * dtype.itemsize
    assert counters.global_store_bytes == nbytes
    # A vector more for each row and chunk is loaded as well; ends of rows go element by element.
    assert 2 * nbytes < counters.global_load_bytes + counters.cp_async_bytes < 2.15 * nbytes
    warps = ceil_div(made(trial) + short, 32) * ceil_div(nbytes, 16 * made(trial))
    requests = counters.global_load_requests + counters.cp_async_requests + counters.global_store_requests
    assert requests < 1.15 * 3 * warps


@pytest.mark.parametrize(("m", "n", "dtype"), SLOW)
def test_bank_padding_leaves_the_wavefronts_that_were_counted_for_them(m: int, n: int, dtype: DType) -> None:
    wide, short, size = n < m, min(m, n), dtype.itemsize
    trial = slim(StridedSum(shape_of(short, 8192, wide=wide), dtype, (COLUMN, ROW, ROW)), 2)
    config = trial.kernel.config
    counters = check(trial).counters
    each, plain = (
        bank_padding.wavefronts(config["M"], config["N"], size, made(trial), kept)
        for kept in ((config["PAD_EVERY"], config["PAD_VECTORS"]), (config["M"], 0))
    )
    of_y = 4 if config["AHEAD"] > 1 else 0  # whole vectors, which a warp reads in so many
    result = counters.shared_load_wavefronts / (short * 8192 * size / 512) - of_y
    assert result <= 1.15 * each * bank_padding.VECTOR_BYTES / min(size, 4)  # elements of 8 bytes take two wavefronts
    assert each <= min(plain, 2.05)
    assert counters.cp_async_shared_wavefronts <= 1.3 * counters.cp_async_bytes / 128


def test_a_block_processes_several_chunks_where_offsets_of_small_elements_are_not_steady() -> None:
    """Several are ahead where Y can be copied, and short rows are no whole vectors."""
    for short, dtype, ahead in ((8, I8, {0}), (17, F32, {0}), (17, I8, {0, 2}), (17, BF16, {0, 2}), (33, I8, {0, 1})):
        result = space(transpose_add_problem(short, 10_000, dtype), H200)
        assert {config["AHEAD"] for config in result} == ahead
        assert all(config["AHEAD"] == 0 or not config["STEADY"] for config in result)
    for m, n, ahead in (
        (100_000, 17, {0}),
        (100_001, 17, {0, 2}),
    ):  # steady offsets, of rows that start anywhere or not
        result = space(transpose_add_problem(m, n, I8), H200)
        assert all(config["STEADY"] for config in result)
        assert {config["AHEAD"] for config in result} == ahead
    narrow = replace(transpose_add_problem(17, 10_000, I8), y=View((17, 1), relative_align=4))
    assert {config["AHEAD"] for config in space(narrow, H200)} == {0, 1}
    config = space(narrow, H200)[0]
    reason = TRANSPOSE_SLIM.with_config(config.replace(AHEAD=2)).why_not(narrow, H200)
    assert reason == "AHEAD = 2 chunks, and Y is loaded 4 elements at a time"


@pytest.mark.parametrize(("missing", "index"), [("__syncthreads();", 2), ("ptx::cp_async_wait<AHEAD - 1>();", 0)])
def test_a_missing_barrier_or_wait_is_found_where_several_chunks_are_ahead(missing: str, index: int) -> None:
    trial = slim(StridedSum((1, 4096, 17), F32, (COLUMN, ROW, ROW)), blocks=1, ahead=2)
    assert trial.run(without(trial.source(), "chunk.cuh", missing, index)).hazards


@pytest.mark.parametrize("missing", ["__syncthreads();", "ptx::cp_async_wait<0>();"])
@pytest.mark.parametrize(("blocks", "index"), [(None, 0), (1, 1)])
def test_a_missing_barrier_or_wait_is_found(missing: str, index: int, blocks: int | None) -> None:
    trial = slim(StridedSum((1, 4096, 8), F32, (COLUMN, ROW, ROW)), blocks=blocks)
    assert trial.run(without(trial.source(), "chunk.cuh", missing, index)).hazards


def test_a_launch_that_does_not_wait_for_the_one_before_it_is_found() -> None:
    trial = slim(StridedSum((1, 4096, 8), F32, (COLUMN, ROW, ROW)))
    report = trial.run(without(trial.source(), "chunk.cuh", "ptx::wait_then_trigger();"))
    assert {hazard.kind for hazard in report.hazards} == {"dependent-launch"}
