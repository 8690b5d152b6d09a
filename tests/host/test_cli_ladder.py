"""``matmill ladder``: options and errors, runs on a GPU made of host memory, tables, plots, sweeps and the JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lab.pages import hgemm_page
from matmill import cli
from matmill.arch import get
from matmill.bench import units
from matmill.bench.libraries.gemm import NARROW, WIDE
from matmill.bench.libraries.transpose_add import EAGER, TUNED
from matmill.cli import ladder_sweep, main, tables
from matmill.dtypes import BF16, ELEMENTWISE, F16, F32
from matmill.emulator import Counters
from matmill.kernel import multiples
from matmill.ladders.hgemm.rungs import HGEMM, ON_WGMMA
from matmill.ladders.hgemm.subject import half_product
from matmill.ladders.inner.subject import CASES, TRAFFIC, inner_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner import measured as measuring
from matmill.ladders.runner.ladder import Ladder
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import BaselineRow, Outcome, Row
from matmill.ladders.runner.selection import nearest, pick
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.ladders.transpose_add import subject as sums
from matmill.problem import Gemm
from support.ladder_gpu import SECONDS, LadderGPU, ladder_gpu
from support.ladder_runs import FakePeer, change, refused

Capture = pytest.CaptureFixture[str]
BY_LABEL = {rung.label: rung for rung in SGEMM}
LABELS = [rung.label for rung in HGEMM]


def outcome(on: str, rows: Sequence[Row], **changes: object) -> Outcome:
    """Return the outcome of a run of the SGEMM ladder that has these rows."""
    rates: dict[str, Any] = {"seconds": 1e-3, "tflops": 50.0, "peak_fraction": 0.7}
    base = BaselineRow("cuBLAS (torch)", "torch 2", ok=True, error_ratio=0.1, **rates)
    fields: dict[str, Any] = {
        "ladder": "sgemm",
        "on": on,
        "arch": get("h200"),
        "target": "sm_90a",
        "problem": Gemm(m=64, n=64, k=64),
        "rows": tuple(rows),
        "baselines": (base,),
        "environment": {},
        "notes": ("a note",),
    }
    return Outcome(**{**fields, **changes})


def measured(rung: str, **changes: object) -> Row:
    """Return a row of a measured rung."""
    fields: dict[str, Any] = {
        "rung": rung,
        "source": "S0",
        "ok": True,
        "error_ratio": 0.1,
        "seconds": 1.234e-3,
        "tflops": 12.5,
        "peak_fraction": 0.1868,
        "library_fraction": 0.25,
        "registers": 96,
        "shared_bytes": 16640,
        "occupancy": 0.375,
    }
    return Row(**{**fields, **changes})


def lines_of(parts: Any, width: int) -> list[str]:
    """Return what a terminal of this width shows."""
    file = io.StringIO()
    console = Console(file=file, width=width)
    for part in parts:
        console.print(part, soft_wrap=True)
    return file.getvalue().splitlines()


def line(lines: Sequence[str], start: str) -> str:
    """Return the first line that starts so."""
    return next(each for each in lines if each.startswith(start))


def picture(result: Outcome, folder: Path) -> str:
    """Return a plot as text; skips without matplotlib."""
    pytest.importorskip("matplotlib")
    draw(result, folder / "plot.svg")
    return (folder / "plot.svg").read_text(encoding="utf-8")


# Rungs and sizes


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ("naive", ["naive"]),
        ("ilp", ["ilp(1)", "ilp(2)", "ilp(4)", "ilp(8)", "ilp(16)"]),
        ("ilp(4)", ["ilp(4)"]),
        (" ILP(4) , naive ", ["naive", "ilp(4)"]),
        ("shared,shared(8)", ["shared(8)", "shared(16)", "shared(32)"]),
        (None, [rung.label for rung in SGEMM]),
    ],
)
def test_rungs_are_picked_by_name_in_ladder_order(names: str | None, labels: list[str]) -> None:
    assert [rung.label for rung in pick(SGEMM, names)] == labels


@pytest.mark.parametrize(
    ("label", "size", "expected"),
    [
        ("shared(16)", (100, 100, 100), (96, 96, 96)),
        ("shared(32)", (100, 40, 7), (96, 32, 32)),
        ("shared(8)", (64, 64, 64), (64, 64, 64)),
        ("conflict-free(256)", (100, 100, 100), (256, 128, 96)),
        ("naive", (1, 1, 1), (1, 1, 1)),
    ],
)
def test_the_nearest_size_is_the_one_that_changes_least(
    label: str, size: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    result, reason = nearest(BY_LABEL[label], Gemm(*size), get("h200"))
    assert result == Gemm(*expected)
    assert bool(reason) == (size != expected)


def test_where_no_size_is_legal_there_is_none() -> None:
    naive = BY_LABEL["naive"]
    rung = replace(naive, kernel=replace(naive.kernel, why_not_config=multiples(m=10**9)))
    result = nearest(rung, Gemm(m=64, n=64, k=64), get("h200"))
    assert result == (None, "m = 64 is not a multiple of 1000000000")


def test_the_production_row_takes_any_product() -> None:
    wide = LADDERS["inner"].rows[-1]
    for dtype in (F32, F16):
        asked = inner_product(200, 3, 5000, dtype)
        assert nearest(wide, asked, get("h200"), TRAFFIC) == (asked, "")  # the kernels of any product take it
    # Turing's tensor cores have no bfloat16.
    size, reason = nearest(wide, inner_product(200, 20, 5000, BF16), get("t4"), TRAFFIC)
    assert size is not None
    assert (size.m, size.n) == (200, 16)  # few columns: the kernel for these takes any number of rows
    assert "200 x 20 outputs are more than 128 x 128" in reason


# Options and errors


ERRORS = [
    ("sgemm --n 4096 --on auto", cli.USAGE, ["--m, --n, --k: got m=4096", "--on emulator to wait for it"]),
    ("memory --n 4096 --on auto", cli.USAGE, ["--m, --n, --k: got m=4096", "--on emulator to wait for it"]),
    ("inner --m 200 --k 1000 --on auto", cli.USAGE, ["--m: got 200", "at most 128"]),
    ("inner --m 3 --n 129 --on auto", cli.USAGE, ["--n: got 129", "at most 128"]),
    ("inner --k 5e7 --on auto", cli.USAGE, ["without a usable GPU", "--on emulator"]),
    ("inner --case MTXA --on auto", cli.USAGE, ["k=50000000", "--k, for instance 1e5"]),
    ("hgemm --n 1000 --on auto", cli.USAGE, ["without a usable GPU", "--on emulator"]),
    ("transpose_add --case article --on auto", cli.USAGE, ["x of 24300 x 11520", "--on emulator"]),
    ("transpose_add --m 1e5 --n 1e5 --on auto", cli.USAGE, ["without a usable GPU"]),
    ("transpose_add --m 1e14 --n 1e14", cli.USAGE, ["smaller sizes"]),
    ("inner --k 1e18", cli.USAGE, ["smaller sizes"]),
    ("sgemm --all --rungs naive", cli.USAGE, ["--all: got it with --rungs naive", "one of the two"]),
    ("transpose_add --m 0", cli.USAGE, ["got '0'"]),
    ("inner --k 1.5", cli.USAGE, ["got '1.5'"]),
    *((f"{ladder} --on gpu", cli.NO_GPU, ["--on: got 'gpu'"]) for ladder in LADDERS),
    ("", cli.USAGE, ["ladder: got none"]),
    ("iner", cli.USAGE, ["ladder: got 'iner'", "Did you mean 'inner'?"]),
    ("sgemm --on emulater", cli.USAGE, ["--on: got 'emulater'", "Did you mean 'emulator'?"]),
    ("hgemm --rungs swizled", cli.USAGE, ["--rungs: got 'swizled'", "Did you mean 'swizzled'?"]),
    ("inner --rungs phwm", cli.USAGE, ["--rungs: got 'phwm'", "Did you mean 'phvm'?"]),
    ("transpose_add --rungs v3", cli.USAGE, ["--rungs: got 'v3'", "v1"]),
    ("hgemm --dtype float23", cli.USAGE, ["--dtype: got 'float23'", "float16"]),
    ("hgemm --dtype float32", cli.USAGE, ["--dtype: got 'float32'", "one of float16, bfloat16"]),
    ("inner --dtype float23", cli.USAGE, ["--dtype: got 'float23'", "Did you mean 'float"]),
    ("transpose_add --dtype bfloat61", cli.USAGE, ["--dtype: got 'bfloat61'", "Did you mean 'bfloat16'?"]),
    ("sgemm --dtype float64", cli.USAGE, ["--dtype: got 'float64' for ladder sgemm", "inner or transpose_add alone"]),
    ("inner --case MTX4", cli.USAGE, ["--case: got 'MTX4'", "one of MTXA, MTXB"]),
    ("transpose_add --case articel", cli.USAGE, ["--case: got 'articel'", "article"]),
    *((f"{ladder} --case MTXA", cli.USAGE, ["--case", f"for ladder {ladder}"]) for ladder in ("memory", "hgemm")),
    ("inner --layout colum", cli.USAGE, ["--layout: got 'colum'", "Did you mean 'column'?"]),
    ("hgemm --layout row", cli.USAGE, ["--layout: got 'row' for ladder hgemm", "ladder inner alone"]),
    ("transpose_add --layout row", cli.USAGE, ["--layout: got 'row' for ladder transpose_add", "ladder inner alone"]),
    ("transpose_add --gs 2", cli.USAGE, ["--gs: got 2 for ladder transpose_add", "ladder inner alone"]),
    ("transpose_add --k 7", cli.USAGE, ["--k: got 7 for ladder transpose_add", "rows and columns of x"]),
    ("inner --bs 33", cli.USAGE, ["--bs: got 33", "multiple of 32"]),
    ("inner --bs 2048", cli.USAGE, ["--bs: got 2048"]),
    ("inner --gs 3e9", cli.USAGE, ["--gs: got 3000000000", "at most 2147483647"]),
    ("inner --gs 8 --rungs gram", cli.USAGE, ["--gs", "basic or phvm"]),
    ("hgemm --sweep 512..1024", cli.USAGE, ["--sweep", "does not time"]),
    ("hgemm --sweep 1024..512", cli.USAGE, ["--sweep: got '1024..512'", "the smaller size first"]),
    ("hgemm --sweep 512", cli.USAGE, ["--sweep: got '512'", "LOW..HIGH"]),
    ("hgemm --sweep 512.. --on auto", cli.USAGE, ["--sweep: got '512..'"]),
    ("hgemm --sweep 512..1024 --k 9", cli.USAGE, ["--k: got 9 besides --sweep"]),
    ("inner --sweep 512..1024", cli.USAGE, ["--sweep: got '512..1024' for ladder inner", "hgemm or sgemm"]),
    ("--sweep 512..1024", cli.USAGE, ["ladder: got none"]),
]


@pytest.mark.parametrize(("command", "code", "words"), ERRORS, ids=[command for command, _, _ in ERRORS])
def test_errors(command: str, code: int, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    result, text = refused(command.split(), monkeypatch, capsys)
    assert result == code
    assert [word for word in words if word not in text] == []


def test_help_says_what_options_mean(capsys: Capture) -> None:
    assert main(["ladder", "--help"]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    assert "m, n, k 4096 4096 4096 on a GPU and 256 256 128 emulated, --dtype (float16 or bfloat16) to float16" in text
    assert "the rungs below float32-sums sum in float16" in text
    assert "--m and --n are the rows and columns of x; y and the result have n rows and m columns" in text


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_the_list_has_every_rung_with_its_source(ladder: Ladder[Any], capsys: Capture) -> None:
    assert main(["ladder", "--list"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, each in enumerate(lines) if each.strip() == ladder.name) + 1
    assert lines[start].split()[:2] == [ladder.rungs[0].label, ladder.rungs[0].source.key]
    assert all(any(each.startswith(f"{rung.label} ") for each in lines[start:]) for rung in ladder.rungs)


@pytest.mark.parametrize(("n", "said"), [(256, "2 min"), (1024, "107 min"), (64, "")])
def test_long_emulations_say_roughly_how_long_before_they_start(
    n: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def started(*_args: object, **_options: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr("matmill.cli.ladder.run_ladder", started)
    assert main(["ladder", "sgemm", "--on", "emulator", "--all", "--n", str(n)]) == cli.INTERRUPTED
    first, *others = capsys.readouterr().err.splitlines()
    assert (first, len(others)) == (f"matmill: the emulator takes roughly {said} for this on one core", 1) or not said


# Tables, plots and records of given rows


def test_tables_fit_80_columns_without_cutting_a_figure() -> None:
    long = "double-buffered"
    gpu = lines_of(tables.report(outcome("gpu", [measured(long, seconds=0.29234)])), 80)
    cells = ("292 ms", "12.5", "18.7%", "25.0%", "96", "16640", "37.5%", "ok")
    assert all(cell in line(gpu, long) for cell in cells)
    counters = dict.fromkeys(Counters().as_dict(), 123456789)
    row = measured(long, seconds=None, tflops=None, counters=counters)
    emulated = lines_of(tables.report(outcome("emulator", [row])), 80)
    assert any("123M/123M" in each for each in emulated)
    assert max(len(each) for each in gpu + emulated) <= 84


@pytest.mark.parametrize("on", ["gpu", "emulator"])
def test_errors_of_float32_are_in_units_of_a_rounding(on: str) -> None:
    lines = lines_of(tables.report(outcome(on, [measured("a"), measured("b", error_ratio=None)])), 200)
    # A tenth of (k + 3) of them.
    assert [line(lines, name).split()[-1] for name in ("a  ", "b  ")] == ["6.70", "-"]
    assert on == "emulator" or line(lines, "cuBLAS").split()[-1] == "6.70"
    assert "error: the largest of an element, in units of 2^-24 |A||B|" in lines


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "ok"),
        ({"ok": None}, "-"),
        *(({"ok": False, "error_ratio": ratio}, "WRONG") for ratio in (1.01, float("inf"), float("nan"), None)),
        ({"ok": False, "hazards": ({"kind": "race", "message": "x", "where": "y"},)}, "RACE"),
        ({"ok": False, "hazards": ({"kind": "uninitialised-shared", "message": "", "where": ""},)}, "HAZARD"),
    ],
)
def test_verdicts(changes: dict[str, Any], word: str) -> None:
    assert tables.verdict(measured("a", **changes)) == word


def test_remarks_name_the_rungs_they_belong_to() -> None:
    rows = [measured("a", note="at m=96: why"), measured("b", note="at m=96: why"), measured("c")]
    lines = lines_of(tables.report(outcome("gpu", rows)), 200)
    assert "* a, b: at m=96: why" in lines
    assert line(lines, "a *")
    assert line(lines, "c  ")
    assert lines[-1] == "a note"


def test_json_has_the_contracts_keys_and_no_infinities_and_reads_back() -> None:
    first = outcome("gpu", [measured("a", ok=False, error_ratio=float("inf"), note="x")])
    result = first.as_dict()
    assert {"ladder", "on", "arch", "problem", "rows", "baselines", "environment"} <= set(result)
    row = result["rows"][0]
    keys = {"rung", "source", "ok", "error_ratio", "seconds", "tflops", "peak_fraction", "library_fraction"}
    assert keys | {"registers", "shared_bytes", "occupancy", "counters"} <= set(row)
    assert (row["error_ratio"], row["counters"]) == (None, None)
    assert result["problem"] == {"m": 64, "n": 64, "k": 64}
    for each in (*result["rows"], *result["baselines"]):
        assert not {"bytes", "tbytes_per_second", "bandwidth_fraction"} & set(each)
    assert Outcome.from_dict(result).as_dict() == result


def test_a_plot_says_which_rungs_are_wrong_and_what_bytes_moved(tmp_path: Path) -> None:
    phases = {name: {"seconds": None, "bytes": 3e6, "flops": 0.0} for name in ("copy in", "copy out")}
    row = measured("pinned", ok=False, seconds=None, phases=phases)
    text = picture(outcome("emulator", [row]), tmp_path)
    assert all(words in text for words in ("pinned: WRONG, it moves 6.00 MB", "3.00 MB", "copy out"))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("kind", ["gpu", "emulator", "memory"])
def test_plots_are_drawn(kind: str, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    phases = {name: {"seconds": 1e-3, "bytes": 8.0, "flops": 0.0} for name in ("copy in", "kernel")}
    rows = {
        "gpu": [measured("a"), measured("b", ok=False), measured("c", ok=None)],
        "emulator": [measured("a", seconds=None, counters=dict.fromkeys(Counters().as_dict(), 7))],
        "memory": [measured("pinned", phases=phases)],
    }[kind]
    path = tmp_path / f"plot{suffix}"
    draw(outcome("emulator" if kind == "emulator" else "gpu", rows), path)
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start


# Runs on a GPU made of host memory


def _peers(names: Sequence[str], acc16: Sequence[bool] = (False, False)) -> Callable[..., Any]:
    """Return libraries that are right, as far as their sums allow."""

    def peers(asked: Any, a: int, b: int) -> tuple[list[FakePeer], list[str]]:
        assert a != b
        if hasattr(asked, "expected"):
            right = [asked.expected for _ in names]
        else:
            product = asked.a.astype(np.float32) @ asked.b.astype(np.float32)
            # An error that float16 sums may have and float32 ones may not.
            right = [(product * np.float32(1.005 if narrow else 1)).astype(asked.a.dtype) for narrow in acc16]
        result = [FakePeer(*each, acc16=narrow) for *each, narrow in zip(names, right, acc16, strict=False)]
        return result if asked.problem.dtype is not BF16 or len(names) < 2 or names[1] != NARROW else result[:1], ["no"]

    return peers


LIBRARIES = {
    "sgemm": _peers(["cuBLAS (fake)"]),
    "hgemm": _peers([WIDE, NARROW], [False, True]),
    "inner": _peers(["torch.mm", "torch einsum"]),
    "transpose_add": _peers([EAGER, TUNED]),
}


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], LadderGPU]:
    """Provide a GPU for runs of a ladder, with libraries that are right."""

    def put(ladder: str) -> LadderGPU:
        gpu = ladder_gpu(monkeypatch, ladder)
        change(monkeypatch, ladder, libraries=LIBRARIES[ladder])
        return gpu

    return put


OnGPU = Callable[[str], LadderGPU]


def _json(arguments: Sequence[str], capsys: Capture) -> tuple[int, Any]:
    code = main(["ladder", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


#: Where rungs run that do not take 250 cubed: whole tiles, or rows on 16 bytes.
ELSEWHERE = {**dict.fromkeys(LABELS[:7], (256, 256, 256)), **{rung.label: (250, 248, 248) for rung in ON_WGMMA}}
CPU = "CPU BLAS (NumPy)"
#: Arguments of a run, the problem, and the names of what it is compared with.
TIMED = [
    ("sgemm --n 60", {"m": 60, "n": 60, "k": 60}, ["cuBLAS (fake)", CPU]),
    ("hgemm --n 250 --dtype float16", {"m": 250, "n": 250, "k": 250, "dtype": "float16"}, [WIDE, NARROW]),
    ("hgemm --n 250 --dtype bfloat16", {"m": 250, "n": 250, "k": 250, "dtype": "bfloat16"}, [WIDE]),
    *(
        (
            f"inner --m 3 --k 4096 --layout {layout}",
            {"m": 3, "n": 3, "k": 4096, "dtype": "float32", "layout": layout},
            ["torch.mm", "torch einsum", CPU],
        )
        for layout in ("row", "column")
    ),
    ("transpose_add --m 300 --n 256", {"m": 300, "n": 256, "dtype": "bfloat16"}, [EAGER, TUNED]),
]


#: Fields that belong to other ladders.
NO_SUCH = {
    "sgemm": {"bytes", "tbytes_per_second", "bandwidth_fraction"},
    "hgemm": {"bytes", "tbytes_per_second", "bandwidth_fraction"},
    "inner": set(),
    "transpose_add": {"tflops", "peak_fraction"},
}


def _rates(ladder: str, row: dict[str, Any], copy: float) -> dict[str, Any]:
    """Return the rates that follow from a row's size and time."""
    size = row["problem"]
    if ladder == "transpose_add":
        moved = 3 * 2 * size["m"] * size["n"]
        rate = moved / SECONDS
        return {"bytes": moved, "tbytes_per_second": rate / 1e12, "bandwidth_fraction": rate / copy}
    m, n, k = (size[each] for each in "mnk")
    rate = 2 * m * n * k / SECONDS
    if ladder == "inner":
        moved = 4 * ((1 if row["rung"] == "gram" else 2) * m * k + m * n)
        bandwidth = {"tbytes_per_second": moved / SECONDS / 1e12, "bandwidth_fraction": moved / SECONDS / 4.8e12}
        return {"bytes": moved, "tflops": rate / 1e12, **bandwidth}
    return {"tflops": rate / 1e12, "peak_fraction": rate / (66.9e12 if ladder == "sgemm" else 989.4e12)}


