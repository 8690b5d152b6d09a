"""The cost model of transpose+add: what bounds sums of each shape, and which tile it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.transpose_add.search import problem_of
from lab.transpose_add.shapes import Shape
from matmill.arch import get
from matmill.choose import choose_transpose_add
from matmill.config import Config
from matmill.dtypes import BF16, F32, I8, DType
from matmill.kernels.shared.model import PRICES, Prediction
from matmill.kernels.transpose import cost, tiles
from matmill.kernels.transpose import slim as transpose_slim
from matmill.kernels.transpose import small as transpose_small
from matmill.ladders.transpose_add.subject import ARTICLE, transpose_add_problem
from matmill.problem import Geam, View

H200 = get("h200")
ODD: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "results" / "transpose_add_odd_h200.json").read_text(encoding="utf-8")
)["sums"]


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


@pytest.mark.parametrize("line", ODD, ids=lambda line: str(Shape.restored(line["shape"])))
def test_the_chosen_tile_of_an_odd_sum_takes_at_most_3_percent_more_than_the_best_one(line: dict[str, Any]) -> None:
    taken = {Config.of(**row["config"]): row["seconds"] for row in line["rows"]}
    chosen = choose_transpose_add(problem_of(Shape.restored(line["shape"])), H200).kernel
    assert chosen.entry == "transpose_add"
    assert taken[chosen.config] <= 1.03 * min(taken.values())


@pytest.mark.parametrize(("m", "n"), [(8, 2000000), (2000000, 8), (17, 1000000), (30, 3000000), (3000000, 30)])
@pytest.mark.parametrize("dtype", [I8, F32])
def test_sums_with_few_rows_or_columns_are_not_mostly_padding(m: int, n: int, dtype: DType) -> None:
    problem = transpose_add_problem(m, n, dtype)
    best = min(tiles.space(problem, H200), key=lambda config: cost.explain(problem, config, H200).seconds)
    padded = tiles.blocks(problem, best) * best["BR"] * best["BC"]
    assert padded < 2.2 * problem.m * problem.n


def test_runs_of_small_matrices_are_one_block_s_work() -> None:
    across = View((32, 1), batch=1024)
    problem = Geam(32, 32, BF16, View((1, 32), batch=1024), across, across, batch=20_000)
    result = [cost.explain(problem, config, H200) for config in transpose_small.space(problem, H200)]
    assert result
    assert min(one.seconds for one in result) < min(one.seconds for one in _all(problem))


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
