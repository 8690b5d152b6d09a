"""The pages of the lessons of ``matmill learn``: each without its answers, with what its student sees first."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.front_page import between
from matmill.cli import main
from matmill.learn.lesson import Lesson, lessons

MARKS = ("<!-- lessons: written by `make docs` -->\n", "<!-- end of lessons -->\n")


def lesson_pages(folder: Path) -> dict[Path, str]:
    """Return the pages of the lessons and of their index, which is in ``folder``."""
    index = folder / "README.md"
    rows = [
        f"{n}. [{each.title}]({each.path.name}). {' '.join(each.question.split())}" for n, each in lessons().items()
    ]
    pages = {index: between(index.read_text(encoding="utf-8"), MARKS, "\n".join(rows) + "\n")}
    return pages | {folder / lesson.path.name: lesson_page(lesson) for lesson in lessons().values()}


def lesson_page(lesson: Lesson) -> str:
    """Return the page of one lesson."""
    links = {number: f"[{number}. {each.title}]({each.path.name})" for number, each in lessons().items()}
    around = [links.get(lesson.number - 1), "[all lessons](README.md)", links.get(lesson.number + 1)]
    command = f"matmill learn {lesson.number}"
    return (
        f"<!-- written by `make docs` from src/matmill/learn/lessons/{lesson.path.name} -->\n\n{lesson.page}\n"
        f"## What you see first\n\n`{command}` writes `{lesson.file}`. The check of it, unchanged:\n\n"
        f"```console\n$ {command} --check\n{first_screen(lesson)}```\n\n"
        f"{' · '.join(link for link in around if link)}\n"
    )


def first_screen(lesson: Lesson) -> str:
    """Return what the check prints of the kernel that the student begins with."""
    screen = io.StringIO()
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(screen):
        Path(lesson.file).write_text(lesson.exercise, encoding="utf-8")
        main(["learn", str(lesson.number), "--check"])
    return "".join(f"{line.rstrip()}\n" for line in screen.getvalue().splitlines())
