"""How values that nothing has set pass through instructions, and which instructions may not use them.

Copies and arithmetic pass marks on. A result is set again where it does not depend on a marked operand: an ``and`` with
false, the other choice of ``selp``, a shuffle from a lane with a value. Addresses, branches, stores to global memory,
atomics and matrix products must not have marked operands.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.lanes import Lanes, by_warp, shuffle_source
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.engine.state.unset import ALL, UNSET, Marks, Slot, UnsetValues
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Action, Value

_USES = {
    **dict.fromkeys(("mma", "wgmma"), "multiplies or adds"),
    **dict.fromkeys(("atom", "red"), "updates memory with"),
}
# Instructions that move bits: which bits of the result depend on which of the sources is found by flipping these.
_BITWISE = frozenset({"and", "or", "xor", "not", "shl", "shr", "shf", "lop3", "prmt", "bfi", "bfe", "cnot"})
# Others whose operands decide what passes.
_VALUES = frozenset({"selp", "shfl", "wgmma"})
# Instructions that look at values of other lanes, whose result counts as set.
_COLLECTIVE = frozenset({"vote", "match", "redux", "elect", "activemask", "bar", "barrier"})
# Instructions that mark what they load, or examine what they store, themselves.
_MEMORY = frozenset({"ld", "ldu", "st"})


class Bound(Protocol):
    """The bound block that a flow is part of."""

    machine: Machine
    lanes: Lanes

    def source(self, value: Value) -> Row:
        """Return the row of a source operand."""

    def participants(self) -> Callable[[], Mask]:
        """Return a function that returns the lanes that execute the instruction being bound."""


class UnsetFlow:
    """The flow of marks through one bound action, to be called before the action."""

    def __init__(self, bound: Bound, unset: UnsetValues, action: Action) -> None:
        self.unset, self.lanes, self.action = unset, bound.lanes, action
        self.i = i = action.instruction
        self.sources = [unset.slot(value.operand) for value in action.sources]
        self.results = [unset.slot(register) for register in action.written]
        uses = [unset.slot(register) for register in action.uses]
        self.addresses, self.products = ([], uses) if i.name == "wgmma" else (uses, [])
        self.guard = unset.slot(i.guard) if i.guard is not None else None
        every = (*self.sources, *self.results, *uses, self.guard)
        self.slots = frozenset(slot for slot in every if slot is not None)
        kinds = {value.kind[0] for value in (*action.sources, *action.results)}
        bitwise = i.name in _BITWISE or (i.name in {"mov", "cvt"} and "f" not in kinds)
        self.call = action.call if bitwise else None
        self.rows = [bound.source(v) for v in action.sources] if self.call or i.name in _VALUES else []
        self.participants = bound.participants()

    def __call__(self) -> None:
        """Pass marks on, and report uses."""
        if not self.unset.marked(self.slots, self.lanes):
            return
        active, name = self.participants().reshape(-1), self.i.name
        marks = [self._marks(slot) for slot in self.sources]
        guard = self._marks(self.guard)
        if name in _USES:
            self._use([*marks, *self._products(), guard], active, _USES[name])
        elif name in _MEMORY:
            self._use([guard], active, "depends on")
        self._use([self._marks(slot) for slot in self.addresses], active, "takes as an address")
        columns = self.lanes.columns[active]
        if name in _USES or name in _COLLECTIVE or name in _MEMORY:
            for known in self.unset.live.keys() & self.results:
                self.unset.set(known, columns, self.unset.of(None, columns))
        elif self.results:
            for slot, (bits, origins) in zip(self.results, self._passed(marks, guard), strict=True):
                if slot is not None:
                    self.unset.set(slot, columns, (bits[active], origins[active]))

    def _marks(self, slot: Slot | None) -> Marks:
        """Return the marks of an operand in these lanes."""
        return self.unset.of(slot, self.lanes.columns)

    def _use(self, marks: list[Marks], active: Mask, did: str) -> None:
        for each in (each for each in marks if each[0].any()):
            self.unset.report(self.lanes, each, active, did, self.i)

    def _products(self) -> list[Marks]:
        """Return the marks of wgmma's registers: those of D do not matter where it starts from zero."""
        if not self.products:
            return []
        adds, sums = np.asarray(self.rows[-1]), set(self.results)
        live = [slot for slot in self.products if slot in self.unset.live and (slot not in sums or adds.any())]
        each = ((slot, self._marks(slot)) for slot in live)
        return [(bits * adds.astype(np.uint64) if slot in sums else bits, origins) for slot, (bits, origins) in each]

    def _passed(self, marks: list[Marks], guard: Marks) -> list[Marks]:
        """Return the marks of all results."""
        origins = np.maximum.reduce([guard[1], *(each[1] for each in marks)])
        lost = _all(guard[0] != 0)
        if self.call is not None:
            return [(bits | lost, origins) for bits in self._flipped(marks)]
        if self.i.name == "selp":
            first, second, choice = marks
            chosen = np.where(self.rows[2], first[0], second[0])
            return [(_all(choice[0] != 0) | chosen | lost, origins)]
        if self.i.name == "shfl":
            return [(bits | lost, each) for bits, each in self._shuffled(marks[0])]
        unset = np.logical_or.reduce([each[0] != 0 for each in marks])
        return [(_all(unset) | lost, origins)] * len(self.results)

    def _shuffled(self, marks: Marks) -> list[Marks]:
        a, b, c = (by_warp(np.asarray(row), self.lanes.count) for row in self.rows[:3])
        mode = next(m for m in self.i.modifiers if m in {"up", "down", "bfly", "idx"})
        source, _ = shuffle_source(mode, b, c)
        bits, origins = (each.reshape(a.shape) for each in marks)
        read, where = (np.asarray(np.take_along_axis(each, source, axis=1)).reshape(-1) for each in (bits, origins))
        return [(read.astype(np.uint64), where.astype(np.uint16)), self._marks(None)][: len(self.results)]

    def _flipped(self, marks: list[Marks]) -> list[NDArray[np.uint64]]:
        """Return the bits of results that change with bits of sources that nothing has set, one or all at a time."""
        unset = [n for n, (bits, _) in enumerate(marks) if bits.any()]
        before = self._results(self.rows)
        changed = [np.zeros(self.lanes.count, np.uint64) for _ in before]
        for those in (unset, *([n] for n in unset if len(unset) > 1)):
            rows = [_flip(row, marks[n][0]) if n in those else row for n, row in enumerate(self.rows)]
            for bits, one, two in zip(changed, before, self._results(rows), strict=True):
                np.bitwise_or(bits, one ^ two, out=bits)
        return changed

    def _results(self, rows: list[Row]) -> list[NDArray[np.uint64]]:
        """Return the bits of the results of these sources."""
        outs = [np.empty(self.lanes.count, _unsigned(value.kind)) for value in self.action.results]
        if self.call is not None:
            shown = zip(outs, self.action.results, strict=True)
            self.call(*rows, *(o.view(v.kind.removesuffix("x2")) if v.kind != "p" else o for o, v in shown))
        return [out.astype(np.uint64) for out in outs]


