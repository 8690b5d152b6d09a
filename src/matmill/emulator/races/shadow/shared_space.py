"""Shadow of shared memory: a cheap screen before the exact check.

Between two barriers of all warps of a block (an *interval*) most blocks read some bytes and write others. The screen
records, per 16 bytes, the last interval that read and that wrote them, and keeps a log of the interval's accesses.
While no access overlaps bytes that another one of the same interval wrote, or writes bytes that another one read, there
is nothing to check: everything before the interval is ordered. The first access that does makes the block *hot*: the
log is entered into the exact shadow cells, and they check everything until the interval ends.

Barriers of fewer warps or lanes break the rule that an interval's accesses of different warps are unordered: from the
first one to the interval's end the block is *general*, that is hot and without the shortcut that relies on that rule;
the log is entered again, for the accesses that the shortcut omitted.

Intervals that repeat an earlier one need no screen (``interval_patterns``): their accesses are entered here only if
another access or barrier needs them (:meth:`SharedSpace.settle`).

If mbarriers, clusters and asynchronous units order accesses (``ordered``) there are no such intervals: all blocks are
always hot and general.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import HappensBefore, Ints
from matmill.emulator.races.order.race_reports import COPY, READ, STRONG_READ, WRITE, CellAccesses, Reports, mark_of
from matmill.emulator.races.shadow.cells import Cells
from matmill.emulator.races.shadow.interval_log import IntervalLog
from matmill.emulator.races.shadow.interval_patterns import IntervalPatterns, Pattern
from matmill.emulator.races.shadow.warp_accesses import S, Stores, WarpAccesses, resized, rows_of

_GRAIN = 16
_FIRST_SPAN = 4096
# Many warps read one operand of a product, several times before a wait.
_MOST_SLOTS = 64
_PENDING = np.int32(2**31 - 1)
_READS = (READ, STRONG_READ)

Stamps = NDArray[np.int32]


class SharedSpace:
    """The shared windows of the blocks in flight, each a row of ``span`` bytes in every shadow array."""

    def __init__(
        self, clocks: HappensBefore, reports: Reports, general: NDArray[np.bool_], *, ordered: bool = False
    ) -> None:
        self._clocks = clocks
        self._reports = reports
        self._general = general
        blocks = len(general)
        self._ordered = ordered
        self._cells = Cells(clocks, reports, general, ordered=ordered, most=_MOST_SLOTS)
        self._log = IntervalLog(clocks.warps_per_block)
        self._hot = np.full(blocks, ordered)
        self._interval: Ints = np.ones(blocks, dtype=np.int64)
        self._row: Ints = np.full(blocks, -1, dtype=np.int64)
        self._free: list[int] = []
        self._rows = 0
        # Intervals are numbered on when a row passes to another block, so that old stamps stay old.
        self._last: Ints = np.zeros(0, dtype=np.int64)
        self._span = _FIRST_SPAN
        self._unit = _GRAIN
        self._read: Stamps = np.zeros(0, dtype=np.int32)
        self._wrote: Stamps = np.zeros(0, dtype=np.int32)
        # Per unit: the last interval that wrote it, scratch memory to detect lanes that overlap, and the cp.async in
        # flight.
        self._wrote_unit: Stamps = np.zeros(0, dtype=np.int32)
        self._meet: Stamps = np.zeros(0, dtype=np.int32)
        self._copier: Ints = np.zeros(0, dtype=np.int64)
        self._copy_mark: Stamps = np.zeros(0, dtype=np.int32)
        # The number of changes to the mapping from a block's addresses to shadow elements.
        self.layout = 0
        # Blocks with anything recorded or ordered since their last barrier, and scratch memory for those that meet.
        self._busy = np.zeros(blocks, dtype=np.bool_)
        self._met = np.zeros(blocks, dtype=np.bool_)
        self._patterns = IntervalPatterns()
        self._copied = ordered

    @property
    def patterns(self) -> IntervalPatterns | None:
        """The known intervals, or None while they are not used: copies in flight extend from one into the next."""
        return self._patterns if not self._copied and self._patterns.on else None

    def settle(self) -> None:
        """Enter the deferred accesses. They have been screened, so they are only recorded."""
        if not self._patterns.deferred:
            return
        deferred = self._patterns.deferred
        self._patterns.deferred = []
        for pattern, warps in deferred:
            active = pattern.shape.active
            rows = rows_of(
                kind=pattern.kind, where=pattern.where, width=pattern.width, warp=warps,
                addresses=pattern.shape.distance + pattern.low, active=active, clock=self._clocks.now[warps],
            )  # fmt: skip
            block = self._fit(rows)
            self._busy[block] = True
            self._stamp(rows, block, self._bases(block, _GRAIN) + (rows.addresses >> 4))
            self._remember(rows, block)

    def _interrupt(self, blocks: Ints, *, known: bool = False) -> None:
        """Flush deferred accesses: an access of another kind reached ``blocks``.

        Unless it is ``known``, it is not in the tree.
        """
        if self._ordered:
            return
        self.settle()
        self._busy[blocks] = True
        if not known:
            self._patterns.stop()

    def _drop(self, blocks: Ints) -> None:
        """Drop the deferred accesses if all of them are by ``blocks``, which have met; else enter them."""
        deferred = self._patterns.deferred
        if not deferred:
            return
        self._met[blocks] = True
        if all(self._met[warps // self.warps_per_block].all() for warps in {id(w): w for _, w in deferred}.values()):
            self._patterns.deferred = []
        else:
            self.settle()
        self._met[blocks] = False

    def repeated(self, rows: WarpAccesses) -> RepeatedRead | None:
        """Return a record of a plain read that was just checked, for repetitions with the same lanes and addresses."""
        return None if self._ordered else RepeatedRead(self, rows)

    def read_again(self, read: RepeatedRead) -> bool:
        """Check and record a repeated read; return False, with nothing done, if it needs :meth:`access`."""
        if self._hot[read.blocks].any() or self._general[read.blocks].any():
            return False
        self._interrupt(read.blocks)
        now = self._interval.take(read.owners).astype(np.int32)
        if np.greater_equal(self._wrote.take(read.grains), now).any():
            return False
        self._read[read.grains] = now
        rows = read.rows
        clock, tag = self._clocks.now[rows.warp], self._interval[read.block]
        again = WarpAccesses(
            rows.kind, rows.where, rows.width, rows.warp, rows.addresses, rows.active, clock, tag, rows.full
        )
        if self._log.add(again, self._interval):
            self._give_up_log()
        return True

    @property
    def warps_per_block(self) -> int:
        """Warps in a block."""
        return self._clocks.warps_per_block

    def grains_of(self, rows: WarpAccesses) -> Ints:
        """Return each active lane's index in the arrays per 16 bytes."""
        block = rows.blocks(self._clocks.warps_per_block)
        return rows.on(self._bases(block, _GRAIN) + (rows.addresses >> 4))

    def access(self, rows: WarpAccesses, stores: Stores | None, pattern: Pattern | None = None) -> None:
        """Check one instruction's reads, plain writes or atomics, and record them.

        ``pattern`` identifies the access if an equal one after equal ones need not be checked again.
        """
        block = self._fit(rows)
        self._interrupt(block, known=pattern is not None)
        grains, judged = self._screen(rows, block)
        if pattern is not None:
            if judged.any():
                self._patterns.stop()
            else:
                self._patterns.learn(pattern)
        if judged.any():
            access = self._entries(rows.take(judged))
            self._judge(access, stores)
            self._cells.insert(access)
            self._stamp(rows.take(~judged), block[~judged], grains[~judged])
        else:
            self._stamp(rows, block, grains)
        self._remember(rows, block)

    def copy(self, rows: WarpAccesses) -> None:
        """Check the issue of ``cp.async`` writes and mark their bytes as in flight."""
        self._copied = True
        block = self._fit(rows)
        self._interrupt(block)
        grains, judged = self._screen(rows, block)
        if judged.any():
            self._judge(self._entries(rows.take(judged)), None)
        self._fill(self._copier, rows, block, rows.on(_threads(rows)) + 1)
        self._fill(self._copy_mark, rows, block, np.full(1, mark_of(rows.where, COPY), dtype=np.int32))
        self._wrote[rows.on(grains)] = _PENDING

    def by_agent(self, access: CellAccesses, block: int, width: int) -> None:
        """Check an asynchronous unit's access to ``width`` bytes at addresses of a block, and record it.

        ``access`` has an entry for each of them; its cells are filled in here.
        """
        aligned = int(np.bitwise_or.reduce(access.addresses)) | width
        self._make_room(np.array([block]), aligned & -aligned, int(access.addresses.max(initial=0)) + width)
        units = width // self._unit
        first = self._bases(np.array([block]), self._unit)[0] + access.addresses // self._unit
        cells = (first[:, None] + np.arange(units)).reshape(-1)
        whole = access.take(np.repeat(np.arange(len(first)), units))
        whole = replace(whole, cells=cells, unit=self._unit)
        self._judge(whole, None)
        self._cells.insert(whole)

    def complete(self, rows: WarpAccesses) -> None:
        """Record copies as writes that their threads make at ``rows.clock``."""
        block = self._fit(rows)
        self._interrupt(block)
        first = rows.on(self._bases(block, self._unit) + rows.addresses // self._unit)
        threads = rows.on(_threads(rows)) + 1
        for unit in range(rows.width // self._unit):
            # If another thread's copy overlaps this one, the other's mark stays.
            mine = self._copier.take(first + unit) == threads
            self._copier[first[mine] + unit] = 0
        self._fill(self._wrote_unit, rows, block, rows.spread(self._interval[block].astype(np.int32)))
        units = _GRAIN // self._unit
        grains = first // units
        busy = self._copier.reshape(-1, units)[grains].any(axis=1)
        self._wrote[grains] = np.where(busy, _PENDING, self._wrote_unit.reshape(-1, units)[grains].max(axis=1))
        hot = self._hot[block]
        if hot.any():
            self._cells.insert(self._entries(rows.take(hot)))
        self._remember(rows, block)

    def block_barrier(self, blocks: Ints) -> None:
        """Begin a new interval of ``blocks``; to be called before their clocks advance."""
        self._drop(blocks)
        self._interval[blocks] += 1
        if self._ordered:
            return
        self._hot[blocks] = False
        self._general[blocks] = False
        self._busy[blocks] = False
        if self.patterns is not None and not self._busy.any():
            self._patterns.restart()
        else:
            self._patterns.stop()

    def generalize(self, blocks: Ints) -> None:
        """Prepare ``blocks`` for a barrier of some of their warps or lanes."""
        self._interrupt(blocks)
        blocks = blocks[~self._general[blocks]]
        if blocks.size:
            self._general[blocks] = True
            self._heat(blocks)

    def release(self, blocks: Ints) -> None:
        """Free the rows of ``blocks``, which have ended."""
        self._drop(blocks)
        width = self._span // self._unit
        for block in blocks[self._row[blocks] >= 0].tolist():
            row = int(self._row[block])
            self._cells.clear(row * width, (row + 1) * width)
            self._copier[row * width : (row + 1) * width] = 0
            self._wrote[row * self._span // _GRAIN : (row + 1) * self._span // _GRAIN] = 0
            self._last[row] = self._interval[block]
            self._free.append(row)
        self.block_barrier(blocks)
        self._row[blocks] = -1
        self.layout += 1

    def _fit(self, rows: WarpAccesses) -> Ints:
        """Make the shadow fine and large enough for ``rows``; returns their blocks."""
        block = rows.blocks(self._clocks.warps_per_block)
        self._make_room(block, rows.width, int(rows.addresses.max(initial=0)) + rows.width)
        return block

    def _make_room(self, block: Ints, width: int, end: int) -> None:
        """Make the shadow fine enough for accesses of ``width`` bytes, and large enough for ``end`` bytes per block."""
        fresh = block[self._row[block] < 0]
        if fresh.size:
            fresh = np.unique(fresh)
        span, unit, count = self._span, min(self._unit, width), self._rows
        while end > span:
            span *= 2
        if fresh.size > len(self._free):
            count = max(2 * count, count + int(fresh.size) - len(self._free))
        if (span, unit, count) != (self._span, self._unit, self._rows) or not self._read.size:
            self._resize(span, unit, count)
        self.layout += bool(fresh.size)
        for owner in fresh.tolist():
            row = self._free.pop()
            self._row[owner] = row
            self._interval[owner] = max(self._interval[owner], self._last[row] + 1)

    def _resize(self, span: int, unit: int, count: int) -> None:
        """Allocate all arrays for ``count`` rows of ``span`` bytes in units of ``unit``."""
        factor = self._unit // unit
        old, new = (self._rows, self._span // _GRAIN), (count, span // _GRAIN)
        self._read = resized(self._read, old, new)
        self._wrote = resized(self._wrote, old, new)
        old, new = (self._rows, self._span // self._unit), (count, span // unit)
        self._wrote_unit = resized(self._wrote_unit, old, new, factor)
        self._copier = resized(self._copier, old, new, factor)
        self._copy_mark = resized(self._copy_mark, old, new, factor)
        self._meet = np.zeros(new[0] * new[1], dtype=np.int32)
        self._cells.resize(*new, factor)
        self._last = np.concatenate([self._last, np.zeros(count - self._rows, dtype=np.int64)])
        self._free += range(self._rows, count)
        self._span, self._unit, self._rows = span, unit, count
        self.layout += 1

    def _screen(self, rows: WarpAccesses, block: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Return each lane's index in the arrays per 16 bytes, and the flags of the warps whose blocks are hot.

        Blocks in which ``rows`` overlaps other accesses become hot here.
        """
        grains = self._bases(block, _GRAIN) + (rows.addresses >> 4)
        hot = self._hot[block]
        if not hot.all():
            met = self._meets(rows, block, grains)
            if not rows.full:
                met &= rows.active
            touched = np.any(met, axis=1) & ~hot if met.any() else hot[:0]
            if touched.any():
                self._heat(np.unique(block[touched]))
                hot = self._hot[block]
        return grains, hot

    def _meets(self, rows: WarpAccesses, block: Ints, grains: Ints) -> NDArray[np.bool_]:
        """Return the flags of lanes that may access bytes that this interval wrote, or write bytes that it read."""
        now = self._interval[block].astype(np.int32)[:, None]
        if rows.kind in _READS:
            over: NDArray[np.bool_] = self._wrote.take(grains) >= now
            return over
        met: NDArray[np.bool_] = self._read.take(grains) == now
        first = self._bases(block, self._unit) + rows.addresses // self._unit
        if rows.width == _GRAIN:
            met |= self._wrote.take(grains) >= now
        else:
            for unit in range(rows.width // self._unit):
                met |= (self._wrote_unit.take(first + unit) == now) | (self._copier.take(first + unit) != 0)
        # If lanes overlap in one unit, all but the last read another lane's name there.
        units = rows.on(first)
        names = np.arange(units.size, dtype=np.int32)
        self._meet[units] = names
        twice = self._meet.take(units) != names
        if rows.full:
            met |= twice.reshape(met.shape)
        else:
            met[rows.active] |= twice
        return met

    def _stamp(self, rows: WarpAccesses, block: Ints, grains: Ints) -> None:
        """Record the accesses of blocks that are not hot."""
        now = rows.spread(self._interval[block].astype(np.int32))
        grains = rows.on(grains)
        if rows.kind in _READS:
            self._read[grains] = now
        elif rows.width == _GRAIN:
            self._wrote[grains] = now
            self._fill(self._wrote_unit, rows, block, now)
        else:
            # A copy may be in flight elsewhere in the same 16 bytes.
            self._wrote[grains] = np.maximum(self._wrote[grains], now)
            self._fill(self._wrote_unit, rows, block, now)

    def _fill(self, array: NDArray[S], rows: WarpAccesses, block: Ints, values: NDArray[S]) -> None:
        """Set all units that the active lanes access to the lane's value (one per active lane, or one for all)."""
        if rows.width == _GRAIN:
            grains = rows.on(self._bases(block, _GRAIN) + (rows.addresses >> 4))
            array.reshape(-1, _GRAIN // self._unit)[grains] = values[:, None]
            return
        first = rows.on(self._bases(block, self._unit) + rows.addresses // self._unit)
        for unit in range(rows.width // self._unit):
            array[first + unit] = values

    def _bases(self, block: Ints, grain: int) -> Ints:
        """Return the start of each block's row in an array with one element per ``grain`` bytes: int64[n, 1]."""
        bases: Ints = (self._row[block] * (self._span // grain))[:, None]
        return bases

    def _entries(self, rows: WarpAccesses) -> CellAccesses:
        """Return ``rows`` as entries for the cells.

        The floor is the present one, also for logged accesses: two lanes' accesses that are ordered by it are both
        ordered before everything that the warp does from now on, so either may represent the other.
        """
        block = rows.blocks(self._clocks.warps_per_block)
        return rows.access("shared", self._bases(block, self._unit), self._unit, self._clocks.floor[rows.warp])

    def _judge(self, access: CellAccesses, stores: Stores | None) -> None:
        """Report the races of ``access`` with copies in flight, within itself, and with remembered accesses."""
        in_flight = np.flatnonzero(self._copier[access.cells])
        if in_flight.size:
            second = access.take(in_flight)
            copier = self._copier[second.cells] - 1
            own = copier == second.moment.warp * LANES + second.moment.lane
            marks = self._copy_mark[second.cells]
            for flag in (True, False):
                for mark in np.unique(marks[own == flag]).tolist():
                    i = int(np.flatnonzero((marks == mark) & (own == flag))[0])
                    self._reports.add(int(copier[i]), mark >> 1, COPY, second, i)
        if access.kind in (WRITE, COPY):
            self._cells.check_together(access, stores)
        self._cells.check(access, stores)

    def _heat(self, blocks: Ints) -> None:
        """Enter the interval's log of ``blocks`` into the cells, which check from now on."""
        self._hot[blocks] = True
        for rows in self._log.rows_of(blocks, self._interval):
            self._cells.insert(self._entries(rows))

    def _remember(self, rows: WarpAccesses, block: Ints) -> None:
        """Log ``rows``; if the log is too long, drop it and treat its blocks as general until their next barrier."""
        kept = ~self._general[block]
        if kept.any() and self._log.append(rows.take(kept), self._interval):
            self._give_up_log()

    def _give_up_log(self) -> None:
        """Drop the log and treat its blocks as general until their next barrier."""
        self.generalize(self._log.blocks(self._interval))
        self._log.clear()


class RepeatedRead:
    """A read of shared memory that repeats with the same lanes and addresses, as in a loop over tiles, looked up once.

    ``grains`` are the shadow elements that it reads, each once, and ``owners`` their blocks.
    """

    def __init__(self, space: SharedSpace, rows: WarpAccesses) -> None:
        self._space = space
        self._layout = space.layout
        self.rows = rows
        self.block = rows.blocks(space.warps_per_block)
        self.blocks = np.unique(self.block)
        self.grains, first = np.unique(space.grains_of(rows), return_index=True)
        self.owners = rows.spread(self.block)[first]

    def again(self) -> bool:
        """Check and record it again; return False, with nothing done, if it needs the full check."""
        return self._space.layout == self._layout and self._space.read_again(self)


def _threads(rows: WarpAccesses) -> Ints:
    """Return the lanes' threads, numbered through all blocks: int64[n, 32]."""
    threads: Ints = rows.warp[:, None] * LANES + np.arange(LANES)
    return threads
