"""The command line's shape: exit codes, messages, and what it costs to ask for little."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from host.interrupts import interruptible
from matmill import cli
from matmill.cli import main
from matmill.jit.cache import DiskCache

#: Each thread stores 4096 bytes beyond its own element.
_FAR = """.version 8.0
.target sm_90
.address_size 64
.visible .entry far(.param .u64 x) {
  .reg .u64 %p; .reg .u32 %t;
  ld.param.u64 %p, [x];
  mov.u32 %t, %tid.x;
  st.global.u32 [%p+4096], %t;
  ret;
}
"""
PROGRAM = [sys.executable, "-m", "matmill"]
# The package as it stands here, installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == cli.OK
    assert capsys.readouterr().out.startswith("matmill 0.")


def test_nothing_at_all_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == cli.USAGE
    assert "ladder" in capsys.readouterr().out


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == cli.OK
    assert f"usage: matmill {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["lader"], cli.USAGE, ["command: got 'lader'", "Did you mean 'ladder'?"]),
        (["ladder"], cli.USAGE, ["ladder: got none", "sgemm"]),
        (["ladder", "sgem"], cli.USAGE, ["Did you mean 'sgemm'?"]),
        (["ladder", "sgemm", "--arch", "h20"], cli.USAGE, ["--arch: got 'h20'", "Did you mean 'h200'?"]),
        (["ladder", "sgemm", "--rungs", "nave"], cli.USAGE, ["--rungs: got 'nave'", "Did you mean 'naive'?"]),
        (["ladder", "sgemm", "--rungs", "ilp(3)"], cli.USAGE, ["--rungs: got 'ilp(3)'", "Did you mean 'ilp("]),
        (["ladder", "sgemm", "--rungs", ","], cli.USAGE, ["--rungs: got ','"]),
        (["ladder", "sgemm", "--on", "gpuu"], cli.USAGE, ["Did you mean 'gpu'?"]),
        (["ladder", "sgemm", "--n", "0"], cli.USAGE, ["got '0'", "positive whole number"]),
        (["ladder", "sgemm", "--n", "1.5"], cli.USAGE, ["got '1.5'"]),
        (["ladder", "sgemm", "--n", "inf"], cli.USAGE, ["got 'inf'"]),
        (["ladder", "sgemm", "--n", "nan"], cli.USAGE, ["got 'nan'"]),
        (["ladder", "sgemm", "--n", "many"], cli.USAGE, ["got 'many'"]),
        (["ladder", "inner", "--k", "1e300", "--on", "emulator"], cli.USAGE, ["got '1e300'", "below 2**63"]),
        (["roofline", "--n", "1e200"], cli.USAGE, ["got '1e200'", "below 2**63"]),
        (["model", "gemm", "--m", "1e300", "--n", "4", "--k", "4"], cli.USAGE, ["got '1e300'", "below 2**63"]),
        (["why", "inner", "3x1e300", "1e300x3"], cli.USAGE, ["got '3x1e300'"]),
        (["why", "matmul", "1e18x1e18", "1e18x1e18"], cli.USAGE, ["got '1e18x1e18'", "at most 2**48 elements"]),
        (["why", "transpose", "9223372036854775808x4"], cli.USAGE, ["got '9223372036854775808x4'"]),
        (["ladder", "sgemm", "--seed", "-1"], cli.USAGE, ["got '-1'"]),
        (["ladder", "sgemm", "--plot", "x.pdf"], cli.USAGE, ["--plot", ".png or .svg"]),
        (["ladder", "sgemm", "--plot", "no/such/folder/x.png"], cli.USAGE, ["folder that exists"]),
        (["ladder", "sgemm", "--on", "emulator", "--n", "1e18"], cli.USAGE, ["--m, --n, --k", "smaller sizes"]),
        (["ladder", "sgemm", "--wide"], cli.USAGE, ["--wide"]),
    ],
)
def test_bad_usage_is_one_message_on_stderr(
    arguments: list[str], code: int, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    text = capsys.readouterr()
    assert text.out == ""
    assert "Traceback" not in text.err
    for word in words:
        assert word in text.err


def test_a_gpu_demanded_where_there_is_none_is_code_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "it is at the menders'")
    assert main(["ladder", "sgemm", "--on", "gpu"]) == cli.NO_GPU
    assert "it is at the menders'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), cli.INTERRUPTED), (OSError("disk full"), cli.FAILED), (MemoryError(), cli.FAILED)],
)
def test_interrupts_and_system_errors_end_without_a_traceback(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr("matmill.cli.doctor.run", fail)
    assert main(["doctor"]) == code
    text = capsys.readouterr()
    assert text.err.startswith("matmill: ")
    assert len(text.err.splitlines()) == 1


def test_plots_without_matplotlib_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("matmill.cli.options.find_spec", lambda _name: None)
    assert main(["ladder", "sgemm", "--plot", "x.png"]) == cli.USAGE
    assert "pip install 'matmill[plots]'" in capsys.readouterr().err


def test_the_module_runs_as_a_program() -> None:
    words = [*PROGRAM, "ladder", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "register-tile" in done.stdout
    assert "\x1b" not in done.stdout  # a pipe is no terminal


def test_a_reader_that_leaves_early_is_no_error() -> None:
    # The listing is longer than one line, and `read` takes one.
    script = f'{sys.executable} -m matmill ladder --list | {{ read line; echo "$line"; }}; echo "${{PIPESTATUS[0]}}"'
    words = ["/bin/bash", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["sgemm", "0"]


def test_a_reader_of_tables_that_leaves_early_is_no_error() -> None:
    script = (
        f'{sys.executable} -m matmill ladder sgemm --on emulator --n 32 --rungs naive | true; echo "${{PIPESTATUS[0]}}"'
    )
    done = subprocess.run(["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stderr == ""
    assert done.stdout == "0\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("matmul A.npy B.npy --out D.npy", cli.OK),
        ("--version", cli.OK),
        ("ladder", cli.USAGE),
        ("matmul A.npy A.npy --out E.npy", cli.USAGE),
        ("emulate far.ptx --block 32 --arg zeros:f32:8", cli.FAILED),
    ],
)
@pytest.mark.parametrize("target", ["| true", "2>&1 | true", ">&- 2>&-"])
def test_a_reader_that_leaves_changes_no_exit_code(command: str, code: int, target: str, tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.ones((3, 4), np.float32))
    np.save(tmp_path / "B.npy", np.ones((4, 5), np.float32))
    (tmp_path / "far.ptx").write_text(_FAR)
    script = f'{sys.executable} -m matmill {command} {target}; echo "code ${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, check=True, env=ENVIRONMENT, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == f"code {code}"
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    assert (tmp_path / "D.npy").exists() == ("D.npy" in command)


def test_a_full_disk_behind_stdout_is_said_once() -> None:
    words = [*PROGRAM, "ladder", "--list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=ENVIRONMENT)
        assert (done.returncode, done.stderr) == (cli.FAILED, "matmill: [Errno 28] No space left on device\n")
        silent = subprocess.run([*words[:-1]], stderr=full, stdout=subprocess.PIPE, check=False, env=ENVIRONMENT)
        assert silent.returncode == cli.USAGE


def test_an_interrupted_run_is_code_130_without_a_traceback() -> None:
    words = [*PROGRAM, "ladder", "sgemm", "--on", "emulator", "--n", "1024", "--rungs", "multi"]
    with interruptible():
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    with child:
        assert child.stderr is not None
        begun = child.stderr.readline()  # how long it takes: it is at work, and far from done
        # Modules made by Cython swallow interrupts as they are imported, and NumPy's random numbers are several.
        time.sleep(1)
        child.send_signal(signal.SIGINT)
        try:
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()  # or it is waited for, and it takes an hour
    assert child.returncode == cli.INTERRUPTED, err
    assert "takes roughly" in begun
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "matmill: interrupted"


def test_cache_shows_and_clears(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(folder))
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    DiskCache(folder).put("key", {}, b"12345", b"")
    (folder / "thesis.tex").write_text("the user's own")
    assert main(["cache"]) == cli.OK
    out = capsys.readouterr().out
    assert "1 entries, " in out
    assert out.endswith("; kernels: none for a GPU\n")
    assert main(["cache", "clear"]) == cli.OK
    assert "Removed 1 entries" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert main(["cache", "clear"]) == cli.OK
    assert "off" in capsys.readouterr().out


def test_doctor_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == cli.OK
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert result["compiler"]["trial_seconds"] > 0
    assert "sm_90" in result["compiler"]["targets"]
    assert result["packages"]["numpy"]
    assert result["gpu"]["available"] in {True, False}
    assert set(result["cache"]) == {"folder", "usable", "mode", "entries", "bytes", "kernels"}
