"""Control statements of source files, to tell whether a barrier is inside a branch that some threads did not take.

PTX has the same branch for ``if (t >= n) return;`` before a barrier and for ``if (t < n) { … }`` around it. The source
distinguishes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from matmill.cuda_source.tokens import Token, tokens

_LEAVES = frozenset({"return", "exit", "trap", "__trap", "assert", "goto"})
_ESCAPES = frozenset({"break", "continue"})
_CONTROL = frozenset({"if", "for", "while", "switch"})
_LOOPS = frozenset({"for", "while", "do"})
_HALVES = frozenset({"&", "|"})  # && and || are two tokens each
_BARRIERS = frozenset({"__syncthreads", "__syncthreads_count", "__syncthreads_and", "__syncthreads_or", "sync"})
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_ENDS = frozenset({";", ",", *_PAIRS.values()})  # the end of an operand


@dataclass
class Side:
    """A part that a control statement runs or skips: its lines, and whether it calls a function or leaves a loop.

    ``leaves`` are the lines at which a thread may leave the function, ``barriers`` those of barriers of the block.
    """

    first: int
    last: int
    calls: bool
    escapes: bool
    leaves: tuple[int, ...]
    barriers: tuple[int, ...]


@dataclass
class Statement:
    """An ``if``, a loop or a ``switch``: the lines of its keyword and condition, its sides, and the loop around it."""

    keyword: str
    first: int
    last: int
    sides: list[Side] = field(default_factory=list)
    loop: Statement | None = None

    def passes_by(self, line: int, barrier: int) -> bool:
        """Tell whether the other way at ``line`` bypasses the barrier's line."""
        if barrier == line:
            # PTX has only lines: several statements in one line cannot be distinguished.
            return any(side.calls for side in self.sides)
        if any(side.first <= barrier <= side.last for side in self.sides):
            return True
        around = self.loop is not None and any(side.first <= barrier <= side.last for side in self.loop.sides)
        return around and any(side.escapes for side in self.sides)

    def leaves(self, barrier: int) -> bool:
        """Tell whether a thread may leave the function on that way, which counts as arrival (since sm_70).

        It may also leave in the statement before the barrier: the compiler merges both branches.
        """
        return any(at <= barrier or not side.first <= barrier <= side.last for side in self.sides for at in side.leaves)


