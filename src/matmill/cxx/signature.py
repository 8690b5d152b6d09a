"""A kernel's name and parameters as its source spells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matmill.cxx.declarations import Declaration
from matmill.cxx.tokens import Token

_IGNORED = frozenset({"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__", "register"})
_OPENING, _CLOSING = frozenset("([{<"), frozenset(")]}>")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name ("" where the source gives none) and its type without ``const`` and the like."""

    name: str
    type: str
    const: bool = False

    @property
    def pointee(self) -> str:
        """The type that it points to, "" where it is no plain pointer."""
        return self.type.removesuffix("*").strip() if self.type.endswith("*") else ""


def parameters_of(declaration: Declaration) -> tuple[Parameter, ...]:
    """The parameters of a function."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in declaration.parameters:
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    found = tuple(_parameter(part) for part in parts if part)
    return () if [each.type for each in found] == ["void"] else found


def _parameter(part: Sequence[Token]) -> Parameter:
    texts = [token.text for token in part]
    if "=" in texts:
        texts = texts[: texts.index("=")]
    pointer = 0
    while texts and texts[-1] == "]":
        texts = texts[: len(texts) - 1 - texts[::-1].index("[")]
        pointer = 1
    name = ""
    words = [text for text in texts if text not in _IGNORED]
    if len(words) > 1 and words[-1].isidentifier() and words[-2] != "::":
        name = words.pop()
    star = words.index("*") if "*" in words else len(words)
    const = "const" in texts[: texts.index("*")] if "*" in texts else "const" in texts
    spelled = " ".join(words[:star]).replace(" :: ", "::") + "*" * (len(words) - star + pointer)
    return Parameter(name, spelled, const)
