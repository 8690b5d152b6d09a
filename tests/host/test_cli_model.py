"""`matmill model`: every launch that a model may choose, which one it takes, and plots of it."""

from __future__ import annotations

import json
from dataclasses import fields
from math import gcd
from pathlib import Path
from typing import Any

import pytest

from matmill import arch, cli
from matmill.analysis import phvm as phvm_cost
from matmill.arch import Measured
from matmill.bench.plots.phvm import read_measured
from matmill.choose import choose_from
from matmill.cli import main, model
from matmill.dtypes import BF16, DTYPES
from matmill.errors import ArgumentError
from matmill.kernel import Production
from matmill.kernels import hgemm, wgmma
from matmill.kernels.gemm import GEMM, space
from matmill.kernels.gemm import cost as gemm_cost
from matmill.kernels.shared.model import PRICES
from matmill.problem import Gemm

PHVM = ["model", "phvm", "--m", "5", "--k", "3e7"]
MEASURED = [
    {"GS": 864, "BS": 256, "seconds": 0.0046, "note": "left alone"},
    {"GS": 216, "BS": 1024, "seconds": 0.0052},
    {"GS": 500, "BS": 96, "seconds": 0.0061},
]


FOUND = Measured(
    **{each.name: 1.5 + n for n, each in enumerate(fields(Measured)) if each.type == "float"},
    date="2026-01-02",
    driver="580.1",
    matrix_flops={},
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a folder for arch files where none of this machine's user are, and a package that ships none."""
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(arch, "files", lambda _package: tmp_path / "package")
    (tmp_path / "cache" / "arches").mkdir(parents=True)
    return tmp_path / "cache" / "arches"


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == cli.OK
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(MEASURED), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "reading", "best"),
    [
        ("a100", "corrected", {"GS": 864, "BS": 256}),
        ("a100", "printed", {"GS": 216, "BS": 1024}),
        ("rtx2080ti", "corrected", {"GS": 136, "BS": 512}),
        ("rtx2080ti", "printed", {"GS": 68, "BS": 1024}),
    ],
)
def test_phvm_json(name: str, reading: str, best: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([*PHVM, "--arch", name, "--reading", reading], capsys)
    assert result["best"] == best
    assert (result["arch"], result["reading"], result["problem"]) == (name, reading, {"m": 5, "n": 5, "k": 30_000_000})
    parameters = phvm_cost.parameters(name)
    assert tuple((row["GS"], row["BS"]) for row in result["rows"]) == phvm_cost.feasible(parameters)
    least = min(result["rows"], key=lambda row: row["cycles"])
    assert {"GS": least["GS"], "BS": least["BS"]} == best
    for row in result["rows"]:
        made = phvm_cost.predict(parameters, 5, 5, 30_000_000, row["GS"], row["BS"], reading)
        assert (row["cycles"], row["t_pre"], row["t_post"], row["case"]) == (
            made.cycles,
            made.t_pre,
            made.t_post,
            made.case,
        )
        assert row["seconds"] == pytest.approx(made.cycles / arch.get(name).boost_hz)
        assert row["measured_seconds"] is None


def test_phvm_defaults_to_the_corrected_reading_and_n_to_m(capsys: pytest.CaptureFixture[str]) -> None:
    plain = asked([*PHVM, "--arch", "a100"], capsys)
    assert plain["reading"] == "corrected"
    assert plain == asked([*PHVM, "--arch", "a100", "--n", "5"], capsys)
    wider = asked([*PHVM, "--arch", "a100", "--n", "10"], capsys)
    assert wider["rows"][0]["cycles"] == pytest.approx(2 * plain["rows"][0]["cycles"])


def test_phvm_takes_the_latencies_that_a_probe_measured(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h200 = arch.get("h200")
    arch.save(own_cache / "h200.json", h200, FOUND)
    result = asked([*PHVM, "--arch", "h200"], capsys)
    parameters = phvm_cost.of_measured(h200, FOUND)
    assert (parameters.sm_num, parameters.threads_per_sm, parameters.cores, parameters.u_sm) == (132, 2048, 16896, 1)
    assert (parameters.sigma_add, parameters.sigma_mul) == (FOUND.sigma_add, FOUND.sigma_mul)
    assert (parameters.sigma_g, parameters.sigma_s) == (FOUND.sigma_g, FOUND.sigma_s)
    made = phvm_cost.predictions(parameters, 5, 5, 30_000_000)
    assert [row["cycles"] for row in result["rows"]] == [each.cycles for each in made]
    half = asked([*PHVM, "--arch", "h200", "--utilization", "0.5"], capsys)
    assert half["rows"][0]["t_pre"] == pytest.approx(2 * result["rows"][0]["t_pre"])


def test_phvm_keeps_the_paper_s_parameters_where_it_has_some(
    own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = asked([*PHVM, "--arch", "a100"], capsys)
    arch.save(own_cache / "a100.json", arch.get("a100"), FOUND)
    assert asked([*PHVM, "--arch", "a100"], capsys) == before
    assert asked([*PHVM, "--arch", "a100", "--utilization", "0.16"], capsys) == before
    whole = asked([*PHVM, "--arch", "a100", "--utilization", "1"], capsys)
    assert whole["rows"][0]["t_pre"] == pytest.approx(0.16 * before["rows"][0]["t_pre"])


def test_phvm_table_marks_the_optimum_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PHVM, "--arch", "a100"]) == cli.OK
    text = capsys.readouterr().out
    marked = [line.split() for line in text.splitlines() if "<- optimum" in line]
    assert len(marked) == 1
    assert marked[0][:5] == ["864", "256", "435511486", "309", "ms"]
    assert "6.00 GB, which takes 3.86 ms" in text
    assert "80.0 times" in text
    assert "BS 32: 64 blocks per SM, which holds 32" in text
    assert max(map(len, text.splitlines())) <= 120


def test_phvm_beside_a_measured_curve(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([*PHVM, "--arch", "a100", "--measured", str(measured)], capsys)
    shown = {(row["GS"], row["BS"]): row["measured_seconds"] for row in result["rows"]}
    assert (shown[864, 256], shown[216, 1024], shown[432, 512]) == (0.0046, 0.0052, None)
    assert main([*PHVM, "--arch", "a100", "--measured", str(measured)]) == cli.OK
    text = capsys.readouterr().out
    assert "5.20 ms" in text
    assert "Measured fastest: GS 864, BS 256, 4.60 ms." in text


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_phvm_plot(suffix: str, measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    alone, beside = tmp_path / f"alone.{suffix}", tmp_path / f"beside.{suffix}"
    assert main([*PHVM, "--arch", "a100", "--plot", str(alone)]) == cli.OK
    assert f"Plot: {alone}" in capsys.readouterr().out
    asked([*PHVM, "--arch", "a100", "--plot", str(beside), "--measured", str(measured)], capsys)
    magic = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert alone.read_bytes().startswith(magic)
    assert beside.read_bytes().startswith(magic)
    assert beside.stat().st_size > alone.stat().st_size  # one panel and one curve more


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PHVM, "--arch", "rtx2080"], ["--arch: got 'rtx2080'", "Did you mean 'rtx2080ti'?"]),
        ([*PHVM, "--arch", "a10"], ["--arch: got 'a10'", "wanted one of rtx2080ti, a100"]),
        ([*PHVM, "--arch", "h200"], ["--arch: got 'h200'", "wanted one of rtx2080ti, a100", "`matmill probe`"]),
        ([*PHVM, "--utilization", "0"], ["utilization: got 0", "above 0 and at most 1"]),
        ([*PHVM, "--utilization", "nan"], ["utilization: got nan"]),
        ([*PHVM, "--utilization", "much"], ["--utilization", "much"]),
        ([*PHVM, "--reading", "printd"], ["--reading: got 'printd'", "Did you mean 'printed'?"]),
        (["model", "phvm", "--m", "0", "--k", "5"], ["got '0'", "positive whole number"]),
        (["model", "phvm", "--m", "5", "--k", "2.5"], ["got '2.5'"]),
        (["model", "phvm", "--m", "5", "--k", "1e300"], ["--k: got '1e300'", "below 2**63"]),
        (["model", "phvm", "--m", "5"], ["--k"]),
        ([*PHVM, "--plot", "x.pdf"], ["--plot", ".png or .svg"]),
        (["model"], ["MODEL"]),
        (["model", "phmv"], ["phmv"]),
        (["model", "gemm", "--n", "64", "--arch", "h20"], ["--arch: got 'h20'", "Did you mean 'h200'?"]),
        (["model", "gemm", "--n", "64", "--arch", "k40"], ["--arch: got 'k40'", "no kernel compiles"]),
        (["model", "gemm", "--n", "64", "--dtype", "float23"], ["--dtype: got 'float23'", "Did you mean 'float32'?"]),
        (["model", "gemm", "--n", "3e9"], ["--m, --n, --k", "m = 3000000000 > 2147482624"]),
        (["model", "gemm"], ["--n"]),
    ],
)
def test_bad_usage_is_code_2_and_said_on_stderr(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == cli.USAGE
    text = capsys.readouterr()
    assert text.out == ""
    assert "Traceback" not in text.err
    for word in words:
        assert word in text.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("\xff", "not JSON"),
        ("{}", "no list of rows"),
        ("[]", "no list of rows"),
        ("[1]", "row 0 .* no object"),
        ('[{"GS": 1, "BS": 2, "seconds": 1}, {"GS": 1.5, "BS": 32, "seconds": 1}]', "row 1 .* 1.5"),
        ('[{"GS": true, "BS": 32, "seconds": 1}]', "True"),
        ('[{"GS": 0, "BS": 32, "seconds": 1}]', "GS and BS are 0"),
        ('[{"GS": 1, "seconds": 1}]', "None"),
        ('[{"GS": 1, "BS": 32}]', "seconds is None"),
        ('[{"GS": 1, "BS": 32, "seconds": -1}]', "seconds is -1"),
        ('[{"GS": 1, "BS": 32, "seconds": NaN}]', "seconds is nan"),
        ('[{"GS": 1, "BS": 32, "seconds": Infinity}]', "seconds is inf"),
        ('[{"GS": 1, "BS": 32, "seconds": 1e308}]', "seconds is 1e\\+308"),
        (f'[{{"GS": 1, "BS": 32, "seconds": {10**400}}}]', "seconds is 1000"),
        (f'[{{"GS": {10**400}, "BS": 32, "seconds": 1}}]', "GS and BS are 1000"),
        ("[" * 100_000, "not JSON"),
        ('[{"GS": 1, "BS": 32, "seconds": 1}, {"GS": 1, "BS": 32, "seconds": 2}]', "GS 1, BS 32 twice"),
    ],
)
def test_a_malformed_measurement_is_told_in_words(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ArgumentError, match=words) as caught:
        read_measured(path)
    assert caught.value.argument == "--measured"


