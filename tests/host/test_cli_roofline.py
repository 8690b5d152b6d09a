"""`matmill roofline`: figures with their sources, balance points, bounds in words, and the picture."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from matmill import arch, cli
from matmill.arch import Measured
from matmill.choose import choose
from matmill.cli import main
from matmill.config import Config
from matmill.dtypes import F32
from matmill.problem import Gemm

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "roofline.md").read_text(encoding="utf-8").replace("\N{MULTIPLICATION SIGN}", "x")
COMMANDS = re.findall(r"^\$ matmill (.*)$", PAGE, re.MULTILINE)
S2 = ["--arch", "t4", "--tile", "256,128,64", "--warp-tile", "64,64"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder for arch files where none of this machine's user are, and a package that ships none."""
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(arch, "files", lambda _package: tmp_path / "package")
    (tmp_path / "cache" / "arches").mkdir(parents=True)
    return tmp_path / "cache" / "arches"


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["roofline", *arguments, "--json"]) == cli.OK
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["roofline", *arguments]) == cli.OK
    return capsys.readouterr().out


def test_the_page_shows_every_part() -> None:
    assert len(COMMANDS) >= 5
    for option in ("--tile", "--warp-tile", "--l2-hit-rate", "--plot", "--json", "--registers", "--stages", "--m"):
        assert any(option in command for command in COMMANDS), option


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--plot" in command:
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)) == cli.OK
    assert capsys.readouterr().out


