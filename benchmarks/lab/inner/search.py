"""What differs in the search over configurations of the inner kernel, timed beside torch.mm.

The first line of a record names the constants of a configuration; each other holds one product, its configurations as
rows of numbers, and their seconds.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from lab.inner.grids import fit_grid, judge_grid
from lab.inner.matrices import Errors, InnerMatrices
from lab.inner.report import LIBRARY
from lab.model_fit import Found
from lab.records import Kind
from lab.search import Candidate, Search, Timed, Tools, Trial
from matmill.arch import DEFAULT, Arch, get
from matmill.bench.libraries.blas import TorchProduct
from matmill.bench.timing.clock import Competitor, StreamHandle
from matmill.config import Config
from matmill.kernel import Kernel
from matmill.kernels.inner import INNER, cost
from matmill.kernels.inner.space import space
from matmill.ladders.inner.subject import described, restored
from matmill.problem import Gemm

PARTS = ("fit", "judge")
KIND = Kind(
    "inner search",
    "benchmarks/search.py inner",
    lambda line: (json.dumps(line["problem"]), line["exhaustive"]),
)
_CONSTANTS = [name for name, _ in INNER.config.constants]
_LAUNCH = [name for name, _ in INNER.config.launch]
#: Of a search that is not exhaustive: the model's best, and this share of all others, or of those on tensor cores.
_BEST, _SHARE, _MMA_SHARE = 10, 0.25, 0.6
#: A configuration is not run at all where the model predicts that it is this many times slower than the choice: one
#: block for a k of 1e7 would take a thousand times as long as all.
_HOPELESS = 5.0
_EVERY = 3  # product of the fit grid that is searched exhaustively


@dataclass(frozen=True)
class Task:
    """One product to time: which grid it is of, and whether with every configuration or with some.

    Where not with every one, with the model's ten best and ``share`` of the others, or, where ``mma``, of those others
    alone that multiply on tensor cores.
    """

    problem: Gemm
    part: str
    exhaustive: bool
    share: float = 0.0
    mma: bool = False

    def described(self) -> dict[str, Any]:
        """Return the first fields of its line in a record."""
        return {"problem": described(self.problem), "part": self.part, "exhaustive": self.exhaustive}

    @property
    def key(self) -> Hashable:
        """What tells it apart in a record."""
        return KIND.key(self.described())


def tasks(fit: Sequence[Gemm], judge: Sequence[Gemm]) -> list[Task]:
    """Return all there is to do, what matters most first: a run may end before its end.

    Every third product of ``fit`` is searched exhaustively, the others in part. ``judge`` is gone through quickly, then
    exhaustively, every third product first.
    """
    result = [
        Task(p, "fit", exhaustive=i % _EVERY == 0, share=0.0 if i % _EVERY == 0 else _SHARE) for i, p in enumerate(fit)
    ]
    result += [Task(p, "judge", exhaustive=False) for p in judge]
    return result + [Task(p, "judge", exhaustive=True) for first in range(_EVERY) for p in judge[first::_EVERY]]


def mma_tasks(fit: Sequence[Gemm], judge: Sequence[Gemm], arch: Arch) -> list[Task]:
    """Return :func:`tasks` of the products alone that tensor cores can multiply, of the fit grid mostly by those."""
    result = [task for task in tasks(fit, judge) if any(config["MMA"] for config in space(task.problem, arch))]
    return [
        replace(task, exhaustive=False, share=_MMA_SHARE, mma=True) if task.part == "fit" else task for task in result
    ]


def _tasks(args: argparse.Namespace, arch: Arch) -> list[Task]:
    """Return the tasks that the command line asks for."""
    fit = fit_grid(args.seed)
    judge = judge_grid(args.seed, fit)[: args.limit]
    every = mma_tasks(fit[: args.limit], judge, arch) if args.mma else tasks(fit[: args.limit], judge)
    return [task for task in every if args.part in {task.part, "all"} and (task.exhaustive or not args.exhaustive)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--exhaustive", action="store_true", help="searches alone that time every configuration")
    parser.add_argument("--mma", action="store_true", help="products alone that tensor cores can multiply")
    parser.add_argument("--limit", type=int, help="take this many products of each grid alone")


def candidates(task: Task, arch: Arch, seed: int) -> list[Candidate]:
    """Return the legal configurations to time, best first by the model; hopeless ones are left out."""
    problem = task.problem
    legal = [
        Candidate(kernel, cost.explain(problem, kernel.config, arch).seconds)
        for kernel in map(INNER.with_config, space(problem, arch))
        if kernel.why_not(problem, arch) is None
    ]
    legal.sort(key=lambda one: one.predicted)
    hopeful = [one for one in legal if one.predicted <= _HOPELESS * legal[0].predicted]
    if task.exhaustive:
        return hopeful
    others = [one for one in hopeful[_BEST:] if one.kernel.config["MMA"] or not task.mma]
    draw = random.Random(f"{seed} {task.key}")  # noqa: S311 — which configurations, not a secret
    return hopeful[:_BEST] + draw.sample(others, round(task.share * len(others)))


def _trial(tools: Tools, task: Task) -> Trial:
    """Return one product's matrices, and torch.mm, with the errors of both."""
    matrices = InnerMatrices(task.problem, tools.seed)
    library = TorchProduct(LIBRARY, matrices.e, matrices.f, task.problem.dtype.numpy)
    library.run(tools.clock.stream)
    theirs = matrices.errors(library.result())
    chosen: list[Errors] = []
    loaded = set[Hashable]()

    def try_out(kernel: Kernel[Any], run: Callable[[StreamHandle], None]) -> None:
        """Run each entry point once, which loads it and take long; check the first configuration, the choice."""
        entries = kernel.config.constants, kernel.config["LAST_BLOCK"]
        if entries not in loaded:
            loaded.add(entries)
            run(tools.clock.stream)
        if not chosen:
            tools.gpu.synchronize()
            chosen.append(matrices.errors(matrices.result()))

    def line(timed: Sequence[Timed], others: Mapping[str, float]) -> dict[str, Any]:
        """Return errors, torch.mm's seconds, and the configurations as rows of numbers."""
        return {
            "space": len(space(task.problem, tools.gpu.arch)),
            "errors": {"chosen": asdict(chosen[0]), LIBRARY: asdict(theirs)},
            LIBRARY: others[LIBRARY],
            "configs": [[*numbers(one.candidate.kernel.config), one.seconds, one.rounds] for one in timed],
        }

    return Trial((Competitor(LIBRARY, library.run),), matrices.operands, try_out, line)


