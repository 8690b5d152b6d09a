"""A position in PTX text, and the names that are declared there."""

from __future__ import annotations

from dataclasses import replace

from matmill.emulator.frontend.lexer import Token, spelled_out, syntax_error, tokens
from matmill.emulator.frontend.literals import immediate
from matmill.emulator.frontend.syntax import Label, Name, Register, Statement, Variable

_MAX_DIGITS = 9


class Scope:
    """One brace level and its names. Labels get the scope's number, so that inner ones hide outer ones."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.registers: dict[str, Register] = {}
        self.ranges: dict[str, tuple[int, str]] = {}
        self.variables: dict[str, Variable] = {}


class Cursor:
    """Tokens taken one after another, and the open scopes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokens(text)
        self.at = 0
        self.scopes = [Scope(0)]
        # Functions declared so far, each as the variable to which its address refers.
        self.code: dict[str, Variable] = {}

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def take(self, text: str | None = None) -> Token:
        """Take the next token, which must be ``text`` if that is not empty."""
        token = self.tokens[self.at]
        if token.kind == "statement":
            self.tokens[self.at : self.at + 1] = spelled_out(token)
            token = self.tokens[self.at]
        if token.kind == "end" or (text is not None and token.text != text):
            got = "the end of the text" if token.kind == "end" else repr(token.text)
            raise syntax_error(token.line, got, repr(text) if text is not None else "more PTX")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``."""
        if self.tokens[self.at].text == text and self.tokens[self.at].kind != "end":
            self.at += 1
            return True
        return False

    def take_word(self, wanted: str) -> Token:
        """Take an identifier."""
        token = self.take()
        if token.kind != "word":
            raise syntax_error(token.line, repr(token.text), wanted)
        return token

    def take_integer(self, wanted: str) -> int:
        """Take an integer literal."""
        negative = self.accept("-")
        token = self.take()
        if token.kind == "number":
            literal = immediate(token, negative=negative)
            if literal.form == "int":
                return int(literal.value)
        raise syntax_error(token.line, repr(token.text), wanted)

    def skip_line(self, line: int) -> list[Token]:
        """Take the rest of a line."""
        skipped = []
        while self.token.kind != "end" and self.token.line == line:
            skipped.append(self.take())
        return skipped

    def variable(self, name: str) -> Variable | None:
        """Return the variable that ``name`` refers to here, innermost scope first."""
        for scope in reversed(self.scopes):
            if name in scope.variables:
                return scope.variables[name]
        return None

    def register(self, name: str) -> Register | None:
        """Return the register that ``name`` refers to here, innermost scope first."""
        for scope in reversed(self.scopes):
            known = scope.registers.get(name)
            if known is not None:
                return known
            stem = name.rstrip("0123456789")
            if stem in scope.ranges and len(stem) < len(name) and len(name) - len(stem) <= _MAX_DIGITS:
                count, kind = scope.ranges[stem]
                if int(name[len(stem) :]) < count:
                    scope.registers[name] = Register(name, kind)
                    return scope.registers[name]
        return None


def resolve_labels(body: list[tuple[Statement, tuple[int, ...]]]) -> tuple[Statement, ...]:
    """Rename each label uniquely (scope and name), and replace labels in branches by those of their scope."""
    known = {(path[-1], s.name) for s, path in body if isinstance(s, Label)}

    def full(name: str, path: tuple[int, ...]) -> str:
        for number in reversed(path):
            if (number, name) in known:
                return f"{number}:{name}" if number else name
        return name

    resolved: list[Statement] = []
    for statement, path in body:
        if isinstance(statement, Label):
            resolved.append(Label(full(statement.name, path)))
        elif statement.name == "bra":
            operands = tuple(Name(full(o.text, path)) if isinstance(o, Name) else o for o in statement.operands)
            resolved.append(replace(statement, operands=operands))
        else:
            resolved.append(statement)
    return tuple(resolved)
