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
#: Without what torchrun sets.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"LOCAL_RANK", "WORLD_SIZE"}}
ENVIRONMENT["PYTHONPATH"] = str(Path(matmill.__file__).parent.parent)


def _run(name: str, *arguments: str) -> list[str]:
    """Return what an example prints, line by line."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
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


@pytest.mark.parametrize(
    ("code", "missing", "words"),
    [
        ("import matmill.torch", "torch", "Install it: pip install 'torch>=2.11'"),
        ("import matmill.dask", "dask", "Install it: pip install 'dask[array,distributed]>=2025.1'"),
        ("import matmill.jax", "jax", "Install it: pip install 'jax>=0.10'"),
        ("runpy.run_path('gram_over_ranks.py')", "torch", "This needs torch: pip install 'torch>=2.11'"),
        ("runpy.run_path('rows_on_disk.py')", "distributed", "This needs Dask and its workers: pip install 'dask["),
        ("runpy.run_path('rows_on_disk.py')", "dask", "This needs Dask and its workers: pip install 'dask["),
    ],
)
def test_what_is_not_installed_is_named_with_its_requirement(code: str, missing: str, words: str) -> None:
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; {code}"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=EXAMPLES, env=ENVIRONMENT)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


def test_the_suite_is_collected_without_optional_packages() -> None:
    absent = ("torch", "jax", "cupy", "dask", "numba", "triton")
    code = f"import pytest, sys; sys.modules.update(dict.fromkeys({absent})); sys.exit(pytest.main(sys.argv[1:]))"
    folders = [str(EXAMPLES.parent / "tests" / name) for name in ("distributed", "gpu", "jax_programs", "pytorch")]
    command = [sys.executable, "-c", code, "--collect-only", "-qp", "no:cacheprovider", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout[-3000:]


def test_ranks_alone_say_how_they_are_started() -> None:
    pytest.importorskip("torch")
    words = [sys.executable, str(EXAMPLES / "gram_over_ranks.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 1
    assert done.stderr == "This runs in several processes: torchrun --nproc-per-node 2 examples/gram_over_ranks.py\n"
