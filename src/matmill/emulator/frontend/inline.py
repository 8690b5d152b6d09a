"""Device functions inlined at their calls, so that the rest of the emulator sees one flat body.

Parameters and return values are ``.param`` variables on both sides; the callee's are replaced by the caller's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from matmill.emulator.frontend.syntax import (
    Address,
    Function,
    Group,
    Instruction,
    Label,
    Module,
    Name,
    Negated,
    Operand,
    Pair,
    Register,
    Statement,
    Symbol,
    Variable,
    Vector,
)

#: Functions of the runtime: the types of their arguments, and of the result ("" for none). Families have what they do.
SYSTEM_CALLS: dict[str, tuple[tuple[str, ...], str]] = {
    "vprintf": (("b64", "b64"), "b32"),
    "malloc": (("b64",), "b64"),
    "free": (("b64",), ""),
    "__assertfail": (("b64", "b64", "b32", "b64", "b64"), ""),
}
_MAX_DEPTH = 32
_MAX_STATEMENTS = 500_000


@dataclass
class Flat:
    """A body without calls, the variables that it and its callees declare, and its branch tables."""

    body: list[Statement] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass
class _Renaming:
    """What the names of one copy of a callee refer to."""

    prefix: str
    variables: dict[Variable, Variable]
    registers: dict[Register, Register] = field(default_factory=dict)

    def register(self, r: Register) -> Register:
        if r not in self.registers:
            self.registers[r] = Register(self.prefix + r.name, r.type)
        return self.registers[r]

    def operand(self, o: Operand) -> Operand:
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
    """The function with all its calls expanded.

    Raises ``EmulationError`` for calls through pointers, calls of functions without a body, and recursion.
    """
    flat = Flat(variables=list(function.variables), targets=dict(function.targets))
    _expand(module, function.body, flat, (function.name,))
    return flat


def _expand(module: Module, body: tuple[Statement, ...] | list[Statement], flat: Flat, stack: tuple[str, ...]) -> None:
    for statement in body:
        if isinstance(statement, Instruction) and statement.name == "call":
            _expand_call(module, statement, flat, stack)
        else:
            flat.body.append(statement)
        if len(flat.body) > _MAX_STATEMENTS and isinstance(statement, Instruction):
            raise statement.unsupported("more than 500,000 instructions once calls are expanded")


def _expand_call(module: Module, call: Instruction, flat: Flat, stack: tuple[str, ...]) -> None:
    groups = [o for o in call.operands if isinstance(o, Group)]
    names = [o.text for o in call.operands if isinstance(o, Name)]
    if names and names[0] in SYSTEM_CALLS and names[0] not in module.functions:
        flat.body += _system_call(call, names[0], groups, len(flat.body))
        return
    if not names or names[0] not in module.functions:
        raise call.unsupported("a call of a function that the module does not define")
    callee = module.functions[names[0]]
    if callee.name in stack or len(stack) > _MAX_DEPTH:
        raise call.unsupported("a recursive call")
    returns = groups.pop(0).items if callee.returns and groups else ()
    arguments = groups.pop(0).items if groups else ()
    given = [*returns, *arguments]
    wanted = [*callee.returns, *callee.params]
    if len(given) != len(wanted) or not all(isinstance(o, Symbol) for o in given):
        raise call.unsupported("arguments that are not .param variables")
    number = len(flat.body)
    prefix = f"{callee.name}#{number}:"
    # Each copy has its own locals: two calls may be active in diverged lanes at once.
    variables = {v: replace(v, name=prefix + v.name) if v.space in {"local", "param"} else v for v in callee.variables}
    flat.variables += variables.values()
    for variable, operand in zip(wanted, given, strict=True):
        if isinstance(operand, Symbol):
            variables[variable] = operand.variable
    renaming = _Renaming(prefix, variables)
    end = prefix + "return"
    if call.guard is not None:
        skip = Instruction("bra", (), (Name(end),), call.guard, not call.negated, call.line, call.where, call.text)
        flat.body.append(skip)
    for name, labels in callee.targets.items():
        flat.targets[prefix + name] = tuple(prefix + label for label in labels)
    _expand(module, [_renamed(s, renaming, end) for s in callee.body], flat, (*stack, callee.name))
    flat.body.append(Label(end))


def _system_call(call: Instruction, name: str, groups: list[Group], number: int) -> list[Instruction]:
    """A call of the runtime: its arguments loaded from their ``.param`` variables, the call, its result stored."""
    kinds, result = SYSTEM_CALLS[name]
    wanted = len(kinds)
    given = groups[-1].items if groups and wanted else ()
    returned = groups[0].items if result and len(groups) > (wanted > 0) else ()
    if len(given) != wanted or not all(isinstance(o, Symbol) for o in (*given, *returned)):
        raise call.unsupported("the arguments of a call of the runtime")

    def made(opcode: str, modifiers: tuple[str, ...], operands: tuple[Operand, ...]) -> Instruction:
        return replace(call, name=opcode, modifiers=modifiers, operands=operands)

    arguments = [Register(f"{name}#{number}:{n}", kind) for n, kind in enumerate(kinds)]
    loads = [
        made("ld", ("param", register.type), (register, Address(symbol)))
        for register, symbol in zip(arguments, given, strict=True)
        if isinstance(symbol, Symbol)
    ]
    if not result:
        return [*loads, made(name, (), tuple(arguments))]
    value = Register(f"{name}#{number}:result", result)
    stores = [made("st", ("param", result), (Address(o), value)) for o in returned if isinstance(o, Symbol)]
    return [*loads, made(name, (), (value, *arguments)), *stores]


def _renamed(s: Statement, renaming: _Renaming, end: str) -> Statement:
    if isinstance(s, Label):
        return Label(renaming.prefix + s.name)
    guard = renaming.register(s.guard) if s.guard is not None else None
    if s.name == "ret":
        return replace(s, name="bra", modifiers=(), operands=(Name(end),), guard=guard)
    operands = tuple(renaming.operand(o) for o in s.operands)
    if s.name in {"bra", "brx"}:
        operands = tuple(Name(renaming.prefix + o.text) if isinstance(o, Name) else o for o in operands)
    return replace(s, operands=operands, guard=guard)
