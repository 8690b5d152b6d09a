"""The ladder on a real GPU: right, timed, and compared with what is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.ladders.hgemm.rungs import HGEMM, ON_WGMMA
from matmill.ladders.sgemm.rungs import ON_FMA, SGEMM
from matmill.runtime import gpu

pytestmark = pytest.mark.skipif(gpu.unavailable() is not None, reason=f"no GPU: {gpu.unavailable()}")


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--on", "gpu", "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


@pytest.mark.parametrize("n", [256, 500])
def test_every_rung_is_right_and_timed(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "sgemm", "--n", str(n)], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == [rung.label for rung in SGEMM]
    arch, on_fma = gpu.GPU.get(0).arch, {rung.label for rung in ON_FMA}
    for row in result["rows"]:
        if row["rung"] not in on_fma and row["ok"] is None:
            assert "needs compute capability" in row["note"]
            continue
        assert row["ok"] is True, row
        # A kernel faster than the peak was timed before it had run.
        peak = arch.fp32_flops if row["rung"] in on_fma else arch.matrix_flops["float16"] / 3
        assert 0 < row["tflops"] < 1.1 * peak / 1e12
        assert row["spread"][0] <= row["seconds"] <= row["spread"][1]
    assert all(base["ok"] for base in result["baselines"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("n", [512, 1000])
def test_every_rung_on_the_matrix_units_is_right_or_says_what_it_needs(
    n: int, dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = _json(["ladder", "hgemm", "--n", str(n), "--dtype", dtype], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == [*(rung.label for rung in HGEMM), "production"]
    for row in result["rows"]:
        if row["ok"] is None:
            assert "needs compute capability" in row["note"]
            continue
        assert row["ok"] is True, row
        assert row["spread"][0] <= row["seconds"] <= row["spread"][1]
    assert all(base["ok"] for base in result["baselines"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("m", [2600, 2700])
def test_rungs_on_wgmma_walk_over_several_tiles(m: int, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    # More tiles than SMs, remainders in each dimension, and even and odd rows of tiles: clusters of either shape.
    rungs = ",".join(rung.label for rung in ON_WGMMA)
    sizes = ["--m", str(m), "--n", "3000", "--k", "616", "--dtype", dtype]
    code, result = _json(["ladder", "hgemm", *sizes, "--rungs", rungs], capsys)
    assert code == cli.OK
    for row in result["rows"]:
        if row["ok"] is None:
            assert "needs compute capability 9.0" in row["note"]
        else:
            assert (row["ok"], row["note"]) == (True, ""), row


def test_a_sweep_measures_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["ladder", "hgemm", "--sweep", "256..512", "--rungs", "float32-sums", "--on", "gpu", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == cli.OK
    assert [outcome["problem"]["n"] for outcome in result] == [256, 512]


def test_the_memory_ladder_moves_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "memory", "--n", "1024"], capsys)
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == [True, True, True]
    rates = {row["rung"]: row["phases"]["copy in"] for row in result["rows"]}
    seconds = {name: phase["seconds"] for name, phase in rates.items()}
    # Eight mebibytes over any bus since PCIe 2 take less than a tenth of a second, and more than a microsecond.
    assert all(1e-6 < taken < 0.1 for taken in seconds.values())


def test_a_warm_cache_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "sgemm", "--n", "256", "--rungs", "naive", "--warm"], capsys)
    assert code == cli.OK
    assert result["environment"]["cold_l2"] is False
    assert any("L2 warm" in note for note in result["notes"])
