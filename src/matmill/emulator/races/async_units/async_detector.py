"""Race detection for programs with mbarriers, clusters and asynchronous units.

``AsyncDetector`` detects the races of ``RaceDetector``, and those of bulk copies and wgmma, which access shared memory
in the *async proxy*. Order comes from barriers of all kinds, warp barriers, releases and acquires, and from

- mbarriers: what threads did before they arrived in a phase happens before what threads do that have waited for it,
  and so do the accesses of copies that completed in it, but nothing else of those who issued them (PTX ISA,
  "cp.async.bulk");
- cluster barriers;
- an operation's issue, and the waits for bulk groups and wgmma groups.

For a generic write before an asynchronous access, its own thread must also execute fence.proxy.async before the
synchronization that orders the two, or the pair is reported as "missing-proxy-fence". For a product a fence of its
warp behind the synchronization is enough too, unless warps must wait themselves (``own_waits``). For an asynchronous
access before a generic one a wait is enough, and an asynchronous write may follow a generic read without any fence.

Shared memory is checked lane by lane with ``thread_clocks``. Global memory is checked as in ``RaceDetector``, with
mbarriers and cluster barriers added to the order (``release_order``). Asynchronous accesses to global memory count as
accesses of the issuing thread at issue, so that a missing wait for such a write is not detected.

A ``.cluster`` scope counts as ``.gpu`` in a launch with clusters, so that a scope too narrow for blocks of two clusters
is not detected.

Other blocks of the cluster may access a block's shared memory only until its last thread ends: ``remote_accesses``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.async_units.async_events import Name
from matmill.emulator.races.async_units.async_reports import ASYNC, AsyncReports
from matmill.emulator.races.async_units.global_proxy import GlobalProxy
from matmill.emulator.races.async_units.remote_accesses import RemoteAccesses
from matmill.emulator.races.detector import Arrival, RaceDetector
from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.order.flag_clocks import FlagClocks
from matmill.emulator.races.order.race_reports import (
    MBARRIER,
    MISSING_PROXY_FENCE,
    READ,
    WRITE,
    CellAccesses,
    Party,
    Reports,
)  # fmt: skip
from matmill.emulator.races.order.releases import Log
from matmill.emulator.races.order.thread_clocks import ThreadClocks, Vectors, joined
from matmill.emulator.races.shadow.interval_patterns import Pattern
from matmill.emulator.races.shadow.shared_space import SharedSpace
from matmill.emulator.races.shadow.warp_accesses import Stores, rows_of

Flags = NDArray[np.bool_]
_INIT, _ARRIVE = "initialisation of an mbarrier", "arrival at an mbarrier"
_WAIT, _COMPLETION = "wait for an mbarrier", "completion at an mbarrier of a copy"
_NOTHING: Vectors = np.empty((2, 0), np.int32)


@dataclass
class _BarrierPhases:
    """The releases into a barrier's open phase so far, and those of the last completed phase.

    ``log`` has the same for the order of global memory, of which ``length`` entries belong to completed phases.
    ``start`` are the threads that initialised the barrier, and their clock then. Of such a thread's
    ``fence.mbarrier_init`` and the ``barrier.cluster.arrive.relaxed`` behind it, ``fenced`` tells of the first, and
    ``published`` is the generation of the cluster barrier, 0 before.
    """

    opened: Vectors = field(default_factory=lambda: _NOTHING)
    done: Vectors = field(default_factory=lambda: _NOTHING)
    start: tuple[Party, int] | None = None
    fenced: bool = False
    published: int = 0
    log: Log = field(default_factory=Log)
    length: int = 0

    def complete(self) -> None:
        """Close the open phase and begin another."""
        self.done, self.opened, self.length = self.opened, _NOTHING, len(self.log.entries)


class AsyncDetector(RaceDetector):
    """A race detector with events of asynchronous units (``AsyncEvents``).

    ``clusters`` (int64[n, blocks of a cluster]) are the blocks of the launch, by cluster and rank.
    """

    def __init__(self, *, clusters: Ints, warps_per_block: int) -> None:
        self._clusters = clusters
        super().__init__(blocks=clusters.size, warps_per_block=warps_per_block, partial_barriers=True, releases=True)
        self._barriers: dict[Name, _BarrierPhases] = {}
        # Cluster barriers by cluster and generation, and how often each thread has arrived.
        self._cluster_phases: dict[tuple[int, int], _BarrierPhases] = {}
        self._generation: Ints = np.zeros((self._threads.warps, LANES), np.int64)
        # The generation that each thread has waited for.
        self._waited = np.zeros_like(self._generation)
        # The barriers that a thread has initialised and not yet published by a relaxed arrival.
        self._unpublished: dict[int, list[_BarrierPhases]] = {}
        self._flags = FlagClocks(self._threads)
        self._remote = RemoteAccesses(self._threads, self._reports)
        assert self._order is not None  # noqa: S101 - the detector was made with releases
        self._proxy = GlobalProxy(self._clocks, self._order)

    def _new_reports(self) -> Reports:
        self._threads = ThreadClocks(self._clocks, self._clusters)
        return AsyncReports(self._threads)

    def _shared_space(self, general: Flags) -> SharedSpace:
        return SharedSpace(self._threads, self._reports, np.ones_like(general), ordered=True)

    # Events of RaceDetector

    def access(
        self, space: str, *, warp: Ints, addresses: Ints, active: NDArray[np.bool_], width: int, kind: str, where: int,
        stores: Stores | None = None, ordering: Ordering | None = None, owners: Ints | None = None,
        pattern: Pattern | None = None,
    ) -> None:  # fmt: skip
        """Record one instruction executed by ``n`` warps, as ``RaceDetector`` does."""
        if owners is not None:
            self._remote.note(owners, warp, active, addresses, kind=kind, where=where)
        blocks = warp // self._warps_per_block if owners is None else owners
        if ordering is not None:
            ordering = self._in_cluster(ordering)
            self._flags.access(
                space, warp=warp, addresses=addresses, active=active, kind=kind, ordering=ordering, owners=blocks
            )
        elif kind == WRITE:
            self._flags.overwrite(space, warp=warp, addresses=addresses, active=active, owners=blocks)
        super().access(
            space, warp=warp, addresses=addresses, active=active, width=width, kind=kind, where=where, stores=stores,
            ordering=ordering, owners=owners, pattern=pattern,
        )  # fmt: skip

    def fence(self, warps: Ints, lanes: Flags, ordering: Ordering) -> None:
        """Record a fence by ``lanes`` (bool[m, 32]) of ``warps`` (int64[m])."""
        ordering = self._in_cluster(ordering)
        self._flags.fence(warps, lanes, ordering)
        super().fence(warps, lanes, ordering)

    def _in_cluster(self, ordering: Ordering) -> Ordering:
        """Return the scope that counts: ``.cluster`` becomes the whole GPU if a cluster has several blocks."""
        return replace(ordering, wide=True) if ordering.cluster and self._clusters.shape[1] > 1 else ordering

    def arrival(self, warp: int) -> Arrival:
        """Record that a warp arrives at a barrier of its block and does not wait; return what it passes on."""
        vectors = self._threads.released(np.array([warp]), np.ones((1, LANES), np.bool_))
        return replace(super().arrival(warp), vectors=vectors)

    def barrier(self, warps: Ints, arrivals: Sequence[Arrival] = ()) -> None:
        """Let ``warps`` (int64[m], one block's) meet, after the ``arrivals`` of warps that have not waited."""
        warps = np.asarray(warps, np.int64)
        if len(warps) != self._warps_per_block:
            self._threads.meet(warps[None])
        for vectors in (each.vectors for each in arrivals if each.vectors is not None):
            self._threads.acquire(vectors, warps, np.ones((len(warps), LANES), np.bool_))
        super().barrier(warps, arrivals)

    def _meet_in_full(self, blocks: Ints) -> None:
        """Let all warps of each of ``blocks`` meet."""
        self._threads.meet(blocks[:, None] * self._warps_per_block + np.arange(self._warps_per_block))
        super()._meet_in_full(blocks)

    def warp_barrier(self, warps: Ints, lanes: Flags) -> None:
        """Record ``bar.warp.sync`` by ``warps`` (int64[m]) with ``lanes`` (bool[m, 32]) in the member masks."""
        whole = lanes.all(axis=1)
        if whole.any():
            self._threads.meet(warps[whole][:, None])
        for warp, members in zip(warps[~whole], lanes[~whole], strict=True):
            one, those = np.array([warp]), members[None]
            self._threads.acquire(self._threads.released(one, those), one, those)
        super().warp_barrier(warps, lanes)

    def release(self, blocks: Ints) -> None:
        """Free the data of ``blocks`` (int64[b]), whole clusters that have ended."""
        super().release(blocks)
        self._threads.release(blocks)
        self._remote.release(blocks)
        ended = set(np.asarray(blocks).tolist())
        self._barriers = {name: each for name, each in self._barriers.items() if name[0] not in ended}
        gone = set(self._threads.cluster_of_block[blocks].tolist())
        per_block = self._warps_per_block
        self._flags.release(
            gone, {warp for block in ended for warp in range(block * per_block, (block + 1) * per_block)}
        )
        self._cluster_phases = {name: each for name, each in self._cluster_phases.items() if name[0] not in gone}
        threads = per_block * LANES
        self._unpublished = {t: each for t, each in self._unpublished.items() if t // threads not in ended}

    # mbarriers

    def init_barrier(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Initialise a barrier by an instruction of these threads; nothing has been released into it."""
        first = Party(int(warps[-1]) * LANES + int(np.flatnonzero(lanes[-1])[-1]), where, _INIT)
        phases = _BarrierPhases(start=(first, int(self._clocks.now[warps[-1]])))
        self._barriers[barrier] = phases
        self._unpublished.setdefault(first.thread, []).append(phases)
        self._clocks.now[warps] += 1

    def init_fence(self, warps: Ints, lanes: Flags) -> None:
        """Record ``fence.mbarrier_init`` by these threads: relaxed arrivals behind it publish their barriers."""
        for _, phases in self._initialised(warps, lanes):
            phases.fenced = True

    def _initialised(self, warps: Ints, lanes: Flags) -> list[tuple[int, _BarrierPhases]]:
        """Return the threads among these with unpublished barriers, and each of the barriers."""
        rows, lane = np.nonzero(lanes)
        threads = (warps[rows] * LANES + lane).tolist() if self._unpublished else []
        return [(thread, phases) for thread in threads for phases in self._unpublished.get(thread, ())]

    def arrive(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Release the clocks of threads into the barrier's open phase, by an instruction."""
        owner = np.full(len(warps), barrier[0])
        if (warps // self._warps_per_block != owner).any():
            offsets = np.full(lanes.shape, barrier[1])
            self._remote.note(owner, warps, lanes, offsets, kind=_ARRIVE, where=where)
        phases = self._phases(barrier)
        self._check_start(phases, barrier, warps, lanes, Party(0, where, _ARRIVE))
        self._release_into(phases, warps, lanes)

    def phase_done(self, barrier: Name) -> None:
        """Complete the open phase: a wait for it acquires its releases."""
        self._phases(barrier).complete()

    def passed(self, barrier: Name, warps: Ints, lanes: Flags, *, where: int) -> None:
        """Acquire the last completed phase by a successful wait of these threads, at ``where``."""
        phases = self._phases(barrier)
        self._check_start(phases, barrier, warps, lanes, Party(0, where, _WAIT))
        self._acquire(phases.done, phases.log, phases.length, warps, lanes)

    def _phases(self, barrier: Name) -> _BarrierPhases:
        """Return a barrier's phases; an uninitialised barrier, which has been reported, counts as initialised."""
        return self._barriers.setdefault(barrier, _BarrierPhases())

    def _check_start(self, phases: _BarrierPhases, barrier: Name, warps: Ints, lanes: Flags, user: Party) -> None:
        """Report the first of these threads that uses a barrier which may not be initialised yet."""
        if phases.start is not None:
            first, clock = phases.start
            if phases.published:
                lanes = lanes & (self._waited[warps] < phases.published)
            late = self._threads.strangers(first.thread, clock, warps, lanes)
            if late is not None:
                self._reports.keep(MBARRIER, "shared", barrier[1], first, replace(user, thread=late))

    def _release_into(self, phases: _BarrierPhases, warps: Ints, lanes: Flags) -> None:
        phases.opened = joined(phases.opened, self._threads.released(warps, lanes))
        if self._order is not None:
            self._order.publish(phases.log, warps, lanes)
        self._clocks.now[warps] += 1

    def _acquire(self, vectors: Vectors, log: Log, length: int, warps: Ints, lanes: Flags) -> None:
        chosen = lanes.any(axis=1)
        warps, lanes = warps[chosen], lanes[chosen]
        self._threads.acquire(vectors, warps, lanes)
        if self._order is not None:
            self._order.learn(log, length, warps, lanes)

    # Cluster barriers

    def cluster_arrive(self, warps: Ints, lanes: Flags, *, releases: bool = True) -> None:
        """Record ``barrier.cluster.arrive`` by these threads, with or without release semantics."""
        rows, lane = np.nonzero(lanes)
        self._generation[warps[rows], lane] += 1
        for name, some in self._by_meeting(warps, lanes):
            phases = self._cluster_phases.setdefault(name, _BarrierPhases())
            self._cluster_phases.pop((name[0], name[1] - 3), None)
            if releases:
                self._release_into(phases, *some)
            else:
                self._publish(*some)

    def _publish(self, warps: Ints, lanes: Flags) -> None:
        """Let the barriers that these threads have initialised and fenced be known after their relaxed arrival."""
        for thread, phases in self._initialised(warps, lanes):
            if phases.fenced:
                phases.published = int(self._generation[divmod(thread, LANES)])
                self._unpublished[thread].remove(phases)

    def cluster_wait(self, warps: Ints, lanes: Flags) -> None:
        """Record that ``barrier.cluster.wait`` by these threads has ended."""
        for name, some in self._by_meeting(warps, lanes):
            phases = self._cluster_phases.setdefault(name, _BarrierPhases())
            self._acquire(phases.opened, phases.log, len(phases.log.entries), *some)
            self._waited[some[0]] = np.where(some[1], name[1], self._waited[some[0]])

    def _by_meeting(self, warps: Ints, lanes: Flags) -> list[tuple[tuple[int, int], tuple[Ints, Flags]]]:
        """Group threads by cluster and by the generation of its barrier."""
        result = []
        cluster = self._threads.cluster_of_block[warps // self._warps_per_block]
        generation = np.where(lanes, self._generation[warps], -1)
        for number in np.unique(cluster).tolist():
            mine = cluster == number
            for now in np.unique(generation[mine]).tolist():
                some = (generation == now) & mine[:, None]
                chosen = some.any(axis=1)
                if now >= 0:
                    result.append(((number, now), (warps[chosen], some[chosen])))
        return result

    # Asynchronous units

    def proxy_fence(self, warps: Ints, lanes: Flags, *, space: str = "") -> None:
        """Record ``fence.proxy.async`` by these threads, for "shared" memory, "global" memory, or both ("")."""
        if space != "global":
            self._threads.fence(warps, lanes)
        if space != "shared":
            self._proxy.fence(warps, lanes)
        self._clocks.now[warps] += 1

    def copies_global(
        self, *, warp: Ints, addresses: Ints, active: Flags, width: int, kind: str, where: int,
        ordering: Ordering | None,
    ) -> None:  # fmt: skip
        """Record bulk copies' accesses to global memory, and the generic writes that they may not see."""
        self._proxy.copies.add(where)
        rows = rows_of(
            kind=kind, where=where, width=width, warp=warp, addresses=addresses, active=active,
            clock=self._clocks.now[warp],
        )  # fmt: skip
        for thread, writer, address, *issuer in self._proxy.unfenced(self._global, rows):
            second = Party(issuer[0] * LANES + issuer[1], where, ASYNC + kind)
            self._reports.keep(MISSING_PROXY_FENCE, "global", address, Party(thread, writer, WRITE), second)
        self.access(
            "global", warp=warp, addresses=addresses, active=active, width=width, kind=kind, where=where,
            ordering=ordering,
        )  # fmt: skip

    def issue(self, warp: int, lanes: Flags, *, fenced: bool = False) -> int:
        """Start an operation of some lanes (bool[32]) of a warp; return the agent that performs it.

        If ``fenced``, a fence of the warp itself also makes visible what others wrote before it.
        """
        agent = self._threads.issue(warp, lanes, fenced=fenced)
        self._clocks.now[warp] += 1
        return agent

    def agent_access(self, agent: int, kind: str, *, block: int, offsets: Ints, width: int, where: int) -> None:
        """Record an agent's ``kind`` ("read" or "write") of ``width`` bytes at offsets of a block's shared memory."""
        count = len(offsets)
        if not count:
            return
        moment = self._threads.moment(agent, count)
        issuer = self._threads.issuer_of(agent)
        if issuer // LANES // self._warps_per_block != block:
            party = Party(issuer, where, ASYNC + kind)
            self._remote.note_agent(block, *self._threads.column(agent), int(offsets[0]), party)
        entries = CellAccesses("shared", READ if kind == READ else WRITE, where, width, offsets, offsets, moment)
        self._shared.by_agent(entries, block, width)

    def agent_completes(self, agent: int, barrier: Name, *, where: int) -> None:
        """Complete an agent, issued by an instruction, and release that into the barrier's open phase."""
        phases = self._phases(barrier)
        if phases.start is not None and not self._threads.agent_knows(agent, phases.start[0].thread, phases.start[1]):
            issuer = self._threads.issuer_of(agent)
            if not 0 < phases.published <= self._waited[divmod(issuer, LANES)]:
                user = Party(issuer, where, _COMPLETION)
                self._reports.keep(MBARRIER, "shared", barrier[1], phases.start[0], user)
        phases.opened = joined(phases.opened, self._threads.finished(agent))

    def agent_joined(self, agent: int, warps: Ints, lanes: Flags) -> None:
        """Join an agent that threads have waited for (it may only have been a wait for its reads).

        At that point its accesses to shared memory are all it has.
        """
        self._threads.acquire(self._threads.finished(agent), warps, lanes)

    def exited(self, block: int, where: int) -> None:
        """Record that the last thread of a block ends at an instruction."""
        self._remote.exited(block, where)
