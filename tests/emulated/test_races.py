"""The race detector: every rule by a racy and a race-free scenario, and random programs against brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator.races.async_units.async_detector import AsyncDetector
from matmill.emulator.races.detector import Race, RaceDetector
from matmill.emulator.races.shadow import interval_log
from matmill.errors import ArgumentError, EmulationError
from support.event_graph import Graph, Thread
from support.examples import examples
from support.race_stores import distinct

BLOCKS, WARPS = 2, 3
LANES = (0, 1, 31)
Found = set[tuple[str, int, int]]
FIRST_BLOCK = tuple(range(WARPS))


@dataclass(frozen=True)
class Step:
    """One call of the detector; ``lanes`` maps (warp, lane) to an address, or lists the lanes of a warp barrier."""

    op: str
    warps: tuple[int, ...]
    lanes: dict[Thread, int] = field(default_factory=dict)
    space: str = "shared"
    kind: str = "read"
    width: int = 4
    agreed: bool = False
    allowed: int = 0

    def only(self, space: str, byte: int) -> Step:
        """Return the same step with no lanes but those that touch ``byte``."""
        if self.op not in ("access", "copy"):
            return self
        lanes = {t: a for t, a in self.lanes.items() if self.space == space and a <= byte < a + self.width}
        return Step(self.op, self.warps, lanes, self.space, self.kind, self.width, self.agreed)


def barriers_alone(program: list[Step]) -> RaceDetector:
    """Return the detector of programs whose order comes from barriers."""
    partial = any(now.op == "named" for now in program)
    return RaceDetector(blocks=BLOCKS, warps_per_block=WARPS, partial_barriers=partial)


def lane_by_lane(_program: list[Step]) -> RaceDetector:
    """Return the detector of programs with asynchronous units, which must find the same."""
    return AsyncDetector(clusters=np.arange(BLOCKS)[:, None], warps_per_block=WARPS)


Detectors = Callable[[list[Step]], RaceDetector]
DETECTORS: tuple[Detectors, ...] = (barriers_alone, lane_by_lane)


def detect(program: list[Step], kind: Detectors = barriers_alone) -> RaceDetector:
    """Tell a detector of the program's steps; ``where`` is the step's number."""
    detector = kind(program)
    for where, now in enumerate(program):
        warps = np.array(now.warps)
        if now.op in ("access", "copy"):
            # What an inactive lane's address register holds is nobody's business.
            addresses = np.full((len(warps), 32), 1 << 40, dtype=np.int64)
            for (warp, lane), address in now.lanes.items():
                addresses[now.warps.index(warp), lane] = address
            active = addresses < 1 << 40
            if now.op == "copy":
                detector.copy(warp=warps, addresses=addresses, active=active, width=now.width, where=where)
            else:
                detector.access(
                    now.space,
                    warp=warps,
                    addresses=addresses,
                    active=active,
                    width=now.width,
                    kind=now.kind,
                    where=where,
                    stores=distinct(warps, now.width, agreed=now.agreed),
                )
        elif now.op == "commit":
            detector.copy_commit(warps)
        elif now.op == "wait":
            detector.copy_wait(warps, now.allowed)
        elif now.op == "syncwarp":
            detector.warp_barrier(warps, np.ones((len(warps), 32), dtype=np.bool_))
        elif now.op == "lanes":
            lanes = np.array([[(warp, lane) in now.lanes for lane in range(32)] for warp in now.warps])
            detector.warp_barrier(warps, lanes)
        elif now.op == "block":
            detector.barriers(warps[None])
        else:
            detector.barrier(warps)
    return detector


def by(kind: str, *lanes: tuple[int, int, int], space: str = "shared", width: int = 4, agreed: bool = False) -> Step:
    """Return an access by (warp, lane, address) each; kind "copy" is a ``cp.async``."""
    op = "copy" if kind == "copy" else "access"
    warps = tuple(dict.fromkeys(warp for warp, _, _ in lanes))
    return Step(op, warps, {(warp, lane): address for warp, lane, address in lanes}, space, kind, width, agreed)


def meet(*warps: int) -> Step:
    return Step("named", warps)


def wait(warp: int, allowed: int = 0) -> Step:
    return Step("wait", (warp,), allowed=allowed)


def commit(warp: int) -> Step:
    return Step("commit", (warp,))


def members(warp: int, *lanes: int) -> Step:
    return Step("lanes", (warp,), {(warp, lane): 0 for lane in lanes})


def syncwarp(warp: int) -> Step:
    return Step("syncwarp", (warp,))


def found(program: list[Step], kind: Detectors) -> Found:
    return {(race.kind, race.first_where, race.second_where) for race in detect(program, kind).races()}


ALL_MEET = Step("block", FIRST_BLOCK)
W0, W1, W2 = ((warp, 0, 0) for warp in range(3))
OTHER_LANE = (0, 31, 0)
OTHER_BLOCK = (WARPS, 0, 0)

RACY: dict[str, tuple[list[Step], Found]] = {
    "write, read": ([by("write", W0), by("read", W1)], {("race", 0, 1)}),
    "read, write": ([by("read", W0), by("write", W1)], {("race", 0, 1)}),
    "write, write": ([by("write", W0), by("write", W1)], {("race", 0, 1)}),
    "two warps at once": ([by("write", W0, W1)], {("race", 0, 0)}),
    "two lanes at once": ([by("write", W0, OTHER_LANE)], {("race", 0, 0)}),
    "two warps at once, whatever they write": ([by("write", W0, W1, agreed=True)], {("race", 0, 0)}),
    "one lane's value read by the other": (
        [by("write", W0, OTHER_LANE, agreed=True), by("read", W0)],
        {("race", 0, 1)},
    ),
    "atomic, read": ([by("atomic", W0), by("read", W1)], {("race", 0, 1)}),
    "atomic, write": ([by("atomic", W0), by("write", W1)], {("race", 0, 1)}),
    "write, atomic": ([by("write", W0), by("atomic", W1)], {("race", 0, 1)}),
    "part of a wide write": ([by("write", W0, width=16), by("read", (1, 0, 12))], {("race", 0, 1)}),
    "half a word": ([by("write", (0, 0, 2), width=2), by("read", W1)], {("race", 0, 1)}),
    "a second reader": ([by("read", W0), by("read", W1), by("write", W0)], {("race", 1, 2)}),
    "a third reader": ([by("read", W0), by("read", W1), by("read", W2), meet(0, 1), by("write", W0)], {("race", 2, 4)}),
    "the other half of the block met": ([by("write", W0), meet(0, 1), by("read", W2)], {("race", 0, 2)}),
    "a barrier before both": ([ALL_MEET, by("write", W0), by("read", W1)], {("race", 1, 2)}),
    "different lanes": ([by("write", W0), by("read", OTHER_LANE)], {("race", 0, 1)}),
    "another warp's bar.warp.sync": ([by("write", W0), syncwarp(0), by("read", W1)], {("race", 0, 2)}),
    "lanes outside the member mask": ([by("write", W0), members(0, 0, 1), by("read", OTHER_LANE)], {("race", 0, 2)}),
    "blocks meet each for itself": (
        [by("write", W0, space="global"), ALL_MEET, by("read", OTHER_BLOCK, space="global")],
        {("race", 0, 2)},
    ),
    "three blocks' lanes": (
        [by("read", W0, OTHER_BLOCK, space="global"), by("write", W0, space="global")],
        {("race", 0, 1)},
    ),
    "a copy not waited for": ([by("copy", W0), by("read", W0)], {("missing-wait", 0, 1)}),
    "a copy's own second copy": ([by("copy", W0), by("copy", W0)], {("missing-wait", 0, 1)}),
    "a copy not waited for, elsewhere": ([by("copy", W0), ALL_MEET, by("read", W1)], {("race", 0, 2)}),
    "a copy waited for, no barrier": ([by("copy", W0), wait(0, -1), by("read", W1)], {("race", 0, 2)}),
    "the barrier before the wait": ([by("copy", W0), ALL_MEET, wait(0, -1), by("read", W1)], {("race", 0, 3)}),
    "an uncommitted copy": ([by("copy", W0), wait(0, 0), by("read", W0)], {("missing-wait", 0, 2)}),
    "a group too young": ([by("copy", W0), commit(0), wait(0, 1), by("read", W0)], {("missing-wait", 0, 3)}),
    "no second barrier": ([by("read", W1), by("copy", W0)], {("race", 0, 1)}),
    "a neighbour's copy": ([by("copy", W0, width=16), by("write", (1, 3, 8))], {("race", 0, 1)}),
    "a copy beside a write": ([by("copy", W0), by("write", (1, 0, 4)), ALL_MEET, by("read", W1)], {("race", 0, 3)}),
    "a copy beside a finished one": (
        [by("copy", W0), by("copy", (1, 0, 4)), wait(0, -1), ALL_MEET, by("read", (2, 0, 4))],
        {("race", 1, 4)},
    ),
    "a waited copy, another lane": ([by("copy", W0), wait(0, -1), by("read", OTHER_LANE)], {("race", 0, 2)}),
}

FREE: dict[str, list[Step]] = {
    "reads": [by("read", W0, W1), by("read", W2)],
    "barrier": [by("write", W0), ALL_MEET, by("read", W1)],
    "barrier, then overwritten": [by("read", W0, W1, W2), ALL_MEET, by("write", W1)],
    "program order": [by("write", W0), by("read", W0), by("write", W0)],
    "neighbours": [by("write", W0), by("read", (1, 0, 4))],
    "neighbouring halves": [by("write", W0, (0, 1, 2), width=2), by("write", (1, 0, 4), (1, 1, 6), width=2)],
    "neighbouring bytes after words": [
        by("read", (0, 0, 8)),
        by("write", W0, width=1),
        by("write", (1, 0, 1), width=1),
    ],
    "lanes that agree": [by("write", W0, OTHER_LANE, agreed=True)],
    "atomics": [by("atomic", W0, W1, OTHER_LANE), by("atomic", W2)],
    "atomics across blocks": [by("atomic", W0, OTHER_BLOCK, space="global"), by("atomic", W1, space="global")],
    "a chain of named barriers": [by("write", W0), meet(0, 1), meet(1, 2), by("read", W2)],
    "all warps by their names": [by("write", W0), meet(*FIRST_BLOCK), by("read", W2)],
    "named, then full": [by("write", W0), meet(1, 2), ALL_MEET, by("read", W2), by("read", W1)],
    "bar.warp.sync": [by("write", W0), syncwarp(0), by("read", OTHER_LANE)],
    "bar.warp.sync of the two": [by("write", W0), members(0, 0, 31), by("read", OTHER_LANE)],
    "bar.warp.sync in a chain": [by("write", W0), members(0, 0, 1), members(0, 1, 31), by("read", OTHER_LANE)],
    "lanes, then another warp": [by("write", OTHER_LANE), members(0, 0, 1), meet(0, 1), by("write", W1)],
    "different windows": [by("write", W0), by("write", OTHER_BLOCK)],
    "waited for": [by("copy", W0), commit(0), wait(0), by("read", W0)],
    "waited for, barrier": [by("copy", W0), commit(0), wait(0), ALL_MEET, by("read", W1, W2)],
    "wait for all": [by("copy", W0), wait(0, -1), ALL_MEET, by("write", W2)],
    "the younger group elsewhere": [
        *(by("copy", W0), commit(0), by("copy", (0, 0, 16)), commit(0)),
        *(wait(0, 1), ALL_MEET, by("read", W1)),
    ],
    "both barriers of a double buffer": [by("read", W1), ALL_MEET, by("copy", W0), commit(0), wait(0), by("read", W0)],
}


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("name", RACY)
def test_races_are_found(name: str, kind: Detectors) -> None:
    program, expected = RACY[name]
    assert found(program, kind) == expected


@pytest.mark.parametrize("kind", DETECTORS)
@pytest.mark.parametrize("name", FREE)
def test_nothing_else_is(name: str, kind: Detectors) -> None:
    assert found(FREE[name], kind) == set()


@dataclass
class Event:
    """One lane's part of an access: nodes of the graph where it may start and where it is done (None: never)."""

    where: int
    thread: Thread
    space: str
    kind: str
    address: int
    width: int
    agreed: bool
    start: int
    end: int | None

    def touches(self, other: Event) -> bool:
        """Tell whether the two have a byte in common."""
        same = self.space == other.space and (self.space == "global" or self.block == other.block)
        return same and self.address < other.address + other.width and other.address < self.address + self.width

    @property
    def block(self) -> int:
        """The thread's block."""
        return self.thread[0] // WARPS


