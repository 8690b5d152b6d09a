"""Plants faults, one at a time, and says whether the tests that should see each do: no test goes before this is run.

    python tests/mutations.py [WORD ...]

The faults are those of support/faults.py. Each is planted in a copy of the tree, in which its tests run until the first
failure. With words, only the faults whose names have one of them. Exits with 1 where a fault is not found, or where its
text is not in the file once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from support.faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]


def planted(fault: Fault, tree: Path) -> str:
    """Plant a fault in a copy of the tree, run its tests, and say whether they find it."""
    file = tree / "src" / "matmill" / fault.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(fault.text) != 1:
        return f"its text stands {whole.count(fault.text)} times in the file"
    file.write_text(whole.replace(fault.text, fault.instead), encoding="utf-8")
    try:
        cache = f"--kernel-cache={ROOT / '.pytest_cache' / 'kernels'}"
        command = [sys.executable, "-m", "pytest", "-x", "-q", cache, *fault.tests.split()]
        command += ["-k", fault.words] * bool(fault.words)
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    finally:
        file.write_text(whole, encoding="utf-8")
    if "\nFAILED " in done.stdout:  # the exit code of an interrupted run says less
        return "found"
    return "not found" if done.returncode == 0 else f"pytest ended with {done.returncode}"


def main() -> None:
    """Plant the faults that the command line names, or all, and print a table."""
    wanted = [fault for fault in FAULTS if len(sys.argv) == 1 or any(word in fault.name for word in sys.argv[1:])]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".venv", ".*_cache", "build", "__pycache__"))
        for fault in wanted:
            begin = time.monotonic()
            verdict = planted(fault, tree)
            missed += verdict != "found"
            print(f"{verdict:12} {time.monotonic() - begin:5.0f} s  {fault.name}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} faults found")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
