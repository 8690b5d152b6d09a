"""Transfers and the clock, on a GPU made of host memory: what is timed, checked and given back."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from matmill import cli
from matmill.cli import main
from matmill.errors import LaunchError
from matmill.ladders.memory.rungs import MEMORY
from matmill.ladders.runner import measured_transfers
from matmill.problem import Gemm
from matmill.runtime.clock import Clock, Competitor, StreamHandle
from support.ladder_gpu import FakeGPU
from support.ladder_runs import use


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    fake = FakeGPU()
    use(monkeypatch, fake)
    return fake


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_the_memory_ladder_times_every_phase(gpu: FakeGPU, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["ladder", "memory", "--m", "32", "--n", "48", "--k", "16"], capsys)
    assert code == cli.OK
    assert [row["rung"] for row in result["rows"]] == ["pageable", "pinned", "unified"]
    for row in result["rows"]:
        assert row["ok"] is True
        phases = row["phases"]
        assert list(phases) == ["copy in", "fill", "kernel", "copy out"]
        assert phases["copy in"]["bytes"] == 4 * (32 * 16 + 16 * 48)
        assert phases["copy out"]["bytes"] == 4 * 32 * 48
        assert phases["kernel"]["flops"] == 2 * 32 * 48 * 16
        assert 0 < sum(phase["seconds"] for phase in phases.values()) < 10 * row["seconds"]
    assert gpu.live == {}


@pytest.mark.parametrize("failing", ["cuMemAllocHost", "cuMemAlloc"])
def test_memory_is_given_back_where_there_is_not_enough(
    gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    call, left = gpu.call, 1

    def scarce(name: str, *args: object) -> object:
        nonlocal left
        if name == failing:
            if not left:
                raise LaunchError(argument="GPU 0", got="out of memory", wanted="success", fix="Take less.")
            left -= 1
        return call(name, *args)

    monkeypatch.setattr(gpu, "call", scarce)
    rungs = [rung for rung in MEMORY if rung.name == "pinned"]
    with pytest.raises(LaunchError, match="out of memory"):
        measured_transfers.measure_transfers(rungs, Gemm(m=32, n=32, k=32), None, seed=1)
    assert gpu.live == {}


def test_a_clock_without_room_for_its_buffer_makes_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake: Any = FakeGPU()
    called: list[str] = []

    def full(_nbytes: int) -> int:
        raise LaunchError(argument="GPU 0", got="out of memory", wanted="success", fix="Take less.")

    monkeypatch.setattr(fake, "allocate", full)
    monkeypatch.setattr(fake, "call", lambda name, *_: called.append(name))
    with pytest.raises(LaunchError):
        Clock(fake, 1024)
    assert called == []


def test_unified_memory_is_left_alone_where_too_little_is_free(
    gpu: FakeGPU, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.free_bytes = 4 * 3 * 32 * 32 + 1
    code, result = _json(["ladder", "memory", "--n", "32"], capsys)
    assert code == cli.OK
    row = result["rows"][2]
    assert row["rung"] == "unified"
    assert row["ok"] is None
    assert "managed memory" in row["note"]
    assert main(["ladder", "memory", "--n", "32"]) == cli.OK
    assert "not run" in capsys.readouterr().out


def test_a_copy_that_does_not_arrive_is_wrong(gpu: FakeGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    call = gpu.call

    def lossy(name: str, *args: object) -> object:
        return None if name == "cuMemcpyHtoD" else call(name, *args)

    monkeypatch.setattr(gpu, "call", lossy)
    rungs = [rung for rung in MEMORY if rung.name == "pinned"]
    outcome = measured_transfers.measure_transfers(rungs, Gemm(m=32, n=32, k=32), None, seed=1, rounds=1)
    assert outcome.rows[0].ok is False
    assert "not what the host had sent" in outcome.rows[0].note


def test_turns_are_interleaved_and_slow_competitors_get_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    fake: Any = FakeGPU()
    with Clock(fake, 1024) as clock:
        seconds = {"slow": 0.1, "fast": 0.01}

        def once(run: Callable[[StreamHandle], None]) -> float:
            run(clock.stream)
            return seconds[order[-1]]

        monkeypatch.setattr(clock, "once", once)
        monkeypatch.setattr(clock, "_settle", lambda *_: None)

        def enqueue(name: str) -> Callable[[StreamHandle], None]:
            return lambda _stream: order.append(name)

        result = clock.compare([Competitor(n, enqueue(n)) for n in seconds], seconds_each=0.5)
    assert [timing.rounds for timing in result] == [5, 40]
    assert [timing.median for timing in result] == [0.1, 0.01]
    slow = [i for i, name in enumerate(order[4:]) if name == "slow"]
    assert max(b - a for a, b in pairwise(slow)) < 14  # spread over the run, not bunched
    assert fake.live == {}
