"""Code that another Python process runs: what may hang or crash its caller, or change it for good."""

from __future__ import annotations

import json
import subprocess
import sys

# The child gets this process's module path, so that it finds the same matmill however this one was started.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "


def run_in_child(
    code: str, *arguments: str, given: str | None = None, patience: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python ``code``, which finds ``arguments`` from ``sys.argv[2]`` on and ``given`` on its standard input.

    Raises ``subprocess.TimeoutExpired`` where it takes longer than ``patience`` seconds.
    """
    command = [sys.executable, "-c", _START + code, json.dumps(sys.path), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=patience, check=False)  # noqa: S603 — ourselves


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line that it wrote to its standard error."""
    return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
