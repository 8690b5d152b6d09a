"""Tables in Markdown, for the generated pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, the first column to the left, the others to the right.

    >>> print(markdown(["a", "b"], [["x", "1"]]), end="")
    | a | b |
    |---|---:|
    | x | 1 |
    """
    lines = [_line(headings), "|---" + "|---:" * (len(headings) - 1) + "|", *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
