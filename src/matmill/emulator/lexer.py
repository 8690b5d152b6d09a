"""PTX text to tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from matmill.errors import EmulationError

_TOKEN = re.compile(
    r"""
    (?P<newline>\n)
  | (?P<space>[ \t\r\f\v]+|//[^\n]*)
  | (?P<comment>/\*.*?\*/)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<word>[A-Za-z_$%.][\w$%.]*(?:::[\w$%.]+)*)
  | (?P<number>0[fF][0-9A-Fa-f]{8}\b|0[dD][0-9A-Fa-f]{16}\b|0[xX][0-9A-Fa-f]+U?\b|0[bB][01]+U?\b
      |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?\b)
  | (?P<mark>[@!|{}\[\]();,:+\-<>=*/&^~?])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token; ``start`` is its place in the text, ``line`` counts from 1. The last one has kind "end"."""

    kind: str
    text: str
    line: int
    start: int


def syntax_error(line: int, got: str, wanted: str) -> EmulationError:
    """The error for PTX that cannot be read."""
    return EmulationError(
        argument=f"PTX line {line}",
        got=got,
        wanted=wanted,
        fix="Give the PTX text that NVRTC or nvcc wrote, unchanged.",
    )


def tokens(text: str) -> list[Token]:
    """All tokens of ``text``, without spaces and comments.

    Raises :class:`EmulationError` with the line number on a character that PTX does not know.
    """
    found: list[Token] = []
    line = 1
    position = 0
    match = _TOKEN.match
    while position < len(text):
        m = match(text, position)
        if m is None:
            raise syntax_error(line, repr(text[position : position + 20]), "PTX")
        kind = m.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += m.group().count("\n")
        elif kind != "space":
            found.append(Token(kind, m.group(), line, position))
        position = m.end()
    found.append(Token("end", "end of text", line, len(text)))
    return found
