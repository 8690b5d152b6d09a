"""The inner ladder as users run it without a GPU: every rung, dtype and layout, planted mistakes, the JSON contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.kernel import Kernel, Rung
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.traffic import read_over_least
from matmill.problem import Gemm
from support.ladder_runs import change
from support.planted import planted

BY_LABEL = {rung.label: rung for rung in INNER}
ONE_PASS = BY_LABEL["one-pass"]
TWO_STAGE = BY_LABEL["two-stage"]

#: One thread computes all of one output; `finish` is the ladder's own.
HEAD = """
#include "kernels/splitk/reduce.cuh"
extern "C" __global__ void planted(const Scalar* E, const Scalar* F, Acc* sums, Index k, Index e_row, Index e_k,
                                   Index f_k, Index f_column) {
"""
LOOP = """
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= 9) return;
  const int row = t / 3, column = t % 3;
  Acc sum = 0;
  for (Index i = FIRST; i < k; ++i) {
    sum += Number::up(E[row * e_row + i * e_k]) * Number::up(F[i * f_k + column * f_column]);
  }
"""
WRONG = {
    "first term missing": LOOP.replace("FIRST", "1") + "sums[t] = sum;",
    "one element missing": LOOP.replace("FIRST", "0") + "if (t != 4) sums[t] = sum;",
    "nothing computed": LOOP.replace("FIRST", "k") + "sums[t] = sum;",
    "nothing written": "",
}

Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Put a rung whose main kernel has the given body on the ladder, beside ``one-pass``; it clears nothing."""

    def put(body: str, *, name: str = "planted") -> None:
        package = planted(monkeypatch, tmp_path, f"{HEAD}{body}\n}}\n")
        kernel: Kernel[Gemm] = replace(ONE_PASS.kernel, package=package, file="kernel.cuh", entry="planted", before=())
        rung: Rung[Gemm] = replace(ONE_PASS, name=name, kernel=kernel)
        change(monkeypatch, "inner", rungs=(ONE_PASS, rung))

    return put


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", "inner", *arguments, "--on", "emulator", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_every_rung_is_right_and_race_free_and_the_json_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--k", "2e4", "--seed", "7", "--arch", "a100"], capsys)
    assert code == cli.OK
    assert (result["ladder"], result["on"], result["arch"], result["target"]) == ("inner", "emulator", "a100", "sm_80")
    assert result["problem"] == {"m": 3, "n": 3, "k": 20_000, "dtype": "float32", "layout": "row"}
    assert result["environment"]["seed"] == 7
    assert [row["rung"] for row in result["rows"]] == [*BY_LABEL, "production"]
    least = 4 * (2 * 3 * 20_000 + 9)
    for row in result["rows"]:
        assert row["ok"] is True, row
        assert row["hazards"] == []
        assert 0 <= row["error_ratio"] <= 1
        assert row["bytes"] == (4 * (3 * 20_000 + 9) if row["rung"] == "gram" else least)
        nulls = ("seconds", "tflops", "peak_fraction", "library_fraction", "tbytes_per_second", "bandwidth_fraction")
        assert all(row[name] is None for name in nulls)
        assert row["registers"] > 0
        assert 0 < row["occupancy"] <= 1
        assert read_over_least(row["counters"], row["bytes"]) >= 0.99
    assert result["baselines"][0]["tbytes_per_second"] > 0
    assert Outcome.from_dict(result).as_dict() == result


