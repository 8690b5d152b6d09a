"""Choosing rungs and sizes, and how results are laid out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from matmill import cli
from matmill.arch import get
from matmill.cli import main, tables
from matmill.kernel import multiples
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.ladder import Ladder
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import BaselineRow, Outcome, Row
from matmill.ladders.runner.selection import nearest, pick
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.problem import Gemm

BY_LABEL = {rung.label: rung for rung in SGEMM}


def outcome(on: str, rows: Sequence[Row], **changes: object) -> Outcome:
    base = BaselineRow(
        "cuBLAS (torch)", "torch 2", ok=True, error_ratio=0.1, seconds=1e-3, tflops=50.0, peak_fraction=0.7
    )
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
        ("conflict-free", (100, 100, 100), (256, 128, 96)),
        ("naive", (1, 1, 1), (1, 1, 1)),
    ],
)
def test_the_nearest_size_is_the_one_that_changes_least(
    label: str, size: tuple[int, int, int], expected: tuple[int, int, int]
) -> None:
    m, n, k = size
    result, reason = nearest(BY_LABEL[label], Gemm(m=m, n=n, k=k), get("h200"))
    assert result == Gemm(m=expected[0], n=expected[1], k=expected[2])
    assert bool(reason) == (size != expected)


def test_where_no_size_is_legal_there_is_none() -> None:
    from dataclasses import replace  # noqa: PLC0415 — beside its only use

    naive = BY_LABEL["naive"]
    rung = replace(naive, kernel=replace(naive.kernel, why_not_config=multiples(m=10**9)))
    result, reason = nearest(rung, Gemm(m=64, n=64, k=64), get("h200"))
    assert result is None
    assert reason == "m = 64 is not a multiple of 1000000000"


def _lines(result: Outcome, width: int) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width)
    for part in tables.report(result):
        console.print(part, soft_wrap=True)
    return file.getvalue().splitlines()


def test_tables_fit_80_columns_without_cutting_a_figure() -> None:
    long = "double-buffered"
    gpu = _lines(outcome("gpu", [measured(long, seconds=0.29234)]), 80)
    row = next(line for line in gpu if line.startswith(long))
    for cell in ("292 ms", "12.5", "18.7%", "25.0%", "96", "16640", "37.5%", "ok"):
        assert cell in row.split("  ") or cell in row
    counters = dict.fromkeys(_fields(), 123456789)
    emulated = _lines(outcome("emulator", [measured(long, seconds=None, tflops=None, counters=counters)]), 80)
    assert any("123M/123M" in line for line in emulated)
    assert max(len(line) for line in gpu + emulated) <= 84


def _fields() -> list[str]:
    from matmill.emulator import Counters  # noqa: PLC0415 — beside its only use

    return list(Counters().as_dict())


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (measured("a"), "ok"),
        (measured("a", ok=None), "-"),
        (measured("a", ok=False, error_ratio=1.01), "WRONG"),
        (measured("a", ok=False, error_ratio=float("inf")), "WRONG"),
        (measured("a", ok=False, error_ratio=float("nan")), "WRONG"),
        (measured("a", ok=False, error_ratio=None), "WRONG"),
        (measured("a", ok=False, hazards=({"kind": "race", "message": "x", "where": "y"},)), "RACE"),
        (measured("a", ok=False, hazards=({"kind": "uninitialised-shared", "message": "", "where": ""},)), "HAZARD"),
    ],
)
def test_verdicts(row: Row, word: str) -> None:
    assert tables.verdict(row) == word


def test_remarks_name_the_rungs_they_belong_to() -> None:
    rows = [measured("a", note="at m=96: why"), measured("b", note="at m=96: why"), measured("c")]
    lines = _lines(outcome("gpu", rows), 200)
    assert "* a, b: at m=96: why" in lines
    assert any(line.startswith("a *") for line in lines)
    assert any(line.startswith("c  ") for line in lines)
    assert lines[-1] == "a note"


def test_json_has_the_contracts_keys_and_no_infinities() -> None:
    result = outcome("gpu", [measured("a", ok=False, error_ratio=float("inf"))]).as_dict()
    assert {"ladder", "on", "arch", "problem", "rows", "baselines", "environment"} <= set(result)
    row = result["rows"][0]
    assert {
        "rung",
        "source",
        "ok",
        "error_ratio",
        "seconds",
        "tflops",
        "peak_fraction",
        "library_fraction",
        "registers",
        "shared_bytes",
        "occupancy",
        "counters",
    } <= set(row)
    assert row["error_ratio"] is None
    assert row["counters"] is None
    assert result["problem"] == {"m": 64, "n": 64, "k": 64}


def test_a_record_reads_back() -> None:
    first = outcome("gpu", [measured("a", note="x")])
    again = Outcome.from_dict(first.as_dict())
    assert again.as_dict() == first.as_dict()


def test_a_plot_says_which_rungs_are_wrong_and_what_bytes_moved(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    phases = {name: {"seconds": None, "bytes": 3e6, "flops": 0.0} for name in ("copy in", "copy out")}
    row = measured("pinned", ok=False, seconds=None, phases=phases)
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        draw(outcome("emulator", [row]), tmp_path / "plot.svg")
    picture = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert all(words in picture for words in ("pinned: WRONG", "bytes moved", "6.00 MB", "copy out"))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("kind", ["gpu", "emulator", "memory"])
def test_plots_are_drawn(kind: str, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    phases = {name: {"seconds": 1e-3, "bytes": 8.0, "flops": 0.0} for name in ("copy in", "kernel")}
    rows = {
        "gpu": [measured("a"), measured("b", ok=False), measured("c", ok=None)],
        "emulator": [measured("a", seconds=None, counters=dict.fromkeys(_fields(), 7))],
        "memory": [measured("pinned", phases=phases)],
    }[kind]
    path = tmp_path / f"plot{suffix}"
    draw(outcome("emulator" if kind == "emulator" else "gpu", rows), path)
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in start


@pytest.mark.parametrize("ladder", LADDERS.values(), ids=LADDERS)
def test_the_list_has_every_rung_with_its_source(ladder: Ladder[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "--list"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == ladder.name) + 1
    assert lines[start].split()[:2] == [ladder.rungs[0].label, ladder.rungs[0].source.key]
    assert all(any(line.startswith(f"{rung.label} ") for line in lines[start:]) for rung in ladder.rungs)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sgemm", "--n", "4096"], ["--m, --n, --k: got m=4096", "--on emulator to wait for it"]),
        (["memory", "--n", "4096"], ["--m, --n, --k: got m=4096", "--on emulator to wait for it"]),
        (["inner", "--m", "200", "--k", "1000"], ["--m: got 200", "at most 128"]),
        (["inner", "--m", "3", "--n", "129"], ["--n: got 129", "at most 128"]),
    ],
)
def test_sizes_are_checked_before_a_ladder_starts(
    arguments: list[str], words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "there is none")
    assert main(["ladder", *arguments]) == cli.USAGE
    text = capsys.readouterr()
    assert all(word in text.err for word in words), text.err
    assert text.out == ""


@pytest.mark.parametrize(("n", "said"), [(256, "57 s"), (1024, "61 min"), (64, "")])
def test_long_emulations_say_roughly_how_long_before_they_start(
    n: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_args: object, **_options: object) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr("matmill.cli.ladder.run_ladder", started)
    assert main(["ladder", "sgemm", "--on", "emulator", "--n", str(n)]) == cli.INTERRUPTED
    first, *others = capsys.readouterr().err.splitlines()
    assert (first, len(others)) == (f"matmill: the emulator takes roughly {said} for this on one core", 1) or not said
