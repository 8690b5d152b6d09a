"""Loads, stores and atomics: ld, st, ldu, atom, red, prefetch and other hints.

PTX ISA, "Data Movement and Conversion Instructions" and "Parallel Synchronization: atom, red". Cache and ordering
hints do not change what one lane sees here, since every access is performed at once and in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith import exact
from matmill.emulator.engine.access import Access, Piece
from matmill.emulator.families.floats import bf16_to_f32, f32_to_bf16
from matmill.emulator.frontend.syntax import TYPE_BYTES, Address, Instruction, Operand, Register, Symbol
from matmill.emulator.program.table import (
    KIND_OF_TYPE,
    Action,
    Call,
    Modifiers,
    Value,
    instructions,
    register_kind,
    registers,
    scalars,
)

if TYPE_CHECKING:
    from matmill.emulator.engine.site import Site

Row: TypeAlias = "NDArray[Any]"
SPACES = ("global", "shared", "local", "param", "const", "shared::cta", "param::entry", "param::func")
HINTS = (
    "weak", "relaxed", "acquire", "release", "acq_rel", "volatile", "mmio", "cta", "gpu", "sys", "cluster", "nc",
    "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "noftz",
)  # fmt: skip


def memory_modifiers(i: Instruction) -> tuple[Modifiers, str]:
    """The modifiers without hints, and the state space ("generic" where none is named)."""
    hints = [m for m in i.modifiers if m.startswith(("L1::", "L2::", "level::"))]
    m = Modifiers(i, *HINTS, *hints)
    if "L2::cache_hint" in hints:
        raise i.unsupported("a cache policy operand")
    return m, m.pick(SPACES, "generic").split("::", maxsplit=1)[0]


def address_of(i: Instruction, operand: Operand) -> Address:
    """The operand as an address."""
    if not isinstance(operand, Address) or operand.extra:
        raise i.unsupported("its address")
    if isinstance(operand.base, Register) and TYPE_BYTES[operand.base.type] not in {4, 8}:
        raise i.unsupported("an address of neither 32 nor 64 bits")
    return operand


def base_registers(*addresses: Address) -> tuple[Register, ...]:
    """The registers that addresses are made of."""
    return tuple(registers(a.base for a in addresses))


@instructions("ld", "ldu")
def load(i: Instruction) -> Action:
    """``ld`` of 1, 2 or 4 elements from any space."""
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
        i,
        (),
        results,
        bind=lambda site: _bind_load(site, i, address, space, kind=kind, vector=len(outs)),
        tally="memory",
        uses=base_registers(address),
    )


def _bind_load(site: Site, i: Instruction, address: Address, space: str, *, kind: str, vector: int) -> Call:
    element = int(kind[1])
    if space == "param" and isinstance(address.base, Symbol) and not site.is_local(address.base.variable):
        values = [np.asarray(v) for v in site.parameter(i, address, np.dtype(kind), vector)]

        def constant(*outs: Row) -> None:
            for out, value in zip(outs, values, strict=True):
                out[...] = value

        return constant
    return Load(site.access(i, address, space, element=element, vector=vector, kind="read"), kind, vector)


class Load:
    """A load bound to a site."""

    def __init__(self, access: Access, kind: str, vector: int) -> None:
        self.access = access
        self.kind = kind
        self.vector = vector
        self.word = np.dtype(f"u{access.element}")
        self.whole = access.width if vector > 1 and access.width <= 16 else 0
        lanes = access.addresses.lanes.count
        dtype = {16: "c16"}.get(self.whole, f"u{self.whole}")
        self.buffer = access.machine.buffers.take(f"load {dtype}", dtype, lanes) if self.whole else np.empty(0)
        self.parts = self.buffer.view(self.word).reshape(lanes, -1) if self.whole else self.buffer
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
                # Until something is stored there, every execution must look again.
                self.epoch = access.epoch = -1
        if len(access.pieces) > 1:
            return
        piece = access.pieces[0]
        if self.whole:
            # One element per vector: its alignment was checked, and all bases are multiples of 16.
            shift = self.whole.bit_length() - 1
            index = access.addresses.index(piece.region.kind, shift)
            self.plan = [(piece.region.words[self.whole][piece.start >> shift :], index)]
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


def check_written(access: Access, piece: Piece, vector: int) -> bool:
    """Report shared bytes that nothing was stored to, and return False; what was found initialised stays so."""
    key = ("written", access.addresses.low + access.offset, access.width)
    if key in access.addresses.memo or piece.region.written is None:
        return True
    full = ones(access.element)
    first = piece.start >> access.shift
    good = np.ones(len(piece.index), np.bool_)
    for i in range(vector):
        good &= piece.region.written[access.element][first + i + piece.index] == full
    if piece.mask is not None:
        good |= ~piece.mask
    if good.all():
        access.addresses.memo[key] = True
        return True
    lane = int(np.flatnonzero(~good)[0])
    machine, lanes = access.machine, access.addresses.lanes
    address = int(access.addresses.absolute(access.offset).reshape(-1)[lane])
    place = machine.describe(access.addresses.space, address)
    message = (
        f"{machine.launch.kernel}: {lanes.thread_name(lane)} reads {access.width} bytes at {place} that nothing "
        f"was stored to, in {access.instruction.text!r}"
    )
    machine.hazards.add("uninitialised-shared", access.where, message, access.instruction)
    return False


@instructions("st")
def store(i: Instruction) -> Action:
    """``st`` of 1, 2 or 4 elements to any space."""
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

    def bind(site: Site) -> Call:
        return Store(site.access(i, address, space, element=element, vector=len(values), kind="write"))

    kind = KIND_OF_TYPE[type_name] if "f" in type_name and element > 2 else f"u{element}"
    return Action(
        i,
        tuple(Value(v, kind) for v in values),
        (),
        bind=bind,
        tally="memory",
        masks_itself=True,
        uses=base_registers(address),
    )


class Store:
    """A store bound to a site."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.word = np.dtype(f"u{access.element}")

    def __call__(self, *values: Row) -> None:
        """Store the rows; of lanes that meet at one address the last one wins, where a GPU promises no order."""
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


