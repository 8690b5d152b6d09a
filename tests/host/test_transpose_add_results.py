"""Published times of transpose+add: the shapes, what follows from a record, and the page that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.pages import transpose_add_page
from lab.records import MEDIAN
from lab.transpose_add.report import FORMAT, OURS, OURS_AS_X, Entry, cells, entries, recorded_comparisons, summary
from lab.transpose_add.shapes import CASE, LONG, SHAPES, Shape
from matmill.arch import get
from matmill.bench.libraries.transpose_add import COMPILED, COMPILED_AS_Y, EAGER, TUNED
from matmill.dtypes import BF16, ELEMENTWISE, F32
from matmill.ladders.runner.results import BaselineRow, Outcome, Row
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.ladders.transpose_add.subject import ARTICLE, transpose_add_problem

H200 = get("h200")
COPY = 4.2e12


def _sum(shape: Shape, **seconds: float) -> dict[str, Any]:
    names = {
        "ours": OURS, "as_x": OURS_AS_X, "eager": EAGER, "compiled": COMPILED, "as_y": COMPILED_AS_Y, "tuned": TUNED,
    }  # fmt: skip
    rows = [
        {"name": names[name], "version": "1", "same": True, MEDIAN: taken, "best": taken, "worst": taken, "rounds": 9}
        for name, taken in seconds.items()
    ]
    return {
        "shape": shape.record(),
        "bytes": shape.nbytes,
        "copy_bytes_per_s": {"copy": COPY, "torch copy_": 0.9 * COPY},
        "configs": ["BR=64"],
        "predicted_seconds": 1e-3,
        "rows": rows,
        "absent": [],
        "compile_seconds": 1.0,
    }


def _record(group: str, *sums: dict[str, Any]) -> dict[str, Any]:
    host = [{"dtype": "float32", "size": 64, "seconds": {OURS: 8.1e-6, "x.t() + y": 6.2e-6}}]
    return {
        "record": FORMAT.kind,
        "group": group,
        "arch": "h200",
        "environment": {"date": "2026-11-20T00:00:00"},
        "host": host if group == "article" else [],
        "sums": sums,
    }


def test_the_published_shapes_are_forty_of_every_kind_and_type() -> None:
    assert len(SHAPES) == len(set(SHAPES)) == 40
    assert {shape.kind for shape in SHAPES} == {"square", "odd", "tall", "wide", "batch", "pitch", "tiny"}
    assert {shape.dtype for shape in SHAPES} == set(ELEMENTWISE.values())
    assert sum(shape.nbytes >= LONG for shape in SHAPES) >= 30
    assert max(shape.nbytes for shape in SHAPES) < 2 * 10**9
    assert all(Shape.restored(json.loads(json.dumps(shape.record()))) == shape for shape in SHAPES)
    assert (CASE.m, CASE.n) == ARTICLE
    assert str(SHAPES[25]) == "64 x 1024x1024 float32"


def test_shares_are_of_the_faster_copy_and_ratios_of_our_time() -> None:
    shape = Shape("square", 4096, 4096, F32)
    seconds = shape.nbytes / (0.95 * COPY)
    entry = Entry(_sum(shape, ours=seconds, eager=5 * seconds, compiled=1.1 * seconds))
    assert entry.share() == pytest.approx(0.95)
    assert entry.share(EAGER) == pytest.approx(0.19)
    assert entry.ratio(EAGER) == pytest.approx(5)
    assert entry.ratio(COMPILED) == pytest.approx(1.1)
    assert entry.ratio(TUNED) is None
    assert entry.ratio(EAGER, "graph") is None
    assert cells(entry)[1:] == ["201 MB", "50.5 us", "3.99", "95.0%", "5.00", "1.10", "-", "-", "yes"]
    assert list(entry.slower()) == []


def test_what_is_slower_than_others_is_said_beyond_noise_alone() -> None:
    shape = Shape("tiny", 64, 64, F32)
    near = _sum(shape, ours=1.02e-5, eager=1e-5, compiled=1e-5)
    assert list(Entry(near).slower()) == []
    far = _sum(shape, ours=1.1e-5, eager=1e-5, compiled=2e-5)
    far["rows"][0]["graph"], far["rows"][2]["graph"] = 4e-6, 3e-6
    assert list(Entry(far).slower()) == [
        f"64x64 float32: {EAGER} takes 90.9% of our time (median)",
        f"64x64 float32: {COMPILED} takes 75.0% of our time (graph)",
    ]
    text = summary(entries(_record("shapes", near, far)))
    assert text[0] == "2 of 2 equal eager torch's to the bit."
    assert not any("Of a copy's bandwidth" in sentence for sentence in text)  # none is long enough
    assert "Slower than others by more than noise" in text[-1]


def test_results_in_one_layout_are_compared_besides() -> None:
    tall = _sum(Shape("tall", 1000, 8, F32), ours=1.1e-5, as_x=1e-5, eager=3e-5, compiled=1e-5, as_y=1.2e-5)
    assert cells(Entry(tall))[6:9] == ["0.91", "1.00", "1.09"]
    assert list(Entry(tall).slower_alike()) == []
    tall["rows"][1][MEDIAN] = tall["rows"][0]["graph"] = 2e-5
    tall["rows"][4]["graph"] = 1.9e-5
    assert list(Entry(tall).slower_alike()) == [
        "1000x8 float32 as x: 50.0% of our time (median)",
        "1000x8 float32 as y: 95.0% of our time (graph)",
    ]
    text = summary(entries(_record("shapes", tall)))
    assert any("both results in one layout: 1000x8 float32 as x" in sentence for sentence in text)


def test_a_wrong_result_stands_out() -> None:
    one = _sum(Shape("odd", 8191, 8191, BF16), ours=1e-3, eager=2e-3)
    one["rows"][0]["same"] = False
    assert cells(Entry(one))[-2:] == ["-", "NO"]
    wrong = _sum(Shape("odd", 8191, 8191, BF16), ours=1e-3, as_x=1e-3, eager=2e-3)
    wrong["rows"][1]["same"] = False
    assert not Entry(wrong).ok
    assert summary(entries(_record("shapes", one)))[0] == "0 of 1 equal eager torch's to the bit."


def _measured() -> dict[str, Any]:
    """Return the record of a ladder run on a GPU."""
    moved = transpose_add_problem(*ARTICLE).least_bytes
    rates: dict[str, Any] = {
        "seconds": 0.4e-3,
        "bytes": moved,
        "tbytes_per_second": moved / 0.4e-3 / 1e12,
        "bandwidth_fraction": moved / 0.4e-3 / COPY,
    }
    labels = [*(rung.label for rung in TRANSPOSE_ADD), "production"]
    rows = tuple(Row(label, "article", ok=True, error_ratio=0.0, **rates) for label in labels)
    base = BaselineRow(EAGER, "torch 2", ok=True, error_ratio=0.0, **rates)
    environment = {"date": "2026-11-20T00:00:00", "nvrtc": "13.0", "packages": {"torch": "2"}, "gpus": []}
    outcome = Outcome(
        "transpose_add", "gpu", H200, "sm_90a", transpose_add_problem(*ARTICLE), rows, (base,), environment, (), COPY
    )
    assert Outcome.from_dict(outcome.as_dict()).as_dict() == outcome.as_dict()
    return outcome.as_dict()


def test_the_page_shows_rates_beside_a_copy_and_the_comparisons() -> None:
    seconds = CASE.nbytes / (0.98 * COPY)
    case = _sum(CASE, ours=seconds, eager=5.2 * seconds, compiled=1.2 * seconds, tuned=1.01 * seconds)
    shapes = [_sum(shape, ours=shape.nbytes / (0.93 * COPY), eager=1e-2) for shape in SHAPES[:3]]
    comparisons = {"article": _record("article", case), "shapes": _record("shapes", *shapes)}
    page = transpose_add_page(TRANSPOSE_ADD, [_measured()], comparisons)
    assert "| x | v1 | v2 | wide | shifted | production | torch eager |" in page
    assert "| 24300x11520 bfloat16 | 4.20 TB/s, 100.0% |" in page
    assert "*Measured* at 24300x11520 bfloat16: 400 us, 4.20 TB/s, 100.0% of a copy's bandwidth in that run." in page
    assert f"| {TUNED} | 1 | 412 us | 4.08 | 97.0% | 1.01 | yes |" in page
    assert "| 4096x4096 float32 | 201 MB |" in page
    assert "93.0% in the median, 93.0% at the least" in page
    assert "| matmill.transpose_add | 8.10 us |" in page
    assert "No run on a GPU" not in page


def test_comparisons_are_found_beside_other_records(tmp_path: Path) -> None:
    for name, record in {
        "h200_shapes": _record("shapes"),
        "h200_article": _record("article"),
        "emulated_604x512": {"ladder": "transpose_add"},
    }.items():
        (tmp_path / f"transpose_add_{name}.json").write_text(json.dumps(record), encoding="utf-8")
    assert list(recorded_comparisons(tmp_path)) == ["article", "shapes"]
