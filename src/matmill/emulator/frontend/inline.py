"""Device functions inlined at their calls, so that the rest of the emulator sees one flat body.

Parameters and return values are ``.param`` variables on both sides; the callee's are replaced by the caller's.
Recursive functions, and those that are called through pointers, are in the flat body once, and their calls remain (see
``frames``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from matmill.emulator.frontend.calls import CallGraph, CallParts, signature_of, taken_apart
from matmill.emulator.frontend.frames import Flat, with_frames
from matmill.emulator.frontend.syntax import (
    Address,
    Function,
    Group,
    Instruction,
    Label,
    Module,
    Name,
    Negated,
    Pair,
    PtxOperand,
    Register,
    Statement,
    Symbol,
    Variable,
    Vector,
)

#: Functions of the runtime: the types of their arguments, and of the result ("" for none). Families implement them.
SYSTEM_CALLS: dict[str, tuple[tuple[str, ...], str]] = {
    "vprintf": (("b64", "b64"), "b32"),
    "malloc": (("b64",), "b64"),
    "free": (("b64",), ""),
    "__assertfail": (("b64", "b64", "b32", "b64", "b64"), ""),
}
_MAX_DEPTH = 32
_MAX_STATEMENTS = 500_000


@dataclass
class _Renaming:
    """The objects that names in one copy of a callee refer to; ``end`` is the label for its return, "" if it is called.

    ``callers`` are the lines of the calls that inline the copy, innermost first.
    """

    prefix: str
    end: str
    variables: dict[Variable, Variable]
    callers: tuple[str, ...] = ()
    registers: dict[Register, Register] = field(default_factory=dict)

    def register(self, r: Register) -> Register:
        if r not in self.registers:
            self.registers[r] = Register(self.prefix + r.name, r.type)
        return self.registers[r]

    def operand(self, o: PtxOperand) -> PtxOperand:
        if isinstance(o, Register):
            return self.register(o)
        if isinstance(o, Symbol):
            return Symbol(self.variables.get(o.variable, o.variable), o.offset)
        if isinstance(o, Address):
            base = self.operand(o.base)
            if not isinstance(base, Register | Symbol):
                base = o.base
            return Address(base, o.offset, tuple(self.operand(e) for e in o.extra))
        if isinstance(o, Vector | Group):
            return type(o)(tuple(self.operand(x) for x in o.items))
        if isinstance(o, Pair):
            return Pair(self.operand(o.first), self.operand(o.second))
        return Negated(self.register(o.register)) if isinstance(o, Negated) else o


def flatten(module: Module, function: Function) -> Flat:
    """Return the function with its calls expanded, and with the code of the functions that it calls.

    Raises ``EmulationError`` for calls of functions without a body, and if there are too many calls to expand.
    """
    graph = CallGraph(module)
    called = graph.called(function)
    inliner = _Inliner(module, graph)
    flat = Flat(variables=list(function.variables), targets=dict(function.targets))
    inliner.expand(function.body, flat, (function.name,))
    if not inliner.calls:
        return flat
    return with_frames(flat, [(f, inliner.apart(f)) for f in called], graph)


@dataclass
class _Inliner:
    """Expands the calls of one entry and of its callees; ``calls`` counts those that remain."""

    module: Module
    graph: CallGraph
    statements: int = 0
    copies: int = 0
    calls: int = 0

    def apart(self, function: Function) -> Flat:
        """Return a function that is called, as separate code."""
        renaming = _Renaming(f"{function.name}#", "", {})
        targets = {renaming.prefix + name: _labels(renaming.prefix, of) for name, of in function.targets.items()}
        flat = Flat(variables=list(function.variables), targets=targets)
        self.expand([_renamed(s, renaming, function) for s in function.body], flat, (function.name,))
        return flat

    def expand(self, body: Sequence[Statement], flat: Flat, stack: tuple[str, ...]) -> None:
        """Append a body to ``flat``; ``stack`` are the functions in which it is inlined, and its own."""
        for statement in body:
            if isinstance(statement, Instruction) and statement.name == "call":
                self._call(statement, flat, stack)
                continue
            flat.body.append(statement)
            self.statements += 1
            if self.statements > _MAX_STATEMENTS and isinstance(statement, Instruction):
                raise statement.unsupported("more than 500,000 instructions once calls are expanded")

    def _call(self, i: Instruction, flat: Flat, stack: tuple[str, ...]) -> None:
        call, functions = taken_apart(i), self.module.functions
        if call.name in SYSTEM_CALLS and call.name not in functions:
            flat.body += _system_call(i, call, len(flat.body))
            return
        if call.name and call.name not in functions:
            raise i.unsupported("a call of a function that the module does not define")
        given = [o for o in (*call.returns, *call.arguments) if isinstance(o, Symbol)]
        wanted = [len(x) for x in (signature_of(functions[call.name]) if call.name else call.signature)]
        if len(given) != sum(wanted) or [len(call.returns), len(call.arguments)] != wanted:
            raise i.unsupported("arguments that are not .param variables")
        self.copies += 1
        end = f"{call.name}#{self.copies}:skipped"
        if i.guard is not None:
            skip = Instruction("bra", (), (Name(end),), i.guard, not i.negated, i.line, i.where, i.text, "", i.callers)
            flat.body.append(skip)
        if call.name and not self.graph.is_recursive(functions[call.name].name):
            self._inline(i, functions[call.name], given, flat, stack)
        elif call.name and call.signature != signature_of(functions[call.name]):
            raise i.unsupported("arguments of other sizes than the function's")
        else:
            flat.body.append(replace(i, guard=None, negated=False))
            self.calls += 1
        if i.guard is not None:
            flat.body.append(Label(end))

    def _inline(
        self, i: Instruction, callee: Function, given: list[Symbol], flat: Flat, stack: tuple[str, ...]
    ) -> None:
        if len(stack) > _MAX_DEPTH:
            raise i.unsupported(f"more than {_MAX_DEPTH} calls inside each other")
        prefix = f"{callee.name}#{self.copies}:"
        # Each copy has its own locals, because two calls may be active in diverged lanes at once.
        own = {v: replace(v, name=prefix + v.name) if v.space in {"local", "param"} else v for v in callee.variables}
        flat.variables += own.values()
        passed = {v: o.variable for v, o in zip((*callee.returns, *callee.params), given, strict=True)}
        renaming = _Renaming(prefix, prefix + "end", own | passed, (i.location, *i.callers))
        flat.targets.update({prefix + name: _labels(prefix, of) for name, of in callee.targets.items()})
        self.expand([_renamed(s, renaming, callee) for s in callee.body], flat, (*stack, callee.name))
        flat.body.append(Label(renaming.end))


def _labels(prefix: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + label for label in labels)


def _system_call(i: Instruction, call: CallParts, number: int) -> list[Instruction]:
    """Return a call of the runtime: its arguments loaded from ``.param`` variables, the call, its result stored."""
    name = call.name
    kinds, result = SYSTEM_CALLS[name]
    given = [o for o in call.arguments if isinstance(o, Symbol)]
    returned = [o for o in call.returns if isinstance(o, Symbol)]
    if len(given) != len(kinds) or len(returned) != len(call.returns) or len(returned) > (result != ""):
        raise i.unsupported("the arguments of a call of the runtime")

    def instruction(opcode: str, modifiers: tuple[str, ...], operands: tuple[PtxOperand, ...]) -> Instruction:
        return replace(i, name=opcode, modifiers=modifiers, operands=operands)

    arguments = [Register(f"{name}#{number}:{n}", kind) for n, kind in enumerate(kinds)]
    loads = [
        instruction("ld", ("param", register.type), (register, Address(symbol)))
        for register, symbol in zip(arguments, given, strict=True)
    ]
    if not result:
        return [*loads, instruction(name, (), tuple(arguments))]
    value = Register(f"{name}#{number}:result", result)
    stores = [instruction("st", ("param", result), (Address(o), value)) for o in returned]
    return [*loads, instruction(name, (), (value, *arguments)), *stores]


def _renamed(s: Statement, renaming: _Renaming, function: Function) -> Statement:
    if isinstance(s, Label):
        return Label(renaming.prefix + s.name)
    guard = renaming.register(s.guard) if s.guard is not None else None
    name, modifiers, callers = s.name, s.modifiers, (*s.callers, *renaming.callers)
    operands: tuple[PtxOperand, ...]
    if name == "ret":
        name, modifiers = ("bra" if renaming.end else "return"), ()
        operands = (Name(renaming.end or function.name),)
    else:
        operands = tuple(renaming.operand(o) for o in s.operands)
    if s.name in {"bra", "brx"}:
        operands = tuple(Name(renaming.prefix + o.text) if isinstance(o, Name) else o for o in operands)
    return replace(s, name=name, modifiers=modifiers, operands=operands, guard=guard, callers=callers)
