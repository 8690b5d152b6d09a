"""Tuning without a GPU: launches are emulated, and a clock has times by configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matmill
from matmill import plan as plans
from matmill import tuning
from matmill.choose import choose, forget
from matmill.cli import main
from matmill.dispatch import measured, plan_cache
from matmill.errors import ArgumentError, CompileError
from matmill.runtime.clock import Competitor, StreamHandle, Timing
from matmill.runtime.gpu import GPU, no_gpu
from support.compiled import in_ptx_alone
from support.fake_gpu import FakeGPU

pytestmark = pytest.mark.usefixtures("device")

A = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
B = np.random.default_rng(2).standard_normal((32, 48)).astype(np.float32)


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(measured, "default_path", lambda *_: tmp_path / "rows.json")
    monkeypatch.setattr(measured, "_decisions", {})
    forget()
    yield
    forget()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[float]], None]:
    """Provide a function that sets the seconds of the competitors, in their order."""

    def given(seconds: Sequence[float]) -> None:
        class Fixed:
            def __init__(self, _gpu: object, _flush: int) -> None:
                pass

            def __enter__(self) -> Fixed:  # noqa: PYI034 — nobody derives from it
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def compare(self, competitors: Sequence[Competitor], **_: Any) -> list[Timing]:
                for competitor in competitors:
                    competitor.run(StreamHandle(5))
                return [Timing(s, s, s, 3) for s in seconds[: len(competitors)]]

        monkeypatch.setattr(tuning, "Clock", Fixed)

    return given


def test_the_winner_is_preferred_kept_and_reloaded(
    clock: Any, device: FakeGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = matmill.matmul(A, B)
    clock([35e-6, 31.2e-6, 40e-6])
    tuned = matmill.tune(A, B, candidates=3)
    assert (tuned.winner, tuned.kept, len(tuned.rows)) == (1, True, 3)
    assert tuned.seconds == pytest.approx(31.2e-6)
    assert str(tuned).startswith("64x48x32 float32: ")
    assert "the model's first took 35.0 us" in str(tuned)
    assert not plan_cache.calls
    chosen = choose(tuned.problem, device.arch)
    assert "measured on this GPU: 31.2 us" in chosen.reasons[0]
    np.testing.assert_allclose(matmill.matmul(A, B), before, rtol=1e-5, atol=1e-5)
    # Another process: nothing in memory, the file alone.
    forget()
    monkeypatch.setattr(measured, "_decisions", {})
    plan_cache.forget_plans()
    assert choose(tuned.problem, device.arch).kernel != chosen.kernel
    matmill.matmul(A, B)
    assert choose(tuned.problem, device.arch).kernel == chosen.kernel


def test_a_tie_stays_with_the_model(clock: Any, device: FakeGPU, tmp_path: Path) -> None:
    clock([10e-6, 9.8e-6])
    tuned = matmill.tune(A, B, candidates=2)
    assert (tuned.winner, tuned.kept) == (0, False)
    assert "the model's first stays" in str(tuned)
    assert "measured" not in choose(tuned.problem, device.arch).reasons[-1]
    assert not (tmp_path / "rows.json").exists()


def test_the_last_time_counts(clock: Any, device: FakeGPU, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, winner in (([35e-6, 31e-6], 1), ([31e-6, 32e-6], 0), ([31e-6, 20e-6], 1)):
        clock(seconds)
        tuned = matmill.tune(A, B, candidates=2)
        assert tuned.winner == winner
        measured_one = "measured on this GPU" in choose(tuned.problem, device.arch).reasons[0]
        assert measured_one is bool(winner)
    assert main(["tune", "--show"]) == 0
    assert f"1 kept in {tmp_path}" in capsys.readouterr().out
    assert main(["tune", "--clear"]) == 0
    assert capsys.readouterr().out == "1 forgotten.\n"
    assert main(["tune", "--show"]) == 0
    assert capsys.readouterr().out.startswith("0 kept in ")


def test_a_configuration_that_does_not_compile_is_skipped(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise CompileError(argument="kernel", got="an error", wanted="none", fix="None.")
        return in_ptx_alone(*arguments)

    monkeypatch.setattr(plans, "compile_source", failing)
    clock([20e-6])
    tuned = matmill.tune(A, B, candidates=2)
    assert tuned.rows[0].measured is None
    assert "an error" in tuned.rows[0].why
    assert (tuned.winner, tuned.kept) == (1, True)
    assert "the model's first did not run" in str(tuned)


def test_out_is_not_written(clock: Any) -> None:
    clock([10e-6, 9.8e-6])
    out = np.full((64, 48), 7, np.float32)
    matmill.tune(A, B, out=out, candidates=2)
    assert (out == 7).all()


def test_empty_products_are_refused(clock: Any) -> None:
    clock([])
    with pytest.raises(ArgumentError, match="a product of 0 stages"):
        matmill.tune(A[:0], B)


def test_the_command_prints_the_table_or_json(clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    clock([35e-6, 31.2e-6])
    assert main(["tune", "64", "48", "32", "--candidates", "2", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["winner"], record["kept"], len(record["rows"])) == (1, True, 2)
    assert main(["tune", "64", "48"]) == 2
    assert "M N K: got 2 sizes" in capsys.readouterr().err
    assert main(["tune", "64", "48", "32", "--candidates", "2", "--layout", "tn"]) == 0
    assert "the model's first took 35.0 us" in capsys.readouterr().out
    assert main(["tune", "64", "48", "32", "--precision", "half"]) == 2
    assert "precision: got 'half'" in capsys.readouterr().err


def test_precisions_are_tuned_apart(clock: Any, device: FakeGPU, capsys: pytest.CaptureFixture[str]) -> None:
    clock([35e-6, 31.2e-6])
    tuned = matmill.tune(A, B, precision="float32_tensor", candidates=2)
    assert tuned.problem.precision == "float32_tensor"
    for precision, known in (("float32_tensor", True), ("default", False), ("tf32x3", False)):
        reasons = choose(replace(tuned.problem, precision=precision), device.arch).reasons
        assert any("measured" in reason for reason in reasons) is known
    assert main(["tune", "64", "48", "32", "--precision", "fp16x3", "--candidates", "2"]) == 0
    assert "the model's first took 35.0 us" in capsys.readouterr().out


def test_the_command_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def without(_index: int = 0) -> Any:
        raise no_gpu("GPU", "device 0, but there is none")

    monkeypatch.setattr(GPU, "get", staticmethod(without))
    assert main(["tune", "64", "48", "32"]) == 3
    assert "a usable NVIDIA GPU" in capsys.readouterr().err
