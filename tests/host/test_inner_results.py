"""Published times of inner products: how they are taken on stand-ins, what is asked of them, and the page they make."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from math import isinf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.test_inner_search import SearchGPU
from lab import tensors
from lab.clean_clock import Reading
from lab.inner import compare as inner_compare
from lab.inner.groups import GROUPS
from lab.inner.report import FORMAT, LIBRARY, OURS, Entry, cells, entries, page, recorded_comparisons, rows_of, said
from matmill.arch import get
from matmill.bench.probe import samples
from matmill.bench.timing.clock import Clock
from matmill.dtypes import BF16, F16, F32, F64
from matmill.ladders.inner.subject import described, gram_of, inner_product
from matmill.problem import Gemm
from support.fake_torch import Tensor, product, stand_in
from support.ladder_gpu import MILLISECONDS
from support.scripts import run_script

UNMEASURED = "No run on a GPU is recorded yet."
H200 = get("h200")


# Entries


def _entry(problem: Gemm, ours: float, theirs: float, *, ok: bool = True, **more: Any) -> dict[str, Any]:
    rows = []
    for name, seconds, relative in ((OURS, ours, 2e-7), (LIBRARY, theirs, 4e-7)):
        row = {"name": name, "version": "1", "ok": ok or name != OURS, "excess": 0.1, "relative": relative}
        rows.append({**row, "median": seconds, "best": seconds, "worst": seconds, "rounds": 5, **more})
    return {
        "problem": described(problem),
        "bytes": problem.least_bytes,
        "flops": problem.flops,
        "fma_flops": H200.peak(problem.dtype.name),
        "read_bytes_per_s": 4.3e12,
        "kernel": "inner",
        "config": "TM=3",
        "predicted_seconds": ours,
        "rows": rows,
        "absent": [],
    }


def _record(group: str, products: list[dict[str, Any]]) -> dict[str, Any]:
    environment = {
        "date": "2026-11-21T00:00:00",
        "nvrtc": "13.0",
        "packages": {"torch": "2.11.0", "rich": "15"},
        "gpus": [{"name": "NVIDIA H200", "driver_version": "580"}],
    }
    head = {"record": FORMAT.kind, "group": group, "arch": "h200", "environment": environment, "asked": len(products)}
    return {**head, "products": products}


def test_shares_follow_from_times() -> None:
    problem = inner_product(4, 4, 10**8)
    entry = Entry(_entry(problem, 1e-3, 5e-3))
    assert entry.read_share() == pytest.approx(problem.least_bytes / 1e-3 / 4.3e12)
    assert entry.fma_share() == pytest.approx(2 * 16 * 10**8 / 1e-3 / H200.fp32_flops)
    assert entry.speedup() == pytest.approx(5)
    assert entry.error_ratio() == pytest.approx(0.5)
    assert entry.alone_share() is None  # records of before it was measured
    assert Entry({**entry.record, "read_seconds": 0.9e-3}).alone_share() == pytest.approx(0.9)
    gram = gram_of(inner_product(64, 64, 10**6))
    assert Entry(_entry(gram, 1e-3, 1e-3)).fma_share() == pytest.approx(65 / 128 * gram.flops / 1e-3 / H200.fp32_flops)
    assert Entry(_entry(gram, 1e-3, 1e-3)).problem == gram


def _at(problem: Gemm, share: float, speedup: float = 4.0) -> dict[str, Any]:
    """Return a product at that share of the bandwidth of reading."""
    seconds = problem.least_bytes / share / 4.3e12
    return _entry(problem, seconds, speedup * seconds)


def test_a_line_counts_what_reaches_its_goal_and_what_is_slower_than_the_library() -> None:
    result = [
        _at(inner_product(3, 3, 10**8), 0.95),
        _at(inner_product(4, 4, 10**8), 0.85, speedup=0.9),
        _at(inner_product(5, 5, 10**8), 0.95, speedup=0.99),  # within what times vary by
        _at(inner_product(3, 3, 10**8, F16), 0.8),
        _at(inner_product(16, 16, 10**8, F16), 0.4),
    ]
    narrow, half = rows_of(GROUPS["bandwidth"], entries(_record("bandwidth", result)))
    assert (narrow.name, narrow.products, narrow.met, narrow.asked, narrow.must) == ("float32", 3, 2, 3, 3)
    assert narrow.least == pytest.approx(0.85)
    assert narrow.median == pytest.approx(0.95)
    assert [said(entry) for entry in narrow.slower] == ["4x4x100000000 float32, F row-major"]
    assert (half.met, half.asked, half.must) == (0, 1, 2)
    assert cells(narrow)[1:7] == ["3", "85.0%", "95.0%", "-", "2 of 3", "1 of 3"]
    result = [{**one, "read_seconds": 0.97 * one["rows"][0]["median"]} for one in result[:2]]
    (narrow,) = rows_of(GROUPS["bandwidth"], entries(_record("bandwidth", result)))
    assert cells(narrow)[4] == "97.0%"


# Page


def test_the_page_without_a_record_says_so() -> None:
    result = page({})
    assert UNMEASURED in result
    assert "python benchmarks/compare.py inner" in result


def test_the_page_tells_every_group(tmp_path: Path) -> None:
    square = [inner_product(s, s, 64 * 10**6, dtype, layout) for s in (3, 5) for dtype in (F32, F64) for layout in "rc"]
    square = [inner_product(p.m, p.n, p.k, p.dtype, "row" if i % 2 else "column") for i, p in enumerate(square)]
    fma = [_entry(inner_product(128, 128, 10**6), 0.7e-3, 1e-3), _at(inner_product(17, 17, 10**6), 0.8)]
    wrong = _entry(inner_product(3, 3, 10**4, BF16), 1, 1, ok=False, graph=5e-6, plain=1e-5)
    slow = _entry(inner_product(2, 2, 10**4), 1, 1, graph=5e-6, plain=1e-5)
    slow["rows"][1] = {**slow["rows"][1], "graph": 4e-6}
    einsum = {**_at(inner_product(3, 3, 50_000_000), 0.93)}
    einsum["rows"] = [*einsum["rows"], {**einsum["rows"][1], "name": "torch einsum"}]
    gram = _at(gram_of(inner_product(8, 8, 10**7)), 0.91)
    records = {
        "bandwidth": [*(_at(p, 0.95) for p in square), gram],
        "cases": [einsum],
        "fma": fma,
        "small": [wrong, slow],
    }
    for name, products in records.items():
        (tmp_path / f"inner_h200_{name}.json").write_text(json.dumps(_record(name, products)), encoding="utf-8")
    (tmp_path / "inner_emulated_100.json").write_text('{"ladder": "inner"}', encoding="utf-8")
    result = recorded_comparisons(tmp_path)
    assert set(result) == set(GROUPS)
    made = page(result)
    assert UNMEASURED not in made
    assert made.count("On one NVIDIA H200, 2026-11-21: driver 580, NVRTC 13.0, torch 2.11.0.") == 4
    text = made.splitlines()
    assert all(f"## {group.title}" in text for group in GROUPS.values())
    assert "| float32 | 5 | 91.0% | 95.0% | - | 5 of 5 | 0 of 5 | 4.00 | 0.500 | 0 |" in text
    assert "FMAs are the nearer limit of square products from m = n = 128 (float32) on." in text
    assert any(line.startswith("| 3x3x50000000 float32, F row-major |") and "93.0%" in line for line in text)
    assert any("torch einsum" in line for line in text)
    assert "Slower than torch.mm by more than 2%, and should not be: 2x2x10000 float32, F row-major." in text
    row = next(line for line in text if line.startswith("| bfloat16, plain calls |"))
    assert row.endswith("| 1 |")


def test_what_a_run_has_no_time_for_is_taken_from_an_earlier_one(tmp_path: Path) -> None:
    early, late = (
        _record("bandwidth", [_at(inner_product(m, m, 10**7), 0.9) for m in sides]) for sides in ((2, 3), (2,))
    )
    early["environment"] = {**early["environment"], "date": "2026-11-20T08:15:30+00:00"}
    late["products"] = [_at(inner_product(2, 2, 10**7), 0.95)]
    for name, record in {"bandwidth": late, "bandwidth_rest": early}.items():
        (tmp_path / f"inner_h200_{name}.json").write_text(json.dumps(record), encoding="utf-8")
    result = recorded_comparisons(tmp_path)["bandwidth"]
    assert [(one.problem.m, round(one.read_share(), 2)) for one in entries(result)] == [(2, 0.95), (3, 0.9)]
    assert result["others"] == [(1, "2026-11-20T08:15:30+00:00")]
    text = "Products of an earlier run, of 2026-11-20 08:15, that this one left out: 1."
    assert text in page(recorded_comparisons(tmp_path))


# Measuring


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SearchGPU:
    monkeypatch.setitem(sys.modules, "torch", stand_in())
    fake = SearchGPU()
    plain = FakeTime(fake)
    monkeypatch.setattr(fake, "call", plain.call)
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: fake)
    monkeypatch.setattr(tensors, "installed", lambda: ("torch",))
    monkeypatch.setattr(inner_compare, "installed", lambda: ("torch",))
    monkeypatch.setattr(inner_compare, "inner", _inner)
    monkeypatch.setattr(samples, "flush_bytes", lambda _arch, *, cold: 1024 * cold)
    monkeypatch.setattr(Reading, "nbytes", 1 << 16)
    monkeypatch.setattr(fake, "prepare", lambda _binary, _launch: lambda _config, _parameters: None)
    monkeypatch.setattr(Clock, "_settle", lambda *_: None)
    return fake


class FakeTime:
    """Every run takes as long."""

    def __init__(self, gpu: SearchGPU) -> None:
        self._call = gpu.call

    def call(self, name: str, *args: Any) -> Any:
        """Return the driver's calls."""
        return MILLISECONDS if name == "cuEventElapsedTime" else self._call(name, *args)


