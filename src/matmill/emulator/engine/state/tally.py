"""Counts while a kernel runs: plain integers in lists, converted to :class:`Counters` at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.report.counters import CLASSES, LINE_FIELDS, MATRIX_CLASSES, Conflict, Counters, LineCounts

if TYPE_CHECKING:
    from matmill.emulator.engine.lanes import Lanes
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
}  # fmt: skip


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
        self.worst: Conflict | None = None

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

    def atomics(self, where: int, threads: int) -> None:
        """Count the atomic operations of an instruction."""
        self._atomics[where] = self._atomics.get(where, 0) + threads

    def conflict(self, other: Conflict) -> None:
        """Keep the access with more conflicts."""
        if self.worst is None or other.wavefronts - other.ideal > self.worst.wavefronts - self.worst.ideal:
            self.worst = other

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
            self.atomics(where, count)
        if other.worst is not None:
            self.conflict(other.worst)

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
        for block, warps in zip(self.program.blocks, self.block_warps, strict=True):
            for action in block.actions if warps else ():
                line(self.program.index_of(action.instruction))["instructions"] += warps
            if (
                warps
                and block.end.instruction is not None
                and (block.end.kind != "wait" or block.end.action is not None)
            ):
                line(self.program.index_of(block.end.instruction))["instructions"] += warps
        return {line: LineCounts(**counts) for line, counts in sorted(lines.items())}

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