def ordered(graph: Graph, one: Event, two: Event) -> bool:
    """Tell whether one event is done before the other may start."""
    return any(a.end is not None and graph.comes_before(a.end, b.start) for a, b in ((one, two), (two, one)))


class Reference:
    """Walks a program and collects its events."""

    def __init__(self, program: list[Step]) -> None:
        self.graph = Graph()
        self.events: list[Event] = []
        self.under_way: list[tuple[int, Event]] = []
        self.committed = dict.fromkeys(range(BLOCKS * WARPS), 0)
        for where, now in enumerate(program):
            if now.op in ("access", "copy"):
                self.access(where, now)
            elif now.op == "wait":
                self.wait(now)
            elif now.op == "commit":
                for warp in now.warps:
                    self.committed[warp] += 1
            elif now.op in ("block", "named"):
                self.graph.meet([(warp, lane) for warp in now.warps for lane in LANES])
            else:
                for warp in now.warps:
                    met = [(warp, lane) for lane in LANES if now.op == "syncwarp" or (warp, lane) in now.lanes]
                    self.graph.meet(met)

    def access(self, where: int, now: Step) -> None:
        """Record one event per lane; a copy's has no end yet."""
        for thread, address in now.lanes.items():
            node = self.graph.step(thread)
            end = None if now.op == "copy" else node
            event = Event(where, thread, now.space, now.kind, address, now.width, now.agreed, node, end)
            self.events.append(event)
            if now.op == "copy":
                self.under_way.append((self.committed[thread[0]], event))

    def wait(self, now: Step) -> None:
        """End the copies that the wait covers."""
        for group, event in self.under_way:
            warp = event.thread[0]
            if warp in now.warps and event.end is None and group < self.committed[warp] - now.allowed:
                event.end = self.graph.step(event.thread)


