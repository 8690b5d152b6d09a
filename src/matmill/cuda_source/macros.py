"""Macros that define kernels: their invocations are replaced by the tokens of the macro.

No other macro is expanded. A token of an expansion has the position of the invocation, as in the compiler's messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from matmill.cuda_source.tokens import Token, tokens

_DEFINE = re.compile(r"#\s*define\s+(\w+)(\([^)]*\))?(.*)", re.DOTALL)
_UNDEF = re.compile(r"#\s*undef\s+(\w+)")
#: Words that mark a declaration as a kernel or appear around one.
_SHAPES_KERNELS = frozenset({"__global__", "__launch_bounds__", "__cluster_dims__", "__maxnreg__", "namespace"})
#: The depth at which nested expansions end: a macro that mentions itself would never end.
_DEEPEST = 16


@dataclass(frozen=True)
class Macro:
    """A macro's parameters (None without parentheses) and its tokens."""

    parameters: tuple[str, ...] | None
    body: tuple[Token, ...]

    @property
    def words(self) -> frozenset[str]:
        """The identifiers among the macro's tokens."""
        return frozenset(token.text for token in self.body if token.kind == "word")


def defined(directive: Token) -> tuple[str, Macro] | None:
    """Read a ``#define``.

    >>> name, macro = defined(Token("directive", "#define MIN(a, b) (a < b)", 0, 0))
    >>> name, macro.parameters, len(macro.body)
    ('MIN', ('a', 'b'), 5)
    """
    match = _DEFINE.match(directive.text)
    if match is None:
        return None
    parameters = None if match[2] is None else tuple(re.findall(r"\w+|\.\.\.", match[2]))
    # A directive inside a replacement is the operator # with a parameter.
    return match[1], Macro(parameters, tuple(tokens(match[3].replace("#", " \x00 "))))


def macros_of(code: Iterable[Token]) -> dict[str, Macro]:
    """Return the macros that a file defines, by name."""
    table: dict[str, Macro] = {}
    for token in code:
        if token.kind == "directive":
            _define(table, token)
    return table


def _define(table: dict[str, Macro], directive: Token) -> None:
    """Add a definition. Of the branches of a condition, the one with more tokens stays: an empty one is the host's."""
    pair = defined(directive)
    if pair is not None:
        name, macro = pair
        if name not in table or len(table[name].body) <= len(macro.body):
            table[name] = macro


def expanded(code: Sequence[Token], others: Mapping[str, Macro]) -> list[Token]:
    r"""Replace invocations of macros that define kernels, and drop the directives.

    ``others`` are the macros of other files. A macro defines kernels if ``__global__``, its attributes or ``namespace``
    are among its tokens, or among those of a macro that it mentions or gets as an argument.

    >>> result = expanded(tokens("#define K(name, op) __global__ void k_##name(int* x) { *x op 1; }\nK(add, +)"), {})
    >>> " ".join(token.text for token in result)
    '__global__ void k_add ( int * x ) { * x + 1 ; }'
    """
    table = dict(others)
    result: list[Token] = []
    at = 0
    while at < len(code):
        token = code[at]
        if token.kind == "directive":
            undefined = _UNDEF.match(token.text)
            if undefined is not None:
                table.pop(undefined[1], None)
            _define(table, token)
            at += 1
            continue
        taken, at = _invocation(code, at, table, _DEEPEST)
        result += taken
    return result


def _invocation(code: Sequence[Token], at: int, table: Mapping[str, Macro], depth: int) -> tuple[list[Token], int]:
    """Expand an invocation that defines kernels at token ``at``, and return its tokens and its end."""
    token = code[at]
    macro = table.get(token.text) if token.kind == "word" and depth else None
    if macro is None:
        return [token], at + 1
    arguments: list[list[Token]] = []
    end = at + 1
    if macro.parameters is not None:
        if end == len(code) or code[end].text != "(":
            return [token], at + 1
        arguments, end = _arguments(code, end)
    given = {each.text for argument in arguments for each in argument if each.kind == "word"}
    if not any(_defines_kernels(name, table, frozenset()) for name in {token.text, *given}):
        return [token], at + 1
    start, stop = token.start, code[end - 1].end
    body = [each._replace(start=start, end=stop) for each in _substituted(macro, arguments)]
    result: list[Token] = []
    inner = 0
    while inner < len(body):
        taken, inner = _invocation(body, inner, table, depth - 1)
        result += taken
    return result, end


def _defines_kernels(name: str, table: Mapping[str, Macro], around: frozenset[str]) -> bool:
    macro = table.get(name)
    if macro is None or name in around:
        return False
    words = macro.words
    return not words.isdisjoint(_SHAPES_KERNELS) or any(
        _defines_kernels(word, table, around | {name}) for word in words
    )


def _arguments(code: Sequence[Token], at: int) -> tuple[list[list[Token]], int]:
    """Split the tokens between the parentheses that begin at ``at``, and return the parts and the end."""
    parts: list[list[Token]] = [[]]
    depth = 1
    at += 1
    while at < len(code) and depth:
        token = code[at]
        at += 1
        depth += (token.text in {"(", "[", "{"}) - (token.text in {")", "]", "}"})
        if token.text == "," and depth == 1:
            parts.append([])
        elif depth:
            parts[-1].append(token)
    return parts, at


def _substituted(macro: Macro, arguments: Sequence[list[Token]]) -> Iterator[Token]:
    """Yield the macro's tokens for these arguments; ``#`` makes a string, ``##`` joins two tokens."""
    names = macro.parameters or ()
    values = dict(zip(names, arguments, strict=False))
    if names and names[-1] == "...":
        rest: list[Token] = []
        for number, argument in enumerate(arguments[len(names) - 1 :]):
            rest += [Token("punctuation", ",", 0, 0)] * (number > 0) + argument
        values["__VA_ARGS__"] = rest
    pending: list[Token] = []
    body = list(macro.body)
    at = 0
    while at < len(body):
        token = body[at]
        if token.text == "\x00" and at + 1 < len(body) and body[at + 1].text == "\x00":
            right = values.get(body[at + 2].text, [body[at + 2]]) if at + 2 < len(body) else []
            left = pending.pop() if pending else None
            if left is not None and right:
                pending.append(left._replace(text=left.text + right[0].text))
                pending += right[1:]
            else:
                pending += [left] if left is not None else right
            at += 3
        elif token.text == "\x00" and at + 1 < len(body):
            text = " ".join(each.text for each in values.get(body[at + 1].text, []))
            pending.append(Token("string", f'"{text}"', 0, 0))
            at += 2
        else:
            pending += values.get(token.text, [token]) if token.kind == "word" else [token]
            at += 1
    yield from pending
