"""Problems of ladders, the inputs of a run, and the bounds that results are judged by."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest

from matmill.arch import get
from matmill.arrays import inspect
from matmill.bench.problems import error_bounds
from matmill.bench.problems.error_bounds import random_sum
from matmill.bench.problems.inputs import Inputs, InputsBySize
from matmill.bench.problems.random_numbers import uniform
from matmill.dtypes import ALL, BF16, ELEMENTWISE, F16, F32, F64, DType
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.inner.subject import CASES, TRAFFIC, case, gram_of, inner_product
from matmill.ladders.runner.selection import nearest
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.ladders.transpose_add.subject import ARTICLE, MOVING, transpose_add_problem
from matmill.lowering import lower_transpose

BY_LABEL = {rung.label: rung for rung in INNER}


# Problems


def test_the_cases_are_the_paper_s() -> None:
    assert CASES["MTXA"] == (3, 3, 50_000_000)
    assert CASES["MTXB"] == (5, 5, 300_000_000)
    assert (CASES["MTXC"], CASES["MTXC-2e8"]) == ((7, 7, 2_000_000_000), (7, 7, 200_000_000))
    assert [CASES[f"MTX{i}"] for i in (1, 2, 3)] == [(m, m, 30_000_000) for m in (5, 7, 9)]
    assert case("mtxc-2E8") == CASES["MTXC-2e8"]


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("k", [1, 7, 8, 100])
@pytest.mark.parametrize("layout", ["row", "column", "gram"])
def test_alignments_are_true_of_the_arrays(layout: str, k: int, dtype: Any) -> None:
    problem = inner_product(3, 5, k, dtype, "row" if layout == "gram" else layout)
    if layout == "gram":
        problem = gram_of(problem)
    result = Inputs.random(problem, 1)
    size = dtype.itemsize
    for matrix, strides, align in (
        (result.a, problem.a_row_col, problem.a_align),
        (result.b, problem.b_row_col, problem.b_align),
    ):
        steps = [stride for stride, extent in zip(matrix.strides, matrix.shape, strict=True) if extent > 1]
        wanted = [s * size for s, extent in zip(strides, matrix.shape, strict=True) if extent > 1]
        assert steps == wanted
        assert len(steps) < 2 or max(steps) % align == 0  # a single line starts where its memory does
    assert result.b.shape == (k, problem.n)


def test_a_gram_rung_gets_the_transpose_and_others_the_size_asked_for() -> None:
    h200 = get("h200")
    asked = inner_product(5, 3, 100, F64, "column")
    result, reason = nearest(BY_LABEL["gram"], asked, h200, TRAFFIC)
    assert result == gram_of(asked)
    assert reason == "its F is the transpose of E"
    assert all(
        nearest(rung, asked, h200, TRAFFIC) == (asked, "") for label, rung in BY_LABEL.items() if label != "gram"
    )


@pytest.mark.parametrize("dtype", ELEMENTWISE.values(), ids=ELEMENTWISE)
@pytest.mark.parametrize(("m", "n"), [(64, 48), (67, 33), (66, 36), (2, 3)])
def test_the_problem_is_the_one_that_operations_make_of_such_arrays(m: int, n: int, dtype: DType) -> None:
    room = np.empty(3 * m * n * dtype.itemsize + 64, np.uint8)
    start = -room.ctypes.data % 16
    x, y, d = (
        room[start + 16 * (place * m * n * dtype.itemsize // 16) :][: m * n * dtype.itemsize].view(dtype.numpy)
        for place in range(3)
    )
    operands = (x.reshape(m, n), y.reshape(n, m), d.reshape(n, m))
    (stage,) = lower_transpose(*(inspect(array, "x") for array in operands))
    result = transpose_add_problem(m, n, dtype)
    assert (result.m, result.n, result.d.align, result.x.align) == (n, m, stage.problem.d.align, stage.problem.x.align)
    assert (result.x.strides, result.y, result.d) == (stage.problem.x.strides, stage.problem.y, stage.problem.d)


def test_every_rung_takes_the_article_s_sum() -> None:
    asked = transpose_add_problem(*ARTICLE)
    assert all(nearest(rung, asked, get("h200"), MOVING) == (asked, "") for rung in TRANSPOSE_ADD)
    assert asked.least_bytes == 3 * 2 * 24300 * 11520


# Inputs


@pytest.mark.parametrize("start", [0, 1, 6, 7])
@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda dtype: dtype.name)
def test_threads_draw_what_one_generator_would(start: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matmill.bench.problems.random_numbers._CHUNK", 8)
    generator = np.random.default_rng([3, 4])
    expected = 2 * generator.random(start + 60, dtype=dtype.numpy)[start:] - 1
    assert np.array_equal(uniform([3, 4], start, (6, 10), dtype), expected.reshape(6, 10))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
def test_16_bit_inputs_are_the_float32_ones_rounded(dtype: Any) -> None:
    wide = uniform([5], 0, (4, 100), F32)
    assert np.array_equal(uniform([5], 0, (4, 100), dtype), wide.astype(dtype.numpy))


def test_a_gram_matrix_shares_the_one_input() -> None:
    by_size = InputsBySize(1)
    asked = inner_product(4, 4, 50)
    plain, gram = by_size.of(asked), by_size.of(gram_of(asked))
    assert np.shares_memory(plain.a, gram.a)
    assert np.shares_memory(plain.a, gram.b)
    alone = InputsBySize(1).of(gram_of(asked))
    assert np.array_equal(alone.a, plain.a)


# Bounds


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
def test_the_bound_holds_for_a_running_sum_and_not_for_a_wrong_one(dtype: Any) -> None:
    problem = inner_product(3, 4, 50_000, dtype)
    result = Inputs.random(problem, 11, random_sum)
    wide = dtype.accumulator.numpy
    a, b = result.a.astype(wide), result.b.astype(wide)
    running = np.array([[np.cumsum(row * column)[-1] for column in b.T] for row in a]).astype(dtype.numpy)
    assert result.check(running).ok
    assert not result.check(np.zeros_like(running)).ok
    off = running.copy()
    off[1, 2] += dtype.numpy.type(4)
    assert not result.check(off).ok
    off[1, 2] = np.nan
    assert result.check(off).error_ratio == np.inf
    assert not result.check(running.astype(F32.numpy if dtype is F64 else F64.numpy)).ok


def test_blocks_along_k_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Inputs.random(inner_product(2, 3, 5000, F64, "column"), 1, random_sum)
    whole, limit = random_sum(result.a, result.b)
    monkeypatch.setattr(error_bounds, "_BLOCK", 1)
    parts, again = random_sum(result.a, result.b)
    assert np.allclose(parts, whole, rtol=1e-13, atol=1e-12)
    assert np.allclose(limit, again)
    assert np.all(np.abs(whole - result.a @ result.b) <= limit)


def test_the_bound_is_the_worst_case_where_k_is_short() -> None:
    a, b = np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)
    terms = 5 * 2.0**-24
    _, limit = random_sum(a, b)
    assert limit[0, 0] == pytest.approx(2 * terms / (1 - terms))
    a, b = np.ones((1, 10_000), np.float32), np.ones((10_000, 1), np.float32)
    _, limit = random_sum(a, b)
    assert limit[0, 0] == pytest.approx(8 * 2.0**-24 * (10_000 + sqrt(10_000) * 10_000))


def test_a_sum_beyond_float16_must_be_infinite() -> None:
    problem = inner_product(1, 1, 200, F16)
    a, b = (np.full(shape, 30, np.float16) for shape in ((1, 200), (200, 1)))
    result = Inputs(problem, a, b, random_sum)
    assert result.check(np.array([[np.inf]], np.float16)).ok
    assert not result.check(np.array([[65504]], np.float16)).ok