def races_of(reference: Reference) -> Iterator[tuple[Event, Event]]:
    """Yield all racing pairs of a program."""
    for one, two in combinations(reference.events, 2):
        plain = {"write", "copy"} & {one.kind, two.kind} or {one.kind, two.kind} == {"read", "atomic"}
        alike = one.where == two.where and one.thread[0] == two.thread[0] and one.agreed
        if plain and not alike and one.touches(two) and not ordered(reference.graph, one, two):
            yield one, two


def is_observed(reference: Reference, one: Event, two: Event) -> bool:
    """Tell whether ``two`` comes after an atomic that has observed the atomic ``one``, lane by lane."""
    first, second = (next(n for n, event in enumerate(reference.events) if event is each) for each in (one, two))
    return one.kind == "atomic" and any(
        event.kind == "atomic" and event.touches(one) and event.touches(two) and ordered(reference.graph, event, two)
        for event in reference.events[first + 1 : second]
    )


@st.composite
def lanes_of(draw: st.DrawFn, warps: tuple[int, ...], width: int) -> dict[Thread, int]:
    slots = draw(st.sampled_from([2, 8, 40]))
    spread = draw(st.sampled_from([1, 1, 1, 1024]))
    chosen = {}
    for warp in warps:
        for lane in draw(st.sets(st.sampled_from(LANES))):
            chosen[warp, lane] = draw(st.integers(0, slots - 1)) * max(width, 4) // width * width * spread
    return chosen


