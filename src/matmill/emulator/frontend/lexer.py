"""PTX text to tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from matmill.errors import EmulationError

# A ``.loc`` directive is one token, and so is a section of debug information: they are half of NVRTC's output, and
# hardly any of it is used.
_PARTS = r"""
    (?P<space>//[^\n]*|/\*.*?\*/)
    | (?P<location>\.loc\b[^\n/]*)
    | (?P<section>\.section\s+[\w$%.]+\s*\{[^{}"/]*\})
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<word>[A-Za-z_$%.][\w$%.]*(?:::[\w$%.]+)*)
    | (?P<number>0[fF][0-9A-Fa-f]{8}\b|0[dD][0-9A-Fa-f]{16}\b|0[xX][0-9A-Fa-f]+U?\b|0[bB][01]+U?\b
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?\b)
    | (?P<mark>[@!|{}\[\]();,:+\-<>=*/&^~?])
"""
# Most instructions are one token too, with guard, operands and semicolon: the parser knows most operands by their text.
# If such a token is not an instruction, it is spelled out.
_STATEMENT = r"""
    (?P<statement>(?:@!?[\w$%]+[ \t]+)?[a-z][\w.]*(?:::[\w.]+)*[ \t]+[%$\w\[{_!][\w$%.,\[\]{}|!+\-<>@ \t]*;) |
"""
_FLAGS = re.VERBOSE | re.DOTALL | re.ASCII
_TOKEN = re.compile(rf"\s*(?:{_PARTS})", _FLAGS)
_STATEMENT_OR_TOKEN = re.compile(rf"\s*(?:{_STATEMENT}{_PARTS})", _FLAGS)


class Token(NamedTuple):
    """One token; ``start`` is its offset in the text, ``line`` counts from 1. The last one has kind "end"."""

    kind: str
    text: str
    line: int
    start: int


def syntax_error(line: int, got: str, wanted: str) -> EmulationError:
    """Return the error for PTX that is not valid."""
    return EmulationError(
        argument=f"PTX line {line}",
        got=got,
        wanted=wanted,
        fix="Give the PTX text that NVRTC or nvcc wrote, unchanged.",
    )


def tokens(text: str) -> list[Token]:
    """Return all tokens of ``text``, without spaces and comments.

    Raises :class:`EmulationError` with the line number at a character that PTX does not have.
    """
    return _scan(_STATEMENT_OR_TOKEN, text, 1, 0)


def spelled_out(statement: Token) -> list[Token]:
    """Return the tokens in a statement."""
    return _scan(_TOKEN, statement.text, statement.line, statement.start)[:-1]


def _scan(pattern: re.Pattern[str], text: str, line: int, offset: int) -> list[Token]:
    """Return the tokens of ``text``, which begins at a line and an offset of a longer text."""
    result: list[Token] = []
    position = 0
    for m in pattern.finditer(text):
        if m.start() != position:
            break
        kind = m.lastgroup or ""
        start, end = m.span(kind)
        line += text.count("\n", position, start)
        if kind != "space":
            result.append(Token(kind, m[kind], line, offset + start))
        if kind in {"space", "section"}:
            line += text.count("\n", start, end)
        position = end
    rest = text[position:].lstrip()
    end = len(text) - len(rest)
    line += text.count("\n", position, end)
    if rest:
        raise syntax_error(line, repr(text[end : end + 20]), "PTX")
    result.append(Token("end", "end of text", line, offset + len(text)))
    return result
