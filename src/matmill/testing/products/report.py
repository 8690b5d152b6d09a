"""What an audit found: properties of a product, each with its verdict, as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: The properties that a product may have, by the names that commands and JSON have for them.
PROPERTIES = {
    "takes": "takes its operands",
    "terms": "has every term once",
    "bounds": "reads its operands alone",
    "written": "writes all of D, and nothing around it",
    "special": "has NaN and infinities where IEEE 754 has them",
    "beta": "does not read C where beta = 0",
    "error": "errs by 2 k u |A| |B| at most",
    "grade": "the same on graded matrices: grade A",
    "overflow": "overflows to infinity",
    "subnormals": "keeps subnormal numbers",
    "order": "adds the terms of all elements in one order",
    "twice": "has the same bits twice",
    "rows": "has the same bits for a row without the others",
    "layouts": "has the same bits for transposed operands",
    "addresses": "has the same bits at any address",
    "batches": "has the same bits for a matrix in a batch",
}
#: Without these a product is wrong.
NEEDED = ("takes", "terms", "bounds", "written", "special", "beta", "error")
#: Verdicts: the product has the property, or not, or that could not be asked.
YES, NO, OPEN = "yes", "no", "not asked"


@dataclass(frozen=True)
class Finding:
    """Whether a product has the property that :data:`PROPERTIES` names.

    ``detail`` has figures, or the smallest example that shows what is wrong; ``more`` has further lines.
    """

    name: str
    verdict: str
    detail: str = ""
    more: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        own = {"name": self.name, "property": PROPERTIES[self.name], "verdict": self.verdict, "detail": self.detail}
        return {**own, "more": list(self.more)} if self.more else own


@dataclass(frozen=True)
class Audit:
    """The findings about one product of one element type. It is true if nothing is wrong.

    A product is wrong if it lacks a property that is ``needed``.
    """

    name: str
    dtype: str
    findings: tuple[Finding, ...]
    needed: tuple[str, ...] = NEEDED

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The properties that the product needs and has not."""
        return tuple(each for each in self.findings if each.verdict == NO and each.name in self.needed)

    @property
    def ok(self) -> bool:
        """Tell whether the product has all properties that it needs, as far as they were asked for."""
        return not self.wrong

    def __bool__(self) -> bool:
        return self.ok

    def __getitem__(self, name: str) -> Finding:
        """Return the finding of that name."""
        return {each.name: each for each in self.findings}[name]

    @property
    def verdict(self) -> str:
        """What is wrong, or that nothing is, in one line."""
        product = f"{self.name}, {self.dtype}"
        if self.ok:
            return f"right: {product}"
        first = self.wrong[0]
        return f"WRONG: {product}: it is not true that it {PROPERTIES[first.name]}: {first.detail}"

    def as_dict(self) -> dict[str, Any]:
        """Return all findings as JSON."""
        own = {"product": self.name, "dtype": self.dtype, "ok": self.ok, "verdict": self.verdict}
        return {**own, "needed": list(self.needed), "findings": [each.as_dict() for each in self.findings]}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.verdict
        width = max(map(len, PROPERTIES.values()))
        for each in self.findings:
            yield f"  {each.verdict:9} {PROPERTIES[each.name]:{width}}  {each.detail}".rstrip()
            yield from (f"            {line}" for line in each.more)

    def markdown(self) -> str:
        """Return the verdict and a table of the findings."""
        rows = [f"**{self.verdict}**", "", "| property | | |", "|---|---|---|"]
        for each in self.findings:
            more = "".join(f"<br>{line.replace(' ', '&nbsp;')}" for line in each.more)
            rows.append(f"| {PROPERTIES[each.name]} | {each.verdict} | {each.detail}{more} |")
        return "\n".join(rows) + "\n"
