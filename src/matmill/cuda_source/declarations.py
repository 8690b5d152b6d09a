"""The declarations of a file: the kind of each, the names it declares, and the names it mentions.

The grammar has only braces, brackets and semicolons. Macros that define kernels are expanded
(:mod:`matmill.cuda_source.macros`); macros for ``__device__`` and the like are recognised, and all others are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from matmill.cuda_source.macros import Macro, expanded
from matmill.cuda_source.tokens import Token, tokens, without_dead_branches

#: Annotations of device functions.
DEVICE_WORDS = frozenset({"__device__", "__global__"})
_MACRO = re.compile(r"#\s*define\s+(\w+)(\([^)]*\))?(.*)", re.DOTALL)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
# Words before a parenthesis that are not names of functions.
_WORDS = (
    "__launch_bounds__ __attribute__ __align__ __declspec __maxnreg__ __cluster_dims__ __block_size__ alignas decltype "
    "noexcept requires throw explicit if while for switch return sizeof alignof void int float double char bool long "
    "short unsigned signed auto const defined static_assert __builtin_align__ __nv_pure__ __grid_constant__"
)
_NOT_NAMES = frozenset(_WORDS.split())
_AGGREGATES = frozenset({"class", "struct", "union", "enum"})


@dataclass
class Declaration:
    """One declaration from ``start`` to ``end`` in its file.

    ``kind`` is "function", "class", "variable" (with aliases and prototypes), "macro" or "using". ``names`` are the
    names it declares, ``mentions`` all identifiers in it. ``device`` means annotated as device code. ``parameters`` are
    the tokens between a function's parentheses, ``path`` are the namespaces around it, ``template_parameters`` the
    names of a template's parameters, ``members`` the declarations in a class. A ``prototype`` has a function's
    parentheses and no body (so has a variable with a constructor's arguments).
    """

    kind: str
    start: int
    end: int
    names: tuple[str, ...]
    mentions: frozenset[str]
    device: bool = False
    kernel: bool = False
    template: bool = False
    body: bool = False
    prototype: bool = False
    parameters: tuple[Token, ...] = ()
    path: tuple[str, ...] = ()
    template_parameters: tuple[str, ...] = ()
    members: list[Declaration] = field(default_factory=list)


@dataclass
class File:
    """The declarations of a file, its ``#include`` directives, and the kernels that its host code launches."""

    text: str
    declarations: list[Declaration]
    directives: list[Token]
    launches: tuple[str, ...]


def declarations_of(text: str, macros: Iterable[str] = (), defined: Mapping[str, Macro] | None = None) -> File:
    """Read a file; ``macros`` are other files' macros for ``__device__`` and the like.

    ``defined`` are all macros of other files.

    >>> file = declarations_of("int main() { k<float><<<1, 32>>>(x); }  template <class T> __global__ void k(T* x) {}")
    >>> [(d.kind, d.names, d.kernel) for d in file.declarations], file.launches
    ([('function', ('main',), False), ('function', ('k',), True)], ('k<float>',))
    """
    every = tokens(text)
    live = without_dead_branches(every)
    reader = _Reader(expanded(live, defined or {}), device_macros(live) | set(macros))
    declarations = reader.scope(inside=False)
    for token in live:
        macro = _MACRO.match(token.text) if token.kind == "directive" else None
        if macro is not None:
            words = frozenset(re.findall(r"[A-Za-z_]\w*", macro[3]))
            declarations.append(Declaration("macro", token.start, token.start, (macro[1],), words))
    directives = [token for token in every if token.kind == "directive"]
    return File(text, declarations, directives, tuple(_launches(reader.tokens)))


def device_macros(code: Sequence[Token]) -> set[str]:
    """Return the macros that are annotations of device code."""
    names: set[str] = set()
    for token in code:
        macro = _MACRO.match(token.text) if token.kind == "directive" else None
        if macro is not None and re.search(r"__device__|__global__", macro[3]) and "{" not in macro[3]:
            names.add(macro[1])
    return names


@dataclass
class _Parts:
    """A declaration so far; ``head`` has its tokens outside of all brackets, and the opening brackets."""

    template: bool
    head: list[Token] = field(default_factory=list)
    name: str = ""
    parameters: tuple[Token, ...] = ()
    kind: str = "variable"
    body: bool = False
    members: list[Declaration] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The tokens of the head as texts."""
        return [each.text for each in self.head]

    @property
    def initialises(self) -> bool:
        """True if a brace here begins the initial value of a member in a constructor: ``: a{1}``."""
        colon = any(each.text == ":" for each in self.head)
        return colon and self.head[-1].kind == "word" and self.head[-2].text in {":", ","}


class _Reader:
    def __init__(self, code: list[Token], macros: set[str]) -> None:
        self.tokens = code
        self.at = 0
        self.device = DEVICE_WORDS | macros
        self.path: tuple[str, ...] = ()

    def text(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def scope(self, *, inside: bool) -> list[Declaration]:
        """Return the declarations up to the closing brace of a scope, or the end."""
        declarations: list[Declaration] = []
        while self.at < len(self.tokens):
            if self.text() == "}":
                self.at += 1
                if inside:
                    return declarations
                continue
            outer = self.path
            if self._opens():
                declarations += self.scope(inside=True)
                self.path = outer
                continue
            if self.text() in {"public", "private", "protected"} and self.text(1) == ":":
                self.at += 2
                continue
            if self.text() == ";":
                self.at += 1
                continue
            declarations.append(self._declaration())
        return declarations

    def _opens(self) -> bool:
        """Tell whether a namespace or a linkage block begins here, and read its opening."""
        at = self.at
        if self.text() == "inline" and self.text(1) == "namespace":
            at += 1
        if self.tokens[at].text == "namespace":
            end = at + 1
            while end < len(self.tokens) and self.tokens[end].text not in {"{", ";", "="}:
                end += 1
            if end < len(self.tokens) and self.tokens[end].text == "{":
                self.path += tuple(each.text for each in self.tokens[at + 1 : end] if each.kind == "word")
                self.at = end + 1
                return True
        elif self.text() == "extern" and self.text(1).startswith('"') and self.text(2) == "{":
            self.at += 3
            return True
        return False

    def _skip(self) -> None:
        """Skip the bracketed group that begins here."""
        depth = 0
        while self.at < len(self.tokens):
            text = self.tokens[self.at].text
            depth += (text in _PAIRS) - (text in _PAIRS.values())
            self.at += 1
            if depth <= 0:
                return

    def _skip_angles(self) -> None:
        """Skip the ``<…>`` that begins here."""
        depth = 0
        while self.at < len(self.tokens):
            text = self.text()
            if text in _PAIRS:
                self._skip()
                continue
            depth += {"<": 1, ">": -1, "<<<": 3, ">>>": -3}.get(text, 0)
            self.at += 1
            if depth <= 0 or text == ";":
                return

    def _declaration(self) -> Declaration:
        first = self.at
        parts = _Parts(template=self.text() == "template")
        while self.text() == "template":
            self.at += 1
            if self.text() == "<":
                self._skip_angles()
        while self.text() not in {"", ";", "}"}:
            token = self.tokens[self.at]
            if token.text == "{":
                if self._brace(parts):
                    return self._made(first, parts)
                parts.head.append(token)
            elif token.text in {"(", "["}:
                self._bracket(parts)
                parts.head.append(token)
            elif token.text == "<" and parts.head and parts.head[-1].kind == "word" and "=" not in parts.words:
                before = self.at
                self._skip_angles()
                if self.tokens[self.at - 1].text == ";":  # a comparison
                    self.at = before + 1
            else:
                parts.head.append(token)
                self.at += 1
        if self.text() == ";":
            self.at += 1
        return self._made(first, parts)

    def _brace(self, parts: _Parts) -> bool:
        """Read from a brace: a class's members, an initial value, or a body, which ends the declaration."""
        if not _AGGREGATES.isdisjoint(parts.words) and not parts.name and "=" not in parts.words:
            parts.kind = "class"
            if "enum" in parts.words:
                self._skip()
            else:
                self.at += 1
                parts.members = self.scope(inside=True)
            return False
        body = bool(parts.name) and "=" not in parts.words and not parts.initialises
        self._skip()
        if body:
            parts.kind, parts.body = "function", True
            if self.text() == ";":
                self.at += 1
        return body

    def _bracket(self, parts: _Parts) -> None:
        """Skip a bracketed group; after a name it is a function's parameters."""
        begin = self.at
        self._skip()
        if self.tokens[begin].text == "(" and not parts.name and parts.head and "=" not in parts.words:
            parts.name = _function_name(parts.head)
            parts.parameters = tuple(self.tokens[begin + 1 : self.at - 1]) if parts.name else ()

    def _made(self, first: int, parts: _Parts) -> Declaration:
        taken = self.tokens[first : self.at]
        words, name = parts.words, parts.name
        using = words[:1] == ["using"] and "namespace" in words[:2]
        marked = not self.device.isdisjoint(words)
        mentions = frozenset(t.text for t in taken if t.kind == "word" and not _within(t, parts.members))
        declared = (name,) if name else tuple(dict.fromkeys(_names(parts.head, parts.kind)))
        if (words[:1] == ["typedef"] and parts.kind != "class") or "enum" in words:
            # The name of a pointer to a function is inside parentheses, enumerators are inside braces.
            declared = tuple(mentions)
        return Declaration(
            kind="using" if using else parts.kind,
            start=taken[0].start if taken else 0,
            end=taken[-1].end if taken else 0,
            names=declared,
            mentions=mentions,
            device=marked or ("constexpr" in words and (parts.body or parts.kind == "variable")),
            kernel=bool(name) and "__global__" in words,
            template=parts.template,
            body=parts.body,
            prototype=bool(name) and not parts.body and words[:1] != ["typedef"],
            parameters=parts.parameters,
            path=self.path,
            template_parameters=tuple(_template_parameters(taken)) if parts.template else (),
            members=parts.members,
        )


def host_member(member: Declaration) -> bool:
    """Tell whether a member of a class is a host function, which device code cannot call."""
    defaulted = member.prototype and not member.mentions.isdisjoint({"default", "delete"})
    return not member.device and not defaulted and (member.body or member.prototype)


def _within(token: Token, members: list[Declaration]) -> bool:
    return any(member.start <= token.start < member.end for member in members if host_member(member))


def _function_name(head: list[Token]) -> str:
    """Return the name before a function's parenthesis, or ""."""
    last = head[-1]
    if last.kind == "word" and last.text not in _NOT_NAMES:
        return last.text
    # A conversion: operator float().
    return "operator" if any(each.text == "operator" for each in head[-4:]) else ""


def _names(head: list[Token], kind: str) -> Iterable[str]:
    """Yield the names that a declaration without a function's name declares."""
    words = [each for each in head if each.kind in {"word", "punctuation"}]
    if kind == "class":
        yield from _tags(words)
        return
    for at, each in enumerate(words):
        follower = words[at + 1].text if at + 1 < len(words) else ";"
        if each.kind == "word" and follower in {"[", "=", ",", ";", "(", "{"} and each.text not in _NOT_NAMES:
            yield each.text


def _tags(words: list[Token]) -> Iterable[str]:
    """Yield the names of a class and of the variables after its closing brace."""
    for before, word in pairwise(words):
        if before.text in _AGGREGATES and word.kind == "word" and word.text not in _AGGREGATES:
            yield word.text
    # struct __align__(16) Name {: the name is before the brace, or before the colon of its bases.
    ends = [at for at, each in enumerate(words) if each.text in {"{", ":"}]
    if ends and ends[0] and words[ends[0] - 1].kind == "word" and words[ends[0] - 1].text not in _AGGREGATES:
        yield words[ends[0] - 1].text
    last = max((at for at, each in enumerate(words) if each.text == "{"), default=len(words))
    yield from (each.text for each in words[last + 1 :] if each.kind == "word")


def _launches(code: list[Token]) -> Iterable[str]:
    """Yield kernels as host code writes them before ``<<<``."""
    seen: dict[str, None] = {}
    dependent = set(_template_parameters(code))
    constants = _constants(code)
    for at, token in enumerate(code):
        if token.text != "<<<" or not at:
            continue
        begin = at - 1
        if code[begin].text in {">", ">>>"}:
            depth = 0
            while begin >= 0:
                depth += {">": 1, ">>>": 3, "<": -1, "<<<": -3}.get(code[begin].text, 0)
                if depth <= 0:
                    break
                begin -= 1
            begin -= 1
        while begin > 1 and code[begin - 1].text == "::":
            begin -= 2
        spelled = code[max(begin, 0) : at]
        # In a template of host code, the arguments may be its own parameters.
        if spelled and spelled[0].kind == "word" and dependent.isdisjoint(each.text for each in spelled):
            seen["".join(_spaced([constants.get(each.text, each) for each in spelled]))] = None
    return seen


def _constants(code: list[Token]) -> dict[str, Token]:
    """Return the numbers of constants in host functions, by name: ``const int threads = 256;``."""
    return {
        name.text: number
        for name, equals, number, end in zip(code, code[1:], code[2:], code[3:], strict=False)
        if equals.text == "=" and name.kind == "word" and number.kind == "number" and end.text in {";", ",", "}"}
    }


def _template_parameters(code: Sequence[Token]) -> Iterable[str]:
    """Yield the names of all template parameters of a file."""
    inside = 0
    for at, token in enumerate(code):
        if token.text == "template" and at + 1 < len(code) and code[at + 1].text == "<":
            inside = 1
        elif inside:
            inside += {"<": 1, ">": -1, ">>>": -3}.get(token.text, 0) if code[at - 1].text != "template" else 0
            if token.text in {",", ">", "="} and code[at - 1].kind == "word":
                yield code[at - 1].text


def _spaced(code: Sequence[Token]) -> Iterable[str]:
    for at, token in enumerate(code):
        word = token.kind in {"word", "number"}
        yield (" " if word and at and code[at - 1].kind in {"word", "number"} else "") + token.text
        if token.text == ",":
            yield " "
