"""What sanitizers are given to look at, launched in the emulator: all right, and a wrong result ends the run with 1."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.arch import get
from matmill.compile import Binary
from matmill.emulator import Memory, run
from matmill.execute import Launch, Pointer
from matmill.ladder.transpose_add import TRANSPOSE_ADD

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transpose_add_launches.py"


class Buffer:
    """Device memory in the emulator's address space."""

    def __init__(self, gpu: EmulatedGPU, array: NDArray[Any]) -> None:
        self._gpu, self._array = gpu, array

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to free."""

    def pointer(self, name: str) -> Pointer:
        """Where it lies, under that name."""
        return self._gpu.memory.bind(name, self._array, access="rw")

    def fill_bytes(self, value: int) -> None:
        """Sets every byte."""
        self._array.view(np.uint8)[...] = value

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """What it holds."""
        found = self._array.view(dtype).reshape(shape).copy()
        if self._gpu.wrong:
            found[-1:].view(np.uint8)[0] ^= 1  # one bit of the last element
        return found


class EmulatedGPU:
    """As much of a GPU as the script uses."""

    def __init__(self) -> None:
        self.arch = get("h200")
        self.memory = Memory()
        self.wrong = False
        self.entries: set[str] = set()

    def upload(self, array: NDArray[Any], name: str) -> Buffer:
        """A copy; X is the first of a sum's matrices."""
        if name == "X":
            self.memory = Memory()
        return Buffer(self, array.copy())

    def empty(self, nbytes: int) -> Buffer:
        """Memory with rubbish."""
        return Buffer(self, np.full(nbytes, 0x5A, np.uint8))

    def launch(self, binary: Binary, launch: Launch) -> None:
        """Runs it to its end."""
        self.entries.add(launch.entry)
        report = run(binary.ptx, launch, self.memory, races=False)
        assert report.ok, report.hazards

    def synchronize(self) -> None:
        """Nothing is under way."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> EmulatedGPU:
    fake = EmulatedGPU()
    monkeypatch.setattr("matmill.gpu.GPU.get", lambda _index=0: fake)
    return fake


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--workers", "0", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return int(ended.value.code or 0)


def test_some_of_each_are_launched_and_right(
    gpu: EmulatedGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, "--every", 7) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} sums, 0 wrong"
    assert len(lines) > 30
    assert {rung.kernel.entry for rung in TRANSPOSE_ADD} <= gpu.entries
    assert {"transpose_add", "transpose_small"} <= gpu.entries
    assert {line.split()[3] for line in lines[:-1]} == {"float32", "float64", "float16", "bfloat16", "int8", "int32"}


def test_a_wrong_result_is_said_and_ends_with_1(
    gpu: EmulatedGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.wrong = True
    assert _run(monkeypatch, "--every", 275) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 sums, 2 wrong"
    assert lines[0].endswith("WRONG: 1 elements")
