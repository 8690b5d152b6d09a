"""The ladders as users run them without a GPU: every rung and type, planted mistakes, tables, plots and the JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill import cli
from matmill.bench.problems.transpose_sums import TransposeAddInputs, exact_sum
from matmill.cli import main
from matmill.config import Config
from matmill.dtypes import BF16, ELEMENTWISE, F32, I8, I32
from matmill.kernel import Geometry
from matmill.ladders.hgemm.rungs import HGEMM, ON_WGMMA
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.traffic import read_over_least
from matmill.ladders.sgemm.rungs import ON_FMA
from matmill.ladders.transpose_add.subject import transpose_add_problem
from support.ladder_runs import change
from support.launched_script import ScriptGPU, launch_script
from support.planted import planted
from support.recorded import AGAIN, differences, rows_of

Capture = pytest.CaptureFixture[str]
#: What a row has no value for in the emulator.
UNTIMED = {"seconds", "tflops", "peak_fraction", "library_fraction", "tbytes_per_second", "bandwidth_fraction"}


def _json(arguments: list[str], capsys: Capture) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", *arguments, "--on", "emulator", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def _text(arguments: list[str], capsys: Capture) -> tuple[int, str]:
    code = main(["ladder", *arguments, "--on", "emulator"])
    return code, capsys.readouterr().out


# Every rung


def _check_sgemm(row: dict[str, Any], _asked: dict[str, Any]) -> None:
    p, counters = row["problem"], row["counters"]
    terms = p["m"] * p["n"] * p["k"]
    if row["rung"] in {rung.label for rung in ON_FMA}:
        assert counters["ffma"] >= terms
    else:  # three products of pieces for one
        assert counters["matrix_flops"] == 3 * 2 * terms


def _check_hgemm(row: dict[str, Any], asked: dict[str, Any]) -> None:
    assert differences(row, rows_of("hgemm_emulated_256x256x128_float16")[row["rung"]]) == {}, AGAIN
    # A warp of m64n128k16 does as much as 16 mma.sync of 16 x 8 x 16, and of m64n256k16 twice that.
    counters, wide = row["counters"], row["rung"] in {"warp-specialised", "persistent", "tma-store", "multicast"}
    if row["rung"] != "production":  # whose tile the cost model chooses
        work = asked["m"] * asked["n"] * asked["k"] // (16 * 8 * 16)
        assert counters["hmma"] + counters["gmma"] * (32 if wide else 16) == work
        assert (counters["gmma"] > 0) == (row["rung"] in {rung.label for rung in ON_WGMMA})


def _check_inner(row: dict[str, Any], asked: dict[str, Any]) -> None:
    m, n, k = (asked[size] for size in "mnk")
    assert row["bytes"] == 4 * ((1 if row["rung"] == "gram" else 2) * m * k + m * n)
    times = m if row["rung"] in {"basic", "phvm"} else 1
    read = read_over_least(row["counters"], row["bytes"])
    if row["rung"] == "production":  # the cost model may choose a tile that reads F for each row of D, from L1
        assert 0.95 <= read <= 1.05 * m
    else:
        assert read == pytest.approx(times, rel=0.05)


def _check_sum(row: dict[str, Any], asked: dict[str, Any]) -> None:
    matrix = asked["m"] * asked["n"] * 2
    assert (row["error_ratio"], row["bytes"]) == (0.0, 3 * matrix)
    assert row["counters"]["global_store_bytes"] == matrix
    assert row["counters"]["global_load_bytes"] >= 2 * matrix


def _check_transfer(row: dict[str, Any], asked: dict[str, Any]) -> None:
    m, n, k = (asked[size] for size in "mnk")
    assert row["phases"]["copy in"] == {"seconds": None, "bytes": 4 * (m * k + k * n), "flops": 0}
    assert row["counters"]["shared_load_wavefronts"] > 0


#: Arguments, the problem, and what is checked besides in each row.
WHOLE: dict[str, tuple[list[str], dict[str, Any], Callable[[dict[str, Any], dict[str, Any]], None]]] = {
    "sgemm": (["--n", "64"], {"m": 64, "n": 64, "k": 64}, _check_sgemm),
    "hgemm": ([], {"m": 256, "n": 256, "k": 128, "dtype": "float16"}, _check_hgemm),
    "inner": (["--k", "2e4"], {"m": 3, "n": 3, "k": 20_000, "dtype": "float32", "layout": "row"}, _check_inner),
    "transpose_add": ([], {"m": 604, "n": 512, "dtype": "bfloat16"}, _check_sum),
    "memory": (["--m", "33", "--n", "17", "--k", "20"], {"m": 33, "n": 17, "k": 20}, _check_transfer),
}


@pytest.mark.parametrize("ladder", WHOLE)
def test_every_rung_is_right_and_race_free_and_the_json_says_all(
    ladder: str, capsys: Capture, request: pytest.FixtureRequest
) -> None:
    arguments, problem, check = WHOLE[ladder]
    arch = [] if ladder in {"sgemm", "hgemm"} else ["--arch", "a100"]
    labels, some = [row.label for row in LADDERS[ladder].rows], ["--all"]
    if ladder in {"sgemm", "hgemm"} and not request.config.getoption("--exhaustive"):  # slow to emulate
        labels = list(dict.fromkeys(labels[::2] + labels[-1:]))
        some = ["--rungs", ",".join(labels)]
    code, result = _json([ladder, *arguments, "--seed", "7", *arch, *some], capsys)
    assert code == cli.OK
    wanted = ("a100", "sm_80") if arch else ("h200", "sm_90a")
    assert (result["ladder"], result["on"]) == (ladder, "emulator")
    assert ladder == "memory" or (result["arch"], result["target"]) == wanted
    assert result["problem"] == problem
    assert result["environment"]["seed"] == 7
    assert [row["rung"] for row in result["rows"]] == labels
    for row in result["rows"]:
        assert (row["ok"], row["hazards"]) == (True, []), row
        assert 0 <= row["error_ratio"] <= 1
        assert all(row[name] is None for name in UNTIMED & set(row))
        if ladder != "memory":
            assert row["registers"] > 0
            assert 0 < row["occupancy"] <= 1
        check(row, problem)
    assert result["baselines"] == []  # nothing is timed, the CPU's BLAS no more than a rung
    if ladder == "transpose_add":
        assert "copy_bytes_per_s" not in result
        assert not {"tflops", "peak_fraction"} & set(result["rows"][0])
    assert Outcome.from_dict(result).as_dict() == result


@pytest.mark.parametrize(("dtype", "layout"), [("float64", "row"), ("float16", "column"), ("bfloat16", "row")])
def test_inner_products_of_every_type_and_layout(dtype: str, layout: str, capsys: Capture) -> None:
    sizes = ["--m", "3", "--n", "2", "--k", "501"]
    code, result = _json(["inner", *sizes, "--dtype", dtype, "--layout", layout], capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 3, "n": 2, "k": 501, "dtype": dtype, "layout": layout}
    assert [row["ok"] for row in result["rows"]] == [True] * len(LADDERS["inner"].rows), result["rows"]
    gram = result["rows"][-2]
    assert gram["problem"] == {"m": 3, "n": 3, "k": 501, "dtype": dtype, "layout": "gram"}
    assert gram["note"].startswith("at m=3 n=3 k=501: its F is the transpose of E")
    assert not any("the CPU:" in note for note in result["notes"])


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_sums_of_every_type_at_an_odd_size(dtype: str, capsys: Capture) -> None:
    code, result = _json(["transpose_add", "--m", "131", "--n", "77", "--dtype", dtype], capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 131, "n": 77, "dtype": dtype}
    rows = {row["rung"]: row for row in result["rows"]}
    assert all(row["ok"] for row in rows.values()), rows
    assert all(rows[name]["problem"] == result["problem"] for name in ("wide", "shifted", "production"))
    for name in ("v1", "v2"):
        size = rows[name]["problem"]
        assert size["n"] * ELEMENTWISE[dtype].itemsize % 16 == 0
        assert rows[name]["note"].startswith(f"at m={size['m']} n={size['n']}: ")
    assert rows["v2"]["problem"]["m"] % 2 == 0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 40), (40, 1), (2, 3)])
def test_sums_of_vectors_and_single_elements(m: int, n: int, capsys: Capture) -> None:
    code, result = _json(["transpose_add", "--m", str(m), "--n", str(n), "--dtype", "float32"], capsys)
    assert code == cli.OK
    rows = {row["rung"]: row for row in result["rows"]}
    assert all(rows[name]["ok"] and not rows[name]["note"] for name in ("wide", "shifted", "production"))


def test_products_of_sizes_that_no_tile_divides(capsys: Capture) -> None:
    sizes = ["--m", "100", "--n", "67", "--k", "45", "--dtype", "bfloat16"]
    code, result = _json(["hgemm", *sizes, "--rungs", "hierarchical,any-size,epilogue,float32-sums,production"], capsys)
    assert code == cli.OK
    tiled, *others = result["rows"]
    assert tiled["note"].startswith("at m=256 n=128 k=64: ")
    assert tiled["problem"] == {"m": 256, "n": 128, "k": 64, "dtype": "bfloat16"}
    for row in others:
        assert (row["note"], row["problem"]) == ("", {"m": 100, "n": 67, "k": 45, "dtype": "bfloat16"})
        assert row["ok"] is True


def test_a_seed_repeats_a_run_and_none_makes_a_fresh_one(capsys: Capture) -> None:
    arguments = ["sgemm", "--n", "40", "--rungs", "naive"]
    ratios = [_json([*arguments, "--seed", "1"], capsys)[1]["rows"][0]["error_ratio"] for _ in range(2)]
    assert ratios[0] == ratios[1]
    assert len({_json(arguments, capsys)[1]["environment"]["seed"] for _ in range(2)}) == 2


def test_an_arch_older_than_the_compiler_is_said_to_be_so(capsys: Capture) -> None:
    code, result = _json(["sgemm", "--n", "32", "--rungs", "naive", "--arch", "c2070"], capsys)
    assert code == cli.OK
    assert (result["arch"], result["target"]) == ("c2070", "sm_90a")
    assert any("no longer knows the Tesla C2070" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("arch", "ok", "words"),
    [
        ("t4", [True, None], "cp.async needs compute capability 8.0: t4 has 7.5"),
        ("k40", [None, None], "mma.sync on float16 needs compute capability 7.5: k40 has 3.5"),
    ],
)
def test_rows_say_which_gpu_they_need(arch: str, ok: list[bool | None], words: str, capsys: Capture) -> None:
    code, result = _json(["hgemm", "--arch", arch, "--k", "64", "--rungs", "double-buffer,multistage"], capsys)
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == ok
    assert words in result["rows"][ok.index(None)]["note"]


def test_a_case_names_sizes_that_options_may_change(capsys: Capture) -> None:
    arguments = ["--case", "mtx3", "--k", "777", "--rungs", "phvm", "--gs", "3", "--bs", "96", "--by-line"]
    code, result = _json(["inner", *arguments], capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 9, "n": 9, "k": 777, "dtype": "float32", "layout": "row"}
    assert result["rows"][0]["counters"]["atomics"] == 9 * 9 * 3
    assert "phvm: launched with GS = 3, BS = 96" in result["notes"]
    lines = result["rows"][0]["lines"]
    assert sum(line.get("atomics", 0) for line in lines) == 9 * 9 * 3
    # Lines of all three launches: the sums cleared, made, and turned into D.
    assert sum("global_store_bytes" in line for line in lines) == 2


def test_n_defaults_to_m(capsys: Capture) -> None:
    cases: list[tuple[list[str], tuple[int, int]]] = [
        (["--m", "4"], (4, 4)),
        (["--n", "2"], (2, 2)),
        (["--m", "4", "--n", "2"], (4, 2)),
        ([], (3, 3)),
    ]
    for sizes, expected in cases:
        _, result = _json(["inner", *sizes, "--k", "64", "--rungs", "one-pass"], capsys)
        assert (result["problem"]["m"], result["problem"]["n"]) == expected


def test_counters_of_source_lines_come_on_request(capsys: Capture) -> None:
    arguments = ["sgemm", "--n", "32", "--rungs", "shared(32)"]
    assert "lines" not in _json(arguments, capsys)[1]["rows"][0]
    row = _json([*arguments, "--by-line"], capsys)[1]["rows"][0]
    by_line = {line["line"]: line for line in row["lines"]}
    assert all(name.rpartition(":")[0].endswith("shared.cuh") for name in by_line)
    total = sum(line.get("shared_load_wavefronts", 0) for line in by_line.values())
    assert total == row["counters"]["shared_load_wavefronts"] > 0


# Tables and plots


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["sgemm", "--n", "33", "--rungs", "shared(16)"],
            ["* shared(16): at m=32 n=32 k=32: m = 33 is not a multiple of 16"],
        ),
        (["hgemm", "--rungs", "swizzled", "--k", "64"], ["HMMA", "the emulator counts, it does not time"]),
        (
            ["inner", "--k", "3000", "--all"],
            [
                *("F row-major, 4.80 TB/s by the data sheet of the H200", "read/"),
                *("sect/", "atomics", "barriers", "races", "basic, phvm: launched with GS = 16"),
                "* two-stage, production: two runs gave the same bits",
                "* gram: its F is the transpose of E; two runs gave the same bits",
            ],
        ),
        (
            ["transpose_add", "--m", "100", "--n", "64", "--all"],
            [
                "transpose_add: x 100x64, y 64x100 bfloat16, 4.80 TB/s by the data sheet of the H200",
                *("shared load", "ideal/actual", "sect/", "loads", "stores", "races"),
            ],
        ),
    ],
    ids=["sgemm", "hgemm", "inner", "transpose_add"],
)
def test_tables(arguments: list[str], words: list[str], capsys: Capture) -> None:
    code, text = _text(arguments, capsys)
    assert code == cli.OK
    assert [word for word in words if word not in text] == []
    labels = tuple(row.label for row in LADDERS[arguments[0]].rows)
    assert all(len(line) <= 88 for line in text.splitlines() if line.startswith(labels))
    assert "wgmma" not in text


def test_the_table_counts_what_runs_beside_the_threads(capsys: Capture) -> None:
    code, text = _text(["hgemm", "--rungs", "float32-sums,tma-store", "--n", "64"], capsys)
    assert code == cli.OK
    before, after = text.split("Counted of asynchronous units")
    after, waits = after.split("Counted at waits for copies")
    assert "float32-sums" in before
    assert "float32-sums" not in after
    assert [next(line.split()[1:] for line in waits.splitlines() if line.startswith("tma-store"))] == [
        ["1", "0%", "0", "0"]
    ]
    # A tile of 64 x 64 with k 64: stages hold 128 rows of A and 256 columns of B, of which a quarter is inside.
    row = next(line.split() for line in after.splitlines() if line.startswith("tma-store"))
    assert row[1:] == ["32", "81.9k", "6", "16.4k", "8", "8192", "9"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sgemm", "--n", "32", "--rungs", "shared"], ["shared(16)"]),
        (
            ["inner", "--rungs", "phvm,one-pass,gram", "--k", "3000"],
            ["Bytes that all threads read", "the least that must move"],
        ),
        (["transpose_add", "--m", "96", "--n", "64"], ["v1", "shifted", "m=96 n=64 bfloat16"]),
    ],
    ids=["sgemm", "inner", "transpose_add"],
)
def test_a_plot_is_drawn_beside_the_tables(
    arguments: list[str], words: list[str], suffix: str, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    code, text = _text([*arguments, "--plot", str(path)], capsys)
    assert code == cli.OK
    assert str(path) in text
    if suffix == ".svg":
        assert [word for word in words if word not in path.read_text(encoding="utf-8")] == []
    else:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


# Planted mistakes


@dataclass(frozen=True)
class Planted:
    """How a planted kernel stands on a ladder: beside which rung, its text, and what it changes in that rung's."""

    beside: str
    head: str
    changes: Callable[..., dict[str, Any]] = lambda **_: {}
    tail: str = "\n}\n"


