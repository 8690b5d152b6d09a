"""A lesson: one Markdown file with a question, an exercise, hints, a solution, and the check of an answer.

``docs/learn/README.md`` has the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.report.counters import Counters
from matmill.errors import ArgumentError, unknown_name
from matmill.testing.report import LaunchReport

#: The lessons that ship with matmill.
FOLDER = Path(__file__).parent / "lessons"
SECTIONS = ("What to conclude", "Exercise", "Hints", "Solution", "Check")
#: Sections that the page of a lesson does not have.
_ANSWERS = ("Hints", "Solution", "Check")
_TITLE = re.compile(r"# (\d+)\. (.+)")
_QUESTION = re.compile(r"^\*\*Question\.\*\* (.+?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(r"^```cuda (\S+\.cu)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HINT = re.compile(r"^\d+\. (.+?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
#: Ends of lines that are in the student's file alone, and in the solution alone.
_EXERCISE, _SOLUTION = "//-", "//+"

#: A number, or an expression of the constants in the student's file, such as "64 / OUTPUTS".
Extent: TypeAlias = int | str
#: A counter's name, the student's count, the goal, and whether it is reached.
Row: TypeAlias = tuple[str, object, object, bool]


@dataclass(frozen=True)
class Check:
    """The launch of an exercise, its arguments and results, and the goals in counters.

    ``arguments`` takes a random generator, ``expected`` the arguments by name, as they were before the launch;
    it returns outputs by name. ``tolerance`` is relative to the largest element (None: by the output's type). ``rules``
    are those of the verdict that the lesson is about, ``judge`` takes the report and returns further goals.
    """

    kernel: str
    grid: Extent | tuple[Extent, ...]
    block: Extent | tuple[Extent, ...]
    arguments: Callable[[np.random.Generator], dict[str, Any]]
    expected: Callable[..., Mapping[str, NDArray[Any]]]
    shared: Extent = 0
    cluster: Extent | tuple[Extent, ...] = 1
    target: str = "sm_90a"
    tolerance: float | None = None
    at_most: Mapping[str, int] = field(default_factory=dict)
    at_least: Mapping[str, int] = field(default_factory=dict)
    advice: Mapping[str, str] = field(default_factory=dict)
    rules: Sequence[str] | None = None
    judge: Callable[[LaunchReport], Sequence[Row]] | None = None


@dataclass(frozen=True)
class Lesson:
    """A lesson as read from ``path``; ``file`` is the source that the student edits."""

    path: Path
    number: int
    title: str
    question: str
    page: str
    sections: Mapping[str, str]
    hints: tuple[str, ...]
    file: str
    exercise: str
    solution: str

    @property
    def goal(self) -> str:
        """Return what to change and what to reach."""
        return self.sections["Exercise"]

    @property
    def learnt(self) -> str:
        """The first sentence of the conclusion."""
        return re.split(r"(?<=[.!?])\s+(?=[A-Z`*])", self.sections["What to conclude"], maxsplit=1)[0]

    @cached_property
    def check(self) -> Check:
        """The check, which is Python code of the lesson. Raises :class:`~matmill.errors.ArgumentError`."""
        names: dict[str, Any] = {"np": np}
        code = _PYTHON.search(self.sections["Check"])
        if code is None:
            raise self.damaged("a Check without code", "a block that begins with ```python")
        self._guarded("a Check", exec, code[1], names)
        functions = ("arguments", "expected", "judge")
        values = {each.name: each.name if each.name in functions else each.name.upper() for each in fields(Check)}
        required = [values[name] for name in ("kernel", "grid", "block", "arguments", "expected")]
        missing = [name for name in required if name not in names]
        if missing:
            raise self.damaged(f"a Check without {', '.join(missing)}", f"a Check with {', '.join(required)}")
        check = Check(**{name: names[value] for name, value in values.items() if value in names})
        for name in (*check.at_most, *check.at_least):
            if name not in Counters().as_dict():
                raise unknown_name(f"{self.path.name}: Check", name, Counters().as_dict())
        return check

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        """Return what a function of the check returns; what it raises is the lesson's fault."""
        return self._guarded(f"{name}()", getattr(self.check, name), *args, **named)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of the check's launch, the same ones at each call."""
        return dict(self.call("arguments", np.random.default_rng(self.number)))

    def _guarded(self, name: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        try:
            return function(*args, **named)
        except Exception as problem:
            got = f"{name} that raises {type(problem).__name__}: {problem}"
            raise self.damaged(got, "Python code that runs") from problem

    def damaged(self, got: str, wanted: str) -> ArgumentError:
        """Return the error for a lesson that its author should correct."""
        return _damaged(self.path, got, wanted)


def lessons() -> dict[int, Lesson]:
    """Return the lessons that ship with matmill by number."""
    return {lesson.number: lesson for lesson in map(read, sorted(FOLDER.glob("*.md")))}


def read(path: Path) -> Lesson:
    """Read a lesson. Raises :class:`~matmill.errors.ArgumentError` that names what is missing."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        fix = "Check the name, or name a lesson by its number: matmill learn lists them."
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ArgumentError(
            argument="LESSON", got=f"{str(path)!r}: {reason}", wanted="a Markdown file that can be read", fix=fix
        ) from problem
    title, question = _TITLE.match(text), _QUESTION.search(text)
    if title is None:
        raise _damaged(path, f"the first line {text.partition(chr(10))[0]!r}", "a title such as '# 4. Bank conflicts'")
    if question is None:
        raise _damaged(path, "no question", "a paragraph that begins with '**Question.** '")
    parts = dict(_sections(text))
    sections = {name.strip("# \n"): body.strip() for name, body in parts.items()}
    for name in SECTIONS:
        if not sections.get(name):
            raise _damaged(path, f"no section {name!r}", f"the sections {', '.join(SECTIONS)}, none of them empty")
    hints = tuple(hint[1].strip() for hint in _HINT.finditer(sections["Hints"]))
    if not hints:
        raise _damaged(path, "no hint", "a numbered list of hints, '1. …'")
    source = _SOURCE.search(sections["Solution"])
    if source is None:
        raise _damaged(path, "a Solution without a source", "a block that begins with ```cuda NAME.cu")
    exercise, solution = (_marked(source[2], ends) for ends in ((_EXERCISE, _SOLUTION), (_SOLUTION, _EXERCISE)))
    if exercise == solution:
        raise _damaged(path, "a Solution without marked lines", f"lines that end in {_EXERCISE} or {_SOLUTION}")
    page = "".join(name + body for name, body in parts.items() if name.strip("# \n") not in _ANSWERS)
    return Lesson(
        path, int(title[1]), title[2].strip(), question[1], page.rstrip() + "\n", sections, hints, source[1],
        exercise, solution,
    )  # fmt: skip


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the headings of the second level with what follows each; "" is the heading of what precedes them."""
    heading, body, fenced = "", "", False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            yield heading, body
            heading, body = line, ""
        else:
            body += line
    yield heading, body


def _marked(source: str, ends: tuple[str, str]) -> str:
    r"""Return a source without the lines that end in the second mark, and without the first mark.

    >>> _marked("a;\nb;  //-\nc;  //+\n", ("//-", "//+"))
    'a;\nb;\n'
    """
    kept, dropped = ends
    lines = [line.rstrip() for line in source.splitlines()]
    return "".join(f"{line.removesuffix(kept).rstrip()}\n" for line in lines if not line.endswith(dropped))


def _damaged(path: Path, got: str, wanted: str) -> ArgumentError:
    fix = "docs/learn/README.md has the format of a lesson."
    return ArgumentError(argument=f"lesson {path.name}", got=got, wanted=wanted, fix=fix)
