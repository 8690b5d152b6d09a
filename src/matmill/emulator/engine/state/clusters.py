"""Thread block clusters of a batch: the blocks of each, and its barrier.

PTX ISA, "Parallel Synchronization and Communication Instructions: barrier.cluster". A batch has whole clusters, with
the blocks of each next to each other in the order of ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.engine.lanes import BatchGeometry
from matmill.emulator.memory.banks import LANES
from matmill.launch import Launch

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def cluster_order(launch: Launch) -> Ints:
    """Return the blocks of a grid by cluster and rank: int64[clusters, blocks of a cluster]."""
    x, y, z = launch.grid
    a, b, c = launch.cluster
    ids = np.arange(launch.blocks).reshape(z // c, c, y // b, b, x // a, a)
    return ids.transpose(0, 2, 4, 1, 3, 5).reshape(-1, a * b * c)


class ClusterBarrier:
    """The barriers of a batch's clusters. A thread waits for the generation in which it arrived.

    ``live`` (bool[threads of the batch], the machine's) has the threads that exist and have not returned.
    """

    def __init__(self, geometry: BatchGeometry, size: int, live: Flags) -> None:
        self.size = size
        self._live = live
        self.completions = 0
        columns = geometry.columns
        self._cluster = np.repeat(geometry.block_of_warp, LANES) // size
        self._arrived = np.zeros(columns, np.bool_)
        self._joined = np.full(columns, -1, np.int64)
        self._generation = np.zeros(geometry.blocks // size, np.int64)

    def begin(self) -> None:
        """Start a batch, in which nobody has arrived."""
        self._arrived[...] = False
        self._joined.fill(-1)
        self._generation.fill(0)

    def arrive(self, columns: Ints) -> int | None:
        """Record the arrival of these threads; return one of them that had arrived already, or None."""
        twice = columns[self._joined[columns] >= 0]
        self._arrived[columns] = True
        self._joined[columns] = self._generation[self._cluster[columns]]
        self.complete(np.unique(self._cluster[columns]))
        return int(twice[0]) if len(twice) else None

    def complete(self, clusters: Ints) -> None:
        """Open the barriers of those ``clusters`` whose live threads have all arrived."""
        for cluster in clusters:
            members = self._cluster == cluster
            if self._arrived[members].any() and not (self._live & ~self._arrived & members).any():
                self._arrived[members] = False
                self._generation[cluster] += 1
                self.completions += 1

    def past(self, columns: Ints) -> Flags:
        """Return which of these threads need not wait; one that never arrived waits for ever."""
        joined = self._joined[columns]
        return (joined >= 0) & (joined < self._generation[self._cluster[columns]])

    def waited(self, columns: Ints) -> None:
        """Allow threads that have waited to arrive again."""
        self._joined[columns] = -1

    def exited(self, columns: Ints) -> None:
        """Stop waiting for threads that have returned."""
        self.complete(np.unique(self._cluster[columns]))
