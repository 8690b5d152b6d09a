"""The inner ladder's products, inputs, bounds, options and tables, and its run on a GPU made of host memory."""

from __future__ import annotations

import ctypes
import io
import json
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from host.test_cli_gpu import MILLISECONDS, FakeGPU
from matmill import cli
from matmill.arch import get
from matmill.bench.libraries import gemm
from matmill.bench.problems import error_bounds
from matmill.bench.problems.error_bounds import random_sum
from matmill.bench.problems.inputs import Inputs, InputsBySize
from matmill.bench.problems.random_numbers import uniform
from matmill.cli import main, tables
from matmill.dtypes import ALL, BF16, F16, F32, F64
from matmill.jit.compile import Binary
from matmill.ladders.inner.rungs import INNER
from matmill.ladders.inner.subject import CASES, TRAFFIC, case, gram_of, inner_product
from matmill.ladders.registry import LADDERS
from matmill.ladders.runner.plot import draw
from matmill.ladders.runner.results import Outcome
from matmill.ladders.runner.selection import nearest
from matmill.launch import Launch, Pointer
from support.ladder_runs import FakePeer, change, refused, use
from support.named_arguments import named

Array = NDArray[Any]
BY_LABEL = {rung.label: rung for rung in INNER}


# Products


def test_the_cases_are_the_paper_s() -> None:
    assert CASES["MTXA"] == (3, 3, 50_000_000)
    assert CASES["MTXB"] == (5, 5, 300_000_000)
    assert (CASES["MTXC"], CASES["MTXC-2e8"]) == ((7, 7, 2_000_000_000), (7, 7, 200_000_000))
    assert [CASES[f"MTX{i}"] for i in (1, 2, 3)] == [(m, m, 30_000_000) for m in (5, 7, 9)]
    assert case("mtxc-2E8") == CASES["MTXC-2e8"]


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("k", [1, 7, 8, 100])
@pytest.mark.parametrize("layout", ["row", "column", "gram"])
def test_alignments_are_true_of_the_arrays(layout: str, k: int, dtype: Any) -> None:
    problem = inner_product(3, 5, k, dtype, "row" if layout == "gram" else layout)
    if layout == "gram":
        problem = gram_of(problem)
    result = Inputs.random(problem, 1)
    size = dtype.itemsize
    for matrix, strides, align in (
        (result.a, problem.a_row_col, problem.a_align),
        (result.b, problem.b_row_col, problem.b_align),
    ):
        steps = [stride for stride, extent in zip(matrix.strides, matrix.shape, strict=True) if extent > 1]
        wanted = [s * size for s, extent in zip(strides, matrix.shape, strict=True) if extent > 1]
        assert steps == wanted
        assert len(steps) < 2 or max(steps) % align == 0  # a single line starts where its memory does
    assert result.b.shape == (k, problem.n)


def test_a_gram_rung_gets_the_transpose_and_others_the_size_asked_for() -> None:
    h200 = get("h200")
    asked = inner_product(5, 3, 100, F64, "column")
    result, reason = nearest(BY_LABEL["gram"], asked, h200, TRAFFIC)
    assert result == gram_of(asked)
    assert reason == "its F is the transpose of E"
    assert all(
        nearest(rung, asked, h200, TRAFFIC) == (asked, "") for label, rung in BY_LABEL.items() if label != "gram"
    )


# Inputs


@pytest.mark.parametrize("start", [0, 1, 6, 7])
@pytest.mark.parametrize("dtype", [F32, F64], ids=lambda dtype: dtype.name)
def test_threads_draw_what_one_generator_would(start: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matmill.bench.problems.random_numbers._CHUNK", 8)
    generator = np.random.default_rng([3, 4])
    expected = 2 * generator.random(start + 60, dtype=dtype.numpy)[start:] - 1
    assert np.array_equal(uniform([3, 4], start, (6, 10), dtype), expected.reshape(6, 10))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=lambda dtype: dtype.name)
def test_16_bit_inputs_are_the_float32_ones_rounded(dtype: Any) -> None:
    wide = uniform([5], 0, (4, 100), F32)
    assert np.array_equal(uniform([5], 0, (4, 100), dtype), wide.astype(dtype.numpy))


def test_a_gram_matrix_shares_the_one_input() -> None:
    by_size = InputsBySize(1)
    asked = inner_product(4, 4, 50)
    plain, gram = by_size.of(asked), by_size.of(gram_of(asked))
    assert np.shares_memory(plain.a, gram.a)
    assert np.shares_memory(plain.a, gram.b)
    alone = InputsBySize(1).of(gram_of(asked))
    assert np.array_equal(alone.a, plain.a)


