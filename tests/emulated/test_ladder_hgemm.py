"""The hgemm ladder as users run it without a GPU: every rung and type, a planted mistake, and the JSON contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.config import Config
from matmill.kernel import Geometry, Rung
from matmill.ladders.hgemm.rungs import ANY_SIZE, HGEMM, ON_WGMMA
from matmill.ladders.hgemm.subject import EMULATED
from matmill.ladders.runner.results import Outcome
from matmill.problem import Gemm
from support.ladder_runs import change
from support.launched_script import ScriptGPU, launch_script
from support.planted import planted
from support.recorded import AGAIN, differences, rows_of

#: A warp per row of D, an element of it per lane.
PARAMETERS = (
    "(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k, float alpha, float beta)"
)
HEAD = f"""
#include "matmill/dtype/half.cuh"
extern "C" __global__ void planted{PARAMETERS} {{
  const int row = blockIdx.x, column = blockIdx.y * 32 + threadIdx.x;
  if (row >= m || column >= n) return;
"""
#: Rounded to float16 eight terms at a time, as float16 sums of tensor cores are.
NARROW = """
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += A[row * k + i].widened() * B[i * n + column].widened();
    if (i % 8 == 7) sum = Scalar::rounded(sum).widened();
  }
"""
WIDE = NARROW.replace("if (i % 8 == 7)", "if (false)")
STORE = "D[row * n + column] = Scalar::rounded(alpha * sum);"

Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Put a rung whose kernel has the given body on the ladder, beside ``any-size``."""

    def put(body: str, *, acc16: int) -> None:
        package = planted(monkeypatch, tmp_path, f"{HEAD}{body}\n}}\n")
        kernel = replace(
            ANY_SIZE.kernel,
            package=package,
            file="kernel.cuh",
            entry="planted",
            config=Config.of(ACC16=acc16),
            geometry=lambda problem, _config: Geometry((problem.m, -(-problem.n // 32), 1), (32, 1, 1)),
            why_not_config=lambda _problem, _config, _arch: None,
        )
        rung: Rung[Gemm] = replace(ANY_SIZE, name="planted", kernel=kernel, tune=None)
        change(monkeypatch, "hgemm", rungs=(ANY_SIZE, rung))

    return put


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", "hgemm", *arguments, "--on", "emulator", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_every_rung_is_right_and_race_free(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json([], capsys)
    assert code == cli.OK
    m, n, k = EMULATED
    asked = {"m": m, "n": n, "k": k, "dtype": "float16"}
    assert result["problem"] == asked
    assert [row["rung"] for row in result["rows"]] == [*(rung.label for rung in HGEMM), "production"]
    for row in result["rows"]:
        assert differences(row, rows_of("hgemm_emulated_256x256x128_float16")[row["rung"]]) == {}, AGAIN
        assert row["ok"] is True, row
        assert (row["hazards"], row["note"], row["problem"]) == ([], "", asked)
        assert 0 <= row["error_ratio"] <= 1
        assert (row["seconds"], row["tflops"], row["peak_fraction"]) == (None, None, None)
        # A warp of m64n128k16 does as much as 16 mma.sync of 16 x 8 x 16, and of m64n256k16 twice that.
        counters, wide = row["counters"], row["rung"] in {"warp-specialised", "persistent", "tma-store", "multicast"}
        if row["rung"] != "production":  # whose tile the cost model chooses
            assert counters["hmma"] + counters["gmma"] * (32 if wide else 16) == m * n * k // (16 * 8 * 16)
            assert (counters["gmma"] > 0) == (row["rung"] in {rung.label for rung in ON_WGMMA})
        assert row["registers"] > 0
        assert 0 < row["occupancy"] <= 1
    assert Outcome.from_dict(result).as_dict() == result


def test_sizes_that_no_tile_divides(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--m", "100", "--n", "67", "--k", "45", "--dtype", "bfloat16"]
    rungs = "hierarchical,any-size,epilogue,float32-sums,production"
    code, result = _json([*sizes, "--rungs", rungs], capsys)
    assert code == cli.OK
    tiled, *others = result["rows"]
    assert tiled["note"].startswith("at m=256 n=128 k=64: ")
    assert tiled["problem"] == {"m": 256, "n": 128, "k": 64, "dtype": "bfloat16"}
    for row in others:
        assert (row["note"], row["problem"]) == ("", {"m": 100, "n": 67, "k": 45, "dtype": "bfloat16"})
        assert row["ok"] is True


def test_the_table_counts_matrix_instructions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "hgemm", "--on", "emulator", "--rungs", "swizzled", "--k", "64"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("rung ") and "HMMA" in line for line in lines)
    assert not any("wgmma" in line for line in lines)
    assert "no row for the CPU: its BLAS has no float16" in lines


def test_the_table_counts_what_runs_beside_the_threads(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ladder", "hgemm", "--on", "emulator", "--rungs", "float32-sums,tma-store", "--n", "64"]
    assert main(arguments) == cli.OK
    before, after = capsys.readouterr().out.split("Counted of asynchronous units")
    assert "float32-sums" in before
    assert "float32-sums" not in after
    # A tile of 64 x 64 with k 64: stages hold 128 rows of A and 256 columns of B, of which a quarter is inside.
    row = next(line.split() for line in after.splitlines() if line.startswith("tma-store"))
    assert row[1:] == ["32", "81.9k", "6", "16.4k", "8", "8192", "9"]


@pytest.mark.parametrize("arch", ["t4", "k40"])
def test_rows_say_which_gpu_they_need(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--arch", arch, "--k", "64", "--rungs", "double-buffer,multistage"], capsys)
    assert code == cli.OK
    first, second = result["rows"]
    assert second["ok"] is None
    if arch == "t4":
        assert first["ok"] is True
        assert "cp.async needs compute capability 8.0: t4 has 7.5" in second["note"]
    else:
        assert first["ok"] is None
        assert "mma.sync on float16 needs compute capability 7.5: k40 has 3.5" in first["note"]


def _planted(plant: Plant, body: str, capsys: pytest.CaptureFixture[str], *, acc16: int = 0) -> dict[str, Any]:
    plant(body, acc16=acc16)
    _, result = _json(["--m", "8", "--n", "64", "--k", "4096", "--rungs", "planted", "--dtype", "float16"], capsys)
    row: dict[str, Any] = result["rows"][0]
    return row


def test_sums_are_judged_by_what_the_kernel_says_they_are(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    assert _planted(plant, WIDE + STORE, capsys)["ok"] is True
    assert _planted(plant, NARROW + STORE, capsys, acc16=1)["ok"] is True
    assert _planted(plant, NARROW + STORE, capsys)["ok"] is False


@pytest.mark.parametrize(
    "body",
    [
        WIDE.replace("int i = 0", "int i = 64") + STORE,
        WIDE + "if (row + column > 0) " + STORE,
        "D[row * n + column] = Scalar::rounded(0.0f);",
        "",
    ],
    ids=["a step of k missing", "one element missing", "zeros", "nothing written"],
)
def test_a_planted_mistake_is_wrong_whatever_the_sums(
    body: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    for acc16 in (0, 1):
        row = _planted(plant, body, capsys, acc16=acc16)
        assert row["ok"] is False, acc16
        assert row["error_ratio"] is None or row["error_ratio"] > 1


@pytest.mark.parametrize("damaged", [False, True])
def test_sanitizers_are_given_the_rungs(
    damaged: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("A")
    if damaged:
        gpu.damage = lambda found: found.fill(7)
    order = tmp_path / "order.json"
    monkeypatch.setattr("lab.gemm.launches.HGEMM_LADDER", (HGEMM[0], HGEMM[-1]))
    ended = launch_script(monkeypatch, gpu, "launches.py", "gemm", "--ladder", "hgemm", "--out", order)
    assert ended == int(damaged)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"2 launches, {2 * damaged} wrong"
    sizes = {"m": 256, "n": 256, "k": 256, "dtype": "float16"}
    assert json.loads(order.read_text()) == [
        {"rung": rung.label, "entry": rung.kernel.entry, "problem": sizes} for rung in (HGEMM[0], HGEMM[-1])
    ]
    assert gpu.entries == {"hierarchical", "pingpong"}
