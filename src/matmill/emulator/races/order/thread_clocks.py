"""Vector clocks of single threads and asynchronous units: happens-before inside a thread block cluster.

The *actors* of a cluster are its threads and its *agents*. An agent performs one operation of an asynchronous unit: a
bulk copy, or the products of a wgmma group. Agents form pseudo-warps of 32, numbered after all warps of the launch, and
an agent is reused for another operation when it is done. The clock of an actor is that of its warp (``Clocks.now``), or
the number of operations that the agent has begun.

Each actor has a row of two vectors, with an element for every actor of the cluster:

- *known*: the other's clock up to which its accesses happen before this actor's next one;
- *visible*: the other's clock up to which its generic writes are known to be visible to the
  asynchronous units. A thread's own fence.proxy.async sets it, and it is passed on like what is known (PTX ISA,
  "Proxy-preserved base causality order"). A fence by anybody else helps only products (``issue``).

Vectors are int32[2, actors]. Synchronization takes the maximum over rows, and over a barrier's vectors.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import CLOCK_BITS, CLOCK_MASK, LANE_BITS, Clocks, Ints, Lanes, Moment
from matmill.emulator.races.order.race_reports import ATOMIC, WRITE

KNOWN, VISIBLE = 0, 1
NEVER = -1

Vectors = NDArray[np.int32]
Flags = NDArray[np.bool_]


def joined(one: Vectors, two: Vectors) -> Vectors:
    """Return the maximum of vectors, one of which may be older and have fewer agents."""
    wide, other = (one, two) if one.shape[1] >= two.shape[1] else (two, one)
    result = wide.copy()
    head = result[:, : other.shape[1]]
    np.maximum(head, other, out=head)
    return result


class ThreadClocks:
    """The clocks of all clusters of a launch; ``clusters`` (int64[n, size]) are their blocks in the order of ranks.

    A cluster has vectors from its first event to its end. ``clocks`` are the clocks of threads. They also order threads
    that the vectors do not: by releases and acquires (``release_order``).
    """

    def __init__(self, clocks: Clocks, clusters: Ints) -> None:
        self.warps_per_block = clocks.warps_per_block
        self.clocks = clocks
        self.clusters = clusters
        count, size = clusters.shape
        self.cluster_of_block: Ints = np.empty(count * size, np.int64)
        self.cluster_of_block[clusters] = np.arange(count)[:, None]
        rank = np.empty(count * size, np.int64)
        rank[clusters] = np.arange(size)
        within = np.arange(self.warps_per_block)
        self._cluster: Ints = np.repeat(self.cluster_of_block, self.warps_per_block)
        # The number of each warp in its cluster.
        self._member: Ints = (rank[:, None] * self.warps_per_block + within).reshape(-1)
        self.warps = len(self._cluster)
        self._own_warps = size * self.warps_per_block
        self._slot: Ints = np.full(count, -1, np.int64)
        self._free_slots: list[int] = []
        side = self._own_warps + 1
        self._table: Vectors = np.empty((2, 0, side * LANES, side, LANES), np.int32)
        self._agent_clock: Ints = np.zeros((0, side * LANES), np.int64)
        self._free_agents: dict[int, deque[int]] = {}
        self._busy: set[int] = set()
        self._issuers: dict[int, dict[int, int]] = {}
        # What whole warps knew when they last executed a fence.proxy.async.
        self._fenced: dict[int, Vectors] = {}

    @property
    def now(self) -> Ints:
        """Each warp's clock."""
        return self.clocks.now

    @property
    def floor(self) -> Ints:
        """Each warp's clock up to which all its lanes know everything it did."""
        return self.clocks.floor

    # Order

    def unordered(self, keys: Ints, lanes: Lanes, moment: Moment) -> Lanes:
        """Return the lanes whose recorded access does not happen before ``moment``."""
        return self._left(keys, lanes, moment, np.zeros(len(keys), np.int64))

    def conflicting(self, kind: str, keys: Ints, lanes: Lanes, moment: Moment, /) -> Lanes:
        """Return the lanes whose accesses of ``kind`` conflict with, and do not happen before, one at ``moment``."""
        unseen = (kind in (WRITE, ATOMIC)) & (moment.warp >= self.warps) & ((keys >> CLOCK_BITS) <= self.warps)
        left = self._left(keys, lanes, moment, unseen.astype(np.int64))
        ask = np.flatnonzero((left != 0) & (moment.warp < self.warps) & ((keys >> CLOCK_BITS) <= self.warps))
        if ask.size:
            left[ask] = self.clocks.unordered(keys[ask], left[ask], moment.take(ask))
        return left

    def _left(self, keys: Ints, lanes: Lanes, moment: Moment, plane: Ints) -> Lanes:
        """Return the ``lanes`` whose clocks exceed those in the moment's vectors; ``plane`` selects the vector."""
        left = np.zeros(len(keys), np.uint32)
        held = np.flatnonzero(lanes)
        if not held.size:
            return left
        # Neighbouring cells mostly have one history and one accessing thread.
        entries = [each[held] for each in (keys, moment.warp, moment.lane, moment.clock, plane)]
        bits = lanes[held]
        new = np.ones(held.size, np.bool_)
        np.not_equal(bits[1:], bits[:-1], out=new[1:])
        for each in entries:
            new[1:] |= each[1:] != each[:-1]
        keys, warp, lane, now, plane = (each[new] for each in entries)
        first = (keys >> CLOCK_BITS) - 1
        slot, member = self._members(warp)
        _, column = self._members(first)
        clock = keys & CLOCK_MASK
        ordered = self._table[plane, slot, member * LANES + lane, column] >= clock[:, None]
        late = bits[new] & ~np.packbits(ordered, axis=1, bitorder="little").view(np.uint32)[:, 0]
        own = (first == warp) & ((warp < self.warps) | (clock == now))
        late[own] &= ~LANE_BITS[lane[own]]
        left[held] = late[np.cumsum(new) - 1]
        return left

    # Synchronization

    def released(self, warps: Ints, lanes: Flags) -> Vectors:
        """Return the knowledge of some ``lanes`` (bool[n, 32]) of ``warps`` of one cluster, with their own accesses."""
        slot, rows, now = self._rows(warps, lanes)
        vectors: Vectors = self._flat()[:, slot, rows].max(axis=1)
        vectors[KNOWN, rows] = np.maximum(vectors[KNOWN, rows], now)
        return vectors

    def acquire(self, vectors: Vectors, warps: Ints, lanes: Flags) -> None:
        """Add released vectors to the knowledge of some lanes of warps of one cluster."""
        slot, rows, _ = self._rows(warps, lanes)
        own = self._flat()[:, :, :, : vectors.shape[1]]
        own[:, slot, rows] = np.maximum(own[:, slot, rows], vectors[:, None])

    def meet(self, warps: Ints) -> None:
        """Add to all lanes of each group of warps (int64[groups, n]) the knowledge of the whole group."""
        slot, member = self._members(warps)
        rows = (member[:, :, None] * LANES + np.arange(LANES)).reshape(len(warps), -1)
        flat = self._flat()
        vectors = flat[:, slot[:, :1], rows].max(axis=2)
        groups = np.arange(len(warps))[:, None]
        vectors[KNOWN, groups, rows] = np.repeat(self.clocks.now[warps], LANES, axis=1)
        flat[:, slot[:, :1], rows] = vectors[:, :, None]

    def fence(self, warps: Ints, lanes: Flags) -> None:
        """Make the generic writes of these threads visible to the asynchronous units."""
        slot, rows, now = self._rows(warps, lanes)
        self._flat()[VISIBLE, slot, rows, rows] = now
        for warp, members in zip(warps.tolist(), lanes, strict=True):
            if members.all():
                self._fenced[warp] = self.released(np.array([warp]), members[None])[KNOWN]

    def strangers(self, thread: int, clock: int, warps: Ints, lanes: Flags) -> int | None:
        """Return a lane among some of one cluster that does not come after a thread's accesses at a clock, or None."""
        row, lane = np.nonzero(lanes)
        slot, rows, _ = self._rows(warps, lanes)
        own = self.column_of(thread)
        late = np.flatnonzero((self._flat()[KNOWN, slot, rows, own] < clock) & (rows != own))
        return int(warps[row[late[0]]]) * LANES + int(lane[late[0]]) if late.size else None

    # Agents

    def issue(self, warp: int, lanes: Flags, *, fenced: bool = False) -> int:
        """Start an operation of some lanes (bool[32]) of a warp; return its agent, with its clock.

        If ``fenced``, what the whole warp knew at its last fence is visible to the operation, too.
        """
        warps, mask = np.array([warp]), lanes[None]
        vectors = self.released(warps, mask)
        if fenced and warp in self._fenced:
            seen = self._fenced[warp]
            np.maximum(vectors[VISIBLE, : len(seen)], seen, out=vectors[VISIBLE, : len(seen)])
        cluster = int(self._cluster[warp])
        free = self._free_agents[cluster]
        if not free:
            self._add_agents()
        actor = free.popleft()
        slot = int(self._slot[cluster])
        self._agent_clock[slot, actor] += 1
        clock = int(self._agent_clock[slot, actor])
        row = self._flat()[:, slot, actor]
        row.fill(NEVER)
        row[:, : vectors.shape[1]] = vectors
        pseudo = self.warps + (actor // LANES - self._own_warps) * len(self.clusters) + cluster
        agent: int = (pseudo * LANES + actor % LANES) << CLOCK_BITS | clock
        self._busy.add(agent)
        self._issuers[cluster][agent] = warp * LANES + int(lanes.argmax())
        return agent

    def issuer(self, actor: int, clock: int) -> int:
        """Return the thread, numbered through the launch, that started an agent's operation."""
        cluster = (actor // LANES - self.warps) % len(self.clusters)
        thread: int = self._issuers[cluster][actor << CLOCK_BITS | clock]
        return thread

    def issuer_of(self, agent: int) -> int:
        """Return the thread, numbered through the launch, that started an operation."""
        return self.issuer(agent >> CLOCK_BITS, agent & CLOCK_MASK)

    def agent_knows(self, agent: int, thread: int, clock: int) -> bool:
        """Tell whether an agent, while it has begun nothing else, comes after a thread's accesses at a clock."""
        column, began = self.column(agent)
        slot = int(self._slot[self._cluster[thread // LANES]])
        if self._agent_clock[slot, column] != began:
            return True
        return bool(self._flat()[KNOWN, slot, column, self.column_of(thread)] >= clock)

    def moment(self, agent: int, count: int) -> Moment:
        """Return the moment of an agent for ``count`` accesses."""
        actor, clock = agent >> CLOCK_BITS, agent & CLOCK_MASK
        warp, lane, now = (np.full(count, value, np.int64) for value in (*divmod(actor, LANES), clock))
        return Moment(warp, lane, now, now)

    def column(self, agent: int) -> tuple[int, int]:
        """Return an agent's column in vectors, and its clock."""
        actor, clock = agent >> CLOCK_BITS, agent & CLOCK_MASK
        _, member = self._members(np.array([actor // LANES]))
        return int(member[0]) * LANES + actor % LANES, clock

    def finished(self, agent: int) -> Vectors:
        """End an agent's operation and return the knowledge that its end implies; the agent may be reused."""
        column, clock = self.column(agent)
        vectors = np.full((2, self._table.shape[2]), NEVER, np.int32)
        vectors[KNOWN, column] = clock
        if agent in self._busy:
            self._busy.discard(agent)
            self._free_agents[((agent >> CLOCK_BITS) // LANES - self.warps) % len(self.clusters)].append(column)
        return vectors

    def column_of(self, thread: int) -> int:
        """Return the column in vectors of a thread, numbered through the launch."""
        return int(self._member[thread // LANES]) * LANES + thread % LANES

    def known_to(self, block: int) -> Vectors:
        """Return the clocks up to which some thread of a block knows each actor of its cluster: int32[actors]."""
        warps = block * self.warps_per_block + np.arange(self.warps_per_block)
        known: Vectors = self.released(warps, np.ones((len(warps), LANES), np.bool_))[KNOWN]
        return known

    # Storage

    def release(self, blocks: Ints) -> None:
        """Free the vectors of the clusters of ``blocks``, which have ended."""
        for cluster in np.unique(self.cluster_of_block[blocks]).tolist():
            if self._slot[cluster] >= 0:
                self._free_slots.append(int(self._slot[cluster]))
                self._slot[cluster] = -1
                del self._free_agents[cluster]
                self._busy.difference_update(self._issuers.pop(cluster))
        for warp in (blocks[:, None] * self.warps_per_block + np.arange(self.warps_per_block)).ravel().tolist():
            self._fenced.pop(warp, None)

    def _flat(self) -> Vectors:
        """Return the vectors as int32[2, slots, actors, actors]."""
        return self._table.reshape(*self._table.shape[:3], -1)

    def _rows(self, warps: Ints, lanes: Flags) -> tuple[Ints, Ints, Ints]:
        """Return the slots and rows of some lanes of warps, and their clocks."""
        row, lane = np.nonzero(lanes)
        warps = np.asarray(warps, np.int64)[row]
        slot, member = self._members(warps)
        return slot, member * LANES + lane, self.clocks.now[warps]

    def _members(self, warps: Ints) -> tuple[Ints, Ints]:
        """Return the slot of each warp's cluster, and the warp's number in it."""
        agents = warps >= self.warps
        if agents.any():
            number, cluster = np.divmod(warps - self.warps, len(self.clusters))
            own = np.where(agents, 0, warps)
            cluster = np.where(agents, cluster, self._cluster[own])
            member = np.where(agents, self._own_warps + number, self._member[own])
        else:
            cluster, member = self._cluster[warps], self._member[warps]
        slot = self._slot[cluster]
        if (slot < 0).any():
            self._open(np.unique(cluster[slot < 0]))
            slot = self._slot[cluster]
        return slot, member

    def _open(self, clusters: Ints) -> None:
        """Assign slots to clusters, without any knowledge."""
        missing = len(clusters) - len(self._free_slots)
        if missing > 0:
            _, slots, actors, side, _ = self._table.shape
            grown = np.empty((2, slots + missing, actors, side, LANES), np.int32)
            grown[:, :slots] = self._table
            self._table = grown
            self._agent_clock = np.concatenate([self._agent_clock, np.zeros((missing, actors), np.int64)])
            self._free_slots += range(slots, slots + missing)
        for cluster in clusters.tolist():
            slot = self._slot[cluster] = self._free_slots.pop()
            self._table[:, slot] = NEVER
            self._agent_clock[slot] = 0
            self._free_agents[cluster] = deque(range(self._own_warps * LANES, self._table.shape[2]))
            self._issuers[cluster] = {}

    def _add_agents(self) -> None:
        """Double the agents of every cluster."""
        _, slots, actors, side, _ = self._table.shape
        more = side - self._own_warps
        grown = np.full((2, slots, actors + more * LANES, side + more, LANES), NEVER, np.int32)
        grown[:, :, :actors, :side] = self._table
        self._table = grown
        self._agent_clock = np.concatenate([self._agent_clock, np.zeros((slots, more * LANES), np.int64)], axis=1)
        for free in self._free_agents.values():
            free.extend(range(actors, actors + more * LANES))