def test_inputs_beyond_memory_are_refused_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ladder", "inner", "--on", "emulator", "--k", "1e18"]) == cli.USAGE
    assert "smaller sizes" in capsys.readouterr().err


# The bound


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
def test_the_bound_holds_for_a_running_sum_and_not_for_a_wrong_one(dtype: Any) -> None:
    problem = inner_product(3, 4, 50_000, dtype)
    result = Inputs.random(problem, 11, random_sum)
    wide = dtype.accumulator.numpy
    a, b = result.a.astype(wide), result.b.astype(wide)
    running = np.array([[np.cumsum(row * column)[-1] for column in b.T] for row in a]).astype(dtype.numpy)
    assert result.check(running).ok
    assert not result.check(np.zeros_like(running)).ok
    off = running.copy()
    off[1, 2] += dtype.numpy.type(4)
    assert not result.check(off).ok
    off[1, 2] = np.nan
    assert result.check(off).error_ratio == np.inf
    assert not result.check(running.astype(F32.numpy if dtype is F64 else F64.numpy)).ok


def test_blocks_along_k_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    result = Inputs.random(inner_product(2, 3, 5000, F64, "column"), 1, random_sum)
    whole, limit = random_sum(result.a, result.b)
    monkeypatch.setattr(error_bounds, "_BLOCK", 1)
    parts, again = random_sum(result.a, result.b)
    assert np.allclose(parts, whole, rtol=1e-13, atol=1e-12)
    assert np.allclose(limit, again)
    assert np.all(np.abs(whole - result.a @ result.b) <= limit)


def test_the_bound_is_the_worst_case_where_k_is_short() -> None:
    a, b = np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)
    terms = 5 * 2.0**-24
    _, limit = random_sum(a, b)
    assert limit[0, 0] == pytest.approx(2 * terms / (1 - terms))
    a, b = np.ones((1, 10_000), np.float32), np.ones((10_000, 1), np.float32)
    _, limit = random_sum(a, b)
    assert limit[0, 0] == pytest.approx(8 * 2.0**-24 * (10_000 + sqrt(10_000) * 10_000))


def test_a_sum_beyond_float16_must_be_infinite() -> None:
    problem = inner_product(1, 1, 200, F16)
    a, b = (np.full(shape, 30, np.float16) for shape in ((1, 200), (200, 1)))
    result = Inputs(problem, a, b, random_sum)
    assert result.check(np.array([[np.inf]], np.float16)).ok
    assert not result.check(np.array([[65504]], np.float16)).ok


# Options


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inner", "--case", "MTX4"], cli.USAGE, ["--case: got 'MTX4'", "one of MTXA, MTXB"]),
        (["inner", "--dtype", "float23"], cli.USAGE, ["--dtype: got 'float23'", "Did you mean 'float"]),
        (["inner", "--layout", "colum"], cli.USAGE, ["Did you mean 'column'?"]),
        (["inner", "--bs", "33"], cli.USAGE, ["--bs: got 33", "multiple of 32"]),
        (["inner", "--bs", "2048"], cli.USAGE, ["--bs: got 2048"]),
        (["inner", "--gs", "3e9"], cli.USAGE, ["--gs: got 3000000000", "at most 2147483647"]),
        (["inner", "--gs", "8", "--rungs", "gram"], cli.USAGE, ["--gs", "basic or phvm"]),
        (["inner", "--k", "1.5"], cli.USAGE, ["got '1.5'"]),
        (["inner", "--rungs", "phwm"], cli.USAGE, ["Did you mean 'phvm'?"]),
        (["iner"], cli.USAGE, ["Did you mean 'inner'?"]),
        (
            ["sgemm", "--dtype", "float64"],
            cli.USAGE,
            ["--dtype: got 'float64' for ladder sgemm", "inner or transpose_add alone"],
        ),
        (["memory", "--case", "MTXA"], cli.USAGE, ["--case", "for ladder memory"]),
        (["inner", "--on", "gpu"], cli.NO_GPU, ["--on: got 'gpu'"]),
        (["inner", "--k", "5e7", "--on", "auto"], cli.USAGE, ["without a usable GPU", "--on emulator"]),
        (["inner", "--case", "MTXA", "--on", "auto"], cli.USAGE, ["k=50000000", "--k, for instance 1e5"]),
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


# A GPU made of host memory


