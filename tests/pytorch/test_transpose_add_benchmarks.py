"""The comparison and the search of transpose+add, with torch's tensors on the CPU and a GPU made of host memory."""

from __future__ import annotations

import ctypes
import json
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab import calls, tensors
from lab.compiler import KernelCompiler
from lab.contest import Rules
from lab.enqueue import enqueuer
from lab.records import append
from lab.transpose_add import compare as comparing
from lab.transpose_add import search, shapes
from lab.transpose_add.compare import TORCH_COPY, Copies, compare, host_costs
from lab.transpose_add.matrices import TransposeAddMatrices
from lab.transpose_add.report import FORMAT, OURS, OURS_AS_X, entries, page_part, recorded_comparisons
from lab.transpose_add.search import Tools, candidates, grid, left, measure, named, problem_of, read, slim_grid
from lab.transpose_add.shapes import CASE, Shape
from matmill.arch import get
from matmill.bench.libraries import transpose_add as libraries
from matmill.bench.libraries.transpose_add import COMPILED, COMPILED_AS_Y, EAGER, TUNED
from matmill.bench.timing import device_copy
from matmill.bench.timing.device_copy import COPY_NAME, Copying
from matmill.dtypes import BF16, ELEMENTWISE, F16, F32, I8
from matmill.errors import ArgumentError
from matmill.kernels.transpose import tiles as turns
from matmill.ladders.transpose_add.subject import transpose_add_problem
from matmill.lowering import lower_transpose
from matmill.problem import Geam
from matmill.runtime.clock import Clock
from matmill.runtime.gpu import GPU
from support.ladder_gpu import MILLISECONDS, FakeGPU, strided
from support.named_arguments import named as named_arguments
from support.scripts import run_script

torch: Any = pytest.importorskip("torch")


class SumGPU(FakeGPU):
    """Adds and copies with NumPy what launches ask for."""

    copied = 0

    def launch(self, binary: Any, launch: Any, stream: object = None) -> None:
        """Do what the kernel would."""
        assert stream is None or hasattr(stream, "__cuda_stream__")
        assert f".entry {launch.entry}(" in binary.ptx
        if launch.entry == "stream_copy":
            self.copied = 16 * int(launch.args[2])
            ctypes.memmove(launch.args[1].address, launch.args[0].address, self.copied)
            return
        given = named_arguments(launch)
        assert [float(given[name]) for name in ("alpha", "beta")] == [1.0, 1.0]
        assert [int(given[f"{name}_batch"]) for name in "xyd"] == [0, 0, 0]
        shape = int(given["m"]), int(given["n"])
        steps = {name: (int(given[f"{name}_row"]), int(given[f"{name}_column"])) for name in "xyd"}
        x, y, d = (strided(given[name.upper()], shape, steps[name], np.float32) for name in "xyd")
        d[...] = x + y
        d[-1:, -1:].view(np.int32)[...] ^= launch.entry == self.wrong


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SumGPU:
    """Provide torch on the CPU under CUDA's names, and a GPU that computes with NumPy."""
    fake = SumGPU()
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: fake)
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    monkeypatch.setattr(device_copy, "LEAST", 4096)
    monkeypatch.setattr(device_copy, "MOST", 4096)
    monkeypatch.setattr(Clock, "_settle", lambda *_: None)
    monkeypatch.setattr("matmill.runtime.clock.flush_bytes", lambda _arch, *, cold: 1024 * cold)
    for name, stand_in in {
        "synchronize": lambda: None,
        "stream": lambda _stream: nullcontext(),
        "ExternalStream": lambda address: address,
        "default_stream": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)
    monkeypatch.setattr(calls, "TIMERS", {"graph": calls.loop_timer, "plain": calls.loop_timer})
    monkeypatch.setattr(calls, "_LOOP", 3)
    monkeypatch.setattr(calls, "_WARM", 2)
    monkeypatch.setattr(calls, "_HOST_CALLS", 2)
    return fake


def _compare(
    gpu: Any, shape: Shape, *, everything: bool = False, compile_until: float = float("inf")
) -> dict[str, Any]:
    with Clock(gpu, 0) as clock, Copying(gpu, shape.nbytes) as copied:
        copies = Copies(copied)
        return compare(get("h200"), clock, copies, shape, 3, everything=everything, compile_until=compile_until)


