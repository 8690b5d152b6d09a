"""The transpose_add ladder's options and tables, its peers, and its run on a GPU made of host memory."""

from __future__ import annotations

import ctypes
import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from host.test_cli_gpu import MILLISECONDS, FakeGPU
from matmill import cli
from matmill.arch import get
from matmill.arrays import inspect
from matmill.bench.libraries import transpose_add as libraries
from matmill.bench.libraries.transpose_add import CUPY, EAGER, TUNED, CupySum
from matmill.bench.problems.transpose_sums import TransposeAddInputs, exact_sum
from matmill.bench.timing import device_copy
from matmill.cli import main, tables
from matmill.dtypes import BF16, ELEMENTWISE, F16, F32, I8, DType
from matmill.jit.compile import Binary
from matmill.ladders.runner import measured
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.selection import nearest
from matmill.ladders.transpose_add import subject as problems
from matmill.ladders.transpose_add.rungs import TRANSPOSE_ADD
from matmill.ladders.transpose_add.subject import ARTICLE, MOVING, transpose_add_problem
from matmill.launch import Launch, Pointer
from matmill.lowering import lower_transpose
from support.ladder_runs import FakePeer, change, refused, use
from support.named_arguments import named

Array = NDArray[Any]
BY_LABEL = {rung.label: rung for rung in TRANSPOSE_ADD}


# Problems


@pytest.mark.parametrize("dtype", ELEMENTWISE.values(), ids=ELEMENTWISE)
@pytest.mark.parametrize(("m", "n"), [(64, 48), (67, 33), (66, 36), (2, 3)])
def test_the_problem_is_the_one_that_operations_make_of_such_arrays(m: int, n: int, dtype: DType) -> None:
    room = np.empty(3 * m * n * dtype.itemsize + 64, np.uint8)
    start = -room.ctypes.data % 16
    x, y, d = (
        room[start + 16 * (place * m * n * dtype.itemsize // 16) :][: m * n * dtype.itemsize].view(dtype.numpy)
        for place in range(3)
    )
    operands = (x.reshape(m, n), y.reshape(n, m), d.reshape(n, m))
    (stage,) = lower_transpose(*(inspect(array, "x") for array in operands))
    result = transpose_add_problem(m, n, dtype)
    assert (result.m, result.n, result.d.align, result.x.align) == (n, m, stage.problem.d.align, stage.problem.x.align)
    assert (result.x.strides, result.y, result.d) == (stage.problem.x.strides, stage.problem.y, stage.problem.d)


def test_every_rung_takes_the_article_s_sum() -> None:
    asked = transpose_add_problem(*ARTICLE)
    assert all(nearest(rung, asked, get("h200"), MOVING) == (asked, "") for rung in TRANSPOSE_ADD)
    assert asked.least_bytes == 3 * 2 * 24300 * 11520


# Options


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--case", "articel"], cli.USAGE, ["--case: got 'articel'", "article"]),
        (["--dtype", "bfloat61"], cli.USAGE, ["--dtype: got 'bfloat61'", "Did you mean 'bfloat16'?"]),
        (["--k", "7"], cli.USAGE, ["--k: got 7 for ladder transpose_add", "rows and columns of x"]),
        (["--layout", "row"], cli.USAGE, ["--layout: got 'row' for ladder transpose_add", "ladder inner alone"]),
        (["--gs", "2"], cli.USAGE, ["--gs", "ladder inner alone"]),
        (["--rungs", "v3"], cli.USAGE, ["--rungs", "v1"]),
        (["--m", "0"], cli.USAGE, ["got '0'"]),
        (["--m", "1e14", "--n", "1e14"], cli.USAGE, ["smaller sizes"]),
        (["--on", "gpu"], cli.NO_GPU, ["--on: got 'gpu'"]),
        (["--case", "article", "--on", "auto"], cli.USAGE, ["x of 24300 x 11520", "--on emulator"]),
        (["--m", "1e5", "--n", "1e5", "--on", "auto"], cli.USAGE, ["without a usable GPU"]),
    ],
)
def test_errors(
    arguments: list[str],
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, text = refused(["transpose_add", *arguments], monkeypatch, capsys)
    assert result == code
    assert all(word in text for word in words), text


def test_help_says_what_m_and_n_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "--help"]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    assert "--m and --n are the rows and columns of x; y and the result have n rows and m columns" in text


