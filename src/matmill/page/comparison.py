"""The page of two emulated launches beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from matmill.page.document import bar, document, table
from matmill.testing.comparison import Comparison
from matmill.testing.verdict import Advice

_CLASSES = {"better": "note", "worse": "error", "": "quiet"}


def page(comparison: Comparison) -> str:
    """Return a page without external resources."""
    lines = [
        f"<p><strong>{name}</strong>: {escape(line)}</p>"
        for name, report in (("A", comparison.first), ("B", comparison.second))
        for line in report.brief()
    ]
    sections = (
        ("counts", "Counts that differ", _counts(comparison)),
        *((kind, f"Advice: {kind}", _advice(advice)) for kind, advice in comparison.advice().items()),
        ("results", "Results", _results(comparison)),
    )
    names = [report.launch.kernel for report in (comparison.first, comparison.second)]
    return document(" beside ".join(names), sections, "".join(lines))


def _counts(comparison: Comparison) -> str:
    rows = []
    for name, (first, second, kind) in comparison.counters().items():
        most = max(first, second)
        bars = "<br>".join(
            bar(count, most, f"{label}: {count}", width=8, over=over)
            for label, count, over in (("A", first, False), ("B", second, True))
        )
        ratio = f"{second / first:.3g}x" if first else ""
        mark = f'<span class="{_CLASSES[kind]}">{kind}</span>'
        rows.append((escape(name), f"{first:,}", f"{second:,}", ratio, mark, bars))
    heads = (("what", False), ("A", True), ("B", True), ("B / A", True), ("", False), ("", False))
    return table(heads, rows) if rows else "<p>All counts are equal.</p>"


def _advice(advice: Iterable[Advice]) -> str:
    items = "".join(f"<li>{escape(str(each))}</li>" for each in advice)
    return f"<ul>{items}</ul>" if items else ""


def _results(comparison: Comparison) -> str:
    items = "".join(
        f'<li class="{"error" if count else "note"}">argument {escape(name)} '
        f"{f'differs in {count:,} elements' if count else 'is equal'}</li>"
        for name, count in comparison.results.items()
    )
    return f"<ul>{items}</ul>" if items else ""
