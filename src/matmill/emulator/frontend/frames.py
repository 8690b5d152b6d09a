"""Functions that are called: their code one after another in a flat body, and a stack for their variables.

A register has the start of the running function's frame in the thread's local memory. A frame begins with the
function's results and parameters, which for the caller are directly after its own frame. The engine executes calls and
returns; everything else is ordinary instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from matmill.emulator.frontend.calls import CallGraph, code_addresses, taken_apart
from matmill.emulator.frontend.syntax import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Name,
    PtxOperand,
    Register,
    Statement,
    Symbol,
    Variable,
)

#: Bytes of stack besides one frame of each function. A call takes at least ``LEAST_FRAME`` of them, as the return
#: address does on a GPU.
STACK_BYTES = 32 << 10
LEAST_FRAME = 64


@dataclass(frozen=True, slots=True)
class Stack:
    """The stack of calls: the register with the start of a frame, and the local variable that it points to.

    ``frames`` are the bytes that each function needs there, ``addresses`` the values of pointers to functions.
    """

    register: Register = field(default_factory=lambda: Register("frame", "u64"))
    variable: Variable = field(default_factory=lambda: Variable("stack of calls", "local", 0, 1))
    frames: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)


@dataclass
class Flat:
    """A body with calls expanded, the variables that it and its callees declare, and its branch tables.

    The remaining calls are ``call F, F;``, or ``call pointer, F, G, …;`` with all functions that the pointer may refer
    to. The code of ``F`` begins at the label ``F#``, and returns by ``return F;``.
    """

    body: list[Statement] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stack: Stack = field(default_factory=Stack)


def with_frames(entry: Flat, called: Sequence[tuple[Function, Flat]], graph: CallGraph) -> Flat:
    """Return one flat body of an entry and of the functions that are called, each with its flat body.

    The functions' code comes first, callees before callers: lanes run lowest block first, so that lanes inside a call
    catch up with the others.
    """
    variables = [v for function, flat in called for v in (*function.returns, *function.params, *flat.variables)]
    unit = max([16, *(v.align for v in variables if v.space in {"local", "param"})])
    register = Register("frame", "u64")
    frames = {f.name: _StackFrame(register, unit, (*f.returns, *f.params), flat) for f, flat in called}
    size = STACK_BYTES + sum(frame.needs for frame in frames.values())
    stack = Variable("stack of calls", "local", _rounded(size, unit), unit)
    first = next(s for s in entry.body if isinstance(s, Instruction))
    begin = replace(first, name="mov", modifiers=("u64",), operands=(register, Symbol(stack)), guard=None)
    whole = Flat([begin, replace(begin, name="bra", modifiers=(), operands=(Name("#"),))])
    for function, flat in called:
        leave = replace(first, name="return", modifiers=(), operands=(Name(function.name),), guard=None)
        whole.body += [Label(f"{function.name}#"), *frames[function.name].body(flat, graph), leave]
        whole.targets |= flat.targets
    whole.body += [Label("#"), *_StackFrame(register, unit, (), entry, entry=True).body(entry, graph)]
    whole.targets |= entry.targets
    declared = (*entry.variables, *(v for _, flat in called for v in flat.variables if v.space == "shared"), stack)
    whole.variables = list(dict.fromkeys(declared))
    needs = {name: frame.needs for name, frame in frames.items()}
    whole.stack = Stack(register, stack, needs, code_addresses(graph.module))
    return whole


class _StackFrame:
    """The positions of one function's variables, in bytes from the beginning of its frame.

    An ``entry`` has no frame: only variables that it passes to calls are on the stack. ``needs`` are the bytes of a
    frame and of the variables for a call after it.
    """

    def __init__(
        self, register: Register, unit: int, passed: Sequence[Variable], flat: Flat, *, entry: bool = False
    ) -> None:
        self._register, self._unit = register, unit
        self._count = 0
        self._offsets, end = _slots(passed, 0, unit)
        calls = [s for s in flat.body if isinstance(s, Instruction) and s.name == "call"]
        passes = {v for s in calls for v in _passed(s)}
        for v in flat.variables if not entry else ():
            if v.space in {"local", "param"} and v not in passes:
                self._offsets[v] = _rounded(end, v.align)
                end = self._offsets[v] + v.size
        self.size = self.needs = 0 if entry else max(LEAST_FRAME, _rounded(end, unit))
        for s in calls:
            slots, end = _slots(_passed(s), self.size, unit)
            if any(self._offsets.get(v, at) != at for v, at in slots.items()):
                raise s.unsupported("a .param variable that is another call's too, or the function's own")
            self._offsets |= slots
            self.needs = max(self.needs, end)

    def body(self, flat: Flat, graph: CallGraph) -> Iterator[Statement]:
        """Yield the body with its variables on the stack, and with calls that move to the next frame and back."""
        for s in flat.body:
            if isinstance(s, Label):
                yield s
            elif s.name == "call":
                yield from self._call(s, graph)
            else:
                operands: list[PtxOperand] = []
                for o in s.operands:
                    if isinstance(o, Symbol) and o.variable in self._offsets:
                        address = self._fresh()
                        yield self._sum(s, "add", address, self._offsets[o.variable] + o.offset)
                        operands.append(address)
                    else:
                        operands.append(self._operand(o))
                yield replace(s, operands=tuple(operands), modifiers=self._modifiers(s))

    def _call(self, s: Instruction, graph: CallGraph) -> Iterator[Statement]:
        call = taken_apart(s)
        names = tuple(Name(f.name) for f in graph.named_by(call))
        yield self._sum(s, "add", self._register, self.size)
        yield replace(s, modifiers=(), operands=(call.callee, *names))
        yield self._sum(s, "sub", self._register, self.size)

    def _sum(self, s: Instruction, name: str, result: Register, offset: int) -> Instruction:
        """Return the instruction that adds ``offset`` bytes to the start of the frame."""
        operands = (result, self._register, Immediate(offset, "int"))
        return replace(s, name=name, modifiers=("u64",), operands=operands, guard=None, negated=False)

    def _fresh(self) -> Register:
        self._count += 1
        return Register(f"address#{self._count}", "u64")

    def _operand(self, o: PtxOperand) -> PtxOperand:
        if isinstance(o, Address) and isinstance(o.base, Symbol) and o.base.variable in self._offsets:
            return Address(self._register, self._offsets[o.base.variable] + o.base.offset + o.offset, o.extra)
        return o

    def _modifiers(self, s: Instruction) -> tuple[str, ...]:
        """Return the modifiers for the stack: parameters there are in local memory."""
        bases = [o.base.variable for o in s.operands if isinstance(o, Address) and isinstance(o.base, Symbol)]
        if not any(v in self._offsets for v in bases):
            return s.modifiers
        return tuple("local" if m in {"param", "param::func"} else m for m in s.modifiers)


def _passed(s: Instruction) -> list[Variable]:
    """Return the variables that a call passes: results, then arguments."""
    call = taken_apart(s)
    return [o.variable for o in (*call.returns, *call.arguments) if isinstance(o, Symbol)]


def _slots(variables: Iterable[Variable], start: int, unit: int) -> tuple[dict[Variable, int], int]:
    """Return the offsets of a call's results and arguments from ``start`` on, and their end."""
    offsets = {}
    for variable in variables:
        offsets[variable] = start
        start += _rounded(variable.size, unit)
    return offsets, start


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
