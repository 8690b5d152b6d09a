"""How values that nothing has set pass through instructions, and which instructions may not use them.

Copies and arithmetic pass marks on. A result is set again where it does not depend on a marked operand: an ``and`` with
false, the other choice of ``selp``, a shuffle from a lane with a value. Addresses, branches, stores to global memory,
atomics and matrix products must not have marked operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.addresses import Piece
from matmill.emulator.engine.lanes import Lanes, by_warp, shuffle_source
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.engine.state.unset import UNSET, Marks, Slot, UnsetValues, unset_slots
from matmill.emulator.frontend.syntax import Instruction, Negated, PtxOperand, Register, Vector
from matmill.emulator.program.basic_blocks import Terminator
from matmill.emulator.program.table import Action, Value, registers

_USES = {
    "mma": "multiplies or adds",
    "wgmma": "multiplies or adds",
    "atom": "updates memory with",
    "red": "updates memory with",
}
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
        self.unset, self.lanes = unset, bound.lanes
        self.i = i = action.instruction
        layout = bound.machine.program.layout

        def slots(operands: list[PtxOperand]) -> tuple[Slot, ...]:
            plain = [o.register if isinstance(o, Negated) else o for o in operands]
            return unset_slots(layout, registers(plain))

        self.sources = [slots([value.operand]) for value in action.sources]
        self.results = slots(list(action.written))
        self.addresses = slots(list(action.uses)) if i.name != "wgmma" else ()
        self.guard = slots([i.guard]) if i.guard is not None else ()
        self.products = slots(list(action.uses)) if i.name == "wgmma" else ()
        every = (*(s for each in self.sources for s in each), *self.results, *self.addresses, *self.products)
        self.slots = frozenset((*every, *self.guard))
        self.rows = [bound.source(value) for value in action.sources] if self._needs_values() else []
        self.participants = bound.participants()

    def _needs_values(self) -> bool:
        return self.i.name in {"and", "or", "selp", "shfl", "wgmma"}

    def __call__(self) -> None:
        """Pass marks on, and report uses."""
        if self.unset.live.isdisjoint(self.slots):
            return
        active = self.participants().reshape(-1)
        marks = [self._marks(each) for each in self.sources]
        guard = self._marks(self.guard)
        if self.i.name in _USES:
            products = self._products() if self.products else []
            self._use([*marks, *products, guard], active, _USES[self.i.name])
        elif self.i.name in _MEMORY:
            self._use([guard], active, "depends on")
        self._use([self._marks((slot,)) for slot in self.addresses], active, "takes as an address")
        if self.results:
            flows = self.i.name not in _USES and self.i.name not in _COLLECTIVE and self.i.name not in _MEMORY
            result = np.maximum(self._combined(marks), guard) if flows else np.zeros(self.lanes.count, np.uint16)
            columns = self.lanes.columns[active]
            for slot in self.results:
                self.unset.set(slot, columns, result[active])

    def _marks(self, slots: tuple[Slot, ...]) -> Marks:
        """Return the marks of an operand in these lanes."""
        known = self.unset.of(slots[0], self.lanes.columns) if slots else None
        return np.zeros(self.lanes.count, np.uint16) if known is None else known

    def _use(self, marks: list[Marks], active: Mask, did: str) -> None:
        for each in marks:
            self.unset.report(self.lanes, each, active, did, self.i)

    def _products(self) -> list[Marks]:
        """Return the marks of wgmma's registers: those of D do not matter where it starts from zero."""
        adds = np.broadcast_to(self.rows[-1], self.lanes.count)
        sums = set(self.results)
        return [self._marks((slot,)) * (adds if slot in sums else True) for slot in self.products]

    def _combined(self, marks: list[Marks]) -> Marks:
        """Return the marks of results."""
        name, vector = self.i.name, self.i.operands[1] if len(self.i.operands) > 1 else None
        if name == "selp":
            chosen = np.where(self.rows[2], marks[0], marks[1])
            return np.maximum(chosen, marks[2])
        if name == "shfl":
            a, b, c = (by_warp(np.asarray(row), self.lanes.count) for row in self.rows[:3])
            mode = next(m for m in self.i.modifiers if m in {"up", "down", "bfly", "idx"})
            source, _ = shuffle_source(mode, b, c)
            return np.asarray(np.take_along_axis(marks[0].reshape(a.shape), source, axis=1).reshape(-1))
        if name == "mov" and isinstance(vector, Vector):
            return np.asarray(np.minimum.reduce(marks))
        result: Marks = np.maximum.reduce([np.zeros(self.lanes.count, np.uint16), *marks])
        if name in {"and", "or"}:
            for own, row in zip(marks, self.rows, strict=True):
                decides = ~row.astype(np.bool_) if name == "and" else row == _all_ones(row)
                result = np.where((own == 0) & decides, np.uint16(0), result)
        return result


