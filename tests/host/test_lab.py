"""benchmarks/lab has what only measuring needs, which the package never imports: its rounds, records and clock."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import matmill
from lab import clean_clock
from lab.contest import Rules, contest
from lab.records import Kind, append
from lab.transpose_add import search
from matmill.bench.probe import samples
from matmill.errors import ArgumentError
from matmill.runtime.clock import Clock, Competitor, StreamHandle
from matmill.runtime.gpu import GPU
from support.ladder_gpu import FakeGPU
from support.scripts import run_script

ROOT = Path(matmill.__file__).parent
MODULES = {
    ".".join(("matmill", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def _imports(path: Path) -> set[str]:
    """Return dotted names that a file imports, by statements or by name."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            result |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            result.add(node.value)
    return result


def test_the_package_never_imports_what_only_measuring_needs() -> None:
    assert not [name for name, path in MODULES.items() if any(one.split(".")[0] == "lab" for one in _imports(path))]


def test_the_command_line_needs_every_module_of_bench() -> None:
    left = [name for name in MODULES if name.startswith("matmill.cli")]
    reached = set(left)
    while left:
        imported = _imports(MODULES[left.pop()])
        packages = {name.rpartition(".")[0] for name in imported}  # Python imports these as well
        new = {name for name in imported | packages if name in MODULES} - reached
        reached |= new
        left += new
    assert {name for name in MODULES if name.startswith("matmill.bench.")} - reached == set()


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
    result = contest(times.once, times.competitors(), Rules(rounds=5), 1, always={"library"})
    assert {name: len(seconds) for name, seconds in result.items()} == {"best": 5, "near": 5, "far": 1, "library": 5}
    assert result["near"] == [1.4e-3] * 5
    rounds = [times.ran[4 + 3 * i : 7 + 3 * i] for i in range(4)]
    assert all(sorted(one) == ["best", "library", "near"] for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


@pytest.mark.parametrize(("rules", "count"), [(Rules(rounds=6, few=3, long=0.02), 3), (Rules(rounds=6, deadline=0), 1)])
def test_long_runs_get_few_rounds_and_none_begins_after_the_deadline(rules: Rules, count: int) -> None:
    times = Times(long=0.03, longer=0.04)
    assert [len(one) for one in contest(times.once, times.competitors(), rules, 1).values()] == [count, count]


def test_a_record_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    kind, path = Kind("a search", "a script", lambda line: int(line["m"])), tmp_path / "record.jsonl"
    assert kind.open(path, 5, {"gpu": "h200"}) == []
    append(path, {"m": 1, "seconds": float("inf")})
    with path.open("a", encoding="utf-8") as file:
        file.write('{"m": 2')
    assert [line["m"] for line in kind.open(path, 5, {})] == [1]
    append(path, {"m": 3})
    header, lines = kind.read(path)
    assert header == {"record": "a search", "seed": 5, "gpu": "h200"}
    assert [line["m"] for line in lines] == [1, 3]
    assert "Infinity" not in path.read_text(encoding="utf-8")
    with pytest.raises(ArgumentError, match="seed 5, and 6"):
        kind.open(path, 6, {})
    for text, message in (("{}\n", "no header"), ("no JSON\n", "not JSON")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ArgumentError, match=message):
            kind.read(path)


def test_kernels_can_be_compiled_alone_by_other_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = search.candidates
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(search, "candidates", lambda problem, arch: every(problem, arch)[:3])
    arguments = ("--compile-only", "--arch", "a100", "--limit", 1, "--workers", 1)
    assert run_script(monkeypatch, "search.py", *arguments) == 0
    text = capsys.readouterr().out
    assert "kernels for sm_80 in" in text
    assert len(list(tmp_path.iterdir())) == int(text.split()[0]) > 1
    assert run_script(monkeypatch, "search.py") == 2
    assert "--out is needed" in capsys.readouterr().err


def test_a_clean_clock_reads_before_each_run_and_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = FakeGPU()
    ran: list[str] = []
    monkeypatch.setattr(gpu, "frame", GPU.frame.__get__(gpu), raising=False)
    monkeypatch.setattr(gpu, "prepare", lambda _binary, launch: lambda *_: ran.append(launch.entry), raising=False)
    monkeypatch.setattr(samples, "flush_bytes", lambda _arch, *, cold: 1024 * cold)
    monkeypatch.setattr(clean_clock, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(Clock, "_settle", lambda *_: None)
    with clean_clock.clean_clock(gpu) as clock:
        clock.once(lambda _stream: ran.append("timed"))
        clock.once(lambda _stream: ran.append("timed"))
    assert ran == ["stream_read", "timed", "stream_read", "timed"]
    assert gpu.live == {}
