"""The report of ``enable()``: each product with its times, who answered it, and what that saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from matmill.analysis.changes import changes
from matmill.analysis.floor import floor
from matmill.arch import Arch
from matmill.errors import IllegalConfigError
from matmill.page.document import document, table
from matmill.problem import Gemm
from matmill.torch.session import latest

#: Rows of the table in text, and products that advice is given on.
_ROWS, _ADVISED = 12, 3
#: Advice is given from this share of the time of all products on, if the faster kernel takes this many times the floor.
_LEAST_SHARE, _LEAST_FACTOR = 0.05, 1.5


@dataclass(frozen=True)
class Row:
    """Products of one layout: how many, by whom, and seconds each on the GPU (None where nothing was measured).

    ``floor_seconds`` is the least time by the GPU's data sheet. ``method`` is how matmill's kernel multiplies float32
    elements in pieces, or None.
    """

    key: str
    calls: int
    answered_by: str
    torch_seconds: float | None
    matmill_seconds: float | None
    reason: str
    floor_seconds: float | None
    problem: Gemm | None
    arch: Arch | None
    method: str | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all its calls on the GPU, by whoever answered."""
        each = self.matmill_seconds if self.answered_by == "matmill" else self.torch_seconds
        return self.calls * (each or 0.0)

    @property
    def saved_seconds(self) -> float:
        """Seconds that matmill's answers saved."""
        if self.answered_by == "torch" or self.torch_seconds is None or self.matmill_seconds is None:
            return 0.0
        return self.calls * (self.torch_seconds - self.matmill_seconds)

    @property
    def factor(self) -> float:
        """The time relative to the floor; 1 is the best that the GPU can do."""
        return self.seconds / (self.calls * self.floor_seconds) if self.calls and self.floor_seconds else 1.0