def _all_ones(row: Row) -> object:
    return True if row.dtype == np.bool_ else np.iinfo(row.dtype).max if row.dtype.kind == "u" else row.dtype.type(-1)


class UnsetEnd:
    """The use of a marked predicate or selector at the end of a block, to be called as its last step."""

    def __init__(self, bound: Bound, unset: UnsetValues, end: Terminator, i: Instruction) -> None:
        self.unset, self.lanes, self.i = unset, bound.lanes, i
        operands = [o for o in (end.guard, end.selector) if isinstance(o, Register)]
        self.slots = unset_slots(bound.machine.program.layout, operands)

    def __call__(self) -> None:
        """Report a lane whose way depends on a marked value."""
        for slot in self.slots:
            marks = self.unset.of(slot, self.lanes.columns)
            if marks is not None:
                self.unset.report(self.lanes, marks, self.lanes.active_warps().reshape(-1), "branches on", self.i)


def flow_of(bound: Bound, action: Action) -> UnsetFlow | None:
    """Return the flow of marks through an action, or None if it has no registers."""
    unset = bound.machine.unset
    if unset is None:
        return None
    flow = UnsetFlow(bound, unset, action)
    return flow if flow.slots else None


def mark_loaded(access: Access, results: tuple[Slot | None, ...]) -> None:
    """Mark registers that a load fills with bytes of shared or local memory that have no value."""
    unset = access.machine.unset
    if unset is None:
        return
    for piece in access.pieces:
        if piece.region.written is not None and piece.region.kind in {"shared", "local"}:
            _mark_loaded(access, unset, piece, results)


def _mark_loaded(access: Access, unset: UnsetValues, piece: Piece, results: tuple[Slot | None, ...]) -> None:
    addresses, region = access.addresses, piece.region
    first = piece.start >> access.shift
    for i, slot in enumerate(results):
        if slot is None or region.written is None:
            continue
        at = (first + i + piece.index) << access.shift
        held = np.stack([region.written[1][at + byte] for byte in range(access.element)])
        # Padding of structs is copied with their members: only what has no byte with a value counts.
        least = 0 if region.kind == "local" else UNSET
        lanes = ((held != 1).all(axis=0)) & (held >= least).any(axis=0)
        lanes &= addresses.active_lanes().reshape(-1) if piece.mask is None else piece.mask
        if lanes.any():
            lane = int(np.flatnonzero(lanes)[0])
            address = int(addresses.absolute(access.offset).reshape(-1)[lane]) + i * access.element
            where = access.machine.describe(addresses.space, address)
            origin = unset.loaded(access.instruction, i, region.kind, where)
            unset.set(slot, addresses.lanes.columns[lanes], np.full(int(lanes.sum()), origin, np.uint16))


def store_marks(access: Access, values: tuple[Slot | None, ...]) -> None:
    """Mark shared and local memory that a store has filled with marked values, and report stores to global memory."""
    unset, addresses = access.machine.unset, access.addresses
    if unset is None or unset.live.isdisjoint(values):
        return
    columns = addresses.lanes.columns
    found = [unset.of(slot, columns) if slot is not None else None for slot in values]
    marks = [np.zeros(len(columns), np.uint16) if each is None else each for each in found]
    for piece in access.pieces:
        active = piece.active(addresses).reshape(-1)
        if piece.region.kind in {"shared", "local"} and piece.region.written is not None:
            for i, each in enumerate(marks):
                chosen = piece.index[active & (each != 0)]
                written = piece.region.written[access.element][(piece.start >> access.shift) + i :]
                written[chosen] = np.frombuffer(bytes([UNSET]) * access.element, written.dtype)
            unset.stores += 1
        elif piece.region.kind == "global":
            # A vector may have padding: only what has no element with a value counts.
            unset.report(addresses.lanes, np.minimum.reduce(marks), active, "stores", access.instruction)
