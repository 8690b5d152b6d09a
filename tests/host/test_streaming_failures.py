"""Every way for streaming to fail: the error is the caller's, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from host.interrupts import interruptible
from matmill.dtypes import F32
from matmill.errors import LaunchError
from matmill.streaming import BUFFERS, sources
from support.lazy_device import CLEANUP, LazyDevice, readers
from support.streaming_trial import Array, numbers, plan_for, streamed


class Refused(Exception):  # noqa: N818 — any exception at all
    """What a test raises."""


FAILURES = [KeyboardInterrupt(), LaunchError(argument="GPU 0", got="memory", wanted="less", fix="Wait."), Refused()]


def _trial() -> tuple[Array, Array, dict[str, Any]]:
    """Return a product of several chunks, with C."""
    return (numbers((3, 300), F32), numbers((300, 2), F32, 1), {"c": numbers((3, 2), F32, 2), "beta": 1.0})


def _steps_that_may_fail() -> list[int]:
    e, f, options = _trial()
    device = LazyDevice()
    streamed(e, f, device, budget=2500, **options)
    assert plan_for(e, f, 2500).count > BUFFERS + 2
    return [number for number, name in enumerate(device.calls) if name not in CLEANUP]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("sticky", [False, True])
def test_a_failure_of_any_step_is_raised_and_all_is_given_back(failure: BaseException, sticky: bool) -> None:
    e, f, options = _trial()
    for number in _steps_that_may_fail():
        device = LazyDevice(number, fail_at=number, failure=failure, sticky=sticky)
        with pytest.raises(type(failure)) as raised:
            streamed(e, f, device, budget=2500, **options)
        assert raised.value is failure
        assert not readers()
        assert sticky or device.rests(), device.calls[number]


@pytest.mark.parametrize("number", range(3))
def test_a_reader_that_fails_stops_the_product(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    e, f, _ = _trial()
    copy, lock, calls = sources._copy, threading.Lock(), iter(range(10**6))

    def fails(target: Array, part: Array) -> None:
        with lock:
            now = next(calls)
        if now == 4 * number:
            raise Refused
        copy(target, part)

    monkeypatch.setattr(sources, "_copy", fails)
    device = LazyDevice()
    with pytest.raises(Refused):
        streamed(e, f, device, budget=2500)
    assert device.rests()


@pytest.mark.parametrize("at", [0, 2])
def test_what_progress_raises_stops_the_product(at: int) -> None:
    e, f, _ = _trial()
    device = LazyDevice()
    told: list[int] = []

    def progress(done: int, _total: int) -> None:
        told.append(done)
        if len(told) > at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        streamed(e, f, device, budget=2500, progress=progress)
    assert device.rests()


def test_an_interrupt_while_threads_are_joined_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    e, f, _ = _trial()
    copy, started, release = sources._copy, threading.Event(), threading.Event()

    def slow(target: Array, part: Array) -> None:
        started.set()
        release.wait(30)
        copy(target, part)

    def interrupt() -> None:
        started.wait(30)
        for _ in range(3):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        release.set()

    monkeypatch.setattr(sources, "_copy", slow)
    device = LazyDevice()
    other = threading.Thread(target=interrupt)
    with interruptible():
        other.start()
        with pytest.raises(KeyboardInterrupt):
            streamed(e, f, device, budget=2500)
        other.join()
    assert device.rests()