@st.composite
def step(draw: st.DrawFn, ops: tuple[str, ...], widths: tuple[int, ...]) -> Step:
    op = draw(st.sampled_from(ops))
    block = draw(st.integers(0, BLOCKS - 1))
    inside = tuple(range(block * WARPS, (block + 1) * WARPS))
    some = tuple(sorted(draw(st.sets(st.sampled_from(inside), min_size=1))))
    anywhere = tuple(sorted(draw(st.sets(st.integers(0, BLOCKS * WARPS - 1), min_size=1))))
    if op == "access":
        width = draw(st.sampled_from(widths))
        kind = draw(st.sampled_from(["read", "read", "write", "write", "atomic"]))
        space = draw(st.sampled_from(["shared", "shared", "global"]))
        return Step(op, anywhere, draw(lanes_of(anywhere, width)), space, kind, width, draw(st.booleans()))
    if op == "copy":
        width = draw(st.sampled_from([4, 8, 16]))
        return Step(op, anywhere, draw(lanes_of(anywhere, width)), kind="copy", width=width)
    if op == "wait":
        return Step(op, anywhere, allowed=draw(st.integers(-1, 1)))
    if op == "lanes":
        members = {(warp, lane): 0 for warp in anywhere for lane in draw(st.sets(st.sampled_from(LANES), min_size=1))}
        return Step(op, anywhere, members)
    return Step(op, {"block": inside, "named": some}.get(op, anywhere))


