"""The cost model of 16-bit products: what bounds them, when padding pays, and that a fit finds its constants."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.gemm.tiles import read
from lab.model_fit import Found, Samples, Verdict, fit, judge
from lab.models import MODELS
from matmill.arch import ARCHES, Arch, get
from matmill.choose import Choice, choose_from
from matmill.dtypes import BF16, F16, F32, DType
from matmill.kernels.hgemm import cost, space
from matmill.kernels.shared.model import PRICES, Prediction
from matmill.ladders.hgemm.subject import half_product
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

H200 = get("h200")
LARGE = Gemm(8192, 8192, 8192, F16)
MODEL = MODELS["hgemm"].model
TRUTH = replace(cost.DEFAULT, mma_share=0.7, read_share=0.8, fill_cycles=4000.0, copy_slots=9.0, element_slots=20.0)
_NOISE = 0.02


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
    assert moved < _best(odd)["repack"] < 1.1 * moved + PRICES.second


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


def test_repacking_costs_what_is_copied() -> None:
    odd = half_product(4095, 2047, 1023)

    def pad(problem: Gemm, pads: tuple[int, int]) -> float:
        config = next(config for config in space(problem, H200) if config["REPACK_A"] and config["REPACK_B"])
        asked = cost.demand(problem, config.launched(REPACK_A=pads[0], REPACK_B=pads[1]), H200)
        return cost.times(asked, cost.DEFAULT)["repack"]

    a, b, both = pad(odd, (1, 0)), pad(odd, (0, 1)), pad(odd, (1, 1))
    assert pad(odd, (0, 0)) == 0
    assert b < a < both < a + b  # one launch
    gram = replace(odd, n=odd.m, b_strides=(1, odd.k), b_align=2, gram=True)
    assert pad(gram, (1, 1)) == pytest.approx(a)
    apart = replace(odd, a_strides=(4 * odd.k, 4))
    assert pad(apart, (1, 0)) - PRICES.second > 2 * (a - PRICES.second)
    launch = PRICES.second
    assert pad(replace(odd, batch=3), (1, 1)) - launch == pytest.approx(3 * (both - launch))
    assert pad(replace(odd, batch=3, b_batch=0), (0, 1)) == pytest.approx(b)


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


#: Products of every kind: large and small, repacked, with elements that go through registers, split-K.
KINDS = [
    LARGE, half_product(500, 500, 500), half_product(1023, 1023, 1023), half_product(255, 4095, 77, BF16),
    half_product(128, 128, 65536), half_product(4000, 120, 40), half_product(8191, 64, 1024),
]  # fmt: skip


@pytest.mark.parametrize("name", [name for name in MODEL.names if name not in {"overlap", "pace_overlap"}])
def test_every_constant_matters_in_the_direction_it_should(name: str) -> None:
    more = replace(cost.DEFAULT, **{name: getattr(cost.DEFAULT, name) * 1.5})
    changes = [
        after.seconds - before.seconds
        for problem in KINDS
        for before, after in zip(_all(problem), _all(problem, constants=more), strict=True)
    ]
    assert any(changes)
    faster = name.endswith("_share") or name == "l2_bytes"
    assert all(change <= 0 if faster else change >= 0 for change in changes)


def _measured(sizes: list[tuple[int, int, int]]) -> list[Found[Gemm]]:
    """Return what a search would find on a GPU with the constants TRUTH."""
    noise = np.random.default_rng(4)
    result: list[Found[Gemm]] = []
    for size in sizes:
        problem = half_product(*size, BF16 if len(result) % 2 else F16)
        configs = space(problem, H200)
        exact = [cost.explain(problem, config, H200, TRUTH).seconds for config in configs]
        seconds = tuple(time * float(np.exp(noise.normal(0, _NOISE))) for time in exact)
        part = "judge" if len(result) % 3 == 2 else "fit"
        result.append(Found(problem, part, exhaustive=True, configs=configs, seconds=seconds, library=None))
    return result


def test_a_fit_finds_the_constants_behind_noisy_times() -> None:
    sides = (64, 200, 512, 511, 1000, 1023, 1021, 2048, 2047, 4096, 4095, 8192, 8191)
    slabs = [
        (16, 4096, 4096),
        (17, 4095, 4095),
        (128, 128, 65536),
        (127, 127, 65537),
        (4096, 4096, 64),
        (4095, 4095, 63),
    ]
    result = _measured([*((side, side, side) for side in sides), *slabs])
    samples = Samples(MODEL, [one for one in result if one.part == "fit"], H200)
    fitted = fit(samples, starts=1)
    assert samples.loss(fitted) < 1.1 * samples.loss(TRUTH) < 0.3 * samples.loss(cost.DEFAULT)
    verdict = Verdict.of(judge(MODEL, [one for one in result if one.part == "judge"], H200, fitted))
    assert verdict.every_error < 2 * _NOISE
    assert verdict.regret is not None
    assert 1 <= verdict.regret < 1.05


def test_records_are_read_back(tmp_path: Path) -> None:
    (wanted,) = _measured([(1021, 1021, 1021)])
    names = {str(config): seconds for config, seconds in zip(wanted.configs, wanted.seconds, strict=True)}
    record = {"m": 1021, "n": 1021, "k": 1021, "dtype": "float16", "fit": True, "extra": []}
    records = [{**record, "seconds": {"torch.mm": 2e-5, **names}}, {**record, "dtype": F32.name, "seconds": {}}]
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps({"environment": {}, "records": records}))
    assert read([path]) == [replace(wanted, library=2e-5)]
