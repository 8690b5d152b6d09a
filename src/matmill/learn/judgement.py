"""The check of an answer: its result, its hazards, its budget of counters, and what to look at next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from matmill.errors import ArgumentError
from matmill.launch import Dim3
from matmill.learn.lesson import Extent, Lesson, Row
from matmill.testing.call import extent
from matmill.testing.expected import Expectation, expectations
from matmill.testing.findings import further_orders, usual_tolerance
from matmill.testing.kernel import PtxKernel, Settings, load
from matmill.testing.languages import in_order
from matmill.testing.report import LaunchReport
from matmill.testing.verdict import Advice

#: Orders of the warps in which an answer runs besides the usual one: late copies among them.
_FURTHER_ORDERS = 2
#: Rules of the verdict that any launch as small as an exercise breaks.
_SMALL = ("idle SMs",)


@dataclass(frozen=True)
class Judgement:
    """The report on an answer, its results beside the right ones, and its counters beside the goals."""

    lesson: Lesson
    report: LaunchReport
    results: tuple[Expectation, ...]
    goals: tuple[Row, ...]

    @property
    def passed(self) -> bool:
        """True if the launch has no error, the results are right and all goals are reached."""
        return self.report.ok and all(each.ok for each in self.results) and all(reached for *_, reached in self.goals)

    @property
    def worst(self) -> Advice | None:
        """The first of the verdict on the launch by the lesson's rules, or by those not about an exercise's size."""
        rules, verdict = self.lesson.check.rules, self.report.verdict
        fitting = (each for each in verdict if (each.rule not in _SMALL if rules is None else each.rule in rules))
        return next(fitting, None)

    @property
    def advice(self) -> str:
        """The lesson's advice for the first goal that is not reached, or ""."""
        missed = [name for name, *_, reached in self.goals if not reached and name in self.lesson.check.advice]
        return self.lesson.check.advice[missed[0]] if missed else ""


def judge(lesson: Lesson, file: Path) -> Judgement:
    """Compile and emulate an answer, and compare it with the lesson's goals.

    Raises :class:`~matmill.errors.CompileError` with the compiler's log, and :class:`~matmill.errors.ArgumentError` for
    a kernel with another name or other parameters.
    """
    kernel = load(file, lesson.check.kernel, target=lesson.check.target)
    arguments = lesson.arguments()
    before = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}
    grid, block, shared, cluster = shape(lesson, kernel)
    report = kernel.launch(
        grid,
        block,
        in_order(kernel, (), arguments),
        shared=shared,
        cluster=cluster,
        initcheck=True,
        settings=Settings(orders=lambda program, launch: islice(further_orders(program, launch), _FURTHER_ORDERS)),
    )
    if report.faulted:
        return Judgement(lesson, report, (), ())
    return Judgement(lesson, report, tuple(_results(lesson, arguments, before)), tuple(_goals(lesson, report)))


def shape(lesson: Lesson, kernel: PtxKernel) -> tuple[Dim3, Dim3, int, Dim3]:
    """Return grid, block, dynamic shared memory and cluster of a lesson's launch of an answer."""
    check = lesson.check
    grid, block, cluster = (
        extent(name, [_number(kernel, name, each) for each in (extents if isinstance(extents, tuple) else (extents,))])
        for name, extents in (("GRID", check.grid), ("BLOCK", check.block), ("CLUSTER", check.cluster))
    )
    return grid, block, _number(kernel, "SHARED", check.shared), cluster


def _number(kernel: PtxKernel, name: str, value: Extent) -> int:
    """Return a number of a launch, which may be an expression of the constants of the student's file."""
    number = value if isinstance(value, int) else kernel.unit.constant(value)
    if number is None:
        fix = "Keep the constants that the file began with."
        raise ArgumentError(
            argument=name, got=f"{value!r}, whose value the file does not determine", wanted="a whole number", fix=fix
        )
    return number


def _results(lesson: Lesson, arguments: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Expectation]:
    """Yield the outputs beside those expected of the arguments as they were ``before`` the launch."""
    for name, values in lesson.call("expected", **before).items():
        output, wanted, tolerance = arguments.get(name), np.asarray(values), lesson.check.tolerance
        if not isinstance(output, np.ndarray) or output.shape != wanted.shape:
            outputs = {each: array.shape for each, array in arguments.items() if isinstance(array, np.ndarray)}
            raise lesson.damaged(
                f"expected() with {name!r} of shape {wanted.shape}", f"arrays as the arguments {outputs}"
            )
        allowed = usual_tolerance(output.dtype) if tolerance is None else tolerance
        yield from expectations([(name, "the right result", output, wanted)], allowed)


def _goals(lesson: Lesson, report: LaunchReport) -> Iterator[Row]:
    """Yield the counters that the lesson limits, then what its own ``judge`` says."""
    counts, check = report.counters.as_dict(), lesson.check
    yield from ((name, counts[name], f"at most {most:,}", counts[name] <= most) for name, most in check.at_most.items())
    yield from (
        (name, counts[name], f"at least {least:,}", counts[name] >= least) for name, least in check.at_least.items()
    )
    if check.judge is not None:
        yield from lesson.call("judge", report)
