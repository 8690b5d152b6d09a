"""``matmill learn``: lessons on why one kernel is faster than another, with exercises checked without a GPU."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from matmill.cli.console import output, show, table
from matmill.cli.options import Subparsers, size, writable
from matmill.errors import ArgumentError, MatmillError, unknown_name

if TYPE_CHECKING:
    from matmill.learn.judgement import Judgement
    from matmill.learn.lesson import Lesson

_SOLVED = " (solved)"
_HEADING, _GOOD, _BAD = "bold", "bold green", "bold red"


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "learn",
        help="lessons on fast kernels, with exercises that need no GPU",
        description="Lists the lessons. With a lesson: writes its kernel into the current folder, for you to make it "
        "faster, and with --check says whether you have.",
        epilog="Exit codes: 0 fine or passed, 1 not passed, 2 usage.",
    )
    parser.add_argument("lesson", metavar="LESSON", nargs="?", help="its number, or the Markdown file of your own")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--read", action="store_true", help="print the lesson")
    does.add_argument(
        "--check", metavar="FILE", nargs="?", type=Path, const=Path(), help="judge your answer (default: the kernel)"
    )
    does.add_argument("--hint", metavar="N", nargs="?", type=size, const=1, help="print hint N; the last is a solution")
    does.add_argument("--force", action="store_true", help="write the kernel anew, although you have changed it")
    parser.add_argument("--html", metavar="FILE", type=Path, help="with --check: draw traffic and banks into FILE")


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say. Raises :class:`~matmill.errors.MatmillError` or ``OSError``."""
    if args.lesson is None:
        if args.read or args.force or args.html or args.check is not None or args.hint is not None:
            fix = "matmill learn lists them."
            raise ArgumentError(argument="LESSON", got="nothing", wanted="the number of a lesson", fix=fix)
        show(_overview())
        return 0
    lesson = _lesson(args.lesson)
    if args.html is not None and args.check is None:
        fix = "Add --check."
        raise ArgumentError(argument="--html", got="no --check", wanted="an answer to draw", fix=fix)
    if args.check is not None:
        return _check(lesson, args)
    if args.read:
        show([_prose(lesson.page)])
    else:
        show(_hint(lesson, args) if args.hint is not None else _begun(lesson, args))
    return 0


def _lesson(text: str) -> Lesson:
    """Return the lesson that a number or a path names."""
    from matmill.learn.lesson import lessons, read  # noqa: PLC0415 — other commands should not pay for these

    if not text.isdigit():
        if Path(text).suffix != ".md":
            fix = "matmill learn lists the numbers."
            raise ArgumentError(argument="LESSON", got=repr(text), wanted="a number, or a file ending in .md", fix=fix)
        return read(Path(text))
    known = lessons()
    if int(text) not in known:
        raise unknown_name("LESSON", text, map(str, known))
    return known[int(text)]


def _overview() -> Iterator[RenderableType]:
    """Yield the lessons with their questions, and how far those are whose kernels are in this folder."""
    from matmill.learn.lesson import lessons  # noqa: PLC0415 — see _lesson

    begun = {number: _progress(lesson) for number, lesson in lessons().items()}
    for number, lesson in lessons().items():
        yield Text(f"{number:2}  {lesson.title}: {lesson.file}{begun[number]}", style=_HEADING)
        if begun[number] != _SOLVED:
            yield _prose(lesson.question, "    ")
    open_ones = [number for number, progress in begun.items() if progress != _SOLVED]
    yield Text("\nSolved are those whose kernel in this folder passes.")
    yield Text(f"Next: matmill learn {open_ones[0]}" if open_ones else "All of them are solved.")


def _progress(lesson: Lesson) -> str:
    """Return how far the student is with the lesson's kernel in the current folder, or "" if it is not there."""
    from matmill.learn.judgement import judge  # noqa: PLC0415 — see _lesson

    file = Path(lesson.file)
    if not file.is_file():
        return ""
    if file.read_text(encoding="utf-8", errors="replace") == lesson.exercise:
        return " (not yet changed)"
    try:
        return _SOLVED if judge(lesson, file).passed else " (not yet solved)"
    except MatmillError:  # such as that of the compiler
        return " (not yet solved)"


