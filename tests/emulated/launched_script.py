"""A benchmark script that launches kernels for sanitizers, run with the emulator as its GPU."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import get
from matmill.emulator import Memory, run
from matmill.jit.compile import Binary
from matmill.launch import Launch, Pointer

Array = NDArray[Any]

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Buffer:
    """Device memory in the emulator's address space."""

    def __init__(self, gpu: ScriptGPU, array: Array) -> None:
        self._gpu, self._array = gpu, array

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to free."""

    def pointer(self, name: str) -> Pointer:
        """Its pointer, under that name."""
        return self._gpu.memory.bind(name, self._array, access="rw")

    def fill_bytes(self, value: int) -> None:
        """Sets every byte."""
        self._array.view(np.uint8)[...] = value

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """What it holds, damaged where the GPU is to be wrong."""
        found = self._array.view(dtype).reshape(shape).copy()
        if self._gpu.damage is not None:
            self._gpu.damage(found)
        return found


class ScriptGPU:
    """As much of a GPU as the scripts use; ``first`` names the matrix that is uploaded first for every kernel."""

    def __init__(self, first: str) -> None:
        self.arch = get("h200")
        self.memory = Memory()
        self.entries: set[str] = set()
        self.damage: Callable[[Array], None] | None = None
        self._first = first

    def upload(self, array: Array, name: str) -> Buffer:
        """A copy, in an address space of its kernel's own."""
        if name == self._first:
            self.memory = Memory()
        return Buffer(self, array.copy())

    def zeros(self, nbytes: int) -> Buffer:
        """Memory of zeros."""
        return Buffer(self, np.zeros(nbytes, np.uint8))

    def empty(self, nbytes: int) -> Buffer:
        """Memory with rubbish."""
        return Buffer(self, np.full(nbytes, 0x5A, np.uint8))

    def launch(self, binary: Binary, launch: Launch) -> None:
        """Runs it to its end."""
        self.entries.add(launch.entry)
        report = run(binary.ptx, launch, self.memory, races=False)
        assert report.ok, report.hazards

    def synchronize(self) -> None:
        """Nothing is in flight."""


def run_script(monkeypatch: pytest.MonkeyPatch, gpu: ScriptGPU, script: str, *arguments: object) -> int:
    """The code with which that script of benchmarks/ ends on that GPU, where no other process compiles."""
    path = str(BENCHMARKS / script)
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: gpu)
    monkeypatch.setattr(sys, "argv", [path, "--workers", "0", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(path, run_name="__main__")
    return int(ended.value.code or 0)
