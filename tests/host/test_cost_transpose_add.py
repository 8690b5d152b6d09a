"""The cost model of transpose+add: what it says of tiles, and that a fit finds the constants behind measured times."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.model_fit import Found, Samples, Verdict, fit, judge
from lab.models import MODELS
from lab.transpose_add.search import problem_of
from lab.transpose_add.shapes import Shape
from matmill.arch import get
from matmill.choose import choose_transpose_add
from matmill.config import Config
from matmill.dtypes import BF16, ELEMENTWISE, F32, I8, DType
from matmill.kernels.shared.model import PRICES, Prediction
from matmill.kernels.transpose import cost, tiles
from matmill.kernels.transpose import slim as transpose_slim
from matmill.kernels.transpose import small as transpose_small
from matmill.ladders.transpose_add.subject import ARTICLE, transpose_add_problem
from matmill.problem import Geam, View

H200 = get("h200")
MODEL = MODELS["transpose_add"].model
ODD: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "transpose_add_odd_h200.json").read_text(encoding="utf-8")
)["sums"]
TRUTH = replace(
    cost.DEFAULT,
    copy_share=0.8,
    run_bytes=6.0,
    split_bytes=12.0,
    alone=700.0,
    vector_slots=40.0,
    copied_slots=60.0,
)
_NOISE = 0.02


def _all(problem: Geam) -> list[Prediction]:
    return [cost.explain(problem, config, H200) for config in tiles.space(problem, H200)]


def test_the_article_s_sum_is_bound_by_memory_and_a_small_one_by_what_its_threads_issue() -> None:
    article = transpose_add_problem(*ARTICLE)
    best = min(_all(article), key=lambda found: found.seconds)
    assert best.bound == "memory"
    rate = article.least_bytes / best.seconds / H200.dram_bytes_per_s
    assert 0.85 * cost.DEFAULT.copy_share < rate < cost.DEFAULT.copy_share
    small = min(_all(transpose_add_problem(64, 64)), key=lambda found: found.seconds)
    assert small.bound == "issue"
    assert PRICES.launch < small.seconds < 1.5 * PRICES.launch  # its code comes from memory too


def test_longer_rows_and_fewer_instructions_are_better_where_all_else_is_equal() -> None:
    problem = transpose_add_problem(8192, 8192, F32)
    config = tiles.space(problem, H200)[0].replace(BR=32, BC=32, THREADS=256, BLOCKS_PER_SM=8)
    asked = cost.demand(problem, config, H200)
    longer = cost.demand(problem, config.replace(BC=64, BR=64, BLOCKS_PER_SM=2), H200)
    assert longer.bytes == asked.bytes
    assert longer.runs == asked.runs / 2
    shifts = cost.demand(
        transpose_add_problem(8191, 8191, I8), tiles.space(transpose_add_problem(8191, 8191, I8), H200)[0], H200
    )
    assert shifts.elements > cost.demand(problem, config, H200).elements  # padding of shifted tiles counts


def test_parts_of_rows_that_start_inside_a_line_are_split() -> None:
    problem = transpose_add_problem(8191, 8192, I8)  # D's rows start anywhere, X's columns on whole vectors
    by_start = {config["START"]: cost.demand(problem, config, H200) for config in tiles.space(problem, H200)}
    assert {start: asked.split > 0 for start, asked in by_start.items()} == {16: True, 32: True, 64: True, 128: False}
    # Half a sector is another block's where parts start on 16 bytes.
    assert by_start[16].split / by_start[32].split > 1.5
    aligned = transpose_add_problem(8192, 8192, I8)
    assert not any(cost.demand(aligned, config, H200).split for config in tiles.space(aligned, H200))


def test_narrow_vectors_split_rows_that_do_not_start_on_whole_ones_beyond_the_l2_cache() -> None:
    def split(m: int, n: int) -> float:
        problem = transpose_add_problem(m, n, F32)
        narrow = next(config for config in tiles.space(problem, H200) if config["V"] == 1)
        return cost.demand(problem, narrow, H200).split

    assert split(12344, 6789) == 0  # D's rows and Y's start on 16 bytes
    assert split(12345, 6788) == split(12345, 6789) > 0
    assert split(1025, 1025) == 0  # all of it stays in the L2 cache


@pytest.mark.parametrize("line", ODD, ids=lambda line: str(Shape.restored(line["shape"])))
def test_the_chosen_tile_of_an_odd_sum_takes_at_most_3_percent_more_than_the_best_one(line: dict[str, Any]) -> None:
    taken = {Config.of(**row["config"]): row["seconds"] for row in line["rows"]}
    chosen = choose_transpose_add(problem_of(Shape.restored(line["shape"])), H200).kernel
    assert chosen.entry == "transpose_add"
    assert taken[chosen.config] <= 1.03 * min(taken.values())


def test_columns_that_start_anywhere_are_copied_and_gathered() -> None:
    problem = transpose_add_problem(8192, 8191, BF16)
    configs = [config for config in tiles.space(problem, H200) if config["X_MODE"] == tiles.COL_UNALIGNED]
    assert configs
    for config in configs:
        asked = cost.demand(problem, config, H200)
        assert asked.gathered == asked.elements
        # One vector more than a column's part has, and more work at the edges; none is loaded into registers but Y's.
        assert asked.copied > asked.elements / config["V"] * (1 + config["V"] / config["BR"])
        assert asked.vectors == 2 * asked.elements / config["V"]
    tight = transpose_add_problem(217, 333, BF16)
    config = tiles.space(tight, H200)[0]
    few = cost.demand(tight, config, H200).copied / cost.demand(tight, config, H200).elements
    many = cost.demand(problem, config, H200).copied / cost.demand(problem, config, H200).elements
    assert few > 1.2 * many  # most of its tiles have edges


@pytest.mark.parametrize(("m", "n"), [(8, 2000000), (2000000, 8), (17, 1000000), (30, 3000000), (3000000, 30)])
@pytest.mark.parametrize("dtype", [I8, F32])
def test_sums_with_few_rows_or_columns_are_not_mostly_padding(m: int, n: int, dtype: DType) -> None:
    problem = transpose_add_problem(m, n, dtype)
    best = min(tiles.space(problem, H200), key=lambda config: cost.explain(problem, config, H200).seconds)
    padded = tiles.blocks(problem, best) * best["BR"] * best["BC"]
    assert padded < 2.2 * problem.m * problem.n


def test_a_block_that_is_alone_hides_nothing() -> None:
    problem = transpose_add_problem(8192, 8192, F32)
    config = max(tiles.space(problem, H200), key=lambda config: config["BR"] * config["BC"])
    alone, beside = (cost.explain(problem, config.replace(BLOCKS_PER_SM=n), H200) for n in (1, 4))
    assert alone["memory"] == beside["memory"]
    assert alone["blocks"] > alone["memory"] > beside["blocks"]


def test_runs_of_small_matrices_are_one_block_s_work() -> None:
    across = View((32, 1), batch=1024)
    problem = Geam(32, 32, BF16, View((1, 32), batch=1024), across, across, batch=20_000)
    result = [cost.explain(problem, config, H200) for config in transpose_small.space(problem, H200)]
    assert result
    assert min(one.seconds for one in result) < min(one.seconds for one in _all(problem))


def test_each_block_computes_the_offsets_of_elements_of_small_matrices_once() -> None:
    across = View((31, 1), batch=527)
    odd = Geam(17, 31, I8, View((1, 17), batch=527), across, across, batch=50_000)
    config = next(config for config in transpose_small.space(odd, H200) if config["AHEAD"])
    few, many = (cost.demand(replace(odd, batch=batch), config, H200) for batch in (50_000, 500_000))
    assert 9 * few.elements < many.elements < 11 * few.elements
    assert many.located == few.located > 0
    assert many.threads == few.threads == config["BLOCKS_PER_SM"] * config["THREADS"]
    one = next(config for config in transpose_small.space(odd, H200) if not config["AHEAD"])
    each = cost.demand(odd, one, H200)
    assert each.located == each.elements
    even = Geam(16, 32, I8, View((1, 16), batch=512), View((32, 1), batch=512), View((32, 1), batch=512), batch=50_000)
    assert cost.demand(even, transpose_small.space(even, H200)[0], H200).located == 0


#: Instructions beside memory, at the most: elements of a byte have so many that both take as long.
_ISSUE = {I8: 1.15, BF16: 0.8, F32: 0.8}


def test_many_small_matrices_are_not_bound_by_instructions_unless_they_are_of_bytes() -> None:
    for dtype in (I8, BF16, F32):
        for m, n in ((8, 8), (32, 32), (17, 31), (31, 33)):
            across = View((n, 1), batch=m * n)
            batch = 2**26 // (m * n * dtype.itemsize)
            problem = Geam(m, n, dtype, View((1, m), batch=m * n), across, across, batch=batch)
            best = min(
                (cost.explain(problem, config, H200) for config in transpose_small.space(problem, H200)),
                key=lambda found: found.seconds,
            )
            assert best["issue"] < _ISSUE[dtype] * best["memory"]


@pytest.mark.parametrize(("m", "n"), [(3, 5_000_000), (17, 1_000_000), (30, 1_000_001), (1_000_000, 17)])
@pytest.mark.parametrize("dtype", [I8, BF16, F32])
def test_a_slim_sum_is_bound_by_memory_on_the_kernel_for_it_and_less_so_on_tiles(m: int, n: int, dtype: DType) -> None:
    problem = transpose_add_problem(m, n, dtype)
    slim = min(
        (cost.explain(problem, config, H200) for config in transpose_slim.space(problem, H200)),
        key=lambda found: found.seconds,
    )
    assert slim["blocks"] < slim["memory"]
    assert slim["issue"] < _ISSUE[dtype] * slim["memory"]
    assert slim.seconds < min(found.seconds for found in _all(problem))


def test_chunks_of_slim_matrices_hold_no_padding_and_a_vector_more_for_each_unaligned_row_or_column() -> None:
    for m, n in ((17, 2**20), (2**20, 17)):
        even, odd = (transpose_add_problem(m + (m > n) * more, n + (n > m) * more, BF16) for more in (0, 1))
        config, apart = (
            next(one for one in transpose_slim.space(problem, H200) if one["G"] * one["M"] * one["N"] * 2 == 17 * 384)
            for problem in (even, odd)
        )
        whole, cut = cost.demand(even, config, H200), cost.demand(odd, apart, H200)
        assert 17 * 2**20 / H200.sms <= whole.elements < 1.03 * 17 * 2**20 / H200.sms
        assert cut.copied - whole.copied == 17 * whole.elements / (17 * 192)
        # Of D and Y, whose rows are long ones where x has few columns; nobody else writes what is loaded twice of x.
        assert whole.split == 0
        parts = 2 * 17 * -(-(17 * (2**20 + 1)) // (17 * 192)) if m > n else 0
        assert cut.split == parts * 11 / 8  # starts on 16 bytes of 128, of which one in eight is a line's


@pytest.mark.parametrize("name", [name for name in MODEL.names if name != "overlap"])
def test_every_constant_matters_in_the_direction_it_should(name: str) -> None:
    more = replace(cost.DEFAULT, **{name: getattr(cost.DEFAULT, name) * 1.5})
    spaces = [
        (problem, tiles.space(problem, H200))
        for problem in (transpose_add_problem(64, 64), transpose_add_problem(4097, 2049, I8))
    ]
    few = transpose_add_problem(30, 10**6, I8)
    spaces.append((few, transpose_slim.space(few, H200)))
    changes = [
        cost.explain(problem, config, H200, more).seconds - cost.explain(problem, config, H200).seconds
        for problem, configs in spaces
        for config in configs
    ]
    assert any(changes)
    assert all(change <= 0 if name.endswith("_share") else change >= 0 for change in changes)


def test_a_fit_finds_the_constants_behind_noisy_times() -> None:
    noise = np.random.default_rng(4)
    result: list[Found[Geam]] = []
    sizes = [(m + odd, n + odd) for m, n in ((512, 512), (1024, 1024), (4096, 2048), (12288, 8192)) for odd in (0, 1)]
    for dtype in ELEMENTWISE.values():
        for m, n in sizes:
            problem = transpose_add_problem(m, n, dtype)
            configs = tiles.space(problem, H200)
            exact = [cost.explain(problem, config, H200, TRUTH).seconds for config in configs]
            seconds = tuple(time * float(np.exp(noise.normal(0, _NOISE))) for time in exact)
            part = "judge" if len(result) % 3 == 2 else "fit"
            result.append(Found(problem, part, exhaustive=True, configs=configs, seconds=seconds, library=None))
    samples = Samples(MODEL, [one for one in result if one.part == "fit"], H200)
    fitted = fit(samples, starts=1)
    assert samples.loss(fitted) < 1.1 * samples.loss(TRUTH) < 0.2 * samples.loss(cost.DEFAULT)
    verdict = Verdict.of(judge(MODEL, [one for one in result if one.part == "judge"], H200, fitted))
    assert verdict.every_error < 2 * _NOISE
    assert verdict.regret is not None
    assert 1 <= verdict.regret < 1.03
