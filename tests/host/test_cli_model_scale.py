"""`matmill model scale`: rows, limits, the plot and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matmill.arch import get
from matmill.choose import choose
from matmill.cli import main
from matmill.dtypes import F32
from matmill.problem import Gemm

SCALE = ["model", "scale", "--m", "4", "--k", "1e8"]


def test_rows_are_the_chosen_kernel_s_time_and_an_all_reduce(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCALE, "--gpus", "1,64", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    one, many = record["rows"]
    assert (one["gpus"], one["all_reduce"], one["efficiency"]) == (1, None, 1)
    local = choose(Gemm(m=4, n=4, k=1_562_500, dtype=F32), get("h200")).predicted_seconds
    assert many["local"] == pytest.approx(local, rel=0.02)
    assert many["seconds"] == pytest.approx(many["local"] + many["all_reduce"]["seconds"])
    assert many["efficiency"] == pytest.approx(record["one_gpu_seconds"] / 64 / many["seconds"])
    assert record["bytes"] == 4 * 4 * 4
    assert record["half_efficient"] <= record["fastest"]


def test_a_gram_matrix_sends_half(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCALE, "--gram", "--dtype", "bfloat16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == 4 * 5 // 2 * 4


def test_the_report_says_where_more_gpus_stop_paying(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "scale.svg"
    assert main([*SCALE, "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "The time falls up to" in shown
    assert "are at least half efficient" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert "least time" in plot.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "8,0"], "whole numbers from 1 to"),
        (["--gpus", "eight"], "whole numbers from 1 to"),
        (["--dtype", "int8"], "one of float32"),
        (["--network", "0"], "GB/s above 0"),
        (["--gram", "--n", "3"], "wanted m, 4"),
        (["--arch", "h20"], "Did you mean"),
    ],
)
def test_bad_usage_is_code_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCALE, *arguments]) == 2
    assert words in capsys.readouterr().err