@dataclass(frozen=True)
class Report:
    """All products that were met, those that took longest first.

    ``steps`` are calls of an optimizer's ``step``. ``step_seconds`` are a whole step's, with matmill and without, once
    the two were compared.
    """

    rows: tuple[Row, ...]
    steps: int
    step_seconds: tuple[float, float] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of all products on the GPU."""
        return sum(row.seconds for row in self.rows)

    @property
    def saved_seconds(self) -> float:
        """Seconds of the GPU that matmill saved."""
        return sum(row.saved_seconds for row in self.rows)

    @property
    def conclusion(self) -> str:
        """The result in a sentence or two."""
        if not self.rows:
            return "matmill met no matrix product on a GPU."
        steps = ""
        if self.step_seconds is not None:
            steps = "A step takes {} with matmill and {} without. ".format(*map(_ms, self.step_seconds))
        ours = [row for row in self.rows if row.answered_by == "matmill" and row.calls]
        counted = f"{sum(row.calls for row in ours)} of {sum(row.calls for row in self.rows)} products"
        if not ours:
            return f"{steps}torch answered all products, of {len(self.rows)} layouts."
        left = sum(not row.calls for row in self.rows)
        kept = (
            f" In compiled programs torch keeps {left} layout{'s' * (left != 1)}, which are not counted."
            if left
            else ""
        )
        split: Counter[str] = Counter()
        for row in ours:
            if row.method is not None:
                split[row.method] += row.calls
        if split:
            counted += f" ({', '.join(f'{calls} in pieces by {method}' for method, calls in split.items())})"
        total = f"matmill answered {counted} and saved {_ms(self.saved_seconds)} of {_ms(self._by_torch)}"
        each = f", {_ms(self.saved_seconds / self.steps)} a step" if self.steps else ""
        return f"{steps}{total} of the GPU's time in products{each}.{kept}"

    @property
    def _by_torch(self) -> float:
        return self.seconds + self.saved_seconds

    def advice(self) -> tuple[str, ...]:
        """Return what would make the slowest products faster that neither torch nor matmill does well."""
        slow = [row for row in self.rows if row.seconds >= _LEAST_SHARE * self.seconds and row.factor >= _LEAST_FACTOR]
        worst = sorted(slow, key=lambda row: row.seconds * (1 - 1 / row.factor), reverse=True)[:_ADVISED]
        return tuple(words for words in map(_advice, worst) if words)

    def __str__(self) -> str:
        """Return conclusion, table and advice as plain text of at most 100 columns."""
        lines = [self.conclusion]
        shown = [row for row in self.rows if row.calls][:_ROWS]
        if shown:
            lines += ["", f"{'calls':>7} {'torch us':>9} {'matmill us':>10} {'saved ms':>9}  by       product"]
            lines += [
                f"{row.calls:7} {_us(row.torch_seconds):>9} {_us(row.matmill_seconds):>10} "
                f"{row.saved_seconds * 1e3:9.2f}  {row.answered_by:8} {row.key}{_by(row)}"
                for row in shown
            ]
            hidden = len([row for row in self.rows if row.calls]) - len(shown)
            lines += [f"and {hidden} more" for _ in range(min(hidden, 1))]
        lines += [f"- {words}" for words in self.advice()]
        return "\n".join(lines)

    def html(self) -> str:
        """Return the same as a page of HTML."""
        headings = [
            ("calls", True),
            ("torch us", True),
            ("matmill us", True),
            ("saved ms", True),
            ("times the floor", True),
        ]
        headings += [("answered by", False), ("product", False), ("reason", False)]
        cells = (
            (
                str(row.calls),
                _us(row.torch_seconds),
                _us(row.matmill_seconds),
                f"{row.saved_seconds * 1e3:.2f}",
                f"{row.factor:.1f}" if row.floor_seconds else "-",
                row.answered_by,
                escape(row.key + _by(row)),
                escape(row.reason),
            )
            for row in self.rows
        )
        advice = "".join(f"<li>{escape(words)}</li>" for words in self.advice())
        sections = [
            ("products", "Products", table(headings, cells)),
            ("advice", "What would help", f"<ul>{advice}</ul>" if advice else ""),
        ]
        return document("matmill beside torch", sections, f"<p>{escape(self.conclusion)}</p>")

    def write_html(self, path: str | Path) -> None:
        """Write :meth:`html` to a file. Raises :class:`OSError`."""
        Path(path).write_text(self.html(), encoding="utf-8")


def report() -> Report:
    """Return what was decided and done since :func:`~matmill.torch.enable` was last called, also after its end.

    >>> import matmill.torch
    >>> with matmill.torch.enable():
    ...     pass
    >>> print(matmill.torch.report())
    matmill met no matrix product on a GPU.
    """
    session = latest()
    rows: Iterable[Row] = ()
    if session is not None:
        rows = (
            Row(
                decision.key,
                by_matmill + by_torch,
                "matmill" if by_matmill > by_torch else "torch",
                decision.torch_seconds,
                decision.matmill_seconds,
                decision.reason,
                None
                if decision.problem is None or decision.arch is None
                else floor(decision.problem, decision.arch).seconds,
                decision.problem,
                decision.arch,
                decision.method if by_matmill > by_torch else None,
            )
            for decision, by_matmill, by_torch in session.decisions()
            if not decision.auxiliary
        )
    longest_first = tuple(sorted(rows, key=lambda row: -row.seconds))
    if session is None:
        return Report(longest_first, 0)
    return Report(longest_first, session.steps, None if session.trial is None else session.trial.result)


def _advice(row: Row) -> str:
    """Return the change of a product's call that would save most, or nothing."""
    if row.problem is None or row.arch is None:
        return ""
    try:
        found = changes(row.problem, row.arch)
    except IllegalConfigError:
        return ""
    if not found:
        return ""
    best = found[0]
    return f"{row.key}: {best.words}: {best.seconds * 1e6:.0f} us instead of {best.before * 1e6:.0f} by the model"


def _by(row: Row) -> str:
    return "" if row.method is None else f", by {row.method}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"
