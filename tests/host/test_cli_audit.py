"""``matmill audit``: a verdict on anybody's product, in the exit code, as text, JSON and Markdown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from matmill import cli
from matmill.cli import main
from matmill.settings import compiles_in_background, waiting_for_compiler

_MINE = """
def right(a, b, *, out=None, c=None, beta=0.0):
    if c is not None and beta == 0:
        c = None
    if out is not None:
        out[...] = a @ b
        return out
    return a @ b if c is None else a @ b + beta * c

def short(a, b):
    return a[:, :-1] @ b[:-1]

nothing = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a folder with a module of products."""
    (tmp_path / "my_products.py").write_text(_MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_products", None)


@pytest.mark.usefixtures("mine")
def test_a_right_product(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "my_products:right", "--dtype", "f64", "float32"]) == cli.OK
    text = capsys.readouterr().out
    assert text.startswith("right: my_products:right, float64\n  yes       has every term once")
    assert "\n\nright: my_products:right, float32\n" in text
    assert "64 x 8 x 64:" in text


@pytest.mark.usefixtures("mine")
def test_a_wrong_product(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["audit", "my_products:short", "--json", "--markdown", "report.md"]) == cli.FAILED
    (report,) = json.loads(capsys.readouterr().out)["audits"]
    verdict = (
        "WRONG: my_products:short, float32: it is not true that it has every term once: 33 x 41 x 65: "
        "1353 of 1353 elements, the first of them D[0, 0]: lost: 64 (of 0…64)"
    )
    assert (report["ok"], report["verdict"]) == (False, verdict)
    assert (tmp_path / "report.md").read_text(encoding="utf-8").startswith(f"**{verdict}**\n")


@pytest.mark.usefixtures("mine")
def test_properties_may_be_required(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["audit", "my_products:short", "--require", "batches", "--json"])
    assert code == cli.FAILED
    (report,) = json.loads(capsys.readouterr().out)["audits"]
    assert "batches" in report["needed"]
    assert main(["audit", "my_products:right", "--require", "row"]) == cli.USAGE
    assert "Did you mean 'rows'" in capsys.readouterr().err


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["my_products:long"], "has no attribute 'long'"),
        (["no_such_module:f"], "No module named"),
        (["my_products:nothing"], "wanted a function"),
        (["numpy"], ""),
        (["numpy", "--on", "cpu"], "wanted them with matmill"),
        (["numpy", "--dtype", "float31"], "float32"),
        (["numpy", "--markdown", "no/such/folder.md"], "a folder that exists"),
    ],
    ids=str,
)
def test_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == (cli.USAGE if said else cli.OK)
    assert said in capsys.readouterr().err


def test_matmill_on_the_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "matmill", "--on", "cpu", "--dtype", "bf16", "--out-dtype", "float32"]) == cli.OK
    assert "yes       does not read C where beta = 0" in capsys.readouterr().out


def test_waiting_for_the_compiler_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATMILL_COMPILE", raising=False)
    with waiting_for_compiler():
        assert not compiles_in_background()
    assert "MATMILL_COMPILE" not in os.environ
    monkeypatch.setenv("MATMILL_COMPILE", "background")
    with waiting_for_compiler():
        assert compiles_in_background()
    assert os.environ["MATMILL_COMPILE"] == "background"
