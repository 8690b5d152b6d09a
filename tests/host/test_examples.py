"""The examples run as users would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import matmill

EXAMPLES = Path(__file__).parents[2] / "examples"


def _run(name: str, *arguments: str) -> list[str]:
    """Return what an example prints, line by line."""
    environment = {**os.environ, "PYTHONPATH": str(Path(matmill.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def digits() -> None:
    """Give the images of digits, which scikit-learn brings."""
    pytest.importorskip("sklearn")


@pytest.mark.usefixtures("digits")
def test_digits() -> None:
    lines = _run("digits.py")
    assert lines[0].startswith("Gram matrix 64 x 64 of 1797 digits")
    assert lines[1] == "10 of 64 axes keep 74% of the variance"
    assert lines[2].startswith("nearest centre")


@pytest.mark.usefixtures("digits")
def test_k_means_gives_numpy_s_groups() -> None:
    lines = _run("digits_kmeans.py", "--executor", "cpu")
    assert lines[0].startswith("1797 digits in 10 groups, the same as NumPy's")
    assert re.fullmatch(r"naming each group .* names (7|8)\d% rightly", lines[2])


@pytest.mark.usefixtures("digits")
def test_k_means_runs_the_gpu_s_own_kernels_in_the_emulator() -> None:
    lines = _run("digits_kmeans.py", "--executor", "emulator", "--images", "60", "--rounds", "2")
    assert lines[0].startswith("60 digits in 10 groups, the same as NumPy's")


def test_the_page_shows_what_the_kernels_for_hopper_print() -> None:
    lines = _run("hopper/run.py", "--executor", "emulator")
    assert len(lines) == 4
    shown = (EXAMPLES.parent / "docs" / "emulator-hopper.md").read_text(encoding="utf-8")
    assert "\n".join(["$ python examples/hopper/run.py --executor emulator", *lines]) in shown