@pytest.mark.parametrize(("command", "problem", "libraries"), TIMED, ids=[command for command, _, _ in TIMED])
def test_rates_follow_from_times(
    command: str, problem: dict[str, Any], libraries: list[str], on_gpu: OnGPU, capsys: Capture
) -> None:
    ladder, *arguments = command.split()
    gpu = on_gpu(ladder)
    rows = [row.label for row in (LADDERS[ladder].rungs if ladder == "hgemm" else LADDERS[ladder].rows)]
    code, result = _json([ladder, *arguments, "--rungs", ",".join(rows)], capsys)
    assert code == cli.OK, result
    assert (result["on"], result["arch"], result["problem"]) == ("gpu", "h200", problem)
    assert [row["rung"] for row in result["rows"]] == rows
    copy = 2 * gpu.copied / SECONDS
    for row in result["rows"]:
        assert (row["ok"], row["seconds"], row["counters"]) == (True, SECONDS, None), row
        wanted = _rates(ladder, row, copy)
        assert {name: row[name] for name in wanted} == pytest.approx(wanted)
        assert not NO_SUCH[ladder] & set(row)
        # By rate, since a rung may have run at another size.
        assert row["library_fraction"] == pytest.approx(_work(row["problem"]) / _work(problem))
        assert ladder == "inner" or bool(row["note"]) == (row["problem"] != problem)
        if ladder == "hgemm":
            assert tuple(row["problem"][each] for each in "mnk") == ELSEWHERE.get(row["rung"], (250, 250, 250))
    assert [base["name"] for base in result["baselines"]] == libraries
    assert all(base["ok"] and base["seconds"] > 0 for base in result["baselines"])
    assert "no" in result["notes"]
    assert (f"no row for the CPU: its BLAS has no {problem.get('dtype')}" in result["notes"]) == (ladder == "hgemm")
    assert Outcome.from_dict(result).as_dict() == result
    assert gpu.live == {}