def test_a_measurement_that_is_not_there_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PHVM, "--measured", "no/such/file.json"]) == cli.USAGE
    assert "--measured: got 'no/such/file.json': No such file or directory; wanted a JSON" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (4000, 100, 7), (33, 33, 9999)])
def test_gemm_json_is_the_model_and_the_choice(
    sizes: tuple[int, int, int], dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    m, n, k = sizes
    words = ["model", "gemm", "--m", str(m), "--n", str(n), "--k", str(k), "--dtype", dtype, "--arch", "t4"]
    result = asked(words, capsys)
    a_align, b_align = (gcd(16, extent * DTYPES[dtype].itemsize) for extent in (k, n))
    problem = Gemm(m=m, n=n, k=k, dtype=DTYPES[dtype], a_align=a_align, b_align=b_align, d_align=b_align)
    choice = choose_from((Production(GEMM, space, gemm_cost.explain),), problem, arch.get("t4"))
    assert result["best"] == dict((*choice.kernel.config.constants, *choice.kernel.config.launch))
    assert [row["config"] for row in result["rows"] if row["chosen"]] == [result["best"]]
    for row in result["rows"]:
        if row["ruled_out"] is not None:  # of an odd n, the copies of 256 elements one by one
            assert "128 threads are too few" in row["ruled_out"]
            continue
        apart = row["launch"] + row["second"]
        assert max(row["compute"], row["memory"]) < row["seconds"] - apart < row["compute"] + row["memory"]
        assert bool(row["second"]) == (row["config"]["SPLIT_K"] > 1)
        assert row["seconds"] >= choice.predicted_seconds
        assert row["bound"] == max(("compute", "memory"), key=lambda term: row[term])


def test_gemm_table_marks_the_choice_alone_and_fits_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "gemm", "--n", "1024", "--arch", "h200"]) == cli.OK
    text = capsys.readouterr().out
    marked = [line for line in text.splitlines() if "<- chosen" in line]
    assert len(marked) == 1
    assert marked[0].startswith("64x128x16")
    assert "0.0%" in marked[0]
    assert f"{PRICES.launch * 1e6:.2f} us" in text
    assert "Ruled out" not in text


