"""The search over configurations of the inner kernel: grids, rounds and record, on stand-ins for GPU and torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.compiler import KernelCompiler
from lab.contest import Rules, contest
from lab.inner.grids import fit_grid, judge_grid
from lab.inner.matrices import InnerMatrices
from lab.inner.report import LIBRARY
from lab.inner.search import SEARCH, Task, candidates, mma_tasks, numbers, read, tasks
from lab.records import append
from lab.search import Candidate, Search, Tools
from matmill.arch import get
from matmill.bench.problems.error_bounds import random_sum
from matmill.bench.timing.clock import Clock, Competitor, StreamHandle
from matmill.config import Config
from matmill.dtypes import ALL, BF16, F16, F32, F64
from matmill.errors import ArgumentError
from matmill.jit.compile import Binary
from matmill.kernels.inner import INNER, cost
from matmill.kernels.inner.space import space
from matmill.ladders.inner.subject import gram_of, inner_product
from matmill.launch import Launch
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU
from support.compiled import headings_alone
from support.fake_torch import product, stand_in
from support.ladder_gpu import FakeGPU
from support.scripts import run_script

H200 = get("h200")
SCRIPT = "search.py"


def configs(found: Sequence[Candidate]) -> list[Config]:
    """Return those of candidates."""
    return [one.kernel.config for one in found]


# Grids


def test_a_part_of_the_fit_grid_is_searched_exhaustively_and_all_judges_come_before_any_twice() -> None:
    fit = fit_grid(1)
    judge = judge_grid(1, fit)
    todo = tasks(fit, judge)
    assert sum(task.exhaustive for task in todo if task.part == "fit") == 51
    judged = [task for task in todo if task.part == "judge"]
    assert [task.problem for task in judged[:200]] == judge
    assert not any(task.exhaustive for task in judged[:200])
    assert all(task.exhaustive for task in judged[200:])
    assert {task.problem for task in judged[200:]} == set(judge)
    assert {task.problem.dtype.name for task in todo[:20] if task.exhaustive} == set(ALL)


def test_candidates_begin_with_the_choice_and_leave_out_what_is_hopeless() -> None:
    problem = inner_product(3, 3, 10**7)
    result = candidates(Task(problem, "fit", exhaustive=True), H200, 1)
    everything = configs(result)
    predicted = [cost.explain(problem, config, H200).seconds for config in everything]
    assert [one.predicted for one in result] == predicted
    assert predicted == sorted(predicted)
    assert predicted[0] == min(cost.explain(problem, config, H200).seconds for config in space(problem, H200))
    assert predicted[-1] <= 5 * predicted[0]
    assert not any(config["SPLIT_K"] == 1 for config in everything)
    some = configs(candidates(Task(problem, "fit", exhaustive=False, share=0.25), H200, 1))
    assert some[:10] == everything[:10]
    assert len(some) == 10 + round(0.25 * (len(everything) - 10))
    assert len(candidates(Task(problem, "judge", exhaustive=False), H200, 1)) == 10
    assert configs(candidates(Task(problem, "fit", exhaustive=False, share=0.25), H200, 2)) != some


def test_products_that_tensor_cores_can_multiply_are_searched_among_those_configurations() -> None:
    small, wide, halves = inner_product(3, 3, 10**6), inner_product(64, 64, 10**6), inner_product(4, 4, 10**6, F16)
    column = inner_product(32, 32, 10**6, layout="column")
    todo = mma_tasks([small, wide], [halves, column, small], H200)
    assert [(task.problem, task.part, task.exhaustive, task.mma) for task in todo] == [
        (wide, "fit", False, True),
        (column, "judge", False, False),
        (column, "judge", True, False),
    ]
    everything = configs(candidates(Task(wide, "fit", exhaustive=True), H200, 1))
    some = configs(candidates(todo[0], H200, 1))
    assert some[:10] == everything[:10]
    assert len(some) > 10
    assert all(config["MMA"] for config in some[10:])
    others = sum(config["MMA"] for config in everything[10:])
    assert len(some) == 10 + round(todo[0].share * others) < 10 + others
    mixed = configs(candidates(Task(wide, "fit", exhaustive=False, share=todo[0].share), H200, 1))
    assert not all(config["MMA"] for config in mixed[10:])


# Rounds


class Times:
    """A clock by which every competitor takes a time of its own."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.ran: list[str] = []

    def competitors(self) -> list[Competitor]:
        """Return one per time."""

        def run(name: str) -> Callable[[StreamHandle], None]:
            return lambda _stream: self.ran.append(name)

        return [Competitor(name, run(name)) for name in self.seconds]

    def once(self, run: Callable[[StreamHandle], None]) -> float:
        """Run, and say how long it took."""
        run(StreamHandle(1))
        return self.seconds[self.ran[-1]]