def _work(problem: dict[str, Any]) -> int:
    """Return the product of a problem's sizes."""
    return prod(problem[each] for each in "mnk" if each in problem)


def test_notes_of_a_run(on_gpu: OnGPU, capsys: Capture) -> None:
    on_gpu("sgemm")
    _, result = _json(["sgemm", "--n", "60", "--rungs", "shared(16)"], capsys)
    assert "m = 60 is not a multiple of 16" in result["rows"][0]["note"]
    gpu = on_gpu("inner")
    _, result = _json(["inner", "--k", "4096"], capsys)
    notes = {row["rung"]: row["note"] for row in result["rows"]}
    assert notes["two-stage"] == notes["production"] == "two runs gave the same bits"
    assert {"clear", "splitk_reduce", "basic", "gram"} <= set(gpu.entries)
    gpu = on_gpu("transpose_add")
    _, result = _json(["transpose_add", "--m", "300", "--n", "256"], capsys)
    assert {"v1", "v2", "wide", "shifted", "transpose_add", "stream_copy"} <= set(gpu.entries)
    assert gpu.copied == 3 * 300 * 256 // 16 * 16
    assert result["copy_bytes_per_s"] == pytest.approx(2 * gpu.copied / SECONDS)
    assert any("a copy in the same run" in note and "which percentages refer to" in note for note in result["notes"])


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_sums_of_every_type(dtype: str, on_gpu: OnGPU, capsys: Capture) -> None:
    on_gpu("transpose_add")
    code, result = _json(["transpose_add", "--m", "67", "--n", "35", "--dtype", dtype], capsys)
    assert code == cli.OK
    assert all(row["ok"] for row in (*result["rows"], *result["baselines"]))


