"""The cost model of products against the recorded times: how well docs/cost-models.md says it does, it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill.arch import get
from matmill.dtypes import DTYPES
from matmill.kernels.gemm import cost
from matmill.kernels.gemm.tiles import space
from matmill.problem import Gemm

ROOT = Path(__file__).parents[2]
RECORDS: list[dict[str, Any]] = json.loads(
    (ROOT / "benchmarks" / "results" / "gemm_tiles_h200.json").read_text(encoding="utf-8")
)["records"]


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
