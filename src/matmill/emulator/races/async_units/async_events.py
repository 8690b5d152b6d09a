"""The events of threads and asynchronous units that meet at mbarriers and cluster barriers, as the engine reports them.

Threads are warps, numbered through the launch (int64[n]), with their lanes (bool[n, 32]). A barrier's key is the number
of its block in the grid and its byte offset in that block's shared memory.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.program.ordering import Ordering

Name: TypeAlias = tuple[int, int]
Ints = NDArray[np.int64]
Lanes = NDArray[np.bool_]


class AsyncEvents(Protocol):
    """A race detector for asynchronous units. An agent is one of their operations, from issue to end."""

    def init_barrier(self, barrier: Name, warps: Ints, lanes: Lanes, *, where: int) -> None:
        """Initialise a barrier by the instruction ``where`` of these threads; nothing has been released into it."""

    def init_fence(self, warps: Ints, lanes: Lanes) -> None:
        """Record ``fence.mbarrier_init`` by these threads."""

    def arrive(self, barrier: Name, warps: Ints, lanes: Lanes, *, where: int) -> None:
        """Release the clocks of threads into the barrier's open phase, by the instruction ``where``."""

    def phase_done(self, barrier: Name) -> None:
        """Complete the open phase: a wait for it acquires its releases."""

    def passed(self, barrier: Name, warps: Ints, lanes: Lanes, *, where: int) -> None:
        """Acquire the last completed phase by a successful wait of these threads, at ``where``."""

    def issue(self, warp: int, lanes: Lanes, *, fenced: bool = False) -> int:
        """Start an operation of some lanes (bool[32]) of a warp; return the agent that performs it.

        If ``fenced``, a fence of the warp itself also makes visible what others wrote before it.
        """

    def agent_access(self, agent: int, kind: str, *, block: int, offsets: Ints, width: int, where: int) -> None:
        """Record an agent's ``kind`` ("read" or "write") of ``width`` bytes at offsets of a block's shared memory."""

    def agent_completes(self, agent: int, barrier: Name, *, where: int) -> None:
        """Complete an agent, issued by the instruction ``where``, and release that into the barrier's open phase."""

    def agent_joined(self, agent: int, warps: Ints, lanes: Lanes) -> None:
        """Join an agent that threads have waited for (it may only have been a wait for its reads)."""

    def proxy_fence(self, warps: Ints, lanes: Lanes, *, space: str = "") -> None:
        """Record ``fence.proxy.async`` by these threads, for "shared" memory, "global" memory, or both ("")."""

    def copies_global(
        self, *, warp: Ints, addresses: Ints, active: Lanes, width: int, kind: str, where: int,
        ordering: Ordering | None,
    ) -> None:  # fmt: skip
        """Record bulk copies' accesses to global memory, as :meth:`RaceDetector.access` has those of threads."""

    def cluster_arrive(self, warps: Ints, lanes: Lanes, *, releases: bool = True) -> None:
        """Record ``barrier.cluster.arrive`` by these threads, with or without release semantics."""

    def cluster_wait(self, warps: Ints, lanes: Lanes) -> None:
        """Record that ``barrier.cluster.wait`` by these threads has ended."""

    def exited(self, block: int, where: int) -> None:
        """Record that the last thread of a block ends at an instruction."""
