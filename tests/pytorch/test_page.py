"""The examples of docs/torch.md run; they stand apart from the other pages' because they need torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

BLOCKS = re.findall(
    r"^```py\n(.*?)^```",
    (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def test_the_page_has_examples() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block{number}" for number in range(len(BLOCKS))])
def test_examples_run(block: str) -> None:
    exec(compile(block, "docs/torch.md", "exec"), {})  # noqa: S102 — code of our own page
