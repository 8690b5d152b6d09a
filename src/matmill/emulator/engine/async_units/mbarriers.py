"""The mbarriers of a batch of thread blocks: phases, pending arrivals and transaction counts.

PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier". A barrier's 64 bits are opaque, so its
state is kept outside shared memory. Phases are numbered without end, of which the hardware keeps one bit: a phase that
nobody observed before the next one completed is reported, since a wait for it would confuse the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.report.hazards import HazardLog

#: The key of an mbarrier: its block in the batch and its byte offset in that block's window.
Key: TypeAlias = tuple[int, int]

MOST_ARRIVALS = MOST_BYTES = (1 << 20) - 1
SIZE = 8
_PHASE_SHIFT = 32


@dataclass(slots=True)
class Mbarrier:
    """The state of one barrier.

    ``observed`` is the last phase that a wait has observed as complete. ``brought`` are the last phase to which a copy
    brought bytes, and that copy.
    """

    expected: int
    pending: int
    where: str
    transactions: int = 0
    phase: int = 0
    observed: int = -1
    brought: tuple[int, Instruction] | None = None

    @property
    def token(self) -> int:
        """The state as mbarrier.arrive returns it."""
        return self.phase << _PHASE_SHIFT | self.pending

    def is_past(self, phase: int, *, parity: bool) -> bool:
        """Tell whether the phase of a token (with ``parity``, of a parity) is complete."""
        return self.phase % 2 != phase & 1 if parity else self.phase > phase >> _PHASE_SHIFT

    def __str__(self) -> str:
        return f"phase {self.phase}, {self.pending} of {self.expected} arrivals pending, {self.transactions} B to come"


class Mbarriers:
    """The live barriers of one batch. ``completions`` counts completed phases; ``phase_done`` is called for each.

    ``observed`` is called for each successful wait, with the open phase.
    """

    def __init__(
        self,
        kernel: str,
        hazards: HazardLog,
        phase_done: Callable[[Key], None],
        observed: Callable[[Key, int, Instruction], None],
    ) -> None:
        self.live: dict[Key, Mbarrier] = {}
        self.completions = 0
        self._offsets: list[int] = []
        self._kernel = kernel
        self._hazards = hazards
        self._phase_done = phase_done
        self._observed = observed

    def begin(self) -> None:
        """Start a batch, without live barriers."""
        self.live.clear()
        self._offsets = []

    def init(self, key: Key, count: int, i: Instruction) -> None:
        """Execute ``mbarrier.init``: phase 0, all of ``count`` arrivals pending."""
        if key in self.live:
            self.report(i, f"initialises an mbarrier that is live since {self.live[key].where}, without mbarrier.inval")
        if not 1 <= count <= MOST_ARRIVALS:
            self.report(i, f"initialises an mbarrier for {count} arrivals, not 1 to {MOST_ARRIVALS}")
        self.live[key] = Mbarrier(count, count, i.location)
        self._index()

    def inval(self, key: Key, i: Instruction) -> None:
        """Execute ``mbarrier.inval``: the barrier ends."""
        if self.find(key, i) is not None:
            del self.live[key]
            self._index()

    def _index(self) -> None:
        self._offsets = sorted({offset for _, offset in self.live})

    def find(self, key: Key, i: Instruction) -> Mbarrier | None:
        """Return the barrier that an instruction names, or report that there is none and return None."""
        barrier = self.live.get(key)
        if barrier is None:
            self.report(i, f"uses byte {key[1]} of shared memory, where no mbarrier was initialised")
        return barrier

    def arrive(self, key: Key, count: int, i: Instruction, *, drop: bool = False, completes: bool = True) -> int:
        """Subtract ``count`` arrivals from the open phase; return the token before."""
        barrier = self.find(key, i)
        if barrier is None:
            return 0
        token, phase = barrier.token, barrier.phase
        if not 1 <= count <= barrier.pending:
            self.report(i, f"arrives {count} times at an mbarrier in {barrier}")
            return token
        barrier.pending -= count
        if drop:
            barrier.expected -= count
        self._advance(key, barrier, i)
        if not completes and barrier.phase != phase:
            self.report(i, f"completes the phase of an mbarrier, which .noComplete rules out: {barrier}")
        return token

    def phase(self, key: Key) -> int:
        """Return the open phase of a barrier, 0 for one that does not exist."""
        return self.live[key].phase if key in self.live else 0

    def closes(self, key: Key, count: int) -> bool:
        """Tell whether ``count`` arrivals are the last that a barrier's open phase expects."""
        barrier = self.live.get(key)
        return barrier is not None and barrier.pending <= count

    def add_pending(self, key: Key, count: int, i: Instruction) -> None:
        """Expect ``count`` more arrivals in the open phase."""
        barrier = self.find(key, i)
        if barrier is not None:
            barrier.pending += count
            if barrier.pending > MOST_ARRIVALS:
                self.report(i, f"awaits more than {MOST_ARRIVALS} arrivals: {barrier}")

    def expect(self, key: Key, nbytes: int, i: Instruction) -> None:
        """Execute ``expect_tx``: expect ``nbytes`` more in the open phase (fewer if negative)."""
        barrier = self.find(key, i)
        if barrier is None:
            return
        barrier.transactions += nbytes
        if abs(barrier.transactions) > MOST_BYTES:
            self.report(i, f"takes the transaction count of an mbarrier out of its range: {barrier}")
        self._advance(key, barrier, i)

    def bring(self, key: Key, nbytes: int, i: Instruction) -> None:
        """Subtract ``nbytes``, which a copy has written, from the pending bytes."""
        if key in self.live:
            self.live[key].brought = self.live[key].phase, i
        self.expect(key, -nbytes, i)

    def unwaited(self) -> Iterator[tuple[Key, Instruction]]:
        """Yield barriers with a last copy that no thread has waited for, and that copy."""
        for key, barrier in self.live.items():
            if barrier.brought is not None and barrier.observed < barrier.brought[0]:
                yield key, barrier.brought[1]

    def past(self, key: Key, phase: int, i: Instruction, *, parity: bool) -> bool:
        """Tell whether a phase is complete; if so, it counts as observed."""
        barrier = self.find(key, i)
        if barrier is None:
            return True
        passed = barrier.is_past(phase, parity=parity)
        if passed:
            barrier.observed = barrier.phase - 1
            self._observed(key, barrier.phase, i)
        return passed

    def report(self, i: Instruction, problem: str) -> None:
        """Report a misuse as a hazard."""
        self._hazards.add("mbarrier", i, f"{self._kernel}: {i.text!r} {problem}", i)

    def near(self, start: int, end: int) -> bool:
        """Tell whether a range of shared memory, in any block, may contain a barrier."""
        offsets = self._offsets
        return bool(offsets) and start < offsets[-1] + SIZE and end > offsets[0]

    def hit(self, block: int, offset: int, width: int) -> Key | None:
        """Return the barrier that overlaps ``width`` bytes of a block's shared memory."""
        first = offset - offset % SIZE
        return next((key for o in range(first, offset + width, SIZE) if (key := (block, o)) in self.live), None)

    def describe(self, block_name: Callable[[int], str]) -> list[str]:
        """Describe the live barriers for the message about a deadlock.

        ``block_name`` returns the name of a block of the batch.
        """
        return [
            f"mbarrier at byte {offset} of {block_name(block)}: {barrier}"
            for (block, offset), barrier in self.live.items()
        ]

    def _advance(self, key: Key, barrier: Mbarrier, i: Instruction) -> None:
        """Complete the open phase if no arrivals and no bytes are pending.

        Bytes arrive in pieces. If more come than were expected, the pending count may pass through 0 (measured on an
        H200): then the phase ends early, and the rest counts in the next one.
        """
        if barrier.pending or barrier.transactions > 0:
            return
        if barrier.transactions < 0:
            self.report(i, f"brings {-barrier.transactions} B more to an mbarrier than its phase expects: {barrier}")
        if barrier.observed < barrier.phase - 1:
            self.report(
                i,
                f"completes phase {barrier.phase} of an mbarrier at byte {key[1]} of shared memory before any thread "
                f"has observed the end of phase {barrier.phase - 1}, for which a wait would now block",
            )
        barrier.phase += 1
        barrier.pending = barrier.expected
        self.completions += 1
        self._phase_done(key)
