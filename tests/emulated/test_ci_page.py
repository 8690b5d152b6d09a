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
    for kernel in ("rowsum", "rowsum_race"):
        (tmp_path / f"{kernel}.cu").write_bytes((ROOT / "examples" / f"{kernel}.cu").read_bytes())
        text = code.replace("rowsum.cu", f"{kernel}.cu").replace('["matmill"', '[sys.executable, "-m", "matmill"')
        (tmp_path / f"test_{kernel}.py").write_text(f"import sys\n{text}", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "127", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert "1 failed, 1 passed, 6 deselected" in done.stdout, done.stdout + done.stderr
    assert "FAILED test_rowsum_race.py::test_rows_are_summed[127]" in done.stdout
    assert re.search(r"'kind': 'race', .*'where': 'rowsum_race\.cu:15'", done.stdout)


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