@pytest.mark.parametrize("dtype", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_matrices_are_views_of_longer_rows_and_random(dtype: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "DEVICE", "cpu")
        result = TransposeAddMatrices(Shape("pitch", 30, 20, dtype, batch=2, x_pad=3, y_pad=1), 5)
        again = TransposeAddMatrices(Shape("pitch", 30, 20, dtype, batch=2, x_pad=3, y_pad=1), 5)
    assert result.x.shape == (2, 30, 20)
    assert result.x.stride() == (30 * 23, 23, 1)
    assert result.y.stride() == (20 * 31, 31, 1)
    assert result.out.is_contiguous()
    assert result.same(result.x, again.x)
    assert len(result.x.unique()) > 100
    result.poison()
    assert not result.same(result.out, result.y)
    wrong = result.y.clone()
    wrong[-1, -1, -1] += 1
    assert result.same(result.y.clone(), result.y)
    assert not result.same(wrong, result.y)
    assert not result.same(result.y[0], result.y)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("odd", 33, 21, BF16),
        Shape("batch", 12, 20, F16, batch=3),
        Shape("pitch", 17, 9, I8, x_pad=1, y_pad=2),
    ],
    ids=str,
)
def test_every_library_is_interleaved_with_copies(shape: Shape, gpu: SumGPU) -> None:
    result = _compare(gpu, shape)
    assert Shape.restored(result["shape"]) == shape
    assert result["bytes"] == 3 * shape.batch * shape.m * shape.n * shape.dtype.itemsize
    rows = {row["name"]: row for row in result["rows"]}
    assert list(rows) == [OURS, OURS_AS_X, EAGER, COMPILED, COMPILED_AS_Y]
    as_x = tuple(torch.empty(shape.batch, shape.m, shape.n).squeeze(0).transpose(-2, -1).stride())
    assert [tuple(row["strides"]) == as_x for row in rows.values()] == [False, True, True, True, False]
    assert all(row["same"] and row["median"] == MILLISECONDS / 1e3 for row in rows.values())
    assert all(row["graph"] > 0 and row["plain"] > 0 for row in rows.values())  # it is a short one
    assert result["copy_bytes_per_s"] == dict.fromkeys((COPY_NAME, TORCH_COPY), 8192 / (MILLISECONDS / 1000.0))
    assert result["configs"]
    assert result["predicted_seconds"] > 0
    assert json.loads(json.dumps(result)) == result
    assert gpu.live == {}


def test_a_result_that_differs_from_eager_torch_s_is_seen(gpu: SumGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "transpose_add", lambda x, y, out: torch.sub(y, x.t(), out=out))
    result = _compare(gpu, Shape("odd", 33, 21, F32))
    assert [row["same"] for row in result["rows"]] == [False, False, True, True, True]
    assert not entries({"sums": [result]})[0].ok