def test_what_is_slow_is_timed_once_and_others_in_every_round() -> None:
    times = Times(best=1e-3, near=1.4e-3, far=1.6e-3, library=9e-3)
    samples = contest(times.once, times.competitors(), Rules(rounds=5), 1, always={"library"})
    assert {name: len(result) for name, result in samples.items()} == {"best": 5, "near": 5, "far": 1, "library": 5}
    assert samples["near"] == [1.4e-3] * 5
    rounds = [times.ran[4 + 3 * i : 7 + 3 * i] for i in range(4)]
    assert all(sorted(one) == ["best", "library", "near"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_long_runs_get_few_rounds_and_none_begins_after_the_deadline() -> None:
    times = Times(long=0.03, longer=0.04)
    rules = Rules(rounds=6, few=3, long=0.02)
    assert [len(s) for s in contest(times.once, times.competitors(), rules, 1).values()] == [3, 3]
    late = Rules(rounds=6, deadline=0.0)
    assert [len(s) for s in contest(times.once, times.competitors(), late, 1).values()] == [1, 1]


# Matrices


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    result = stand_in()
    monkeypatch.setitem(sys.modules, "torch", result)
    return result


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("layout", ["row", "column", "gram"])
@pytest.mark.parametrize("dtype", ALL.values(), ids=list(ALL))
def test_answers_are_made_in_pieces_and_leave_the_matrices_alone(
    dtype: Any, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.inner.matrices._BLOCK", 1 << 14)
    plain = inner_product(3, 5, 2001, dtype, "row" if layout == "gram" else layout)
    problem = gram_of(plain) if layout == "gram" else plain
    matrices = InnerMatrices(problem, 7)
    e, f = matrices.e.array.copy(), matrices.f.array.copy()
    assert (e.shape, f.shape) == ((problem.m, problem.k), (problem.k, problem.n))
    assert np.shares_memory(matrices.e.array, matrices.f.array) == (layout == "gram")
    assert tuple(s // dtype.itemsize for s in matrices.f.array.strides) == problem.b_row_col
    expected, limit = random_sum(e, f)
    result, bound = matrices.answer
    assert np.allclose(result, expected)
    assert np.allclose(bound, limit)
    assert np.array_equal(matrices.e.array, e)
    assert np.array_equal(matrices.f.array, f)
    assert not matrices.errors(matrices.result()).ok  # D is NaN as yet
    right = matrices.errors(product(e, f))
    assert right.ok
    assert 0 <= right.relative < 4 * dtype.roundoff * 50
    wrong = product(e, f)
    wrong[0, 0] += 1 + abs(wrong[0, 0])
    assert not matrices.errors(wrong).ok


@pytest.mark.usefixtures("torch")
def test_a_gram_matrix_beyond_float16_must_be_infinite_there() -> None:
    matrices = InnerMatrices(gram_of(inner_product(2, 2, 400_000, F16)), 1)
    made = product(matrices.e.array, matrices.f.array)
    assert np.isinf(np.diag(made)).all()
    result = matrices.errors(made)
    assert result.ok
    assert result.relative < 0.01
    made[0, 0] = 65504
    assert not matrices.errors(made).ok


# Search


class SearchGPU(FakeGPU):
    """Takes a millisecond for the first block and a thousandth of it for each other; products are NumPy's."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: InnerMatrices | None = None
        self.blocks = 0
        self.names: list[str] = []

    frame = GPU.frame

    def prepare(self, binary: Binary, launch: Launch) -> Callable[[int, int], None]:
        """Return a kernel that is ready."""
        assert f".entry {launch.entry}(" in binary.ptx

        def run(_config: int, _parameters: int) -> None:
            self.names.append(launch.entry)
            if launch.entry == "inner":
                self.blocks = launch.grid[0]
            assert self.matrices is not None
            self.matrices.out.array[...] = product(self.matrices.e.array, self.matrices.f.array)

        return run

    def call(self, name: str, *args: Any) -> Any:
        """Answer as the parent, but for the time."""
        return 1 + (self.blocks - 1) / 1e3 if name == "cuEventElapsedTime" else super().call(name, *args)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, torch: Any) -> SearchGPU:
    assert torch is sys.modules["torch"]
    monkeypatch.setattr("matmill.jit.compile._remembered", headings_alone)
    fake = SearchGPU()
    make = InnerMatrices.__init__

    def registered(matrices: InnerMatrices, *args: Any) -> None:
        """Register matrices that the fake GPU knows of."""
        make(matrices, *args)
        fake.matrices = matrices

    monkeypatch.setattr(InnerMatrices, "__init__", registered)
    monkeypatch.setattr("matmill.runtime.gpu.GPU.get", lambda _index=0: fake)
    monkeypatch.setattr("lab.tensors.installed", lambda: ("torch",))
    return fake


def test_every_configuration_s_time_stands_beside_it(gpu: SearchGPU, tmp_path: Path) -> None:
    problem = inner_product(2, 3, 20_001, F64, "column")
    task = Task(problem, "judge", exhaustive=False)
    result = candidates(task, H200, 1)[:4]
    path = tmp_path / "record.jsonl"
    assert SEARCH.left([task], path, 5, {"date": "today"}) == [task]
    with KernelCompiler("sm_90a", 0) as compiler, Clock(gpu, 0) as clock:  # type: ignore[arg-type]  # a stand-in
        tools = Tools(gpu, clock, compiler, Rules(rounds=2), 5)  # type: ignore[arg-type]  # as above
        with SEARCH.trials(tools) as make:
            line = SEARCH.measure(tools, make, task, result)
        assert compiler.ordered == len({config.constants for config in configs(result)})
        assert compiler.waited > 0
    append(path, line)
    assert line["errors"]["chosen"]["ok"]
    assert line["errors"][LIBRARY]["ok"]
    (back,) = read([path])
    assert back.problem == problem
    assert back.configs == tuple(configs(result))
    assert back.seconds == pytest.approx([1e-3 + (config["SPLIT_K"] - 1) / 1e6 for config in configs(result)])
    assert (back.part, back.exhaustive) == ("judge", False)
    assert back.library == pytest.approx(1e-3 + (gpu.blocks - 1) / 1e6, rel=0.5)
    assert set(gpu.names) == {"inner"}  # few partial sums, which the last block adds


def _line(problem: Any, part: str, *, exhaustive: bool, seconds: float) -> dict[str, Any]:
    return {
        **Task(problem, part, exhaustive).described(),
        "errors": {"chosen": {"ok": True, "excess": float("inf")}},
        LIBRARY: 1.0,
        "configs": [[*numbers(space(problem, H200)[0]), seconds, 3]],
    }


def _left(path: Path, tasks: list[Task], seed: int = 5) -> list[Task]:
    return SEARCH.left(tasks, path, seed, {})


def test_a_record_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    first, second = inner_product(2, 2, 30_000), inner_product(3, 2, 30_000, BF16)
    assert _left(path, [Task(first, "fit", exhaustive=False)])
    append(path, _line(first, "fit", exhaustive=False, seconds=1.0))
    append(path, _line(second, "judge", exhaustive=True, seconds=2.0))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"problem": {"m": 2')
    todo = [Task(first, "fit", exhaustive=exhaustive) for exhaustive in (False, True)]
    assert _left(path, todo) == todo[1:]
    append(path, _line(first, "judge", exhaustive=True, seconds=3.0))
    result = {one.problem: one for one in read([path])}
    assert {p: one.seconds for p, one in result.items()} == {first: (3.0,), second: (2.0,)}
    assert result[first].part == "fit"  # whichever run met it again
    assert "Infinity" not in path.read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match="seed 5, and 6"):
        _left(path, [], 6)
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="no header"):
        read([other])
    other.write_text("no JSON\n", encoding="utf-8")
    with pytest.raises(ArgumentError, match="not JSON"):
        read([other])


def _search(monkeypatch: pytest.MonkeyPatch, most: int, fit: list[Gemm], judge: Sequence[Gemm] = ()) -> None:
    """Replace the grids, and leave so many configurations of a task, to have less to compile."""
    some: Search[Task] = replace(SEARCH, candidates=lambda *asked: candidates(*asked)[:most])
    monkeypatch.setattr("lab.inner.search.SEARCH", some)
    monkeypatch.setattr("lab.inner.search.fit_grid", lambda _seed: fit)
    monkeypatch.setattr("lab.inner.search.judge_grid", lambda _seed, _others: list(judge))


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    assert run_script(monkeypatch, SCRIPT, "inner", *arguments) == 0


@pytest.mark.usefixtures("gpu")
def test_the_script_measures_writes_and_resumes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.jsonl"
    small = [inner_product(1, 1, 10_000, F32), inner_product(2, 1, 10_001, F16)]
    _search(monkeypatch, 2, small, [inner_product(1, 2, 10_000)])
    arguments = ("--out", path, "--workers", 0, "--rounds", 1, "--seed", 3)
    _run(monkeypatch, *arguments, "--part", "judge", "--limit", 1)
    text = capsys.readouterr().out
    assert "2 of 2 products" in text
    assert "1x2" in text
    assert "WRONG" not in text
    alone = ("--out", tmp_path / "alone.jsonl", *arguments[2:], "--part", "judge", "--exhaustive")
    _run(monkeypatch, *alone)
    assert "1 of 1 products" in capsys.readouterr().out
    _run(monkeypatch, *arguments, "--limit", 1)
    assert "1 of 1 products" in capsys.readouterr().out
    assert {(one.problem.m, one.part) for one in read([path])} == {(1, "judge"), (1, "fit")}
    header = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert header["environment"]["rounds"] == 1
    assert header["constants"] == [name for name, _ in INNER.config.constants]
    _run(monkeypatch, *arguments, "--seconds", 1)  # less than what the last product may take
    assert "0 of 1 products" in capsys.readouterr().out


def test_kernels_can_be_compiled_alone_by_other_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    _search(monkeypatch, 3, [inner_product(1, 1, 10_000, F32)])
    _run(monkeypatch, "--compile-only", "--arch", "a100", "--workers", 1)
    text = capsys.readouterr().out
    assert "kernels for sm_80 in" in text
    assert len(list(tmp_path.iterdir())) == int(text.split()[0]) > 1
