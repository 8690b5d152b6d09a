"""The page on CI: its test passes on the right kernel, and fails with a race on the other one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def test_the_page_s_test_passes_and_finds_the_race(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_rowsum.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "127", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    printed = {}
    for kernel in ("rowsum", "rowsum_race"):
        (tmp_path / "rowsum.cu").write_bytes((ROOT / "examples" / f"{kernel}.cu").read_bytes())
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        printed[kernel] = done.stdout
    assert "1 passed, 3 deselected" in printed["rowsum"], printed
    assert "1 failed, 3 deselected" in printed["rowsum_race"], printed
    (shown,) = re.findall(
        r"^E       (error: race at rowsum\.cu:15: .*? write by thread \(16, 0, 0\))", PAGE, re.MULTILINE
    )
    assert shown in printed["rowsum_race"]


def test_the_page_s_launch_is_the_emulator_page_s() -> None:
    launch = "--grid 4 --block 128 --arg random:f32:4x1000 --arg zeros:f32:4 --arg 1000"
    assert f"$ matmill emulate rowsum.cu {launch}\n" in PAGE
    assert f"rowsum_race.cu {launch}\n" in (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")


def test_pages_name_no_index_that_lacks_the_package() -> None:
    project = (ROOT / "examples" / "cuda_project" / "README.md").read_text(encoding="utf-8")
    for text in (PAGE, project):
        installed = re.findall(r"pip install (\S+)", text)
        assert installed
        assert set(installed) <= {'"$MATMILL"', "git+https://HOST/OWNER/matmill"}
    assert PAGE.count("No package index has matmill yet") == 1
    assert PAGE.count("git+https://HOST/OWNER/matmill") == 2  # of the shell, and of the job