def test_the_table_tells_the_ladder_s_story(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--k", "3e4"], capsys)
    rows = {row["rung"]: row for row in result["rows"]}
    assert code == cli.OK

    def read(name: str) -> float:
        return read_over_least(rows[name]["counters"], rows[name]["bytes"])

    def sectors(name: str) -> float:
        c = rows[name]["counters"]
        return float(c["global_load_sectors"] / c["global_load_requests"])

    assert read("basic") == pytest.approx(3, rel=0.01)
    assert read("phvm") == pytest.approx(3, rel=0.01)
    assert all(read(name) == pytest.approx(1, rel=0.05) for name in ("one-pass", "vectorized", "two-stage", "gram"))
    # Where k is short, threads that share a k may ask for it one by one: what comes from L2 is no more.
    touched = {name: rows[name]["counters"]["global_load_sectors"] for name in ("two-stage", "production")}
    assert touched["production"] < 1.05 * touched["two-stage"]
    assert sectors("basic") > 3 * sectors("phvm")
    assert rows["two-stage"]["counters"]["atomics"] == 0 < rows["vectorized"]["counters"]["atomics"]
    assert any(note == "basic, phvm: launched with GS = 16" for note in result["notes"])

    assert main(["ladder", "inner", "--on", "emulator", "--k", "3000"]) == cli.OK
    text = capsys.readouterr().out
    assert "F row-major, 4.80 TB/s by the data sheet of the H200" in text
    assert all(word in text for word in ("read/", "sect/", "atomics", "barriers", "races", "CPU BLAS (NumPy) took"))
    assert "* two-stage, production: two runs gave the same bits" in text
    assert "* gram: its F is the transpose of E; two runs gave the same bits" in text


@pytest.mark.parametrize(("dtype", "layout"), [("float64", "row"), ("float16", "column"), ("bfloat16", "row")])
def test_every_dtype_and_layout(dtype: str, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--m", "3", "--n", "2", "--k", "501", "--dtype", dtype, "--layout", layout], capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 3, "n": 2, "k": 501, "dtype": dtype, "layout": layout}
    assert [row["ok"] for row in result["rows"]] == [True] * len(LADDERS["inner"].rows), result["rows"]
    gram = result["rows"][-2]
    assert gram["problem"] == {"m": 3, "n": 3, "k": 501, "dtype": dtype, "layout": "gram"}
    assert gram["note"].startswith("at m=3 n=3 k=501: its F is the transpose of E")
    cpu = any("no row for the CPU" in note for note in result["notes"])
    assert cpu == (dtype != "float64")
    assert len(result["baselines"]) == (0 if cpu else 1)


def test_a_case_names_sizes_that_options_may_change(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--case", "mtx3", "--k", "777", "--rungs", "phvm", "--gs", "3", "--bs", "96", "--by-line"]
    code, result = _json(arguments, capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 9, "n": 9, "k": 777, "dtype": "float32", "layout": "row"}
    assert result["rows"][0]["counters"]["atomics"] == 9 * 9 * 3
    assert "phvm: launched with GS = 3, BS = 96" in result["notes"]
    lines = result["rows"][0]["lines"]
    assert sum(line.get("atomics", 0) for line in lines) == 9 * 9 * 3
    # Lines of all three launches: the sums cleared, made, and turned into D.
    assert sum("global_store_bytes" in line for line in lines) == 2


def test_n_defaults_to_m(capsys: pytest.CaptureFixture[str]) -> None:
    for given, expected in (
        (["--m", "4"], (4, 4)),
        (["--n", "2"], (2, 2)),
        (["--m", "4", "--n", "2"], (4, 2)),
        ([], (3, 3)),
    ):
        _, result = _json([*given, "--k", "64", "--rungs", "one-pass"], capsys)
        assert (result["problem"]["m"], result["problem"]["n"]) == expected


# Of 100,000 products the worst case of rounding is larger than the sum: a bound of that size would pass anything.
@pytest.mark.parametrize(("mistake", "k"), [*((mistake, 2000) for mistake in WRONG), ("nothing computed", 100_000)])
def test_a_planted_mistake_prints_wrong_and_fails(
    mistake: str, k: int, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(WRONG[mistake])
    assert main(["ladder", "inner", "--on", "emulator", "--k", str(k), "--seed", "3"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert "WRONG" in next(line for line in lines if line.startswith("planted"))
    assert " ok " in next(line for line in lines if line.startswith("one-pass"))


def test_a_right_kernel_passes_where_wrong_ones_do_not(plant: Plant, capsys: pytest.CaptureFixture[str]) -> None:
    plant(LOOP.replace("FIRST", "0") + "sums[t] = sum;")
    code, result = _json(["--k", "5000"], capsys)
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == [True, True, True]


def test_a_rung_that_promises_the_same_bits_and_breaks_it_fails(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    # Whether the first warp is the first to add depends on the order of warps alone.
    plant(
        "  __shared__ int first;\n"
        "  if (threadIdx.x == 0) first = 0;\n"
        "  __syncthreads();\n"
        "  const int before = threadIdx.x % 32 == 0 ? atomicAdd(&first, 1) : -1;\n"
        "  if (blockIdx.x == 0 && threadIdx.x == 0) for (int i = 0; i < 9; ++i) {\n"
        "    Acc sum = 0;\n"
        "    for (Index j = 0; j < k; ++j) sum += Number::up(E[i / 3 * e_row + j * e_k]) * "
        "Number::up(F[j * f_k + i % 3 * f_column]);\n"
        "    sums[i] = before ? sum * Acc(1.000001) : sum;\n"
        "  }\n",
        name="two-stage",
    )
    code, result = _json(["--k", "500"], capsys)
    assert code == cli.FAILED
    assert result["rows"][1]["ok"] is False
    assert "two runs gave different bits" in result["rows"][1]["note"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_beside_the_tables(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    path = tmp_path / f"inner{suffix}"
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        some = ["--rungs", "phvm,one-pass,gram", "--k", "3000"]
        assert main(["ladder", "inner", "--on", "emulator", *some, "--plot", str(path)]) == cli.OK
    assert str(path) in capsys.readouterr().out
    if suffix == ".svg":
        picture = path.read_text(encoding="utf-8")
        assert "global bytes read over the least that must move" in picture
        assert "the least" in picture
    else:
        assert path.read_bytes().startswith(b"\x89PNG")