def _begun(lesson: Lesson, args: argparse.Namespace) -> Iterator[RenderableType]:
    """Write the kernel, unless the student has changed it, and yield what to do."""
    file = Path(lesson.file)
    writable(file, f"{lesson.path.name}'s file")
    changed = file.exists() and file.read_text(encoding="utf-8", errors="replace") != lesson.exercise
    if changed and not args.force:
        yield Text(f"{file} stays as you have changed it (--force writes it anew)")
    else:
        file.write_text(lesson.exercise, encoding="utf-8")
        yield Text(f"{file} is written: the kernel to work on")
    yield Text(f"\n{lesson.number}. {lesson.title}", style=_HEADING)
    yield _prose(lesson.question)
    yield Text()
    yield _prose(lesson.goal)
    yield Text()
    yield Text(f"The lesson:  {_command(args, '--read')}")
    yield Text(f"Your answer: edit {file}, then {_command(args, '--check')}")


def _hint(lesson: Lesson, args: argparse.Namespace) -> Iterator[RenderableType]:
    """Yield one hint, or after the last one the solution, and the command for the next."""
    count, number = len(lesson.hints), args.hint
    if number > count + 1:
        wanted = f"1 to {count}, or {count + 1} for a solution"
        raise ArgumentError(argument="--hint", got=str(number), wanted=wanted, fix="Name one of them.")
    if number > count:
        yield Text(f"{lesson.file}, one solution:", style=_HEADING)
        yield Text(lesson.solution.rstrip())
        return
    yield Text(f"Hint {number} of {count}", style=_HEADING)
    yield _prose(lesson.hints[number - 1])
    rest = "one more" if number < count else "a solution"
    yield Text(f"\nStill stuck? {_command(args, f'--hint {number + 1}')} has {rest}")


def _check(lesson: Lesson, args: argparse.Namespace) -> int:
    """Judge the answer, and return the exit code."""
    from matmill.learn.judgement import judge  # noqa: PLC0415 — see _lesson

    file = Path(lesson.file) if args.check == Path() else args.check
    if not file.is_file():
        raise ArgumentError(
            argument="--check", got=f"no file {str(file)!r} here", wanted="your answer, a .cu file",
            fix=f"{_command(args)} writes the kernel to begin with.",
        )  # fmt: skip
    if args.html is not None:
        writable(args.html, "--html")
    try:
        judgement = judge(lesson, file)
    except ArgumentError as problem:
        if problem.argument != "entry":
            raise
        raise ArgumentError(
            argument="--check", got=f"{file} without a kernel {lesson.check.kernel!r}",
            wanted=f"an answer to lesson {lesson.number}, as {lesson.file} is",
            fix="Keep the kernel's name, or name the lesson that the file belongs to.",
        ) from problem  # fmt: skip
    show(_shown(judgement, output().width))
    if args.html is not None:
        from matmill.page.launch import page  # noqa: PLC0415 — see _lesson

        args.html.write_text(page(judgement.report), encoding="utf-8")
        show([Text(f"Page: {args.html}")])
    if not judgement.passed:
        show([Text(f"\nStuck? {_command(args, '--hint')}")])
        return 1
    show(_passed(lesson, file))
    return 0


