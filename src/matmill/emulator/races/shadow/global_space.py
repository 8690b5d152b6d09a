"""Shadow of global memory: every access is checked exactly, cell by cell, in pages that are created on first access."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.races.order.clocks import Clocks, Ints, Lanes
from matmill.emulator.races.order.race_reports import WRITE, CellAccesses, Reports
from matmill.emulator.races.shadow.cells import Cells
from matmill.emulator.races.shadow.warp_accesses import WORD_BYTES, Stores, WarpAccesses
from matmill.errors import EmulationError

_PAGE_BITS = 16
_PAGE_BYTES = 1 << _PAGE_BITS
_MOST_PAGES = 1 << 24


class GlobalSpace:
    """Cells of ``unit`` bytes: 4 until a narrower access comes."""

    def __init__(self, clocks: Clocks, reports: Reports, general: NDArray[np.bool_], *, ordered: bool) -> None:
        self._clocks = clocks
        self._cells = Cells(clocks, reports, general, ordered=ordered)
        self._unit = WORD_BYTES
        self._rows = 0
        self._room = 0
        self._origin = 0
        self._table: Ints = np.zeros(0, dtype=np.int64)

    def access(self, rows: WarpAccesses, stores: Stores | None) -> None:
        """Check one instruction's accesses and remember them."""
        if not rows.active.any():
            return
        access = self._entries(rows)
        if rows.kind == WRITE:
            self._cells.check_together(access, stores)
        self._cells.check(access, stores)
        self._cells.insert(access)

    def remembered(self, rows: WarpAccesses, kind: str) -> Iterator[tuple[CellAccesses, Ints, Lanes, Ints]]:
        """Yield remembered accesses of a kind in the cells of ``rows``: entries of these, keys, lanes and marks."""
        if self._cells.has(kind) and rows.active.any():
            yield from self._cells.remembered(self._entries(rows), kind)

    def _entries(self, rows: WarpAccesses) -> CellAccesses:
        """Return accesses as entries for the cells, of which there is at least one."""
        if rows.width < self._unit:
            factor = self._unit // rows.width
            self._unit = rows.width
            self._cells.resize(self._room, _PAGE_BYTES // self._unit, factor)
        pages = rows.addresses >> _PAGE_BITS
        # Inactive lanes have address 0; any existing page serves for them.
        pages = np.where(rows.active, pages, pages[rows.active][0])
        self._reach(pages)
        row = self._table[pages - self._origin]
        if (row < 0).any():
            self._open(np.unique(pages[row < 0]))
            row = self._table[pages - self._origin]
        base = (row - pages) * (_PAGE_BYTES // self._unit)
        return rows.access("global", base, self._unit, self._clocks.floor[rows.warp])

    def _reach(self, pages: Ints) -> None:
        """Extend the page table to ``pages``."""
        low, high = int(pages.min()), int(pages.max()) + 1
        if self._table.size and self._origin <= low and high <= self._origin + self._table.size:
            return
        if self._table.size:
            low, high = min(low, self._origin), max(high, self._origin + self._table.size)
        if high - low > _MOST_PAGES:
            raise EmulationError(
                argument="addresses",
                got=f"global memory that spans {(high - low) * _PAGE_BYTES:#x} bytes",
                wanted=f"at most {_MOST_PAGES * _PAGE_BYTES:#x}",
                fix="Allocate the buffers of one launch closer together.",
            )
        table = np.full(high - low, -1, dtype=np.int64)
        table[self._origin - low : self._origin - low + self._table.size] = self._table
        self._origin, self._table = low, table

    def _open(self, pages: Ints) -> None:
        """Assign a row of cells to each of ``pages``."""
        self._table[pages - self._origin] = np.arange(self._rows, self._rows + len(pages))
        self._rows += len(pages)
        if self._rows > self._room:
            self._room = max(self._rows, 2 * self._room)
            self._cells.resize(self._room, _PAGE_BYTES // self._unit)
