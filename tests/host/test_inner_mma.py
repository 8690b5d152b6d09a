"""Configurations on tensor cores: where they are offered, that they fit, what makes one illegal, and Gram matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from matmill.arch import get
from matmill.choose import choose_from
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.kernel import Production
from matmill.kernels.inner import INNER, cost, space
from matmill.kernels.inner.mma import why_not_mma
from matmill.kernels.inner.passes import (
    groups,
    k_groups,
    outputs_of,
    remainder,
)
from matmill.ladders.inner.subject import gram_of, inner_product
from matmill.problem import Gemm

H200 = get("h200")
K = 10**6


def on_tensor_cores(problem: Gemm, arch: str = "h200") -> list[Config]:
    return [config for config in space(problem, get(arch)) if config["MMA"]]


def fits(config: Config, problem: Gemm, arch: str = "h200") -> bool:
    """Tell whether it is legal, and an SM holds as many blocks as it assumes, with registers for their sums."""
    gpu, blocks = get(arch), config["BLOCKS_PER_SM"]
    return (
        INNER.with_config(config).why_not(problem, gpu) is None
        and config["SHARED_BYTES"] <= gpu.shared_per_block
        and gpu.resident(config["BS"], outputs_of(config) + 24, config["SHARED_BYTES"])[0] >= blocks
    )


#: Sizes at which FMAs would be the limit, by type, and how much an odd k exceeds an even one.
OFFERED = {
    "float32": ([(24, 24), (64, 64), (65, 65), (96, 80), (33, 50), (128, 128)], 1),
    **dict.fromkeys(("float16", "bfloat16"), (((8, 8), (16, 16), (64, 48), (33, 50), (127, 127)), 2)),
    "float64": ([(16, 16), (24, 24), (33, 50), (64, 64), (100, 20)], 1),
}


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize(
    ("dtype", "m", "n", "k"),
    [(dtype, m, n, K + more) for dtype, (sizes, odd) in OFFERED.items() for m, n in sizes for more in (0, odd)],
)
def test_they_are_offered_where_they_fit(dtype: str, m: int, n: int, k: int, layout: str) -> None:
    problem = inner_product(m, n, k, ALL[dtype], layout)
    result = on_tensor_cores(problem)
    assert result
    for config in result:
        assert fits(config, problem), str(config)
        assert 1 <= k_groups(config) <= groups(config)
        assert dtype != "float32" or config["STAGES"] >= 2
        # Neighbouring columns of 16 bits are loaded in pairs, if their number is even.
        single = layout == "column" or n % 2 or ALL[dtype].itemsize > 2
        assert single or config["TN"] % 2 == config["F_GROUP"] % 2 == 0
    if dtype == "float64":
        assert on_tensor_cores(problem, "a100")
        assert not on_tensor_cores(problem, "rtx4090")
        text = INNER.with_config(result[0]).why_not(problem, get("rtx4090"))
        assert "has no tensor cores for float64" in (text or "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("m", [24, 40, 64])
def test_gram_matrices_have_square_tiles_and_warps_on_and_above_the_diagonal(m: int, dtype: str) -> None:
    problem = gram_of(inner_product(m, m, K, ALL[dtype]))
    result = on_tensor_cores(problem)
    assert result
    for config in result:
        assert fits(config, problem), str(config)
        down = config["DOWN"]
        assert config["ACROSS"] == down
        assert config["S"] == 32 * down * (down + 1) // 2
        assert 8 * down * min(config["TM"], config["TN"]) >= m
        assert config["TM"] == config["TN"] or down == 1


@pytest.mark.parametrize(
    "problem",
    [
        inner_product(3, 3, K),
        inner_product(12, 12, K),
        inner_product(128, 4, K),
        gram_of(inner_product(12, 12, K)),
        inner_product(8, 8, K, ALL["float64"], "column"),
        inner_product(4, 4, K, ALL["float16"], "column"),
        replace(inner_product(64, 64, K + 1, ALL["bfloat16"], "column"), a_start_align=2),  # within a vector
        inner_product(128, 128, K, ALL["bfloat16"], "row"),
        inner_product(64, 129, K),
    ],
    ids=str,
)
def test_they_are_not_offered_elsewhere(problem: Gemm) -> None:
    assert not on_tensor_cores(problem)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gpus_older_than_tf32_and_bfloat16_are_not_offered_them(dtype: str) -> None:
    problem = inner_product(64, 64, K, ALL[dtype], "column")
    (one, *_) = on_tensor_cores(problem)
    assert space(problem, get("t4"))
    assert not on_tensor_cores(problem, "t4")
    text = INNER.with_config(one).why_not(problem, get("t4"))
    assert text is not None
    assert "needs compute capability 8.0" in text


@pytest.mark.parametrize(("arch", "dtype"), [("a100", "float32"), ("a100", "float16"), ("rtx4090", "float16")])
def test_what_other_gpus_are_offered_fits_them(arch: str, dtype: str) -> None:
    problem = inner_product(128, 128, K, ALL[dtype], "column")
    result = on_tensor_cores(problem, arch)
    assert result
    assert all(fits(config, problem, arch) for config in result)


@pytest.mark.parametrize(("m", "left"), [(64, 0), (65, 1), (68, 4), (69, 0), (100, 4)])
def test_float32_may_have_a_remainder_of_up_to_four_rows(m: int, left: int) -> None:
    problem = inner_product(m, 64, K, layout="column")
    result = {m - 8 * config["TM"] * config["DOWN"] for config in on_tensor_cores(problem)}
    assert max(0, *result) == left
    assert max(remainder(config)[0] for config in on_tensor_cores(problem)) > 0 or left == 0


@pytest.mark.parametrize(
    "problem",
    [
        inner_product(65, 65, K, ALL["float64"], "column"),
        inner_product(65, 65, K, ALL["bfloat16"], "column"),
        gram_of(inner_product(65, 65, K)),
    ],
    ids=str,
)
def test_other_types_and_gram_matrices_have_no_remainder(problem: Gemm) -> None:
    configs = on_tensor_cores(problem)
    assert configs
    assert all(remainder(config) == (0, 0) for config in configs)
    one = configs[0]
    text = why_not_mma(problem, one.replace(TM=one["TM"] - 2 or 2, TN=one["TN"] - 1 or 1), H200)
    assert text is not None


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize(("m", "wide"), [(3, False), (96, True), (128, True)])
def test_the_model_takes_them_for_wide_products(m: int, wide: bool, layout: str) -> None:
    ours = [Production(INNER, space, cost.explain)]
    assert choose_from(ours, inner_product(m, m, K, layout=layout), H200).kernel.config["MMA"] == wide


COLUMN = inner_product(64, 64, K, layout="column")
ODD = inner_product(33, 50, K + 1, layout="column")
HALVES = inner_product(64, 64, K, ALL["float16"], "column")
GRAM = gram_of(inner_product(64, 64, K))


@pytest.mark.parametrize(
    ("problem", "changed", "reason"),
    [
        (COLUMN, {"S": 48}, "threads: not U k-groups of groups of"),
        (COLUMN, {"U": 5}, "threads: not U k-groups of groups of"),
        (COLUMN, {"TM": 5, "DOWN": 2, "ACROSS": 1, "S": 64}, "with an even TM"),
        (GRAM, {"S": 32}, "threads: not U k-groups of groups of 3 warps"),
        (COLUMN, {"TM": 2}, "do not cover D"),
        (COLUMN, {"TN": 1}, "do not cover D"),
        (COLUMN, {"V": 1}, "V = 1: lanes load fours of 16-bit matrices"),
        (COLUMN, {"V": 8}, "V = 8: lanes load fours of 16-bit matrices"),
        (HALVES, {"V": 2}, "V = 2: lanes load fours of 16-bit matrices, and of others one k where rows or col"),
        (COLUMN, {"F_MODE": 3}, "and of others one k where rows or columns are unaligned"),
        (HALVES, {"F_MODE": 2}, "E_GROUP, F_GROUP: not the rows or columns of a load"),
        (COLUMN, {"BK": 0}, "BK = 0 is not a multiple of"),
        (COLUMN, {"BK": 20}, "BK = 20 is not a multiple of"),
    ],
)
def test_what_makes_one_illegal_is_said(problem: Gemm, changed: dict[str, Any], reason: str) -> None:
    (one, *_) = (
        config for config in on_tensor_cores(problem) if config["V"] > 1 and config["DOWN"] * config["ACROSS"] > 1
    )
    assert why_not_mma(problem, one, H200) is None
    text = why_not_mma(problem, one.replace(**changed), H200)
    assert text is not None
    assert reason in text
    kernel = INNER.with_config(one.replace(**changed))
    assert kernel.why_not(problem, H200) is not None


def test_a_k_group_has_a_thread_for_each_unaligned_row() -> None:
    one = next(c for c in on_tensor_cores(ODD) if c["E_MODE"] == 3 and c["S"] < 50 and c["U"] == 1)
    assert why_not_mma(ODD, one, H200) is None
    text = why_not_mma(ODD, one.replace(U=one["BS"] // one["S"]), H200)
    assert text == "k-groups of 32 threads: fewer than unaligned rows or columns"


def test_a_block_of_plain_fmas_is_one_k_group_with_a_sum_for_each_output() -> None:
    config = next(config for config in space(inner_product(24, 24, K), H200) if config["BK"] and not config["MMA"])
    assert k_groups(config) == k_groups(config.replace(U=4)) == 1
    assert groups(config) == config["BS"] // config["S"]
    assert outputs_of(config) == config["TM"] * config["TN"]
