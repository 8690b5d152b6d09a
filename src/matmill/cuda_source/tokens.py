"""C++ text to tokens, as far as declarations need it: nothing is expanded and nothing evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n\f\v]+|\\\r?\n|//(?:[^\n\\]|\\.|\\\n)*|/\*.*?(?:\*/|\Z))
    | (?P<directive>\#(?:[^\n\\/"]|\\.|\\\r?\n|"(?:[^"\\\n]|\\.)*"|"|/\*.*?\*/|/(?![/*])|//[^\n]*)*)
    | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")
    | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.|\\\n)*")
    | (?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    | (?P<number>\.?\d(?:[\w.]|'(?=\w)|(?<=[eEpP])[+-])*)
    | (?P<operator>operator\s*(?:\(\s*\)|\[\s*\]|<<=|>>=|->\*|[-+*/%^&|=!<>]=|<<|>>|&&|\|\||\+\+|--|->
        |[-+*/%^&|~!=<>,]))
    | (?P<word>[A-Za-z_$]\w*)
    | (?P<punctuation><<<|>>>|::|->|[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|elif|else|endif)\b[ \t]*(.*)", re.DOTALL)


class Token(NamedTuple):
    """One token: "directive", "string", "char", "number", "word" or "punctuation", from ``start`` to ``end``."""

    kind: str
    text: str
    start: int
    end: int


def tokens(text: str) -> list[Token]:
    """Return all tokens of ``text`` but white space and comments; a directive is one token.

    >>> [token.text for token in tokens("k<<<1, 2>>>(x); // launch")]
    ['k', '<<<', '1', ',', '2', '>>>', '(', 'x', ')', ';']
    """
    result = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "operator":  # all kinds of operators have this name
            result.append(Token("word", "operator", match.start(), match.end()))
        elif kind != "space":
            result.append(Token("string" if kind in {"raw", "mark"} else kind, match[0], match.start(), match.end()))
    return result


def without_dead_branches(code: list[Token]) -> list[Token]:
    """Return the tokens without those that ``#if 0``, ``#ifdef __cplusplus`` and the like certainly exclude."""
    kept: list[Token] = []
    stack: list[bool | None] = []
    for token in code:
        condition = _CONDITION.match(token.text) if token.kind == "directive" else None
        if condition is not None:
            word, rest = condition[1], condition[2].split("//")[0].strip()
            if word in {"if", "ifdef", "ifndef"}:
                stack.append(_known(word, rest))
            elif word == "endif" and stack:
                stack.pop()
            elif word == "else" and stack:
                stack[-1] = None if stack[-1] is None else not stack[-1]
            elif stack:
                stack[-1] = None if stack[-1] is None or not stack[-1] else False
        if token.kind == "directive" or False not in stack:
            kept.append(token)
    return kept


def _known(word: str, rest: str) -> bool | None:
    """Return the value of a preprocessor condition if it is certain, else None."""
    if word == "if":
        return {"0": False, "false": False, "1": True, "true": True}.get(rest)
    known = {"__cplusplus": True, "__CUDACC__": True, "__CUDACC_RTC__": True, "_WIN32": False, "_MSC_VER": False}.get(
        rest.split(maxsplit=1)[0] if rest else ""
    )
    return known if known is None or word == "ifdef" else not known


def conditions_at(directives: Iterable[Token], offset: int) -> list[str]:
    r"""Return the ``#if``, ``#ifdef``, ``#elif`` and ``#else`` lines around an offset, the innermost last.

    >>> conditions_at([t for t in tokens("#ifdef A\n#else\nint x;\n#endif") if t.kind == "directive"], 16)
    ['#ifdef A, #else']
    """
    stack: list[str] = []
    for token in directives:
        condition = _CONDITION.match(token.text) if token.start < offset else None
        if condition is None:
            continue
        line = " ".join(token.text.split("//")[0].split())
        if condition[1] in {"if", "ifdef", "ifndef"}:
            stack.append(line)
        elif stack and condition[1] == "endif":
            stack.pop()
        elif stack:
            stack[-1] += f", {line}"
    return stack
