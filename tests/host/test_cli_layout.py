"""`matmill layout`: the picture in the terminal and in a file, wavefronts, the search, and what is refused."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.analysis.swizzle import ACCESSES, MODES
from matmill.cli import main
from matmill.dtypes import ALL, PRODUCTS, SHORT, long_name
from matmill.errors import UnknownNameError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "swizzle.md").read_text(encoding="utf-8").replace("\N{MULTIPLICATION SIGN}", "x")
COMMANDS = re.findall(r"^\$ matmill (.*)$", PAGE, re.MULTILINE)
LDMATRIX = ["--shape", "64x64", "--dtype", "f16", "--access", "ldmatrix"]


def asked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["layout", *arguments, "--json"]) == cli.OK
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["layout", *arguments]) == cli.OK
    return capsys.readouterr().out


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
    rows = re.findall(r"^\| (none|pad:8|3,3,3|128B) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for name, wavefronts, size in rows:
        result = asked([*LDMATRIX, "--swizzle", name], capsys)
        assert (result["wavefronts_actual"], result["bytes"]) == (int(wavefronts), int(size))
    assert all(f"| `{access}` |" in PAGE for access in ACCESSES)
    assert all(f"`{mode}`" in PAGE for mode in MODES)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    plain = asked(LDMATRIX, capsys)
    assert plain["shape"] == [64, 64]
    assert (plain["dtype"], plain["access"], plain["layout"]) == ("float16", "ldmatrix", "none")
    assert (plain["wavefronts_ideal"], plain["wavefronts_actual"]) == (4, 32)
    assert (plain["requests"], plain["requests_conflicting"]) == (16, 16)
    assert (plain["total_wavefronts_ideal"], plain["total_wavefronts_actual"]) == (64, 512)
    assert "search" not in plain
    swizzled = asked([*LDMATRIX, "--swizzle", "3,3,3"], capsys)
    assert swizzled["swizzle"] == {"bits": 3, "base": 3, "shift": 3}
    assert swizzled["wavefronts_ideal"] == swizzled["wavefronts_actual"] == 4
    assert swizzled["requests_conflicting"] == 0
    mode = asked([*LDMATRIX, "--swizzle", "128b"], capsys)
    assert (mode["layout"], mode["swizzle"], mode["panel"]) == ("128B", swizzled["swizzle"], 64)
    padded = asked([*LDMATRIX, "--swizzle", "pad:8"], capsys)
    assert (padded["pad"], padded["bytes"], padded["wavefronts_actual"]) == (8, 9216, 4)


def test_search_alone_shows_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([*LDMATRIX, "--search"], capsys)
    assert result["search"] == {"swizzle": "3,3,3", "pad": 8}
    assert (result["layout"], result["wavefronts_actual"]) == ("3,3,3", 4)
    assert "search: smallest swizzle 3,3,3; least padding pad:8" in said([*LDMATRIX, "--search"], capsys)


def test_search_beside_a_layout_shows_that_layout(capsys: pytest.CaptureFixture[str]) -> None:
    result = asked([*LDMATRIX, "--search", "--swizzle", "pad:16"], capsys)
    assert (result["layout"], result["wavefronts_actual"], result["search"]["swizzle"]) == ("pad:16", 8, "3,3,3")


def test_search_says_where_nothing_is_to_do_or_to_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    row = ["--shape", "64x64", "--access", "row", "--search"]
    assert "the plain layout has no conflicts" in said(row, capsys)
    odd = ["--shape", "32x34", "--dtype", "i8", "--access", "column", "--search"]
    assert asked(odd, capsys)["search"] == {"swizzle": None, "pad": 2}
    assert "no swizzle of up to five bits is free of conflicts" in said(odd, capsys)


def test_plain_text_stars_the_words_of_one_access(capsys: pytest.CaptureFixture[str]) -> None:
    text = said([*LDMATRIX, "--swizzle", "3,3,3"], capsys)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert "row 0  *00*02*04*06 08 10" in lines[2]
    assert "row 1   08 10 12 14*00*02*04*06 24" in lines[3]
    assert sum(line.count("*") for line in lines if line.startswith("row ")) == 128
    counts = next(line for line in lines if line.startswith("words"))
    assert counts.split()[1:] == ["4"] * 32
    assert "32 of 64 lines" in text
    assert "one access: 4 wavefronts, ideal 4: no conflicts" in text
    assert "one access: 32 wavefronts, ideal 4: 8 times the ideal" in said(LDMATRIX, capsys)
    assert max(map(len, lines)) <= 120


class Terminal(io.StringIO):
    """A terminal, to rich."""

    def isatty(self) -> bool:
        """Tell that it is one."""
        return True


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_colour_unless_it_asks_for_none(no_color: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["layout", *LDMATRIX]) == cli.OK
    text = shown.getvalue()
    assert ("\x1b[31m" in text or "\x1b[32m" in text) == (no_color == "")
    assert re.search(r"\x1b\[[0-9;]*7[;m]", text), "the words of the access are reversed"
    bare = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "reversed: one access" in bare
    picture = [line for line in bare.splitlines() if line.startswith(("row ", "words", "bank"))]
    assert max(map(len, picture)) <= 80


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    alone, beside = tmp_path / f"alone.{suffix}", tmp_path / f"beside.{suffix}"
    assert f"Plot: {alone}" in said([*LDMATRIX, "--plot", str(alone)], capsys)
    asked([*LDMATRIX, "--swizzle", "pad:8", "--plot", str(beside)], capsys)
    magic = b"\x89PNG" if suffix == "png" else b"<?xml"
    assert alone.read_bytes().startswith(magic)
    assert beside.read_bytes().startswith(magic)
    assert beside.stat().st_size > alone.stat().st_size  # one panel more
    if suffix == "svg":
        drawn = beside.read_text(encoding="utf-8")
        assert "<!-- plain: 32 wavefronts, ideal 4" in drawn
        assert "<!-- pad:8: 4 wavefronts, ideal 4" in drawn


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["--shape"]),
        (["--shape", "64"], ["--shape: got '64'", "Write 64x64"]),
        (["--shape", "0x64"], ["--shape: got '0x64'"]),
        (["--shape", "64x-1"], ["--shape: got '64x-1'"]),
        (["--shape", "9999x9999"], ["shape: got 9999x9999", "at most 262144 bytes"]),
        ([*LDMATRIX, "--dtype", "f17"], ["--dtype: got 'f17'", "Did you mean 'f16'?"]),
        ([*LDMATRIX, "--access", "ldmatrx"], ["--access: got 'ldmatrx'", "Did you mean 'ldmatrix'?"]),
        ([*LDMATRIX, "--swizzle", "3;3;3"], ["--swizzle: got '3;3;3'", "pad:N"]),
        ([*LDMATRIX, "--swizzle", "3,3,12"], ["--swizzle: got 3,3,12", "4096 offsets"]),
        ([*LDMATRIX, "--swizzle", "2,0,2"], ["swizzle: got 2,0,2 with ldmatrix", "base of 3"]),
        (["--shape", "64x60", "--access", "vec16"], ["shape: got 64x60", "16-byte vectors"]),
        (["--shape", "64x32", "--swizzle", "128B"], ["shape: got rows of 64 bytes"]),
        ([*LDMATRIX, "--plot", "x.pdf"], ["--plot", ".png or .svg"]),
    ],
)
def test_bad_usage_is_code_2_and_said_on_stderr(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layout", *arguments]) == cli.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    for word in words:
        assert word in told.err


def test_short_names_of_element_types() -> None:
    assert {long_name(short, PRODUCTS) for short in SHORT} == set(SHORT.values())
    assert set(SHORT.values()) == set(PRODUCTS)
    with pytest.raises(UnknownNameError, match="--dtype: got 'i8'"):
        long_name("i8", ALL)