# A GPU made of host memory


class SumGPU(FakeGPU):
    """Adds and copies with NumPy what launches ask for; ``dtype`` is what matrices are made of."""

    def __init__(self, dtype: DType) -> None:
        super().__init__()
        self.dtype = dtype
        self.entries: list[str] = []
        self.copied = 0

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Do what the kernel would."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        assert f".entry {launch.entry}(" in binary.ptx
        self.entries.append(launch.entry)
        args: tuple[Any, ...] = launch.args
        if launch.entry == "stream_copy":
            self.copied = 16 * int(args[2])
            ctypes.memmove(args[1].address, args[0].address, self.copied)
            return
        if launch.entry in {"v1", "v2"}:
            m, n, x_column, y_row, d_row = (int(x) for x in args[3:-2])
            pointers, scalars = args[:3], args[-2:]
            strides = [(1, x_column), (y_row, 1), (d_row, 1)]
        else:
            given = named(launch)
            m, n = int(given["m"]), int(given["n"])
            pointers, scalars = tuple(given[name] for name in "XYD"), (given["alpha"], given["beta"])
            strides = [(int(given[f"{name}_row"]), int(given[f"{name}_column"])) for name in "xyd"]
            assert [int(given[f"{name}_batch"]) for name in "xyd"] == [0, 0, 0]
        assert [float(x) for x in scalars] == [1.0, 1.0]
        x, y, d = (self._view(where, (m, n), steps) for where, steps in zip(pointers, strides, strict=True))
        d[...] = exact_sum(np.ascontiguousarray(x), y)
        if launch.entry == self.wrong:
            bits = f"i{self.dtype.itemsize}"
            d[-1:, -1:].view(bits)[...] ^= 1

    def _view(self, where: object, shape: tuple[int, int], strides: tuple[int, int]) -> Array:
        assert isinstance(where, Pointer)
        size = self.dtype.itemsize
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
        flat = np.ctypeslib.as_array((ctypes.c_uint8 * (size * span)).from_address(where.address)).view(
            self.dtype.numpy
        )
        return np.lib.stride_tricks.as_strided(flat, shape, tuple(size * stride for stride in strides))


def _peers(asked: TransposeAddInputs, x: int, y: int) -> tuple[list[FakePeer], list[str]]:
    assert x != y
    return [FakePeer(EAGER, asked.expected), FakePeer(TUNED, asked.expected)], ["not compared with CuPy: no"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SumGPU:
    fake = SumGPU(BF16)
    use(monkeypatch, fake)
    monkeypatch.setattr(device_copy, "LEAST", 4096)
    change(monkeypatch, "transpose_add", libraries=_peers)
    return fake


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", "transpose_add", *arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


def test_rates_are_bytes_over_time_beside_a_copy(gpu: SumGPU, capsys: pytest.CaptureFixture[str]) -> None:
    m, n = 300, 256
    code, result = _json(["--m", str(m), "--n", str(n)], capsys)
    assert code == cli.OK, result
    assert (result["on"], result["problem"]) == ("gpu", {"m": m, "n": n, "dtype": "bfloat16"})
    moved, seconds = 3 * 2 * m * n, MILLISECONDS / 1e3
    copy = 2 * gpu.copied / seconds
    assert gpu.copied == moved // 2 // 16 * 16
    assert result["copy_bytes_per_s"] == pytest.approx(copy)
    rows = {row["rung"]: row for row in result["rows"]}
    assert list(rows) == [*BY_LABEL, "production"]
    for row in rows.values():
        assert row["ok"] is True, row
        assert (row["bytes"], row["seconds"], row["note"]) == (moved, seconds, "")
        assert row["tbytes_per_second"] == pytest.approx(moved / seconds / 1e12)
        assert row["bandwidth_fraction"] == pytest.approx(moved / seconds / copy)
        assert row["library_fraction"] == pytest.approx(1.0)
        assert "tflops" not in row
    assert [base["name"] for base in result["baselines"]] == [EAGER, TUNED]
    assert all(base["ok"] and base["bandwidth_fraction"] == pytest.approx(1, rel=1e-3) for base in result["baselines"])
    assert "not compared with CuPy: no" in result["notes"]
    assert any("a copy in the same run" in note and "which percentages refer to" in note for note in result["notes"])
    assert Outcome.from_dict(result).as_dict() == result
    assert {"v1", "v2", "wide", "shifted", "transpose_add", "stream_copy"} <= set(gpu.entries)
    assert gpu.live == {}


@pytest.mark.parametrize("dtype", ELEMENTWISE)
def test_every_dtype(dtype: str, gpu: SumGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.dtype = ELEMENTWISE[dtype]
    code, result = _json(["--m", "67", "--n", "35", "--dtype", dtype], capsys)
    assert code == cli.OK
    assert all(row["ok"] for row in result["rows"])
    assert all(base["ok"] for base in result["baselines"])


def test_a_wrong_rung_fails_the_run(gpu: SumGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.wrong = "shifted"
    assert main(["ladder", "transpose_add", "--m", "200", "--n", "64"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("shifted ") and "WRONG" in line for line in lines)
    assert any(line.startswith("wide ") and " ok" in line for line in lines)
    assert gpu.live == {}


@pytest.mark.usefixtures("gpu")
def test_a_wrong_library_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(asked: TransposeAddInputs, _x: int, _y: int) -> tuple[list[FakePeer], list[str]]:
        result = asked.expected.copy()
        result[0, 0] += 1
        return [FakePeer(EAGER, result)], []

    change(monkeypatch, "transpose_add", libraries=wrong)
    assert main(["ladder", "transpose_add", "--m", "64", "--n", "64", "--rungs", "v2"]) == cli.FAILED
    assert "WRONG" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith(EAGER))


@pytest.mark.usefixtures("gpu")
def test_the_default_on_a_gpu_is_the_article_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(monkeypatch, "transpose_add", sizes={"gpu": (84, 96)})
    monkeypatch.setitem(problems.CASES, "article", (84, 96))
    for arguments in ([], ["--case", "article"]):
        _, result = _json([*arguments, "--rungs", "v1"], capsys)
        assert result["problem"] == {"m": 84, "n": 96, "dtype": "bfloat16"}
    _, result = _json(["--case", "ARTICLE", "--n", "32", "--rungs", "v1"], capsys)
    assert result["problem"] == {"m": 84, "n": 32, "dtype": "bfloat16"}


@pytest.mark.usefixtures("gpu")
def test_another_gpu_s_percentages_are_its_data_sheet_s_or_its_arch_file_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--m", "64", "--n", "64", "--rungs", "v1", "--arch", "a100"]
    monkeypatch.setattr(measured, "measured", lambda _arch: None)
    _, result = _json(arguments, capsys)
    assert "copy_bytes_per_s" not in result
    rate = 3 * 2 * 64 * 64 / 2e-3
    assert result["rows"][0]["bandwidth_fraction"] == pytest.approx(rate / 1555e9)
    assert any("refer to the data sheet of the A100" in note for note in result["notes"])
    known = SimpleNamespace(copy_bytes_per_s=1.3e12, date="2026-11-20")
    monkeypatch.setattr(measured, "measured", lambda _arch: known)
    _, result = _json(arguments, capsys)
    assert result["copy_bytes_per_s"] == 1.3e12
    assert result["rows"][0]["bandwidth_fraction"] == pytest.approx(rate / 1.3e12)
    assert any("copies on a A100" in note for note in result["notes"])


@pytest.mark.usefixtures("gpu")
def test_tables_fit_the_terminal_and_plots_show_the_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["--m", "96", "--n", "64"], capsys)
    small = Outcome.from_dict(result)
    as_large: dict[str, Any] = {
        "bytes": 1_679_616_000,
        "tbytes_per_second": 4.187,
        "bandwidth_fraction": 0.978,
        "seconds": 0.4012e-3,
    }
    outcome = replace(
        small,
        rows=tuple(replace(row, **as_large) for row in small.rows),
        baselines=tuple(replace(base, **as_large) for base in small.baselines),
        copy_bytes_per_s=4.28e12,
    )
    file = io.StringIO()
    for part in tables.report(outcome):
        Console(file=file, width=84).print(part, soft_wrap=True)
    lines = file.getvalue().splitlines()
    assert "x 96x64, y 64x96 bfloat16, a copy moves 4.28 TB/s" in lines[0]
    head = next(line for line in lines if line.startswith("rung"))
    assert all(word in head for word in ("time", "moved", "TB/s", "% copy", "% lib", "regs", "check"))
    row = next(line for line in lines if line.startswith("shifted"))
    assert all(cell in row for cell in ("401 us", "1.68 GB", "4.19", "97.8%", "100.0%"))
    assert len(row) <= 84
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(outcome, tmp_path / "plot.svg")
    picture = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "copy bandwidth 4.28" in picture


# Peers


class FakeCupy(ModuleType):
    """As much of CuPy as a sum uses, over NumPy."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self.__version__ = "0"
        self.cuda = SimpleNamespace(
            ExternalStream=lambda _address: nullcontext(), Device=lambda: SimpleNamespace(synchronize=lambda: None)
        )
        self.made: list[str] = []
        self.add = np.add
        self.empty_like = np.empty_like
        self.asnumpy = np.asarray
        self.asarray = _resident

    def ElementwiseKernel(self, _inputs: str, _outputs: str, code: str, _name: str) -> Any:  # noqa: N802 — CuPy's name
        """Return a kernel that does in NumPy what the code says."""
        self.made.append(code)

        def kernel(x: Array, y: Array, z: Array) -> None:
            z[...] = exact_sum(x.copy().view(BF16.numpy), y.view(BF16.numpy)).view(np.uint16)

        return kernel


def _resident(memory: Any) -> Array:
    interface = memory.__cuda_array_interface__
    size = prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(interface["data"][0]))
    return np.ndarray(interface["shape"], interface["typestr"], flat, strides=interface["strides"])


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(libraries, "find_spec", lambda name: object() if name == "cupy" else None)
    return fake


@pytest.mark.parametrize("dtype", [F32, BF16, F16, I8], ids=lambda dtype: dtype.name)
def test_cupy_gets_the_matrices_where_they_are(dtype: DType, cupy: FakeCupy) -> None:
    asked = TransposeAddInputs.random(transpose_add_problem(33, 20, dtype), 5)
    x = np.ascontiguousarray(asked.a.T)
    result, absent = libraries.transpose_add_peers(asked, x.ctypes.data, asked.b.ctypes.data)
    assert absent == ["not compared with torch, which is not installed"]
    (peer,) = result
    assert isinstance(peer, CupySum)
    assert (peer.name, peer.version) == (CUPY, "cupy 0")
    assert asked.check(peer.result()).ok
    assert len(cupy.made) == (dtype is BF16)


def test_what_refuses_is_told(cupy: FakeCupy) -> None:
    def broken(*_: object, out: object = None) -> None:
        raise RuntimeError(f"no kernel\nfor {out}")

    cupy.add = broken  # type: ignore[assignment]  # another callable
    asked = TransposeAddInputs.random(transpose_add_problem(8, 8, F32), 5)
    result, absent = libraries.transpose_add_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert result == []
    assert absent[-1] == "not compared with CuPy: no kernel"


def test_the_bits_of_a_sum_of_bfloat16_are_rounded_as_written() -> None:
    """The arithmetic of the kernel that CuPy compiles, step by step in NumPy's integers."""
    values = np.array([1.0, 2.0**-8, 1.5 * 2.0**-8, -3.0, 1e30, 3e38, np.inf, np.nan, 0.0, -0.0], np.float32)
    x, y = (grid.ravel().astype(BF16.numpy) for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        total = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        total = total + (y.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        bits = total.view(np.uint32)
        rounded = ((bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        rounded[np.isnan(total)] = 0x7FFF
        expected = exact_sum(x[None], y[None])[0]
    same = rounded == expected.view(np.uint16)
    assert np.all(same | np.isnan(expected.astype(np.float32)) & np.isnan(rounded.view(BF16.numpy).astype(np.float32)))
