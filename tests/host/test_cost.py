"""The cost model of products against the recorded times: how well docs/cost-models.md says it does, it does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.arch import get
from matmill.cost import gemm as cost
from matmill.cost import hgemm
from matmill.dtypes import BF16, DTYPES, F16
from matmill.kernels.hgemm import space as hgemm_space
from matmill.problem import Gemm
from matmill.tiles import space

ROOT = Path(__file__).parents[2]
RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "benchmarks" / "results" / "gemm_tiles_h200.json").read_text(encoding="utf-8")
)["records"]


def _row(name: str, records: list[dict[str, Any]]) -> str:
    """The line of the page's table for these records."""
    arch = get("h200")
    errors: list[float] = []
    chosen: list[float] = []
    for record in records:
        dtype = DTYPES[record["dtype"]]
        align = 16 if record["n"] * dtype.itemsize % 16 == 0 else dtype.itemsize
        problem = Gemm(record["m"], record["n"], record["k"], dtype, b_align=align, d_align=align)
        predicted = {str(config): cost.predict(problem, config, arch) for config in space(problem, arch)}
        measured = {tile: time for tile, time in record["seconds"].items() if tile in predicted}
        assert len(measured) == len(record["seconds"]) - 1  # all but the library
        errors += [abs(predicted[tile] / time - 1) for tile, time in measured.items()]
        chosen.append(measured[min(measured, key=predicted.__getitem__)] / min(measured.values()))
    median, tenth = np.quantile(errors, (0.5, 0.9))
    mean = float(np.exp(np.mean(np.log(chosen))))
    cells = (name, str(len(records)), f"{median:.1%}", f"{tenth:.1%}", f"{mean:.3f}", f"{max(chosen):.2f}")
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize(("name", "fit"), [("fitted on", True), ("judged by", False)])
def test_the_page_says_how_well_the_model_meets_the_record(name: str, *, fit: bool) -> None:
    page = (ROOT / "docs" / "cost-models.md").read_text(encoding="utf-8")
    assert _row(name, [record for record in RECORDS if record["fit"] == fit]) in page.splitlines()


H200 = get("h200")
LARGE = Gemm(8192, 8192, 8192, F16)


def _best(problem: Gemm, arch: str = "h200") -> hgemm.Prediction:
    """What the model says of the configuration that it takes."""
    found = get(arch)
    return min((hgemm.explain(problem, config, found) for config in hgemm_space(problem, found)), key=_seconds)


def _seconds(prediction: hgemm.Prediction) -> float:
    return prediction.seconds


@pytest.mark.parametrize(("arch", "share"), [("h200", 0.62), ("a100", 1.0), ("t4", 0.76), ("rtx4090", 1.0)])
def test_large_16_bit_products_come_near_the_rate_of_mma_and_never_above(arch: str, share: float) -> None:
    found = _best(LARGE, arch)
    assert 0.8 < LARGE.flops / found.seconds / (share * get(arch).matrix_flops["float16"]) < 1
    assert found.bound == "multiply"


def test_what_bounds_16_bit_products() -> None:
    assert _best(Gemm(16, 8192, 8192, BF16)).bound == "memory"
    assert _best(replace(LARGE, a_align=2, b_align=2)).bound in {"lines", "latency", "issue"}
    apart = replace(LARGE, a_strides=(16384, 2), b_strides=(16384, 2))
    assert _best(apart).pace.lines > 8 * _best(LARGE).pace.lines


def test_narrower_copies_are_never_cheaper() -> None:
    seconds = [
        _best(replace(Gemm(side, side, side, F16), a_align=align, b_align=align)).seconds
        for side in (512, 4096)
        for align in (16, 8, 4, 2)
    ]
    assert seconds[:4] == sorted(seconds[:4])
    assert seconds[4:] == sorted(seconds[4:])
    assert seconds[7] > 1.5 * seconds[4]


def test_an_unknown_gpu_gets_a_cautious_rate() -> None:
    unknown = replace(H200, name="unknown", matrix_flops={})
    config = hgemm_space(LARGE, unknown)[0]
    assert hgemm.predict(LARGE, config, unknown) > 2 * hgemm.predict(LARGE, config, H200)


def test_parts_of_k_cost_a_second_launch() -> None:
    problem = Gemm(128, 128, 65536, F16)
    whole, *others = sorted(
        (config for config in hgemm_space(problem, H200) if config["BM"] == config["BN"] == 64),
        key=lambda config: config["GS"],
    )
    assert whole["GS"] == 1
    assert hgemm.explain(problem, whole, H200).second == 0
    for config in others:
        found = hgemm.explain(problem, config, H200)
        assert found.second >= hgemm.SECOND
        assert found.seconds < hgemm.predict(problem, whole, H200) / 4
