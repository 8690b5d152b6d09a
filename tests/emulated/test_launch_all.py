"""What sanitizers are given: rungs and production kernels of products, each checked."""

from __future__ import annotations

import pytest

from matmill.ladder.hgemm import HGEMM
from matmill.ladder.sgemm import SGEMM
from support.launched_script import ScriptGPU, run_script


@pytest.mark.parametrize("damaged", [False, True])
def test_some_of_each_are_launched_and_checked(
    damaged: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = ScriptGPU("A")
    if damaged:
        gpu.damage = lambda found: found.fill(7)
    monkeypatch.setattr("matmill.ladder.sgemm.SGEMM", SGEMM[:1])
    monkeypatch.setattr("matmill.ladder.hgemm.HGEMM", HGEMM[-1:])
    assert run_script(monkeypatch, gpu, "launch_all.py", "--every", "131", "--workers", "0") == int(damaged)
    *lines, last = capsys.readouterr().out.splitlines()
    count = len(lines)
    assert last == f"{count} launches, {count * damaged} wrong"
    assert all(line.endswith("WRONG") == damaged for line in lines)
    assert gpu.entries >= {SGEMM[0].kernel.entry, HGEMM[-1].kernel.entry, "gemm", "hgemm", "join"}
