"""Small programs of threads and asynchronous units, told to a race detector and judged by brute force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.async_units.async_detector import AsyncDetector
from support.event_graph import Graph, Thread

SIZE, WARPS = 2, 2
LANES = (0, 31)
FLAG = 256
Barrier = tuple[int, int]
Ints = NDArray[np.int64]
Lanes = NDArray[np.bool_]
Found = set[tuple[str, int, int]]


def threads_of(*blocks: int) -> tuple[Thread, ...]:
    """Return the threads of some blocks that take part in programs."""
    return tuple((block * WARPS + warp, lane) for block in blocks for warp in range(WARPS) for lane in LANES)


EVERYBODY = threads_of(*range(SIZE))


@dataclass(frozen=True)
class Do:
    """One event; the fields that it needs not are left as they are.

    Operations: "access" by threads or "touch" by an agent of ``kind`` to 4 bytes of a block's memory; "arrive",
    "passed", "done" and "init" of a barrier; "sync" (a block barrier), "syncwarp", "fence", "meet" (all arrive at the
    cluster barrier, ``threads`` wait), "release" and "acquire" of a block's flag; "issue", "completes" and "waited" of
    an agent, by its number; "exit" of a block.
    """

    op: str
    threads: tuple[Thread, ...] = ()
    kind: str = "read"
    block: int = 0
    address: int = 0
    barrier: Barrier = (0, 512)
    agent: int = 0


def possible(program: list[Do]) -> list[Do]:
    """Return the program without what agents do before they exist or after their end."""
    kept, issued, ended = [], 0, set()
    for now in program:
        if now.op in ("touch", "completes", "waited") and (now.agent >= issued or now.agent in ended):
            continue
        issued += now.op == "issue"
        if now.op in ("completes", "waited"):
            ended.add(now.agent)
        kept.append(now)
    return kept


def masks(threads: tuple[Thread, ...]) -> tuple[Ints, Lanes]:
    """Group threads as warps and their lanes."""
    warps = sorted({warp for warp, _ in threads})
    lanes = [(warp, lane) in threads for warp in warps for lane in range(32)]
    return np.array(warps, np.int64), np.array(lanes, np.bool_).reshape(-1, 32)


class Teller:
    """Tells a detector of a program; ``where`` is the event's number."""

    def __init__(self, program: list[Do]) -> None:
        self.detector = AsyncDetector(clusters=np.arange(SIZE)[None], warps_per_block=WARPS)
        self._agents: list[int] = []
        for where, now in enumerate(program):
            getattr(self, f"_{now.op}")(now, where, *masks(now.threads))

    def _access(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.access(
            "shared", warp=warps, addresses=np.full(lanes.shape, now.address), active=lanes, width=4, kind=now.kind,
            where=where, owners=np.full(len(warps), now.block),
        )  # fmt: skip

    def _arrive(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.arrive(now.barrier, warps, lanes, where=where)

    def _passed(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.passed(now.barrier, warps, lanes, where=where)

    def _done(self, now: Do, *_: object) -> None:
        self.detector.phase_done(now.barrier)

    def _sync(self, now: Do, *_: object) -> None:
        self.detector.barrier(np.arange(now.block * WARPS, (now.block + 1) * WARPS))

    def _syncwarp(self, _now: Do, _where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.warp_barrier(warps, lanes)

    def _fence(self, _now: Do, _where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.proxy_fence(warps, lanes)

    def _meet(self, _now: Do, _where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.cluster_arrive(*masks(EVERYBODY))
        self.detector.cluster_wait(warps, lanes)

    def _release(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self._flag(now, where, warps, lanes, Ordering(acquire=False, release=True, wide=True))

    def _acquire(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self._flag(now, where, warps, lanes, Ordering(acquire=True, release=False, wide=True))

    def _flag(self, now: Do, where: int, warps: Ints, lanes: Lanes, ordering: Ordering) -> None:
        self.detector.access(
            "shared", warp=warps, addresses=np.full(lanes.shape, FLAG), active=lanes, width=4,
            kind="write" if ordering.release else "read", where=where, ordering=ordering,
            owners=np.full(len(warps), now.block),
        )  # fmt: skip

    def _issue(self, _now: Do, _where: int, warps: Ints, lanes: Lanes) -> None:
        self._agents.append(self.detector.issue(int(warps[0]), lanes[0]))

    def _touch(self, now: Do, where: int, *_: object) -> None:
        offsets = np.array([now.address])
        agent = self._agents[now.agent]
        self.detector.agent_access(agent, now.kind, block=now.block, offsets=offsets, width=4, where=where)

    def _completes(self, now: Do, where: int, *_: object) -> None:
        self.detector.agent_completes(self._agents[now.agent], now.barrier, where=where)

    def _init(self, now: Do, where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.init_barrier(now.barrier, warps, lanes, where=where)

    def _waited(self, now: Do, _where: int, warps: Ints, lanes: Lanes) -> None:
        self.detector.agent_joined(self._agents[now.agent], warps, lanes)

    def _exit(self, now: Do, where: int, *_: object) -> None:
        self.detector.exited(now.block, where)


def found(program: list[Do]) -> Found:
    """Return what the detector reports of a program."""
    return {(race.kind, race.first_where, race.second_where) for race in Teller(program).detector.races()}


@dataclass(frozen=True)
class _Event:
    """One actor's access: where it may start and where it is done."""

    where: int
    actor: Thread | int
    kind: str
    place: tuple[int, int]
    start: int
    end: int


@dataclass
class _Barrier:
    opened: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)


class Reference:
    """The accesses of a program, and the races among them.

    An agent has a node where it starts and one where it ends with nothing between, since its end tells of its own
    accesses alone.
    """

    def __init__(self, program: list[Do]) -> None:
        self._graph = Graph()
        self._events: list[_Event] = []
        self._fences: dict[Thread, list[int]] = defaultdict(list)
        self._barriers: dict[Barrier, _Barrier] = defaultdict(_Barrier)
        self._flags: dict[int, list[int]] = {}
        self._agents: list[tuple[int, int]] = []
        for where, now in enumerate(program):
            getattr(self, f"_{now.op}")(now, where)

    def races(self) -> Found:
        """Return all races but those with an access that another one stands for."""
        return {(kind, x.where, y.where) for x, y, kind in self._racing() if not self._represented(x, y)}

    def _access(self, now: Do, where: int) -> None:
        for thread in now.threads:
            node = self._graph.step(thread)
            self._events.append(_Event(where, thread, now.kind, (now.block, now.address), node, node))

    def _touch(self, now: Do, where: int) -> None:
        self._events.append(_Event(where, now.agent, now.kind, (now.block, now.address), *self._agents[now.agent]))

    def _arrive(self, now: Do, _where: int) -> None:
        self._barriers[now.barrier].opened += [self._graph.step(thread) for thread in now.threads]

    def _done(self, now: Do, _where: int) -> None:
        self._barriers[now.barrier] = _Barrier([], self._barriers[now.barrier].opened)

    def _passed(self, now: Do, _where: int) -> None:
        for thread in now.threads:
            self._graph.step(thread, *self._barriers[now.barrier].done)

    def _sync(self, now: Do, _where: int) -> None:
        self._graph.meet(threads_of(now.block))

    def _syncwarp(self, now: Do, _where: int) -> None:
        self._graph.meet(now.threads)

    def _fence(self, now: Do, _where: int) -> None:
        for thread in now.threads:
            self._fences[thread].append(self._graph.step(thread))

    def _meet(self, now: Do, _where: int) -> None:
        arrived = [self._graph.step(thread) for thread in EVERYBODY]
        for thread in now.threads:
            self._graph.step(thread, *arrived)

    def _release(self, now: Do, _where: int) -> None:
        for thread in now.threads:
            self._flags[now.block] = [self._graph.step(thread)]

    def _acquire(self, now: Do, _where: int) -> None:
        for thread in now.threads:
            self._graph.step(thread, *self._flags.get(now.block, ()))

    def _issue(self, now: Do, _where: int) -> None:
        start = self._graph.node(*(self._graph.step(thread) for thread in now.threads))
        self._agents.append((start, self._graph.node()))

    def _completes(self, now: Do, _where: int) -> None:
        self._barriers[now.barrier].opened.append(self._agents[now.agent][1])

    def _waited(self, now: Do, _where: int) -> None:
        for thread in now.threads:
            self._graph.step(thread, self._agents[now.agent][1])

    def _racing(self) -> Iterator[tuple[_Event, _Event, str]]:
        for number, y in enumerate(self._events):
            for x in self._events[:number]:
                kind = self._race(x, y)
                if kind:
                    yield x, y, kind

    def _race(self, x: _Event, y: _Event) -> str:
        """Return the kind of race of two accesses; empty where there is none."""
        if x.actor == y.actor or x.place != y.place or "write" not in (x.kind, y.kind):
            return ""
        if not self._graph.comes_before(x.end, y.start):
            return "race"
        if isinstance(x.actor, int) or not isinstance(y.actor, int) or x.kind == "read":
            return ""
        before = self._graph.comes_before
        seen = any(before(x.end, f) and before(f, y.start) for f in self._fences[x.actor])
        return "" if seen else "missing-proxy-fence"

    def _represented(self, x: _Event, y: _Event) -> bool:
        """Tell whether an access between the two comes after the first, and is in no race with the second either."""
        for z in self._events[self._events.index(x) + 1 : self._events.index(y)]:
            stands = z.place == x.place and z.kind in ("write", x.kind)
            if (
                stands
                and self._graph.comes_before(x.end, z.start)
                and (not self._race(z, y) or self._represented(z, y))
            ):
                return True
        return False