@pytest.mark.parametrize(("name", "entry"), [("h200", "wgmma_gemm"), ("a100", "hgemm")])
def test_gemm_of_16_bits_is_the_model_of_tensor_cores(
    name: str, entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["model", "gemm", "--n", "4096", "--dtype", "bf16", "--arch", name]
    result = asked(words, capsys)
    choice = choose_from((hgemm.PRODUCTION, wgmma.PRODUCTION), Gemm(4096, 4096, 4096, BF16), arch.get(name))
    (chosen,) = (row for row in result["rows"] if row["chosen"])
    assert (chosen["kernel"], chosen["seconds"]) == (entry, pytest.approx(choice.predicted_seconds))
    assert chosen["config"] == result["best"] == dict((*choice.kernel.config.constants, *choice.kernel.config.launch))
    assert main(words) == cli.OK
    text = capsys.readouterr().out
    assert text.count("<- chosen") == 1
    assert max(len(line) for line in text.splitlines() if not line.startswith("Ruled out")) <= 100
    legal = sum(row["ruled_out"] is None for row in result["rows"])
    assert (f"The best 24 are shown; --json has {legal - 24} more." in text) == (legal > 24)
    assert main([*words, "--arch", "t4"]) == cli.USAGE
    assert "Ruled out: mma.sync on bfloat16 needs compute capability 8.0" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_gemm_is_drawn(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    plot = tmp_path / f"tiles.{suffix}"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert main(["model", "gemm", "--n", "1024", "--plot", str(plot)]) == cli.OK
    assert f"Plot: {plot}" in capsys.readouterr().out
    result = plot.read_bytes()
    assert result.startswith(b"\x89PNG") if suffix == "png" else b", chosen<" in result


def test_gemm_tells_what_was_ruled_out_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = arch.get("t4").__class__(**{**vars(arch.get("t4")), "shared_per_block": 26_000})
    monkeypatch.setitem(arch.ARCHES, "t4", small)
    result = asked(["model", "gemm", "--n", "512", "--arch", "t4"], capsys)
    out = [row for row in result["rows"] if row["ruled_out"] is not None]
    assert out
    assert all(not row["chosen"] and "seconds" not in row and "26000" in row["ruled_out"] for row in out)
    assert main(["model", "gemm", "--n", "512", "--arch", "t4"]) == cli.OK
    text = capsys.readouterr().out
    assert text.count("Ruled out: ") == len(out)
    assert "shared memory 49152 > 26000 bytes per block" in text


def test_models_need_no_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> str:
        raise AssertionError("asked for a GPU")

    monkeypatch.setattr("matmill.runtime.gpu.unavailable", refuse)
    assert main([*PHVM]) == cli.OK
    assert main(["model", "gemm", "--n", "64"]) == cli.OK
    assert model.PHVM_ARCH.upper() in capsys.readouterr().out
