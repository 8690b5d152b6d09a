"""`matmill compare`: two kernels on equal arguments, of two files and of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from host.test_cli_emulate import TILE, TILES, asked, refused
from host.test_pages import checked
from matmill import cli
from matmill.cli import main


def test_two_kernels_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, extent in (("plain", "32"), ("padded", "33")):
        (tmp_path / f"{name}.cu").write_text(TILE.replace("EXTENT", extent))
    command = ["compare", "plain.cu", "padded.cu", *TILES]
    record = asked(*command, capsys=capsys)
    assert record["counters"]["shared_load_wavefronts"] == [4096, 128]
    assert "shared_load_wavefronts" in record["better"]
    assert record["worse"] == []
    assert [advice["rule"] for advice in record["advice"]["solved"]] == ["bank conflicts"]
    assert [advice["rule"] for advice in record["advice"]["still"]] == ["idle SMs"]
    assert record["results"] == {"0": 0, "1": 0}
    assert main([*command, "--html", "page.html"]) == cli.OK
    text = capsys.readouterr().out
    assert re.search(r"^shared_load_wavefronts +4,096 +128 +0\.0312x +better$", text, re.MULTILINE)
    assert "\nsolved: plain.cu:6: 32 passes where 1 would do" in text
    assert max(map(len, text.splitlines())) <= 80
    page = checked((tmp_path / "page.html").read_text())
    assert {"counts", "solved", "still", "results"} <= set(page.ids)
    back = asked("compare", "padded.cu", "plain.cu", *TILES, capsys=capsys)
    assert "shared_load_wavefronts" in back["worse"]
    assert [advice["rule"] for advice in back["advice"]["new"]] == ["bank conflicts"]


def test_two_entries_of_a_file_with_launches_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.cu").write_text(
        "__global__ void one(float* x) { x[threadIdx.x] = 1; }\n"
        "__global__ void four(float4* x) { x[threadIdx.x] = make_float4(1, 1, 1, VALUE); }\n".replace("VALUE", "1")
    )
    entries = ["--entry", "one", "--entry", "four"]
    launches = ["--block", "128", "--block", "32", "--arg", "zeros:f32:128"]
    record = asked("compare", "k.cu", *entries, *launches, capsys=capsys)
    assert record["counters"]["global_store_requests"] == [4, 1]
    (tmp_path / "k.cu").write_text((tmp_path / "k.cu").read_text().replace("1, 1, 1, 1", "1, 1, 1, 2"))
    record = asked("compare", "k.cu", *entries, *launches, code=cli.FAILED, capsys=capsys)
    assert record["results"] == {"0": 32}
    assert "got 3 values" in refused(capsys, "compare", "k.cu", *("--block", "32") * 3, "--arg", "zeros:f32:128")
