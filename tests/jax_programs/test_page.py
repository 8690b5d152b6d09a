"""The programs on the page about JAX run, each by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="jax is not installed")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "jax.md"
PROGRAMS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_has_programs() -> None:
    assert len(PROGRAMS) == 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(program: str) -> None:
    exec(compile(program, PAGE.name, "exec"), {})  # noqa: S102 — code of our own page
