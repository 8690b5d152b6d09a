"""The plugin for pytest: the outside project of `examples/`, and what failing tests show."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import matmill

ROOT = Path(__file__).parents[2]

FAILING = '''
import numpy as np
import pytest

RACE = """__global__ void race(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = s[63 - threadIdx.x];
}"""
CONFLICTS = """__global__ void slow(float* x) {
  __shared__ float s[32][32];
  s[threadIdx.x][0] = x[threadIdx.x];
  x[threadIdx.x] = s[threadIdx.x][0] + 1;
}"""
ORDER = """__global__ void last(int* x) {
  __shared__ int s;
  atomicExch(&s, threadIdx.x / 32);
  __syncthreads();
  if (threadIdx.x == 0) *x = s;
}"""

def test_race(emulate):
    emulate(RACE, "race", 1, 64, np.zeros(64, np.float32))

def test_wrong_result(emulate):
    x = np.ones(64, np.float32)
    emulate(RACE, "race", 1, 64, x, races=False)
    assert x[0] == 2

@pytest.mark.emulate(schedules=6, strict=True)
def test_order(emulate):
    emulate(ORDER, "last", 1, 256, np.zeros(1, np.int32))

def test_checks_by_itself(emulate):
    report = emulate(RACE, "race", 1, 64, np.zeros(64, np.float32), check=False)
    assert [hazard.kind for hazard in report.hazards] == ["race"]

def test_slow(emulate):
    emulate(CONFLICTS, None, 132, 32, np.zeros(32, np.float32), races=False)

@pytest.mark.emulate(speed=2)
def test_marker(emulate):
    pass
'''


def _pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(matmill.__file__).parents[1])}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_the_outside_project_s_tests_pass(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "cuda_project", project, ignore=shutil.ignore_patterns("__pycache__"))
    code, text = _pytest(project, "--matmill-html", "pages", "--matmill-sarif", "logs/hazards.sarif")
    assert code == 0, text
    assert "3 passed" in text
    pages = sorted(path.name for path in (project / "pages").iterdir())
    assert pages[0] == "index.html"
    assert len(pages) == 4
    assert "0 of 3 launches are of failed tests" in (project / "pages" / "index.html").read_text()
    (run,) = json.loads((project / "logs" / "hazards.sarif").read_text())["runs"]
    (accepted,) = run["results"]
    assert accepted["suppressions"][0]["justification"].startswith(
        "every thread that meets a value beyond the last bin"
    )
    where = accepted["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "src/histogram.cu"
    assert "stats::histogram" in (project / "pages" / pages[-1]).read_text()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_log_of_hazards_is_one_for_all_processes(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmatmill_schedules = 0\n")
    (tmp_path / "test_it.py").write_text(FAILING)
    code, text = _pytest(tmp_path, "-n", workers, "--matmill-sarif", "hazards.sarif", "--matmill-html", "pages")
    assert code == 1, text
    (run,) = json.loads((tmp_path / "hazards.sarif").read_text())["runs"]
    assert sorted(result["ruleId"] for result in run["results"]) == ["order", "race"]  # that of three tests once
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["order", "race"]
    assert "3 of 5 launches are of failed tests" in (tmp_path / "pages" / "index.html").read_text()


def test_failing_tests_show_the_report(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmatmill_schedules = 0\n")
    (tmp_path / "test_it.py").write_text(FAILING)
    code, text = _pytest(tmp_path, "-rP")
    assert code == 1
    assert "3 failed, 2 passed, 1 error" in text
    assert text.count("verdict:\n  kernel.cu:3  32 passes where 1 would do (bank conflicts)") == 1
    titles = ("ERROR at setup of test_marker", "_ test_race _", "_ test_wrong_result _", "_ test_order _")
    marker, race, wrong, order = (text.index(title) for title in titles)
    assert "marker emulate: got speed; wanted keywords of races, initcheck" in text[marker:race]
    assert "HazardError: kernel race: got 1 error" in text[race:wrong]
    assert "kernel.cu:4  x[threadIdx.x] = s[63 - threadIdx.x];" in text[race:wrong]
    assert "Captured matmill call" not in text[race:wrong]
    assert "matmill/testing/" not in text[race:wrong]  # no lines of ours between the test's and the report
    assert 'emulate(RACE, "race", 1, 64, np.zeros(64, np.float32))' in text[race:wrong]
    assert "Captured matmill call" in text[wrong:order]
    assert "race<<<grid (1, 1, 1), block (64, 1, 1), 0 B shared>>>: no hazards" in text[wrong:order]
    assert "warning: order at last: last: 1 of 1 elements of x differ with the order of warps" in text[order:]
