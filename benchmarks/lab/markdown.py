"""Tables and paragraphs in Markdown, for the generated pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

#: The most characters of a line.
WIDTH = 120


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, the first column to the left, the others to the right.

    >>> print(markdown(["a", "b"], [["x", "1"]]), end="")
    | a | b |
    |---|---:|
    | x | 1 |
    """
    lines = [_line(headings), "|---" + "|---:" * (len(headings) - 1) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def table(columns: Mapping[str, Callable[[Any], str]], entries: Iterable[Any]) -> str:
    """Return a table with a row for each entry; ``columns`` give the text of its cells.

    >>> print(table({"n": str, "square": lambda n: f"{n * n}"}, [2, 3]), end="")
    | n | square |
    |---|---:|
    | 2 | 4 |
    | 3 | 9 |
    """
    return markdown([*columns], ([cell(entry) for cell in columns.values()] for entry in entries))


def filled(text: str) -> str:
    """Return headings, code and tables as they are, paragraphs with lines of at most :data:`WIDTH` characters."""
    paragraphs = text.strip("\n").split("\n\n")
    return (
        "\n\n".join(
            one if one.startswith(("#", "    ", "|")) else fill(one, WIDTH, break_on_hyphens=False)
            for one in paragraphs
        )
        + "\n"
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
