"""The examples run as users would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import matmill

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_digits() -> None:
    pytest.importorskip("sklearn")
    environment = {**os.environ, "PYTHONPATH": str(Path(matmill.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "digits.py")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("Gram matrix 64 x 64 of 1797 digits")
    assert lines[1] == "10 of 64 axes keep 74% of the variance"
    assert lines[2].startswith("nearest centre")