def _shown(judgement: Judgement, width: int) -> Iterator[RenderableType]:
    """Yield result, hazards, goals, and what to look at next."""
    report = judgement.report
    if report.printed:
        yield Text(report.printed.removesuffix("\n"))
    yield Text(report.title)
    for each in judgement.results:
        yield Text(str(each), style="" if each.ok else _BAD)
    # Notes may say why a result is not right: an output without a value, stores of several threads to one element.
    wrong = not all(each.ok for each in judgement.results)
    errors = [each for each in report.hazards if each.severity == "error" or wrong]
    for line in report.hazard_lines(errors, width):
        yield Text(textwrap.fill(line, width, subsequent_indent="  ") if line else "")
    if judgement.goals:
        rows = [
            [name, f"{count:,}" if isinstance(count, int) else str(count), str(goal), "✓" if reached else "✗"]
            for name, count, goal, reached in judgement.goals
        ]
        yield Text()
        yield table("Goals", [("counter", "left"), ("yours", "right"), ("goal", "right"), ("", "left")], rows)
    if not judgement.passed:
        yield Text("\nWhat to look at next", style=_HEADING)
        yield from _next(judgement, width)


def _next(judgement: Judgement, width: int) -> Iterator[RenderableType]:
    """Yield what the lesson says of the first goal that is missed, and the costliest line; but errors come first.

    What the verdict would change is for the student to find.
    """
    from matmill.testing.report import clipped, wrap  # noqa: PLC0415 — see _lesson

    report, worst = judgement.report, judgement.worst
    right = all(each.ok for each in judgement.results)
    if not (report.ok and right):
        yield _prose("Errors first: the counts of a kernel that is not right say little.")
        if judgement.results and right:
            yield _prose("The result is right this time; in another order of the warps it may not be.")
        return
    if judgement.advice:
        yield _prose(judgement.advice)
    if worst is not None:
        yield Text("\n".join(wrap(f"{worst.where}  {worst.cause}".strip(), "", width)))
        if worst.where in report.source:
            yield Text(f"  {clipped(report.source[worst.where], width - 2)}")


def _passed(lesson: Lesson, file: Path) -> Iterator[RenderableType]:
    """Yield what was learnt, the time on a GPU if there is one, and the next lesson."""
    from matmill.bench import units  # noqa: PLC0415 — see _lesson
    from matmill.learn.lesson import lessons  # noqa: PLC0415 — see _lesson
    from matmill.runtime import gpu  # noqa: PLC0415 — see _lesson

    yield Text("\nPassed.", style=_GOOD)
    yield _prose(lesson.learnt)
    if gpu.unavailable() is None:
        from matmill.learn.gpu_time import time_on  # noqa: PLC0415 — it loads CUDA

        device = gpu.GPU.get()
        try:
            timing = time_on(device, lesson, file)
            words = f"{units.seconds(timing.median)}, the median of {timing.rounds} runs"
        except MatmillError as problem:  # such as a GPU older than the lesson's instructions
            words = f"no time: {problem.got}"
        yield _prose(f"On the {device.arch.title}: {words}")
    if lesson.number + 1 in lessons():
        yield Text(f"Next: matmill learn {lesson.number + 1}")
    elif lesson.number == max(lessons()):
        yield _prose(
            "That was the last one. Next: `matmill ladder hgemm --all`, and your own kernels: "
            "`matmill emulate FILE.cu`, `matmill compare BEFORE.cu AFTER.cu`."
        )


def _command(args: argparse.Namespace, option: str = "") -> str:
    return f"matmill learn {args.lesson} {option}".rstrip()


def _prose(markdown: str, indent: str = "") -> Text:
    """Return Markdown as text whose paragraphs fit the output; code and drawings stay as they are."""
    parts = [part for part in re.split(r"^(```.*?^```)$", markdown, flags=re.MULTILINE | re.DOTALL) if part.strip()]
    paragraphs = [
        paragraph
        for part in parts
        for paragraph in ([part] if part.startswith("```") else re.split(r"\n\s*\n|\n(?=[-|] ?|\d+\. )", part.strip()))
    ]
    return Text("\n\n".join(each if each.startswith("```") else _filled(each, indent) for each in paragraphs))


def _filled(paragraph: str, indent: str) -> str:
    words = " ".join(paragraph.replace("**", "").split())
    hanging = indent + "  " * bool(re.match(r"- |\d+\. ", words))
    return textwrap.fill(
        words, output().width, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False
    )