class Statements:
    """The control statements of files, by name."""

    def __init__(self, files: Iterable[tuple[str, str]]) -> None:
        self._texts = dict(files)
        self._read: dict[str, _Reader] = {}

    def diverges(self, branch: Sequence[str], barrier: Sequence[str]) -> bool | None:
        r"""Tell whether a barrier is in a branch that other lanes of its warp did not take; None if unknown.

        ``branch`` and ``barrier`` are their lines, ``"k.cu:7"``, followed by the lines of the calls that inline them,
        innermost first.

        >>> text = "if (t < n) {\n  __syncthreads();\n}\nif (t > n) return;\n__syncthreads();"
        >>> result = Statements([("k.cu", text)])
        >>> result.diverges(["k.cu:1"], ["k.cu:2"]), result.diverges(["k.cu:4"], ["k.cu:5"])
        (True, False)
        """
        for name, line in reversed(list(self._known(branch))):
            around = [each for each in self._statements(name) if each.first <= line <= each.last]
            lines = [int(each.rpartition(":")[2]) for each in barrier if each.rpartition(":")[0] == name]
            if around and lines:
                passed = next((at for at in lines if any(each.passes_by(line, at) for each in around)), None)
                return passed is not None and not any(each.leaves(passed) for each in around)
        return None

    def conditional(self, barrier: Sequence[str]) -> bool:
        r"""Tell whether a control statement has a barrier inside, which no thread can have left out by returning.

        >>> Statements([("k.cu", "void k() {\n  if (t < n)\n    __syncthreads();\n}")]).conditional(["k.cu:3"])
        True
        """
        inside = False
        for name, line in self._known(barrier):
            reader = self._reader(name)
            around = [leaves for first, last, leaves in reader.functions if first <= line <= last]
            if any(at <= line for leaves in around[-1:] for at in leaves):
                return False
            for each in reader.statements:
                if any(side.first < line <= side.last or line in side.barriers for side in each.sides):
                    if each.leaves(line):
                        return False
                    inside = True
        return inside

    def opposed(self, barrier: Sequence[str]) -> bool:
        """Tell whether both sides of an ``if`` have a barrier in the line of ``barrier``.

        >>> Statements([("k.cu", "if (t < n) __syncthreads(); else __syncthreads();")]).opposed(["k.cu:1"])
        True
        """
        return any(
            len(each.sides) == 2 and all(line in side.barriers for side in each.sides)
            for name, line in self._known(barrier[:1])
            for each in self._reader(name).statements
        )

    def initialises(self, variable: str) -> bool:
        """Tell whether the text gives a variable of file scope a value where it declares it.

        >>> Statements([("k.cu", "__device__ int a[2] = {0}, b;")]).initialises("a")
        True
        """
        name = re.escape(variable.rpartition("::")[2])
        given = re.compile(rf"\b{name}\s*(?:\[[^\]]*\]\s*)*(?:=(?!=)|\{{)")
        return any(given.search(text) for text in self._texts.values())

    def _known(self, locations: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Yield the file and the line of each location in a file whose text is known."""
        for location in locations:
            name, _, number = location.rpartition(":")
            if name in self._texts and number.isdigit():
                yield name, int(number)

    def _statements(self, name: str) -> list[Statement]:
        return self._reader(name).statements

    def _reader(self, name: str) -> _Reader:
        if name not in self._read:
            self._read[name] = _Reader(self._texts[name])
        return self._read[name]


class _Reader:
    """Reads statements by their keywords, and their sides by brackets and semicolons."""

    def __init__(self, text: str) -> None:
        self.tokens: list[Token] = [token for token in tokens(text) if token.kind != "directive"]
        self.lines: list[int] = []
        line, at = 1, 0
        for token in self.tokens:
            line += text.count("\n", at, token.start)
            at = token.start
            self.lines.append(line)
        self.statements: list[Statement] = []
        # The first and last lines of functions' bodies, and those at which a thread may leave; inner bodies come later.
        self.functions: list[tuple[int, int, tuple[int, ...]]] = []
        position = 0
        while position < len(self.tokens):
            position = self._statement(position, None)
        for at, (token, following) in enumerate(pairwise(self.tokens)):
            if token.text == "?" or (token.text in _HALVES and following.text == token.text):
                self._short_circuit(at)

    def _text(self, at: int) -> str:
        return self.tokens[at].text if at < len(self.tokens) else ""

    def _line(self, at: int) -> int:
        return self.lines[min(at, len(self.lines) - 1)]

    def _skip(self, at: int) -> int:
        """Return the token after a bracketed group, without reading statements in it."""
        depth = 0
        while at < len(self.tokens):
            depth += (self._text(at) in _PAIRS) - (self._text(at) in _PAIRS.values())
            at += 1
            if depth <= 0:
                break
        return at

    def _statement(self, at: int, loop: Statement | None) -> int:
        """Read a statement, and return the token after it."""
        word = self._text(at)
        if word in _CONTROL:
            return self._controlled(at, loop)
        if word == "do":
            return self._do(at, loop)
        if word == "{":
            at += 1
            while at < len(self.tokens) and self._text(at) != "}":
                at = self._statement(at, loop)
            return at + 1
        while at < len(self.tokens) and self._text(at) not in {";", "{", "}"}:
            at = self._skip(at) if self._text(at) in {"(", "["} else at + 1
        if self._text(at) == "{":
            # A body after a function's name, or a class's members: separate statements.
            if self._text(at - 1) in {")", "noexcept", "const", "mutable"}:
                end = self._skip(at)
                self.functions.append((self._line(at), self._line(end - 1), self._leaves(at, end)))
            return at
        return at + 1

    def _leaves(self, at: int, end: int) -> tuple[int, ...]:
        """Return the lines of tokens at which a thread may leave the function."""
        return tuple(self._line(i) for i in range(at, end) if self._text(i) in _LEAVES)

    def _controlled(self, at: int, loop: Statement | None) -> int:
        keyword = self._text(at)
        begin, at = at, at + 1
        if self._text(at) == "constexpr":
            at += 1
        at = self._skip(at)
        statement = Statement(keyword, self._line(begin), self._line(at - 1), loop=loop)
        self.statements.append(statement)
        around = statement if keyword in _LOOPS else loop
        at = self._side(statement, at, around)
        if keyword == "if" and self._text(at) == "else":
            at = self._side(statement, at + 1, around)
        return at

    def _do(self, at: int, loop: Statement | None) -> int:
        statement = Statement("do", 0, 0, loop=loop)
        self.statements.append(statement)
        condition = self._side(statement, at + 1, statement)
        end = self._skip(condition + 1)
        statement.first, statement.last = self._line(condition), self._line(end - 1)
        return end + 1

    def _short_circuit(self, at: int) -> None:
        """Read the operand after ``&&``, ``||`` or ``?`` in an expression: a branch if it calls something."""
        end = at + 1
        while end < len(self.tokens) and self._text(end) not in _ENDS:
            end = self._skip(end) if self._text(end) in _PAIRS else end + 1
        statement = Statement(self._text(at), self._line(at), self._line(at))
        self._add_side(statement, at + 1, end)
        if statement.sides[0].calls:
            self.statements.append(statement)

    def _side(self, statement: Statement, at: int, loop: Statement | None) -> int:
        end = max(self._statement(at, loop), at + 1)
        self._add_side(statement, at, end)
        return end

    def _add_side(self, statement: Statement, at: int, end: int) -> None:
        taken = self.tokens[at:end]
        words = {token.text for token in taken if token.kind == "word"}
        called = [
            (at + i, name.text)
            for i, (name, bracket) in enumerate(pairwise(taken))
            if name.kind == "word" and bracket.text == "("
        ]
        side = Side(
            self._line(at), self._line(end - 1), calls=any(name not in _CONTROL for _, name in called),
            escapes=not words.isdisjoint(_ESCAPES), leaves=self._leaves(at, end),
            barriers=tuple(self._line(i) for i, name in called if name in _BARRIERS),
        )  # fmt: skip
        statement.sides.append(side)
