"""Kernels with mistakes, as packages that a rung can name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest


def planted(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> str:
    """Return a package whose kernel is ``text``, importable from ``folder``; its name.

    The name follows from the text: sources are remembered by package, and resources by the digest of both.
    """
    package = f"planted_{hashlib.sha256(text.encode()).hexdigest()}"
    (folder / package).mkdir(exist_ok=True)
    (folder / package / "kernel.cuh").write_text(text, encoding="utf-8")
    (folder / package / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return package