def numbers(config: Config) -> list[int]:
    """Return a configuration as a record holds it, under the header's names."""
    return [value for _, value in (*config.constants, *config.launch)]


@contextmanager
def _trials(tools: Tools) -> Iterator[Callable[[Task], Trial]]:
    yield partial(_trial, tools)


def _said(line: Mapping[str, Any]) -> str:
    p = line["problem"]
    seconds = [row[-2] for row in line["configs"]]
    best, chosen = min(seconds), seconds[0]
    verdict = "" if line["errors"]["chosen"]["ok"] else "  WRONG"
    how = f"{'all' if line['exhaustive'] else 'of'} {len(seconds)}"
    return (
        f"{p['m']:3}x{p['n']:<3}x{p['k']:<10} {p['dtype']:8} {p['layout']:6} {how:8} best {best * 1e6:9.1f} us  "
        f"chosen/best {chosen / best:.3f}  {LIBRARY}/chosen {line[LIBRARY] / chosen:7.2f}{verdict}"
    )


SEARCH: Search[Task] = Search(
    kind=KIND,
    noun="products",
    header={"constants": _CONSTANTS, "launch": _LAUNCH},
    add_arguments=_add_arguments,
    tasks=_tasks,
    problem=attrgetter("problem"),
    described=Task.described,
    candidates=candidates,
    trials=_trials,
    wrong=lambda line: int(not line["errors"]["chosen"]["ok"]),
    said=_said,
)


def read(paths: Sequence[Path]) -> list[Found[Gemm]]:
    """Return the products of several records, each once: where it was searched exhaustively too, that counts.

    With those configurations alone that are offered today, on :data:`~matmill.arch.DEFAULT`.
    """
    result: dict[Gemm, Found[Gemm]] = {}
    for path in paths:
        header, lines = KIND.read(path)
        for line in lines:
            one = _found(header, line)
            known = result.get(one.problem)
            if known is None or one.exhaustive >= known.exhaustive:
                # A product of the fit grid stays one, whoever else met it.
                result[one.problem] = replace(one, part=known.part) if known is not None else one
    return [one for every in result.values() if (one := _offered(every)).configs]


def _offered(one: Found[Gemm]) -> Found[Gemm]:
    considered = set(space(one.problem, get(DEFAULT)))
    kept = [(config, seconds) for config, seconds in zip(one.configs, one.seconds, strict=True) if config in considered]
    configs, seconds = zip(*kept, strict=True) if kept else ((), ())
    return replace(one, configs=configs, seconds=seconds)


def _found(header: dict[str, Any], line: dict[str, Any]) -> Found[Gemm]:
    constants, launch = header["constants"], header["launch"]
    configs, seconds = [], []
    for *values, median, _rounds in line["configs"]:
        named = dict(zip((*constants, *launch), values, strict=True))
        result = Config.of(**{name: named[name] for name in constants})
        configs.append(result.launched(**{name: named[name] for name in launch}))
        seconds.append(median)
    problem = restored(line["problem"])
    return Found(problem, line["part"], line["exhaustive"], tuple(configs), tuple(seconds), line[LIBRARY])
