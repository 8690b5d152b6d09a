"""How products are decided: what is timed and kept, what fails, whole steps, threads, and what the report says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest

from matmill.decisions import Decisions
from matmill.errors import ArgumentError, CompileError
from matmill.jit.background import Arrival

torch: Any = pytest.importorskip("torch")
mt: Any = import_module("matmill.torch")
session: Any = import_module("matmill.torch.session")
decide: Any = import_module("matmill.torch.decide")
steps: Any = import_module("matmill.torch.steps")
F: Any = torch.nn.functional
ROOT = Path(__file__).parents[2]
SHAPES = (2, 3), (3, 4)
A, B = torch.ones(2, 3), torch.ones(3, 4)


def _mm() -> Any:
    return torch.mm(A, B)


# -- what is timed ----------------------------------------------------------------------------------------------------


def test_a_product_is_timed_once(decided: Any) -> None:
    with mt.enable():
        for _ in range(3):
            _mm()
            torch.bmm(A[None], B[None])
    assert decided.timed == [SHAPES, ((1, 2, 3), (1, 3, 4))]
    assert decided.ours == [SHAPES, ((1, 2, 3), (1, 3, 4))] * 3


def test_a_tie_is_torch_s(decided: Any) -> None:
    decided.wins = lambda *_shapes: False
    with mt.enable():
        _mm()
        _mm()
    assert decided.ours == []
    (row,) = mt.report().rows
    assert (row.answered_by, row.calls, row.torch_seconds) == ("torch", 2, 1.02e-3)


@pytest.mark.parametrize("way", ["benchmark", "deterministic"])
def test_without_measurement_the_models_decide(decided: Any, way: str) -> None:
    torch.use_deterministic_algorithms(way == "deterministic")
    try:
        for seconds, ours in ((1e-9, 1), (1.0, 0)):
            decided.seconds_each = seconds
            decided.ours.clear()
            with mt.enable(benchmark=way != "benchmark"):
                _mm()
            assert (len(decided.ours), decided.timed) == (ours, [])
            assert "predicted" in mt.report().rows[0].reason
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_decisions_on_disk_and_in_files(decided: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MATMILL_CACHE")
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    decided.wins = lambda a, _b: a == (2, 3)
    other = torch.ones(5, 6), torch.ones(6, 7)

    def run() -> None:
        _mm()
        torch.mm(*other)

    with mt.enable():
        run()
    assert len(decided.timed) == 2
    decided.wins = lambda *_shapes: True
    with mt.enable():
        run()
    assert len(decided.timed) == 2  # the second session reads the first one's
    assert decided.ours == [SHAPES] * 2
    mt.save_decisions(tmp_path / "table.json")
    monkeypatch.setenv("MATMILL_CACHE", "off")
    mt.load_decisions(tmp_path / "table.json")
    with mt.enable():
        run()
        torch.mm(B, torch.ones(4, 1))  # not in the file
        assert len(decided.timed) == 2
        assert decided.ours == [SHAPES] * 3
        mt.load_decisions(None)
        torch.mm(*other)
    assert len(decided.timed) == 3
    assert decided.ours[-1] == ((5, 6), (6, 7))
    (tmp_path / "table.json").write_text("{}")
    with pytest.raises(ArgumentError, match="save_decisions wrote"):
        mt.load_decisions(tmp_path / "table.json")
    with pytest.raises(FileNotFoundError):
        mt.load_decisions(tmp_path / "nothing.json")


def test_nothing_is_decided_while_a_graph_is_captured(decided: Any) -> None:
    with mt.enable():
        decided.captures = True
        _mm()
        assert (decided.timed, decided.ours) == ([], [])
        decided.captures = False
        _mm()
        decided.captures = True
        _mm()
    assert (decided.timed, decided.ours) == ([SHAPES], [SHAPES] * 2)


# -- kernels that are being compiled ----------------------------------------------------------------------------------


def _arrive(decided: Any) -> None:
    arrival, decided.arrival = decided.arrival, None
    arrival.end("kernel")


def test_torch_answers_until_a_kernel_has_arrived(decided: Any, tmp_path: Path) -> None:
    decided.arrival = Arrival(["kernel"])
    with mt.enable():
        for _ in range(3):
            _mm()
            (A[:, :2] @ B[:2]).sum()  # not packed
        assert (decided.timed, decided.ours, decided.precisions) == ([], [], [])
        assert {row.reason for row in mt.report().rows} == {"matmill's kernel is being compiled"}
        mt.save_decisions(tmp_path / "table.json")
        assert "torch_seconds" not in (tmp_path / "table.json").read_text()
        assert "winner" not in (tmp_path / "table.json").read_text()
        _arrive(decided)
        for _ in range(3):
            _mm()
            (A[:, :2] @ B[:2]).sum()
    assert decided.timed == [SHAPES, ((2, 2), (2, 4))]
    assert len(decided.ours) == 6
    assert session.latest().decider.awaited == set()


def test_all_gradients_are_awaited_at_once(decided: Any) -> None:
    decided.arrival = Arrival(["kernel"])
    layer, x = torch.nn.Linear(3, 4), torch.ones(2, 3, requires_grad=True)

    def step() -> tuple[Any, Any]:
        layer.zero_grad()
        x.grad = None
        layer(x).square().sum().backward()
        return x.grad, layer.weight.grad

    expected = step()
    with mt.enable():
        step()
        assert len(session.latest().decider.awaited) == 3
        step()
        assert decided.timed == []
        _arrive(decided)
        got = step()
        assert len(decided.timed) == len(decided.ours) == 3
    assert all(torch.allclose(*pair) for pair in zip(got, expected, strict=True))


def test_a_session_does_not_rest_before_kernels_have_arrived(decided: Any) -> None:
    decided.arrival = Arrival(["kernel"])
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    with mt.enable():
        for _ in range(40):
            _mm()
            optimizer.step()
        assert not session.latest().resting
        _arrive(decided)
        _mm()
        assert decided.ours == [SHAPES]


def test_compilers_and_tables_wait(decided: Any) -> None:
    decided.arrival = Arrival(["kernel"])
    product = decide.Product(A, B, None, (False, False), decide.by_torch)
    decider = decide.Decider(decided, decide.Options())
    assert decider.decide(product).run is None
    assert decider.decide(product, wait=True).run is not None
    assert decider.decide(product).run is not None
    assert decided.timed == [SHAPES]
    _arrive(decided)
    assert decider.decide(product).run is not None
    decided.arrival = Arrival(["kernel"])
    table = decide.Decider(decided, decide.Options(table=Decisions(None)))
    assert table.decide(product).arrival is None


def test_a_kernel_that_does_not_compile_is_torch_s_and_told_once(decided: Any) -> None:
    decided.arrival = Arrival(["kernel"])
    error = CompileError(argument="kernel", got="a failure in the background", wanted="code", fix="None.")
    with mt.enable():
        _mm()
        decided.broken_preparation = error
        _arrive(decided)
        with pytest.warns(RuntimeWarning, match="because matmill failed with CompileError"):
            _mm()
        _mm()
    assert (decided.timed, decided.ours) == ([], [])


# -- limits and options -----------------------------------------------------------------------------------------------


def test_workspace_beyond_the_limit_is_not_tried(decided: Any) -> None:
    decided.workspace = 3 << 20
    with mt.enable(workspace_limit=2 << 20):
        _mm()
    assert decided.timed == []
    assert mt.report().rows[0].reason == "matmill's kernel needs 3 MiB of workspace, and the limit is 2"
    with mt.enable():
        _mm()
    assert decided.ours == [SHAPES]


def test_configurations_are_tuned_where_that_is_asked_for(decided: Any) -> None:
    with mt.enable(candidates=3):
        _mm()
        _mm()
    assert decided.tuned == [(*SHAPES, 3)]
    with mt.enable(candidates=3, benchmark=False):
        torch.mm(B, torch.ones(4, 2))
    assert len(decided.tuned) == 1


def test_excluded_modules(decided: Any) -> None:
    source = "import torch\ndef call(a, b):\n    return torch.mm(a, b)\n"
    for name, ours in (("bits", 0), ("bits.inside", 0), ("bitsandmore", 1)):
        space: dict[str, Any] = {"__name__": name}
        exec(source, space)  # noqa: S102 — three lines
        decided.ours.clear()
        with mt.enable(exclude=["bits"]):
            space["call"](A, B)
        assert len(decided.ours) == ours


def test_float32_knows_what_torch_may_round(decided: Any) -> None:
    with mt.enable():
        for allowed in (False, True, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            _mm()
    assert len(decided.timed) == 1  # the site's second state is torch's
    assert len(decided.ours) == 2


# -- what fails -------------------------------------------------------------------------------------------------------

_BROKEN = CompileError(argument="kernel", got="an error", wanted="code", fix="Report it.")


@pytest.mark.parametrize("error", [_BROKEN, RuntimeError("driver"), RuntimeError(), MemoryError("none")])
@pytest.mark.parametrize("when", ["prepared", "launched"])
def test_a_kernel_that_fails_is_torch_s(decided: Any, when: str, error: Exception) -> None:
    with mt.enable(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if when == "prepared":
            decided.broken_preparation = error
        else:
            _mm()
            decided.broken_launch = error
        results = [_mm() for _ in range(3)]
    assert all(torch.equal(result, torch.full((2, 4), 3.0)) for result in results)
    words = [str(warning.message) for warning in warned]
    assert len(words) == (not isinstance(error, MemoryError))
    assert all("float32 2x3" in line and type(error).__name__ in line for line in words)
    assert mt.report().rows[0].answered_by == "torch"


def test_threads_meet_a_product_at_the_same_time(decided: Any) -> None:
    start, wrong = threading.Barrier(12), []

    def work() -> None:
        start.wait()
        for size in range(1, 20):
            result = torch.mm(torch.ones(size, 3), B)
            if not torch.equal(result, torch.full((size, 4), 3.0)):
                wrong.append(size)

    with mt.enable():
        threads = [threading.Thread(target=work) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(decided.timed) == len(set(decided.timed))


def test_a_forked_process_goes_on(decided: Any) -> None:
    with mt.enable():
        _mm()
        child = os.fork()
        if not child:
            os._exit(0 if torch.equal(_mm(), torch.full((2, 4), 3.0)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert decided.ours == [SHAPES]


def test_shapes_without_end_are_forgotten(decided: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MOST_SITES", 4)
    with mt.enable():
        for size in range(1, 12):
            torch.mm(torch.ones(size, 3), B)
        assert max(len(sites) for sites in session.latest().sites.values()) <= 4
    assert len(decided.ours) == 11


# -- whole steps ------------------------------------------------------------------------------------------------------


def _trained(gpu: Any, step_seconds: Callable[[int], float], gains: tuple[float, ...] = (1e-3,)) -> Any:
    """Run 80 steps of a model whose layers save these seconds in each of three products; return the last report.

    ``step_seconds`` is the time of a step by the number of products that matmill answered in it.
    """
    layers = [torch.nn.Linear(size, size) for size in range(3, 3 + len(gains))]
    inputs = [torch.ones(2, layer.in_features, requires_grad=True) for layer in layers]
    optimizer = torch.optim.SGD([parameter for layer in layers for parameter in layer.parameters()], lr=0.0)

    def seconds(calls: list[Callable[[], Any]], x: Any, nbytes: int) -> list[float]:
        ours, _theirs = type(gpu).seconds(gpu, calls, x, nbytes)
        size = max(max(shape) for shape in gpu.timed[-1])
        return [ours, ours + gains[size - 3]]

    gpu.seconds, gpu.seconds_each = seconds, 1e-5
    with mt.enable():
        for _ in range(80):
            gpu.ours.clear()
            sum(layer(x).sum() for layer, x in zip(layers, inputs, strict=True)).backward()
            gpu.now += step_seconds(len(gpu.ours))
            optimizer.step()
    return mt.report()


@pytest.mark.parametrize(
    ("seconds", "gains", "products"),
    [
        (lambda ours: 1.0 - 0.1 * ours, (1e-3,), 3),  # the GPU is the limit
        (lambda ours: 1.0 + 0.1 * ours, (1e-3,), 0),  # the host is
        (lambda ours: 1.0 - 0.0005 * ours, (1e-3,), 0),  # a tie
        (lambda ours: {0: 1.0, 3: 0.5, 6: 0.6}[ours], (1e-3, 1e-5), 3),  # small gains cost more than they save
        (lambda ours: {0: 1.0, 3: 0.6, 6: 0.5}[ours], (1e-3, 1e-5), 6),
    ],
)
def test_the_shortest_steps_decide(decided: Any, seconds: Any, gains: tuple[float, ...], products: int) -> None:
    report = _trained(decided, seconds, gains)
    assert len(decided.ours) == products
    assert report.steps == 80
    assert report.step_seconds == pytest.approx((seconds(products), seconds(0)))
    assert str(report).startswith("A step takes ")


def test_a_graph_has_what_costs_the_host_too_much(decided: Any) -> None:
    _trained(decided, lambda ours: 1.0 + ours)
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    decided.ours.clear()
    with mt.enable() as handle:
        for _ in range(2):
            layer(x).sum().backward()
        assert len(decided.ours) == 6
        session.latest().trial.least_gain = inf  # as if the shortest steps were those without
        session.latest().apply()
        layer(x).sum().backward()
        assert len(decided.ours) == 6
        session._REPLACEMENTS.capture(begins=True)
        layer(x).sum().backward()
        assert len(decided.ours) == 9
        session._REPLACEMENTS.capture(begins=False)
        layer(x).sum().backward()
        assert len(decided.ours) == 9
        session.latest().trial.least_gain = 0.0
        session.latest().apply()
    with handle:  # on again, with what it decided
        layer(x).sum().backward()
    assert len(decided.ours) == 12


@pytest.mark.usefixtures("decided")
def test_captures_are_watched_while_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.cuda.CUDAGraph
    seen: list[Any] = []

    def begin(_graph: Any, *pool: Any) -> None:
        seen.append((pool, session.latest().capturing))
        if pool:
            raise RuntimeError("no graph")

    monkeypatch.setattr(graph, "capture_begin", begin)
    monkeypatch.setattr(graph, "capture_end", lambda _graph: seen.append(session.latest().capturing))
    one = object.__new__(graph)
    with mt.enable(), mt.enable():
        graph.capture_begin(one)
        graph.capture_end(one)
        assert not session.latest().capturing
        with pytest.raises(RuntimeError, match="no graph"):
            graph.capture_begin(one, "pool")
        assert not session.latest().capturing
    assert seen == [((), True), True, (("pool",), True)]
    assert graph.capture_begin is begin


def test_a_program_without_new_products_has_torch_s_own_functions_back(decided: Any) -> None:
    decided.wins = lambda a, _b: a == (9, 3)
    layer, x = torch.nn.Linear(3, 4), torch.ones(2, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    linear, mm = F.linear, torch.mm
    rested = []
    with mt.enable():
        for step in range(1, 300):
            torch.mm(torch.ones(9 if step > 250 else 2, 3), B)
            layer(x).sum().backward()
            optimizer.step()
            rested.append(F.linear is linear)
            assert (torch.mm is mm) is (rested[-1] and step < 256)
        resting = session.latest()
        assert resting.resting
        mt.load_decisions(None)  # decides anew, so that all products are met again
        assert (resting.resting, torch.mm is mm) == (False, False)
    changes = [step for step, (before, after) in enumerate(pairwise(rested), 2) if before is not after]
    assert changes == [21, 256, 277]  # at rest; a look, which meets a product; at rest again, but for its function
    assert decided.ours[0] == ((9, 3), (3, 4))


def test_new_products_begin_the_comparison_anew() -> None:
    class Clock:
        now = 0.0

        def mark(self) -> float:
            return self.now

        @staticmethod
        def between(first: float, last: float) -> float:
            return last - first

    clock = Clock()
    trial = steps.StepTrial(clock)
    for step in range(200):
        clock.now += 1
        trial.step(step // 20)  # a new one every 20 steps
    assert not trial.over
    assert trial.result is None
    for _ in range(60):
        clock.now += {inf: 1.0, 1e-4: 0.9}.get(trial.least_gain, 0.8)
        trial.step(9)
    assert trial.result == pytest.approx((0.8, 1.0))


# -- what it says -----------------------------------------------------------------------------------------------------


def test_the_report(decided: Any, tmp_path: Path) -> None:
    decided.wins = lambda a, _b: a == (2, 3)
    with mt.enable():
        for _ in range(3):
            _mm()
            torch.mm(B.mT, A.mT)
    report = mt.report()
    ours, theirs = sorted(report.rows, key=lambda row: row.answered_by)
    assert (ours.key, ours.calls, ours.saved_seconds) == ("float32 2x3 row/4 @ 3x4 row", 3, pytest.approx(3e-3))
    assert (theirs.key, theirs.calls, theirs.saved_seconds) == ("float32 4x3 column @ 3x2 column/4", 3, 0)
    assert (
        report.conclusion == "matmill answered 3 of 6 products and saved 3 ms of 9.06 ms of the GPU's time in products."
    )
    text = str(report)
    assert text.index("saved 3 ms") < text.index("float32 2x3")
    assert len(report.advice()) <= 3
    report.write_html(tmp_path / "report.html")
    seen: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            seen.append(data)

    Reader().feed((tmp_path / "report.html").read_text())
    assert {report.conclusion, ours.key, theirs.key} <= set(seen)


def test_the_report_of_nothing_and_of_losses(decided: Any) -> None:
    with mt.enable():
        pass
    assert str(mt.report()) == "matmill met no matrix product on a GPU."
    decided.wins = lambda *_shapes: False
    with mt.enable():
        _mm()
    assert mt.report().conclusion == "torch answered all products, of 1 layouts."


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--html", "page.html", "program.py", "5"], 5, "matmill met no matrix product"),
        (["-m", "program", "fail"], 1, "ValueError: invalid literal for int() with base 10: 'fail'"),
    ],
)
def test_the_launcher(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    (tmp_path / "program.py").write_text(
        "import sys, torch\n"
        "assert __name__ == '__main__' and 'built-in' not in str(torch.nn.functional.linear)\n"
        "print(torch.nn.Linear(3, 2)(torch.ones(1, 3)).shape)\n"
        "sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "matmill.torch", *arguments]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert result.stderr.count("matmill met no matrix product") == 1
    assert "torch.Size([1, 2])" in result.stdout
    assert (tmp_path / "page.html").exists() is ("--html" in arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing.py"], "there is no file nothing.py"),
        (["--decisions", __file__, __file__], "which holds no decisions"),
        (["--decisions", "nothing.json", __file__], "nothing.json"),
        ([], "the following arguments are required: SCRIPT"),
    ],
)
def test_the_launcher_says_what_is_wrong(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        import_module("matmill.torch.__main__").main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# -- batch-invariant products -----------------------------------------------------------------------------------------


def test_batch_invariant_products_are_matmill_s_whatever_the_times(decided: Any) -> None:
    decided.wins, decided.arrival = (lambda *_shapes: False), Arrival(["kernel"])
    layer, x = torch.nn.Linear(3, 4), torch.ones(2, 3, requires_grad=True)
    with mt.enable(batch_invariant=True):
        layer(x).sum().backward()
        assert decided.ours == [((2, 3), (3, 4)), ((2, 4), (4, 3)), ((4, 2), (2, 3))]
        _mm()
        torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5))
    assert len(decided.ours) == 5
    assert set(decided.invariant) == {True}
    assert decided.timed == []
    decided.arrival = None
    with mt.enable():
        layer(x)
    assert (len(decided.ours), decided.invariant[-1]) == (5, False)


def test_what_a_batch_invariant_kernel_does_not_take_another_one_does(decided: Any) -> None:
    decided.aligned = True
    moved = torch.ones(13)[1:].reshape(3, 4)
    with mt.enable(batch_invariant=True):
        torch.mm(torch.ones(3, 4), torch.ones(4, 5))
        assert torch.equal(torch.mm(moved, torch.ones(4, 5)), torch.full((3, 5), 4.0))
        assert decided.others == [((3, 4), (4, 5))]
        with session.latest().decider._timing:  # as while another thread times
            torch.mm(torch.ones(7, 4), torch.ones(4, 5))
        assert decided.others[1:] == [((7, 4), (4, 5))]
    assert torch.equal(torch.mm(moved, torch.ones(4, 5)), torch.full((3, 5), 4.0))
    assert len(decided.others) == 2
