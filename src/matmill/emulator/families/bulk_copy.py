"""Bulk copies and reductions: cp.async.bulk, cp.reduce.async.bulk, their tensor forms, prefetches, groups and waits.

PTX ISA, "Data Movement and Conversion Instructions: Bulk copy" and "Tensor copy". Each thread that executes one starts
its own copy. The copies themselves are in ``memory.boxes`` and ``memory.bulk``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.atomic import REDUCED, check_reduction
from matmill.emulator.arith.row import Row
from matmill.emulator.engine.async_units.mbarriers import SIZE, Key
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.bulk_units import BulkUnit, Landing, Spans, mark_global
from matmill.emulator.engine.bind.tensor_maps import read_map
from matmill.emulator.families.addresses import base_registers
from matmill.emulator.frontend.syntax import Address, Immediate, Instruction, PtxOperand, Vector
from matmill.emulator.memory.address_space import Allocation
from matmill.emulator.memory.banks import LANES, PASS_BYTES, SECTOR_BYTES
from matmill.emulator.memory.boxes import (
    SHARED_ALIGN,
    Boxes,
    check_box_reduction,
    check_store,
    read_global,
    read_shared,
    reduce_global,
    shared_chunks,
    write_global,
    write_shared,
)
from matmill.emulator.memory.bulk import ALIGN, BulkCopies, copy_bulk, multicast_ranks, reduce_bulk
from matmill.emulator.program.table import Action, Call, Modifiers, Value
from matmill.errors import ArgumentError
from matmill.tensor_map import ELEMENTS

Ints = NDArray[np.int64]

_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_TO_SHARED = ("shared::cluster", "shared::cta")


def bulk(i: Instruction) -> Action:
    """Bind any bulk instruction of opcode ``cp``."""
    m = Modifiers(i, "async", "bulk", "tile", "reduce")
    if m.flag("commit_group"):
        m.done()
        return Action(i, bind=_bind_commit, tally="memory", masks_itself=True)
    if m.flag("wait_group"):
        reads_only = m.flag("read")
        m.done()
        (count,) = i.operands
        if not isinstance(count, Immediate):
            raise i.unsupported("a count that is no literal")
        return Action(
            i, bind=lambda bound: _bind_wait(bound, int(count.value), reads_only=reads_only), tally="memory",
            masks_itself=True,
        )  # fmt: skip
    return _decode(i, m)


def _bind_commit(bound: BoundBlock) -> Call:
    lanes, machine, participants = bound.lanes, bound.machine, bound.participants()
    return lambda: machine.bulk.commit(lanes.columns[participants().reshape(-1)])


def _bind_wait(bound: BoundBlock, allowed: int, *, reads_only: bool) -> Call:
    lanes, machine, participants = bound.lanes, bound.machine, bound.participants()
    events = machine.events

    def call() -> None:
        columns = lanes.columns[participants().reshape(-1)]
        done = machine.bulk.wait(columns, allowed, reads_only=reads_only)
        machine.progress += 1
        if events is not None:
            for store in done:
                events.agent_joined(store.agent, *machine.threads(np.array([store.column])))

    return call


@dataclass(frozen=True)
class _BulkForm:
    """One instruction: its source, destination, operands and operation.

    ``coordinates`` are those of a tensor copy, whose ``outer`` address is a tensor map. Without them ``size`` is the
    number of bytes of a copy whose ``outer`` address is global memory, or the own block's shared memory (``between``
    blocks). ``inner`` is the address in shared memory.
    """

    loads: bool
    outer: Address
    inner: Address | None
    coordinates: tuple[PtxOperand, ...] = ()
    size: PtxOperand | None = None
    ignored: tuple[PtxOperand, ...] = ()
    barrier: Address | None = None
    mask: PtxOperand | None = None
    operation: str = ""
    kind: str = ""
    between: bool = False

    @property
    def reads(self) -> bool:
        """True if it only reads global memory."""
        return self.loads or self.inner is None

    @property
    def element_bytes(self) -> int:
        """The size of the elements that a reduction combines; 1 for copies."""
        return np.dtype(REDUCED[self.kind]).itemsize if self.kind else 1

    def sources(self) -> tuple[Value, ...]:
        """Return the operands besides addresses: coordinates, size, ignored bytes and mask."""
        values = [Value(c, "i4") for c in self.coordinates]
        values += [Value(o, "u4") for o in ((self.size,) if self.size is not None else ()) + self.ignored]
        return (*values, *((Value(self.mask, "u2"),) if self.mask is not None else ()))


def _decode(i: Instruction, m: Modifiers) -> Action:
    tensor = m.flag("tensor")
    rank = int(m.need("1d", "2d", "3d", "4d", "5d")[0]) if tensor else 0
    prefetches = m.flag("prefetch")
    operation = m.need(*_OPERATIONS) if "reduce" in i.modifiers else ""
    kind = m.type() if operation and not tensor else ""
    m.flag("noftz")
    operands = list(i.operands)
    if m.flag("L2::cache_hint"):
        # The L2 prefetch hint changes nothing here.
        operands.pop()
    multicast = m.flag("multicast::cluster")
    mask = operands.pop() if multicast else None
    ignores = m.flag("ignore_oob")
    spaces = [s for s in m.left if s in {"global", "L2", *_TO_SHARED}]
    for space in spaces:
        m.flag(space)
    loads = bool(spaces) and spaces[0] in _TO_SHARED
    waits = m.pick(("mbarrier::complete_tx::bytes", "bulk_group"))
    m.done()
    between = loads and spaces[-1] in _TO_SHARED
    if kind:
        _check_type(i, operation, kind, shared=loads)
    if (waits == "bulk_group") != (not loads and not prefetches) or (loads and not waits.startswith("mbarrier")):
        raise i.unsupported("its completion mechanism")
    barrier = _address(i, operands.pop()) if loads else None
    addresses = [_address(i, o) for o in operands[: 1 if prefetches else 2]]
    rest = operands[len(addresses) :]
    outer = addresses[0] if prefetches or not loads else addresses[1]
    inner = None if prefetches else addresses[0] if loads else addresses[1]
    coordinates = _coordinates(i, outer, rank) if tensor else ()
    wanted = 0 if tensor else 3 if ignores else 1
    if len(rest) != wanted:
        raise i.unsupported("the number of its operands")
    form = _BulkForm(
        loads, outer, inner, coordinates, rest[0] if rest else None, tuple(rest[1:]), barrier, mask, operation, kind,
        between,
    )  # fmt: skip
    named = [a for a in (outer, inner, barrier) if a is not None]
    return Action(
        i, form.sources(), bind=lambda bound: (TensorCopy if tensor else BulkCopy)(bound, i, form), tally="memory",
        masks_itself=True, uses=base_registers(*named),
    )  # fmt: skip


def _check_type(i: Instruction, operation: str, kind: str, *, shared: bool) -> None:
    try:
        check_reduction(operation, kind, shared=shared)
    except ArgumentError as problem:
        raise i.unsupported(f"{kind} with .{operation}") from problem


def _address(i: Instruction, operand: PtxOperand) -> Address:
    if not isinstance(operand, Address):
        raise i.unsupported("its address")
    return operand


def _coordinates(i: Instruction, address: Address, rank: int) -> tuple[PtxOperand, ...]:
    items = address.extra[0].items if len(address.extra) == 1 and isinstance(address.extra[0], Vector) else ()
    if len(items) != rank:
        raise i.unsupported("its coordinates")
    return items


@dataclass(frozen=True, eq=False)
class _BulkIssue:
    """The copies that one execution starts, one for each of the threads ``columns``; all int64[n].

    ``values`` are the rows of :meth:`_Form.sources`, without the mask.
    """

    columns: Ints
    outer: Ints
    inner: Ints
    barrier: Ints
    mask: Ints
    values: tuple[Ints, ...]

    def take(self, chosen: Ints) -> _BulkIssue:
        """Return the chosen copies."""
        return _BulkIssue(
            self.columns[chosen], self.outer[chosen], self.inner[chosen], self.barrier[chosen], self.mask[chosen],
            tuple(v[chosen] for v in self.values),
        )  # fmt: skip

    def again(self) -> NDArray[np.bool_]:
        """Tell which copies are those of a lower lane of the same warp once more: bool[n].

        Lanes of one warp that store one value in one instruction do not race, by ordinary stores and by copies.
        """
        if len(self.columns) == 1:
            return np.zeros(1, np.bool_)
        rows = np.stack([self.columns // LANES, self.outer, self.inner, *self.values], axis=1)
        result = np.ones(len(rows), np.bool_)
        result[np.unique(rows, axis=0, return_index=True)[1]] = False
        return result


class _Copy:
    """A bulk instruction bound to lanes."""

    def __init__(self, bound: BoundBlock, i: Instruction, form: _BulkForm) -> None:
        self.machine, self.i, self.form = bound.machine, i, form
        self.unit = BulkUnit(bound.machine, i)
        self._lanes = bound.lanes
        self._participants = bound.participants()
        absent = (np.zeros(1, np.int64), 0)
        self._outer = bound.address_row(form.outer)
        self._inner = bound.address_row(form.inner) if form.inner is not None else absent
        self._barrier = bound.address_row(form.barrier) if form.barrier is not None else absent

    def __call__(self, *rows: Row) -> None:
        """Start the copies of all lanes that take part."""
        active = np.flatnonzero(self._participants())
        if not len(active):
            return

        def of_lanes(row: Row) -> Ints:
            return np.broadcast_to(row, self._lanes.count)[active].astype(np.int64)

        outer, inner, barrier = (of_lanes(row) + offset for row, offset in (self._outer, self._inner, self._barrier))
        values = [of_lanes(row) for row in rows]
        mask = values.pop() if self.form.mask is not None else np.zeros(len(active), np.int64)
        issue = _BulkIssue(self._lanes.columns[active], outer, inner, barrier, mask, tuple(values))
        try:
            self.start(issue)
        except ArgumentError as problem:
            self.unit.stop("bulk-copy", int(issue.columns[0]), "starts a copy that TMA does not take", str(problem))

    def start(self, issue: _BulkIssue) -> None:
        """Start copies."""
        raise NotImplementedError

    def land_in(self, issue: _BulkIssue, to: Spans) -> tuple[Spans, Ints, list[list[Key]]]:
        """Return the destinations of copies to ``to``, in all blocks of a multicast.

        The spans come with the index of the copy to each, and the mbarriers of each copy.
        """
        barrier = self.unit.spans(issue.barrier, issue.columns, np.full(len(issue.columns), SIZE), SIZE)
        apart = np.flatnonzero(barrier.block != to.block)
        if len(apart):
            self.unit.stop(
                "bulk-copy", int(issue.columns[apart[0]]), "copies to one block and names an mbarrier of another"
            )
        if self.form.mask is None:
            keys = list(zip(barrier.block.tolist(), barrier.offset.tolist(), strict=True))
            return to, np.arange(len(keys)), [[key] for key in keys]
        size = self.machine.cluster.size
        barriers: list[list[Key]] = []
        for own, offset, mask in zip(to.block.tolist(), barrier.offset.tolist(), issue.mask.tolist(), strict=True):
            barriers.append([(own - own % size + rank, offset) for rank in multicast_ranks(mask, size)])
        copies = np.repeat(np.arange(len(barriers)), [len(keys) for keys in barriers])
        blocks = np.array([block for keys in barriers for block, _ in keys])
        return Spans(blocks, to.offset[copies]), copies, barriers

    def count(self, copies: int, sectors: int, wavefronts: int, nbytes: int) -> None:
        """Add to the counts of bulk traffic."""
        if self.machine.counting:
            kind = "bulk load" if self.form.loads else "bulk store"
            total = self.machine.tally.traffic(self.unit.where, "global", kind)
            for n, amount in enumerate((copies, sectors, wavefronts, nbytes)):
                total[n] += amount


class TensorCopy(_Copy):
    """Copies, reductions or prefetches of boxes of tensors."""

    def start(self, issue: _BulkIssue) -> None:
        """Start copies, grouped by tensor map."""
        for address in np.unique(issue.outer).tolist():
            self._start(issue.take(np.flatnonzero(issue.outer == address)), address)

    def _start(self, issue: _BulkIssue, address: int) -> None:
        tensor = read_map(self.machine, int(issue.columns[0]), address, self.i)
        coordinates = np.stack(issue.values, axis=1)
        if not self.form.loads and self.form.inner is not None:
            check_store(tensor, coordinates)
        boxes = Boxes.of(tensor, coordinates)
        if self.form.operation:
            check_box_reduction(tensor, self.form.operation)
        elif not self.form.loads and self.form.inner is not None:
            boxes = boxes.stored()
        memory = self._global(boxes, issue)
        name = tensor.pointer.name
        self.unit.check_dependency(issue.columns, f"copies a box of the {name}", memory.name, reads=self.form.reads)
        if self.form.inner is None:
            return
        self._note_outside(boxes, issue, coordinates)
        spans = np.full(len(issue.columns), boxes.shared_bytes)
        inner = self.unit.spans(issue.inner, issue.columns, spans, SHARED_ALIGN)
        into = self._load(issue, boxes, inner, memory) if self.form.loads else self._store(issue, boxes, inner, memory)
        sectors, nbytes = int(boxes.sectors().sum()), int(boxes.global_bytes().sum())
        self.count(len(issue.columns), sectors, into * boxes.wavefronts, nbytes)

    def _note_outside(self, boxes: Boxes, issue: _BulkIssue, coordinates: Ints) -> None:
        """Note a load wholly outside the tensor, which is normal for stores."""
        outside = np.flatnonzero(~boxes.inside.any(axis=1))
        if self.form.loads and len(outside):
            machine, n = self.machine, int(outside[0])
            thread = machine.geometry.thread_name(int(issue.columns[n]))
            message = (
                f"{machine.launch.kernel}: {thread} copies the box at {tuple(coordinates[n].tolist())}, wholly outside "
                f"the {boxes.tensor.pointer.name} of sizes {boxes.tensor.sizes}, in {self.i.text!r}"
            )
            machine.hazards.add("box-outside", self.i, message, self.i)

    def _global(self, boxes: Boxes, issue: _BulkIssue) -> Allocation:
        """Return the allocation of the boxes; each is checked and reported to the race detector."""
        kind = "read" if self.form.loads or self.form.inner is None else "atomic" if self.form.operation else "write"
        again = issue.again() & (kind == "write")
        for n, (column, low, high) in enumerate(
            zip(issue.columns.tolist(), *(x.tolist() for x in boxes.hull()), strict=True)
        ):
            region = self.unit.use_global(column, (low, high), kind)
            if self.form.inner is not None and not again[n] and (region.writable or region.written is not None):
                self.unit.watch_global(column, region, boxes.ranges(n), kind, ELEMENTS[boxes.tensor.element].itemsize)
        return region

    def _load(self, issue: _BulkIssue, boxes: Boxes, inner: Spans, memory: Allocation) -> int:
        """Start loads; return the number of destination blocks, summed over all loads."""
        to, copies, barriers = self.land_in(issue, inner)
        spread, origin = boxes.take(copies), self.unit.origin(to)
        chunks = list(shared_chunks(origin, spread, to.offset))

        def act() -> None:
            contents = read_global(memory.data, memory.start, boxes)[copies]
            write_shared(self.machine.shared.data, origin, spread, to.offset, contents)

        landing = Landing(to, chunks, copies, barriers, boxes.tensor.swizzle)
        self.unit.load(issue.columns, np.full(len(issue.columns), boxes.nbytes), landing, act)
        return len(copies)

    def _store(self, issue: _BulkIssue, boxes: Boxes, inner: Spans, memory: Allocation) -> int:
        """Start stores or reductions; return their number."""
        chunks = shared_chunks(self.unit.origin(inner), boxes, inner.offset)
        for n, column in enumerate(issue.columns.tolist()):
            only = np.array([n])
            read = partial(self._read, boxes.take(only), inner.take(only), memory)
            self.unit.store(column, int(inner.block[n]), chunks[n], read)
        return len(chunks)

    def _read(self, box: Boxes, span: Spans, memory: Allocation) -> Callable[[], None]:
        """Read a box from shared memory; return the function that stores it."""
        contents = read_shared(self.machine.shared.data, self.unit.origin(span), box, span.offset)

        def write() -> None:
            if self.form.operation:
                reduce_global(memory.data, memory.start, box, contents, self.form.operation)
            else:
                write_global(memory.data, memory.start, box, contents)
            mark_global(memory, box.ranges(0), self.i)

        return write


class BulkCopy(_Copy):
    """Copies, reductions or prefetches of contiguous bytes."""

    def start(self, issue: _BulkIssue) -> None:
        """Start copies."""
        form, unit = self.form, self.unit
        size, *ignored = issue.values
        name = f"{self.i.name}.{'.'.join(self.i.modifiers[:2])}"
        ends = (issue.outer, issue.inner) if form.loads else (issue.inner, issue.outer)
        copies = BulkCopies(*ends, size, *ignored)
        inner = unit.spans(issue.inner, issue.columns, size, ALIGN) if form.inner is not None else None
        off = np.flatnonzero(issue.outer % ALIGN)
        if len(off):
            where = self.machine.describe("generic", int(issue.outer[off[0]]))
            problem = f"copies {int(size[off[0]])} bytes at {where}, no multiple of {ALIGN}"
            unit.stop("misaligned", int(issue.columns[off[0]]), problem)
        copies.check(name)
        if not form.between:
            memory = self.machine.space.find(int(issue.outer[0]))
            array = "" if memory is None else memory.name
            unit.check_dependency(
                issue.columns, f"copies {int(size[0])} bytes of global memory", array, reads=form.reads
            )
        if inner is None:
            for n, column in enumerate(issue.columns.tolist()):
                unit.use_global(column, (int(issue.outer[n]), int(issue.outer[n] + size[n])), "read")
            return
        if form.loads:
            self._load(issue, copies, inner)
            return
        kind = "atomic" if form.operation else "write"
        first = unit.index(inner).tolist()
        again = issue.again() & (kind == "write")
        for n, column in enumerate(issue.columns.tolist()):
            to, nbytes = int(issue.outer[n]), int(size[n])
            memory = unit.use_global(column, (to, to + nbytes), kind)
            if not again[n]:
                unit.watch_global(column, memory, (np.array([to]), np.array([to + nbytes])), kind, form.element_bytes)
            read = partial(self._read, first[n], to, nbytes, memory)
            unit.store(column, int(inner.block[n]), _chunks(first[n], nbytes), read)
        self._count(issue.outer, size, size)

    def _load(self, issue: _BulkIssue, copies: BulkCopies, inner: Spans) -> None:
        form, unit, shared = self.form, self.unit, self.machine.shared.data
        to, of, barriers = self.land_in(issue, inner)
        target, sizes = unit.index(to), copies.size[of].tolist()
        chunks = [_chunks(first, nbytes) for first, nbytes in zip(target.tolist(), sizes, strict=True)]
        landing = Landing(to, chunks, of, barriers, combines=bool(form.operation))
        if form.between:
            own = unit.spans(issue.outer, issue.columns, copies.size, ALIGN)
            first = unit.index(own)
            spans = zip(own.block.tolist(), first.tolist(), copies.size.tolist(), strict=True)
            landing.sources.extend((block, _chunks(at, nbytes)) for block, at, nbytes in spans)
            data = [(shared, at) for at in first.tolist()]
        else:
            data = [(memory.data, at) for memory, at in self._global(issue, copies)]

        def act() -> None:
            for span, n in enumerate(of.tolist()):
                source, at = data[n]
                ignored = [x[n : n + 1] for x in (copies.left, copies.right) if x is not None]
                one = BulkCopies(np.array([at]), target[span : span + 1], copies.size[n : n + 1], *ignored)
                if form.operation:
                    reduce_bulk(source, shared, one, form.operation, form.kind, shared=True)
                else:
                    copy_bulk(source, shared, one)

        unit.load(issue.columns, copies.size, landing, act)
        if not form.between:
            starts, ends = copies.read()
            self._count(starts, ends - starts, copies.size[of])

    def _global(self, issue: _BulkIssue, copies: BulkCopies) -> Iterator[tuple[Allocation, int]]:
        """Yield each copy's source: the allocation and the index of its first byte, ignored bytes included."""
        starts, ends = copies.read()
        for n, column in enumerate(issue.columns.tolist()):
            memory = self.unit.use_global(column, (int(starts[n]), int(ends[n])), "read")
            self.unit.watch_global(column, memory, (starts[n : n + 1], ends[n : n + 1]), "read", 1)
            yield memory, int(copies.source[n]) - memory.start

    def _read(self, first: int, to: int, nbytes: int, memory: Allocation) -> Callable[[], None]:
        """Read bytes from shared memory; return the function that stores them at the address ``to``."""
        data = self.machine.shared.data[first : first + nbytes].copy()
        copy = BulkCopies(np.array([0]), np.array([to - memory.start]), np.array([nbytes]))

        def write() -> None:
            if self.form.operation:
                reduce_bulk(data, memory.data, copy, self.form.operation, self.form.kind)
            else:
                copy_bulk(data, memory.data, copy)
            mark_global(memory, (np.array([to]), np.array([to + nbytes])), self.i)

        return write

    def _count(self, starts: Ints, size: Ints, landed: Ints) -> None:
        """Count copies of ``size`` bytes from or to these addresses; ``landed`` are their numbers by target block."""
        sectors = (starts + size - 1) // SECTOR_BYTES - starts // SECTOR_BYTES + 1
        wavefronts = int((-(-landed // PASS_BYTES)).sum())
        self.count(len(size), int(sectors[size > 0].sum()), wavefronts, int(size.sum()))


def _chunks(first: int, nbytes: int) -> Ints:
    """Return the 16-byte chunks from a byte of shared memory on, as chunk numbers."""
    return np.arange(first // ALIGN, (first + nbytes) // ALIGN)
