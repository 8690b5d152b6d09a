"""The example of examples/transpose_add.py, run as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import matmill

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "transpose_add.py"


def _run(*arguments: str) -> list[str]:
    # Without a GPU in sight the same lines are printed everywhere.
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(matmill.__file__).parent.parent),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_bits_are_torch_s() -> None:
    assert _run() == [
        "x 243 x 115 bfloat16 on cpu: the same bits as x.transpose(0, 1) + y",
        "no GPU here: nothing to time",
    ]


def test_any_size_and_type() -> None:
    assert _run("--rows", "5", "--columns", "7", "--dtype", "int8")[0].startswith("x 5 x 7 int8 on cpu: the same bits")