def _all(lanes: Mask) -> NDArray[np.uint64]:
    """Return all bits of some lanes."""
    return np.where(lanes, ALL, np.uint64(0))


def _unsigned(kind: str) -> str:
    """Return the type of all bits that a lane has in a row of ``kind``."""
    return "?" if kind == "p" else f"u{int(kind[1]) * (2 if kind.endswith('x2') else 1)}"


def _flip(row: Row, bits: NDArray[np.uint64]) -> Row:
    """Return a row with some bits of each lane flipped."""
    if row.dtype == np.bool_:
        return np.asarray(row ^ (bits != 0))
    width = row.nbytes // len(bits)
    whole = np.ascontiguousarray(row).view(f"u{width}")
    return np.asarray(whole ^ bits.astype(whole.dtype)).view(row.dtype)


class UnsetEnd:
    """The use of a marked predicate or selector at the end of a block, to be called as its last step."""

    def __init__(self, bound: Bound, unset: UnsetValues, end: Terminator, i: Instruction) -> None:
        self.unset, self.lanes, self.i = unset, bound.lanes, i
        self.slots = [unset.slot(operand) for operand in (end.guard, end.selector) if operand is not None]

    def __call__(self) -> None:
        """Report a lane whose way depends on a marked value."""
        for slot in self.unset.live.keys() & set(self.slots):
            marks = self.unset.of(slot, self.lanes.columns)
            self.unset.report(self.lanes, marks, self.lanes.active_warps().reshape(-1), "branches on", self.i)


