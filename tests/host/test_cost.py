"""Cost models against recorded times: they meet them as well as they did, and every constant matters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.model_fit import Verdict, judge
from lab.models import MODELS
from matmill.arch import get
from matmill.dtypes import BF16, I8
from matmill.kernels.hgemm import space as hgemm_space
from matmill.kernels.transpose import slim, tiles
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.transpose_add.subject import transpose_add_problem
from matmill.problem import Geam

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
#: By model, records of every legal configuration, and how well it meets a quarter of them: the median error of the time
#: predicted for its choice and for all configurations, and how much longer its choice takes than the best one. Whoever
#: fits a model anew, or changes what it counts, writes these anew.
MET = {
    "gemm": (["gemm_tiles_h200.json"], 0.0226, 0.0438, 1.0137),
    "hgemm": (["hgemm_tiles_h200.json"], 0.0443, 0.0593, 1.0154),
    "hgemm_float64": (["doubles_h200.json"], 0.0269, 0.055, 1.0118),
    "short_k": (["short_k_h200.json", "shapes_h200.json"], 0.1197, 0.1073, 1.035),
    "wgmma": (
        ["wgmma_steps_h200.json", "wgmma_gradients_h200.json", "attention_h200.json", "lost_h200.json"],
        0.0427,
        0.0534,
        1.0244,
    ),
    "transpose_add": (
        ["transpose_add_search_h200.jsonl", "transpose_add_search_h200_chunks.jsonl"],
        *(0.0435, 0.0665, 1.0234),
    ),
}


def _quarter(record: str, folder: Path) -> Path:
    """Return the file of every fourth line of a record."""
    text = (RESULTS / record).read_text(encoding="utf-8")
    if record.endswith("l"):
        head, *lines = text.splitlines()
        text = "\n".join([head, *lines[::4]]) + "\n"
    else:
        whole = json.loads(text)
        text = json.dumps({**whole, "records": whole["records"][::4]})
    (folder / record).write_text(text, encoding="utf-8")
    return folder / record


@pytest.mark.parametrize("name", MET)
def test_models_meet_their_records_as_they_did(name: str, tmp_path: Path) -> None:
    files, *wanted = MET[name]
    entry = MODELS[name]
    found = entry.read([_quarter(file, tmp_path) for file in files])
    verdict = Verdict.of(judge(entry.model, found, get("h200"), entry.model.constants))
    assert verdict.regret is not None
    assert [round(each, 4) for each in (verdict.error, verdict.every_error, verdict.regret)] == wanted


def _sums(*problems: Geam) -> list[tuple[Geam, Any]]:
    return [(problem, config) for problem in problems for config in tiles.space(problem, get("h200"))]


FEW = transpose_add_problem(30, 10**6, I8)
#: Problems of every kind with their configurations, and the constants of which more is faster.
KINDS: dict[str, tuple[Callable[[], list[tuple[Any, Any]]], set[str]]] = {
    "hgemm": (
        # Large and small, repacked, with elements that go through registers, split-K.
        lambda: [
            (problem, config)
            for problem in (
                *(half_product(side, side, side) for side in (8192, 500, 1023)),
                half_product(255, 4095, 77, BF16),
                half_product(128, 128, 65536),
                half_product(4000, 120, 40),
                half_product(8191, 64, 1024),
            )
            for config in hgemm_space(problem, get("h200"))
        ],
        {"mma_share", "read_share", "copy_share", "l2_bytes"},
    ),
    "transpose_add": (
        lambda: [
            *_sums(transpose_add_problem(64, 64), transpose_add_problem(4097, 2049, I8)),
            *((FEW, config) for config in slim.space(FEW, get("h200"))),
        ],
        {"copy_share", "issue_share"},
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_constant_matters_in_the_direction_it_should(name: str) -> None:
    configurations, better = KINDS[name]
    model = MODELS[name].model
    demands = [model.demand(problem, config, get("h200")) for problem, config in configurations()]
    plain = [model.times(asked, model.constants).seconds for asked in demands]
    for constant in set(model.names) - {"overlap", "pace_overlap"}:
        more = replace(model.constants, **{constant: getattr(model.constants, constant) * 1.5})
        pairs = zip(demands, plain, strict=True)
        changes = [model.times(asked, more).seconds - before for asked, before in pairs]
        assert any(changes), constant
        assert all(change <= 0 if constant in better else change >= 0 for change in changes), constant
