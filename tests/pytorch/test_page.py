"""The examples of pages that need torch, or Dask, run; they stand apart for that."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    pytest.param(page, block, id=f"{page}{number}")
    for page in ("torch", "programs", "distributed")
    for number, block in enumerate(
        re.findall(r"^```py\n(.*?)^```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
]


def test_the_pages_have_examples() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_examples_run(page: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where examples write files
    if "matmill.dask" in block:
        pytest.importorskip("dask", reason="matmill[dask] is not installed")
    try:
        exec(compile(block, f"docs/{page}.md", "exec"), {})  # noqa: S102 — code of our own page
    finally:
        matmill_torch = import_module("matmill.torch")
        matmill_torch.disable()
        matmill_torch.load_decisions(None)