def _rows_of_warps(acc16: int = 0) -> dict[str, Any]:
    return {
        "config": Config.of(ACC16=acc16),
        "geometry": lambda problem, _config: Geometry((problem.m, -(-problem.n // 32), 1), (32, 1, 1)),
        "why_not_config": lambda _problem, _config, _arch: None,
    }


PLANTED = {
    "sgemm": Planted(
        "naive",
        'extern "C" __global__ void planted(const float* A, const float* B, float* C, int m, int n, int k, float alpha,'
        " float beta) {\n",
    ),
    # A warp per row of D, an element of it per lane.
    "hgemm": Planted(
        "any-size",
        """
#include "matmill/dtype/half.cuh"
extern "C" __global__ void planted(const Scalar* A, const Scalar* B, const Scalar* C, Scalar* D, int m, int n, int k,
                                   float alpha, float beta) {
  const int row = blockIdx.x, column = blockIdx.y * 32 + threadIdx.x;
  if (row >= m || column >= n) return;
""",
        _rows_of_warps,
    ),
    # One thread computes all of one output; `finish` is the ladder's own.
    "inner": Planted(
        "one-pass",
        """
#include "kernels/splitk/reduce.cuh"
extern "C" __global__ void planted(const Scalar* E, const Scalar* F, Acc* sums, Index k, Index e_row, Index e_k,
                                   Index f_k, Index f_column) {
""",
        lambda **_: {"before": ()},
    ),
    "transpose_add": Planted(
        "v1",
        """
#include "matmill/dtype/number.cuh"
using Number = matmill::NumberOf<Scalar>;
extern "C" __global__ void planted(const Scalar* X, const Scalar* Y, Scalar* D, int m, int n, long long x_column,
                                   long long y_row, long long d_row, Number::Acc alpha, Number::Acc beta) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread; blockIdx.x + blockIdx.y == 0 && i < m * n; i += blockDim.x * blockDim.y) {
    const int row = i / n, column = i % n;
    const auto x = Number::up(X[column * x_column + row]), y = Number::up(Y[row * y_row + column]);
""",
        tail="\n  }\n}\n",
    ),
}
PRODUCT = """
  const int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  if (row >= m || column >= n) return;
  float acc = 0.0f;
  for (int i = 0; i < k; ++i) acc += A[row * k + i] * B[i * n + column];
"""
STORE = "C[row * n + column] = alpha * acc"
#: Rounded to float16 eight terms at a time, as float16 sums of tensor cores are.
NARROW = """
  float sum = 0.0f;
  for (int i = 0; i < k; ++i) {
    sum += A[row * k + i].widened() * B[i * n + column].widened();
    if (i % 8 == 7) sum = Scalar::rounded(sum).widened();
  }
"""
WIDE = NARROW.replace("if (i % 8 == 7)", "if (false)")
ROUND = "D[row * n + column] = Scalar::rounded(alpha * sum);"
LOOP = """
  const int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= 9) return;
  const int row = t / 3, column = t % 3;
  Acc sum = 0;
  for (Index i = FIRST; i < k; ++i) {
    sum += Number::up(E[row * e_row + i * e_k]) * Number::up(F[i * f_k + column * f_column]);
  }
"""
ALL_OF_K = LOOP.replace("FIRST", "0")
ADD = "D[row * d_row + column] = Number::down(alpha * x + beta * y);"
#: Kernels whose result is wrong, by ladder, and the arguments of a run that shows it.
WRONG = {
    "sgemm: one element missing": (["--n", "33"], f"{PRODUCT}if (row + column > 0) {STORE};"),
    "sgemm: one element off": (["--n", "33"], f"{PRODUCT}{STORE} + (row == 7 && column == 9 ? 1e-3f : 0.0f);"),
    "sgemm: nothing written": (["--n", "33"], ""),
    "sgemm: reads C": (["--n", "33"], f"{PRODUCT}{STORE} + beta * C[row * n + column];"),
    "inner: first term missing": (["--k", "2000"], LOOP.replace("FIRST", "1") + "sums[t] = sum;"),
    "inner: one element missing": (["--k", "2000"], ALL_OF_K + "if (t != 4) sums[t] = sum;"),
    # Of 100,000 products the worst case of rounding is larger than the sum: a bound of that size would pass anything.
    "inner: nothing computed": (["--k", "100000"], LOOP.replace("FIRST", "k") + "sums[t] = sum;"),
    "inner: nothing written": (["--k", "2000"], ""),
    "transpose_add: one element missing": (["--m", "48", "--n", "64"], f"if (i != 7) {ADD}"),
    "transpose_add: not transposed": (
        ["--m", "48", "--n", "64"],
        ADD.replace("* x +", "* Number::up(X[row * x_column + column]) +"),
    ),
    "transpose_add: one bit too many": (
        ["--m", "48", "--n", "64"],
        ADD.replace("beta * y", "beta * y + (i == 5 ? y * 0.015625f : 0.0f)"),
    ),
    "transpose_add: y left out": (["--m", "48", "--n", "64"], ADD.replace(" + beta * y", "")),
    "transpose_add: nothing written": (["--m", "48", "--n", "64"], ""),
}
Plant = Callable[..., None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Put a rung whose kernel has the given body on a ladder, beside one of its own."""

    def put(ladder: str, body: str, *, name: str = "planted", **options: int) -> None:
        kind = PLANTED[ladder]
        beside = next(rung for rung in LADDERS[ladder].rows if rung.label == kind.beside)
        package = planted(monkeypatch, tmp_path, f"{kind.head}{body}{kind.tail}")
        changes = {"package": package, "file": "kernel.cuh", "entry": "planted", **kind.changes(**options)}
        rung = replace(beside, name=name, kernel=replace(beside.kernel, **changes))
        rungs = (beside, replace(rung, tune=None) if ladder == "hgemm" else rung)
        change(monkeypatch, ladder, rungs=rungs, short=())

    return put


@pytest.mark.parametrize("mistake", WRONG)
def test_a_planted_mistake_prints_wrong_and_fails(mistake: str, plant: Plant, capsys: Capture) -> None:
    ladder, _, _ = mistake.partition(":")
    arguments, body = WRONG[mistake]
    plant(ladder, body)
    code, text = _text([ladder, *arguments, "--seed", "3"], capsys)
    assert code == cli.FAILED
    assert "WRONG" in next(line for line in text.splitlines() if line.startswith("planted"))
    assert "WRONG" not in next(line for line in text.splitlines() if line.startswith(PLANTED[ladder].beside))
    assert re.search(r"^[12] of [23] right", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("ladder", "arguments", "body"),
    [
        ("inner", ["--k", "5000"], ALL_OF_K + "sums[t] = sum;"),
        ("transpose_add", ["--m", "48", "--n", "64", "--dtype", "int32"], ADD),
    ],
)
def test_a_right_kernel_passes_where_wrong_ones_do_not(
    ladder: str, arguments: list[str], body: str, plant: Plant, capsys: Capture
) -> None:
    plant(ladder, body)
    code, result = _json([ladder, *arguments], capsys)
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == [True, True, True]


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64"])
def test_an_element_that_is_missing_is_seen_in_every_type(dtype: str, plant: Plant, capsys: Capture) -> None:
    plant("transpose_add", f"if (i != 7) {ADD}")
    code, result = _json(["transpose_add", "--m", "48", "--n", "64", "--dtype", dtype], capsys)
    assert code == cli.FAILED
    assert [row["ok"] for row in result["rows"]] == [True, False, True]


#: A body, the precision that the kernel says its sums have, and whether its result is within that.
PRECISIONS = [
    (WIDE + ROUND, 0, True),
    (NARROW + ROUND, 1, True),
    (NARROW + ROUND, 0, False),
    *(
        (body, acc16, False)
        for acc16 in (0, 1)
        for body in (
            WIDE.replace("int i = 0", "int i = 64") + ROUND,  # a step of k missing
            f"{WIDE}if (row + column > 0) {ROUND}",  # one element missing
            "D[row * n + column] = Scalar::rounded(0.0f);",
            "",
        )
    ),
]


@pytest.mark.parametrize(("body", "acc16", "ok"), PRECISIONS)
def test_sums_are_judged_by_what_the_kernel_says_they_are(
    body: str, acc16: int, ok: bool, plant: Plant, capsys: Capture
) -> None:
    plant("hgemm", body, acc16=acc16)
    sizes = ["--m", "8", "--n", "64", "--k", "4096"]
    _, result = _json(["hgemm", *sizes, "--rungs", "planted", "--dtype", "float16"], capsys)
    (row,) = result["rows"]
    assert row["ok"] is ok
    assert ok or row["error_ratio"] is None or row["error_ratio"] > 1


def test_a_row_of_c_too_many_is_a_fault_that_names_buffer_and_line(plant: Plant, capsys: Capture) -> None:
    plant("sgemm", PRODUCT.replace("row >= m", "row > m") + f"{STORE};")
    code, result = _json(["sgemm", "--n", "33"], capsys)
    assert code == cli.FAILED
    row = result["rows"][1]
    assert (row["ok"], row["counters"]) == (False, None)
    assert "stopped" in row["note"]
    assert "kernel.cuh:" in row["note"]


def test_a_missing_barrier_is_a_race(plant: Plant, capsys: Capture) -> None:
    shared = "__shared__ float t[32][32]; t[threadIdx.y][threadIdx.x] = A[0];\n  float acc = 0.0f;"
    # Every thread reads what a thread of another warp wrote, and no barrier stands between.
    read = f"{STORE} + 0.0f * t[31 - threadIdx.y][threadIdx.x];"
    plant("sgemm", PRODUCT.replace("float acc = 0.0f;", shared) + read)
    code, text = _text(["sgemm", "--n", "32"], capsys)
    assert code == cli.FAILED
    assert "RACE" in next(line for line in text.splitlines() if line.startswith("planted"))
    assert "planted error: race:" in text


def test_a_kernel_that_does_not_compile_shows_the_log(plant: Plant, capsys: Capture) -> None:
    plant("sgemm", "nonsense;")
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", "32"]) == cli.FAILED
    text = capsys.readouterr().err
    assert "nonsense" in text
    assert "Traceback" not in text


def test_a_rung_that_promises_the_same_bits_and_breaks_it_fails(plant: Plant, capsys: Capture) -> None:
    # Whether the first warp is the first to add depends on the order of warps alone.
    body = """
  __shared__ int first;
  if (threadIdx.x == 0) first = 0;
  __syncthreads();
  const int before = threadIdx.x % 32 == 0 ? atomicAdd(&first, 1) : -1;
  if (blockIdx.x == 0 && threadIdx.x == 0) for (int i = 0; i < 9; ++i) {
    Acc sum = 0;
    for (Index j = 0; j < k; ++j) sum += Number::up(E[i / 3 * e_row + j * e_k]) *
                                         Number::up(F[j * f_k + i % 3 * f_column]);
    sums[i] = before ? sum * Acc(1.000001) : sum;
  }
"""
    plant("inner", body, name="two-stage")
    code, result = _json(["inner", "--k", "500"], capsys)
    assert code == cli.FAILED
    assert result["rows"][1]["ok"] is False
    assert "two runs gave different bits" in result["rows"][1]["note"]


@pytest.mark.parametrize("damaged", [False, True])
def test_the_profiler_is_given_the_rungs(
    damaged: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    gpu = ScriptGPU("A")
    if damaged:
        gpu.damage = lambda found: found.fill(7)
    order = tmp_path / "order.json"
    monkeypatch.setattr("matmill.ladders.hgemm.rungs.ON_MMA", HGEMM[:2])
    ended = launch_script(monkeypatch, gpu, "record_counters.py", "--ladder", "hgemm", "--launch", order)
    assert ended == int(damaged)
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("WRONG") for line in lines] == [damaged, damaged]
    sizes = {"m": 256, "n": 256, "k": 256, "dtype": "float16"}
    assert json.loads(order.read_text()) == [
        {"rung": rung.label, "entry": rung.kernel.entry, "problem": sizes} for rung in HGEMM[:2]
    ]
    assert gpu.entries == {"hierarchical", "vectorized"}


# Exact sums


def test_integers_wrap_and_no_sum_is_what_outputs_are_filled_with() -> None:
    for dtype in (I8, I32):
        result = TransposeAddInputs.random(transpose_add_problem(300, 200, dtype), 3)
        wide = result.a.astype(np.int64) + result.b
        size = 2 ** (8 * dtype.itemsize)
        assert np.array_equal(result.expected, ((wide + size // 2) % size - size // 2).astype(dtype.numpy))
        assert np.any(wide != result.expected)
        assert not np.any(result.expected == -1)


def test_halves_are_summed_in_float32_and_rounded_once() -> None:
    x, y = (np.array([[value]], BF16.numpy) for value in (1.0, 2.0**-8))
    assert exact_sum(x, y)[0, 0] == 1.0  # halfway, and 1 is the even one
    assert exact_sum(x, y + y)[0, 0] > 1.0
    result = TransposeAddInputs.random(transpose_add_problem(2100, 1030, F32), 1)  # several blocks either way
    assert np.array_equal(result.expected, result.a + result.b)
    wrong = result.expected.copy()
    wrong[-1, -1] = np.nextafter(wrong[-1, -1], np.float32(9))
    assert result.check(result.expected).ok
    assert not any(result.check(one).ok for one in (wrong, result.expected[:-1], result.expected.astype(np.float64)))