def test_the_page_s_figures_are_the_command_s(capsys: pytest.CaptureFixture[str]) -> None:
    table = said(S2, capsys)
    for row, figures in (("tensor cores, float16", "224.5 38.6 13.5"), ("FMA units, float32", "33.9 5.8 2.0")):
        assert any(re.sub(r"\s+", " ", line).strip() == f"{row} {figures}" for line in table.splitlines())
        assert f"| {figures.replace(' ', ' | ')} |" in PAGE
    small = asked(S2, capsys)["tile"]
    large = asked(["--arch", "t4", "--tile", "256,256,32", "--warp-tile", "64,128"], capsys)["tile"]
    for name, result in (("256x128, warps 64x64", small), ("256x256, warps 64x128", large)):
        needs = {level: f"needs {need:.1f}" for level, need in result["needs"].items()}
        block, warp = f"{result['block']['intensity']:.1f} FLOP/B", f"{result['warp']['intensity']:.1f}"
        cells = [name, block, needs["dram"], needs["l2"], warp, needs["shared"], result["bound"]]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_json_without_anything_asked(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([], capsys)
    assert (result["arch"], result["dtype"], result["unit"]) == (arch.DEFAULT, "float16", "hmma")
    assert (result["intensity"], result["bound"]) == (None, None)
    assert result["balance"]["hmma/l2"] is None
    assert result["figures"]["dram"] == {"value": 4.8e12, "source": "data sheet", "sheet": 4.8e12}
    assert "tile" not in result
    assert "problem" not in result


def test_json_of_the_t4(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked(["--arch", "t4", "--n", "8192"], capsys)
    names = ("hmma/dram", "ffma/dram", "hmma/l2", "hmma/shared")
    assert [int(result["balance"][name]) for name in names] == [224, 33, 38, 13]
    assert result["intensity"] == pytest.approx(8192 / 3)
    assert result["bound"] == "compute: tensor cores"
    assert result["problem"]["least_seconds"] == pytest.approx(2 * 8192**3 / 65e12)
    assert result["problem"]["at_rates"]["seconds"] == pytest.approx(2 * 8192**3 / 49.4e12)
    assert result["problem"]["bytes"] == 3 * 8192**2 * 2


def test_json_of_a_tile_alone(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([*S2, "--registers", "166"], capsys)
    tile = result["tile"]
    assert (result["intensity"], result["bound"]) == (tile["block"]["intensity"], "memory: DRAM")
    assert tile["block"] == {"intensity": pytest.approx(85.33, abs=0.01), "balance": pytest.approx(86.67, abs=0.01)}
    assert tile["warp"] == {"intensity": 32, "balance": pytest.approx(17.75, abs=0.005)}
    assert (tile["threads"], tile["shared_bytes"], tile["registers"], tile["blocks_per_sm"]) == (256, 49152, 166, 1)
    assert (tile["occupancy"], tile["limited_by"]) == (0.25, ["registers", "shared memory"])
    assert tile["why_not"] is None
    assert tile["l2_hit_rate"] == 0.5


def test_the_report_says_bound_reading_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    text = said([*S2, "--n", "8192"], capsys)
    for words in (
        "measured by the blog",
        "bound: compute: tensor cores; at the least 16.9 ms, 65.0 TFLOP/s, by the data sheet",
        "at the rates above: 22.3 ms, 49.4 TFLOP/s; compute: tensor cores",
        "bound: memory: DRAM; at the most 37.5 TFLOP/s of 49.4 TFLOP/s",
        "65.0 TFLOP/s by the data sheet over the mean of DRAM and L2, 750 GB/s: block 85.3 against 86.7",
        "warp 32.0 against 17.7",
        "limited by shared memory",
        "chosen: hgemm, tile 128x256x32",
    ):
        assert words in text
    assert "no production kernel takes" in said(["--arch", "t4", "--n", "8192", "--k", "3e9"], capsys)
    assert max(map(len, text.splitlines())) <= 120
    without = said(["--arch", "h200", "--tile", "128,128,32"], capsys)
    assert "L2: not known for the H200" in without
    assert "not known without the bandwidth of L2" in without
    assert "give --warp-tile for the occupancy" in without


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stages", "3"], "shared memory 147456 > 65536 bytes per block"),
        (["--dtype", "f64"], "256 > 255 registers per thread"),
        (["--tile", "256,256,16", "--warp-tile", "32,32"], "2048 > 1024 threads per block"),
        (["--tile", "64,64,8", "--warp-tile", "8,16", "--registers", "255"], "one block needs more registers"),
    ],
)
def test_a_tile_that_cannot_run_says_why(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = (line for line in said([*S2, *arguments], capsys).splitlines() if line.startswith("it cannot run: "))
    assert words in line
    assert words in asked([*S2, *arguments], capsys)["tile"]["why_not"]


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 4096, 4096), (5, 5, 30_000_000)])
def test_the_production_kernel_is_judged(m: int, n: int, k: int, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--m", str(m), "--n", str(n), "--k", str(k), "--dtype", "f32"]
    result = asked(sizes, capsys)
    choice = choose(Gemm(m=m, n=n, k=k, dtype=F32), arch.get("h200"))
    config: Config = choice.kernel.config
    assert result["chosen"]["kernel"] == choice.kernel.entry
    assert result["chosen"]["config"] == dict((*config.constants, *config.launch))
    assert result["chosen"]["predicted_seconds"] == choice.predicted_seconds
    assert ("tile" in result["chosen"]) == ("BM" in dict(config.constants))
    text = said(sizes, capsys)
    assert f"chosen: {choice.kernel.entry}" in text
    assert ("its tile meets" in text) == ("tile" in result["chosen"])


def test_a_measured_time_is_shown_beside_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    asked_for = ["--n", "4096", "--measured", "1.93e-4"]
    result = asked(asked_for, capsys)["problem"]
    assert result["least_seconds"] < result["measured_seconds"] == 1.93e-4
    times = result["measured_seconds"] / result["least_seconds"]
    assert f"measured: 193 us, 712 TFLOP/s, {times:.2f} times the least" in said(asked_for, capsys)


def test_gpus_without_matrix_units(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked(["--arch", "k40", "--n", "1024"], capsys)
    assert (result["dtype"], result["unit"], result["balance"]["hmma/dram"]) == ("float32", "ffma", None)
    assert "no kernel compiles for the Tesla K40" in result["chosen"]["why"]


def test_a_probe_s_figures_are_taken(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = {each: 2e12 for each in Measured.__dataclass_fields__ if each not in {"date", "driver", "matrix_flops"}}
    result = Measured(**rates, date="2026-01-02", driver="580.1", matrix_flops={"float16": 640e12})
    arch.save(own_cache / "h200.json", arch.get("h200"), result)
    made = asked(["--tile", "128,128,32"], capsys)
    assert made["balance"]["hmma/l2"] == 320
    assert made["figures"]["l2"]["source"] == "matmill probe, 2026-01-02"
    assert made["tile"]["block"]["balance"] == pytest.approx(989.4 / 2)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    bare, full = tmp_path / f"bare.{suffix}", tmp_path / f"full.{suffix}"
    assert f"Plot: {bare}" in said(["--arch", "k40", "--plot", str(bare)], capsys)
    asked([*S2, "--n", "8192", "--plot", str(full)], capsys)
    magic = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert bare.read_bytes().startswith(magic)
    assert full.read_bytes().startswith(magic)
    if suffix == "svg":
        drawn = full.read_text(encoding="utf-8")
        for label in ("DRAM 220 GB/s", "L2 1.28 TB/s", "shared memory 3.66 TB/s", "224.5", "8192x8192x8192 float16"):
            assert f">{label}" in drawn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arch", "t5"], ["--arch: got 't5'", "Did you mean 't4'?"]),
        (["--dtype", "float61"], ["--dtype: got 'float61'", "Did you mean"]),
        (["--dtype", "int8"], ["--dtype: got 'int8'", "wanted one of"]),
        (["--arch", "t4", "--dtype", "bf16"], ["--dtype: got 'bfloat16'", "Tesla T4"]),
        (["--m", "64"], ["--n: got none"]),
        (["--measured", "1e-3"], ["--measured: got 0.001", "Add --n"]),
        (["--n", "64", "--measured", "-1"], ["--measured", "seconds, more than 0"]),
        (["--n", "0"], ["--n", "positive whole number"]),
        (["--tile", "128,128"], ["--tile: got '128,128'", "BM,BN,BK"]),
        (["--tile", "128,128,-8"], ["--tile"]),
        (["--warp-tile", "64,64"], ["--warp-tile: got '64,64'", "--tile beside it"]),
        (["--tile", "128,128,32", "--warp-tile", "48,64"], ["warp tile: got 48x64"]),
        (["--tile", "128,128,32", "--l2-hit-rate", "2"], ["L2 hit rate: got 2.0"]),
        (["--plot", "x.pdf"], ["--plot", ".png or .svg"]),
    ],
)
def test_bad_usage_is_code_2_and_said_on_stderr(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", *arguments]) == cli.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    for word in words:
        assert word in told.err


def test_no_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> str:
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr("matmill.runtime.gpu.unavailable", refuse)
    assert "Balance points" in said(["--n", "512"], capsys)