def test_what_cannot_be_compiled_is_left_out_and_said(gpu: SumGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape("odd", 33, 21, F32)
    result = _compare(gpu, shape, everything=True, compile_until=0)
    assert [row["name"] for row in result["rows"]][:3] == [OURS, OURS_AS_X, EAGER]
    assert f"{TUNED}: left out, no time to compile" in result["absent"]

    def refuses(_function: object, **options: object) -> object:
        raise RuntimeError(f"no compiler for {options['dynamic']}\nat all")

    monkeypatch.setattr(torch, "compile", refuses)
    result = _compare(gpu, shape)
    assert [row["name"] for row in result["rows"]] == [OURS, OURS_AS_X, EAGER]
    assert result["absent"] == [
        f"not compared with {name}: no compiler for False" for name in (COMPILED, COMPILED_AS_Y)
    ]


def test_without_eager_torch_there_is_nothing_to_compare_with(gpu: SumGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_x: Any, _y: Any) -> Any:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(libraries, "_sum", refuses)
    with pytest.raises(ArgumentError, match="out of memory"):
        _compare(gpu, Shape("odd", 33, 21, F32))


def test_the_host_s_cost_is_told_for_every_way(gpu: SumGPU) -> None:
    assert gpu.live == {}
    result = host_costs(1)
    assert [one["dtype"] for one in result] == ["float32", "bfloat16"]
    for one in result:
        assert {OURS, "x.t() + y"} < set(one["seconds"])
        assert all(0 < seconds < 1 for seconds in one["seconds"].values())


@pytest.fixture
def any_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a clock that flushes nothing: what flushes is a kernel that is not emulated."""
    for module in ("lab.transpose_add.search", "lab.transpose_add.compare"):
        monkeypatch.setattr(f"{module}.clean_clock", lambda gpu: Clock(gpu, 0))


@pytest.mark.usefixtures("gpu", "any_clock")
def test_the_script_writes_records_that_the_page_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Shape(CASE.kind, 96, 40, BF16)
    monkeypatch.setattr(comparing, "CASE", case)
    few = (Shape("tiny", 8, 12, F32), Shape("pitch", 30, 40, I8, y_pad=1), Shape("odd", 3, 5, F16))
    for name, group in {CASE.kind: (case,), "shapes": few}.items():
        monkeypatch.setitem(shapes.GROUPS, name, group)
    assert run_script(monkeypatch, "compare.py", "--out", tmp_path, "--limit", 2) == 0
    text = capsys.readouterr().out
    assert "article: 1 of 1 shapes on h200" in text
    assert "shapes: 2 of 2 shapes on h200" in text
    assert "host, 64x64 bfloat16: matmill.transpose_add" in text
    records = recorded_comparisons(tmp_path)
    assert [(record["record"], record["group"], len(record["sums"])) for record in records.values()] == [
        (FORMAT.kind, "article", 1),
        (FORMAT.kind, "shapes", 2),
    ]
    page = page_part(records)
    assert all(word in page for word in (f"| {OURS} |", EAGER, TUNED, "30x40 int8", "What a call costs the host"))
    assert run_script(monkeypatch, "compare.py", "--out", tmp_path / "late", "--seconds", 0) == 0
    assert "0 of 1 shapes" in capsys.readouterr().out


# The search


class SearchGPU(SumGPU):
    """A GPU on which prepared launches do what launches do."""

    frame = GPU.frame

    def prepare(self, binary: Any, launch: Any) -> Any:
        """Return what enqueues the launch, whatever the address of its parameters."""
        return lambda _config, _parameters: self.launch(binary, launch)


@pytest.fixture
def search_gpu(gpu: SumGPU, monkeypatch: pytest.MonkeyPatch) -> SearchGPU:
    assert gpu.live == {}
    fake = SearchGPU()
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: fake)
    return fake


def test_the_grid_has_every_type_and_alignment() -> None:
    shapes = grid()
    assert shapes[0] == CASE
    assert len(set(shapes)) == len(shapes)
    for dtype in ELEMENTWISE.values():
        own = [shape for shape in shapes[1:] if shape.dtype is dtype]
        packed = [shape for shape in own if shape.batch == 1 and not shape.x_pad and not shape.y_pad]
        assert {0, dtype.itemsize} <= {shape.m * dtype.itemsize % 16 for shape in packed}
        assert {shape.m // 1000 for shape in packed} == {1, 4, 12}
        assert {(shape.x_pad > 0, shape.y_pad > 0) for shape in own} == {*product((False, True), repeat=2)}
        assert any(shape.batch > 1 for shape in own)


def test_the_slim_grid_has_every_type_with_either_side_short_and_rows_that_start_anywhere() -> None:
    shapes = [shape for shape in slim_grid() if shape.kind == "slim"]
    assert len(set(shapes)) == len(shapes)
    for dtype, wide in product(ELEMENTWISE.values(), (False, True)):
        own = [shape for shape in shapes if shape.dtype is dtype and (shape.m < shape.n) == wide]
        assert {max(shape.m, shape.n) * dtype.itemsize % 16 > 0 for shape in own} == {False, True}
        for shape in own:
            entries = {
                one.kernel.entry for one in candidates(transpose_add_problem(shape.m, shape.n, dtype), get("h200"))
            }
            assert entries == {"transpose_add", "transpose_slim"}


def test_the_slim_grid_has_batches_of_small_matrices_of_every_type() -> None:
    shapes = [shape for shape in slim_grid() if shape.kind == "small"]
    assert len(set(shapes)) == len(shapes) == 6 * len(ELEMENTWISE)
    assert {shape.dtype for shape in shapes} == set(ELEMENTWISE.values())
    for shape in shapes:
        plain, each = transpose_add_problem(shape.m, shape.n, shape.dtype), shape.m * shape.n
        x, d = replace(plain.x, batch=each), replace(plain.d, batch=each)
        problem = replace(plain, x=x, y=d, d=d, batch=shape.batch)
        assert "transpose_small" in {one.kernel.entry for one in candidates(problem, get("h200"))}


@pytest.mark.parametrize(
    "shape",
    [Shape("grid", 9, 24, F32, x_pad=1, y_pad=3), Shape("grid", 67, 45, F32)],
    ids=str,
)
def test_every_configuration_is_checked_and_timed(search_gpu: SearchGPU, tmp_path: Path, shape: Shape) -> None:
    gpu: Any = search_gpu
    path = tmp_path / "search.jsonl"
    assert left([shape], path, 5, {"date": "today"}) == [shape]
    result = candidates(problem_of(shape), get("h200"))
    with KernelCompiler("sm_90a", 0) as compiler, Clock(gpu, 0) as clock, Copying(gpu, CASE.nbytes) as copying:
        tools = Tools(gpu, clock, compiler, copying, Rules(rounds=2), 5)
        line = measure(tools, shape, result)
        append(path, line)
        gpu.wrong = "transpose_add"
        wrong = measure(tools, shape, result)
    assert len(line["rows"]) == len(result) > 5
    assert [row["predicted"] for row in line["rows"]] == [one.predicted for one in result]
    assert {row["config"].get("SHIFTED") for row in line["rows"]} >= {0, 1}
    assert line["wrong"] == []
    assert all(row["seconds"] == MILLISECONDS / 1e3 and row["rounds"] == 2 for row in line["rows"])
    assert wrong["wrong"]
    assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1]) == json.loads(json.dumps(line))
    (back,) = read([path, path])
    assert back.configs == tuple(one.kernel.config for one in result)
    assert back.seconds == (MILLISECONDS / 1e3,) * len(result)
    # The problem is made from the shape, and a model must see in it what is to be seen of the tensors.
    assert turns.space(back.problem, get("h200")) == turns.space(_of_tensors(shape), get("h200"))
    assert left([shape, CASE], path, 5, {}) == [CASE]
    with pytest.raises(ArgumentError, match="seed 5, and 6"):
        left([], path, 6, {})


def _of_tensors(shape: Shape) -> Geam:
    (stage,) = lower_transpose(*TransposeAddMatrices(shape, 5).inspected())
    return stage.problem


@pytest.mark.usefixtures("search_gpu")
@pytest.mark.parametrize(
    "shape",
    [
        Shape("grid", 40, 24, F32, x_pad=1, y_pad=3),
        Shape("grid", 40, 24, F32, y_pad=4),
        Shape("grid", 21, 30, F32, batch=3),
    ],
    ids=str,
)
def test_a_record_is_read_as_what_was_searched(tmp_path: Path, shape: Shape) -> None:
    path = tmp_path / "search.jsonl"
    left([], path, 5, {})
    result = candidates(_of_tensors(shape), get("h200"))
    rows = [{"config": named(one.kernel.config), "seconds": float(index)} for index, one in enumerate(result)]
    append(path, {"shape": shape.record(), "rows": rows, EAGER: 1.0})
    (back,) = read([path])
    assert back.problem == _of_tensors(shape)
    assert (
        dict(zip(back.configs, back.seconds, strict=True)).items()
        <= {one.kernel.config: float(index) for index, one in enumerate(result)}.items()
    )
    assert set(back.configs) >= set(turns.space(back.problem, get("h200")))


@pytest.mark.usefixtures("search_gpu", "any_clock")
def test_the_search_goes_on_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [Shape("grid", 40, 24, F32), Shape("grid", 33, 24, F32)]
    monkeypatch.setattr(search, "grid", lambda: small)
    monkeypatch.setattr(search, "candidates", lambda problem, arch: candidates(problem, arch)[:2])
    path = tmp_path / "search.jsonl"
    arguments = ("--out", path, "--workers", 0, "--rounds", 1)
    assert run_script(monkeypatch, "search.py", *arguments, "--limit", 1) == 0
    assert "1 of 1 shapes" in capsys.readouterr().out
    assert run_script(monkeypatch, "search.py", *arguments) == 0
    text = capsys.readouterr().out
    assert "1 of 1 shapes" in text
    assert "chosen/best 1.000" in text
    result = [(one.problem.n, one.problem.m, one.problem.dtype) for one in read([path])]
    assert result == [(shape.m, shape.n, shape.dtype) for shape in small]


def test_launches_prepared_beforehand_are_what_is_timed(search_gpu: SearchGPU) -> None:
    gpu: Any = search_gpu
    with Copying(gpu, 8192) as copied:
        run = enqueuer(gpu, [(copied._binary, copied._launch)])
        run(SimpleNamespace(address=1))  # type: ignore[arg-type]  # a stream by its address is all that is asked
    assert gpu.copied == 4096
