"""The state of one batch of thread blocks: register files, memory, counts and hazards.

Bound instructions (``bind``) and the scheduler (``schedule``) change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.row import Row
from matmill.emulator.engine.async_units.async_copies import PendingCopies
from matmill.emulator.engine.async_units.async_queue import AsyncQueue
from matmill.emulator.engine.async_units.bulk_groups import BulkGroups
from matmill.emulator.engine.async_units.mbarriers import Key, Mbarriers
from matmill.emulator.engine.async_units.warpgroup_products import WarpgroupProducts
from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.engine.state.clusters import ClusterBarrier
from matmill.emulator.engine.state.copy_waits import CopyWaits, has_copies
from matmill.emulator.engine.state.dependent_launch import GridDependency
from matmill.emulator.engine.state.launch import LaunchContext
from matmill.emulator.engine.state.register_pool import RegisterPool, registers_at_launch
from matmill.emulator.engine.state.special_rows import special_row
from matmill.emulator.engine.state.swizzle_marks import SwizzleMarks
from matmill.emulator.engine.state.tally import Tally
from matmill.emulator.engine.state.unset import UnsetValues
from matmill.emulator.frontend.syntax import Instruction, Variable
from matmill.emulator.memory.address_space import (
    SHARED_BASE,
    SHARED_WINDOW,
    Allocation,
    shared_targets,
    window_of,
    words,
)
from matmill.emulator.memory.banks import LANES
from matmill.emulator.memory.regions import Region
from matmill.emulator.program.register_rows import file_of
from matmill.emulator.races.async_units.async_detector import AsyncDetector
from matmill.emulator.races.async_units.async_events import AsyncEvents
from matmill.emulator.report.hazards import HazardLog

_DTYPES = {"p": "?", "16": "u2", "32": "u4", "64": "u8"}
# The initial contents of shared memory: NaN as float32, which exposes a missing store.
_POISON = 0xFF


@dataclass
class PendingCollective:
    """Lanes of one warp (bool[32]) that met for a collective at different instructions of one kind.

    ``sources`` are the operands of all of them, [32] each. ``pending`` lanes have not executed it yet.
    """

    lanes: NDArray[np.bool_]
    pending: NDArray[np.bool_]
    sources: list[Row]


class Machine:
    """The state of one batch of ``blocks`` thread blocks, reusable for other batches of the same size."""

    def __init__(self, context: LaunchContext, blocks: int) -> None:
        program, launch = context.program, context.launch
        self.context = context
        self.program = program
        self.launch = launch
        self.space = context.space
        self.heap = context.heap
        self.symbols = context.symbols
        self.parameters = context.parameters
        self.detector = context.detector
        self.counting = context.counting
        self.tally = Tally(program)
        self.hazards = HazardLog()
        self.buffers = Buffers()
        self.underflow = [False]
        self.progress = 0
        # Atomics that changed nothing, since all warps last had their turns.
        self.vain = 0
        self.ticks = 0
        self.events: AsyncEvents | None = context.detector if isinstance(context.detector, AsyncDetector) else None
        self.mbarriers = Mbarriers(launch.kernel, self.hazards, self._phase_done, self._observed)
        self.queue = AsyncQueue(late=context.late_copies)
        self.maps = context.maps
        shared_end = program.shared_end(launch.dynamic_shared)
        stride = -(-max(shared_end - SHARED_BASE, 16) // 128) * 128
        self.geometry = BatchGeometry(blocks, launch.grid, launch.block, stride, program.local_bytes)
        counts = context.counting and has_copies(program)
        self.copy_waits = CopyWaits(program, self.geometry, self.tally) if counts else None
        # The threads that exist and have not exited: bool[warps, 32]. The scheduler updates it.
        self.live = np.zeros((self.geometry.warp_count, LANES), np.bool_)
        self.pending_collectives: dict[int, list[PendingCollective]] = {}
        self.swizzles = SwizzleMarks(stride * blocks)
        self.bulk = BulkGroups(self.geometry.columns, late=context.late_copies)
        self.cluster = ClusterBarrier(self.geometry, math.prod(launch.cluster), self.live.reshape(-1))
        self.dependency = (
            GridDependency(launch, self.geometry, self.hazards, context.waits, context.pdl_writes)
            if launch.pdl
            else None
        )
        self.files = {
            name: np.zeros((max(rows, 1), self.geometry.columns), _DTYPES[name])
            for name, rows in program.layout.sizes.items()
        }
        shared = words(np.zeros(stride * blocks // 16, np.complex128).view(np.uint8))
        self.written = np.zeros(stride * blocks // 8, np.uint64).view(np.uint8)
        self.shared = Region("shared", SHARED_BASE, shared_end, shared, written=words(self.written))
        self._local = np.zeros(max(program.local_bytes * self.geometry.columns // 16, 1), np.complex128).view(np.uint8)
        self.unset = (
            UnsetValues(program, self.geometry.columns, launch.kernel, self.hazards)
            if program.has_unset_values
            else None
        )
        self._local_written = np.zeros_like(self._local) if self.unset is not None else None
        written = words(self._local_written) if self._local_written is not None else None
        self._own = {
            "shared": self.shared,
            "local": Region("local", 0, program.local_bytes, words(self._local), written=written),
            "param": Region("param", 0, program.parameter_bytes, words(context.parameters)),
        }
        self._regions: dict[str, Region] = {}
        self.copies = PendingCopies(self.geometry.columns, shared, context.space, late=context.late_copies)
        at_launch = registers_at_launch(program.entry.registers, program.instructions)
        self.registers = RegisterPool(self.geometry, launch.kernel, at_launch)
        self.products = WarpgroupProducts(
            self.geometry, self.files["32"], launch.kernel, self.hazards, late=context.late_copies,
            own_waits=context.own_waits,
        )  # fmt: skip

    def begin(self, block_ids: NDArray[np.int64]) -> None:
        """Start a batch: ``block_ids`` are the numbers of its blocks in the grid."""
        self.geometry.block_ids = block_ids
        self.shared.words[1].fill(_POISON)
        self.written.fill(0)
        if self.program.reserved_shared:
            for data, value in ((self.shared.data, 0), (self.written, 1)):
                data.reshape(self.geometry.blocks, -1)[:, : self.program.reserved_shared] = value
        for name, row in self.program.layout.specials.items():
            values = special_row(name, self.geometry, self.launch, self.program, self.context.workspace)
            self.files["32"][row] = values if isinstance(values, int) else values.astype(np.uint32)
        if self.unset is not None and self._local_written is not None:
            self._poison(self._local_written)
            self.unset.begin()
        self.mbarriers.begin()
        if self.copy_waits is not None:
            self.copy_waits.begin()
        self.cluster.begin()
        self.bulk.begin()
        self.swizzles.begin()
        if self.dependency is not None:
            self.dependency.begin()

    def _poison(self, local_written: NDArray[np.uint8]) -> None:
        """Fill local memory, and registers that may be read unset, with ones; predicates with false."""
        self._local.fill(_POISON)
        local_written.fill(0)
        for register in self.program.layout.unset:
            file = file_of(register)
            row = self.files[file][self.program.layout.rows[register]]
            row.fill(False if file == "p" else np.iinfo(row.dtype).max)

    def address_of(self, variable: Variable) -> int:
        """Return the address of a variable in its own state space."""
        if variable in self.program.offsets:
            return self.program.offsets[variable]
        if variable in self.program.parameters:
            return self.program.parameters[variable]
        return self.symbols[variable]

    def region_at(self, space: str, address: int) -> tuple[Region | None, int]:
        """Return the region that contains an address of a state space, and the address in that region's terms."""
        if space == "generic" and address >= SHARED_WINDOW:
            space, window = window_of(address)
            address -= window
        own = self._own.get(space)
        if own is not None:
            return (own if address >= own.start else None), address
        allocation = self.space.find(address)
        return (None if allocation is None else self._region(allocation, space)), address

    def _region(self, allocation: Allocation, space: str) -> Region:
        kind = "const" if space == "const" else "global"
        key = f"{kind}{allocation.start}"
        if key not in self._regions:
            self._regions[key] = Region(
                kind,
                allocation.start,
                allocation.end,
                allocation.words,
                allocation=allocation,
            )
        return self._regions[key]

    def shared_offset(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return shared addresses in the own block, generic or not, as offsets in its window."""
        return addresses & (SHARED_WINDOW - 1)

    def shared_targets(
        self, addresses: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of the batch and the offset in its window of threads' shared addresses.

        ``addresses`` may be generic or not, and may belong to another block of the cluster. The block is -1 for an
        address outside.
        """
        return shared_targets(addresses, self.geometry.block_of_warp[columns // LANES], self.cluster.size)

    def warp_ids(self, warps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Convert warps of the batch to their numbers in the launch."""
        geometry = self.geometry
        ids = geometry.block_ids[geometry.block_of_warp[warps]] * geometry.warps + geometry.warp_in_block[warps]
        return np.asarray(ids, np.int64)

    def threads(self, columns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Convert threads of the batch to warps of the launch (int64[n]) and their lanes (bool[n, 32])."""
        warps, rows = np.unique(columns // LANES, return_inverse=True)
        lanes = np.zeros((len(warps), LANES), np.bool_)
        lanes[rows, columns % LANES] = True
        return self.warp_ids(warps), lanes

    def in_grid(self, key: Key) -> Key:
        """Return the key of an mbarrier with the number of its block in the grid."""
        return int(self.geometry.block_ids[key[0]]), key[1]

    def _phase_done(self, key: Key) -> None:
        if self.copy_waits is not None:
            self.copy_waits.complete(key)
        if self.events is not None:
            self.events.phase_done(self.in_grid(key))

    def _observed(self, key: Key, phase: int, i: Instruction) -> None:
        if self.copy_waits is not None:
            self.copy_waits.passed(key, phase, i)

    def describe(self, space: str, address: int) -> str:
        """Describe an address for messages."""
        if space == "generic" and address >= SHARED_WINDOW:
            space, window = window_of(address)
            address -= window
        if space not in {"shared", "local", "param"}:
            return self.space.describe(address)
        return self.program.describe(space, address, self.launch.dynamic_shared)

    def snapshot(self, warps: NDArray[np.int64]) -> bytes:
        """Return the registers of some warps."""
        columns = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        return b"".join(rows[:, columns].tobytes() for rows in self.files.values())
