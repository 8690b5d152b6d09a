"""Knowledge of single threads beyond the barriers of their block, and its propagation by barriers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from matmill.emulator.memory.banks import LANES
from matmill.emulator.races.order.clocks import Ints
from matmill.emulator.races.order.releases import ALL, NOTHING, Log, Reach, Release, Sequence, Snapshot, joined

Location: TypeAlias = "tuple[int, int]"


class State(NamedTuple):
    """The reach that a thread has acquired (``known``), and the two halves that a fence.sc may add.

    ``fenced`` is the reach of other threads' wide fence.sc that it knows by barriers, ``observed`` the reach of those
    before the writes that it has read, or that another thread has read before a barrier.
    """

    known: Reach = NOTHING
    fenced: Reach = NOTHING
    observed: Reach = NOTHING


NEW = State()


@dataclass(slots=True)
class Warp:
    """One warp: the state that all its lanes share, and additions of single lanes.

    ``states`` are those of lanes that know more than the warp. The last fences of each lane are in ``wide``, the ``sc``
    ones among these, and ``narrow`` ones since the last wide one; ``unmet`` are the fence.sc since the lanes last met.
    ``reads`` has by location what a lane has read without acquiring it, ``writes`` what it released there.
    """

    state: State = NEW
    states: dict[int, State] = field(default_factory=dict)
    wide: dict[int, Snapshot] = field(default_factory=dict)
    sc: dict[int, Snapshot] = field(default_factory=dict)
    narrow: dict[int, Snapshot] = field(default_factory=dict)
    unmet: dict[int, Snapshot] = field(default_factory=dict)
    reads: dict[int, dict[Location, dict[Sequence, tuple[int, int]]]] = field(default_factory=dict)
    writes: dict[int, dict[Location, tuple[Release, bool]]] = field(default_factory=dict)
    log: Log = field(default_factory=Log)

    def of(self, lane: int) -> State:
        """Return the state of a lane."""
        return self.states.get(lane, self.state)

    def even(self) -> None:
        """Share one state among all lanes if their states are equal."""
        first = self.of(0)
        if len(self.states) == LANES and all(state is first for state in self.states.values()):
            self.state = first
            self.states.clear()

    def passed_on(self) -> State:
        """Return the knowledge of all lanes, as a barrier passes it on."""
        state = join((self.state, *self.states.values()))
        if self.unmet:
            _log_fences(self.log, self.unmet)
            met = {(self.log, ALL): len(self.log.entries)}
            state = state._replace(fenced=joined((state.fenced, met)))
        return state

    def meet(self) -> None:
        """Merge the knowledge of all lanes into each of them."""
        self.state = self.passed_on()
        self.unmet.clear()
        self.states.clear()

    def meet_some(self, lanes: Iterable[int]) -> None:
        """Merge the knowledge of some lanes into each of them."""
        lanes = list(lanes)
        state = join(self.of(lane) for lane in lanes)
        fences = {lane: self.unmet[lane] for lane in lanes if lane in self.unmet}
        if fences:
            log = Log()
            _log_fences(log, fences)
            state = state._replace(fenced=joined((state.fenced, {(log, ALL): len(log.entries)})))
        self.states.update(dict.fromkeys(lanes, state))


class Threads:
    """The warps in flight that have executed a fence, a release or a strong read."""

    def __init__(self, warps_per_block: int) -> None:
        self._per_block = warps_per_block
        self._warps: dict[int, Warp] = {}
        # Blocks in which some thread may know more than another.
        self._uneven: set[int] = set()

    def get(self, warp: int) -> Warp | None:
        """Return the entry of a warp, or None."""
        return self._warps.get(warp)

    def open(self, warp: int) -> Warp:
        """Return the entry of a warp that is about to fence, release or read, created if necessary."""
        self._uneven.add(warp // self._per_block)
        if warp not in self._warps:
            self._warps[warp] = Warp()
        return self._warps[warp]

    def meet(self, blocks: Ints) -> None:
        """Let all threads of each of ``blocks`` meet."""
        for block in self._uneven.intersection(blocks.tolist()):
            first = block * self._per_block
            self._join(range(first, first + self._per_block))
            self._uneven.discard(block)

    def arrival(self, warp: int) -> State:
        """Return what a warp passes on by arriving at a barrier without waiting."""
        record = self._warps.get(warp)
        return NEW if record is None else record.passed_on()

    def meet_some(self, warps: Ints, arrivals: Iterable[State] = ()) -> None:
        """Let some warps of one block meet, after the ``arrivals`` of others."""
        arrivals = [state for state in arrivals if state is not NEW]
        if arrivals or int(warps[0]) // self._per_block in self._uneven:
            self._join(warps.tolist(), arrivals)

    def meet_lanes(self, warp: int, lanes: Iterable[int]) -> None:
        """Let some lanes of a warp meet."""
        if warp in self._warps:
            self._warps[warp].meet_some(lanes)

    def meet_warps(self, warps: Ints) -> None:
        """Let the lanes of each of ``warps`` meet."""
        if self._uneven:
            for warp in self._warps.keys() & set(warps.tolist()):
                self._warps[warp].meet()

    def forget(self, blocks: Ints) -> None:
        """Drop ``blocks``, which have ended."""
        if not self._warps:
            return
        for block in blocks.tolist():
            self._uneven.discard(block)
            for warp in range(block * self._per_block, (block + 1) * self._per_block):
                self._warps.pop(warp, None)

    def _join(self, warps: Iterable[int], arrivals: Iterable[State] = ()) -> None:
        met = [self.open(warp) for warp in warps]
        for warp in met:
            warp.meet()
        state = join((*arrivals, *(warp.state for warp in met)))
        for warp in met:
            warp.state = state


def join(states: Iterable[State]) -> State:
    """Return the union of ``states``, which is one of them if it includes the others."""
    apart = list({id(state): state for state in states}.values())
    if len(apart) < 2:
        return apart[0] if apart else NEW
    return State(*(joined(part) for part in zip(*apart, strict=True)))


def _log_fences(log: Log, fences: dict[int, Snapshot]) -> None:
    """Log the fences of some lanes; equal snapshots are logged together."""
    lanes: dict[Snapshot, list[int]] = {}
    for lane, snapshot in fences.items():
        lanes.setdefault(snapshot, []).append(lane)
    for snapshot, those in lanes.items():
        log.append(Release(snapshot, tuple(those), sc=True, fenced=NOTHING))
