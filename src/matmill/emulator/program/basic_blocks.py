"""Basic blocks: straight-line runs of actions, each ended by a branch, a wait or an exit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from matmill.emulator.frontend.frames import Flat, Stack
from matmill.emulator.frontend.syntax import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Label,
    Name,
    Negated,
    PtxOperand,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
)
from matmill.emulator.program.expand import expanded
from matmill.emulator.program.special_registers import CLOCKS, PREDICATES, is_known
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Value, decode
from matmill.emulator.program.wide_registers import WideRegisters

_SOURCES = (Register, Immediate, Special, Symbol)
_RESULTS = (Register, Sink)
_SPECIAL_KINDS = {"u1", "i1", "u2", "i2", "u4", "i4", "f4"}


@dataclass
class Terminator:
    """The end of a block.

    ``kind`` is "jump" (to ``target``), "branch" (to ``target`` if ``guard`` holds, else ``next``), "exit" (if ``guard``
    holds or is None, else ``next``), "wait" (described by ``detail``, then ``next``) or "switch" (to
    ``table[selector]``). A "call" goes to one of the functions in ``table``, as its ``detail`` says, and finally to
    ``next``; "return", with a guard like an exit, goes to one of ``table``. Targets are block numbers.
    """

    kind: str
    instruction: Instruction | None = None
    guard: Register | None = None
    negated: bool = False
    target: int = -1
    next: int = -1
    table: tuple[int, ...] = ()
    selector: PtxOperand | None = None
    action: Action | None = None
    detail: Any = None

    def successors(self) -> list[int]:
        """Return the blocks that may follow."""
        if self.kind == "jump":
            return [self.target]
        if self.kind in {"switch", "call"}:
            return list(self.table)
        if self.kind == "branch":
            return [self.target, self.next]
        return [*self.table, *([self.next] if self.next >= 0 else [])]


@dataclass
class CallSite:
    """A call with its possible callees: address to (first block, bytes of the frame).

    ``kept`` are registers that the calls inside it may change, and that are used after it.
    """

    functions: dict[int, tuple[int, int]]
    kept: tuple[Register, ...] = ()


@dataclass
class Block:
    """A straight-line run of actions. ``number`` orders blocks as in the program text."""

    number: int
    actions: list[Action] = field(default_factory=list)
    end: Terminator = field(default_factory=lambda: Terminator("exit"))


def checked(action: Action) -> Action:
    """Return the action, if its operands can be read from and written to as its kinds require."""
    i = action.instruction
    members = getattr(action.detail, "members", None)
    for value in (*action.sources, *((Value(members, "u4"),) if members is not None else ())):
        _check_source(i, value)
    for value in action.results:
        if not isinstance(value.operand, _RESULTS) or not _readable(value.operand, value.kind):
            raise i.unsupported("a result of the wrong kind")
    return action


def _check_source(i: Instruction, value: Value) -> None:
    """Raise if an operand cannot be read as rows of its kind."""
    operand = value.operand.register if isinstance(value.operand, Negated) else value.operand
    if isinstance(operand, Special):
        # Only mov reads clocks, and does not name them as sources.
        if not is_known(operand.name) or operand.name in CLOCKS:
            raise i.unsupported(f"special register {operand.name}")
        if value.kind not in _SPECIAL_KINDS | ({"p"} if operand.name in PREDICATES else set()):
            raise i.unsupported(f"special register {operand.name}, which has 32 bits, as an operand of another kind")
    if not isinstance(operand, _SOURCES) or not _readable(operand, value.kind):
        raise i.unsupported("a source operand of the wrong kind")


def _readable(operand: PtxOperand, kind: str) -> bool:
    """Tell whether a register is wide enough for a kind, and exactly as wide for two halves.

    Predicates serve only as predicates.
    """
    return not isinstance(operand, Register) or _fits(operand.type, kind)


@cache
def _fits(type_name: str, kind: str) -> bool:
    own = KIND_OF_TYPE.get(type_name)
    if own is None or (own == "p") != (kind == "p"):
        return False
    if kind.endswith("x2"):
        return TYPE_BYTES[type_name] == 2 * int(kind[1])
    return own == "p" or max(TYPE_BYTES[type_name], 2) >= int(kind[1])


class _Builder:
    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.blocks: list[Block] = [Block(0)]
        self.labels: dict[str, int] = {}
        self.fixups: list[tuple[Terminator, list[str], Instruction]] = []
        self.wide = WideRegisters()
        self.calls: list[tuple[Terminator, list[str]]] = []
        self.returns: list[tuple[Terminator, str]] = []

    def open(self) -> Block:
        block = Block(len(self.blocks))
        self.blocks.append(block)
        return block

    def close(self, end: Terminator) -> None:
        """End the open block and open the next, which ``end`` falls through to."""
        last = self.blocks[-1]
        last.end = end
        following = self.open().number
        if end.kind in {"branch", "wait", "call"} or (end.kind in {"exit", "return"} and end.guard is not None):
            end.next = following

    def statement(self, s: Statement) -> None:
        if isinstance(s, Label):
            if self.blocks[-1].actions or len(self.blocks) == 1:
                self.close(Terminator("jump", target=len(self.blocks)))
            self.labels[s.name] = self.blocks[-1].number
            return
        if s.name == "bra":
            self._branch(s)
        elif s.name == "brx":
            self._switch(s)
        elif s.name in {"ret", "exit"}:
            self.close(Terminator("exit", s, s.guard, s.negated))
        elif s.name in {"call", "return"}:
            self._call_or_return(s)
        else:
            for each in expanded(s):
                for one in self.wide.split(each):
                    self._action(one)

    def _branch(self, s: Instruction) -> None:
        target = s.operands[0] if len(s.operands) == 1 else None
        if not isinstance(target, Name):
            raise s.unsupported("its target")
        kind = "jump" if s.guard is None else "branch"
        end = Terminator(kind, s, s.guard, s.negated)
        self.fixups.append((end, [target.text], s))
        self.close(end)

    def _switch(self, s: Instruction) -> None:
        if len(s.operands) != 2 or not isinstance(s.operands[1], Name) or s.operands[1].text not in self.flat.targets:
            raise s.unsupported("its targets")
        if s.guard is not None:
            raise s.unsupported("a guard")
        _check_source(s, Value(s.operands[0], "u4"))
        end = Terminator("switch", s, selector=s.operands[0])
        self.fixups.append((end, list(self.flat.targets[s.operands[1].text]), s))
        self.close(end)

    def _call_or_return(self, s: Instruction) -> None:
        target, *functions = s.operands
        names = [o.text for o in (target, *functions) if isinstance(o, Name)]
        if s.name == "return":
            end = Terminator("return", s, s.guard, s.negated)
            self.returns.append((end, names[0]))
        else:
            end = Terminator("call", s, selector=target if isinstance(target, Register) else None)
            self.calls.append((end, list(dict.fromkeys(names))))
        self.close(end)

    def _action(self, s: Instruction) -> None:
        action = checked(decode(s))
        waits = action.ends_block or action.detail is not None or action.collective
        if waits and s.guard is not None:
            # A guarded wait is a branch around it: only the lanes that execute it must meet. The same holds for
            # instructions of whole warps.
            skip = Terminator("branch", s, s.guard, not s.negated)
            self.close(skip)
            s = replace(s, guard=None, negated=False)
            action = decode(s)
        else:
            skip = None
        if action.ends_block:
            self.close(Terminator("wait", s, action=action, detail=action.detail))
        else:
            if action.detail is not None:
                self.close(Terminator("wait", s, action=None, detail=action.detail))
            self.blocks[-1].actions.append(action)
            if skip is not None:
                self.close(Terminator("jump", target=len(self.blocks)))
        if skip is not None:
            skip.target = self.blocks[-1].number

    def finish(self) -> list[Block]:
        for end, names, s in self.fixups:
            if any(name not in self.labels for name in names):
                raise s.unsupported("a label that does not exist")
            numbers = tuple(self.labels[name] for name in names)
            if end.kind == "switch":
                end.table = numbers
            else:
                end.target = numbers[0]
        self._link_calls(self.flat.stack)
        return self.blocks

    def _link_calls(self, stack: Stack) -> None:
        """Link calls to the first blocks of functions, and returns to the blocks after the calls."""
        after: dict[str, list[int]] = {}
        for end, names in self.calls:
            blocks = {name: self.labels[f"{name}#"] for name in names}
            end.table = tuple(blocks.values())
            end.detail = CallSite({stack.addresses[n]: (block, stack.frames[n]) for n, block in blocks.items()})
            for name in names:
                after.setdefault(name, []).append(end.next)
        for end, name in self.returns:
            end.table = tuple(after.get(name, ()))


def blocks_of(flat: Flat) -> list[Block]:
    """Return the basic blocks of a flat body, in program order; the last one ends the thread.

    Raises ``EmulationError`` for unknown instructions and for branches without a target.
    """
    builder = _Builder(flat)
    for statement in flat.body:
        builder.statement(statement)
    return builder.finish()


def operands_of_end(end: Terminator) -> list[Value]:
    """Return the operands that the end of a block reads: masks, barrier numbers, predicates, selectors."""
    values: list[Value] = []
    if end.action is not None:
        values += end.action.sources
        values += [Value(r, KIND_OF_TYPE[r.type]) for r in end.action.uses]
    members = getattr(end.detail, "members", None)
    if members is not None:
        values.append(Value(members, "u4"))
    if end.selector is not None:
        values.append(Value(end.selector, "u8" if end.kind == "call" else "u4"))
    if isinstance(end.detail, CallSite):
        values += [Value(r, KIND_OF_TYPE[r.type]) for r in end.detail.kept]
    if end.guard is not None:
        values.append(Value(end.guard, "p"))
    return values
