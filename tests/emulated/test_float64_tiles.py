"""benchmarks/float64_tiles.py on a GPU made of the emulator: all is checked, recorded, and ended by a wrong result."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest

import float64_tiles
from lab.gemm import measure
from matmill.bench.timing.clock import Competitor, StreamHandle, Timing
from matmill.launch import Pointer
from matmill.runtime.gpu import GPU
from support.fake_gpu import Buffer, FakeGPU

SCRATCH = 2**16
#: Without torch the script times our configurations alone.
TORCH = find_spec("torch") is not None


class Room(Buffer):
    """Emulated memory with the methods of an allocation that the script uses."""

    def pointer(self, name: str) -> Pointer:
        """Say where it is."""
        return Pointer(name, self.address)

    def fill_bytes(self, value: int) -> None:
        """Set every byte."""
        self.data[...] = value

    def download(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Return what it begins with."""
        return self.data[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape).copy()


class EmulatedGPU(FakeGPU):
    """A GPU whose memory is of that kind."""

    def empty(self, nbytes: int) -> Room:
        """Return poisoned memory."""
        return Room(self.memory, np.full(nbytes, 0xFF, np.uint8))

    def upload(self, array: Any, name: str) -> Room:
        """Return a packed copy."""
        return Room(self.memory, super().upload(array, name).data)


class CountingClock:
    """Times nothing: the first competitor takes 1 us, the second 2, and so on."""

    def __init__(self, _gpu: object, _flush_bytes: int) -> None:
        self.stream = StreamHandle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Free nothing."""

    def compare(self, competitors: Sequence[Competitor], **_options: float) -> list[Timing]:
        """Return one timing for each."""
        return [Timing((i + 1) * 1e-6, 0.0, 0.0, 1) for i in range(len(competitors))]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Provide the script on small products; its record's path."""
    shapes = (float64_tiles.Shape(34, 36, 40), float64_tiles.Shape(9, 11, 13, "tt"))
    monkeypatch.setattr(float64_tiles, "SHAPES", shapes)
    monkeypatch.setattr(float64_tiles, "EXTRA", float64_tiles.EXTRA[-1:])
    monkeypatch.setattr(float64_tiles, "_LARGE", 32)
    monkeypatch.setattr(float64_tiles, "MOST_SCRATCH", SCRATCH)
    monkeypatch.setattr(float64_tiles, "Clock", CountingClock)
    monkeypatch.setattr(float64_tiles, "describe", lambda **_options: {})
    monkeypatch.setattr(measure, "MOST_SCRATCH", SCRATCH)
    monkeypatch.setattr(measure, "torch_product", lambda *_: SimpleNamespace(run=None))
    gpu = EmulatedGPU()
    monkeypatch.setattr(GPU, "get", lambda _index=0: gpu)
    found = tmp_path / "tiles.json"
    monkeypatch.setattr(sys, "argv", ["float64_tiles.py", "--out", str(found), "--workers", "0"])
    return found


def test_every_configuration_is_checked_and_recorded(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    float64_tiles.main()
    rows = json.loads(script.read_text(encoding="utf-8"))["rows"]
    assert [(row["m"], row["n"], row["k"], row["layouts"]) for row in rows] == [
        (34, 36, 40, "nn"), (9, 11, 13, "tt"),
    ]  # fmt: skip
    assert [len(row["extra"]) for row in rows] == [1, 0]
    for row in rows:
        own = [name for name in row["seconds"] if name != "torch.mm"]
        assert {*row["extra"], row["chosen"]} <= set(own)
        assert any("MMA_K" in name for name in own)
        assert any("SLICES" in name for name in own)
        assert row["seconds"]["torch.mm"] == (pytest.approx((len(own) + 1) * 1e-6) if TORCH else None)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(rows)
    assert all("best" in line and ("torch.mm" in line) == TORCH for line in printed[1:])


@pytest.mark.usefixtures("script")
def test_a_wrong_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Room.download
    monkeypatch.setattr(Room, "download", lambda *asked: whole(*asked) * (1 + 1e-9))
    with pytest.raises(SystemExit, match=r"error over the allowed one \d"):
        float64_tiles.main()


def test_a_run_ends_in_time_and_leaves_what_it_has(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--seconds", "0"])
    float64_tiles.main()
    assert "was left out after 0 s" in capsys.readouterr().out
    assert not script.exists()
