"""``matmill inner``: files of all element types in, file out whole or not at all, progress where somebody watches."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill import cli, ops
from matmill.cli import main
from matmill.dtypes import ALL, BF16, DType
from matmill.errors import ArgumentError, TruncatedFileError
from matmill.reference import check

M, N, K = 3, 4, 5000
Array = NDArray[Any]


def _values(shape: tuple[int, int], dtype: DType, seed: int) -> Array:
    values: Array = np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype.numpy)
    return values


def _write(folder: Path, dtype: DType) -> tuple[Array, Array, Array]:
    arrays = _values((M, K), dtype, 1), _values((K, N), dtype, 2), _values((M, N), dtype, 3)
    for name, array in zip("EFC", arrays, strict=True):
        np.save(folder / f"{name}.npy", array)
    return arrays


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Provide a folder with E.npy, F.npy and C.npy of float32."""
    _write(tmp_path, ALL["float32"])
    return tmp_path


def _run(folder: Path, *options: str, names: str = "EF", out: str = "out.npy") -> int:
    inputs = [str(folder / f"{name}.npy") for name in names]
    return main(["inner", *inputs, "--out", str(folder / out), "--executor", "cpu", *options])


def _load(folder: Path, name: str) -> Array:
    array: Array = np.load(folder / f"{name}.npy")
    return array


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
def test_every_element_type(dtype: DType, tmp_path: Path) -> None:
    e, f, c = _write(tmp_path, dtype)
    options = ["--c", str(tmp_path / "C.npy"), "--beta", "-2", "--alpha", "0.5"]
    assert _run(tmp_path, *options, *(["--dtype", "bfloat16"] if dtype is BF16 else [])) == cli.OK
    result = _load(tmp_path, "out")
    expected = io.BytesIO()
    np.save(expected, np.zeros(1, dtype.numpy))
    expected.seek(0)
    assert result.dtype == np.load(expected).dtype  # what numpy.save makes of the type
    exact = 0.5 * (e.astype(np.float64) @ f.astype(np.float64)) - 2 * c.astype(np.float64)
    near = dtype.roundoff * (np.abs(exact) + 1) + K * dtype.accumulator.roundoff * 40
    assert np.all(np.abs(result.view(dtype.numpy).astype(np.float64) - exact) <= near)


def test_bfloat16_may_be_kept_as_uint16(tmp_path: Path) -> None:
    e, f, _ = _write(tmp_path, BF16)
    assert _run(tmp_path, "--dtype", "bfloat16") == cli.OK
    wanted = _load(tmp_path, "out").tobytes()
    np.save(tmp_path / "E.npy", e.view(np.uint16))
    np.save(tmp_path / "F.npy", np.asfortranarray(f).view(np.uint16))
    assert _run(tmp_path, "--dtype", "bfloat16") == cli.OK
    assert _load(tmp_path, "out").tobytes() == wanted


def test_without_f_the_product_is_a_gram_matrix(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files, "--json", names="E") == cli.OK
    e = _load(files, "E")
    assert check(_load(files, "out"), e, e.T).ok
    report = json.loads(capsys.readouterr().out)
    assert report["gram"] is True
    assert report["problem"] == {"batch": 1, "m": M, "n": M, "k": K}
    assert report["bound"]["memory_seconds"] == pytest.approx(4 * (M * K + M * M) / 4800e9)


@pytest.mark.parametrize("options", [[], ["--dtype", "f32"]])
def test_samples_may_be_stored_a_row_each(options: list[str], files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    e, f = _load(files, "E"), _load(files, "F")
    np.save(files / "X.npy", np.ascontiguousarray(e.T))
    assert _run(files, "--transpose", *options, names="X", out="gram.npy") == cli.OK
    assert check(_load(files, "gram"), e, e.T).ok
    assert _run(files, "--transpose", *options, names="XF", out="cross.npy") == cli.OK
    assert check(_load(files, "cross"), e, f).ok
    assert f"{M}x{M}x{K} float32" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["E", "F", "C"])
def test_no_input_is_written_over(name: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "alias.npy").symlink_to(files / f"{name}.npy")
    before = (files / f"{name}.npy").read_bytes()
    for out in (f"{name}.npy", "alias.npy"):
        assert _run(files, "--c", str(files / "C.npy"), out=out) == cli.USAGE
        assert "--out: got" in capsys.readouterr().err
    assert (files / f"{name}.npy").read_bytes() == before


def test_f_is_e_in_the_same_memory_where_it_is_left_out(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Array, Array]] = []

    def product(e: Array, f: Array, *_args: Any, **_options: Any) -> Array:
        seen.append((e, f))
        return e @ f

    monkeypatch.setattr(ops, "inner", product)
    assert _run(files, names="E") == cli.OK
    e, f = seen[0]
    assert isinstance(e, np.memmap)
    assert (f.ctypes.data, f.strides) == (e.ctypes.data, e.strides[::-1])