def ones(element: int) -> Row:
    """An element of the size given whose bytes are all 1: shared memory that was stored to."""
    return np.frombuffer(b"\x01" * element, {16: "c16"}.get(element, f"u{element}"))


def mark_written(access: Access, piece: Piece, index: NDArray[np.int64], vector: int) -> None:
    """Remember that shared bytes hold something; done once while the addresses stay as they are."""
    if piece.region.written is None:
        return
    key = ("marked", access.addresses.low + access.offset, access.width)
    if len(access.pieces) == 1 and key in access.addresses.memo:
        return
    access.addresses.memo[key] = True
    written = piece.region.written[access.element]
    for i in range(vector):
        written[(piece.start >> access.shift) + i :][index] = ones(access.element)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _combine(operation: str, old: Row, b: Row, c: Row | None = None) -> Row:
    """What memory holds after one atomic operation on ``old``."""
    if operation in _UFUNCS:
        return np.asarray(_UFUNCS[operation](old, b))
    if operation == "exch":
        return b
    if operation == "cas" and c is not None:
        return np.asarray(np.where(old == b, c, old))
    one, zero = old.dtype.type(1), old.dtype.type(0)
    if operation == "inc":
        return np.asarray(np.where(old >= b, zero, old + one))
    return np.asarray(np.where((old == 0) | (old > b), b, old - one))


@instructions("atom", "red")
def atomic(i: Instruction) -> Action:
    """``atom`` and red on shared and global memory; lanes that meet at one address take turns in lane order."""
    m, space = memory_modifiers(i)
    operation = m.pick((*_UFUNCS, "exch", "cas", "inc", "dec"))
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

    def bind(site: Site) -> Call:
        access = site.access(i, address, space, element=element, vector=1, kind="atomic")
        lane_kind = "bf16" if bf16 else kind
        return Atomic(access, operation, np.dtype(word), lane_kind, len(values))

    return Action(
        i,
        tuple(Value(v, word) for v in values),
        tuple(Value(o, word) for o in d),
        bind=bind,
        tally="memory",
        masks_itself=True,
        uses=base_registers(address),
    )


class Atomic:
    """An atomic operation bound to a site."""

    def __init__(self, access: Access, operation: str, word: np.dtype[Any], lane_kind: str, operands: int) -> None:
        self.access = access
        self.operation = operation
        self.word = word
        self.lane_kind = lane_kind
        self.operands = operands

    def __call__(self, *rows: Row) -> None:
        """Update memory and put the old values into the result row, if there is one."""
        access = self.access
        if not access.locate():
            return
        values, outs = rows[: self.operands], rows[self.operands :]
        count = access.addresses.lanes.count
        values = tuple(np.broadcast_to(v, count) for v in values)
        for piece in access.pieces:
            lanes = np.arange(count) if piece.mask is None else np.flatnonzero(piece.mask)
            self._update(piece, lanes, values, outs)

    def _update(self, piece: Piece, lanes: NDArray[np.int64], values: tuple[Row, ...], outs: tuple[Row, ...]) -> None:
        access = self.access
        memory = piece.region.words[access.element].view(self.word)
        index = piece.index[lanes] + (piece.start >> access.shift)
        access.machine.tally.atomics(access.where, len(lanes))
        order = np.argsort(index, kind="stable")
        ordered = index[order]
        first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        # The turn of each lane among those at its address.
        turn = np.empty(len(lanes), np.int64)
        turn[order] = np.arange(len(lanes)) - np.repeat(first, np.diff(np.r_[first, len(lanes)]))
        changed = False
        # PTX ISA, "atom": sums of .f32 in global memory flush subnormals, those in shared memory do not.
        flushing = self.operation == "add" and self.lane_kind == "f4" and piece.region.kind == "global"
        for number in range(int(turn.max()) + 1 if len(lanes) else 0):
            now = turn == number
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
        if piece.region.written is not None:
            piece.region.written[access.element][index] = ones(access.element)

    def _result(self, old: Row, b: Row, c: Row | None) -> Row:
        if self.lane_kind == "bf16":
            first, second = (bf16_to_f32(np.ascontiguousarray(x).view(np.uint16)) for x in (old, b))
            wide = _combine(self.operation, first, second)
            return f32_to_bf16(np.asarray(wide, np.float32)).view(self.word)
        if self.lane_kind != self.word.str[1:]:
            first, second = (np.ascontiguousarray(x).view(self.lane_kind) for x in (old, b))
            return np.asarray(_combine(self.operation, first, second)).view(self.word)
        return _combine(self.operation, old, b, c)


@instructions("prefetch", "prefetchu", "discard", "applypriority", "createpolicy")
def hint(i: Instruction) -> Action:
    """Cache hints: nothing to do."""
    if i.name == "createpolicy":
        raise i.unsupported("a cache policy")
    return Action(i, call=_nothing, tally="memory")


def _nothing() -> None:
    """What a cache hint does here."""
