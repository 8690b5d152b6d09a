"""Registers of wgmma in flight: uses that come too early, and products without a wgmma.fence before them.

PTX ISA, "wgmma.mma_async" and "wgmma.fence". Between a product and the wait that covers its group, only a product on
the same sums may access its sums, and nothing may write its registers of A. A fence must precede the first product, and
every product after another access to these registers. Both rules are checked on all paths through the program at once,
so a finding holds on some path; ``run`` reports those in code that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from matmill.emulator.frontend.syntax import Instruction, Register
from matmill.emulator.program.basic_blocks import Block, operands_of_end
from matmill.emulator.program.table import registers
from matmill.emulator.program.waits import GroupWait


@dataclass(frozen=True, slots=True)
class WgmmaProduct:
    """wgmma.mma_async: its registers of D, and those of A, if any."""

    sums: tuple[Register, ...]
    factors: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Fence:
    """wgmma.fence."""


@dataclass(frozen=True, slots=True)
class Commit:
    """wgmma.commit_group."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A misused register: the hazard's kind, the instruction in ``block``, and the other one (None: the start)."""

    kind: str
    block: int
    instruction: Instruction
    other: Instruction | None
    register: str

    @property
    def message(self) -> str:
        """The description of the misuse."""
        here = repr(self.instruction.text)
        other = "" if self.other is None else f"{self.other.text!r} ({self.other.location})"
        if self.kind == "register-in-flight":
            return f"{here} uses {self.register} while {other} is in flight: no wgmma.wait_group before it covers that"
        if self.other is None:
            return f"no wgmma.fence comes before {here}, the first product on its way"
        return f"{here} uses {self.register}, and no wgmma.fence comes after {other}, which accessed it"


@dataclass(frozen=True, slots=True)
class _Flight:
    """A product that uses a register: the fewest commits since then and, if it is a sum, all sums of the product."""

    commits: int
    product: Instruction
    sums: tuple[Register, ...]


_Flights: TypeAlias = "dict[Register, _Flight]"
#: The key for the kernel's start among the accesses that need a fence.
_START = None


@dataclass
class _State:
    """The state before an instruction on some path to it.

    ``flights`` are the registers in flight, ``accessed`` those that need a fence, with their last accesses.
    """

    flights: _Flights = field(default_factory=dict)
    accessed: dict[Register | None, Instruction | None] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.flights), dict(self.accessed))

    def join(self, other: _State) -> bool:
        """Merge the state of another path; return whether anything changed."""
        changed = False
        for register, flight in other.flights.items():
            mine = self.flights.get(register)
            if mine is None or flight.commits < mine.commits:
                self.flights[register] = flight
                changed = True
        for accessed, who in other.accessed.items():
            if accessed not in self.accessed:
                self.accessed[accessed] = who
                changed = True
        return changed


def held_registers(blocks: Iterable[Block]) -> set[Register]:
    """Return all registers that are sums or A of products."""
    return {
        r
        for b in blocks
        for a in b.actions
        if isinstance(a.flight, WgmmaProduct)
        for r in a.flight.sums + a.flight.factors
    }


def find_misuses(blocks: Sequence[Block]) -> list[Finding]:
    """Return the registers of products that are used too early or without a fence, on any path through a program."""
    held = held_registers(blocks)
    if not held:
        return []
    sums = {r for b in blocks for a in b.actions if isinstance(a.flight, WgmmaProduct) for r in a.flight.sums}
    before: dict[int, _State] = {0: _State(accessed={_START: None})}
    waiting = [0]
    while waiting:
        number = waiting.pop()
        after = before[number].copy()
        for _ in _Walk(blocks[number], after, held, sums):
            pass
        for following in blocks[number].end.successors():
            known = before.get(following)
            if known is None:
                before[following] = after.copy()
            elif not known.join(after):
                continue
            if following not in waiting:
                waiting.append(following)
    findings: dict[Finding, None] = {}
    for number, state in sorted(before.items()):
        findings.update(dict.fromkeys(_Walk(blocks[number], state.copy(), held, sums)))
    return list(findings)


class _Walk:
    """A walk through one block that updates ``state`` to its end, and yields misuses."""

    def __init__(self, block: Block, state: _State, held: set[Register], sums: set[Register]) -> None:
        self.block, self.state, self.held, self.sums = block, state, held, sums

    def __iter__(self) -> Iterator[Finding]:
        for action in self.block.actions:
            if isinstance(action.flight, WgmmaProduct):
                yield from self._product(action.instruction, action.flight)
            elif isinstance(action.flight, Fence):
                self.state.accessed.clear()
            elif isinstance(action.flight, Commit):
                flights = self.state.flights
                flights.update({r: _Flight(f.commits + 1, f.product, f.sums) for r, f in flights.items()})
            else:
                yield from self._other(action.instruction, action.read, action.written)
        yield from self._end()

    def _end(self) -> Iterator[Finding]:
        end = self.block.end
        if end.instruction is not None:
            written = end.action.written if end.action is not None else ()
            yield from self._other(end.instruction, registers(v.operand for v in operands_of_end(end)), written)
        if isinstance(end.detail, GroupWait):
            allowed = end.detail.allowed
            self.state.flights = {r: f for r, f in self.state.flights.items() if f.commits <= allowed}

    def _finding(self, kind: str, i: Instruction, other: Instruction | None, register: str) -> Finding:
        return Finding(kind, self.block.number, i, other, register)

    def _product(self, i: Instruction, product: WgmmaProduct) -> Iterator[Finding]:
        state = self.state
        for register in product.sums:
            flight = state.flights.get(register)
            if flight is not None and flight.sums != product.sums:
                yield self._finding("register-in-flight", i, flight.product, register.name)
                break
        for register in product.factors:
            flight = state.flights.get(register)
            if flight is not None and flight.sums:
                yield self._finding("register-in-flight", i, flight.product, register.name)
                break
        for accessed in (_START, *product.sums, *product.factors):
            if accessed in state.accessed:
                name = accessed.name if accessed is not None else ""
                yield self._finding("missing-wgmma-fence", i, state.accessed[accessed], name)
                break
        state.flights.update(dict.fromkeys(product.factors, _Flight(0, i, ())))
        state.flights.update(dict.fromkeys(product.sums, _Flight(0, i, product.sums)))

    def _other(self, i: Instruction, used: Iterable[Register], written: Iterable[Register]) -> Iterator[Finding]:
        """Process an instruction that is not a product: reads of A are harmless."""
        state, changed = self.state, [r for r in written if r in self.held]
        touched = [*changed, *(r for r in used if r in self.sums)]
        for register in touched:
            flight = state.flights.get(register)
            if flight is not None and (flight.sums or register in changed):
                yield self._finding("register-in-flight", i, flight.product, register.name)
        state.accessed.update(dict.fromkeys(touched, i))
