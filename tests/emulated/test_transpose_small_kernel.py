"""The kernel for many small matrices as its own PTX: every element of every type, and no byte more than there are."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.choose import choose_transpose_add
from matmill.dtypes import BF16, ELEMENTWISE, F32, I8
from matmill.kernels.shared import bank_padding
from matmill.kernels.transpose.small import TRANSPOSE_SMALL, space
from matmill.problem import Geam, View
from support.chunked import in_blocks
from support.strided import COLUMN, H200, ROW, without
from support.strided_sum import StridedSum, check


def small(trial: StridedSum, number: int = 0, blocks: int | None = None) -> StridedSum:
    """Return the trial with this kernel, whatever the model would choose; with few blocks each does many runs."""
    configs = space(trial.problem, H200)
    trial.kernel = TRANSPOSE_SMALL.with_config(configs[number % len(configs)])
    if blocks is not None:
        trial.kernel = in_blocks(trial.kernel, trial.problem, blocks)
    return trial


def test_many_small_matrices_get_it_and_one_large_one_does_not() -> None:
    rows, across = View((16, 1), 256), View((1, 16), 256)
    many = Geam(16, 16, BF16, across, rows, rows, batch=60_000)
    assert choose_transpose_add(many, H200).kernel.entry == "transpose_small"
    assert choose_transpose_add(replace(many, batch=1), H200).kernel.entry == "transpose_add"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"batch": 1}, "not many small ones"),
        ({"x": View((16, 1), 256)}, "X with strides (16, 1) and 256 between matrices is not packed"),
        ({"d": View((16, 1), 512)}, "D with strides (16, 1) and 512 between matrices is not packed"),
        ({"x": View((16, 1), 256), "y": View((1, 17), 256)}, "Y with strides (1, 17) and 256 between matrices is not"),
    ],
)
def test_what_it_does_not_take(change: dict[str, object], reason: str) -> None:
    rows = View((16, 1), 256)
    taken = Geam(16, 16, F32, View((1, 16), 256), rows, rows, batch=100)
    kernel = TRANSPOSE_SMALL.with_config(space(taken, H200)[0])
    assert kernel.why_not(taken, H200) is None
    problem = replace(taken, **change)  # type: ignore[arg-type]  # fields by name
    assert space(problem, H200) == ()
    assert reason in (kernel.why_not(problem, H200) or "")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_aligned_runs_move_in_whole_vectors_without_a_bank_conflict_on_reads(name: str) -> None:
    dtype = ELEMENTWISE[name]
    counters = check(small(StridedSum((256, 8, 8), dtype, (COLUMN, ROW, ROW)))).counters
    nbytes = 256 * 64 * dtype.itemsize
    # X is copied without registers, Y loaded.
    assert counters.cp_async_sectors * 32 == counters.cp_async_bytes == nbytes
    assert counters.global_load_sectors * 32 == counters.global_load_bytes == nbytes
    assert counters.global_store_requests * 512 == nbytes
    assert counters.shared_load_wavefronts == counters.shared_load_wavefronts_ideal


@pytest.mark.parametrize(("m", "n"), [(16, 16), (17, 31), (32, 32), (33, 31), (12, 20), (64, 2), (7, 9)])
def test_gaps_leave_the_wavefronts_that_were_counted_for_them(m: int, n: int) -> None:
    for dtype in (I8, BF16):
        size = dtype.itemsize
        trial = small(StridedSum((64, m, n), dtype, (COLUMN, None, ROW), (1.0, 0.0)), 1)
        config = trial.kernel.config
        result = check(trial).counters.shared_load_wavefronts / (64 * m * n * size / 512)
        vectors = config["G"] * m * n * size // bank_padding.VECTOR_BYTES
        each, plain = (
            bank_padding.wavefronts(m, n, size, vectors, kept)
            for kept in ((config["PAD_EVERY"], config["PAD_VECTORS"]), (m, 0))
        )
        assert result <= 1.15 * each * bank_padding.VECTOR_BYTES / size
        assert each <= plain


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([2, 4, 8, 16]), st.integers(1, 100))
def test_steady_vectors_are_at_the_same_distances_and_cross_no_matrix(m: int, n: int, v: int, every: int) -> None:
    at = np.arange(lcm(m * n, v) * 4).reshape(-1, v)
    matrix, inside = np.divmod(at, m * n)
    offset = matrix * m * n + inside % n * m + inside // n
    distances = offset + offset // (v * every) * 1000  # padding that no distance within the run makes up for
    distances -= distances[:, :1]
    if bank_padding.steady(m, n, v, every):
        assert (distances == distances[0]).all()


@pytest.mark.parametrize("missing", ["__syncthreads();", "ptx::cp_async_wait<0>();"])
@pytest.mark.parametrize(("blocks", "index"), [(None, 0), (1, 1)])
def test_a_missing_barrier_or_wait_is_found(missing: str, index: int, blocks: int | None) -> None:
    trial = small(StridedSum((256, 8, 8), F32, (COLUMN, ROW, ROW)), blocks=blocks)
    assert trial.run(without(trial.source(), "chunk.cuh", missing, index)).hazards


def test_a_block_processes_several_chunks_where_offsets_of_small_elements_are_not_steady() -> None:
    for m, n, dtype, ahead in ((8, 8, I8, {0}), (17, 23, I8, {0, 1}), (17, 23, F32, {0})):
        rows, across = View((n, 1), m * n), View((1, m), m * n)
        result = space(Geam(m, n, dtype, across, rows, rows, batch=100), H200)
        assert {config["AHEAD"] for config in result} == ahead
