"""Loads and stores: ld, st, ldu, prefetch and other hints.

PTX ISA, "Data Movement and Conversion Instructions". Cache and ordering hints do not change a lane's values, since
every access takes effect at once and in order.
"""

from __future__ import annotations

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.initialised import check_constant, check_written, mark_written
from matmill.emulator.engine.bind.unset_flow import mark_loaded, store_marks
from matmill.emulator.engine.state.unset import Slot
from matmill.emulator.families.addresses import address_of, base_registers, memory_modifiers
from matmill.emulator.frontend.syntax import TYPE_BYTES, Address, Instruction, PtxOperand
from matmill.emulator.program.table import (
    KIND_OF_TYPE,
    Action,
    Call,
    Value,
    instructions,
    register_kind,
    scalars,
)


@instructions("ld", "ldu")
def load(i: Instruction) -> Action:
    """Bind ``ld`` of 1, 2 or 4 elements from any space."""
    m, space = memory_modifiers(i)
    vector = m.pick(("v2", "v4", "v8"))
    type_name = m.type()
    m.done()
    d, source = i.operands
    address = address_of(i, source)
    outs = scalars(d)
    if len(outs) != int(vector[1:] or 1) or TYPE_BYTES[type_name] not in {1, 2, 4, 8}:
        raise i.unsupported("its vector")
    kind = KIND_OF_TYPE[type_name]
    kind = kind if kind[0] == "i" else "u" + kind[1]
    results = tuple(Value(o, register_kind(o, kind)) for o in outs)
    return Action(
        i, (), results, bind=lambda bound: _bind_load(bound, i, address, space, kind=kind, outs=outs), tally="memory",
        uses=base_registers(address),
    )  # fmt: skip


def _bind_load(
    bound: BoundBlock, i: Instruction, address: Address, space: str, *, kind: str, outs: tuple[PtxOperand, ...]
) -> Call:
    element, vector = int(kind[1]), len(outs)
    values = bound.parameter(i, address, np.dtype(kind), vector) if space == "param" else None
    if values is not None:

        def constant(*outs: Row) -> None:
            for out, value in zip(outs, values, strict=True):
                out[...] = value

        return constant
    access = bound.access(i, address, space, element=element, vector=vector, kind="read")
    return Load(access, kind, vector, bound.unset_slots(outs))


class Load:
    """A bound load."""

    def __init__(self, access: Access, kind: str, vector: int, results: tuple[Slot | None, ...]) -> None:
        self.access = access
        self.results = results
        self.kind = kind
        self.vector = vector
        self.word = np.dtype(f"u{access.element}")
        self.whole = access.width if vector > 1 and access.width <= 16 else 0
        lanes = access.addresses.lanes.count
        dtype = {16: "c16"}.get(self.whole, f"u{self.whole}")
        self.buffer = access.machine.buffers.take(f"load {dtype}", dtype, lanes) if self.whole else np.empty(0)
        self.parts = self.buffer.view(self.word).reshape(lanes, -1) if self.whole else self.buffer
        self.constant = "nc" in access.instruction.modifiers
        self.epoch = -1
        self.plan: list[tuple[Row, Row]] = []

    def __call__(self, *outs: Row) -> None:
        """Load into the rows of the registers."""
        access = self.access
        if not access.locate():
            return
        if access.epoch != self.epoch:
            self._prepare()
            self.epoch = access.epoch
        if self.constant:
            check_constant(access, self.vector)
        if self.results and access.epoch == -1:
            mark_loaded(access, self.results)
        if len(access.pieces) > 1:
            self._load_pieces(outs)
        elif self.whole:
            view, index = self.plan[0]
            view.take(index, out=self.buffer, mode="clip")
            for i, out in enumerate(outs):
                out[...] = (
                    self.parts[:, i].view(self.kind) if out.dtype.itemsize != access.element else self.parts[:, i]
                )
        else:
            for (view, index), out in zip(self.plan, outs, strict=True):
                if out.dtype.itemsize == access.element:
                    view.take(index, out=out.view(self.word), mode="clip")
                else:
                    out[...] = view.take(index).view(self.kind)

    def _prepare(self) -> None:
        access = self.access
        for piece in access.pieces:
            if not check_written(access, piece, self.vector):
                # Every execution checks again until something is stored there.
                self.epoch = access.epoch = -1
        if len(access.pieces) > 1:
            return
        piece = access.pieces[0]
        if self.whole:
            # One element per vector: its alignment was checked, and all bases are multiples of 16.
            shift = self.whole.bit_length() - 1
            self.plan = [
                (piece.region.words[self.whole][piece.start >> shift :], piece.index >> (shift - access.shift))
            ]
        else:
            words = piece.region.words[access.element]
            first = piece.start >> access.shift
            self.plan = [(words[first + i :], piece.index) for i in range(self.vector)]

    def _load_pieces(self, outs: tuple[Row, ...]) -> None:
        for piece in self.access.pieces:
            words = piece.region.words[self.access.element]
            first = piece.start >> self.access.shift
            for i, out in enumerate(outs):
                np.copyto(out, words[first + i + piece.index].view(self.kind), where=piece.mask, casting="unsafe")


@instructions("st")
def store(i: Instruction) -> Action:
    """Bind ``st`` of 1, 2 or 4 elements to any space."""
    m, space = memory_modifiers(i)
    vector = m.pick(("v2", "v4", "v8"))
    type_name = m.type()
    m.done()
    target, source = i.operands
    address = address_of(i, target)
    values = scalars(source)
    element = TYPE_BYTES[type_name]
    if len(values) != int(vector[1:] or 1) or element not in {1, 2, 4, 8}:
        raise i.unsupported("its vector")

    def bind(bound: BoundBlock) -> Call:
        access = bound.access(i, address, space, element=element, vector=len(values), kind="write")
        return Store(access, bound.unset_slots(values))

    kind = KIND_OF_TYPE[type_name] if "f" in type_name and element > 2 else f"u{element}"
    return Action(
        i, tuple(Value(v, kind) for v in values), (), bind=bind, tally="memory", masks_itself=True,
        uses=base_registers(address),
    )  # fmt: skip


class Store:
    """A bound store."""

    def __init__(self, access: Access, values: tuple[Slot | None, ...]) -> None:
        self.access = access
        self.values = values
        self.word = np.dtype(f"u{access.element}")

    def __call__(self, *values: Row) -> None:
        """Store the rows. Of lanes with one address the last one wins; a GPU promises no order."""
        access = self.access
        if not access.locate(values):
            return
        access.machine.progress += 1
        for piece in access.pieces:
            words = piece.region.words[access.element]
            first = piece.start >> access.shift
            index = piece.index if piece.mask is None else piece.index[piece.mask]
            for i, value in enumerate(values):
                row = value.view(self.word)
                if piece.mask is not None and row.ndim:
                    row = row[piece.mask]
                words[first + i :][index] = row
            mark_written(access, piece, index, len(values))
        if self.values:
            store_marks(access, self.values)


@instructions("prefetch", "prefetchu", "discard", "applypriority", "pmevent")
def hint(i: Instruction) -> Action:
    """Bind cache hints and profiler events, which do nothing."""
    return Action(i, call=_nothing, tally="memory")


@instructions("createpolicy")
def policy(i: Instruction) -> Action:
    """Bind createpolicy, on whose result nothing depends."""
    return Action(i, (), (Value(i.operands[0], "u8"),), call=_no_policy, tally="other")


def _no_policy(out: Row) -> None:
    """Return any value, as createpolicy may."""
    out[...] = 0


def _nothing() -> None:
    """Do nothing: a hint has no effect here."""
