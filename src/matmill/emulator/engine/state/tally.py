"""Counts while a kernel runs: plain integers in lists, converted to :class:`Counters` at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.emulator.memory.banks import LANES, SECTOR_BYTES
from matmill.emulator.report.counters import (
    CLASSES,
    LINE_FIELDS,
    MATRIX_CLASSES,
    Conflict,
    Counters,
    LineCounts,
    MemoryAccess,
)

if TYPE_CHECKING:
    from matmill.emulator.engine.lanes import Lanes
    from matmill.emulator.frontend.syntax import Instruction
    from matmill.emulator.program.translate import EmulatedProgram

_NAMES = {
    ("global", "read"): ("global_load_requests", "global_load_sectors", None, "global_load_bytes"),
    ("global", "write"): ("global_store_requests", "global_store_sectors", None, "global_store_bytes"),
    ("global", "copy"): ("cp_async_requests", "cp_async_sectors", "cp_async_global_requests", "cp_async_bytes"),
    ("global", "bulk load"): ("bulk_loads", "bulk_load_sectors", "bulk_load_wavefronts", "bulk_load_bytes"),
    ("global", "bulk store"): ("bulk_stores", "bulk_store_sectors", "bulk_store_wavefronts", "bulk_store_bytes"),
    ("shared", "read"): (
        "shared_load_requests", "shared_load_wavefronts", "shared_load_wavefronts_ideal", "shared_load_bytes",
    ),
    ("shared", "write"): (
        "shared_store_requests", "shared_store_wavefronts", "shared_store_wavefronts_ideal", "shared_store_bytes",
    ),
    ("shared", "copy"): (None, "cp_async_shared_wavefronts", None, None),
    ("shared", "ldmatrix"): (
        "shared_load_requests", "shared_load_wavefronts", "shared_load_wavefronts_ideal", "shared_load_bytes",
    ),
    ("shared", "stmatrix"): (
        "shared_store_requests", "shared_store_wavefronts", "shared_store_wavefronts_ideal", "shared_store_bytes",
    ),
    ("shared", "wgmma"): (None, None, None, "wgmma_shared_bytes"),
    ("texture", "read"): ("texture_requests",),
    ("surface", "read"): ("surface_load_requests",),
    ("surface", "write"): ("surface_store_requests",),
    ("shared", "mbarrier wait"): ("mbarrier_waits", None, None, None),
    ("shared", "mbarrier arrival"): ("mbarrier_arrivals", None, None, None),
    ("shared", "copy wait"): ("copy_waits", "copy_bytes_in_flight", "copy_waits_ready", "copy_bytes_waited"),
    ("shared", "copy work"): ("copy_work_clocks",),
}  # fmt: skip
#: Accesses of a warp's lanes, each at an address of its own.
_BY_LANES = ("read", "write", "copy", "atomic", "ldmatrix", "stmatrix")
#: Atomics on more addresses than these are counted, but not their addresses.
_MOST_ADDRESSES = 64
#: Of neighbouring threads at least so many have addresses at one distance, or it is not said.
_MOST = 0.75


class Tally:
    """The counts of one worker."""

    def __init__(self, program: EmulatedProgram) -> None:
        self.program = program
        self.block_threads = [0] * len(program.blocks)
        self.block_warps = [0] * len(program.blocks)
        self.barriers = 0
        self._guarded = dict.fromkeys(CLASSES, 0)
        self._guarded_flops = 0
        self._traffic: dict[tuple[int, str, str], list[int]] = {}
        self._atomics: dict[int, int] = {}
        self._updated: dict[int, set[int]] = {}
        self._conflicts: dict[int, Conflict] = {}
        self.patterns: dict[int, tuple[int, int | None, int | None]] = {}

    def guarded(self, name: str, flops: int, guard: NDArray[np.bool_], lanes: Lanes) -> None:
        """Count an instruction of ``flops`` per lane for the active threads for which its guard holds."""
        threads = int(np.count_nonzero(guard if lanes.active is None else guard & lanes.active))
        self._guarded[name] += threads
        self._guarded_flops += threads * flops

    def traffic(self, where: int, space: str, kind: str) -> list[int]:
        """Return the totals of one instruction: requests, sectors or wavefronts, ideal wavefronts, bytes.

        Callers add to them.
        """
        return self._traffic.setdefault((where, space, kind), [0, 0, 0, 0])

    def requests(self, where: int, kind: str, count: int) -> None:
        """Count requests of an instruction to shared memory that have no width."""
        self.traffic(where, "shared", kind)[0] += count

    def atomics(self, where: int, threads: int, addresses: Iterable[int]) -> None:
        """Count the atomic operations of an instruction, and the distinct ``addresses`` that they update."""
        self._atomics[where] = self._atomics.get(where, 0) + threads
        known = self._updated.setdefault(where, set())
        if len(known) <= _MOST_ADDRESSES:
            known.update(addresses)

    def conflict(self, where: int, other: Conflict) -> None:
        """Keep the access of an instruction with the most conflicts."""
        known = self._conflicts.get(where)
        if known is None or _excess(other) > _excess(known):
            self._conflicts[where] = other

    @property
    def worst(self) -> Conflict | None:
        """The access with the most conflicts."""
        return max(self._conflicts.values(), key=_excess, default=None)

    def pattern(self, where: int, width: int, addresses: Row, active: Mask, lanes: Lanes) -> None:
        """Keep how far apart neighbouring threads' addresses are in an execution of an instruction."""
        self.patterns[where] = (width, *_strides(addresses.reshape(-1), active.reshape(-1), lanes))

    def merge(self, other: Tally) -> None:
        """Add the counts of another worker."""
        self.block_threads = [a + b for a, b in zip(self.block_threads, other.block_threads, strict=True)]
        self.block_warps = [a + b for a, b in zip(self.block_warps, other.block_warps, strict=True)]
        self.barriers += other.barriers
        for name, count in other._guarded.items():
            self._guarded[name] += count
        self._guarded_flops += other._guarded_flops
        for key, counts in other._traffic.items():
            mine = self.traffic(*key)
            mine[:] = [a + b for a, b in zip(mine, counts, strict=True)]
        for where, count in other._atomics.items():
            self.atomics(where, count, other._updated[where])
        for where, conflict in other._conflicts.items():
            self.conflict(where, conflict)
        self.patterns = other.patterns | self.patterns

    def accesses(self) -> tuple[MemoryAccess, ...]:
        """Return the traffic of each instruction that accesses memory lane by lane."""
        result = []
        for (where, space, kind), (requests, passes, wavefronts, size) in sorted(self._traffic.items()):
            if kind in _BY_LANES and space in {"global", "shared", "local"}:
                i = self.program.instructions[where]
                ideal = max(requests, -(-size // SECTOR_BYTES)) if space == "global" else wavefronts
                width, x, y = self.patterns.get(where, (0, None, None))
                updated = len(self._updated.get(where, ()))
                access = MemoryAccess(
                    i.location, i.text, space, kind, requests, passes, ideal, size, width, x, y,
                    self._atomics.get(where, 0), updated if updated <= _MOST_ADDRESSES else 0,
                    self._conflicts.get(where) if space == "shared" else None,
                )  # fmt: skip
                result.append(access)
        return tuple(result)

    def by_line(self) -> dict[str, LineCounts]:
        """Return the counts by source line."""
        lines: dict[str, dict[str, int]] = {}

        def line(where: int) -> dict[str, int]:
            return lines.setdefault(self.program.instructions[where].location, dict.fromkeys(LINE_FIELDS, 0))

        for (where, space, kind), counts in self._traffic.items():
            for name, count in zip(_NAMES.get((space, kind), ()), counts, strict=False):
                if name is not None:
                    line(where)[name] += count
            if kind in {"ldmatrix", "stmatrix"}:
                line(where)[f"{kind}_requests"] += counts[0]
        for where, count in self._atomics.items():
            line(where)["atomics"] += count
        for instruction, warps, _ in self._executed():
            line(self.program.index_of(instruction))["instructions"] += warps
        return {location: LineCounts(**counts) for location, counts in sorted(lines.items())}

    def threads_by_line(self) -> dict[str, int]:
        """Return the instructions of each source line, times the threads that took part."""
        totals: dict[str, int] = {}
        for instruction, _, threads in self._executed():
            totals[instruction.location] = totals.get(instruction.location, 0) + threads
        return totals

    def _executed(self) -> Iterator[tuple[Instruction, int, int]]:
        """Yield the instructions that ran, with how many warps and threads executed each."""
        for block, warps, threads in zip(self.program.blocks, self.block_warps, self.block_threads, strict=True):
            end = block.end
            for action in block.actions if warps else ():
                yield action.instruction, warps, threads
            if warps and end.instruction is not None and (end.kind != "wait" or end.action is not None):
                yield end.instruction, warps, threads

    def counters(self, by_line: dict[str, LineCounts]) -> Counters:
        """Return the counts of the whole launch."""
        totals = dict.fromkeys((*LINE_FIELDS, *CLASSES, "matrix_flops"), 0)
        for counts in by_line.values():
            for name in LINE_FIELDS:
                totals[name] += getattr(counts, name)
        for threads, tally in zip(self.block_threads, self.program.tallies, strict=True):
            for name, count in tally:
                totals[name] += threads * count
        for name, count in self._guarded.items():
            totals[name] += count
        totals["matrix_flops"] += self._guarded_flops
        for name in MATRIX_CLASSES:
            totals[name] //= LANES
        return Counters(**totals, barriers=self.barriers)


def _excess(conflict: Conflict) -> int:
    return conflict.wavefronts - conflict.ideal


def _strides(addresses: Row, active: Mask, lanes: Lanes) -> tuple[int | None, int | None]:
    """Return the bytes between threads that are neighbours in threadIdx.x and .y, in the first block of the lanes."""
    geometry = lanes.geometry
    columns, at = lanes.columns[active], addresses[active]
    block = geometry.block_of_warp[columns // LANES]
    columns, at = columns[block == block[0]], at[block == block[0]]
    thread, (wide, high, _) = geometry.thread[columns], geometry.block
    x, y = thread % wide, thread // wide % high
    return _usual(thread, at, 1, x + 1 < wide), _usual(thread, at, wide, y + 1 < high)


def _usual(thread: NDArray[np.int64], at: Row, step: int, inside: Mask) -> int | None:
    """Return the usual distance from a thread's address to that of the thread ``step`` further, if there is one."""
    number = np.minimum(np.searchsorted(thread, thread + step), len(thread) - 1)
    both = inside & (thread[number] == thread + step)
    distances, counts = np.unique(at[number[both]] - at[both], return_counts=True)
    return int(distances[counts.argmax()]) if len(counts) and counts.max() >= _MOST * counts.sum() else None