def _inner(e: Tensor, f: Tensor, *, out: Tensor) -> Tensor:
    out.array[...] = product(e.array, f.array)
    return out


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    return run_script(monkeypatch, "compare.py", "inner", *arguments)


def test_the_script_measures_every_group_and_gives_its_memory_back(
    gpu: SearchGPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [inner_product(3, 3, 20_000), inner_product(2, 5, 10_001, BF16, "column"), gram_of(inner_product(2, 2, 9999))]
    for name, group in GROUPS.items():
        monkeypatch.setitem(GROUPS, name, replace(group, problems=lambda: few))
    arguments = ("--out", tmp_path, "--workers", 0, "--limit", 3, "--seed", 4, "--seconds-each", 0.01)
    assert _run(monkeypatch, *arguments) == 0
    printed = capsys.readouterr().out
    assert "Short k, from 1e4 to 1e6: 3 of 3 products on h200" in printed
    result = recorded_comparisons(tmp_path)
    assert set(result) == set(GROUPS)
    long = entries(result["bandwidth"])
    assert [entry.problem for entry in long] == few
    for entry in long:
        assert entry.ok
        assert [row["name"] for row in entry.record["rows"]] == [OURS, LIBRARY, "torch einsum"]
        assert entry.rows[OURS]["median"] == pytest.approx(MILLISECONDS / 1e3)
        assert entry.record["read_bytes_per_s"] == pytest.approx((1 << 16) / (MILLISECONDS / 1e3))
        assert entry.error_ratio() == pytest.approx(1)
    for entry in entries(result["small"]):
        assert entry.rows[OURS]["graph"] == pytest.approx(3e-3 / 20)
        assert 0 < entry.rows[LIBRARY]["plain"] < 1
        assert entry.ok
    assert UNMEASURED not in page(result)
    assert gpu.live == {}


def test_wrong_results_are_recorded_as_such(
    gpu: SearchGPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.arch.name == "h200"

    def wrong(e: Tensor, f: Tensor, *, out: Tensor) -> Tensor:
        _inner(e, f, out=out).array[0, 0] = np.nan
        return out

    monkeypatch.setattr(inner_compare, "inner", wrong)
    assert _run(monkeypatch, "--out", tmp_path, "--workers", 0, "--limit", 2, "--group", "small") == 1
    small = entries(recorded_comparisons(tmp_path)["small"])
    assert [entry.ok for entry in small] == [False, False]
    assert all(entry.rows[LIBRARY]["ok"] for entry in small)
    assert small[0].record["rows"][0]["excess"] is None  # infinite, which JSON cannot say
    assert all(isinf(entry.error_ratio()) for entry in small)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("float32, plain calls"))
    assert row.split()[-1] == "1"
    assert "| 1 |" in page(recorded_comparisons(tmp_path))


def test_time_that_is_up_ends_the_run_with_what_there_is(
    gpu: SearchGPU, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.live == {}
    arguments = ("--out", tmp_path, "--workers", 0, "--limit", 2, "--group", "small", "--seconds", -1)
    assert _run(monkeypatch, *arguments) == 0
    assert recorded_comparisons(tmp_path) == {}
    assert "0 of 2 products" in capsys.readouterr().out


def test_without_torch_the_script_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tensors, "installed", tuple)
    with pytest.raises(Exception, match="torch: got not installed"):
        _run(monkeypatch, "--out", tmp_path)
