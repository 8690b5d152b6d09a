"""Device functions that are called, not inlined: recursive ones, and those that a pointer may refer to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from matmill.emulator.frontend.syntax import (
    CODE,
    Function,
    Group,
    Instruction,
    Module,
    Name,
    PtxOperand,
    Register,
    Statement,
    Symbol,
)

_POINTERS = {"b64", "u64", "s64"}
# Addresses of functions are below those of all memory, and are not null pointers.
CODE_START, CODE_STEP = 1 << 20, 128


@dataclass(frozen=True, slots=True)
class CallParts:
    """The parts of a call instruction: its results, its callee, and its arguments."""

    returns: tuple[PtxOperand, ...]
    callee: PtxOperand
    arguments: tuple[PtxOperand, ...]

    @property
    def name(self) -> str:
        """The name of the callee; "" for a call through a pointer."""
        return self.callee.text if isinstance(self.callee, Name) else ""

    @property
    def signature(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The bytes of each result and of each argument."""
        returns, arguments = (
            tuple(o.variable.size if isinstance(o, Symbol) else -1 for o in group)
            for group in (self.returns, self.arguments)
        )
        return returns, arguments


def taken_apart(call: Instruction) -> CallParts:
    """Return the parts of ``call (results), function, (arguments), prototype;``.

    Raises ``EmulationError`` if it calls neither a function nor a pointer.
    """
    operands = list(call.operands)
    returns = _group(operands)
    callee = operands.pop(0) if operands else None
    arguments = _group(operands)
    if not isinstance(callee, Name | Register) or (isinstance(callee, Register) and callee.type not in _POINTERS):
        raise call.unsupported("what it calls")
    return CallParts(returns, callee, arguments)


def _group(operands: list[PtxOperand]) -> tuple[PtxOperand, ...]:
    """Take the next group of operands, if there is one."""
    if operands and isinstance(operands[0], Group):
        group = operands[0].items
        del operands[0]
        return group
    return ()


@dataclass
class CallGraph:
    """The functions of a module that code reaches by calls."""

    module: Module
    _reached: dict[str, set[str]] = field(default_factory=dict)

    def called(self, entry: Function) -> list[Function]:
        """Return the functions that ``entry`` reaches and that are not always inlined, callees before callers."""
        edges: dict[str, set[str]] = {}
        pointed: set[str] = set()
        waiting = [entry]
        while waiting:
            function = waiting.pop()
            if function.name in edges:
                continue
            own = edges[function.name] = set()
            for call in _calls(function.body):
                names = self.named_by(call)
                if not call.name:
                    pointed.update(f.name for f in names)
                own.update(f.name for f in names)
                waiting += names
        self._reached = {name: _reached(edges, name) for name in edges}
        chosen = [n for n in edges if n != entry.name and (n in pointed or self.is_recursive(n))]
        # A function's callers reach everything that it reaches.
        return [self.module.functions[n] for n in sorted(chosen, key=lambda n: len(self._reached[n]))]

    def is_recursive(self, name: str) -> bool:
        """Tell whether a function may call itself, directly or not."""
        return name in self._reached.get(name, ())

    def named_by(self, call: CallParts) -> list[Function]:
        """Return the functions that a call may reach: the one that it names, or all that its pointer may refer to."""
        functions = self.module.functions
        if call.name:
            return [functions[call.name]] if call.name in functions else []
        unique = {functions[name].name: functions[name] for name in self._taken if name in functions}
        return [f for f in unique.values() if signature_of(f) == call.signature]

    @cached_property
    def _taken(self) -> list[str]:
        """The functions whose address is taken."""
        module = self.module
        functions = (*module.entries.values(), *module.functions.values())
        variables = [*module.variables, *(v for f in functions for v in f.variables)]
        names = {target.name for v in variables for _, target, _ in v.relocations if target.space == CODE}
        for function in functions:
            for s in function.body:
                if isinstance(s, Instruction):
                    names |= {o.variable.name for o in s.operands if isinstance(o, Symbol) and o.variable.space == CODE}
        return [name for name in module.code if name in names]


def signature_of(function: Function) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each result and of each parameter of a function."""
    return tuple(v.size for v in function.returns), tuple(v.size for v in function.params)


def _calls(body: tuple[Statement, ...]) -> Iterator[CallParts]:
    for statement in body:
        if isinstance(statement, Instruction) and statement.name == "call":
            yield taken_apart(statement)


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    names: set[str] = set()
    waiting = list(edges[start])
    while waiting:
        name = waiting.pop()
        if name not in names:
            names.add(name)
            waiting += edges[name]
    return names


def code_addresses(module: Module) -> dict[str, int]:
    """Return the address of each function that a module declares; two names of one function share it."""
    own = {name: module.functions[name].name if name in module.functions else name for name in module.code}
    numbers = {name: n for n, name in enumerate(dict.fromkeys(own.values()))}
    return {name: CODE_START + CODE_STEP * numbers[own[name]] for name in own}
