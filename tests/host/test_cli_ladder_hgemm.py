"""The hgemm ladder's options, peers, tables and plots, its run on a GPU made of host memory, and sweeps over sizes."""

from __future__ import annotations

import ctypes
import io
import json
import sys
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
from host.test_cli_ladder import measured, outcome
from lab.hgemm_page import hgemm_page
from matmill import cli
from matmill.arch import get
from matmill.bench import units
from matmill.bench.libraries import gemm
from matmill.bench.libraries.gemm import NARROW, WIDE, half_peers
from matmill.cli import ladder_sweep, main, tables
from matmill.dtypes import BF16, F16, DType
from matmill.jit.compile import Binary
from matmill.ladders.hgemm.rungs import HGEMM, ON_WGMMA
from matmill.ladders.hgemm.subject import HALVES, HalfInputs, half_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.sweep import Sweep
from matmill.ladders.runner.sweep_plot import draw_sweep
from matmill.launch import Launch, Pointer, TensorMap
from support.fake_torch import Tensor, stand_in
from support.ladder_runs import FakePeer, change, refused, use

Array = NDArray[Any]
LABELS = [rung.label for rung in HGEMM]
#: Where rungs run that do not take 250 cubed: whole tiles, or rows on 16 bytes.
SIZES = {**dict.fromkeys(LABELS[:7], (256, 256, 256)), **{rung.label: (250, 248, 248) for rung in ON_WGMMA}}


# Options


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["hgemm", "--dtype", "float23"], cli.USAGE, ["--dtype: got 'float23'", "float16"]),
        (["hgemm", "--dtype", "float32"], cli.USAGE, ["--dtype: got 'float32'", "one of float16, bfloat16"]),
        (["hgemm", "--case", "MTXA"], cli.USAGE, ["--case", "for ladder hgemm"]),
        (["hgemm", "--layout", "row"], cli.USAGE, ["--layout", "ladder inner alone"]),
        (["hgemm", "--rungs", "swizled"], cli.USAGE, ["Did you mean 'swizzled'?"]),
        (["hgemm", "--on", "gpu"], cli.NO_GPU, ["--on: got 'gpu'"]),
        (["hgemm", "--n", "1000", "--on", "auto"], cli.USAGE, ["without a usable GPU", "--on emulator"]),
        (["hgemm", "--sweep", "512..1024"], cli.USAGE, ["--sweep", "does not time"]),
        (["hgemm", "--sweep", "1024..512"], cli.USAGE, ["--sweep: got '1024..512'", "the smaller size first"]),
        (["hgemm", "--sweep", "512"], cli.USAGE, ["--sweep: got '512'", "LOW..HIGH"]),
        (["hgemm", "--sweep", "512..", "--on", "auto"], cli.USAGE, ["--sweep: got '512..'"]),
        (["hgemm", "--sweep", "512..1024", "--k", "9"], cli.USAGE, ["--k: got 9 besides --sweep"]),
        (["inner", "--sweep", "512..1024"], cli.USAGE, ["--sweep: got '512..1024' for ladder inner", "hgemm or sgemm"]),
        (["--sweep", "512..1024"], cli.USAGE, ["ladder: got none"]),
    ],
)
def test_errors(
    arguments: list[str],
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, text = refused(arguments, monkeypatch, capsys)
    assert result == code
    assert all(word in text for word in words), text


def test_help_says_what_is_summed_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "--help"]) == cli.OK
    text = " ".join(capsys.readouterr().out.split())
    assert "m, n, k 4096 4096 4096 on a GPU and 256 256 128 emulated, --dtype (float16 or bfloat16) to float16" in text
    assert "the rungs below float32-sums sum in float16" in text


# A GPU made of host memory


