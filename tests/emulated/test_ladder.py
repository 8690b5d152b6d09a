"""The ladder as users run it without a GPU: checked rows, counters, planted mistakes, and the JSON contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.kernel import Rung
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.problem import Gemm
from support.ladder_runs import change
from support.planted import planted

NAIVE = next(rung for rung in SGEMM if rung.label == "naive")

PARAMETERS = "(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta)"
PRODUCT = """
  const int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  if (row >= m || column >= n) return;
  float acc = 0.0f;
  for (int i = 0; i < k; ++i) acc += A[row * k + i] * B[i * n + column];
"""
WRONG = {
    "one element missing": PRODUCT + "if (row + column > 0) C[row * n + column] = alpha * acc;",
    "one element off": PRODUCT + "C[row * n + column] = alpha * acc + (row == 7 && column == 9 ? 1e-3f : 0.0f);",
    "nothing written": "",
    "reads C": PRODUCT + "C[row * n + column] = alpha * acc + beta * C[row * n + column];",
}

Plant = Callable[[str], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Put a rung whose kernel has the given body on the SGEMM ladder, beside ``naive``."""

    def put(body: str) -> None:
        text = f'extern "C" __global__ void planted{PARAMETERS} {{\n{body}\n}}\n'
        package = planted(monkeypatch, tmp_path, text)
        kernel = replace(NAIVE.kernel, package=package, file="kernel.cuh", entry="planted")
        rung: Rung[Gemm] = replace(NAIVE, name="planted", kernel=kernel)
        change(monkeypatch, "sgemm", rungs=(NAIVE, rung))

    return put


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--on", "emulator", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_every_rung_is_right_and_race_free_on_two_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "sgemm", "--n", "64"], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == [rung.label for rung in SGEMM]
    for row in result["rows"]:
        assert row["ok"] is True, row
        assert row["hazards"] == []
        assert 0 <= row["error_ratio"] <= 1
        assert row["seconds"] is None
        assert row["tflops"] is None
        assert row["registers"] > 0
        assert 0 < row["occupancy"] <= 1
        p = row["problem"]
        assert row["counters"]["ffma"] >= p["m"] * p["n"] * p["k"]


def test_the_json_names_problem_arch_and_seed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ladder", "sgemm", "--m", "5", "--n", "33", "--k", "7", "--rungs", "naive", "--seed", "42"]
    code, result = _json([*arguments, "--arch", "a100"], capsys)
    assert code == cli.OK
    assert result["ladder"] == "sgemm"
    assert result["on"] == "emulator"
    assert result["arch"] == "a100"
    assert result["target"] == "sm_80"
    assert result["problem"] == {"m": 5, "n": 33, "k": 7}
    assert result["environment"]["seed"] == 42
    assert result["rows"][0]["counters"]["ffma"] == 5 * 33 * 7


def test_a_seed_repeats_a_run_and_none_makes_a_fresh_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ladder", "sgemm", "--n", "40", "--rungs", "naive"]
    ratios = [_json([*arguments, *seed], capsys)[1]["rows"][0]["error_ratio"] for seed in (["--seed", "1"],) * 2]
    assert ratios[0] == ratios[1]
    seeds = {_json(arguments, capsys)[1]["environment"]["seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_an_arch_older_than_the_compiler_is_said_to_be_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "sgemm", "--n", "32", "--rungs", "naive", "--arch", "c2070"], capsys)
    assert code == cli.OK
    assert result["arch"] == "c2070"
    assert result["target"] == "sm_90a"
    assert any("no longer knows the Tesla C2070" in note for note in result["notes"])


def test_a_rung_that_needs_multiples_says_where_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", "33", "--rungs", "shared(16)"]) == cli.OK
    text = capsys.readouterr().out
    assert "* shared(16): at m=32 n=32 k=32: m = 33 is not a multiple of 16" in text


@pytest.mark.parametrize("mistake", WRONG)
def test_a_planted_mistake_prints_wrong_and_fails(
    mistake: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(WRONG[mistake])
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", "33"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if line.startswith("planted"))
    assert "WRONG" in row
    assert "ok" in next(line for line in lines if line.startswith("naive"))


def test_a_row_of_c_too_many_is_a_fault_that_names_buffer_and_line(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(PRODUCT.replace("row >= m", "row > m") + "C[row * n + column] = alpha * acc;")
    code, result = _json(["ladder", "sgemm", "--n", "33"], capsys)
    assert code == cli.FAILED
    row = result["rows"][1]
    assert row["ok"] is False
    assert row["counters"] is None
    assert "stopped" in row["note"]
    assert "kernel.cuh:" in row["note"]


def test_a_missing_barrier_is_a_race(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    staged = PRODUCT.replace(
        "float acc = 0.0f;", "__shared__ float t[32][32]; t[threadIdx.y][threadIdx.x] = A[0];\n  float acc = 0.0f;"
    )
    # Every thread reads what a thread of another warp wrote, and no barrier stands between.
    plant(staged + "C[row * n + column] = alpha * acc + 0.0f * t[31 - threadIdx.y][threadIdx.x];")
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", "32"]) == cli.FAILED
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("planted"))
    assert "RACE" in row
    assert "planted error: race:" in text


def test_a_kernel_that_does_not_compile_shows_the_log(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant("nonsense;")
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", "32"]) == cli.FAILED
    text = capsys.readouterr().err
    assert "nonsense" in text
    assert "Traceback" not in text


def test_counters_of_source_lines_come_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ladder", "sgemm", "--n", "32", "--rungs", "shared(32)"]
    assert "lines" not in _json(arguments, capsys)[1]["rows"][0]
    row = _json([*arguments, "--by-line"], capsys)[1]["rows"][0]
    by_line = {line["line"]: line for line in row["lines"]}
    assert all(name.rpartition(":")[0].endswith("shared.cuh") for name in by_line)
    total = sum(line.get("shared_load_wavefronts", 0) for line in by_line.values())
    assert total == row["counters"]["shared_load_wavefronts"] > 0


def test_the_memory_ladder_counts_and_moves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "memory", "--m", "33", "--n", "17", "--k", "20"], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == ["pageable", "pinned", "unified"]
    for row in result["rows"]:
        assert row["ok"] is True
        assert row["seconds"] is None
        assert row["phases"]["copy in"] == {"seconds": None, "bytes": 4 * (33 * 20 + 20 * 17), "flops": 0}
        assert row["counters"]["shared_load_wavefronts"] > 0


def test_a_plot_is_drawn_beside_the_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ladder.png"
    assert (
        main(["ladder", "sgemm", "--on", "emulator", "--n", "32", "--rungs", "shared", "--plot", str(path)]) == cli.OK
    )
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out