def test_what_is_printed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files) == cli.OK
    text = capsys.readouterr()
    assert f"{M}x{N}x{K} float32" in text.out
    assert "B/s" in text.out
    assert "memory" in text.out
    assert f"Wrote {files / 'out.npy'}: ({M}, {N}) float32." in text.out
    assert text.err == ""


def test_rates_are_bytes_of_the_problem_over_time(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files, "--json") == cli.OK
    report = json.loads(capsys.readouterr().out)
    moved = 4 * (M * K + K * N + M * N)
    assert report["bytes_per_second"] * report["seconds"] == pytest.approx(moved)
    assert report["tflops"] * report["seconds"] == pytest.approx(2 * M * N * K / 1e12)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", ["E: got", "No such file", "of float32 or float64 or float16 or bfloat16"]),
        ("garbage", ["E: got", "not one, by its first bytes; wanted a .npy file with one array of float32"]),
        ("integers", ["e: got dtype int64"]),
        ("length", ["shapes"]),
        ("vector", ["(5000,)"]),
    ],
)
def test_bad_files_are_one_message_and_leave_nothing(
    damage: str, words: list[str], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files / "E.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"no array at all")
    else:
        bad: dict[str, Array] = {"integers": np.zeros((M, K), np.int64), "length": np.zeros((M, K + 1), np.float32)}
        np.save(path, bad.get(damage, np.zeros(K, np.float32)))
    before = sorted(files.iterdir())
    assert _run(files) in {cli.FAILED, cli.USAGE}
    text = capsys.readouterr()
    assert text.err.startswith("matmill: ")
    assert all(word in text.err for word in words), text.err
    assert "Traceback" not in text.err
    assert text.out == ""
    assert sorted(files.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dtype", "bfloat61"], ["--dtype: got 'bfloat61'", "Did you mean 'bfloat16'?"]),
        (["--dtype", "bfloat16"], ["E: got", "elements of float32", "wanted bfloat16, as --dtype says"]),
        (["--dtype", "float64"], ["E: got", "elements of float32", "wanted float64, as --dtype says"]),
        (["--beta", "2"], ["c: got None with beta = 2"]),
        (["--transpose"], ["shapes", "e, f", "(5000, 3)"]),
        (["--executor", "cup"], ["--executor", "invalid choice"]),
        (["--out", "no/such/folder/out.npy"], ["folder that exists"]),
    ],
)
def test_bad_usage(options: list[str], words: list[str], files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files, *options) == cli.USAGE
    text = capsys.readouterr().err
    assert all(word in text for word in words), text
    assert not (files / "out.npy").exists()


def test_a_gpu_demanded_and_missing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "no driver here")
    assert _run(files, "--executor", "gpu") == cli.NO_GPU
    assert not (files / "out.npy").exists()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (TruncatedFileError(argument="e", got="E.npy with 3 bytes", wanted="more", fix="Write it."), cli.FAILED),
        (OSError(5, "Input/output error"), cli.FAILED),
        (KeyboardInterrupt(), cli.INTERRUPTED),
    ],
)
def test_a_failure_part_way_leaves_the_output_as_it_was(
    failure: BaseException,
    code: int,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_args: Any, **_options: Any) -> Array:
        raise failure

    (files / "out.npy").write_bytes(b"yesterday's")
    before = sorted(files.iterdir())
    monkeypatch.setattr(ops, "inner", fails)
    assert _run(files) == code
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert (files / "out.npy").read_bytes() == b"yesterday's"
    assert sorted(files.iterdir()) == before


class Screen(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        """Tell that it is one."""
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_a_bar_on_a_terminal_and_a_line_now_and_then_elsewhere(
    terminal: bool, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr("matmill.cli.console.time.monotonic", lambda: float(next(clock)))

    def product(e: Array, f: Array, *_args: Any, progress: Any, **_options: Any) -> Array:
        for done in (0, 30_000_000, 61_500_000, 90_000_000):
            progress(done, 123_000_000)
        return e @ f

    screen = Screen() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(ops, "inner", product)
    assert _run(files) == cli.OK
    text = screen.getvalue()
    assert ("123.0 MB" in text) == terminal
    # A call is made twice, and a line every ten seconds at the most: the clock goes on by six with each report.
    told = [12, 24, 36, 48]
    done = ["30.0 MB", "90.0 MB", "30.0 MB", "90.0 MB"]
    lines = [f"matmill: {at} s: {part} of 123 MB read" for at, part in zip(told, done, strict=True)]
    assert terminal or text.splitlines() == lines
    assert "\x1b" not in capsys.readouterr().out


def test_a_product_that_is_not_streamed_has_no_bar(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert _run(files) == cli.OK
    assert "B/s" not in screen.getvalue()


def test_progress_that_cannot_be_called_is_refused_at_once() -> None:
    e = np.ones((2, 8), np.float32)
    report: Any = 5
    with pytest.raises(ArgumentError, match=r"progress: got int 5; wanted a function"):
        ops.inner(e, e.T, executor="cpu", progress=report)
