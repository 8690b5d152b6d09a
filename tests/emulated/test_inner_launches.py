"""What sanitizers are given to look at, launched in the emulator: all right, and a wrong result ends the run with 1."""

from __future__ import annotations

from typing import Any

import pytest
from numpy.typing import NDArray

from support.launched_script import ScriptGPU, run_script

SCRIPT = "inner_launches.py"


@pytest.fixture
def gpu() -> ScriptGPU:
    return ScriptGPU("E")


def _last_element_off(product: NDArray[Any]) -> None:
    product[-1, -1] += 1 + abs(product[-1, -1])


def test_some_of_each_are_launched_and_right(
    gpu: ScriptGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, gpu, SCRIPT, "--every", 53) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} kernels, 0 wrong"
    assert len(lines) > 5
    assert {"inner", "finish"} < gpu.entries
    assert any(line.startswith("inner staged blocks") for line in lines)
    assert any(line.startswith("inner direct block ") for line in lines)


def test_a_wrong_result_is_said_and_ends_with_1(
    gpu: ScriptGPU, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.damage = _last_element_off
    assert run_script(monkeypatch, gpu, SCRIPT, "--every", 200) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 kernels, 3 wrong"
    assert lines[0].endswith("WRONG")
