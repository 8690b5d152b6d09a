"""Cost models against recorded times: they meet them as well as they did, and every constant matters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.model_fit import Verdict, judge
from lab.models import MODELS
from matmill.arch import get
from matmill.dtypes import BF16, DTYPES, I8
from matmill.kernels.gemm import cost
from matmill.kernels.gemm.tiles import space
from matmill.kernels.hgemm import space as hgemm_space
from matmill.kernels.transpose import slim, tiles
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.transpose_add.subject import transpose_add_problem
from matmill.problem import Geam, Gemm

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RECORDS: list[dict[str, Any]] = json.loads((RESULTS / "gemm_tiles_h200.json").read_text(encoding="utf-8"))["records"]


def _row(name: str, records: list[dict[str, Any]]) -> str:
    """Return the line of the page's table for these records."""
    arch = get("h200")
    errors: list[float] = []
    chosen: list[float] = []
    for record in records:
        dtype = DTYPES[record["dtype"]]
        align = 16 if record["n"] * dtype.itemsize % 16 == 0 else dtype.itemsize
        problem = Gemm(record["m"], record["n"], record["k"], dtype, b_align=align, d_align=align)
        predicted = {str(config): cost.explain(problem, config, arch).seconds for config in space(problem, arch)}
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


#: By model, records of every legal configuration, and how well it meets a quarter of them: the median error of the time
#: predicted for its choice and for all configurations, and how much longer its choice takes than the best one. Whoever
#: fits a model anew, or changes what it counts, writes these anew.
MET = {
    "hgemm": (["hgemm_tiles_h200.json"], 0.067, 0.0592, 1.0154),
    "wgmma": (["wgmma_tiles_h200.json"], 0.0948, 0.0987, 1.017),
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
