"""Split-K on the FMA units: products of few tiles and a long k occupy all SMs, and no slice is empty."""

from __future__ import annotations

import pytest

from matmill.arch import get
from matmill.choose import choose
from matmill.dtypes import F32
from matmill.kernel import ceil_div
from matmill.kernels.gemm import cost, space
from matmill.kernels.shared.model import PRICES
from matmill.kernels.shared.tiled import tile_count
from matmill.problem import Gemm

H200 = get("h200")
#: Few tiles and a long k. Before k was split, 256 x 256 x 8192 took an H200 100 us and 44 x 164 x 6856 took 83: 2 and
#: 3.4 times torch.mm's time (benchmarks/results/gemm_tiles_h200.json), with one block for each of 64 and 12 tiles.
LONG = [(256, 256, 8192), (44, 164, 6856), (512, 512, 4096), (200, 150, 10000), (640, 1024, 4096), (339, 43, 3984)]


@pytest.mark.parametrize("size", LONG, ids=str)
def test_few_tiles_and_a_long_k_occupy_all_multiprocessors(size: tuple[int, int, int]) -> None:
    problem = Gemm(*size, dtype=F32)
    kernel = choose(problem, H200).kernel
    assert kernel.entry == "gemm"
    blocks = tile_count(problem, kernel.config) * kernel.config["SPLIT_K"]
    rounds = ceil_div(blocks, H200.sms)
    assert blocks / (rounds * H200.sms) > 0.8
    whole = min(cost.explain(problem, c, H200).seconds for c in space(problem, H200) if c["SPLIT_K"] == 1)
    assert cost.explain(problem, kernel.config, H200).seconds < 0.98 * whole
    # The FMAs of whole tiles, at the data sheet's rate, take a quarter of the time between the launches, or more.
    fmas = tile_count(problem, kernel.config) * kernel.config["BM"] * kernel.config["BN"] * problem.k
    result = cost.explain(problem, kernel.config, H200)
    assert result["compute"] < 4 * 2 * fmas / H200.fp32_flops


@pytest.mark.parametrize("size", [*LONG, (256, 256, 8191), (100, 100, 300), (64, 64, 0)], ids=str)
def test_no_slice_is_empty(size: tuple[int, int, int]) -> None:
    for config in space(Gemm(*size, dtype=F32), H200):
        steps, slices = ceil_div(size[2], config["BK"]), config["SPLIT_K"]
        assert slices == 1 or (slices - 1) * ceil_div(steps, slices) < steps


def test_partial_sums_are_stored_and_read() -> None:
    problem = Gemm(256, 256, 8192, dtype=F32)
    few, *_, many = (c for c in space(problem, H200) if (c["BM"], c["BN"]) == (128, 128) and c["SPLIT_K"] > 1)
    more = cost.explain(problem, many, H200)["second"] - cost.explain(problem, few, H200)["second"]
    nbytes = (many["SPLIT_K"] - few["SPLIT_K"]) * problem.m * problem.n * F32.itemsize
    assert more == pytest.approx(
        2 * nbytes / (PRICES.reduction_bytes * H200.sms * H200.boost_hz), rel=0.2
    )  # and a step
