"""Configurations whose threads read ahead: where they are offered, what makes one legal, and whose tile is whose."""

from __future__ import annotations

from typing import Any

import pytest

from matmill.arch import get
from matmill.bench.products import gram_of, inner_product
from matmill.config import Config
from matmill.cost.inner_passes import groups, teams, tile_of
from matmill.dtypes import ALL
from matmill.kernels.inner import INNER, space
from matmill.problem import Gemm

H200 = get("h200")
K = 10**6


def ahead(problem: Gemm, arch: str = "h200") -> list[Config]:
    return [config for config in space(problem, get(arch)) if config["BK"] and config["U"]]


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize(("m", "n"), [(48, 48), (64, 64), (65, 65), (96, 80), (127, 127)])
@pytest.mark.parametrize("k", [K, K + 1])
def test_they_are_offered_where_multiply_adds_are_the_limit_and_all_are_legal(
    m: int, n: int, k: int, layout: str
) -> None:
    problem = inner_product(m, n, k, ALL["float32"], layout)
    found = ahead(problem)
    assert found
    for config in found:
        assert INNER.with_config(config).why_not(problem, H200) is None
        assert groups(config) * config["S"] >= 0.9 * config["BS"]


@pytest.mark.parametrize(
    "problem",
    [
        inner_product(40, 40, K),
        inner_product(128, 8, K),
        inner_product(64, 64, K, ALL["float64"]),
        inner_product(64, 64, K, ALL["float16"]),
        gram_of(inner_product(64, 64, K)),
        inner_product(64, 64, 5000),
    ],
    ids=str,
)
def test_they_are_not_offered_elsewhere(problem: Gemm) -> None:
    assert not ahead(problem)


@pytest.mark.parametrize("arch", ["t4", "a100", "rtx4090"])
def test_what_other_gpus_are_offered_is_legal(arch: str) -> None:
    problem = inner_product(96, 96, K)
    for config in ahead(problem, arch):
        assert INNER.with_config(config).why_not(problem, get(arch)) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"U": 3}, "BS = 256 threads: not U = 3 teams"),
        ({"U": 8}, "BS = 256 threads: not U = 8 teams"),
        ({"STAGES": 1}, "STAGES = 1"),
        ({"BK": 12, "V": 4}, "BK = 12 is not a multiple of"),
    ],
)
def test_what_makes_one_illegal_is_said(changed: dict[str, Any], reason: str) -> None:
    problem = inner_product(64, 64, K, layout="column")
    (one, *_) = (c for c in ahead(problem) if (c["S"], c["BS"], c["V"], c["E_MODE"], c["F_MODE"]) == (64, 256, 4, 0, 0))
    said = INNER.with_config(one.replace(**changed)).why_not(problem, H200)
    assert said is not None
    assert said.startswith(reason)


@pytest.mark.parametrize(("down", "across"), [(8, 8), (5, 6), (6, 5), (17, 5), (12, 8), (1, 7), (4, 1), (2, 3)])
def test_every_tile_is_some_threads(down: int, across: int) -> None:
    threads = down * across
    tiles = {tile_of(s, down, across, threads, 0) for s in range(threads)}
    assert tiles == {(i, j) for i in range(down) for j in range(across)}


def test_a_block_that_does_not_read_ahead_is_one_team() -> None:
    plain = next(config for config in space(inner_product(24, 24, K), H200) if config["BK"])
    assert teams(plain) == 1
    assert groups(plain) == plain["BS"] // plain["S"]
