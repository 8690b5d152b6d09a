"""``matmill why``: every configuration beside the chosen one, from shapes alone."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.analysis.explain import explain
from matmill.arch import ARCHES, get
from matmill.bench import units
from matmill.choose import choose, choose_transpose_add
from matmill.cli import main
from matmill.cli.console import PLAIN_WIDTH, output
from matmill.cli.why_report import report
from matmill.dtypes import BF16, F16
from matmill.problem import Gemm


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["why", *arguments, "--json"]) == cli.OK
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_what_is_chosen_is_what_a_call_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = _asked(capsys, "matmul", "1000x512", "512x2000", "--dtype", "float16")
    (stage,) = result["stages"]
    kernel = choose(Gemm(1000, 2000, 512, dtype=F16), get("h200")).kernel
    assert (stage["best"]["kernel"], stage["offsets"]) == (kernel.entry, 1)
    assert stage["best"]["config"] == dict((*kernel.config.constants, *kernel.config.launch))
    chosen = [row for row in stage["rows"] if row["chosen"]]
    assert [row["config"] for row in chosen] == [stage["best"]["config"]]
    times = [(row["call_seconds"], row["seconds"]) for row in stage["rows"]]
    assert times == sorted(times)
    assert all(row["terms"] and row["bound"] for row in stage["rows"])


def test_layouts_and_batches_are_those_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,) = _asked(capsys, "matmul", "7x96x640", "7x640x64")["stages"]
    assert plain["problem"] == "7 x 96x64x640 float32"
    (transposed,) = _asked(capsys, "matmul", "96x640T", "640x64")["stages"]
    assert transposed["best"]["config"]["A_ALONG_K"] == 0 != plain["best"]["config"]["A_ALONG_K"]
    (gram,) = _asked(capsys, "inner", "3x1e7", "--gram")["stages"]
    assert (gram["best"]["kernel"], gram["best"]["config"]["GRAM"]) == ("inner", 1)
    (cross,) = _asked(capsys, "inner", "3x1e7", "1e7x3T")["stages"]
    assert cross["best"]["config"]["GRAM"] == 0
    assert cross["best"]["seconds"] > 1.5 * gram["best"]["seconds"]


def test_sums_are_asked_by_x_alone_or_with_a_y_that_lies_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    (stage,) = _asked(capsys, "transpose_add", "24300x11520", "--dtype", "bfloat16")["stages"]
    assert stage["problem"] == "11520x24300 bfloat16"
    assert stage["best"]["config"]["SHIFTED"] == 4  # elements: rows of the result start on 8 bytes
    (across,) = _asked(capsys, "transpose_add", "64x48", "48x64T", "--dtype", "bfloat16")["stages"]
    assert across["best"]["config"]["Y_MODE"] == across["best"]["config"]["X_MODE"]
    (alone,) = _asked(capsys, "transpose", "5000x8x8", "--dtype", "int8")["stages"]
    assert alone["best"]["kernel"] == "transpose_small"
    assert {row["kernel"] for row in alone["rows"]} == {"transpose_small", "transpose_add"}
    (pairs,) = _asked(capsys, "transpose_add", "2000x3000", "--dtype", "complex64")["stages"]
    assert pairs["problem"] == "3000x2000 complex64"


def test_the_report_says_what_was_chosen_and_what_ruled_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "matmul", "4096x4096", "4096x4096", "--dtype", "bfloat16", "--top", "2"]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("4096x4096x4096 bfloat16, H200")
    assert text.count("<- chosen") == 1
    assert "The best 2 of" in text
    assert "predicted, not measured" in text
    assert main(["why", "inner", "3x1e7", "1e7x3", "--top", "1"]) == cli.OK
    assert "workspace " in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("matmul", "8191x8191", "8191x8191", "--dtype", "bfloat16", "--top", "3"),
        ("matmul", "16x4096", "4096x4096", "--dtype", "float16", "--arch", "a100"),
        ("matmul", "64x1000x500", "64x500x300", "--dtype", "float64"),
        ("inner", "24x1e5", "1e5x24", "--arch", "t4"),
        ("transpose_add", "24300x11520", "--dtype", "bfloat16", "--top", "3"),
    ],
)
def test_the_report_is_as_wide_as_the_terminal(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", *arguments]) == cli.OK
    text = capsys.readouterr().out
    long = [line for line in text.splitlines() if len(line.rstrip()) > PLAIN_WIDTH]
    assert [line for line in long if not line.startswith("Ruled out")] == []
    text = " ".join(text.split())
    heads = [text.index(head) for head in (" times the floor of ", "Where the time goes", "Choice: ", "Runner-ups: ")]
    assert heads == sorted(heads)


def test_the_report_fits_a_terminal_of_80_columns() -> None:
    result = explain(Gemm(999, 1001, 1003, dtype=BF16, a_align=2, b_align=2, d_align=2), get("h200"))
    text = StringIO()
    console = output(text, 80)
    for part in report(result, 1, 3, 80):
        console.print(part)
    said = text.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in said) <= 80
    words = " ".join(text.getvalue().split())
    assert all(str(value) in words for value in dict(result.chosen.config.constants).values())
    assert "repacked" in words


def test_the_report_ends_with_what_would_be_faster(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("matmul", "8191x8191", "8191x8191", "--dtype", "bfloat16")
    (stage,) = _asked(capsys, *arguments)["stages"]
    changes = stage["changes"]
    assert changes[0]["seconds"] == min(change["seconds"] for change in changes)
    assert changes[0]["before"] == pytest.approx(stage["chosen"]["call_seconds"])
    assert main(["why", *arguments]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    for change in changes:
        instead = f"{units.seconds(change['seconds'])} instead of {units.seconds(change['before'])}"
        assert f"- {change['words']}: {instead}, {change['gain']:.0%} less." in text
    summary, _, _ = text.partition(" Where the time goes ")
    because = "because rows of A and B do not start on 16 bytes and are repacked first: "
    assert because + units.seconds(stage["chosen"]["terms"]["repack"]) in summary
    assert stage["because"]["seconds"] == stage["chosen"]["terms"]["repack"]
    assert f"It would be {units.seconds(changes[0]['seconds'])} with {changes[0]['words']}." in summary
    assert main(["why", "matmul", "8192x8192", "8192x8192", "--dtype", "bfloat16"]) == cli.OK
    text = capsys.readouterr().out
    assert "would save 3% of a call" in text
    assert "What would be faster" not in text
    assert main(["why", "transpose", "512x512"]) == cli.OK
    assert "would save" not in capsys.readouterr().out


@pytest.mark.parametrize("size", [64, 4096])
def test_all_of_the_table_is_the_time_of_the_headline(size: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "matmul", *[f"{size}x{size}"] * 2]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    time = text.partition(" predicted, ")[0].rpartition(": ")[2]
    assert f"predicted: all {time} 100.0%" in text
    waits = [part for part in ("predicted: all on the GPU", "predicted: wait for the host") if part in text]
    assert len(waits) == (2 if size == 64 else 0)  # small products wait for the host
    assert "predicted: launch" in text


@pytest.mark.parametrize(
    ("arguments", "faster", "words"),
    [
        (
            ("matmul", "4001x4001", "4001x4001", "--dtype", "bfloat16"),
            "matmill",
            "Use matmill: torch, with cuBLAS, took ",
        ),
        (("matmul", "4096x4096", "4096x4096", "--dtype", "bfloat16"), "equal", "Either will do: torch, with cuBLAS, "),
        (("matmul", "1024x1024", "1024x1024", "--dtype", "float16"), "torch", "Keep torch: torch, with cuBLAS, took "),
        (("matmul", "64x64", "64x64", "--arch", "a100"), None, "Keep torch or switch: no product near this one was "),
    ],
)
def test_the_report_says_whether_to_keep_torch(
    arguments: tuple[str, ...], faster: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (stage,) = _asked(capsys, *arguments)["stages"]
    assert main(["why", *arguments]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    assert words in text
    near = stage["recorded"]
    assert (near and near["faster"]) == faster
    if near is not None:
        assert (
            f"took {units.digits(near['ratio'])} times matmill's time for {near['m']}x{near['n']}x{near['k']}" in text
        )
    assert main(["why", "transpose", "64x64"]) == cli.OK
    assert "torch" not in capsys.readouterr().out


def test_the_page_shows_what_is_said_today(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = (Path(__file__).parents[2] / "docs" / "cost-models.md").read_text(encoding="utf-8")
    command, _, shown = page.partition("```\n$ matmill ")[2].partition("```")[0].partition("\n")
    assert main(command.split()) == cli.OK
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown.splitlines()


def test_precision_and_the_type_of_the_result_are_those_of_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = ("matmul", "4096x4096", "4096x4096")
    (tf32,) = _asked(capsys, *shapes, "--precision", "tf32")["stages"]
    assert tf32["chosen"]["kernel"] == "wgmma_gemm"
    assert tf32["floor"]["unit"] == "tensor cores, tf32"
    (wide,) = _asked(capsys, *shapes, "--dtype", "float16", "--out-dtype", "float32")["stages"]
    assert wide["chosen"]["config"]["FLOAT32_D"] == 1


def test_reasons_against_configurations_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ARCHES, "h200", replace(get("h200"), shared_per_block=30_000))
    assert main(["why", "matmul", "512x512", "512x512"]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    _, *ruled_out = text.split("Ruled out, ")
    assert ruled_out
    assert all("shared memory" in reason and "> 30000" in reason for reason in ruled_out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mul", "3x4", "4x3"), ("operation", "matmul")),
        (("matmul", "3x4", "5x6"), ("a, b", "(3, 4)", "second-last (5)")),
        (("matmul", "8192x768", "50257x768T"), ("SHAPE", "'50257x768T'", "Did you mean 768x50257T?")),
        (("matmul", "768x512T", "768x4096"), ("SHAPE", "'768x512T'", "Did you mean 512x768T?")),
        (("matmul", "3x4", "5x4"), ("a, b", "Transpose one of them")),
        (("matmul", "3x4"), ("SHAPE", "1 of them")),
        (("transpose", "3x4", "4x3"), ("SHAPE", "2 of them")),
        (("transpose", "3x4", "--gram"), ("--gram", "matmul or inner")),
        (("transpose", "3x4", "--precision", "tf32"), ("--precision", "matmul or inner")),
        (("transpose_add", "3x4", "--out-dtype", "float32"), ("--out-dtype", "matmul or inner")),
        (("matmul", "3x4", "4x3", "--precision", "half"), ("precision", "tf32")),
        (("matmul", "3x4", "4x3", "--dtype", "float16", "--precision", "tf32"), ("precision", "float32")),
        (("matmul", "3x4", "4x3", "--out-dtype", "int8"), ("out_dtype", "int8")),
        (("matmul", "4x4", "4x4", "--precision", "tf32", "--arch", "a100"), ("problem", "9.0")),
        (("matmul", "3xx4", "4x3"), ("SHAPE", "'3xx4'")),
        (("matmul", "3.5x4", "4x3"), ("SHAPE", "'3.5x4'")),
        (("transpose", "3T"), ("SHAPE", "'3T'")),
        (("inner", "3x4", "4x3", "--dtype", "int8"), ("--dtype", "float16")),
        (("matmul", "3x4", "4x3", "--dtype", "complex64"), ("--dtype", "float16")),
        (("matmul", "3x4", "4x3", "--dtype", "float"), ("--dtype", "float32")),
        (("matmul", "200x200", "200x200", "--arch", "t4", "--dtype", "bfloat16"), ("problem", "mma.sync")),
    ],
)
def test_errors_name_the_argument(
    arguments: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", *arguments]) != cli.OK
    text = capsys.readouterr().err
    assert all(word in text for word in words), text
    assert "Traceback" not in text


def test_a_shape_without_a_batch_matches_the_sum_that_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    from matmill.ladders.transpose_add.subject import transpose_add_problem  # noqa: PLC0415 — the ladder's own way to the same sum

    (stage,) = _asked(capsys, "transpose_add", "8191x4095", "--dtype", "bfloat16")["stages"]
    kernel = choose_transpose_add(transpose_add_problem(8191, 4095, BF16), get("h200")).kernel
    assert stage["best"]["config"] == dict(kernel.config.constants)
