"""A kernel that goes astray poisons its process, so it gets one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import matmill

_CODE = """
from matmill.jit.compile import compile_source
from matmill.errors import LaunchError
from matmill.launch import Launch, Pointer
from matmill.runtime.gpu import GPU
from matmill.jit.source import Source

gpu = GPU.get(0)
text = 'extern "C" __global__ void stray(float* x) { x[threadIdx.x] = 1.0f; }'
memory = [gpu.empty(256) for _ in range(3)]
binary = compile_source(Source("tests.stray", "stray", text), gpu.arch.target)
gpu.launch(binary, Launch("tests.stray", "stray", (2, 1, 1), (32, 1, 1), (Pointer("x", 64),)))
try:
    gpu.synchronize()
except LaunchError as error:
    print("caught", error)
"""


def test_a_fault_is_reported_with_the_launch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(matmill.__file__).parent.parent), "MATMILL_CACHE": "off"},
    )
    assert done.stdout.startswith("caught"), done.stderr
    assert "tests.stray<<<grid (2, 1, 1), block (32, 1, 1)" in done.stdout
    assert "Restart the process" in done.stdout
    assert done.stderr == ""  # memory that is let go afterwards
