"""The depth of a pipeline of asynchronous copies, counted where threads wait for them.

A wait *demands* data: the bytes that nobody has waited for before, of a warp's ``cp.async`` groups or of a phase of an
mbarrier. Two things are counted there: the bytes that are in flight beyond these, issued and not yet demanded, of the
same warp or, at an mbarrier, of its block; and how much arithmetic came between the issue of the newest of the demanded
copies and the wait.

Where a warp copies for others, the order in which the emulator runs both says little. So a copy for an mbarrier counts
from the moment it could be issued: when its warp last computed, or when the last phase that the warp waited for was
complete. In flight at a wait are the copies that could be issued by then and are waited for later.

The emulator has no clock. It measures arithmetic in the clocks that an SM of Hopper needs for it at the peak of its
units, summed over the warps of the block: 4096 additions and multiplications a clock on tensor cores, 128 instructions
of single threads in float32 or less, 64 in float64. Data counts as *ready* if this is at least ``LATENCY``. That is a
convention, not a measurement: other blocks of the SM, integer instructions and waits take time too, a copy may take
longer where memory is busy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.async_units.mbarriers import Key
from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.engine.state.tally import Tally
from matmill.emulator.frontend.syntax import Immediate, Instruction
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.translate import EmulatedProgram

Ints = NDArray[np.int64]

#: Clocks of arithmetic that hide a copy from global memory: about what an uncontended load takes on an H100.
LATENCY = 700
# Operations of the tensor cores in a clock. A share of it is the unit of arithmetic.
_CLOCK = 4096
_SHARES = {
    "matrix_flops": 1,
    **dict.fromkeys(("ffma", "fmul", "fadd", "hfma", "hmul", "hadd"), _CLOCK // 128),
    **dict.fromkeys(("dfma", "dmul", "dadd"), _CLOCK // 64),
}


def has_copies(program: EmulatedProgram) -> bool:
    """Tell whether a program copies to shared memory asynchronously."""
    return any(i.name == "cp" and "async" in i.modifiers for i in program.instructions)


class CopyWaits:
    """The copies in flight of a batch, and its arithmetic since each was issued; waits are counted in ``tally``."""

    def __init__(self, program: EmulatedProgram, geometry: BatchGeometry, tally: Tally) -> None:
        self._program, self._geometry, self._tally = program, geometry, tally
        count = geometry.warp_count
        self._costs = [LANES * sum(_SHARES.get(name, 0) * n for name, n in counts) for counts in program.tallies]
        self._arithmetic = np.zeros(count, np.int64)
        # By warp: bytes issued and demanded so far, and the block's arithmetic at the last issue. The first two rows of
        # a commit are these of the newest committed group, the next two of the one before, as far as any wait reaches.
        self._issued = np.zeros((2, count), np.int64)
        self._demanded = np.zeros(count, np.int64)
        self._committed = np.zeros((_most_allowed(program.instructions) + 1, 2, count), np.int64)
        # By mbarrier and phase: the bytes that it waits for, and the block's arithmetic when the last could be issued.
        self._phases: dict[Key, dict[int, tuple[int, int]]] = {}
        # By mbarrier the block's arithmetic when its last phase was complete; by block that at each counted wait.
        self._completed: dict[Key, int] = {}
        self._completing: list[Key] = []
        self._waits: dict[int, list[int]] = {}
        # By warp: the block's arithmetic from which on it could go on, and its own arithmetic then.
        self._free = np.zeros((2, count), np.int64)

    def begin(self) -> None:
        """Start a batch, with nothing in flight."""
        for rows in (self._arithmetic, self._issued, self._demanded, self._committed, self._free):
            rows[...] = 0
        for each in (self._phases, self._completed, self._completing, self._waits):
            each.clear()

    def ran(self, block: int, warps: slice | Ints) -> None:
        """Record that warps have executed a block of code."""
        if self._costs[block]:
            self._arithmetic[warps] += self._costs[block]
        if self._completing:
            total = self._of_blocks()
            self._completed.update((key, int(total[key[0]])) for key in self._completing)
            self._completing.clear()

    def _of_blocks(self) -> Ints:
        """Return the arithmetic of each thread block."""
        total: Ints = self._arithmetic.reshape(-1, self._geometry.blocks).sum(axis=0)
        return total

    # cp.async

    def issue(self, columns: Ints, amount: Ints) -> None:
        """Record that threads copy ``amount`` bytes each."""
        added = np.bincount(columns // LANES, amount, len(self._demanded)).astype(np.int64)
        warps = np.flatnonzero(added)
        self._issued[0] += added
        self._issued[1, warps] = self._of_blocks()[self._geometry.block_of_warp[warps]]

    def commit(self, warps: Ints) -> None:
        """Close the open group of these warps."""
        self._committed[1:, :, warps] = self._committed[:-1, :, warps]
        self._committed[0, :, warps] = self._issued[:, warps].T

    def wait(self, warps: Ints, allowed: int, i: Instruction) -> None:
        """Count a wait for all but the ``allowed`` newest groups of these warps; -1: for all copies."""
        total, stamp = (self._issued if allowed < 0 else self._committed[allowed])[:, warps]
        nbytes = total - self._demanded[warps]
        due = nbytes > 0
        if due.any():
            since = self._of_blocks()[self._geometry.block_of_warp[warps]] - stamp
            self._demanded[warps[due]] = total[due]
            self._count(i, nbytes[due], (self._issued[0, warps] - total)[due], since[due])

    def hand_over(self, columns: Ints, key: Key, phase: int) -> None:
        """Let a phase of an mbarrier wait for all copies of threads (``cp.async.mbarrier.arrive``)."""
        warps = np.unique(columns // LANES)
        nbytes = int((self._issued[0, warps] - self._demanded[warps]).sum())
        self._demanded[warps] = self._issued[0, warps]
        if nbytes:
            self._expect(key, phase, nbytes, int(self._of_blocks()[key[0]]))

    # Phases of mbarriers

    def load(self, key: Key, phase: int, nbytes: int, warp: int) -> None:
        """Record a copy by a warp, whose bytes a phase of an mbarrier waits for."""
        if self._arithmetic[warp] != self._free[1, warp]:
            self._free[:, warp] = self._of_blocks()[self._geometry.block_of_warp[warp]], self._arithmetic[warp]
        self._expect(key, phase, nbytes, int(self._free[0, warp]))

    def _expect(self, key: Key, phase: int, nbytes: int, stamp: int) -> None:
        phases = self._phases.setdefault(key, {})
        before, latest = phases.get(phase, (0, 0))
        phases[phase] = before + nbytes, max(latest, stamp)

    def complete(self, key: Key) -> None:
        """Record that the open phase of an mbarrier is complete, at the end of the block of code that runs."""
        self._completing.append(key)

    def go_on(self, key: Key, warps: Ints) -> None:
        """Record that warps have waited for the last phase of an mbarrier."""
        self._free[0, warps] = np.maximum(self._free[0, warps], self._completed.get(key, 0))

    def passed(self, key: Key, phase: int, i: Instruction) -> None:
        """Count a wait for the bytes of all phases of an mbarrier before ``phase``, if it is the first."""
        phases = self._phases.get(key)
        due = [phases.pop(each) for each in list(phases) if each < phase] if phases else []
        if due:
            nbytes, stamp = sum(size for size, _ in due), max(stamp for _, stamp in due)
            now, waits = int(self._of_blocks()[key[0]]), self._waits.setdefault(key[0], [])
            # These bytes were in flight at each wait since they could be issued.
            ahead = nbytes * (len(waits) - bisect_left(waits, stamp))
            waits.append(now)
            self._count(i, *(np.array([each]) for each in (nbytes, ahead, now - stamp)))

    def _count(self, i: Instruction, nbytes: Ints, in_flight: Ints, since: Ints) -> None:
        """Count waits of an instruction."""
        where, clocks = self._program.index_of(i), since // _CLOCK
        ready = int((clocks >= LATENCY).sum())
        amounts = (len(nbytes), int(in_flight.sum()), ready, int(nbytes.sum()))
        for kind, counts in (("copy wait", amounts), ("copy work", (int(clocks.sum()),))):
            total = self._tally.traffic(where, "shared", kind)
            for n, count in enumerate(counts):
                total[n] += count


def _most_allowed(instructions: Sequence[Instruction]) -> int:
    """Return the most groups that any ``cp.async.wait_group`` of a program leaves in flight."""
    waits = (i.operands[:1] for i in instructions if i.name == "cp" and {"async", "wait_group"} <= set(i.modifiers))
    return max((int(each.value) for operands in waits for each in operands if isinstance(each, Immediate)), default=0)
