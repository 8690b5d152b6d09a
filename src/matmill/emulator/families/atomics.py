"""Atomic operations: atom, red.

PTX ISA, "Parallel Synchronization and Communication Instructions: atom" and "red". Lanes with one address are served in
lane order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith import exact
from matmill.emulator.arith.atomic import UFUNCS, combine
from matmill.emulator.arith.bfloat16 import bf16_to_f32, f32_to_bf16
from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.addresses import Piece
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.initialised import check_written, note_store, ones
from matmill.emulator.families.addresses import address_of, base_registers, memory_modifiers
from matmill.emulator.frontend.syntax import TYPE_BYTES, Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, instructions, scalars

_PAIR = np.dtype("V16")


@instructions("atom", "red")
def atomic(i: Instruction) -> Action:
    """Bind ``atom`` and ``red`` on shared and global memory; lanes with one address are served in lane order."""
    m, space = memory_modifiers(i)
    if m.flag("b128"):
        return _atomic_of_pairs(i, m, space)
    operation = m.pick((*UFUNCS, "exch", "cas", "inc", "dec"))
    type_name = m.type()
    m.done()
    bf16 = type_name.startswith("bf16")
    kind = KIND_OF_TYPE[type_name].removesuffix("x2")
    if not operation or (kind[0] == "f" and operation in {"and", "or", "xor", "inc", "dec"}):
        raise i.unsupported("its operation")
    element = TYPE_BYTES[type_name]
    has_result = i.name == "atom"
    d = i.operands[:1] if has_result else ()
    target, *values = i.operands[len(d) :]
    if len(values) != (2 if operation == "cas" else 1):
        raise i.unsupported("the number of its operands")
    address = address_of(i, target)
    word = f"u{element}" if type_name.endswith("x2") or bf16 else kind

    def bind(bound: BoundBlock) -> Call:
        access = bound.access(i, address, space, element=element, vector=1, kind="atomic")
        lane_kind = "bf16" if bf16 else kind
        return Atomic(access, operation, np.dtype(word), lane_kind, len(values))

    return Action(
        i, tuple(Value(v, word) for v in values), tuple(Value(o, word) for o in d), bind=bind, tally="memory",
        masks_itself=True, uses=base_registers(address),
    )  # fmt: skip


def _atomic_of_pairs(i: Instruction, m: Modifiers, space: str) -> Action:
    """Bind ``atom.exch.b128`` and atom.cas.b128, with registers of 64 bits in pairs."""
    operation = m.need("exch", "cas")
    m.done()
    d, target, *pairs = i.operands
    address = address_of(i, target)
    values = [o for pair in pairs for o in scalars(pair)]
    if i.name != "atom" or len(pairs) != (2 if operation == "cas" else 1) or len(scalars(d)) != 2:
        raise i.unsupported("its operands")

    def bind(bound: BoundBlock) -> Call:
        access = bound.access(i, address, space, element=16, vector=1, kind="atomic")
        single = Atomic(access, operation, _PAIR, _PAIR.str[1:], len(pairs))

        def call(*rows: Row) -> None:
            lanes = len(rows[-1])
            halves = [np.broadcast_to(row, lanes) for row in rows]
            whole = [np.stack(two, axis=1).view(_PAIR)[:, 0] for two in zip(halves[::2], halves[1::2], strict=True)]
            single(*whole)
            rows[-2][...], rows[-1][...] = whole[-1].view(np.uint64).reshape(-1, 2).T

        return call

    return Action(
        i, tuple(Value(v, "u8") for v in values), tuple(Value(o, "u8") for o in scalars(d)), bind=bind, tally="memory",
        masks_itself=True, uses=base_registers(address),
    )  # fmt: skip


class Atomic:
    """An atomic operation bound to lanes."""

    def __init__(self, access: Access, operation: str, word: np.dtype[Any], lane_kind: str, operands: int) -> None:
        self.access = access
        self.operation = operation
        self.word = word
        self.lane_kind = lane_kind
        self.operands = operands

    def __call__(self, *rows: Row) -> None:
        """Update memory and store the old values in the result row, if there is one."""
        access = self.access
        if not access.locate():
            return
        values, outs = rows[: self.operands], rows[self.operands :]
        count = access.addresses.lanes.count
        values = tuple(np.broadcast_to(v, count) for v in values)
        for piece in access.pieces:
            # An exchange often sets the first value of a lock or flag.
            if self.operation != "exch":
                check_written(access, piece, 1)
            lanes = np.arange(count) if piece.mask is None else np.flatnonzero(piece.mask)
            self._update(piece, lanes, values, outs)

    def _update(self, piece: Piece, lanes: NDArray[np.int64], values: tuple[Row, ...], outs: tuple[Row, ...]) -> None:
        access = self.access
        memory = piece.region.words[access.element].view(self.word)
        index = piece.index[lanes] + (piece.start >> access.shift)
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        access.machine.tally.atomics(access.where, len(lanes), ordered[first].tolist())
        # The rank of each lane among those at its address.
        rank = np.empty(len(lanes), np.int64)
        rank[order] = np.arange(len(lanes)) - np.repeat(first, np.diff(np.r_[first, len(lanes)]))
        changed = False
        # PTX ISA, "atom": .f32 sums in global memory flush subnormals, those in shared memory do not.
        flushing = self.operation == "add" and self.lane_kind == "f4" and piece.region.kind == "global"
        for number in range(int(rank.max()) + 1 if len(lanes) else 0):
            now = rank == number
            at, who = index[now], lanes[now]
            old = memory[at]
            new = self._result(old, values[0][who], values[1][who] if len(values) > 1 else None)
            if flushing:
                new = exact.flush(exact.flush(old) + exact.flush(values[0][who]))
            memory[at] = new
            changed = changed or old.tobytes() != np.asarray(new, old.dtype).tobytes()
            for out in outs:
                out[who] = old
        if changed:
            access.machine.progress += 1
        else:
            access.machine.vain += 1
        note_store(piece.region.allocation, access.instruction)
        for marks in piece.region.marks:
            marks[access.element][index] = ones(access.element)

    def _result(self, old: Row, b: Row, c: Row | None) -> Row:
        if self.lane_kind == "bf16":
            first, second = (bf16_to_f32(np.ascontiguousarray(x).view(np.uint16)) for x in (old, b))
            wide = combine(self.operation, first, second)
            return f32_to_bf16(np.asarray(wide, np.float32)).view(self.word)
        if self.lane_kind != self.word.str[1:]:
            first, second = (np.ascontiguousarray(x).view(self.lane_kind) for x in (old, b))
            return np.asarray(combine(self.operation, first, second)).view(self.word)
        return combine(self.operation, old, b, c)
