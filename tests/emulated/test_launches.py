"""What sanitizers are given to look at, launched in the emulator: all right, and a wrong result ends the run with 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lab.gemm import launches as gemm
from matmill.ladders.hgemm.rungs import HGEMM
from matmill.ladders.sgemm.rungs import SGEMM
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from support.launched_script import ScriptGPU, launch_script

SCRIPT = "launches.py"


@pytest.mark.parametrize("damaged", [False, True])
def test_some_gemms_of_each_kind_are_launched_and_checked(
    damaged: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("A")
    if damaged:
        gpu.damage = lambda found: found.fill(7)
    monkeypatch.setattr(gemm, "SGEMM", SGEMM[:1])
    monkeypatch.setattr(gemm, "HGEMM_LADDER", HGEMM[-1:])
    assert launch_script(monkeypatch, gpu, SCRIPT, "gemm", "--every", 449) == int(damaged)
    *lines, last = capsys.readouterr().out.splitlines()
    count = len(lines)
    assert last == f"{count} launches, {count * damaged} wrong"
    assert all(line.endswith("WRONG") == damaged for line in lines)
    assert gpu.entries >= {
        SGEMM[0].kernel.entry,
        HGEMM[-1].kernel.entry,
        "gemm",
        "hgemm",
        "wgmma_gemm",
        "short_k",
        "splitk_reduce",
    }


def test_some_inner_products_of_each_kind_are_launched_and_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("A")
    assert launch_script(monkeypatch, gpu, SCRIPT, "inner", "--every", 53) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} kernels, 0 wrong"
    assert len(lines) > 5
    assert {"inner", "splitk_reduce"} < gpu.entries
    assert any(line.startswith("inner staged blocks") for line in lines)
    assert any(line.startswith("inner direct block ") for line in lines)


def test_some_transpose_adds_of_each_kind_are_launched_and_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("X")
    assert launch_script(monkeypatch, gpu, SCRIPT, "transpose_add", "--every", 9) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(lines) - 1} cases, 0 wrong"
    assert len(lines) > 30
    assert {rung.kernel.entry for rung in TRANSPOSE_ADD} <= gpu.entries
    assert {"transpose_add", "transpose_small", "transpose_slim"} <= gpu.entries
    assert {line.split()[3] for line in lines[:-1]} == {"float32", "float64", "float16", "bfloat16", "int8", "int32"}


def _last_element_off(product: NDArray[Any]) -> None:
    product[-1, -1] += 1 + abs(product[-1, -1])


def _one_bit_off(stored: NDArray[Any]) -> None:
    stored[-1:].view(np.uint8)[0] ^= 1  # of the last element


def test_a_wrong_inner_product_is_said_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("A")
    gpu.damage = _last_element_off
    assert launch_script(monkeypatch, gpu, SCRIPT, "inner", "--every", 200) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "3 kernels, 3 wrong"
    assert lines[0].endswith("  WRONG")


def test_a_wrong_transpose_add_is_said_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("X")
    gpu.damage = _one_bit_off
    assert launch_script(monkeypatch, gpu, SCRIPT, "transpose_add", "--every", 275) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "2 cases, 2 wrong"
    assert lines[0].endswith("  1 elements differ  WRONG")
