"""The cost model of 16-bit products: what bounds them, and when repacking pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from matmill.arch import ARCHES, Arch, get
from matmill.choose import Choice, choose_from
from matmill.dtypes import BF16, F16, DType
from matmill.kernels.hgemm import cost, space
from matmill.kernels.shared.model import PRICES, Prediction
from matmill.ladders.hgemm.subject import half_product
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

H200 = get("h200")
LARGE = Gemm(8192, 8192, 8192, F16)

_OTHERS = tuple(one for one in PRODUCTION if one.kernel.entry not in {"wgmma_gemm", "thin"})


def choose(problem: Gemm, arch: Arch) -> Choice[Gemm]:
    """Return the choice among the kernels that other GPUs have, too, but for the one for few rows or columns."""
    return choose_from(_OTHERS, problem, arch)


def _all(problem: Gemm, arch: str = "h200", constants: cost.Constants = cost.DEFAULT) -> list[Prediction]:
    result = get(arch)
    return [cost.explain(problem, config, result, constants) for config in space(problem, result)]


def _best(problem: Gemm, arch: str = "h200") -> Prediction:
    """Return what the model says of the configuration that it takes."""
    return min(_all(problem, arch), key=lambda prediction: prediction.seconds)


def _direct(problem: Gemm) -> Prediction:
    """Return the same among configurations that do not repack A or B."""
    configs = [config for config in space(problem, H200) if not (config["REPACK_A"] or config["REPACK_B"])]
    return min((cost.explain(problem, config, H200) for config in configs), key=lambda found: found.seconds)


@pytest.mark.parametrize(
    ("arch", "dtype", "fmas"),
    [("t4", F16, 512), ("rtx2080ti", F16, 256), ("a100", BF16, 1024), ("rtx4090", F16, 256), ("h200", BF16, 2048)],
)
def test_large_products_come_near_what_matrix_units_do_in_a_clock_and_never_above(
    arch: str, dtype: DType, fmas: int
) -> None:
    target = get(arch)
    share = {7: cost.TURING_SHARE, 8: 1.0, 9: cost.DEFAULT.mma_share}[target.capability[0]]
    result = _best(replace(LARGE, dtype=dtype), arch)
    assert 0.8 < LARGE.flops / result.seconds / (share * 2 * fmas * target.sms * target.boost_hz) < 1
    assert result.bound == "multiply"


def test_the_clock_of_a_data_sheet_does_not_matter() -> None:
    config = space(LARGE, H200)[0]
    for arch in ARCHES.values():
        if F16.name in arch.matrix_flops:
            slower = replace(arch, matrix_flops={F16.name: 0.9 * arch.matrix_flops[F16.name]})
            assert cost.explain(LARGE, config, slower).seconds == cost.explain(LARGE, config, arch).seconds


def test_an_unknown_gpu_gets_a_cautious_rate() -> None:
    unknown = replace(H200, name="unknown", matrix_flops={})
    config = space(LARGE, unknown)[0]
    assert cost.explain(LARGE, config, unknown).seconds > 2 * cost.explain(LARGE, config, H200).seconds


def test_what_bounds_products() -> None:
    assert _best(Gemm(16, 16384, 16384, BF16)).bound == "memory"
    assert _best(Gemm(1000, 1000, 1000, BF16)).bound == "l2"
    assert _best(Gemm(512, 512, 512, BF16)).bound == "latency"  # of too few tiles to hide it
    # Elements go through registers one by one.
    assert _direct(replace(LARGE, a_align=2, b_align=2)).bound == "issue"
    apart = replace(LARGE, a_strides=(16384, 2), b_strides=(16384, 2))
    assert _direct(apart).pace["lines"] > 8 * _best(LARGE).pace["lines"]


def test_narrower_copies_are_never_cheaper() -> None:
    for side in (512, 4096):
        products = [replace(Gemm(side, side, side, F16), a_align=align, b_align=align) for align in (16, 8, 4, 2)]
        for seconds in ([_direct(one).seconds for one in products], [_best(one).seconds for one in products]):
            assert seconds == sorted(seconds)
    assert _direct(products[-1]).seconds > 1.5 * _direct(products[0]).seconds


@pytest.mark.parametrize(("side", "most"), [(8191, 1.1), (4095, 1.2), (2047, 1.45)])
def test_large_odd_products_are_repacked_and_come_near_aligned_ones(side: int, most: float) -> None:
    odd, aligned = half_product(side, side, side), half_product(side + 1, side + 1, side + 1)
    result = choose(odd, H200)
    assert (result.kernel.config["REPACK_A"], result.kernel.config["REPACK_B"]) == (1, 1)
    assert _best(aligned).seconds < result.predicted_seconds < most * _best(aligned).seconds
    assert result.predicted_seconds < 0.5 * _direct(odd).seconds
    moved = 2 * side * (2 * side + 1) * F16.itemsize / (PRICES.copy_share * H200.dram_bytes_per_s)
    assert moved < _best(odd)["repack"] < 1.1 * moved + PRICES.repack


def _packed(problem: Gemm) -> tuple[int, int]:
    """Say which of A and B the choice packs."""
    config = choose(problem, H200).kernel.config
    return config.get("REPACK_A"), config.get("REPACK_B")


@pytest.mark.parametrize("size", [(16, 4096, 4096), (128, 128, 65536)])
def test_what_is_read_about_once_is_worth_repacking_only_if_it_would_go_through_registers(
    size: tuple[int, int, int],
) -> None:
    product = Gemm(*size, F16)
    by_align = {align: _packed(replace(product, a_align=align, b_align=align)) for align in (8, 4, 2)}
    assert by_align == {8: (0, 0), 4: (0, 0), 2: (1, 1)}


@pytest.mark.parametrize("size", [(16, 1023, 1023), (32, 1023, 1023)])
def test_small_products_are_not_worth_the_launch_that_packs(size: tuple[int, int, int]) -> None:
    small = half_product(*size)
    assert _packed(small) == (0, 0)
    repacking = [result for result in _all(small) if result["repack"]]
    assert repacking
    assert min(result.seconds - result["repack"] for result in repacking) < _best(small).seconds  # but for that launch


def test_parts_of_k_cost_a_second_launch() -> None:
    problem = Gemm(128, 128, 65536, F16)
    configs = [config for config in space(problem, H200) if config["BM"] == config["BN"] == 64]
    whole, *others = sorted(configs, key=lambda config: config["SPLIT_K"])
    assert whole["SPLIT_K"] == 1
    assert cost.explain(problem, whole, H200)["second"] == 0
    assert others
    for config in others:
        result = cost.explain(problem, config, H200)
        assert result["second"] >= PRICES.second
        assert result.seconds < cost.explain(problem, whole, H200).seconds / 4
