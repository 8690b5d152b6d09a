"""A script of benchmarks/, run in this process."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run_script(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: object) -> int:
    """Return the code with which that script ends, given these arguments; 0 where it ends without one."""
    path = str(BENCHMARKS / script)
    monkeypatch.setattr(sys, "argv", [path, *map(str, arguments)])
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0
