"""Operands of instructions: registers, numbers, names, and vectors, groups and addresses of them."""

from __future__ import annotations

from matmill.emulator.frontend.cursor import Cursor
from matmill.emulator.frontend.lexer import Token, syntax_error
from matmill.emulator.frontend.literals import immediate
from matmill.emulator.frontend.syntax import (
    Address,
    Group,
    Immediate,
    Name,
    Negated,
    Pair,
    PtxOperand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

MAX_NESTING = 64


class OperandReader(Cursor):
    """Reads operands, with names resolved to registers, variables and functions."""

    def operand(self, depth: int) -> PtxOperand:
        """Return the next operand, inside ``depth`` others."""
        if depth > MAX_NESTING:
            raise syntax_error(self.token.line, "a deeply nested operand", "PTX")
        first = self._single(depth)
        if self.accept("|"):
            return Pair(first, self._single(depth))
        return first

    def _single(self, depth: int) -> PtxOperand:
        token = self.take()
        word = token.text
        if word == "{":
            return Vector(self._list("}", depth))
        if word == "(":
            return Group(self._list(")", depth))
        if word == "[":
            return self._address(token, depth)
        if word == "!":
            name = self.take_word("a predicate")
            register = self.register(name.text)
            if register is None:
                raise syntax_error(name.line, repr(name.text), "a predicate register")
            return Negated(register)
        if word == "-" or token.kind == "number":
            number = self.take() if word == "-" else token
            if number.kind != "number":
                raise syntax_error(number.line, repr(number.text), "a number")
            return immediate(number, negative=word == "-")
        if token.kind == "word":
            return self._word(word)
        raise syntax_error(token.line, repr(word), "an operand")

    def _word(self, word: str) -> PtxOperand:
        if word == "_":
            return Sink()
        register = self.register(word)
        if register is not None:
            return register
        variable = self.variable(word)
        if variable is not None:
            offset = 0
            while self.token.text in {"+", "-"}:
                sign = -1 if self.take().text == "-" else 1
                offset += sign * self.take_integer("an offset in bytes")
            return Symbol(variable, offset)
        if word == "WARP_SZ":
            return Immediate(32, "int")
        if word in self.code:
            return Symbol(self.code[word])
        return Special(word) if word.startswith("%") else Name(word)

    def _list(self, closing: str, depth: int) -> tuple[PtxOperand, ...]:
        items: list[PtxOperand] = []
        while not self.accept(closing):
            items.append(self.operand(depth + 1))
            if self.token.text != closing:
                self.take(",")
        return tuple(items)

    def _address(self, opening: Token, depth: int) -> Address:
        base = self._single(depth + 1)
        offset = 0
        while self.token.text in {"+", "-"}:
            sign = -1 if self.take().text == "-" else 1
            offset += sign * self.take_integer("an offset in bytes")
        extra: list[PtxOperand] = []
        while self.accept(","):
            extra.append(self.operand(depth + 1))
        self.take("]")
        if not isinstance(base, (Register, Symbol, Immediate)):
            raise syntax_error(opening.line, f"an address of {base}", "a register, a variable or a number in []")
        return Address(base, offset, tuple(extra))
