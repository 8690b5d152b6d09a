"""PTX literals and the initial contents of variables."""

from __future__ import annotations

import struct
from typing import Protocol

from matmill.emulator.frontend.lexer import Token, syntax_error
from matmill.emulator.frontend.syntax import CODE, TYPE_BYTES, Immediate, Variable

_MAX_ITEMS = 1 << 20


class TokenSource(Protocol):
    """The source of an initializer: an interface of the parser."""

    @property
    def token(self) -> Token:
        """The next token."""

    def take(self, text: str | None = None) -> Token:
        """Take the next token, which must be ``text`` if that is not empty."""

    def accept(self, text: str) -> bool:
        """Take the next token if it is ``text``."""

    def take_integer(self, wanted: str) -> int:
        """Take an integer literal."""

    def variable(self, name: str) -> Variable | None:
        """Return the variable of that name."""

    @property
    def code(self) -> dict[str, Variable]:
        """Functions declared so far, each as the variable to which its address refers."""


def immediate(token: Token, *, negative: bool = False) -> Immediate:
    """Return the value of a number token.

    >>> immediate(Token("number", "0f3F800000", 1, 0))
    Immediate(value=1065353216, form='f32')
    """
    text = token.text
    prefix, rest = text[:2].lower(), text[2:]
    if prefix in {"0f", "0d"}:
        bits = int(rest, 16)
        form = "f32" if prefix == "0f" else "f64"
        sign = 1 << (31 if form == "f32" else 63)
        return Immediate(bits ^ sign if negative else bits, form)
    if prefix in {"0x", "0b"} or text.rstrip("U").isdigit():
        digits = text.rstrip("U")
        # A leading zero means octal, as in C.
        base = {"0x": 16, "0b": 2}.get(prefix, 8 if len(digits) > 1 and digits[0] == "0" else 10)
        if len(digits) > 80 or (base == 8 and any(c in "89" for c in digits)):
            raise syntax_error(token.line, repr(text[:40]), "a number of at most 64 bits")
        value = int(digits, base)
        if value >= 1 << 64:
            raise syntax_error(token.line, repr(text[:40]), "a number of at most 64 bits")
        return Immediate(-value if negative else value, "int")
    real = float(text)
    return Immediate(-real if negative else real, "real")


def initializer(source: TokenSource, element: str) -> tuple[bytes, tuple[tuple[int, Variable, int], ...]]:
    """Return the bytes after ``=`` (numbers, ``{…}`` lists, names of variables and functions).

    The addresses that must be filled in are the second value.
    """
    data = bytearray()
    relocations: list[tuple[int, Variable, int]] = []
    depth = 0
    while True:
        line = source.token.line
        if len(data) > _MAX_ITEMS * 8:
            raise syntax_error(line, "a very long initializer", "at most a million values")
        if source.accept("{"):
            depth += 1
            if not source.accept("}"):
                continue
            depth -= 1
        elif source.token.kind == "word":
            relocations.append((len(data), *_address_of(source, line)))
            data += bytes(TYPE_BYTES[element])
        else:
            negative = source.accept("-")
            token = source.take()
            if token.kind != "number":
                raise syntax_error(line, repr(token.text), "a number")
            data += _packed(immediate(token, negative=negative), element)
        while depth and source.accept("}"):
            depth -= 1
        if not depth:
            return bytes(data), tuple(relocations)
        if not source.accept(","):
            raise syntax_error(line, repr(source.token.text), "',' or '}'")


def _address_of(source: TokenSource, line: int) -> tuple[Variable, int]:
    word = source.take().text
    wrapped = word == "generic"
    if wrapped:
        source.take("(")
        word = source.take().text
    variable = source.variable(word) or source.code.get(word)
    if variable is None or variable.space not in {"global", "const", CODE}:
        raise syntax_error(line, repr(word), "a global variable or a function declared before")
    addend = 0
    if wrapped:
        source.take(")")
    if source.accept("+"):
        addend = source.take_integer("an offset in bytes")
    return variable, addend


def _packed(literal: Immediate, element: str) -> bytes:
    size = TYPE_BYTES[element]
    if literal.form == "int" and element not in {"f32", "f64"}:
        return (int(literal.value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return (bits_of(literal, "f8" if element == "f64" else "f4") & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def bits_of(literal: Immediate, kind: str) -> int:
    """Return the bit pattern of a literal in a register of NumPy kind ``kind`` ("u4", "f4", "f8", …), unmasked."""
    wide = kind == "f8"
    same_format = literal.form == ("f64" if wide else "f32")
    if same_format or (literal.form != "real" and kind not in {"f4", "f8"}):
        return int(literal.value)
    if literal.form == "f32":
        real = struct.unpack("<f", struct.pack("<I", int(literal.value)))[0]
    elif literal.form == "f64":
        real = struct.unpack("<d", struct.pack("<Q", int(literal.value)))[0]
    else:
        real = float(literal.value)
    if wide:
        return int.from_bytes(struct.pack("<d", real), "little")
    try:
        return int.from_bytes(struct.pack("<f", real), "little")
    except OverflowError:
        return 0xFF800000 if real < 0 else 0x7F800000
