"""The doctor's findings in words, and its patience with what hangs or crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from matmill import cli
from matmill.cli import doctor, doctor_child, main


@pytest.fixture
def well() -> dict[str, Any]:
    """Provide findings of a machine on which everything is in place."""
    return {
        "ok": True,
        "matmill": "0.1",
        "python": "3.11.7",
        "executable": "python",
        "platform": "Linux",
        "cpu": "a CPU",
        "compiler": {"version": "13.0", "targets": ["sm_75", "sm_120"], "trial_seconds": 0.08, "trial_bytes": 3000},
        "gpu": {"available": True, "title": "H200", "arch": "h200", "target": "sm_90a", "sms": 132},
        "driver": [{"name": "H200", "driver_version": "580", "memory.total": "143771 MiB"}],
        "packages": {"numpy": "2.4", "torch": None, "matplotlib": None, "cupy-cuda12x": None},
        "cache": {
            "folder": "somewhere",
            "usable": True,
            "mode": "0700",
            "entries": 3,
            "bytes": 12,
            "kernels": {"sm_90a": 2},
        },
    }


def test_all_well(well: dict[str, Any]) -> None:
    lines = {line.what: line for line in doctor.lines(well)}
    assert all(line.ok for line in lines.values())
    assert "compiled in 80 ms" in lines["compiler"].found
    assert "132 SMs" in lines["GPU"].found
    assert lines["cache"].found.endswith("mode 0700, 3 entries, 12 bytes; kernels: 2 for sm_90a")


def test_what_is_missing_comes_with_advice(well: dict[str, Any]) -> None:
    well["compiler"] = {"error": "libnvrtc is not there"}
    well["gpu"] = {"available": False, "reason": "no driver"}
    well["driver"] = None
    well["packages"]["numpy"] = None
    lines = [line for line in doctor.lines(well) if not line.ok]
    assert {line.what for line in lines} == {"compiler", "GPU", "driver", "missing"}
    assert all(line.advice for line in lines if line.what != "driver")
    advice = " ".join(line.advice for line in doctor.lines(well))
    assert "pip install 'matmill[plots]'" in advice
    assert "pip install numpy" in advice


def test_an_unusable_machine_is_code_1(
    well: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    well["ok"] = False
    well["compiler"] = {"error": "libnvrtc is not there"}
    monkeypatch.setattr(doctor, "examine", lambda: well)
    assert main(["doctor"]) == cli.FAILED
    text = capsys.readouterr().out
    assert "libnvrtc is not there" in text
    assert "cannot be used" in text


def test_a_check_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_child, "_CHILD", "import time; time.sleep(60)")
    assert doctor_child.ask("gpu", patience=0.5) == {"error": "no answer within 0 s"}


@pytest.mark.parametrize(
    ("folder", "usable", "words"),
    [
        ("new/cache", True, "the first kernel makes it"),
        ("file/cache", False, "no folder that can be written"),
        ("/proc/none/cache", False, "no folder that can be written"),  # a file system without files, even of root's
    ],
)
def test_a_cache_that_cannot_be_written_is_not_fine(
    folder: str, usable: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / folder))
    line = doctor._cache_line(doctor._cache(compiles=False))
    assert (line.ok, bool(line.advice)) == (usable, not usable)
    assert line.found.endswith(words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]  # nothing is left there


def test_a_check_that_crashes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_child, "_CHILD", "import os; os.abort()")
    assert "ended with code -6" in doctor_child.ask("gpu")["error"]
    monkeypatch.setattr(doctor_child, "_CHILD", "raise SystemExit('no such library')")
    assert doctor_child.ask("compiler")["error"] == "the check ended with code 1: no such library"


def test_an_error_of_ours_is_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> dict[str, Any]:
        raise OSError("cannot load")

    monkeypatch.setitem(doctor_child.QUESTIONS, "compiler", fail)
    monkeypatch.setattr("sys.argv", ["-c", "[]", "compiler"])
    doctor_child.answer()
    assert capsys.readouterr().out == '{"error": "cannot load"}\n'
