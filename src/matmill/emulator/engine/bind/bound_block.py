"""Binding: the actions of a basic block become calls on the rows of some lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from matmill.emulator.arith.fma_batch import BatchRows, FusedBatch
from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.engine.bind.access import Access
from matmill.emulator.engine.bind.addresses import Addresses
from matmill.emulator.engine.bind.unset_flow import UnsetEnd, flow_of
from matmill.emulator.engine.lanes import Lanes
from matmill.emulator.engine.state.machine import Machine
from matmill.emulator.engine.state.unset import Slot
from matmill.emulator.frontend.literals import bits_of
from matmill.emulator.frontend.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Negated,
    PtxOperand,
    Register,
    Special,
    Symbol,
)
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.basic_blocks import Block
from matmill.emulator.program.fma_batches import Batch
from matmill.emulator.program.register_rows import file_of
from matmill.emulator.program.table import Action, Call, Value
from matmill.emulator.report.hazards import fault

Step: TypeAlias = "tuple[Call, tuple[Any, ...]]"


class Refreshable(Protocol):
    """A value that instructions derive from registers."""

    def refresh(self) -> object:
        """Read the registers."""


Prepared = TypeVar("Prepared", bound=Refreshable)


def copy_where(out: Row, value: Row, guard: Row) -> None:
    """Copy results where a guard holds."""
    np.copyto(out, value, where=guard)


@lru_cache(maxsize=1 << 12)
def _number(bits: int, kind: str) -> Row:
    """Return the low ``bits`` as a scalar, which serves as a row of equal lanes."""
    size = int(kind[1])
    return np.frombuffer((bits & ((1 << 8 * size) - 1)).to_bytes(size, "little"), kind)[0]  # type: ignore[no-any-return] # a scalar


class BoundBlock:
    """One block of a program bound to lanes whose rows are ``files``: a list of steps to run in order."""

    def __init__(self, machine: Machine, block: Block, lanes: Lanes, files: dict[str, Row]) -> None:
        self.machine = machine
        self.lanes = lanes
        self.files = files
        self.steps: list[Step] = []
        self.guard: Row | None = None
        self.negated = False
        self._addresses: dict[tuple[object, ...], Addresses] = {}
        self._fresh: set[tuple[object, ...]] = set()
        self._prepared: dict[tuple[object, ...], tuple[int, Any]] = {}
        # Registers in the keys of `_addresses` and `_prepared`.
        self._keyed: set[object] = set()
        self._bind(block)

    def _bind(self, block: Block) -> None:
        batches = {b.first: b for b in self.machine.program.batches.get(block.number, ())}
        index = 0
        while index < len(block.actions):
            batch = batches.get(index)
            if batch is not None:
                for action in batch.actions:
                    self._follow(action)
                self._batch(batch)
                for action in batch.actions:
                    self._forget(action)
                index += len(batch.actions)
            else:
                self._action(block.actions[index])
                index += 1
        end, unset = block.end, self.machine.unset
        if unset is not None and end.instruction is not None and (end.guard is not None or end.selector is not None):
            self.steps.append((UnsetEnd(self, unset, end, end.instruction), ()))

    def _action(self, action: Action) -> None:
        guard = action.instruction.guard
        self.guard = self._register(guard, "p") if guard is not None else None
        self.negated = action.instruction.negated
        self._follow(action)
        if action.call is not None:
            call = action.call
        elif action.bind is not None:
            call = action.bind(self)
        else:
            return
        sources = [self.source(v) for v in action.sources]
        results = [self.result(v) for v in action.results]
        if self.guard is None:
            self.steps.append((call, (*sources, *results)))
        else:
            self._guarded(action, call, sources, results)
        self._forget(action)

    def _follow(self, action: Action) -> None:
        """Let marks of values that nothing has set pass through an action, if the program may have any."""
        flow = flow_of(self, action)
        if flow is not None:
            self.steps.append((flow, ()))

    def unset_slots(self, operands: Sequence[PtxOperand]) -> tuple[Slot | None, ...]:
        """Return the rows of operands, None for other than registers; nothing if the program sets all its values."""
        unset = self.machine.unset
        return () if unset is None else tuple(map(unset.slot, operands))

    def _guarded(self, action: Action, call: Call, sources: list[Row], results: list[Row]) -> None:
        guard = self._guard_row()
        if action.masks_itself and not results:
            self.steps.append((call, tuple(sources)))
        else:
            drafts = [np.empty(len(r), r.dtype) for r in results]
            self.steps.append((call, (*sources, *drafts)))
            for result, draft in zip(results, drafts, strict=True):
                if len(result) != self.lanes.count:
                    result, draft = result.view(np.uint32), draft.view(np.uint32)  # noqa: PLW2901 - the same bits, per lane
                self.steps.append((copy_where, (result, draft, guard)))
        self.steps.append((self.machine.tally.guarded, (action.tally, action.flops, guard, self.lanes)))

    def _guard_row(self) -> Row:
        """Return the guard as a row that is true where the instruction executes."""
        if self.guard is None or not self.negated:
            return self.guard if self.guard is not None else np.ones(self.lanes.count, np.bool_)
        inverted = np.empty(self.lanes.count, np.bool_)
        self.steps.append((np.logical_not, (self.guard, inverted)))
        return inverted

    def _forget(self, action: Action) -> None:
        """Drop the cached values that depend on a register that was written."""
        for value in action.results:
            # Few registers are in any key.
            if value.operand in self._keyed:
                self._keyed.discard(value.operand)
                self._fresh = {key for key in self._fresh if value.operand not in key}
                self._prepared = {key: held for key, held in self._prepared.items() if value.operand not in key}

    def _batch(self, batch: Batch) -> None:
        rows = self.machine.program.layout.rows

        def numbers(operands: Sequence[PtxOperand]) -> list[int]:
            return [rows[o] for o in operands if isinstance(o, Register)]

        rows_of = BatchRows(
            left=numbers(batch.left),
            right=numbers(batch.right),
            addends=numbers(batch.addends),
            sums=numbers(batch.sums),
            outer=(numbers(batch.outer[0]), numbers(batch.outer[1])) if batch.outer is not None else None,
        )
        file = self.files["32"].view(np.float32)
        call = FusedBatch(file, rows_of, self.machine.buffers, self.machine.underflow)
        self.steps.append((call, ()))

    # Operands

    def _register(self, register: Register, kind: str) -> Row:
        row = self.lanes.rows.get((register, kind))
        if row is None:
            row = self.lanes.rows[register, kind] = self._row_of(register, kind)
        return row

    def _row_of(self, register: Register, kind: str) -> Row:
        file = file_of(register)
        row: Row = self.files[file][self.machine.program.layout.rows[register]]
        if kind == "p" or file == "p":
            return row
        packed = kind.endswith("x2")
        row = row.view(kind.removesuffix("x2"))
        # The low part of a register that is wider than the operand's type (memory is little-endian).
        width, own = int(kind[1]) * (2 if packed else 1), {"16": 2, "32": 4, "64": 8}[file]
        return row if width >= own or packed else row[:: own // width]

    def source(self, value: Value) -> Row:
        """Return the row (or scalar) of a source operand."""
        operand, kind = value.operand, value.kind
        if isinstance(operand, Register):
            return self._register(operand, kind)
        if isinstance(operand, Negated):
            inverted = np.empty(self.lanes.count, np.bool_)
            self.steps.append((np.logical_not, (self._register(operand.register, "p"), inverted)))
            return inverted
        if isinstance(operand, Special):
            row: Row = self.files["32"][self.machine.program.layout.specials[operand.name]]
            if kind == "p":
                # The rows of predicates, which are 0 or 1.
                return row.view(np.bool_)[::4]
            return row.view(kind)[:: 4 // int(kind[1])]
        return self._scalar(operand, kind)

    def _scalar(self, operand: PtxOperand, kind: str) -> Row:
        if isinstance(operand, Symbol):
            bits = self.machine.address_of(operand.variable) + operand.offset
        elif isinstance(operand, Immediate):
            bits = bits_of(operand, kind)
        else:
            bits = 0
        if kind == "p":
            return np.bool_(bits != 0)  # type: ignore[return-value] # a scalar serves as a row of equal lanes
        if kind.endswith("x2"):
            return np.full(self.lanes.count, bits & 0xFFFFFFFF, np.uint32).view(kind.removesuffix("x2"))
        return _number(bits, kind)

    def result(self, value: Value) -> Row:
        """Return the row of a result operand, or a scratch row for the sink ``_``."""
        if isinstance(value.operand, Register):
            return self._register(value.operand, value.kind)
        kind = "?" if value.kind == "p" else value.kind.removesuffix("x2")
        return np.empty(self.lanes.count * (2 if value.kind.endswith("x2") else 1), kind)

    # Functions for instruction families

    def participants(self) -> Callable[[], Mask]:
        """Return a function of no argument that returns the lanes (bool[warps, 32]) that execute the instruction."""
        lanes, guard, negated = self.lanes, self.guard, self.negated
        if guard is None:
            return lanes.active_warps
        return lambda: lanes.active_warps() & (guard != negated).reshape(-1, LANES)

    def parameter(self, i: Instruction, address: Address, dtype: np.dtype[Any], count: int) -> Row | None:
        """Return elements of a kernel parameter at a fixed offset (dtype[count]), or None for another address.

        Raises ``KernelFault`` outside the parameter and at offsets that are not multiples of the width.
        """
        base, machine = address.base, self.machine
        if not isinstance(base, Symbol) or base.variable not in machine.program.parameters:
            return None
        variable, offset, width = base.variable, base.offset + address.offset, dtype.itemsize * count
        start = machine.program.parameters[variable] + offset
        outside = not 0 <= offset <= variable.size - width
        if outside or start % width:
            where = f"{variable.name} + {offset} B of {variable.size}"
            message = f"{machine.launch.kernel}: {i.text!r} reads {width} bytes at {where}"
            raise fault("out-of-bounds" if outside else "misaligned", message, i)
        return machine.parameters[start : start + width].view(dtype)

    def address_row(self, address: Address) -> tuple[Row, int]:
        """Return the row (or scalar) of an address's base and the offset to add."""
        base = address.base
        if isinstance(base, Register):
            return self._register(base, f"u{TYPE_BYTES[base.type]}"), address.offset
        return self._scalar(base, "u8"), address.offset

    def access(self, i: Instruction, address: Address, space: str, *, element: int, vector: int, kind: str) -> Access:
        """Return a memory access of the instruction being bound."""
        addresses = self.addresses(i, address, space)
        return Access(self.machine, addresses, i, offset=address.offset, element=element, vector=vector, kind=kind)

    def addresses(self, i: Instruction, address: Address, space: str, *, first: int = LANES) -> Addresses:
        """Return the addresses that the instruction being bound takes from the ``first`` lanes of each warp."""
        symbol = address.base if isinstance(address.base, Symbol) else None
        if symbol is not None and space == "param" and symbol.variable not in self.machine.program.parameters:
            # An argument of an inlined call.
            space = "local"
        base = address.base if isinstance(address.base, Register) else repr(address.base)
        key = (base, i.guard, i.negated, space, first)
        if key not in self._addresses:
            row, _ = self.address_row(address)
            if not row.ndim:
                row = np.full(self.lanes.count, row)
            among = None if first == LANES else np.arange(self.lanes.count) % LANES < first
            self._addresses[key] = Addresses(
                self.lanes, row, self.guard, negated=self.negated, space=space, among=among
            )
        addresses = self._addresses[key]
        if key not in self._fresh:
            self._fresh.add(key)
            self._keyed.update(key)
            self.steps.append((addresses.refresh, ()))
        return addresses

    def prepared(self, key: tuple[object, ...], slots: int, make: Callable[[int], Prepared]) -> Prepared:
        """Return a value that several instructions derive from the same registers, current when the instruction runs.

        ``key`` is a kind and all operands. At most ``slots`` values of a kind exist at once; ``make`` takes the number
        of a free slot, and its value is refreshed before the first instruction that uses it.
        """
        if key not in self._prepared:
            kin = {k: slot for k, (slot, _) in self._prepared.items() if k[0] == key[0]}
            if len(kin) == slots:
                del self._prepared[oldest := next(iter(kin))]
                del kin[oldest]
            slot = min(set(range(slots)).difference(kin.values()))
            value = make(slot)
            self._prepared[key] = slot, value
            self._keyed.update(key)
            self.steps.append((value.refresh, ()))
        _, held = self._prepared[key]
        return held  # type: ignore[no-any-return] # the type of ``make``'s result for this kind

    def whole_warps(self, i: Instruction) -> Call | None:
        """Return a call that raises if only some lanes of a warp execute ``i``, or None if that is impossible."""
        if self.guard is None and self.lanes.active is None:
            return None
        lanes, machine, participants = self.lanes, self.machine, self.participants()

        def call() -> None:
            active = participants()
            broken = active.any(axis=1) & ~active.all(axis=1)
            if not broken.any():
                return
            warp = int(np.flatnonzero(broken)[0])
            missing = warp * LANES + int(np.flatnonzero(~active[warp])[0])
            exists = lanes.geometry.exists[lanes.columns[missing]]
            message = (
                f"{machine.launch.kernel}: {int(active[warp].sum())} of the 32 threads of a warp execute {i.text!r}, "
                f"which all must execute together; "
                f"{lanes.thread_name(missing) + ' does not' if exists else 'the block has no threads for the others'}"
            )
            raise fault("partial-warp", message, i)

        return call
