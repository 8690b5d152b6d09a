"""Compares matmill with what users have instead, on the GPU, a group of problems after the other.

The operations share the command line, the loop over problems, and the record. What differs is one :class:`Comparison`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lab.operations import chosen
from lab.records import Format, by_line
from lab.tensors import needs_torch
from matmill.bench.environment import describe
from matmill.bench.libraries.blas import LibraryProduct
from matmill.cli.console import output, table
from matmill.errors import ArgumentError
from matmill.runtime.gpu import GPU

#: Columns of the table, in a log that no terminal folds.
_WIDE = 150

#: One problem of a group.
T = TypeVar("T")


@dataclass(frozen=True)
class Run(Generic[T]):
    """What was asked for: problems by group, and options; no problem begins after ``end``, by ``time.monotonic``."""

    gpu: GPU
    problems: Mapping[str, Sequence[T]]
    end: float
    args: argparse.Namespace


@dataclass(frozen=True)
class Shown:
    """What is printed of one group: a table, and lines below it; ``right`` says that no result of ours is wrong."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]
    right: bool


@dataclass(frozen=True)
class Comparison(Generic[T]):
    """What differs between the operations that are compared.

    ``noun`` is what problems are called. ``groups`` makes the problems of each group, ``session`` is a context that
    gives the function which compares one problem of a group. ``more`` gives further fields of a group's record, from
    the seed.
    """

    format: Format
    noun: str
    groups: Mapping[str, Callable[[], Sequence[T]]]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    session: Callable[[Run[T]], AbstractContextManager[Callable[[str, T], dict[str, Any]]]]
    shown: Callable[[Mapping[str, Any]], Shown]
    more: Callable[[str, int], dict[str, Any]] = lambda _group, _seed: {}


def needed(found: Iterable[LibraryProduct], absent: Sequence[str], *names: str) -> None:
    """Raise :class:`~matmill.errors.ArgumentError` where one of these competitors is not there."""
    for name in set(names) - {one.name for one in found}:
        raise ArgumentError(argument=name, got="; ".join(absent), wanted="its result", fix="See above.")


def main(comparisons: Mapping[str, Comparison[Any]], description: str | None) -> None:
    """Measure the groups that the command line names; end with 1 where a result is wrong."""
    comparison, args = chosen(comparisons, description, _add_arguments)
    needs_torch()
    sys.exit(0 if _compare(comparison, args) else 1)


def _add_arguments(parser: argparse.ArgumentParser, comparison: Comparison[Any]) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--group", choices=(*comparison.groups, "all"), default="all")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after these (default: 540)")
    parser.add_argument("--limit", type=int, help=f"take this many {comparison.noun} of each group alone")
    comparison.add_arguments(parser)


def _compare(comparison: Comparison[T], args: argparse.Namespace) -> bool:
    """Measure every group into its file; whether all results of ours are right."""
    gpu, end = GPU.get(0), time.monotonic() + args.seconds
    args.out.mkdir(parents=True, exist_ok=True)
    names = list(comparison.groups) if args.group == "all" else [args.group]
    run = Run(gpu, {name: comparison.groups[name]()[: args.limit] for name in names}, end, args)
    right, entries = True, comparison.format.entries
    with comparison.session(run) as compare:
        for group, problems in run.problems.items():
            record: dict[str, Any] = {
                "record": comparison.format.kind,
                "group": group,
                "arch": gpu.arch.name,
                "environment": {**describe(gpu=True), "seed": args.seed},
                "asked": len(problems),
                **comparison.more(group, args.seed),
                entries: [],
            }
            path = args.out / f"{comparison.format.operation}_{gpu.arch.name}_{group}.json"
            for problem in problems:
                if time.monotonic() > end:
                    break
                record[entries].append(compare(group, problem))
                path.write_text(by_line(record, entries), encoding="utf-8")
            shown = comparison.shown(record)
            _show(shown, f"{len(record[entries])} of {len(problems)} {comparison.noun} on {gpu.arch.name}")
            right = right and shown.right
    return right


def _show(shown: Shown, counted: str) -> None:
    console = output(width=_WIDE)
    columns = [(heading, "right" if index else "left") for index, heading in enumerate(shown.headings)]
    console.print(table(f"{shown.title}: {counted}", columns, shown.rows))
    for remark in shown.remarks:
        console.print(remark, soft_wrap=True)
