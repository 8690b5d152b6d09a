"""What all tests share: which files are collected, and what the run compiles (see ``tests/support/compiled.py``)."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from matmill.jit import compile as compiling
from matmill.runtime import gpu
from support import compiled, examples, tiers

# Files that import a library which is optional and not installed.
_OF_TORCH = [
    "src/matmill/torch",
    *(f"benchmarks/lab/{name}.py" for name in ("programs", "program_checks", "program_runs")),
]
_OF_TORCH += ["tests/support/decided_gpu.py"]
collect_ignore = [] if find_spec("torch") else _OF_TORCH
collect_ignore += [] if find_spec("dask") else ["src/matmill/dask.py"]
collect_ignore += [] if find_spec("jax") else ["src/matmill/jax"]
_OF_LANGUAGES = {
    "numba": (
        "src/matmill/testing/languages/numba_kernels.py",
        "src/matmill/testing/languages/numba_host.py",
        "tests/languages/numba_programs.py",
    ),
    "triton": ("src/matmill/testing/languages/triton_kernels.py", "tests/languages/triton_programs.py"),
}
collect_ignore += [file for package, files in _OF_LANGUAGES.items() if not find_spec(package) for file in files]
# Files that import torch.distributed.tensor or Inductor, which takes seconds, and have no doctests: ranks of tests, or
# tests that compile, import them.
collect_ignore += [f"src/matmill/torch/{name}.py" for name in ("dtensor", "inductor", "fusion")]
collect_ignore += ["benchmarks/lab/ranks.py"]
_OF_RANKS = ("ranks", "run_ranks", "group_cases", "dtensor_cases", "fsdp_cases")
collect_ignore += [f"tests/support/{name}.py" for name in _OF_RANKS]

_GOLDEN = pytest.StashKey[compiled.Golden]()
_FOLDER = pytest.StashKey[Path]()
#: Bytecode of the run's processes, where the environment forbids it beside the sources.
_BYTECODE = Path(__file__).parent / ".pytest_cache" / "bytecode"
#: Kernels kept between runs take no more than this; those that were not needed for longest go first.
_MOST_KEPT = 1 << 30
#: Tests after which free memory is given back, those that have finished, and the function of glibc.
_TRIMMED_AFTER, _finished = 32, [0]
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None

examples.register()  # as this file is imported: before tests are, and before --hypothesis-profile is obeyed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this tree."""
    parser.addoption("--golden", action="store_true", help="write tests/golden/resources.json anew after the run")
    parser.addoption("--exhaustive", action="store_true", help="run the rows and tests that make nightly has besides")
    parser.addoption(
        "--kernel-cache",
        metavar="FOLDER",
        type=Path,
        default=Path(__file__).parent / ".pytest_cache" / "kernels",
        help="keep compiled kernels there between runs (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a kernel cache apart from the user's, which its worker processes and later runs share."""
    worker = hasattr(config, "workerinput")
    kernels = config.getoption("--kernel-cache").resolve()
    if worker:
        folder = Path(os.environ["MATMILL_TEST_RUN"])
    else:
        folder = config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="matmill-tests-"))
        os.environ["MATMILL_TEST_RUN"] = str(folder)
        compiled.prune(kernels, _MOST_KEPT)
        if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
            # Hundreds of modules, with torch thousands, are compiled once, not by every worker and every process of a
            # test: 120 s of CPU time for the tests that start most processes became 71 s (2026-11-28).
            os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_BYTECODE))
    golden = compiled.start(folder, kernels, machine_code=gpu.unavailable() is None)
    if not worker:
        # Before workers start: each has one core, on which threads of BLAS and OpenMP would wait for each other.
        os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        config.stash[_GOLDEN] = golden


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave rows of slow tests to the nightly run."""
    if not config.getoption("--exhaustive"):
        left = list(tiers.of_the_night(items))
        config.hook.pytest_deselected(items=left)
        later = set(left)
        items[:] = [item for item in items if item not in later]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: the trees of syntax are many objects. 21 s became 15 s (2026-11-27)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking over all modules and tests again and again.

    Parsing and translating PTX makes many objects: with a heap of this size 0.36 s of it became 0.20 s (2026-11-23).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def pytest_runtest_logfinish() -> None:
    """Give memory back that glibc keeps: a worker had grown to 14 GB, nine tenths of it free (2026-11-28)."""
    _finished[0] += 1
    if _finished[0] % _TRIMMED_AFTER == 0 and _malloc_trim is not None:
        _malloc_trim(0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the golden file, or say what it lacks."""
    golden = config.stash[_GOLDEN]
    if config.getoption("--golden"):
        terminalreporter.write_line(f"{compiled.FILE.name}: {golden.write()} translation units")
    elif not config.getoption("--exhaustive") and (missing := golden.missing()):  # whose other rows it does not have
        terminalreporter.write_line(f"{compiled.FILE.name} lacks {missing} translation units: make golden adds them")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove what the processes of the run have noted."""
    folder = config.stash.get(_FOLDER, None)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(_BYTECODE / tempfile.gettempdir().lstrip("/"), ignore_errors=True)  # of programs that tests write


@pytest.fixture
def machine_code() -> Iterator[None]:
    """Provide binaries with machine code, for the few tests that look at it."""
    with pytest.MonkeyPatch.context() as patch:  # a test may undo what its own has changed
        patch.setattr(compiling, "_remembered", compiled.whole_unit)
        compiled.whole_unit.cache_clear()
        yield
