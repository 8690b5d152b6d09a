"""The lanes that a block of code runs on.

The lanes of a batch of blocks are ordered (warp in block, block, lane in warp), so that one warp of every block is a
contiguous slice, as is the whole batch. Code bound to a slice runs in place. Code for other sets of warps, or for warps
with diverged lanes, runs on a copy in scratch rows.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.memory.banks import LANES
from matmill.launch import Dim3, coordinates

_NUMBER = np.arange(LANES, dtype=np.int64)


class BatchGeometry:
    """The shape of a batch: ``blocks`` of ``warps`` warps, of which the last may be partly empty."""

    def __init__(self, blocks: int, grid: Dim3, block: Dim3, shared_stride: int, local_stride: int) -> None:
        threads = prod(block)
        self.blocks = blocks
        self.shared_stride = shared_stride
        self.warps = -(-threads // LANES)
        self.threads = threads
        self.block = block
        self.grid = grid
        self.warp_count = self.warps * blocks
        self.columns = self.warp_count * LANES
        warp = np.repeat(np.arange(self.warps), blocks)
        self.warp_in_block = warp
        self.block_of_warp = np.tile(np.arange(blocks), self.warps)
        lane = np.tile(np.arange(LANES), self.warp_count)
        self.thread = np.repeat(warp, LANES) * LANES + lane
        self.exists = self.thread < threads
        block_of = np.repeat(self.block_of_warp, LANES)
        self.bases = {"shared": block_of * shared_stride, "local": np.arange(self.columns) * local_stride}
        # The number in the grid of each block of the batch; set for each batch.
        self.block_ids = np.arange(blocks)

    def thread_name(self, column: int) -> str:
        """Format a thread: "thread (1, 0, 0) of block (7, 0, 0)"."""
        thread = coordinates(int(self.thread[column]), self.block)
        return f"thread {thread} of {self.block_name(int(self.block_of_warp[column // LANES]))}"

    def block_name(self, block: int) -> str:
        """Format a block of the batch: "block (7, 0, 0)"."""
        return f"block {coordinates(int(self.block_ids[block]), self.grid)}"

    def warp_name(self, warp: int) -> str:
        """Format a warp of the batch: "warp 3 of block (7, 0, 0)"."""
        return f"warp {int(self.warp_in_block[warp])} of {self.block_name(int(self.block_of_warp[warp]))}"


class Lanes:
    """The lanes that bound code runs on. ``active`` is None if all of them take part.

    ``version`` changes whenever the lanes change (in scratch rows) or shared memory was cleared: cached address data
    are then invalid. ``rows`` are registers as rows of these lanes, by the kind as which they are viewed.
    """

    def __init__(self, geometry: BatchGeometry, warps: NDArray[np.int64], *, scratch: bool) -> None:
        self.geometry = geometry
        self.count = len(warps) * LANES
        self.warp_count = len(warps)
        self.active: NDArray[np.bool_] | None = np.empty(self.count, np.bool_) if scratch else None
        self.version = 0
        self.rows: dict[tuple[object, str], Row] = {}
        self._place(warps)

    def _place(self, warps: NDArray[np.int64]) -> None:
        self.warps = warps
        self.columns = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        self.renew()

    def renew(self) -> None:
        """Invalidate cached data: another batch runs."""
        geometry = self.geometry
        self.warp_ids = (
            geometry.block_ids[geometry.block_of_warp[self.warps]] * geometry.warps + geometry.warp_in_block[self.warps]
        )
        self._bases: dict[str, Row] = {}
        self.version += 1

    def choose(self, warps: NDArray[np.int64], active: NDArray[np.bool_]) -> None:
        """Choose other lanes (scratch rows only): ``active`` is bool[warps, 32]."""
        if self.active is None:
            return
        flat = active.reshape(-1)
        if not np.array_equal(warps, self.warps):
            self._place(warps)
        elif not np.array_equal(flat, self.active):
            self.version += 1
        self.active[...] = flat

    def base(self, kind: str) -> Row | None:
        """Return the offset in bytes of each lane's own part of a region, or None if all lanes share the region."""
        if kind not in self.geometry.bases:
            return None
        if kind not in self._bases:
            self._bases[kind] = self.geometry.bases[kind][self.columns]
        return self._bases[kind]

    def active_warps(self) -> NDArray[np.bool_]:
        """Return the lanes that take part: bool[warps, 32]."""
        if self.active is None:
            return np.ones((self.warp_count, LANES), np.bool_)
        return self.active.reshape(-1, LANES)

    def thread_name(self, lane: int) -> str:
        """Format the thread at one of these lanes, for messages."""
        return self.geometry.thread_name(int(self.columns[lane]))


def by_warp(row: Row, count: int) -> Row:
    """Return a row of ``count`` lanes, or the scalar in its place, as [warps, 32]."""
    # Rows are the usual case, and broadcast_to takes longer than many an exchange.
    return row.reshape(-1, LANES) if row.ndim else np.full((count // LANES, LANES), row)


def shuffle_source(mode: str, b: Row, c: Row) -> tuple[Row, Row]:
    """Return the lane that each lane reads ([warps, 32]), itself if out of range, and whether it is in range."""
    delta, clamp = b.astype(np.int64) & 31, c.astype(np.int64)
    segment, bound = (clamp >> 8) & 31, clamp & 31
    first = _NUMBER & segment
    last = first | (bound & ~segment)
    if mode == "up":
        source = _NUMBER - delta
        inside = source >= last
    else:
        source = {"down": _NUMBER + delta, "bfly": _NUMBER ^ delta, "idx": first | (delta & ~segment)}[mode]
        inside = source <= last
    return np.where(inside, source, _NUMBER) & 31, inside
