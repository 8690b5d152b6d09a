"""The transpose_add ladder as users run it without a GPU: every rung, dtype and size, planted mistakes, the JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matmill import cli
from matmill.bench.problems.transpose_sums import TransposeAddInputs, exact_sum
from matmill.cli import main
from matmill.dtypes import BF16, ELEMENTWISE, F32, I8, I32
from matmill.kernel import Kernel, Rung
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.results import Outcome
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.ladders.transpose_add.subject import EMULATED, described, restored, transpose_add_problem
from matmill.problem import Geam
from support.ladder_runs import change
from support.planted import planted

LABELS = [rung.label for rung in TRANSPOSE_ADD]
V1 = TRANSPOSE_ADD[0]

HEAD = """
#include "matmill/dtype/number.cuh"
using Number = matmill::NumberOf<Scalar>;
extern "C" __global__ void planted(const Scalar* X, const Scalar* Y, Scalar* D, int m, int n, long long x_column,
                                   long long y_row, long long d_row, Number::Acc alpha, Number::Acc beta) {
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (int i = thread; blockIdx.x + blockIdx.y == 0 && i < m * n; i += blockDim.x * blockDim.y) {
    const int row = i / n, column = i % n;
    const auto x = Number::up(X[column * x_column + row]), y = Number::up(Y[row * y_row + column]);
"""
RIGHT = "D[row * d_row + column] = Number::down(alpha * x + beta * y);"
WRONG = {
    "one element missing": f"if (i != 7) {RIGHT}",
    "not transposed": RIGHT.replace("* x +", "* Number::up(X[row * x_column + column]) +"),
    "one bit too many": RIGHT.replace("beta * y", "beta * y + (i == 5 ? y * 0.015625f : 0.0f)"),
    "y left out": RIGHT.replace(" + beta * y", ""),
    "nothing written": "",
}

Plant = Callable[[str], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Plant:
    """Put a rung whose threads write with the given statement on the ladder, beside ``v1``."""

    def put(statement: str) -> None:
        package = planted(monkeypatch, tmp_path, f"{HEAD}{statement}\n  }}\n}}\n")
        kernel: Kernel[Geam] = replace(V1.kernel, package=package, file="kernel.cuh", entry="planted")
        change(monkeypatch, "transpose_add", rungs=(V1, replace(V1, name="planted", kernel=kernel)))

    return put


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", "transpose_add", *arguments, "--on", "emulator", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_every_rung_takes_the_default_and_the_json_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--seed", "7", "--arch", "a100"], capsys)
    assert code == cli.OK
    assert (result["ladder"], result["on"], result["arch"], result["target"]) == (
        "transpose_add",
        "emulator",
        "a100",
        "sm_80",
    )
    m, n = EMULATED
    assert result["problem"] == {"m": m, "n": n, "dtype": "bfloat16"}
    assert result["environment"]["seed"] == 7
    assert result["baselines"] == []
    assert "copy_bytes_per_s" not in result
    assert [row["rung"] for row in result["rows"]] == [*LABELS, "production"]
    for row in result["rows"]:
        assert row["ok"] is True, row
        assert (row["hazards"], row["note"], row["error_ratio"]) == ([], "", 0.0)
        assert row["bytes"] == 3 * m * n * 2
        assert all(row[name] is None for name in ("seconds", "tbytes_per_second", "bandwidth_fraction"))
        assert not {"tflops", "peak_fraction"} & set(row)
        assert row["counters"]["global_store_bytes"] == m * n * 2
        assert row["counters"]["global_load_bytes"] >= 2 * m * n * 2
    assert Outcome.from_dict(result).as_dict() == result


def test_the_counters_tell_the_ladder_s_story(capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json([], capsys)
    counters = {row["rung"]: row["counters"] for row in result["rows"]}

    def ways(name: str) -> float:
        c = counters[name]
        return float(c["shared_load_wavefronts"] / c["shared_load_wavefronts_ideal"])

    assert ways("v1") == pytest.approx(4, rel=0.01)
    assert ways("v2") == pytest.approx(8, rel=0.06)
    assert ways("wide") < 2
    stores = [counters[name]["global_store_requests"] for name in LABELS]
    assert stores == sorted(stores, reverse=True)
    assert stores[0] > 3.5 * stores[3]  # and at the article's size, with fewer edges, 8


def test_the_tables_show_wavefronts_and_whose_bandwidth_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "transpose_add", "--on", "emulator", "--m", "100", "--n", "64"]) == cli.OK
    text = capsys.readouterr().out
    assert "transpose_add: x 100x64, y 64x100 bfloat16, 4.80 TB/s by the data sheet of the H200" in text
    assert all(word in text for word in ("shared load", "ideal/actual", "sect/", "loads", "stores", "races"))
    assert all(len(line) <= 88 for line in text.splitlines() if line.startswith(("v1", "wide", "production")))


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_every_dtype_at_an_odd_size(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--m", "131", "--n", "77", "--dtype", dtype], capsys)
    assert code == cli.OK
    assert result["problem"] == {"m": 131, "n": 77, "dtype": dtype}
    rows = {row["rung"]: row for row in result["rows"]}
    assert all(row["ok"] for row in rows.values()), rows
    for name in ("wide", "shifted", "production"):
        assert rows[name]["problem"] == result["problem"]
    for name in ("v1", "v2"):
        size = rows[name]["problem"]
        assert size["n"] * ELEMENTWISE[dtype].itemsize % 16 == 0
        assert rows[name]["note"].startswith(f"at m={size['m']} n={size['n']}: ")
    assert rows["v2"]["problem"]["m"] % 2 == 0


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 40), (40, 1), (2, 3)])
def test_vectors_and_single_elements(m: int, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--m", str(m), "--n", str(n), "--dtype", "float32"], capsys)
    assert code == cli.OK
    rows = {row["rung"]: row for row in result["rows"]}
    assert all(rows[name]["ok"] and not rows[name]["note"] for name in ("wide", "shifted", "production"))


@pytest.mark.parametrize("mistake", WRONG)
def test_a_planted_mistake_prints_wrong_and_fails(
    mistake: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(WRONG[mistake])
    arguments = ["ladder", "transpose_add", "--on", "emulator", "--m", "48", "--n", "64", "--seed", "3"]
    assert main(arguments) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert "WRONG" in next(line for line in lines if line.startswith("planted"))
    assert " ok " in next(line for line in lines if line.startswith("v1"))


@pytest.mark.parametrize("dtype", ["int8", "int32", "float64"])
def test_an_element_that_is_missing_is_seen_in_every_type(
    dtype: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(WRONG["one element missing"])
    code, result = _json(["--m", "48", "--n", "64", "--dtype", dtype], capsys)
    assert code == cli.FAILED
    assert [row["ok"] for row in result["rows"]] == [True, False, True]
    plant(RIGHT)
    assert _json(["--m", "48", "--n", "64", "--dtype", dtype], capsys)[0] == cli.OK


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
    assert not result.check(wrong).ok
    assert not result.check(result.expected[:-1]).ok
    assert not result.check(result.expected.astype(np.float64)).ok


def test_records_and_the_production_row() -> None:
    asked = transpose_add_problem(24300, 11520)
    assert described(asked) == {"m": 24300, "n": 11520, "dtype": "bfloat16"}
    assert restored(described(asked)) == asked
    assert [row.name for row in LADDERS["transpose_add"].rows] == [*LABELS, "production"]
    lone: Rung[Any] = LADDERS["transpose_add"].rows[-1]
    assert lone.kernel.entry == "transpose_add"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_plot_is_drawn_beside_the_tables(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    path = tmp_path / f"sum{suffix}"
    arguments = ["ladder", "transpose_add", "--on", "emulator", "--m", "96", "--n", "64", "--plot", str(path)]
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        assert main(arguments) == cli.OK
    assert str(path) in capsys.readouterr().out
    if suffix == ".svg":
        picture = path.read_text(encoding="utf-8")
        assert all(label in picture for label in LABELS)
        assert "m=96 n=64 bfloat16" in picture
    assert path.stat().st_size > 5000
