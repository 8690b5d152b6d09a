"""The checks of ``matmill doctor`` in a child process: a driver or compiler in trouble may hang or crash its caller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from matmill.errors import MatmillError
from matmill.jit.child import last_words, run_in_child

_PATIENCE = 60.0
_CHILD = "from matmill.cli import doctor_child as d; d.answer()"


def ask(question: str, patience: float = _PATIENCE) -> dict[str, Any]:
    """Return a child process's answer to ``gpu`` or ``compiler``, or ``{"error": …}`` after ``patience`` seconds."""
    try:
        done = run_in_child(_CHILD, question, patience=patience)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {patience:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"the check ended with code {done.returncode}: {last_words(done)}"}
    return answer


def answer() -> None:
    """Answer the question in ``sys.argv[2]`` with one line of JSON: the main function of the child process."""
    try:
        result = QUESTIONS[sys.argv[2]]()
    except (MatmillError, ImportError, OSError, RuntimeError) as error:
        result = {"error": str(error)}
    sys.stdout.write(json.dumps(result) + "\n")


def _compiler() -> dict[str, Any]:
    """Report NVRTC's version and targets, and the seconds that it takes for one small kernel without the cache."""
    os.environ["MATMILL_CACHE"] = "off"
    from matmill.jit.compile import compile_source  # noqa: PLC0415 — NVRTC may be broken
    from matmill.jit.nvrtc import compiler_version, targets  # noqa: PLC0415 — the same
    from matmill.jit.source import Source  # noqa: PLC0415 — see above

    version = ".".join(str(part) for part in compiler_version())
    text = 'extern "C" __global__ void trial(float* x) { x[threadIdx.x] *= 2.0f; }\n'
    start = time.perf_counter()
    binary = compile_source(Source(kernel="trial", entry="trial", text=text), "sm_90a")
    seconds = time.perf_counter() - start
    return {"version": version, "targets": list(targets()), "trial_seconds": seconds, "trial_bytes": len(binary.cubin)}


def _gpu() -> dict[str, Any]:
    """Return the first GPU's facts, or why there is none."""
    from matmill.runtime import gpu  # noqa: PLC0415 — the driver's bindings may be broken

    reason = gpu.unavailable()
    if reason is not None:
        return {"available": False, "reason": reason}
    arch = gpu.GPU.get(0).arch
    return {"available": True, "title": arch.title, "arch": arch.name, "target": arch.target, "sms": arch.sms}


QUESTIONS = {"compiler": _compiler, "gpu": _gpu}
