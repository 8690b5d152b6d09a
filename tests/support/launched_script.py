"""A benchmark script that launches kernels for a profiler, run with the emulator as its GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import get
from matmill.emulator import Memory, run
from matmill.jit.compile import Binary
from matmill.launch import Launch, Pointer
from support.scripts import run_script

Array = NDArray[Any]


class Buffer:
    """Device memory in the emulator's address space."""

    def __init__(self, gpu: ScriptGPU, array: Array) -> None:
        self._gpu, self._array = gpu, array

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing."""

    def pointer(self, name: str) -> Pointer:
        """Return its pointer, under that name."""
        return self._gpu.memory.bind(name, self._array, access="rw")

    def fill_bytes(self, value: int) -> None:
        """Set every byte."""
        self._array.view(np.uint8)[...] = value

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return what it holds, damaged where the GPU is to be wrong."""
        result = self._array.view(dtype).reshape(shape).copy()
        if self._gpu.damage is not None:
            self._gpu.damage(result)
        return result


class ScriptGPU:
    """As much of a GPU as the scripts use; ``first`` names the matrix that is uploaded first for every kernel."""

    def __init__(self, first: str) -> None:
        self.arch = get("h200")
        self.memory = Memory()
        self.entries: set[str] = set()
        self.damage: Callable[[Array], None] | None = None
        self._first = first

    def upload(self, array: Array, name: str) -> Buffer:
        """Return a copy, in an address space of its kernel's own."""
        if name == self._first:
            self.memory = Memory()
        return Buffer(self, array.copy())

    def empty(self, nbytes: int) -> Buffer:
        """Return memory with rubbish."""
        return Buffer(self, np.full(nbytes, 0x5A, np.uint8))

    def launch(self, binary: Binary, launch: Launch) -> None:
        """Run it to its end."""
        self.entries.add(launch.entry)
        report = run(binary.ptx, launch, self.memory, races=False)
        assert report.ok, report.hazards

    def synchronize(self) -> None:
        """Wait for nothing: nothing is in flight."""


def launch_script(monkeypatch: pytest.MonkeyPatch, gpu: ScriptGPU, script: str, *arguments: object) -> int:
    """Return :func:`run_script` on that GPU."""
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: gpu)
    return run_script(monkeypatch, script, *arguments)
