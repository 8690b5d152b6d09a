"""``matmill matmul``: files in, file out, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.cli import files as npy
from matmill.cli import main
from matmill.errors import ArgumentError
from matmill.reference import check
from support.complex_product import excess, random


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Provide a folder with A.npy (30, 40), B.npy (40, 50) and C.npy (30, 50)."""
    rng = np.random.default_rng(0)
    for name, shape in (("A", (30, 40)), ("B", (40, 50)), ("C", (30, 50))):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal(shape).astype(np.float32))
    return tmp_path


def _run(folder: Path, *options: str, out: str = "out.npy") -> int:
    names = [str(folder / name) for name in ("A.npy", "B.npy")]
    return main(["matmul", *names, "--out", str(folder / out), "--executor", "cpu", *options])


def _load(folder: Path, name: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(folder / f"{name}.npy")
    return array


def test_the_product_is_written_and_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files) == 0
    assert check(_load(files, "out"), _load(files, "A"), _load(files, "B")).ok
    text = capsys.readouterr().out
    assert "30x50x40 float32" in text
    assert "GFLOP/s" in text
    assert "memory" in text


def test_json(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(files, "--json", "--alpha", "2", "--c", str(files / "C.npy"), "--beta", "-1") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problem"] == {"batch": 1, "m": 30, "n": 50, "k": 40}
    assert report["seconds"] > 0
    assert report["bound"]["limit"] in {"compute", "memory"}
    result = _load(files, "out")
    assert check(result, _load(files, "A"), _load(files, "B"), _load(files, "C"), alpha=2, beta=-1).ok


def test_the_precision(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(files / "A.npy", np.ones((1024, 2048), np.float32))
    np.save(files / "B.npy", np.ones((2048, 1024), np.float32))
    bounds = []
    for options in ((), ("--precision", "float32_tensor"), ("--precision", "tf32")):
        assert _run(files, "--json", *options) == 0
        bounds.append(json.loads(capsys.readouterr().out)["bound"]["compute_seconds"])
    assert bounds == sorted(set(bounds), reverse=True)
    assert _run(files, "--precision", "fp16") == 2
    assert "Did you mean 'fp16x3'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["complex64", "c128"])
def test_complex_files(name: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dtype = {"c128": "complex128"}.get(name, name)
    arrays = {each: random(seed, *_load(files, each).shape, dtype=dtype) for seed, each in enumerate("ABC")}
    for each, array in arrays.items():
        np.save(files / f"{each}.npy", array)
    assert _run(files, "--dtype", name, "--alpha=0.5-2j", "--c", str(files / "C.npy"), "--beta", "1j", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["dtype"] == dtype
    least = sum(x.nbytes for x in (*arrays.values(), arrays["C"]))  # the result is as large as C
    assert report["bound"]["memory_seconds"] == pytest.approx(least / 4800e9)
    assert report["bound"]["compute_seconds"] == pytest.approx(8 * 30 * 40 * 50 / 66.9e12, rel=0.02)
    a, b, c = arrays.values()
    assert excess(_load(files, "out"), a, b, c, alpha=0.5 - 2j, beta=1j) <= 1
    assert _run(files, "--dtype", "float32") == 2
    assert "complex" in capsys.readouterr().err
    assert _run(files, "--dtype", name, "--alpha", "two") == 2


def test_a_matrix_that_all_products_share_moves_once(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(files / "A.npy", _load(files, "A")[None])  # a batch of one
    np.save(files / "B.npy", np.stack([_load(files, "B")] * 3))
    assert _run(files, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problem"]["batch"] == 3
    least = 4 * (30 * 40 + 3 * 40 * 50 + 3 * 30 * 50)
    assert report["bound"]["memory_seconds"] == pytest.approx(least / 4800e9)


def test_c_alone_means_beta_one(files: Path) -> None:
    assert _run(files, "--c", str(files / "C.npy")) == 0
    assert check(_load(files, "out"), _load(files, "A"), _load(files, "B"), _load(files, "C"), beta=1).ok


def test_empty_arrays(files: Path) -> None:
    np.save(files / "A.npy", np.zeros((0, 40), np.float32))
    assert _run(files) == 0
    assert _load(files, "out").shape == (0, 50)


def test_the_report_counts_the_batches_of_an_empty_product(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(files / "A.npy", np.zeros((3, 0, 40), np.float32))
    assert _run(files, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problem"] == {"batch": 3, "m": 0, "n": 50, "k": 40}


@pytest.mark.parametrize("damage", ["missing", "garbage", "integers", "shapes", "archive"])
def test_bad_files_are_one_message_and_leave_nothing(
    files: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    path = files / "A.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"no array at all")
    elif damage == "archive":
        with path.open("wb") as file:
            np.savez(file, x=np.zeros(3))
    else:
        np.save(path, np.zeros((30, 40), np.int16) if damage == "integers" else np.zeros((30, 41), np.float32))
    before = sorted(p.name for p in files.iterdir())
    assert _run(files) in {1, 2}
    text = capsys.readouterr()
    assert text.err.startswith("matmill: A: got" if damage in {"missing", "garbage", "archive"} else "matmill: a")
    assert "pickle" not in text.err
    assert "Traceback" not in text.err
    assert text.out == ""
    assert sorted(p.name for p in files.iterdir()) == before


def test_a_folder_that_is_missing_is_usage(files: Path) -> None:
    assert _run(files, out="nowhere/out.npy") == 2


def test_a_folder_as_output_is_told_before_the_work(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matmill.ops.matmul", lambda *_args, **_options: pytest.fail("it was computed"))
    (files / "out.npy").mkdir()
    assert _run(files) == 2


def test_beta_without_c_is_usage(files: Path) -> None:
    assert _run(files, "--beta", "2") == 2


def test_a_gpu_demanded_and_missing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matmill.runtime.gpu.unavailable", lambda: "no driver here")
    assert _run(files, "--executor", "gpu") == 3
    assert not (files / "out.npy").exists()


def _npy(shape: str, descr: str = "'<f4'", data: int = 64, version: bytes = b"\1\0") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + bytes(data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_npy("(3, 1000000000000)"), "cut short: "),
        (_npy("(3, 100000000000000000000000)"), "cut short: "),
        (_npy("(5, 4)", data=79), "cut short: "),
        (_npy("(-3, 4)"), "shape"),
        (_npy("(0, 100000000000000000000000)"), ""),
        (_npy("(3, 4"), ""),
        (_npy("(3, 4)", "'bogus'"), "bogus"),
        (_npy("(3, 4)", "'|V0'"), "elements of"),
        (_npy("(3, 4)", "'|O'"), "elements of object"),
        (_npy("(3, 4)", "[(1, 2)]"), ""),
        (_npy("(3, 4)", "()"), ""),
        (_npy("(3, 4)", "('<f4',)"), ""),
        (_npy("(" * 300), ""),
        (_npy("(3, 4)", version=b"\t\t"), "version 9.9"),
        (b"\x93NUMPY", ""),
    ],
)
def test_headers_that_say_too_much_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=r"x\.npy: ") as raised:
        npy.load(path, "A")
    assert words in str(raised.value)


def test_a_file_cut_short_says_its_sizes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = files / "A.npy"
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert _run(files) in {1, 2}
    assert f"cut short: {whole - 1} bytes of the {whole}" in capsys.readouterr().err
