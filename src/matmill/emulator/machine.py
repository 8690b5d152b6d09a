"""One batch of blocks running: register files, shared memory, and the warps' program counters.

Each lane has a program counter, a block number; a warp runs the lanes that share its smallest one, so diverged lanes
meet again where their paths do. Lanes that wait have their counter raised beyond all blocks: by ``HOLD`` for lanes of
their own warp, by ``BARRIER`` for other warps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.access import Access, Region
from matmill.emulator.early import Waits
from matmill.emulator.exact import Buffers
from matmill.emulator.flow import Block
from matmill.emulator.hazards import HazardLog, KernelFault, fault
from matmill.emulator.lanes import LANES, Geometry, Lanes
from matmill.emulator.memory import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_BASE,
    SHARED_WINDOW,
    AddressSpace,
    Allocation,
    words,
)
from matmill.emulator.pending import PendingCopies
from matmill.emulator.site import Site
from matmill.emulator.specials import special_row
from matmill.emulator.syntax import Variable
from matmill.emulator.table import Value
from matmill.emulator.tally import Tally

if TYPE_CHECKING:
    from matmill.emulator.program import Program
    from matmill.emulator.races import RaceDetector
    from matmill.launch import Launch

Row: TypeAlias = "NDArray[Any]"
_DTYPES = {"p": "?", "16": "u2", "32": "u4", "64": "u8"}
# What shared memory holds before anything is stored there: as float32 a NaN, so that a forgotten store shows.
_POISON = 0xFF


def window_of(address: int) -> tuple[str, int]:
    """The state space that a generic address above global memory falls into, and where its window begins."""
    if address >= PARAM_WINDOW:
        return "param", PARAM_WINDOW
    return ("local", LOCAL_WINDOW) if address >= LOCAL_WINDOW else ("shared", SHARED_WINDOW)


class Machine:
    """The state of one batch of blocks, reusable for other batches of the same size."""

    def __init__(
        self,
        program: Program,
        launch: Launch,
        space: AddressSpace,
        symbols: dict[Variable, int],
        parameters: NDArray[np.uint8],
        *,
        blocks: int,
        detector: RaceDetector | None,
        counting: bool,
        late_copies: bool,
    ) -> None:
        self.program = program
        self.launch = launch
        self.space = space
        self.symbols = symbols
        self.parameters = parameters
        self.detector = detector
        self.counting = counting
        self.tally = Tally(program)
        self.hazards = HazardLog()
        self.buffers = Buffers()
        self.underflow = [False]
        self.progress = 0
        self.ticks = 0
        # Barriers of the batch, by (block, barrier number): warps that arrived without waiting, threads wanted.
        self.arrived: dict[tuple[int, int], list[int]] = {}
        self.expected: dict[tuple[int, int], int] = {}
        shared_end = program.shared_end(launch.dynamic_shared)
        stride = -(-max(shared_end - SHARED_BASE, 16) // 128) * 128
        self.geometry = Geometry(blocks, launch.threads_per_block, launch.block, stride, program.local_bytes)
        self.waits = Waits(launch, self.geometry, self.hazards) if launch.early else None
        self.files = {
            name: np.zeros((max(rows, 1), self.geometry.columns), _DTYPES[name])
            for name, rows in program.layout.sizes.items()
        }
        shared = np.zeros(stride * blocks // 16, np.complex128).view(np.uint8)
        self.written = np.zeros(stride * blocks // 8, np.uint64).view(np.uint8)
        self.shared = Region("shared", SHARED_BASE, shared_end, words(shared), written=words(self.written))
        local = np.zeros(max(program.local_bytes * self.geometry.columns // 16, 1), np.complex128).view(np.uint8)
        self.local = Region("local", 0, program.local_bytes, words(local))
        self.param = Region("param", 0, program.parameter_bytes, words(parameters))
        self._own = {"shared": self.shared, "local": self.local, "param": self.param}
        self._regions: dict[str, Region] = {}
        self.copies = PendingCopies(self, late=late_copies)
        self._sites: dict[tuple[int, int, int], Site] = {}
        self._lanes: dict[tuple[int, int], Lanes] = {}
        self._scratch_lanes: dict[int, Lanes] = {}
        self._scratch: dict[str, Row] = {}
        self._scratch_sites: dict[tuple[int, int], Site] = {}
        self._touched: dict[int, tuple[dict[str, Row], dict[str, Row]]] = {}

    def begin(self, block_ids: NDArray[np.int64]) -> None:
        """Take up a batch: the numbers of its blocks in the grid."""
        self.geometry.block_ids = block_ids
        self.shared.words[1].fill(_POISON)
        self.written.fill(0)
        for name, row in self.program.layout.specials.items():
            values = special_row(name, self.geometry, self.launch, self.program.static_shared)
            self.files["32"][row] = values if isinstance(values, int) else values.astype(np.uint32)
        self.arrived.clear()
        self.expected.clear()
        if self.waits is not None:
            self.waits.begin()
        for lanes in (*self._lanes.values(), *self._scratch_lanes.values()):
            lanes.renew()

    # Memory

    def address_of(self, variable: Variable) -> int:
        """The address of a variable in its own state space."""
        if variable in self.program.offsets:
            return self.program.offsets[variable]
        if variable in self.program.parameters:
            return self.program.parameters[variable]
        return self.symbols[variable]

    def region_at(self, space: str, address: int, _lanes: Lanes) -> tuple[Region | None, int]:
        """The region that holds an address of a state space, and the address in the region's own terms."""
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
            self._regions[key] = Region(kind, allocation.start, allocation.end, allocation.words, allocation=allocation)
        return self._regions[key]

    def shared_offset(self, addresses: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shared addresses, generic or not, as offsets in the block's window."""
        return addresses & (SHARED_WINDOW - 1)

    def describe(self, space: str, address: int) -> str:
        """An address for messages."""
        if space == "generic" and address >= SHARED_WINDOW:
            space, window = window_of(address)
            address -= window
        if space not in {"shared", "local", "param"}:
            return self.space.describe(address)
        return self.program.describe(space, address, self.launch.dynamic_shared)

    def access_fault(
        self, access: Access, kind: str, *, lane: int, address: int, space: str | None = None
    ) -> KernelFault:
        """The error for one lane's illegal access, in the access's own state space or another one."""
        i, width = access.instruction, access.width
        problem = {"misaligned": f", which is no multiple of {width}", "read-only": ", which is read-only"}.get(
            kind, ""
        )
        message = (
            f"{self.launch.kernel}: {access.addresses.lanes.thread_name(lane)} "
            f"{self.doing(access, address, space)}{problem}, in {i.text!r}"
        )
        return fault(kind, message, i)

    def doing(self, access: Access, address: int, space: str | None = None) -> str:
        """What an access does at an address, of its own state space or another one, for messages."""
        verb = {"read": "reads", "write": "writes", "atomic": "updates", "copy": "copies"}[access.kind]
        return f"{verb} {access.width} bytes at {self.describe(space or access.addresses.space, address)}"

    def look_for_early(
        self, waits: Waits, access: Access, active: NDArray[np.bool_], addresses: Row, space: str | None = None
    ) -> None:
        """Report the first of the ``active`` lanes that accesses global memory in an early launch before it has waited.

        It does so at its own of the ``addresses``, of the access's state space or another one.
        """
        lane = waits.early(access.addresses.lanes, active)
        if lane is not None:
            did = self.doing(access, int(addresses[lane]), space)
            waits.add(access.where, access.addresses.lanes.thread_name(lane), did, access.instruction)

    # Running code

    def run_slice(self, block: int, first: int, last: int) -> None:
        """Run a block for all lanes of the warps from ``first`` to ``last`` (not included), in place."""
        site = self._sites.get((block, first, last))
        if site is None:
            lanes = self._lanes.get((first, last))
            if lanes is None:
                lanes = self._lanes[first, last] = Lanes(self.geometry, np.arange(first, last), scratch=False)
            files = {name: rows[:, first * LANES : last * LANES] for name, rows in self.files.items()}
            site = self._sites[block, first, last] = Site(self, self.program.blocks[block], lanes, files)
        for call, arguments in site.steps:
            call(*arguments)
        self.tally.block_threads[block] += (last - first) * LANES
        self.tally.block_warps[block] += last - first

    def run_masked(self, block: int, warps: NDArray[np.int64], active: NDArray[np.bool_]) -> None:
        """Run a block for the ``active`` lanes (bool[warps, 32]) of any warps, on copies of their rows."""
        count = len(warps)
        lanes = self._scratch_lanes.get(count)
        if lanes is None:
            lanes = self._scratch_lanes[count] = Lanes(self.geometry, warps, scratch=True)
        lanes.choose(warps, active)
        if not self._scratch:
            self._scratch = {name: np.zeros_like(rows) for name, rows in self.files.items()}
        files = {name: rows[:, : count * LANES] for name, rows in self._scratch.items()}
        reads, writes = self._rows_of(block)
        columns = lanes.columns
        for name, rows in reads.items():
            files[name][rows] = self.files[name][rows[:, None], columns]
        site = self._scratch_sites.get((block, count))
        if site is None:
            site = self._scratch_sites[block, count] = Site(self, self.program.blocks[block], lanes, files)
        for call, arguments in site.steps:
            call(*arguments)
        flat = active.reshape(-1)
        chosen = columns[flat]
        for name, rows in writes.items():
            self.files[name][rows[:, None], chosen] = files[name][rows][:, flat]
        self.tally.block_threads[block] += len(chosen)
        self.tally.block_warps[block] += count

    def _rows_of(self, block: int) -> tuple[dict[str, Row], dict[str, Row]]:
        """The rows of each file that a block reads or writes, and those that it writes."""
        known = self._touched.get(block)
        if known is None:
            known = self._touched[block] = self.program.touched_rows(block)
        return known

    def snapshot(self, warps: NDArray[np.int64]) -> bytes:
        """The registers of some warps."""
        columns = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        return b"".join(rows[:, columns].tobytes() for rows in self.files.values())

    def operand_row(self, value: Value, warps: NDArray[np.int64]) -> Row:
        """The values of a block's closing operand for some warps, as [warps, 32]."""
        columns = (warps[:, None] * LANES + np.arange(LANES)).reshape(-1)
        site_value = self.probe(value)
        if not np.ndim(site_value):
            return np.broadcast_to(site_value, (len(warps), LANES))
        return np.asarray(site_value[columns]).reshape(-1, LANES)

    def probe(self, value: Value) -> Row:
        """A source operand over all columns."""
        return self._whole().source(value)

    def result_row(self, value: Value) -> Row:
        """A result operand over all columns."""
        return self._whole().result(value)

    def _whole(self) -> Site:
        key = (-1, 0, self.geometry.warp_count)
        if key not in self._sites:
            lanes = Lanes(self.geometry, np.arange(self.geometry.warp_count), scratch=False)
            self._sites[key] = Site(self, Block(-1), lanes, self.files)
        return self._sites[key]
