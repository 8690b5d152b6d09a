"""Python code in a separate process, for calls that may hang, crash or permanently change their caller."""

from __future__ import annotations

import json
import subprocess
import sys

# The child gets this process's module path, so that it imports the same matmill.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "


def run_in_child(
    code: str, *arguments: str, given: str | None = None, patience: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python ``code`` with ``arguments`` in ``sys.argv[2:]`` and ``given`` as its standard input.

    Raises ``subprocess.TimeoutExpired`` after ``patience`` seconds.
    """
    command = _command(code, *arguments)
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=patience, check=False)  # noqa: S603 — ourselves


def start_child(code: str) -> subprocess.Popen[bytes]:
    """Start Python ``code`` with unbuffered pipes for its input and output, apart from the terminal's signals.

    Pipes without buffers may be closed while another thread uses them. Raises ``OSError``.
    """
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(_command(code), bufsize=0, stdin=pipe, stdout=pipe, stderr=null, process_group=0)  # noqa: S603 — ourselves


def _command(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", _START + code, json.dumps(sys.path), *arguments]


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of the process's standard error."""
    return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