def programs(ops: tuple[str, ...], widths: tuple[int, ...] = (4, 16)) -> st.SearchStrategy[list[Step]]:
    return st.lists(step(ops, widths), min_size=2, max_size=14)


def check(program: list[Step]) -> None:
    """Check that every race reported is one, and that there is a report if there is a race."""
    reference = Reference(program)
    pairs = list(races_of(reference))
    true = {
        (one.space, "missing-wait" if one.thread == two.thread else "race", one.where, two.where) for one, two in pairs
    }
    for kind in DETECTORS:
        races = detect(program, kind).races()
        assert {(race.space, race.kind, race.first_where, race.second_where) for race in races} <= true
        assert races or all(kind is lane_by_lane and is_observed(reference, one, two) for one, two in pairs)


def test_an_atomic_stands_for_those_that_it_observed() -> None:
    both = Step("access", (0, 1), {(0, 0): 0, (1, 0): 0}, kind="atomic", width=4)
    program = [both, Step("access", (1,), {(1, 0): 0}, kind="write", width=4)]
    assert [race.first_thread for race in detect(program).races()] == [(0, 0)]
    assert not detect(program, lane_by_lane).races()  # docs/emulator.md, "Limits"
    assert detect([both, Step("access", (2,), {(2, 0): 0}, kind="write", width=4)], lane_by_lane).races()


OPS = {
    "full barriers": ("access", "access", "access", "block"),
    "warp barriers": ("access", "access", "access", "block", "syncwarp"),
    "named barriers": ("access", "access", "access", "block", "named"),
    "lane barriers": ("access", "access", "access", "named", "lanes", "syncwarp", "block"),
    "copies": ("access", "access", "copy", "copy", "commit", "wait", "block", "syncwarp"),
    "everything": ("access", "access", "access", "copy", "commit", "wait", "block", "named", "lanes", "syncwarp"),
}


@pytest.mark.parametrize("ops", OPS)
@examples(40)
@given(st.data())
def test_random_programs_have_the_races_brute_force_finds(ops: str, data: st.DataObject) -> None:
    widths = data.draw(st.sampled_from([(4, 16), (1, 2, 4, 8, 16)]))
    program = data.draw(programs(OPS[ops], widths))
    check(program)
    # A race may hide others on bytes that it touches, so each byte must be judged right by itself, too.
    space, byte = data.draw(st.sampled_from(["shared", "global"])), data.draw(st.integers(0, 40))
    check([step.only(space, byte) for step in program])


@examples(70)
@given(programs(OPS["everything"]))
def test_a_log_given_up_changes_nothing(program: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval_log, "_PRUNE_ROWS", 1)
        patch.setattr(interval_log, "_MOST_ROWS", 4)
        check(program)


def test_a_report_names_both_threads() -> None:
    program = [by("write", (4, 31, 68), space="global"), by("read", (0, 2, 64), space="global", width=16)]
    (race,) = detect(program).races()
    expected = Race("global", 64, 0, "race", 0, 1, "write", "read", (1, 63), (0, 2))
    assert race == expected
    assert str(race) == (
        "race in global memory at 0x40: write by thread 63 of block 1 (instruction 0) and read by thread 2 of block 0 "
        "(instruction 1)"
    )


