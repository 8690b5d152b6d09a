"""What tests of ``matmill ladder`` share: fake GPUs in place of real ones, libraries with given results, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from numpy.typing import NDArray

from matmill.cli import main
from matmill.ladders.registry import LADDERS
from matmill.runtime.clock import Clock, StreamHandle
from support.compiled import headings_alone


def change(monkeypatch: pytest.MonkeyPatch, ladder: str, **fields: Any) -> None:
    """Change fields of a ladder's record for one test."""
    monkeypatch.setitem(LADDERS, ladder, replace(LADDERS[ladder], **fields))


def use(monkeypatch: pytest.MonkeyPatch, gpu: object) -> None:
    """Put ``gpu``, which runs nothing, in the place of the GPU present."""
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: None)
    monkeypatch.setattr("matmill.jit.compile._remembered", headings_alone)
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: gpu)
    # Settling takes half a second by the wall clock, which a fake GPU has no use for.
    monkeypatch.setattr(Clock, "_settle", lambda *_: None)


class FakePeer:
    """A library whose result is given beforehand."""

    version = "fake 1"

    def __init__(self, name: str, result: NDArray[Any], *, acc16: bool = False) -> None:
        self.name, self.acc16 = name, acc16
        self._result = result
        self.runs = 0

    def run(self, stream: StreamHandle) -> None:
        """Count, and take no time."""
        assert stream.address
        self.runs += 1

    def result(self) -> NDArray[Any]:
        """Return the result."""
        return self._result


def refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Return the exit code of ``matmill ladder`` on a machine without a GPU, and what it says.

    It runs in the emulator unless the arguments say where.
    """
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "there is none")
    on = [] if "--on" in arguments else ["--on", "emulator"]
    code = main(["ladder", *arguments, *on])
    return code, capsys.readouterr().err