#: A run, the entry point whose result is wrong, the row that says so and one that does not.
FAILING = [
    ("sgemm --n 64 --rungs naive,shared(16)", "shared", "shared(16)", "naive"),
    ("hgemm --n 200 --rungs any-size,epilogue,float32-sums", "epilogue", "epilogue", "float32-sums"),
    ("inner --k 3000", "phvm", "phvm", "basic"),
    ("transpose_add --m 200 --n 64", "shifted", "shifted", "wide"),
]


@pytest.mark.parametrize(("command", "entry", "wrong", "right"), FAILING)
def test_a_wrong_rung_fails_the_run(  # noqa: PLR0917 — a row of a table
    command: str, entry: str, wrong: str, right: str, on_gpu: OnGPU, capsys: Capture
) -> None:
    gpu = on_gpu(command.split(maxsplit=1)[0])
    gpu.wrong = entry
    assert main(["ladder", *command.split()]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert "WRONG" in line(lines, f"{wrong} ")
    assert " ok" in line(lines, f"{right} ")
    assert gpu.live == {}


#: A run, and what is wrong with its library's result: a factor, or one element of a sum.
@pytest.mark.parametrize(
    ("command", "factor"),
    [
        ("sgemm --n 64 --rungs naive", 1.001),
        ("hgemm --n 256 --rungs any-size", 1.005),  # as float16 sums may be, which it says that it has not
        ("transpose_add --m 64 --n 64 --rungs v2", 2),
    ],
)
def test_a_wrong_library_fails_the_run_too(
    command: str, factor: float, on_gpu: OnGPU, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ladder = command.split(maxsplit=1)[0]
    on_gpu(ladder)
    found = LIBRARIES[ladder]

    def wrong(asked: Any, a: int, b: int) -> tuple[list[FakePeer], list[str]]:
        (first, *_), absent = found(asked, a, b)
        result = (first.result().astype(np.float32) * np.float32(factor)).astype(asked.a.dtype)
        return [FakePeer(first.name, result)], absent

    change(monkeypatch, ladder, libraries=wrong)
    code, result = _json(command.split(), capsys)
    assert code == cli.FAILED
    assert [base["ok"] for base in result["baselines"]][:1] == [False]
    assert main(["ladder", *command.split()]) == cli.FAILED
    assert "WRONG" in line(capsys.readouterr().out.splitlines(), result["baselines"][0]["name"])


def test_without_a_library_the_fraction_is_null_and_the_run_says_so(
    on_gpu: OnGPU, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    on_gpu("sgemm")
    change(monkeypatch, "sgemm", libraries=lambda _inputs, _a, _b: ([], []))
    code, result = _json(["sgemm", "--n", "64", "--rungs", "naive"], capsys)
    assert code == cli.OK
    assert result["rows"][0]["library_fraction"] is None
    assert any("no cuBLAS" in note for note in result["notes"])


def test_results_that_differ_from_run_to_run_are_seen(on_gpu: OnGPU, capsys: Capture) -> None:
    on_gpu("inner").drift = 3e-7
    code, result = _json(["inner", "--k", "3000", "--rungs", "vectorized,two-stage"], capsys)
    assert code == cli.FAILED
    assert [(row["ok"], row["note"]) for row in result["rows"]] == [
        (True, ""),
        (False, "two runs gave different bits"),
    ]


def test_a_cpu_that_would_take_long_is_left_out_and_said(
    on_gpu: OnGPU, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    on_gpu("inner")
    monkeypatch.setattr("matmill.ladders.runner.rows.cpu_estimate", lambda _a, _b: 12.0)
    _, result = _json(["inner", "--k", "3000", "--rungs", "gram"], capsys)
    assert CPU not in [base["name"] for base in result["baselines"]]
    assert "no row for the CPU: its BLAS would take about 12.0 s" in result["notes"]


#: A ladder's sizes on a GPU, smaller ones in their place, and runs with the problems that they are of.
DEFAULTS: dict[str, tuple[Any, Any, list[tuple[str, dict[str, Any]]]]] = {
    "hgemm": (
        (4096, 4096, 4096),
        (128, 192, 64),
        [
            ("--rungs any-size", {"m": 128, "n": 192, "k": 64, "dtype": "float16"}),
            ("--k 32 --rungs any-size", {"m": 128, "n": 192, "k": 32, "dtype": "float16"}),
        ],
    ),
    "inner": (
        CASES["MTXA"],
        (3, 3, 5000),
        [("--rungs one-pass", {"m": 3, "n": 3, "k": 5000, "dtype": "float32", "layout": "row"})],
    ),
    "transpose_add": (
        sums.ARTICLE,
        (84, 96),
        [
            ("--rungs v1", {"m": 84, "n": 96, "dtype": "bfloat16"}),
            ("--case article --rungs v1", {"m": 84, "n": 96, "dtype": "bfloat16"}),
            ("--case ARTICLE --n 32 --rungs v1", {"m": 84, "n": 32, "dtype": "bfloat16"}),
        ],
    ),
}


@pytest.mark.parametrize("ladder", DEFAULTS)
def test_the_sizes_of_a_run_that_names_none(
    ladder: str, on_gpu: OnGPU, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    large, small, runs = DEFAULTS[ladder]
    on_gpu(ladder)
    assert LADDERS[ladder].sizes["gpu"] == large
    change(monkeypatch, ladder, sizes={"gpu": small})
    monkeypatch.setitem(sums.CASES, "article", (84, 96))
    for command, problem in runs:
        assert _json([ladder, *command.split()], capsys)[1]["problem"] == problem


def test_percentages_refer_to_the_arch_named(on_gpu: OnGPU, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    on_gpu("sgemm")
    _, result = _json(["sgemm", "--n", "64", "--rungs", "naive", "--arch", "titan-x"], capsys)
    assert result["arch"] == "titan-x"
    assert result["rows"][0]["peak_fraction"] == pytest.approx(result["rows"][0]["tflops"] / 6.144)
    assert any("not to the GPU that ran" in note for note in result["notes"])
    # Those of a copy's bandwidth to that GPU's data sheet, or to what its arch file has.
    on_gpu("transpose_add")
    rate = 3 * 2 * 64 * 64 / SECONDS
    for known, copy, words in (
        (None, 1555e9, "refer to the data sheet of the A100"),
        (SimpleNamespace(copy_bytes_per_s=1.3e12, date="2026-11-20"), 1.3e12, "copies on a A100"),
    ):
        monkeypatch.setattr(measuring, "measured", lambda _arch, known=known: known)
        _, result = _json(["transpose_add", *["--m", "64", "--n", "64", "--rungs", "v1", "--arch", "a100"]], capsys)
        assert result.get("copy_bytes_per_s") == (copy if known else None)
        assert result["rows"][0]["bandwidth_fraction"] == pytest.approx(rate / copy)
        assert any(words in note for note in result["notes"])


def test_rows_say_which_gpu_they_need(on_gpu: OnGPU, capsys: Capture) -> None:
    on_gpu("hgemm").arch = get("t4")
    code, result = _json(["hgemm", "--n", "256", "--rungs", "double-buffer,multistage"], capsys)
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == [True, None]
    assert "cp.async needs compute capability 8.0: t4 has 7.5" in result["rows"][1]["note"]
    # No row of bfloat16 runs, and the library's has a rate but no peak to compare it with.
    command = ["hgemm", "--n", "256", "--dtype", "bfloat16", "--rungs", ",".join(LABELS)]
    code, result = _json(command, capsys)
    assert {row["ok"] for row in result["rows"]} == {None}
    needed = ("mma.sync on bfloat16 needs compute capability 8.0", "wgmma needs compute capability 9.0, no other")
    assert all(any(words in row["note"] for words in needed) for row in result["rows"])
    assert result["baselines"][0]["peak_fraction"] is None
    assert result["baselines"][0]["tflops"] > 0
    assert main(["ladder", *command]) == cli.OK
    assert line(capsys.readouterr().out.splitlines(), WIDE)


#: A run, what its rows would be at a published size, and words of the heading, the columns, a row and the plot.
SHOWN: list[tuple[str, dict[str, Any], list[str], list[str], list[str], str]] = [
    (
        "hgemm --n 250 --rungs epilogue",
        {"tflops": 612.3, "peak_fraction": 0.619, "seconds": 0.0017945},
        ["hgemm: m=250 n=250 k=250 float16, tensor-core peaks of the H200 SXM 141 GB"],
        ["time", "TFLOP/s", "% peak", "% lib", "regs", "check"],
        ["1.79 ms", "612", "61.9%", "100.0%"],
        "cuBLAS 612",
    ),
    (
        "inner --m 3 --k 40000 --rungs two-stage",
        {"bytes": 1_200_000_036, "tbytes_per_second": 4.567, "bandwidth_fraction": 0.951, "seconds": 0.2627},
        ["inner: m=3 n=3 k=40000"],
        ["time", "moved", "TB/s", "% bw", "% lib", "regs", "check"],
        ["263 ms", "1.20 GB", "4.57", "95.1%", "100.0%"],
        "bandwidth 4.80",
    ),
    (
        "transpose_add --m 96 --n 64 --rungs shifted",
        {"bytes": 1_679_616_000, "tbytes_per_second": 4.187, "bandwidth_fraction": 0.978, "seconds": 0.4012e-3},
        ["x 96x64, y 64x96 bfloat16, a copy moves 4.28 TB/s"],
        ["time", "moved", "TB/s", "% copy", "% lib", "regs", "check"],
        ["401 us", "1.68 GB", "4.19", "97.8%", "100.0%"],
        "copy bandwidth 4.28",
    ),
]


@pytest.mark.parametrize(("command", "large", "title", "head", "cells", "limit"), SHOWN)
def test_tables_fit_the_terminal_and_plots_show_the_limit(  # noqa: PLR0917 — a row of a table
    command: str, large: dict[str, Any], title: list[str], head: list[str], cells: list[str], limit: str,
    on_gpu: OnGPU, tmp_path: Path, capsys: Capture,
) -> None:  # fmt: skip
    on_gpu(command.split(maxsplit=1)[0])
    small = Outcome.from_dict(_json(command.split(), capsys)[1])
    result = replace(
        small,
        rows=tuple(replace(row, **large) for row in small.rows),
        baselines=tuple(replace(base, **large) for base in small.baselines),
        copy_bytes_per_s=4.28e12 if small.copy_bytes_per_s else None,
    )
    lines = lines_of(tables.report(result), 88)
    assert all(words in lines[0] for words in title)
    assert all(word in line(lines, "rung") for word in head)
    row = line(lines, command.rsplit(maxsplit=1)[-1])
    assert all(cell in row for cell in cells)
    assert len(row) <= 88
    assert limit in picture(result, tmp_path)
    if small.ladder == "hgemm":
        alone = replace(result, baselines=())
        assert "the tensor-core peak 989" in picture(alone, tmp_path)
        assert "tensor-core peak" not in picture(replace(alone, arch=get("titan-x")), tmp_path)


# Sweeps


def test_a_sweep_runs_every_size(on_gpu: OnGPU, tmp_path: Path, capsys: Capture) -> None:
    gpu = on_gpu("hgemm")
    command = ["hgemm", "--sweep", "64..256", "--rungs", "any-size,double-buffer"]
    code, result = _json(command, capsys)
    assert code == cli.OK
    assert [outcome["problem"]["n"] for outcome in result] == [64, 128, 256]
    assert [[row["rung"] for row in outcome["rows"]] for outcome in result] == [["double-buffer", "any-size"]] * 3
    again = Sweep.of_records(result[::-1])
    assert again.as_list() == result
    pytest.importorskip("matplotlib")
    plot = tmp_path / "sweep.png"
    assert main(["ladder", "hgemm", "--sweep", "64..300", *command[3:], "--plot", str(plot)]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hgemm: TFLOP/s at m = n = k, float16, H200 SXM 141 GB"
    assert line(lines, "rung").split() == ["rung", "64", "128", "256"]
    rates = [units.digits(2 * n**3 / SECONDS / 1e12) for n in (64, 128, 256)]
    assert line(lines, "any-size").split()[1:] == rates
    assert line(lines, "* double-buffer for 64: at m=256 n=256 k=64")
    assert sum(each.startswith("measured on") for each in lines) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    gpu.wrong = "any_size"
    assert main(["ladder", "hgemm", "--sweep", "64..128", "--rungs", "any-size"]) == cli.FAILED
    assert line(capsys.readouterr().out.splitlines(), "any-size").split()[1:] == ["WRONG", "WRONG"]
    assert gpu.live == {}


def made_up(n: int) -> Outcome:
    """Return an outcome with the rates of a GPU, more at larger sizes.

    One rung is wrong at 2048, one moved from 1000.
    """
    full = 1 - 2.0 ** -(n / 1024)
    rows = [measured(label, tflops=full * 800 * (place + 1) / 11, ok=True) for place, label in enumerate(LABELS)]
    if n == 2048:
        rows[3] = replace(rows[3], ok=False, error_ratio=3.0)
    noted = LABELS.index("float32-sums")
    rows[noted] = replace(rows[noted], note="a note" if n == 1000 else "")
    base = outcome("gpu", rows).baselines[0]
    libraries = (replace(base, name=WIDE, tflops=full * 760), replace(base, name=NARROW, tflops=full * 800))
    environment = {"date": "2026-11-20", "nvrtc": "13.0", "packages": {"torch": "2.9"}, "gpus": None}
    problem = half_product(n, n, n)
    return outcome("gpu", rows, ladder="hgemm", problem=problem, baselines=libraries, environment=environment)


def test_a_plot_of_sizes_has_the_best_rungs_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sweep = Sweep(tuple(made_up(512 << step) for step in range(6)))
    draw_sweep(sweep, tmp_path / "sweep.svg")
    text = (tmp_path / "sweep.svg").read_text(encoding="utf-8")
    # The best of both instructions beside the library, at each size.
    assert all(f">{name}, float16" in text for name in ("float32-sums", LABELS[-1]))
    assert all(text.count(f">{512 << step}<") == 2 for step in range(6))
    assert "cuBLAS at that size" in text
    assert f">{LABELS[1]}" not in text
    assert not sweep.ok
    assert line(lines_of(ladder_sweep.report(sweep), 100), "prefetch").split()[3] == "WRONG"


def test_the_page_has_rates_of_some_sizes_and_says_what_nobody_measured() -> None:
    page = hgemm_page(HGEMM, [made_up(n).as_dict() for n in (512, 1000, 8192)])
    assert "TFLOP/s:\n\n| rung | 1000 float16 | 8192 float16 |" in page  # the pictures have all sizes
    assert " * |" in line(page.splitlines(), "| float32-sums |")
    assert page.index(f"| {NARROW} |") > page.index("| float32-sums |")
    assert page.index("](../benchmarks/results/hgemm_rungs.svg)") < page.index("| rung |")
    assert "*Measured* at 8192 float16: " in page
    assert "of the h200's tensor-core peak" in page
    assert "ot measured yet" not in page
    record = made_up(512).as_dict()
    record["rows"] = [row for row in record["rows"] if row["rung"] not in {"persistent", "pingpong"}]
    page = hgemm_page(HGEMM, [record])
    assert "\nNot measured yet: `persistent`, `pingpong`.\n" in page
    assert "| persistent | - |\n" in page
    assert page.count(" *Not measured yet.*\n") == 2