def test_full_barriers_keep_the_screen_in_charge() -> None:
    everybody = [(warp, lane, 16 * lane) for warp in FIRST_BLOCK for lane in range(32)]
    own = [(warp, lane, 512 * warp + 16 * lane) for warp, lane, _ in everybody]
    detector = detect([by("write", *own, width=16), ALL_MEET, by("read", *everybody, width=16), ALL_MEET] * 3)
    assert not detector._shared._hot.any()
    assert not any(detector._shared._cells._slots.values())
    program = [by("read", *everybody), by("read", *everybody, space="global"), by("write", W0), ALL_MEET]
    detector = detect([meet(0, 1), ALL_MEET, *program])
    assert not detector._shared._general.any()
    assert len(detector._shared._cells._slots["read"]) == 2


def test_one_report_per_pair_of_instructions() -> None:
    whole = [(warp, lane, 4 * lane) for warp in (0, 1) for lane in range(32)]
    assert len(detect([by("write", *whole[:32]), by("read", *whole), by("read", *whole)]).races()) == 2


def test_a_released_row_starts_afresh() -> None:
    lanes = np.arange(32)[None] * 4
    on = np.ones((1, 32), dtype=np.bool_)
    detector = RaceDetector(blocks=40, warps_per_block=2)
    for block in range(40):
        first, second = np.array([2 * block]), np.array([2 * block + 1])
        detector.access("shared", warp=first, addresses=lanes, active=on, width=4, kind="write", where=0)
        detector.access("shared", warp=first, addresses=lanes, active=on, width=4, kind="read", where=1)
        detector.copy(warp=second, addresses=lanes + 128, active=on, width=4, where=2)
        detector.release(np.array([block]))
    assert detector.races() == []
    detector.copy_wait(np.array([0, 79]), -1)
    detector.access("shared", warp=np.array([0]), addresses=lanes, active=on, width=4, kind="write", where=3)
    detector.access("shared", warp=np.array([1]), addresses=lanes, active=on, width=4, kind="write", where=4)
    assert [(race.first_where, race.second_where) for race in detector.races()] == [(3, 4)]


def test_many_groups_meet_at_once() -> None:
    lanes = np.broadcast_to(np.arange(32) * 16, (BLOCKS * WARPS, 32))
    on = np.ones(lanes.shape, dtype=np.bool_)
    for groups in (np.arange(BLOCKS * WARPS).reshape(BLOCKS, WARPS), [np.array([0, 1]), np.array([3, 4])]):
        detector = RaceDetector(blocks=BLOCKS, warps_per_block=WARPS)
        for write in (0, 1):
            one = np.array([write, WARPS + write])
            detector.access("shared", warp=one, addresses=lanes[:2], active=on[:2], width=16, kind="write", where=write)
            detector.barriers(groups)
        assert detector.races() == []
        everybody = np.arange(BLOCKS * WARPS)
        detector.access("shared", warp=everybody, addresses=lanes, active=on, width=16, kind="read", where=2)
        assert bool(detector.races()) == isinstance(groups, list)


def test_the_caller_may_reuse_its_arrays() -> None:
    warp, lanes, on = np.array([0]), np.arange(32)[None] * 4, np.ones((1, 32), dtype=np.bool_)
    detector = RaceDetector(blocks=1, warps_per_block=2)
    detector.access("shared", warp=warp, addresses=lanes, active=on, width=4, kind="read", where=0)
    warp += 1
    on[:, 1:] = False
    detector.access("shared", warp=warp, addresses=lanes + 64, active=on, width=4, kind="write", where=1)
    assert [race.first_thread for race in detector.races()] == [(0, 16)]


def test_what_is_no_access_is_refused() -> None:
    detector = RaceDetector(blocks=1, warps_per_block=1)
    warp, lanes = np.array([0]), np.zeros((1, 32), dtype=np.int64)
    on = lanes == 0
    with pytest.raises(ArgumentError, match="space: got 'local'"):
        detector.access("local", warp=warp, addresses=lanes, active=on, width=4, kind="read", where=0)
    with pytest.raises(ArgumentError, match="kind: got 'copy'"):
        detector.access("shared", warp=warp, addresses=lanes, active=on, width=4, kind="copy", where=0)
    with pytest.raises(ArgumentError, match="width: got 32"):
        detector.copy(warp=warp, addresses=lanes, active=on, width=32, where=0)
    far = lanes.copy()
    far[0, 1] = 1 << 50
    with pytest.raises(EmulationError, match="addresses: got global memory that spans"):
        detector.access("global", warp=warp, addresses=far, active=on, width=4, kind="read", where=0)
