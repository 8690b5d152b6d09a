"""PTX text to a :class:`Module`.

Reads the whole PTX grammar that NVRTC emits, with names resolved to registers and variables; the instruction table
interprets instructions later. Debug sections are skipped.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TypeGuard

from matmill.emulator.frontend.cursor import Scope, resolve_labels
from matmill.emulator.frontend.lexer import Token, syntax_error, tokens
from matmill.emulator.frontend.literals import initializer
from matmill.emulator.frontend.locations import Locations
from matmill.emulator.frontend.operands import MAX_NESTING, OperandReader
from matmill.emulator.frontend.syntax import (
    CODE,
    TYPE_BYTES,
    Address,
    Function,
    Instruction,
    Label,
    Module,
    Name,
    PtxOperand,
    Register,
    Statement,
    Symbol,
    Variable,
)
from matmill.errors import EmulationError

_SPACES = {".reg", ".const", ".global", ".local", ".shared", ".param"}
_LINKING = {".visible", ".extern", ".weak", ".common"}
_LINE_DIRECTIVES = {".version", ".target", ".address_size", ".alias"}
_NUMERIC_LIMITS = {
    ".maxnreg", ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".reqnctapercluster", ".maxclusterrank",
    ".abi_preserve", ".abi_preserve_control",
}  # fmt: skip
_WORD_LIMITS = {".noreturn", ".explicitcluster", ".blocksareclusters"}
# Vectors of more than eight operands, which messages abbreviate: wgmma has up to 128.
_LONG_VECTOR = re.compile(r"\{([^{},]+)(?:,[^{},]+){7,},\s*([^{},]+)\}")
_LONG = 8
# Operands, some of which are vectors or addresses.
_PARTS = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|[^\s,{}\[\]]+")
_MAX_BYTES = 1 << 30
_MAX_ALIGNMENT = 1 << 20
_SM_REGISTERS = 1 << 16
_THREAD_REGISTERS = 256


def parse(text: str) -> Module:
    """Parse a PTX module.

    Raises :class:`EmulationError`, with the PTX line, for anything that is not PTX.

    >>> module = parse(".version 8.0 .target sm_90 .entry k(.param .u32 n) { ret; }")
    >>> list(module.entries), module.entries["k"].params[0].size
    (['k'], 4)
    """
    return _Parser(text).module()


class _Parser(OperandReader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.functions: dict[str, Function] = {}
        self.locations = Locations(self.tokens)
        # The objects for texts of operands in the innermost scope, and split opcodes.
        self.operands: dict[str, PtxOperand] = {}
        self.opcodes: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.scope_count = 0
        self.function_variables: list[Variable] = []
        self.targets: dict[str, tuple[str, ...]] = {}

    # Module level

    def module(self) -> Module:
        entries: dict[str, Function] = {}
        target = ""
        while self.token.kind != "end":
            token = self.take()
            word = token.text
            if word in _LINE_DIRECTIVES:
                rest = self._directive(word, token.line)
                target = rest if word == ".target" else target
            elif word == ".file":
                self._file(token.line)
            elif word == ".section":
                self._section()
            elif token.kind == "section":
                continue
            elif word == ".pragma":
                self._until_semicolon()
            elif word in _LINKING or word in _SPACES or word in {".entry", ".func"}:
                function = self._declaration(token)
                if function is not None:
                    (entries if function.entry else self.functions)[function.name] = function
            elif word != ";":
                raise syntax_error(token.line, repr(word), "a module directive")
        variables = tuple(self.scopes[0].variables.values())
        return Module(entries, self.functions, variables, target, self.code)

    def _directive(self, word: str, line: int) -> str:
        """Return the value of a directive, which ends with its line, or after its first value if others follow."""
        if word == ".alias":
            self._alias()
            return ""
        first = self.take()
        while self.accept(","):
            self.take()
        if first.line != line:
            raise syntax_error(line, word, f"{word} with a value on its line")
        return first.text

    def _alias(self) -> None:
        """Parse a second name of a function."""
        name = self.take_word("a function's name").text
        self.take(",")
        aliased = self.take_word("a function's name")
        self.take(";")
        if aliased.text not in self.functions:
            raise syntax_error(aliased.line, repr(aliased.text), "a function defined before")
        self.functions[name] = self.functions[aliased.text]

    def _file(self, line: int) -> None:
        parts = self.skip_line(line)
        if len(parts) < 2 or parts[1].kind != "string":
            raise syntax_error(line, ".file", ".file with a number and a name")

    def _section(self) -> None:
        while not self.accept("{"):
            self.take()
        depth = 1
        while depth:
            word = self.take().text
            depth += (word == "{") - (word == "}")

    def _until_semicolon(self) -> None:
        while not self.accept(";"):
            self.take()

    def _declaration(self, first: Token) -> Function | None:
        extern = False
        token = first
        while token.text in _LINKING:
            extern = extern or token.text == ".extern"
            token = self.take()
        if token.text in {".entry", ".func"}:
            return self._function(entry=token.text == ".entry")
        if token.text in _SPACES - {".reg"}:
            self._variables(token.text[1:], extern=extern)
            return None
        raise syntax_error(token.line, repr(token.text), "a variable or a function")

    # Variables

    def _variables(self, space: str, *, extern: bool = False) -> None:
        variable = self._variable(space, extern=extern)
        self.take(";")
        self.scopes[-1].variables[variable.name] = variable
        self.operands.clear()
        if len(self.scopes) > 1:
            self.function_variables.append(variable)

    def _variable(self, space: str, *, extern: bool = False) -> Variable:
        """Return one variable: ``.align 8 .b8 name[64] = {…}``."""
        line = self.token.line
        align, vector, element = self._variable_type(line)
        name = self.take_word("a variable's name").text
        if not element:
            raise syntax_error(line, repr(name), "a type before the variable's name")
        unit = TYPE_BYTES[element]
        count, unsized = self._array_size(vector)
        data = b""
        relocations: tuple[tuple[int, Variable, int], ...] = ()
        if self.accept("="):
            data, relocations = initializer(self, element)
            count = max(count, len(data) // max(unit, 1)) if unsized else count
        size = 0 if unsized and not data else unit * count
        align = align or max(unit * vector, 1)
        if not len(data) <= size <= _MAX_BYTES or align <= 0 or align & (align - 1) or align > _MAX_ALIGNMENT:
            raise syntax_error(line, f"{name}: {size} bytes aligned to {align}", "a size below 1 GiB, a power of two")
        return Variable(name, space, size, align, data, relocations, extern=extern or unsized, element=element)

    def _variable_type(self, line: int) -> tuple[int, int, str]:
        """Return alignment, vector length and element type, with defaults."""
        align, vector, element, pointer = 0, 1, "", False
        while self.token.kind == "word" and self.token.text.startswith("."):
            word = self.take().text[1:]
            if word == "align":
                # Behind .ptr it is that of the memory which the parameter points to.
                number = self.take_integer("an alignment in bytes")
                align = align if pointer else number
            elif word in {"v2", "v4", "v8"}:
                vector = int(word[1])
            elif word in TYPE_BYTES:
                element = word
            elif word not in {"ptr", "managed", "global", "shared", "local", "const"}:
                raise syntax_error(line, repr("." + word), "a type, .align or .ptr")
            pointer |= word == "ptr"
        return align, vector, element

    def _array_size(self, vector: int) -> tuple[int, bool]:
        """Return the number of elements after a variable's name, and whether one dimension is left open."""
        count, unsized = vector, False
        while self.accept("["):
            if self.accept("]"):
                unsized = True
                continue
            count *= self.take_integer("an array size")
            self.take("]")
        return count, unsized

    # Functions

    def _function(self, *, entry: bool) -> Function | None:
        self.scope_count = 0
        self.scopes.append(Scope(0))
        self.operands = {}
        self.locations.leave()
        self.function_variables = []
        self.targets = {}
        returns = self._params() if self.token.text == "(" else ()
        name = self.take_word("a function's name").text
        if not entry and name not in self.code:
            self.code[name] = Variable(name, CODE, 0, 1)
        params = self._params() if self.token.text == "(" else ()
        limits = self._limits()
        if self.accept(";"):
            self.scopes.pop()
            return None
        opening = self.take("{")
        body: list[tuple[Statement, tuple[int, ...]]] = []
        self._block(body, (0,), 0, opening.line)
        self.scopes.pop()
        resolved = resolve_labels(body)
        return Function(
            name=name, entry=entry, params=params, returns=returns, variables=tuple(self.function_variables),
            body=resolved, targets=dict(self.targets), limit=prod(limits.get(".maxntid", (0,))),
            required=limits.get(".reqntid"), cluster=limits.get(".reqnctapercluster"), registers=_registers_of(limits),
        )  # fmt: skip

    def _params(self) -> tuple[Variable, ...]:
        self.take("(")
        variables: list[Variable] = []
        while not self.accept(")"):
            space = self.take().text
            if space not in {".param", ".reg"}:
                raise syntax_error(self.token.line, repr(space), ".param")
            variables.append(self._variable("param"))
            self.scopes[-1].variables[variables[-1].name] = variables[-1]
            if self.token.text != ")":
                self.take(",")
        return tuple(variables)

    def _limits(self) -> dict[str, tuple[int, int, int]]:
        """Return the numeric directives between parameters and body, each as three numbers."""
        limits: dict[str, tuple[int, int, int]] = {}
        while self.token.text.startswith("."):
            word = self.take().text
            if word in _NUMERIC_LIMITS:
                values = [self.take_integer("a number")]
                while self.accept(","):
                    values.append(self.take_integer("a number"))
                x, y, z = (*values, 1, 1)[:3]
                limits[word] = x, y, z
            elif word == ".pragma":
                self._until_semicolon()
            elif word not in _WORD_LIMITS:
                raise syntax_error(self.token.line, repr(word), "a function's body")
        return limits

    def _block(
        self, body: list[tuple[Statement, tuple[int, ...]]], path: tuple[int, ...], depth: int, opened: int
    ) -> None:
        """Parse the statements up to the closing brace. Nested scopes are flattened, with their names resolved."""
        if depth > MAX_NESTING:
            raise syntax_error(opened, f"{depth} nested scopes", f"at most {MAX_NESTING}")
        while not self.accept("}"):
            instruction = self._statement(self.token) if self.token.kind == "statement" else None
            if instruction is not None:
                body.append((instruction, path))
                continue
            token = self.take()
            word = token.text
            if word == "{":
                self.scope_count += 1
                self.scopes.append(Scope(self.scope_count))
                outer, self.operands = self.operands, {}
                self._block(body, (*path, self.scope_count), depth + 1, token.line)
                self.operands = outer
                self.scopes.pop()
            elif self._inner_directive(token):
                continue
            elif token.kind == "word" and self.token.text == ":":
                self._label(token, body, path)
            elif word == "@" or (token.kind == "word" and not word.startswith((".", "%"))):
                body.append((self._instruction(token), path))
            else:
                raise syntax_error(token.line, repr(word), "an instruction")

    def _inner_directive(self, token: Token) -> bool:
        """Parse a directive inside a body; return False if the token begins something else."""
        word = token.text
        if token.kind == "location":
            self.locations.move(token)
        elif word == ".reg":
            self._registers(self.take())
        elif word.startswith(".reg."):  # as in cuda_fp16.hpp: {.reg.b16 h;
            self._registers(token._replace(text=word[4:]))
        elif word in _SPACES or word in _LINKING:
            self._declaration(token)
        elif word == ".file":
            self._file(token.line)
        elif word in {".pragma", ".callprototype", ".calltargets"}:
            self._until_semicolon()
        else:
            return word == ";"
        return True

    def _label(self, token: Token, body: list[tuple[Statement, tuple[int, ...]]], path: tuple[int, ...]) -> None:
        self.take(":")
        name = token.text
        if self.token.text == ".branchtargets":
            self.take()
            labels = [self.take_word("a label").text]
            while self.accept(","):
                labels.append(self.take_word("a label").text)
            self.take(";")
            self.targets[name] = tuple(labels)
        elif self.token.text in {".callprototype", ".calltargets"}:
            self._until_semicolon()
        else:
            body.append((Label(name), path))

    def _registers(self, token: Token) -> None:
        kind = token.text[1:]
        if kind in {"v2", "v4"} or kind not in TYPE_BYTES:
            raise syntax_error(token.line, repr(token.text), "a scalar register type")
        scope = self.scopes[-1]
        self.operands.clear()
        while True:
            name = self.take_word("a register's name").text
            if self.accept("<"):
                scope.ranges[name] = (self.take_integer("a register count"), kind)
                self.take(">")
            else:
                scope.registers[name] = Register(name, kind)
            if self.accept(";"):
                return
            self.take(",")

    # Instructions

    def _statement(self, token: Token) -> Instruction | None:
        """Return the instruction of a token that contains all of it, with operands looked up by their text.

        Returns None, with nothing taken, if it must be read word by word.
        """
        text, guard, negated = " ".join(token.text.split()), None, False
        spelled = text[:-1]
        if text[0] == "@":
            name, _, spelled = spelled.partition(" ")
            negated = name[1] == "!"
            known = self._operand_of(name[2:] if negated else name[1:])
            if not isinstance(known, Register) or known.type != "pred":
                return None
            guard = known
        opcode, _, spelled = spelled.partition(" ")
        words = self.opcodes.get(opcode)
        if words is None:
            name, *modifiers = opcode.split(".")
            words = self.opcodes[opcode] = name, tuple(modifiers)
        parts = _PARTS.findall(spelled) if "{" in spelled or "[" in spelled else spelled.split(", ")
        operands = tuple([known for part in parts if (known := self._operand_of(part)) is not None])
        if len(operands) < len(parts) or ", ".join(parts) != spelled or words[0] == "call":
            return None
        self.at += 1
        return self._located(words, operands, guard, text, negated=negated, line=token.line)

    def _located(
        self, words: tuple[str, tuple[str, ...]], operands: tuple[PtxOperand, ...], guard: Register | None, text: str,
        *, negated: bool, line: int,
    ) -> Instruction:  # fmt: skip
        """Return an instruction at the current source line."""
        now = self.locations
        if words[0] == "ld" and "param" in words[1]:
            operands = tuple(self._parameter(each) for each in operands)
        return Instruction(
            *words, operands, guard, negated, line, now.where, _shortened(text), now.within, now.callers, now.moved
        )

    def _parameter(self, operand: PtxOperand) -> PtxOperand:
        """Return the address of a parameter, of whose name there may be a register too."""
        if isinstance(operand, Address) and isinstance(operand.base, Register):
            variable = self.variable(operand.base.name)
            if variable is not None and variable.space == "param":
                return replace(operand, base=Symbol(variable))
        return operand

    def _operand_of(self, text: str) -> PtxOperand | None:
        """Return the operand for a text in the innermost scope, or None if it is not exactly one."""
        known = self.operands.get(text) or self.register(text)
        if known is None:
            before = self.tokens, self.at
            try:
                self.tokens, self.at = tokens(text), 0
                known = self.operand(0)
                whole = self.token.kind == "end"
            except EmulationError:
                return None
            finally:
                self.tokens, self.at = before
            if not whole:
                return None
        self.operands[text] = known
        return known

    def _instruction(self, first: Token) -> Instruction:
        guard, negated, token = None, False, first
        if first.text == "@":
            negated = self.accept("!")
            name = self.take_word("a predicate")
            guard = self.register(name.text)
            if guard is None or guard.type != "pred":
                raise syntax_error(name.line, repr(name.text), "a predicate register")
            token = self.take_word("an instruction")
        words = token.text.split(".")
        operands: list[PtxOperand] = []
        if not self.accept(";"):
            operands.append(self.operand(0))
            while self.accept(",") or (words[0] == "call" and self.token.text not in {";", "}"}):
                operands.append(self.operand(0))
            end = self.take(";")
        else:
            end = self.tokens[self.at - 1]
        if words[0] == "call":
            operands = [Name(o.variable.name) if _is_code(o) else o for o in operands]
        text = " ".join(self.text[first.start : end.start + 1].split())
        opcode = words[0], tuple(words[1:])
        return self._located(opcode, tuple(operands), guard, text, negated=negated, line=token.line)


def _shortened(text: str) -> str:
    """Return the text of an instruction with long vectors abbreviated."""
    return _LONG_VECTOR.sub(r"{\1, …, \2}", text) if text.count(",") >= _LONG else text


def _is_code(operand: PtxOperand) -> TypeGuard[Symbol]:
    return isinstance(operand, Symbol) and operand.variable.space == CODE


def _registers_of(limits: dict[str, tuple[int, int, int]]) -> int:
    """Return the registers per thread that a kernel's limits allow, a multiple of 8, or 0 without limits."""
    if ".maxnreg" in limits:
        return limits[".maxnreg"][0]
    threads = limits.get(".reqntid") or limits.get(".maxntid")
    if threads is None:
        return 0
    warps = -(-prod(threads) // 32) * max(limits.get(".minnctapersm", (1,))[0], 1)
    return min(_SM_REGISTERS // (32 * warps) // 8 * 8, _THREAD_REGISTERS)