class HalfGPU(FakeGPU):
    """Multiplies 16-bit matrices with NumPy as the rungs do: their parameters are A, B, C, D."""

    dtype: DType = F16

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Do what the kernel would."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        assert f".entry {launch.entry}(" in binary.ptx
        args: tuple[Any, ...] = launch.args
        m, n, k = (int(x) for x in args[4:7])
        assert [float(x) for x in args[7:9]] == [1.0, 0.0]
        shapes = {0: (m, k), 1: (k, n), 3: (m, n)}
        a, b, d = (self._view(args[place], shape) for place, shape in shapes.items())
        d[...] = a.astype(np.float32) @ b.astype(np.float32)
        if launch.entry == self.wrong:
            d[-1, -1] += self.dtype.numpy.type(4)

    def _view(self, where: object, shape: tuple[int, int]) -> Array:
        if isinstance(where, TensorMap):
            assert where.sizes == shape[::-1]
            where = where.pointer
        assert isinstance(where, Pointer)
        buffer = (ctypes.c_uint8 * (prod(shape) * 2)).from_address(where.address)
        return np.ctypeslib.as_array(buffer).view(self.dtype.numpy).reshape(shape)


def _peer(asked: HalfInputs, name: str, *, acc16: bool) -> FakePeer:
    """Return a cuBLAS that is right, as far as its sums allow."""
    product = asked.a.astype(np.float32) @ asked.b.astype(np.float32)
    # An error that float16 sums may have and float32 ones may not.
    product *= np.float32(1.005 if acc16 else 1.0)
    return FakePeer(name, product.astype(asked.problem.dtype.numpy), acc16=acc16)


def _peers(asked: HalfInputs, a: int, b: int) -> tuple[list[FakePeer], list[str]]:
    assert a != b
    result = [_peer(asked, WIDE, acc16=False)]
    if asked.problem.dtype is F16:
        result.append(_peer(asked, NARROW, acc16=True))
    return result, ["not compared with a note"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> HalfGPU:
    fake = HalfGPU()
    use(monkeypatch, fake)
    change(monkeypatch, "hgemm", libraries=_peers)
    return fake


RUNGS = ",".join(LABELS)


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str], rungs: str = RUNGS) -> tuple[int, Any]:
    code = main(["ladder", "hgemm", *arguments, "--rungs", rungs, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("dtype", HALVES)
def test_rates_refer_to_the_tensor_cores(dtype: str, gpu: HalfGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.dtype = HALVES[dtype]
    code, result = _json(["--n", "250", "--dtype", dtype], capsys)
    assert code == cli.OK, result
    assert (result["on"], result["problem"]) == ("gpu", {"m": 250, "n": 250, "k": 250, "dtype": dtype})
    seconds = MILLISECONDS / 1e3
    rows = {row["rung"]: row for row in result["rows"]}
    assert list(rows) == LABELS
    for label, row in rows.items():
        assert row["ok"] is True, row
        m, n, k = SIZES.get(label, (250, 250, 250))
        assert row["problem"] == {"m": m, "n": n, "k": k, "dtype": dtype}
        assert bool(row["note"]) == (label in SIZES)
        rate = 2 * m * n * k / seconds
        assert row["tflops"] == pytest.approx(rate / 1e12)
        assert row["peak_fraction"] == pytest.approx(rate / 989.4e12)
        assert row["library_fraction"] == pytest.approx(m * n * k / 250**3)
        assert "bytes" not in row
    assert [base["name"] for base in result["baselines"]] == ([WIDE, NARROW] if dtype == "float16" else [WIDE])
    assert all(base["ok"] for base in result["baselines"])
    assert "not compared with a note" in result["notes"]
    assert f"no row for the CPU: its BLAS has no {dtype}" in result["notes"]
    assert Outcome.from_dict(result).as_dict() == result
    assert gpu.live == {}


def test_a_wrong_rung_fails_the_run(gpu: HalfGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.wrong = "epilogue"
    assert main(["ladder", "hgemm", "--n", "200", "--rungs", "any-size,epilogue,float32-sums"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("epilogue ") and "WRONG" in line for line in lines)
    assert any(line.startswith("float32-sums ") and " ok" in line for line in lines)


@pytest.mark.usefixtures("gpu")
def test_a_library_s_error_is_judged_by_its_sums(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def honest(asked: HalfInputs, _a: int, _b: int) -> tuple[list[FakePeer], list[str]]:
        peer = _peer(asked, WIDE, acc16=True)
        peer.acc16 = False
        return [peer], []

    change(monkeypatch, "hgemm", libraries=honest)
    code, result = _json(["--n", "256"], capsys, "any-size")
    assert code == cli.FAILED
    assert result["baselines"][0]["ok"] is False


@pytest.mark.usefixtures("gpu")
def test_the_default_on_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert LADDERS["hgemm"].sizes["gpu"] == (4096, 4096, 4096)
    change(monkeypatch, "hgemm", sizes={"gpu": (128, 192, 64)})
    _, result = _json([], capsys, "any-size")
    assert result["problem"] == {"m": 128, "n": 192, "k": 64, "dtype": "float16"}
    _, result = _json(["--k", "32"], capsys, "any-size")
    assert result["problem"] == {"m": 128, "n": 192, "k": 32, "dtype": "float16"}


def test_rows_say_which_gpu_they_need(gpu: HalfGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.arch = get("t4")
    code, result = _json(["--n", "256"], capsys, "double-buffer,multistage")
    assert code == cli.OK
    assert [row["ok"] for row in result["rows"]] == [True, None]
    assert "cp.async needs compute capability 8.0: t4 has 7.5" in result["rows"][1]["note"]
    # No row of bfloat16 runs, and the library's has a rate but no peak to compare it with.
    code, result = _json(["--n", "256", "--dtype", "bfloat16"], capsys)
    assert {row["ok"] for row in result["rows"]} == {None}
    needed = ("mma.sync on bfloat16 needs compute capability 8.0", "wgmma needs compute capability 9.0, no other")
    assert all(any(words in row["note"] for words in needed) for row in result["rows"])
    assert result["baselines"][0]["peak_fraction"] is None
    assert result["baselines"][0]["tflops"] > 0
    assert main(["ladder", "hgemm", "--n", "256", "--dtype", "bfloat16"]) == cli.OK
    assert any(line.startswith(WIDE) for line in capsys.readouterr().out.splitlines())


@pytest.mark.usefixtures("gpu")
def test_tables_fit_the_terminal_and_plots_show_the_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["--n", "250"], capsys)
    small = Outcome.from_dict(result)
    as_large: dict[str, Any] = {"tflops": 612.3, "peak_fraction": 0.619, "seconds": 0.0017945}
    outcome = replace(
        small,
        rows=tuple(replace(row, **as_large) for row in small.rows),
        baselines=tuple(replace(base, **as_large) for base in small.baselines),
    )
    file = io.StringIO()
    for part in tables.report(outcome):
        Console(file=file, width=88).print(part, soft_wrap=True)
    lines = file.getvalue().splitlines()
    assert lines[0].strip() == "hgemm: m=250 n=250 k=250 float16, tensor-core peaks of the H200 SXM 141 GB"
    head = next(line for line in lines if line.startswith("rung"))
    assert all(word in head for word in ("time", "TFLOP/s", "% peak", "% lib", "regs", "check"))
    row = next(line for line in lines if line.startswith("epilogue"))
    assert all(cell in row for cell in ("1.79 ms", "612", "61.9%", "100.0%"))
    assert len(row) <= 88
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(outcome, tmp_path / "plot.svg")
        draw(replace(outcome, arch=get("titan-x")), tmp_path / "none.svg")
    picture = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "tensor-core peak 989" in picture
    assert "tensor-core peak" not in (tmp_path / "none.svg").read_text(encoding="utf-8")


# Sweeps


def test_a_sweep_runs_every_size(gpu: HalfGPU, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--sweep", "64..256"], capsys, "any-size,double-buffer")
    assert code == cli.OK
    assert [outcome["problem"]["n"] for outcome in result] == [64, 128, 256]
    assert [[row["rung"] for row in outcome["rows"]] for outcome in result] == [["double-buffer", "any-size"]] * 3
    again = Sweep.of_records(result[::-1])
    assert again.as_list() == result
    pytest.importorskip("matplotlib")
    plot = tmp_path / "sweep.png"
    arguments = ["ladder", "hgemm", "--sweep", "64..300", "--rungs", "any-size,double-buffer", "--plot", str(plot)]
    assert main(arguments) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hgemm: TFLOP/s at m = n = k, float16, H200 SXM 141 GB"
    assert next(line for line in lines if line.startswith("rung")).split() == ["rung", "64", "128", "256"]
    rates = [units.digits(2 * n**3 / 2e-3 / 1e12) for n in (64, 128, 256)]
    assert next(line for line in lines if line.startswith("any-size")).split()[1:] == rates
    assert any(line.startswith("* double-buffer for 64: at m=256 n=256 k=64") for line in lines)
    assert sum(line.startswith("measured on") for line in lines) == 1
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert gpu.live == {}


def test_a_sweep_of_a_wrong_rung_fails_and_says_where(gpu: HalfGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.wrong = "any_size"
    assert main(["ladder", "hgemm", "--sweep", "64..128", "--rungs", "any-size"]) == cli.FAILED
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("any-size"))
    assert row.split()[1:] == ["WRONG", "WRONG"]


def made_up(n: int) -> Outcome:
    """Return an outcome with the rates of a GPU, more at larger sizes.

    One rung is wrong at 2048, one moved from 1000.
    """
    full = 1 - 2.0 ** -(n / 1024)
    rows = [measured(label, tflops=full * 800 * (place + 1) / 11, ok=True) for place, label in enumerate(LABELS)]
    if n == 2048:
        rows[3] = replace(rows[3], ok=False, error_ratio=3.0)
    noted = LABELS.index("float32-sums")
    rows[noted] = replace(rows[noted], note="a note" if n == 1000 else "")
    base = outcome("gpu", rows).baselines[0]
    libraries = (replace(base, name=WIDE, tflops=full * 760), replace(base, name=NARROW, tflops=full * 800))
    environment = {"date": "2026-11-20", "nvrtc": "13.0", "packages": {"torch": "2.9"}, "gpus": None}
    problem = half_product(n, n, n)
    return outcome("gpu", rows, ladder="hgemm", problem=problem, baselines=libraries, environment=environment)


def test_a_plot_has_every_curve_and_leaves_out_what_is_wrong(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    sweep = Sweep(tuple(made_up(512 << step) for step in range(6)))
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw_sweep(sweep, tmp_path / "sweep.svg")
    picture = (tmp_path / "sweep.svg").read_text(encoding="utf-8")
    assert all(f">{name}<" in picture for name in (*LABELS, WIDE, NARROW, "tensor-core peak 989", "16384", "TFLOP/s"))
    assert not sweep.ok
    file = io.StringIO()
    for part in ladder_sweep.report(sweep):
        Console(file=file, width=100).print(part, soft_wrap=True)
    row = next(line for line in file.getvalue().splitlines() if line.startswith("prefetch"))
    assert row.split()[3] == "WRONG"


def test_the_page_has_rates_of_every_size_and_type() -> None:
    records = [made_up(n).as_dict() for n in (512, 1000, 8192)]
    page = hgemm_page(HGEMM, records)
    assert "TFLOP/s in float16:\n\n| rung | 512 | 1000 | 8192 |" in page
    assert "| float32-sums | " in page
    assert " * |" in next(line for line in page.splitlines() if line.startswith("| float32-sums |"))
    assert page.index(f"| {NARROW} |") > page.index("| float32-sums |")
    assert "](../benchmarks/results/hgemm_h100_float16.png)" in page
    assert "*Measured* at 8192 float16: " in page
    assert "of the h200's tensor-core peak" in page
    assert "ot measured yet" not in page


def test_the_page_says_which_rungs_nobody_measured() -> None:
    record = made_up(512).as_dict()
    record["rows"] = [row for row in record["rows"] if row["rung"] not in {"persistent", "pingpong"}]
    page = hgemm_page(HGEMM, [record])
    assert "\nNot measured yet: `persistent`, `pingpong`.\n" in page
    assert "| persistent | - |\n" in page
    assert page.count(" *Not measured yet.*\n") == 2


# Libraries


def _resident(memory: Any, device: str) -> Tensor:
    assert device == "cuda"
    interface = memory.__cuda_array_interface__
    size = prod(interface["shape"]) * np.dtype(interface["typestr"]).itemsize
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(interface["data"][0]))
    return Tensor(np.ndarray(interface["shape"], interface["typestr"], flat, strides=interface["strides"]))


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    result: Any = stand_in()
    result.as_tensor = _resident
    monkeypatch.setitem(sys.modules, "torch", result)
    monkeypatch.setattr(gemm, "installed", lambda: ("torch", "cupy"))
    return result


def _asked(dtype: DType) -> HalfInputs:
    return HalfInputs.random(half_product(40, 24, 56, dtype), 3)


def test_cublas_sums_both_ways_through_torch(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_fp16_accumulation = False
    seen = []
    plain = torch.mm

    def mm(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        seen.append(torch.backends.cuda.matmul.allow_fp16_accumulation)
        result: Tensor = plain(a, b, out=out)
        return result

    torch.mm = mm
    asked = _asked(F16)
    result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert absent == []
    assert [(peer.name, peer.version) for peer in result] == [(name, "torch 0 (stand-in)") for name in (WIDE, NARROW)]
    assert [getattr(peer, "acc16", None) for peer in result] == [False, True]
    assert seen == [False, True]
    assert torch.backends.cuda.matmul.allow_fp16_accumulation is False
    assert torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction is False
    assert all(asked.check(peer.result()).ok for peer in result)


def test_the_switch_goes_back_where_a_call_fails(torch: Any) -> None:
    torch.backends.cuda.matmul.allow_fp16_accumulation = False

    def broken(*_: object, out: object) -> None:
        raise RuntimeError(f"no kernel\nfor {out}")

    torch.mm = broken
    asked = _asked(F16)
    result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert result == []
    assert absent == [f"not compared with {name}: no kernel" for name in (WIDE, NARROW)]
    assert torch.backends.cuda.matmul.allow_fp16_accumulation is False


def test_an_older_torch_has_float32_sums_alone(torch: Any) -> None:
    for dtype, notes in ((F16, 1), (BF16, 0)):
        asked = _asked(dtype)
        result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
        assert [peer.name for peer in result] == [WIDE]
        assert asked.check(result[0].result()).ok
        assert len(absent) == notes
        assert all("torch has them since 2.7, and this is 0 (stand-in)" in note for note in absent)
    assert not hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation")


def test_cupy_is_what_is_left(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.cuda.is_available = lambda: False
    cupy: Any = ModuleType("cupy")
    cupy.__version__ = "0"
    cupy.asarray = lambda memory: _resident(memory, "cuda").array
    cupy.full = np.full
    cupy.asnumpy = np.asarray

    def matmul(a: Array, b: Array, out: Array) -> None:
        out[...] = a.astype(np.float32) @ b.astype(np.float32)

    cupy.matmul = matmul
    cupy.cuda = SimpleNamespace(
        ExternalStream=lambda _address: nullcontext(), Device=lambda: SimpleNamespace(synchronize=lambda: None)
    )
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    asked = _asked(F16)
    result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert absent == []
    assert [(peer.name, peer.version) for peer in result] == [(WIDE, "cupy 0")]
    assert asked.check(result[0].result()).ok
    asked = _asked(BF16)
    result, absent = half_peers(asked, asked.a.ctypes.data, asked.b.ctypes.data)
    assert result == []
    assert absent == [f"not compared with {WIDE}: bfloat16 is not handed to it"]