def flow_of(bound: Bound, action: Action) -> UnsetFlow | None:
    """Return the flow of marks through an action, or None if it has no registers that may have any."""
    unset, reached = bound.machine.unset, bound.machine.program.reached
    if unset is None or (reached is not None and reached.isdisjoint((*action.read, *action.written))):
        return None
    flow = UnsetFlow(bound, unset, action)
    return flow if flow.slots else None


def mark_loaded(access: Access, results: tuple[Slot | None, ...]) -> None:
    """Mark registers that a load fills with bytes of shared or local memory that have no value."""
    unset, addresses = access.machine.unset, access.addresses
    for piece, (i, slot) in product(access.pieces, enumerate(results)):
        region = piece.region
        if unset is None or slot is None or region.written is None or region.kind not in {"shared", "local"}:
            continue
        at = ((piece.start >> access.shift) + i + piece.index) << access.shift
        # Local memory has a value where a store has put one; what shared memory lacks is reported at once.
        least = 0 if region.kind == "local" else UNSET
        bits = np.zeros(len(at), np.uint64)
        for byte in range(access.element):
            held = region.written[1][at + byte]
            bits |= np.where((held != 1) & (held >= least), np.uint64(0xFF << 8 * byte), np.uint64(0))
        lanes = bits != 0
        lanes &= addresses.active_lanes().reshape(-1) if piece.mask is None else piece.mask
        if lanes.any():
            lane = int(np.flatnonzero(lanes)[0])
            address = int(addresses.absolute(access.offset).reshape(-1)[lane]) + i * access.element
            where = access.machine.describe(addresses.space, address)
            load = access.instruction
            origin = unset.origin((load, i), f"uninitialised-{region.kind}", f"{where}, read at {load.location}")
            columns = addresses.lanes.columns[lanes]
            unset.set(slot, columns, (bits[lanes], np.full(len(columns), origin, np.uint16)))


def store_marks(access: Access, values: tuple[Slot | None, ...]) -> None:
    """Mark shared and local memory that a store has filled with marked values, and report stores to global memory."""
    unset, addresses = access.machine.unset, access.addresses
    if unset is None or not unset.marked([v for v in values if v is not None], addresses.lanes):
        return
    whole = np.uint64(2 ** (8 * access.element) - 1)
    # Padding is copied with its neighbours: only what has no bit with a value counts.
    marks = [unset.of(slot, addresses.lanes.columns) for slot in values]
    lost = [(bits & whole) == whole for bits, _ in marks]
    for piece in access.pieces:
        active = piece.active(addresses).reshape(-1)
        if piece.region.kind in {"shared", "local"} and piece.region.written is not None:
            first = piece.start >> access.shift
            for i, (bits, _) in enumerate(marks):
                for byte in range(access.element):
                    gone = active & ((bits >> np.uint64(8 * byte)) & np.uint64(0xFF) == np.uint64(0xFF))
                    piece.region.written[1][((first + i + piece.index[gone]) << access.shift) + byte] = UNSET
            unset.stores += 1
        elif piece.region.kind == "global":
            everything = np.logical_and.reduce(lost)
            unset.report(addresses.lanes, marks[0], active & everything, "stores", access.instruction)
