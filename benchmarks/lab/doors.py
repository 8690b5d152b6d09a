"""The screens of the README: a lesson's check, a program with matmill and without, and a test that fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.front_page import between
from lab.lessons_page import first_screen
from matmill.learn.lesson import lessons

ROOT = Path(__file__).resolve().parents[2]
_LESSON = 4
#: Columns of a screen; longer lines are cut.
_COLUMNS = 100
#: Variables of the environment by which pytest prints more, or with colours.
_PYTEST_VARIABLES = ("CI", "BUILD_NUMBER", "COLUMNS", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS")
_END = "<!-- end of screen -->\n"


def with_screens(text: str, results: Path) -> str:
    """Replace what is between the marks of each screen by what its commands print."""
    for name, screen in {"learn": _learn(), "torch": _torch(results), "ci": _test()}.items():
        lines = [line if len(line) <= _COLUMNS else f"{line[: _COLUMNS - 1]}…" for line in screen.splitlines()]
        lines = [line.rstrip() for line in lines]
        block = "\n".join(["```console", *lines, "```", ""])
        text = between(text, (f"<!-- screen {name}: written by `make docs` -->\n", _END), block)
    return text


def _learn() -> str:
    lesson = lessons()[_LESSON]
    return f"$ matmill learn {_LESSON}\n$ matmill learn {_LESSON} --check\n{first_screen(lesson)}"


def _torch(results: Path) -> str:
    """Return the recorded screens of an example, alone and with matmill."""
    printed = json.loads((results / "language_model_h100.json").read_text(encoding="utf-8"))["printed"]
    (alone,), (step, _, report) = (printed[name].splitlines() for name in ("torch", "matmill"))
    return "\n".join([
        "$ python examples/language_model.py", alone,
        "$ python -m matmill.torch examples/language_model.py", step,
        f"{report.partition('. ')[0]}. …",
    ])  # fmt: skip


def _test() -> str:
    """Return what pytest prints of the test of ``rowsum.cu``, with the kernel that lacks a barrier."""
    variables = {name: value for name, value in os.environ.items() if name not in _PYTEST_VARIABLES}
    with TemporaryDirectory() as folder:
        examples = ROOT / "examples"
        shutil.copy(examples / "test_rowsum.py", folder)
        shutil.copy(examples / "rowsum_race.cu", Path(folder) / "rowsum.cu")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_rowsum.py"],
            cwd=folder, capture_output=True, text=True, check=False, env=variables | {"PYTHONPATH": str(ROOT / "src")},
        )  # fmt: skip
    lines = done.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("    def "))
    source = next(n for n, line in enumerate(lines) if line.startswith("E") and "rowsum.cu:15  " in line)
    return "\n".join(["$ pytest test_rowsum.py", *lines[start : source + 1], "…", lines[-2]])
