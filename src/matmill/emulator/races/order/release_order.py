"""Order by releases and acquires, across blocks and within one, which barriers alone do not provide.

PTX ISA, "Memory Consistency Model". A *release* is a release operation, or a fence followed by a strong write of the
same thread; an *acquire* an acquire operation, or a strong read followed by a fence of the same thread. Everything
before the release (its fence, if it has one) happens before everything after the acquire, if the read observes the
write: it reads its value, or that of a chain of atomics after it (``releases``). Scopes must include the other thread
at every step. Program order, barriers and the thread's next release pass on what it has acquired.

Two fence.sc of scope ``.gpu`` or ``.sys`` need not be by the threads that write and read. If barriers lead from the
first fence to the write, and from the read to the second fence, the second cannot precede the first, because the model
has one order of all fence.sc. So ``__threadfence(); __syncthreads();`` and one thread's atomic release the whole block.
If no read implies the order of two fences, it is chance, and orders nothing.

Unlike the order of barriers, this one depends on the run: who observes whom depends on which atomic came first. A
thread that does not check the value that it acquires may be ordered by chance in one run; another ``schedule`` may
expose it.

Locations that overlap without being equal count as different ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.order.clocks import LANE_BITS, Clocks, Ints, Lanes, Moment
from matmill.emulator.races.order.horizon import Horizons, slots_of
from matmill.emulator.races.order.releases import (
    ALL,
    FENCED,
    NOTHING,
    Log,
    Reach,
    Release,
    Sequence,
    Snapshot,
    exceeds,
    joined,
)
from matmill.emulator.races.order.threads import Location, State, Threads, Warp

_GRAIN_BITS = 4
_GLOBAL = -1


@dataclass(frozen=True, slots=True)
class _Thread:
    """The acting thread."""

    warp: int
    lane: int
    block: int
    record: Warp


class Order:
    """The releases and acquires of one launch; it installs itself in ``clocks``.

    ``general`` is called with a block before one of its threads acquires anything: from then on not only barriers order
    its threads.
    """

    def __init__(self, clocks: Clocks, general: Callable[[Ints], None]) -> None:
        self._clocks = clocks
        self._general = general
        self._per_block = clocks.warps_per_block
        self.threads = Threads(self._per_block)
        self._sequences: dict[Location, Sequence] = {}
        self._grains: Ints | None = None
        self._released = False
        self._acquired = False
        # Per warp the latest clock that any release covers: only barriers order what came later.
        self._latest: Ints = np.full(len(clocks.now), -1, dtype=np.int64)
        self._horizons = Horizons(clocks)
        clocks.beyond = self._drop_ordered

    def fence(self, warps: Ints, lanes: NDArray[np.bool_], ordering: Ordering) -> None:
        """Record a fence by ``lanes`` (bool[m, 32]) of ``warps`` (int64[m])."""
        alike: dict[int, tuple[State, State]] = {}
        for warp, members in zip(warps.tolist(), lanes, strict=True):
            chosen = np.flatnonzero(members).tolist()
            if not chosen:
                continue
            record = self.threads.open(warp)
            block = warp // self._per_block
            if ordering.acquire:
                self._acquire_by_fence(record, block, chosen, ordering, alike)
            if ordering.release:
                self._release_by_fence(record, warp, chosen, ordering)

    def access(
        self, space: str, *, warp: Ints, addresses: Ints, active: NDArray[np.bool_], width: int, kind: str,
        ordering: Ordering, owners: Ints,
    ) -> Ints:  # fmt: skip
        """Record strong accesses, before they are checked; return each warp's clock for them.

        ``owners`` are the blocks whose shared memory the warps access. Lanes act in their order, and warps in the order
        of the rows, as the emulator runs them.
        """
        now = self._clocks.now
        if not (ordering.release or self._released):
            return now[warp]
        clock = np.empty(len(warp), dtype=np.int64)
        for row, number in enumerate(warp.tolist()):
            chosen = np.flatnonzero(active[row]).tolist()
            record = self.threads.open(number)
            block = number // self._per_block
            # A fence does not release a write that follows it: the write gets its own clock.
            alone = kind != "read" and bool(record.wide or record.narrow)
            now[number] += alone
            clock[row] = now[number]
            for lane in chosen:
                thread = _Thread(number, lane, block, record)
                location = (int(owners[row]) if space == "shared" else _GLOBAL, int(addresses[row, lane]))
                self._touch(thread, location, width, kind, ordering)
            now[number] += alone or (ordering.release and kind != "read")
        return clock

    def overwrite(self, space: str, *, addresses: Ints, active: NDArray[np.bool_], width: int, owners: Ints) -> None:
        """Record plain writes, which end the release sequences that they overwrite."""
        if not self._sequences:
            return
        if self._grains is None:
            self._grains = np.unique([address >> _GRAIN_BITS for _, address in self._sequences])
        for row, lane in zip(*np.nonzero(active & np.isin(addresses >> _GRAIN_BITS, self._grains)), strict=True):
            owner = int(owners[row]) if space == "shared" else _GLOBAL
            first = int(addresses[row, lane])
            for address in range(first, first + width):
                if self._sequences.pop((owner, address), None) is not None:
                    self._grains = None

    def publish(self, log: Log, warps: Ints, lanes: NDArray[np.bool_]) -> None:
        """Log the knowledge of ``lanes`` (bool[m, 32]) of ``warps`` (int64[m]), for threads that learn the log."""
        for warp, members in zip(warps.tolist(), lanes, strict=True):
            record = self.threads.open(warp)
            alike: dict[int, list[int]] = {}
            for lane in np.flatnonzero(members).tolist():
                alike.setdefault(id(record.of(lane).known), []).append(lane)
            for those in alike.values():
                snapshot = self._snapshot(warp, those[0], record.of(those[0]).known)
                apart = [[lane] for lane in those] if snapshot.lanes is not None else [those]
                for some in apart:
                    own = snapshot if some[0] == those[0] else self._snapshot(warp, some[0], snapshot.known)
                    log.append(Release(own, tuple(some), sc=False, fenced=NOTHING))
        self._released = True

    def learn(self, log: Log, length: int, warps: Ints, lanes: NDArray[np.bool_]) -> None:
        """Order ``lanes`` of ``warps`` after the first ``length`` entries of a log."""
        alike: dict[int, tuple[State, State]] = {}
        if not length:
            return
        for warp, members in zip(warps.tolist(), lanes, strict=True):
            record = self.threads.open(warp)
            for lane in np.flatnonzero(members).tolist():
                state = record.of(lane)
                if id(state) not in alike:
                    self._acquire(record, warp // self._per_block, lane, [{(log, ALL): length}])
                    alike[id(state)] = state, record.of(lane)
                record.states[lane] = alike[id(state)][1]
            record.even()

    def acquired(self, warp: int, lanes: list[int]) -> tuple[tuple[np.uint32, Reach], ...]:
        """Return what some lanes of a warp have acquired, with the lanes that have acquired it as bits."""
        record = self.threads.get(warp)
        alike: dict[int, tuple[np.uint32, Reach]] = {}
        if record is None:
            return ()
        for lane in lanes:
            known = record.of(lane).known
            bits, _ = alike.get(id(known), (np.uint32(0), known))
            alike[id(known)] = bits | LANE_BITS[lane], known
        return tuple(each for each in alike.values() if each[1])

    def lanes_before(self, known: Reach, keys: Ints) -> Lanes:
        """Return the lanes of accesses (``Moment.keys``) that happen before whoever has acquired ``known``."""
        return self._horizons.of(known).lanes_before(keys)

    def forget(self, blocks: Ints) -> None:
        """Free the threads and the shared memory of ``blocks`` (int64[b]), which have ended."""
        self.threads.forget(blocks)
        ended = set(blocks.tolist())
        for location in [location for location in self._sequences if location[0] in ended]:
            del self._sequences[location]
            self._grains = None

    def _touch(self, thread: _Thread, location: Location, width: int, kind: str, ordering: Ordering) -> None:
        """Record one thread's strong access."""
        sequence = self._sequences.get(location)
        linked = sequence is not None and sequence.links(thread.block, width, wide=ordering.wide)
        if kind != "write":
            if sequence is not None and linked:
                self._observe(thread, location, sequence)
            if ordering.acquire:
                self._acquire_location(thread, location, ordering)
        if kind != "read":
            # A plain store begins a sequence, and so does an atomic that does not observe the last write.
            self._release(thread, location, sequence if linked and kind == "atomic" else None, width, ordering)

    def _observe(self, thread: _Thread, location: Location, sequence: Sequence) -> None:
        """Record that a thread reads the present value of a sequence."""
        record, lane = thread.record, thread.lane
        state = record.of(lane)
        lengths = sequence.lengths(thread.block)
        if sequence.log.fences and lengths[0] > state.observed.get((sequence.log, FENCED), 0):
            record.states[lane] = state._replace(observed={**state.observed, (sequence.log, FENCED): lengths[0]})
        record.reads.setdefault(lane, {}).setdefault(location, {})[sequence] = lengths

    def _acquire_location(self, thread: _Thread, location: Location, ordering: Ordering) -> None:
        """Acquire for a thread everything that it has read at a location, now and earlier."""
        reads = thread.record.reads.get(thread.lane, {})
        seen = reads.get(location, {})
        gained = [sequence.reach(thread.block, lengths, wide=ordering.wide) for sequence, lengths in seen.items()]
        self._acquire(thread.record, thread.block, thread.lane, gained)
        if ordering.wide:
            reads.pop(location, None)

    def _acquire(self, record: Warp, block: int, lane: int, gained: list[Reach]) -> None:
        """Add to a thread's knowledge."""
        state = record.of(lane)
        gained = [reach for reach in gained if exceeds(reach, state.known)]
        if gained:
            self._general(np.array([block]))
            self._acquired = True
            record.states[lane] = state._replace(known=joined((state.known, *gained)))

    def _acquire_by_fence(
        self, record: Warp, block: int, lanes: list[int], ordering: Ordering, alike: dict[int, tuple[State, State]]
    ) -> None:
        """Acquire what a fence's thread has read and, for a wide fence.sc, the fence.sc that its reads imply.

        ``alike`` maps each former state to the new one, so that threads with equal states continue to share one.
        """
        for lane in lanes:
            state = record.of(lane)
            reads = record.reads.pop(lane, {}) if ordering.wide else record.reads.get(lane, {})
            if not reads and id(state) in alike:
                record.states[lane] = alike[id(state)][1]
                continue
            gained = [
                sequence.reach(block, lengths, wide=ordering.wide)
                for seen in reads.values()
                for sequence, lengths in seen.items()
            ]
            if ordering.wide and ordering.sc:
                gained.append(state.observed)
            self._acquire(record, block, lane, gained)
            if not reads:
                alike[id(state)] = state, record.of(lane)
        record.even()

    def _release_by_fence(self, record: Warp, warp: int, lanes: list[int], ordering: Ordering) -> None:
        """Store the present knowledge of some lanes for the writes that follow their fence."""
        shared: dict[int, Snapshot] = {}
        for lane in lanes:
            known = record.of(lane).known
            snapshot = shared.get(id(known))
            if snapshot is None or snapshot.lanes is not None:
                snapshot = shared[id(known)] = self._snapshot(warp, lane, known)
            if not ordering.wide:
                record.narrow[lane] = snapshot
                continue
            record.narrow.pop(lane, None)
            record.wide[lane] = snapshot
            if ordering.sc:
                record.sc[lane] = record.unmet[lane] = snapshot
        self._released = True
        self._clocks.now[warp] += 1

    def _snapshot(self, warp: int, lane: int, known: Reach) -> Snapshot:
        clocks, first = self._clocks, warp // self._per_block * self._per_block
        view = clocks.view(warp)
        latest = self._latest[first : first + self._per_block]
        np.maximum(latest, view, out=latest)
        self._latest[warp] = clocks.now[warp]
        return Snapshot(warp, int(clocks.now[warp]), view, clocks.view_of_lanes(warp, lane), known)

    def _release(
        self, thread: _Thread, location: Location, sequence: Sequence | None, width: int, ordering: Ordering
    ) -> None:
        """Log a strong write's releases in ``sequence``, or for None in a new one."""
        releases = self._releases(thread, location, ordering)
        if sequence is None:
            if self._sequences.pop(location, None) is not None:
                self._grains = None
            if not releases:
                return
            sequence = self._sequences[location] = Sequence(width)
            self._grains = None
        sequence.block, sequence.wide = thread.block, ordering.wide
        for release, wide in releases:
            sequence.add(thread.block, release, wide=wide)

    def _releases(self, thread: _Thread, location: Location, ordering: Ordering) -> list[tuple[Release, bool]]:
        """Return a strong write's releases, each with whether its scope is wide."""
        record, lane = thread.record, thread.lane
        fenced = record.of(lane).fenced
        now = self._latest[thread.warp] = int(self._clocks.now[thread.warp])
        sc = record.sc.get(lane)
        result = [
            (Release(snapshot, (lane,), snapshot is sc, fenced, now), wide)
            for snapshot, wide in ((record.wide.get(lane), True), (record.narrow.get(lane), False))
            if snapshot is not None
        ]
        if sc is not None and sc is not record.wide.get(lane):
            result.append((Release(sc, (lane,), sc=True, fenced=fenced, write=now), True))
        if ordering.release:
            known = record.of(lane).known
            own = Release(self._snapshot(thread.warp, lane, known), (lane,), sc=False, fenced=fenced)
            record.writes.setdefault(lane, {})[location] = own, ordering.wide
            self._released = True
        earlier = record.writes.get(lane, {}).get(location)
        if earlier is not None:
            result.append(earlier)
        if not result and fenced:
            result.append((Release(None, (), sc=False, fenced=fenced), True))
        return result

    def _drop_ordered(self, keys: Ints, left: Lanes, moment: Moment) -> Lanes:
        """Remove the lanes of remembered accesses that happen before ``moment`` from ``left``."""
        if not self._acquired:
            return left
        # Threads with the same knowledge are looked up together.
        alike: dict[int, tuple[Reach, list[Ints]]] = {}
        warp, clock = slots_of(keys)
        ask = np.flatnonzero((left != 0) & (clock <= self._latest[warp]))
        if not ask.size:
            return left
        ask = ask[np.argsort(moment.warp[ask], kind="stable")]
        for those in np.split(ask, np.flatnonzero(np.diff(moment.warp[ask])) + 1):
            record = self.threads.get(int(moment.warp[those[0]]))
            if record is None:
                continue
            # Each lane's stand-in: the first one with its knowledge, or -1 where that is the warp's.
            first = {id(record.state.known): -1}
            stand_ins = np.full(LANES, -1)
            for lane, state in record.states.items():
                stand_ins[lane] = first.setdefault(id(state.known), lane)
            chosen = stand_ins[moment.lane[those]]
            for lane in set(chosen.tolist()):
                known = record.of(lane).known
                alike.setdefault(id(known), (known, []))[1].append(those[chosen == lane])
        for known, parts in alike.values():
            if known:
                one = np.concatenate(parts)
                left[one] &= ~self.lanes_before(known, keys[one])
        return left
