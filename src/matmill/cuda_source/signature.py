"""A kernel's parameters as its source declares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matmill.cuda_source.declarations import Declaration
from matmill.cuda_source.tokens import Token

_IGNORED = frozenset({"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__", "register"})
_OPENING, _CLOSING = frozenset("([{<"), frozenset(")]}>")


@dataclass(frozen=True)
class Parameter:
    """A parameter: its name ("" if the source has none) and its type without ``const`` and the like.

    ``compiled`` is the type behind the source's own names (``typedef``, template parameters), if known.
    """

    name: str
    type: str
    const: bool = False
    compiled: str = ""

    @property
    def pointee(self) -> str:
        """The type that it points to, or "" if it is not a plain pointer."""
        known = self.compiled or self.type
        return known.removesuffix("*").strip() if known.endswith("*") else ""

    def __str__(self) -> str:
        const = "const " if self.const else ""
        behind = f", which is {const}{self.compiled}" if self.compiled not in {"", self.type} else ""
        return f"{const}{self.type} {self.name}".strip() + behind


def parameters_of(declaration: Declaration) -> tuple[Parameter, ...]:
    """Return the parameters of a function."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in declaration.parameters:
        depth += (token.text in _OPENING) - (token.text in _CLOSING)
        if token.text == "," and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    parameters = tuple(_parameter(part) for part in parts if part)
    return () if [each.type for each in parameters] == ["void"] else parameters


def compiled(parameters: Sequence[Parameter], demangled: str) -> tuple[Parameter, ...]:
    """Return the parameters with the types in ``demangled``, the compiled function's name in C++.

    >>> [str(each) for each in compiled([Parameter("x", "T*", const=True)], "void scale<float>(float const*)")]
    ['const T* x, which is const float*']
    """
    types = _types(demangled)
    if len(types) != len(parameters):
        return tuple(parameters)
    # The compiler's names of library types are longer than the source's: only pointers are useful.
    plain = [" ".join(word for word in _spaced(each) if word not in _IGNORED).replace(" *", "*") for each in types]
    return tuple(
        replace(p, compiled=each) if each.endswith("*") and "(" not in each else p
        for p, each in zip(parameters, plain, strict=True)
    )


def _spaced(text: str) -> list[str]:
    return text.replace("*", " *").split()


def _types(demangled: str) -> list[str]:
    """Return the types between the last parentheses of a function's name, if there are any."""
    depth, end, types = 0, len(demangled) - 1, list[str]()
    if not demangled.endswith(")"):
        return []
    for at in range(end, -1, -1):
        depth += (demangled[at] in _CLOSING) - (demangled[at] in _OPENING)
        if depth == 1 and demangled[at] == ",":
            types.append(demangled[at + 1 : end].strip())
            end = at
        if depth == 0:
            return [*types, demangled[at + 1 : end].strip()][::-1]
    return []


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
