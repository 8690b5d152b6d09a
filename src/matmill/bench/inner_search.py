"""Times configurations of the inner kernel on one product, beside torch.mm: what its cost model is fitted on.

The first line of a record (:mod:`matmill.bench.records`) names the constants of a configuration; each other holds one
product, its configurations as rows of numbers, and their seconds.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from matmill.arch import DEFAULT, Arch, get
from matmill.bench.compiler import KernelCompiler
from matmill.bench.contest import Rules, contest
from matmill.bench.enqueue import enqueuer
from matmill.bench.libraries.blas import TorchProduct
from matmill.bench.model_fit import Found
from matmill.bench.problems.inner import described, restored
from matmill.bench.records import Kind, append
from matmill.bench.timing.clock import Clock, Competitor
from matmill.bench.torch_matrices import TorchMatrices
from matmill.config import Config
from matmill.cost import inner as cost
from matmill.kernels.inner import INNER
from matmill.kernels.inner.space import space
from matmill.problem import Gemm
from matmill.runtime.gpu import GPU

LIBRARY = "torch.mm"
PARTS = ("fit", "judge")
_KIND = Kind("inner search", "benchmarks/inner_search.py")
#: Of a search that is not exhaustive: the model's best, and this share of all others, or of those on matrix units.
_BEST, _SHARE, _UNIT_SHARE = 10, 0.25, 0.6
#: What the model predicts to be this many times slower than its choice is not run at all: one block for a k of 1e7
#: would take a thousand times as long as all.
_HOPELESS = 5.0
_EVERY = 3  # product of the fit grid that is searched exhaustively


@dataclass(frozen=True)
class Task:
    """One product to time: which grid it is of, and whether with every configuration or with some.

    Where not with every one, with the model's ten best and ``share`` of the others, or, where ``units``, of those
    others alone that multiply on matrix units.
    """

    problem: Gemm
    part: str
    exhaustive: bool
    share: float = 0.0
    units: bool = False

    @property
    def key(self) -> tuple[str, bool]:
        """What tells it apart in a record."""
        return json.dumps(described(self.problem)), self.exhaustive


def tasks(fit: Sequence[Gemm], judge: Sequence[Gemm]) -> list[Task]:
    """All there is to do, what matters most first: a run may end before its end.

    Every third product of ``fit`` is searched exhaustively, of the others a part. ``judge`` is gone through quickly,
    then exhaustively, every third product first.
    """
    found = [
        Task(p, "fit", exhaustive=i % _EVERY == 0, share=0.0 if i % _EVERY == 0 else _SHARE) for i, p in enumerate(fit)
    ]
    found += [Task(p, "judge", exhaustive=False) for p in judge]
    return found + [Task(p, "judge", exhaustive=True) for first in range(_EVERY) for p in judge[first::_EVERY]]


def unit_tasks(fit: Sequence[Gemm], judge: Sequence[Gemm], arch: Arch) -> list[Task]:
    """:func:`tasks` of the products alone for which there are configurations on matrix units, and mostly with those."""
    found = []
    for task in tasks(fit, judge):
        if not any(config["UNITS"] for config in space(task.problem, arch)):
            continue
        if task.part == "fit":
            found.append(replace(task, exhaustive=False, share=_UNIT_SHARE, units=True))
        else:
            found.append(task)
    return found


def candidates(task: Task, arch: Arch, seed: int) -> list[Config]:
    """The legal configurations to time, best first by the model; hopeless ones are left out."""
    problem = task.problem
    predicted = {
        config: cost.predict(problem, config, arch)
        for config in space(problem, arch)
        if INNER.with_config(config).why_not(problem, arch) is None
    }
    most = _HOPELESS * min(predicted.values())
    legal = sorted((config for config, time in predicted.items() if time <= most), key=predicted.__getitem__)
    if task.exhaustive:
        return legal
    others = [config for config in legal[_BEST:] if config["UNITS"] or not task.units]
    draw = random.Random(f"{seed} {task.key}")  # noqa: S311 — which configurations, not a secret
    return legal[:_BEST] + draw.sample(others, round(task.share * len(others)))


@dataclass(frozen=True)
class Tools:
    """What a search works with; ``seed`` is that of the matrices and of the order of turns."""

    gpu: GPU
    clock: Clock
    compiler: KernelCompiler
    rules: Rules
    seed: int


def search(tools: Tools, task: Task, configs: Sequence[Config]) -> dict[str, Any]:
    """Times ``configs``, the first of them checked, and torch.mm, in turns; gives the line of the record."""
    problem, gpu, clock = task.problem, tools.gpu, tools.clock
    matrices = TorchMatrices(problem, tools.seed)
    kernels = [INNER.with_config(config) for config in configs]
    room = matrices.room(max(kernel.workspace(problem) for kernel in kernels))
    operands = matrices.operands(room)
    runs = []
    warm = set()
    for kernel in kernels:
        binary = tools.compiler.binary(kernel, problem.dtype)
        run = enqueuer(gpu, binary, kernel.launches(problem, operands))
        entries = kernel.config.constants, kernel.config["LAST"]
        if entries not in warm:  # an entry point's first launch loads it, which takes long
            warm.add(entries)
            run(clock.stream)
        runs.append(run)
    gpu.synchronize()
    matrices.poison()
    runs[0](clock.stream)
    gpu.synchronize()
    errors = matrices.errors(matrices.result())
    library = TorchProduct(LIBRARY, matrices.e, matrices.f, problem.dtype.numpy)
    library.run(clock.stream)
    theirs = matrices.errors(library.result())
    competitors = [Competitor(str(place), run) for place, run in enumerate(runs)]
    competitors.append(Competitor(LIBRARY, library.run))
    samples = contest(clock.once, competitors, tools.rules, tools.seed, always={LIBRARY})
    timed = [samples[str(place)] for place in range(len(runs))]
    return {
        "problem": described(problem),
        "part": task.part,
        "exhaustive": task.exhaustive,
        "space": len(space(problem, gpu.arch)),
        "errors": {"chosen": asdict(errors), LIBRARY: asdict(theirs)},
        LIBRARY: statistics.median(samples[LIBRARY]),
        "configs": [
            [*_numbers(config), statistics.median(seconds), len(seconds)]
            for config, seconds in zip(configs, timed, strict=True)
        ],
    }


def _numbers(config: Config) -> list[int]:
    return [value for _, value in (*config.constants, *config.launch)]


class Record:
    """A file of what was searched; what is in it already is read, what comes is appended.

    Raises :class:`~matmill.errors.ArgumentError` where the file holds another seed or is no such record.
    """

    def __init__(self, path: Path, seed: int, environment: dict[str, Any]) -> None:
        self.path = path
        config = INNER.config
        header = {
            "environment": environment,
            "constants": [name for name, _ in config.constants],
            "launch": [name for name, _ in config.launch],
        }
        lines = _KIND.open(path, seed, header)
        self.done = {(json.dumps(line["problem"]), line["exhaustive"]) for line in lines}

    def add(self, line: dict[str, Any]) -> None:
        """Appends what :func:`search` found of one product."""
        append(self.path, line)


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """The products of several records, each once: where it was searched exhaustively too, that counts.

    With those configurations alone that are offered today, on :data:`~matmill.arch.DEFAULT`.
    """
    found: dict[Gemm, Found[Gemm]] = {}
    for path in paths:
        header, lines = _KIND.read(path)
        for line in lines:
            one = _found(header, line)
            known = found.get(one.problem)
            if known is None or one.exhaustive >= known.exhaustive:
                # A product of the fit grid stays one, whoever else met it.
                found[one.problem] = replace(one, part=known.part) if known is not None else one
    return [one for every in found.values() if (one := _offered(every)).configs]


def _offered(one: Found[Gemm]) -> Found[Gemm]:
    considered = set(space(one.problem, get(DEFAULT)))
    kept = [(config, seconds) for config, seconds in zip(one.configs, one.seconds, strict=True) if config in considered]
    configs, seconds = zip(*kept, strict=True) if kept else ((), ())
    return replace(one, configs=configs, seconds=seconds)


def _found(header: dict[str, Any], line: dict[str, Any]) -> Found[Gemm]:
    constants, launch = header["constants"], header["launch"]
    configs, seconds = [], []
    for *numbers, median, _rounds in line["configs"]:
        values = dict(zip((*constants, *launch), numbers, strict=True))
        made = Config.of(**{name: values[name] for name in constants})
        configs.append(made.launched(**{name: values[name] for name in launch}))
        seconds.append(median)
    problem = restored(line["problem"])
    return Found(problem, line["part"], line["exhaustive"], tuple(configs), tuple(seconds), line[LIBRARY])
