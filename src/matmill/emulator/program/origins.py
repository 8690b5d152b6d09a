"""The array that each memory access is meant for: the one variable from which its address is computed.

Addresses of shared and local variables are followed through moves, conversions and sums to the accesses that use them.
Addresses that may come from two variables, from a variable or a plain number, or through any other arithmetic, have no
array. An array's address plus a loaded value counts as an address in that array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from matmill.emulator.frontend.syntax import Address, Instruction, PtxOperand, Register, Symbol, Variable, Vector
from matmill.emulator.program.basic_blocks import Block
from matmill.emulator.program.table import Action

# The contents of a register: an address in a variable, a number, something else, or None while unknown.
_Origin: TypeAlias = "Variable | Literal['number', 'other'] | None"


def arrays_of_accesses(blocks: Iterable[Block]) -> dict[Instruction, Variable]:
    """Return the shared or local variable that each memory instruction accesses, if its address has one origin.

    For instructions with two addresses (``cp.async``) it is the first one's.
    """
    actions = [action for block in blocks for action in (*block.actions, block.end.action) if action is not None]
    known: dict[Register, _Origin] = {}
    changed = True
    while changed:
        changed = False
        for action in actions:
            for result in action.written:
                before = known.get(result)
                now = _either(before, _result(action, known))
                if now is not before:
                    known[result] = now
                    changed = True
    arrays = {}
    for instruction in (action.instruction for action in actions):
        address = _address(instruction)
        origin = None if address is None else _origin(address.base, known)
        if isinstance(origin, Variable):
            arrays[instruction] = origin
    return arrays


def _address(i: Instruction) -> Address | None:
    return next((operand for operand in i.operands if isinstance(operand, Address)), None)


def _origin(operand: PtxOperand, known: dict[Register, _Origin]) -> _Origin:
    if isinstance(operand, Register):
        return known.get(operand)
    if isinstance(operand, Symbol) and operand.variable.space in {"shared", "local"}:
        return operand.variable
    return _mixed([_origin(item, known) for item in operand.items]) if isinstance(operand, Vector) else "number"


def _result(action: Action, known: dict[Register, _Origin]) -> _Origin:
    """Return the origin of an action's result, as far as its sources' origins are known."""
    i = action.instruction
    if _address(i) is not None:
        return "number"
    sources = [_origin(operand, known) for operand in i.operands[1:]]
    match i.name, sources:
        case "mov" | "cvta" | "cvt", [a]:
            result = a
        case "add" | "or" | "xor", [a, b]:
            result = _sum(a, b)
        case "sub", [a, b] if a is not b:
            result = a if b == "number" else _mixed(sources)
        case "sub", _:
            result = "number"
        case "mad", [a, b, c]:
            result = _sum(_mixed([a, b]), c)
        case "selp", [a, b, _]:
            result = _either(a, b)
        case _:
            result = _mixed(sources)
    return result


def _sum(a: _Origin, b: _Origin) -> _Origin:
    if a is None or b is None:
        return None
    if a == "number":
        return b
    return a if b == "number" else "other"


def _mixed(sources: list[_Origin]) -> _Origin:
    """Return the origin of other arithmetic: a number if all sources are numbers."""
    if any(source is None for source in sources):
        return None
    return "number" if all(source == "number" for source in sources) else "other"


def _either(a: _Origin, b: _Origin) -> _Origin:
    """Return the origin of a register that is written twice."""
    if a is None or a is b:
        return b
    return a if b is None else "other"
