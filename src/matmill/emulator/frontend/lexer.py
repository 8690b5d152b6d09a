"""PTX text to tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from matmill.errors import EmulationError

# A ``.loc`` directive is one token, and so is a section of debug information: they are half of what NVRTC writes, and
# hardly any of it is used.
_TOKEN = re.compile(
    r"""
    [ \t]*
    (?:
      (?P<space>\s+|//[^\n]*|/\*.*?\*/)
    | (?P<location>\.loc\b[^\n/]*)
    | (?P<section>\.section\s+[\w$%.]+\s*\{[^{}"/]*\})
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<word>[A-Za-z_$%.][\w$%.]*(?:::[\w$%.]+)*)
    | (?P<number>0[fF][0-9A-Fa-f]{8}\b|0[dD][0-9A-Fa-f]{16}\b|0[xX][0-9A-Fa-f]+U?\b|0[bB][01]+U?\b
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+U?\b)
    | (?P<mark>[@!|{}\[\]();,:+\-<>=*/&^~?])
    )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Token(NamedTuple):
    """One token; ``start`` is its offset in the text, ``line`` counts from 1. The last one has kind "end"."""

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
    line, position = 1, 0
    for m in _TOKEN.finditer(text):
        if m.start() != position:
            break
        kind, position = m.lastgroup or "", m.end()
        word = m.group(kind)
        if kind != "space":
            found.append(Token(kind, word, line, position - len(word)))
        line += word.count("\n")
    if position < len(text):
        raise syntax_error(line, repr(text[position : position + 20].lstrip(" \t")), "PTX")
    found.append(Token("end", "end of text", line, len(text)))
    return found