class InnerGPU(FakeGPU):
    """Does at ``splitk_reduce`` what the launches before it were for, with the matrices that they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[str] = []
        self.pending: Launch  # the one whose sums are still to be added
        self.drift = 0.0
        self.products = 0

    def launch(self, binary: Binary, launch: Launch, stream: object = None) -> None:
        """Note the launch, and multiply where it is the last of its kernel."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        assert f".entry {launch.entry}(" in binary.ptx
        self.entries.append(launch.entry)
        given = named(launch)
        if launch.entry not in {"clear", "splitk_reduce"}:
            self.pending = launch
        elif launch.entry == "splitk_reduce":
            assert (int(given["d_row"]), int(given["d_column"])) == (int(given["n"]), 1)
            self._multiply(given["D"], int(given["m"]), int(given["n"]))
        # No workspace: one block makes D itself; a counter: the last block does.
        if launch.entry == "inner" and (not given["workspace"].address or given["counter"].address):
            d, d_row = given["D"], int(given["d_row"])
            self._multiply(d, self.live[d.address].nbytes // (4 * d_row), d_row)

    def _multiply(self, d: Pointer, m: int, n: int) -> None:
        entry, args, given = self.pending.entry, self.pending.args, named(self.pending)
        if entry == "inner":
            e_at, f_at = given["E"], given["F"]
            k, e_row, f_k, f_column = (int(given[name]) for name in ("k", "e_row", "f_k", "f_column"))
        else:
            e_at, f_at = args[:2]
            numbers = [int(x) for x in args if isinstance(x, np.integer)]
            if entry in {"basic", "phvm"}:  # which take m and n
                assert numbers[:2] == [m, n]
                numbers = numbers[2:]
            k, e_row, *f = numbers
            f_k, f_column = f[1:3] if entry != "gram" else (1, e_row)
        e = _strided(e_at, (m, k), (e_row, 1))
        right = e.T if entry == "gram" else _strided(f_at, (k, n), (f_k, f_column))
        product = e @ right
        self.products += 1
        if entry == self.wrong:
            product[0, 0] += 1
        product[-1, -1] *= np.float32(1 + self.drift * self.products)
        _strided(d, (m, n), (n, 1))[:] = product


def _strided(where: object, shape: tuple[int, int], strides: tuple[int, int]) -> NDArray[np.float32]:
    assert isinstance(where, Pointer)
    span = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    flat = np.ctypeslib.as_array((ctypes.c_float * span).from_address(where.address))
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(4 * stride for stride in strides))


def _peers(asked: Inputs, a: int, b: int) -> tuple[list[FakePeer], list[str]]:
    assert a != b
    product = asked.a @ asked.b
    return [FakePeer("torch.mm", product), FakePeer("torch einsum", product)], ["not compared with cupy: no"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> InnerGPU:
    fake = InnerGPU()
    use(monkeypatch, fake)
    change(monkeypatch, "inner", libraries=_peers)
    return fake


def _json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["ladder", "inner", *arguments, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, result


@pytest.mark.parametrize("layout", ["row", "column"])
def test_rates_are_bytes_over_time(layout: str, gpu: InnerGPU, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = _json(["--m", "3", "--k", "4096", "--layout", layout], capsys)
    assert code == cli.OK, result
    assert (result["on"], result["problem"]["layout"]) == ("gpu", layout)
    rows = {row["rung"]: row for row in result["rows"]}
    assert list(rows) == [*BY_LABEL, "production"]
    for row in rows.values():
        moved = 4 * ((1 if row["rung"] == "gram" else 2) * 3 * 4096 + 9)
        assert row["ok"] is True, row
        assert row["bytes"] == moved
        assert row["seconds"] == MILLISECONDS / 1e3
        assert row["tbytes_per_second"] == pytest.approx(moved / 2e-3 / 1e12)
        assert row["bandwidth_fraction"] == pytest.approx(moved / 2e-3 / 4.8e12)
        assert row["tflops"] == pytest.approx(2 * 9 * 4096 / 2e-3 / 1e12)
        assert row["library_fraction"] == pytest.approx(1.0)  # the same product in the same time, Gram or not
    assert rows["two-stage"]["note"] == rows["production"]["note"] == "two runs gave the same bits"
    names = [base["name"] for base in result["baselines"]]
    assert names == ["torch.mm", "torch einsum", "CPU BLAS (NumPy)"]
    assert all(base["ok"] and base["tbytes_per_second"] > 0 for base in result["baselines"])
    assert "not compared with cupy: no" in result["notes"]
    assert Outcome.from_dict(result).as_dict() == result
    assert {"clear", "splitk_reduce", "basic", "gram"} <= set(gpu.entries)
    assert gpu.live == {}


def test_a_wrong_rung_fails_the_run(gpu: InnerGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.wrong = "phvm"
    assert main(["ladder", "inner", "--k", "3000"]) == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("phvm ") and "WRONG" in line for line in lines)
    assert any(line.startswith("basic ") and " ok" in line for line in lines)
    assert gpu.live == {}


def test_results_that_differ_from_run_to_run_are_seen(gpu: InnerGPU, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.drift = 3e-7
    code, result = _json(["--k", "3000", "--rungs", "vectorized,two-stage"], capsys)
    assert code == cli.FAILED
    vectorized, two_stage = result["rows"]
    assert (vectorized["ok"], vectorized["note"]) == (True, "")
    assert two_stage["ok"] is False
    assert two_stage["note"] == "two runs gave different bits"


@pytest.mark.usefixtures("gpu")
def test_the_production_kernel_is_a_row_that_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["--k", "40000", "--rungs", "two-stage,production"], capsys)
    assert [row["rung"] for row in result["rows"]] == ["two-stage", "production"]
    assert all(row["ok"] and row["library_fraction"] == pytest.approx(1) for row in result["rows"])
    wide = LADDERS["inner"].rows[-1]
    for dtype in (F32, F16):
        asked = inner_product(200, 3, 5000, dtype)
        assert nearest(wide, asked, get("h200"), TRAFFIC) == (asked, "")  # the kernels of any product take it
    # Turing's tensor cores have no bfloat16.
    size, reason = nearest(wide, inner_product(200, 20, 5000, BF16), get("t4"), TRAFFIC)
    assert size is not None
    assert (size.m, size.n) == (200, 16)  # few columns: the kernel for these takes any number of rows
    assert "200 x 20 outputs are more than 128 x 128" in reason


@pytest.mark.usefixtures("gpu")
def test_a_cpu_that_would_take_long_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("matmill.ladders.runner.rows.cpu_estimate", lambda _a, _b: 12.0)
    _, result = _json(["--k", "3000", "--rungs", "gram"], capsys)
    assert "CPU BLAS (NumPy)" not in [base["name"] for base in result["baselines"]]
    assert "no row for the CPU: its BLAS would take about 12.0 s" in result["notes"]


@pytest.mark.usefixtures("gpu")
def test_the_default_on_a_gpu_is_mtxa(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert LADDERS["inner"].sizes["gpu"] == CASES["MTXA"]
    change(monkeypatch, "inner", sizes={"gpu": (3, 3, 5000)})
    _, result = _json(["--rungs", "one-pass"], capsys)
    assert result["problem"] == {"m": 3, "n": 3, "k": 5000, "dtype": "float32", "layout": "row"}


@pytest.mark.usefixtures("gpu")
def test_tables_fit_the_terminal_and_plots_show_bandwidth(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    _, result = _json(["--m", "3", "--k", "40000"], capsys)
    small = Outcome.from_dict(result)
    as_large: dict[str, Any] = {
        "bytes": 1_200_000_036,
        "tbytes_per_second": 4.567,
        "bandwidth_fraction": 0.951,
        "seconds": 0.2627,
    }
    outcome = replace(
        small,
        rows=tuple(replace(row, **as_large) for row in small.rows),
        baselines=tuple(replace(base, **as_large) for base in small.baselines),
    )
    file = io.StringIO()
    for part in tables.report(outcome):
        Console(file=file, width=84).print(part, soft_wrap=True)
    lines = file.getvalue().splitlines()
    head = next(line for line in lines if line.startswith("rung"))
    assert all(word in head for word in ("time", "moved", "TB/s", "% bw", "% lib", "regs", "check"))
    row = next(line for line in lines if line.startswith("two-stage *"))
    assert all(cell in row for cell in ("263 ms", "1.20 GB", "4.57", "95.1%", "100.0%"))
    assert len(row) <= 84
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(outcome, tmp_path / "plot.svg")
    picture = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "bandwidth 4.80" in picture
    assert "TB/s" in picture


def test_libraries_that_refuse_are_told_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "installed", lambda: ("cupy",))
    result, absent = gemm.peers(Inputs.random(inner_product(2, 2, 8, BF16), 1), 256, 512)
    assert result == []
    assert absent == ["not compared with cupy (cupy_matmul): bfloat16 is not handed to it"]


def test_matrices_reach_a_library_as_they_lie() -> None:
    problem = inner_product(2, 3, 100, BF16, "column")
    e, f = (device.__cuda_array_interface__ for device in gemm._operands(problem, 1024, 4096))
    assert (e["data"], e["shape"], e["strides"], e["typestr"]) == ((1024, False), (2, 100), (200, 2), "<i2")
    assert (f["data"], f["shape"], f["strides"]) == ((4096, False), (100, 3), (2, 200))


def test_sgemm_rows_have_no_fields_of_traffic() -> None:
    from host.test_cli_ladder import measured, outcome  # noqa: PLC0415 — beside its only use

    result = outcome("gpu", [measured("a")]).as_dict()
    for row in (*result["rows"], *result["baselines"]):
        assert not {"bytes", "tbytes_per_second", "bandwidth_fraction"} & set(row)
