"""What sanitizers are given to look at, launched in the emulator: all right, and a wrong result ends the run with 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.ladder.transpose_add import TRANSPOSE_ADD
from support.launched_script import ScriptGPU, run_script

SCRIPT = "transpose_add_launches.py"


@pytest.fixture
def gpu() -> ScriptGPU:
    return ScriptGPU("X")


def _one_bit_off(stored: NDArray[Any]) -> None:
    stored[-1:].view(np.uint8)[0] ^= 1  # of the last element


def test_some_of_each_are_launched_and_right(
    gpu: ScriptGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, gpu, SCRIPT, "--every", 9) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} sums, 0 wrong"
    assert len(lines) > 30
    assert {rung.kernel.entry for rung in TRANSPOSE_ADD} <= gpu.entries
    assert {"transpose_add", "transpose_small", "transpose_slim"} <= gpu.entries
    assert {line.split()[3] for line in lines[:-1]} == {"float32", "float64", "float16", "bfloat16", "int8", "int32"}


def test_a_wrong_result_is_said_and_ends_with_1(
    gpu: ScriptGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.damage = _one_bit_off
    assert run_script(monkeypatch, gpu, SCRIPT, "--every", 275) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 sums, 2 wrong"
    assert lines[0].endswith("WRONG: 1 elements")
