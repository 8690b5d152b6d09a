"""Releases and acquires recorded by the detector: random programs against the memory model's own definitions."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.emulator.program.ordering import Ordering
from matmill.emulator.races.detector import RaceDetector
from support.examples import examples
from support.race_stores import distinct

BLOCKS, WARPS = 3, 3
LANES = (0, 1)
DATA, FLAGS = (0, 4, 8), (64, 68)
Thread = tuple[int, int]
Found = set[tuple[int, int, int]]
RELAXED, ACQUIRE, RELEASE, ACQ_REL = (
    Ordering(),
    Ordering(acquire=True),
    Ordering(release=True),
    Ordering(acquire=True, release=True),
)
SC = Ordering(acquire=True, release=True, sc=True)


@dataclass(frozen=True)
class Step:
    """One call of the detector: an access of some lanes to ``address``, a fence or a barrier of theirs."""

    op: str
    lanes: tuple[Thread, ...]
    address: int = 0
    ordering: Ordering | None = None
    space: str = "global"

    @property
    def warps(self) -> list[int]:
        """The warps that take part, each once."""
        return sorted({warp for warp, _ in self.lanes})


def detect(program: Iterable[Step]) -> Found:
    """Return the races that a detector finds: an address and two steps."""
    detector = RaceDetector(blocks=BLOCKS, warps_per_block=WARPS, releases=True, partial_barriers=True)
    for where, now in enumerate(program):
        warps = np.array(now.warps)
        active = np.array([[(warp, lane) in now.lanes for lane in range(32)] for warp in now.warps])
        if now.op == "fence" and now.ordering is not None:
            detector.fence(warps, active, now.ordering)
        elif now.op == "lanes":
            detector.warp_barrier(warps, active)
        elif now.op == "warp":
            detector.warp_barrier(warps, np.ones_like(active))
        elif now.op == "barrier":
            detector.barrier(warps)
        else:
            detector.access(
                now.space, warp=warps, addresses=np.full(active.shape, now.address), active=active, width=4,
                kind=now.op, where=where, stores=distinct(warps, 4, agreed=True), ordering=now.ordering,
            )  # fmt: skip
    return {(race.address, race.first_where, race.second_where) for race in detector.races()}


@dataclass
class Node:
    """One thread's part of a step; ``base`` and ``local`` are the nodes before it, as bits of an integer.

    ``local`` counts program order and barriers alone. ``seen`` are the writes that a strong read observes.
    """

    where: int
    thread: Thread
    op: str
    address: int
    space: str
    ordering: Ordering | None
    number: int
    base: int = 0
    local: int = 0
    seen: list[Node] = field(default_factory=list)

    @property
    def block(self) -> int:
        """The thread's block."""
        return self.thread[0] // WARPS

    def strong_with(self, other: Node) -> bool:
        """Tell whether the scopes of both include the other."""
        both = self.ordering is not None and self.ordering.wide and other.ordering is not None and other.ordering.wide
        return self.block == other.block or both

    def location(self) -> tuple[str, int, int]:
        """Return what bytes it accesses."""
        return self.space, self.block if self.space == "shared" else -1, self.address


class Model:
    """The memory model, by its definitions: walks a program in its order and links every node to those before it."""

    def __init__(self, program: Iterable[Step]) -> None:
        self.nodes: list[Node] = []
        self.latest: dict[Thread, Node] = {}
        self.chains: dict[tuple[str, int, int], list[Node]] = {}
        for where, now in enumerate(program):
            if now.op in {"barrier", "warp", "lanes"}:
                everybody = [(warp, lane) for warp in now.warps for lane in LANES]
                if now.op == "barrier":
                    self.meet(everybody)
                for warp in now.warps:
                    self.meet([t for t in (now.lanes if now.op == "lanes" else everybody) if t[0] == warp])
            else:
                for thread in sorted(now.lanes):
                    self.act(where, thread, now)

    def add(self, node: Node, after: Iterable[Node]) -> Node:
        """Add a node after others, in both orders."""
        for other in after:
            node.base |= other.base | 1 << other.number
            node.local |= other.local | 1 << other.number
        self.nodes.append(node)
        return node

    def meet(self, threads: list[Thread]) -> None:
        """Meet at a barrier."""
        node = Node(-1, (-1, -1), "barrier", 0, "", None, len(self.nodes))
        self.add(node, [self.latest[thread] for thread in threads if thread in self.latest])
        self.latest.update(dict.fromkeys(threads, node))

    def act(self, where: int, thread: Thread, now: Step) -> None:
        """Access or fence."""
        node = Node(where, thread, now.op, now.address, now.space, now.ordering, len(self.nodes))
        mine = [each for each in self.nodes if each.thread == thread]
        self.add(node, [self.latest[thread]] if thread in self.latest else [])
        self.latest[thread] = node
        if now.op != "fence":
            self.link(node)
        if node.ordering is not None and node.ordering.acquire and now.op != "write":
            for read in (*mine, node):
                same = node.op == "fence" or read.location() == node.location()
                if read.op in {"read", "atomic"} and same:
                    self.synchronize(read, node)
        if node.op == "fence" and node.ordering is not None and node.ordering.sc and node.ordering.wide:
            for read in [each for each in self.nodes if each.seen and node.local >> each.number & 1]:
                for write in read.seen:
                    for first in self.nodes:
                        if (
                            first.op == "fence"
                            and first.ordering is not None
                            and first.ordering.sc
                            and first.ordering.wide
                            and write.local >> first.number & 1
                        ):
                            node.base |= first.base | 1 << first.number

    def link(self, node: Node) -> None:
        """Find what a read observes, and put a write into its location's release sequence."""
        chain = self.chains.setdefault(node.location(), [])
        if node.ordering is None:
            if node.op == "write":
                chain.clear()
            return
        linked = bool(chain) and chain[-1].strong_with(node)
        if linked and node.op != "write":
            node.seen = list(chain)
        if node.op == "write" or (node.op == "atomic" and not linked):
            chain.clear()
        if node.op != "read":
            chain.append(node)

    def synchronize(self, read: Node, last: Node) -> None:
        """Order ``last``, with which an acquire by ``read`` ends, after the releases that ``read`` observes."""
        for write in read.seen:
            for first in self.nodes[: write.number + 1]:
                if first.thread != write.thread or first.ordering is None or not first.ordering.release:
                    continue
                same = first.op == "fence" or (first.location() == write.location() and first.op != "read")
                if same and first.strong_with(last):
                    last.base |= first.base | 1 << first.number

    def races(self) -> Found:
        """Return all pairs of steps of which two nodes race, with where."""
        result = set()
        for one, two in combinations([node for node in self.nodes if node.op in {"read", "write", "atomic"}], 2):
            reads = one.op == two.op == "read"
            strong = one.ordering is not None and two.ordering is not None
            alike = one.where == two.where and one.thread[0] == two.thread[0]
            distinct = one.location() != two.location()
            if not (reads or strong or alike or distinct or two.base >> one.number & 1):
                result.add((one.address, one.where, two.where))
        return result


def by(kind: str, thread: Thread, address: int = 0, ordering: Ordering | None = None, space: str = "global") -> Step:
    return Step(kind, (thread,), address, ordering, space)


def fence(ordering: Ordering, *threads: Thread) -> Step:
    return Step("fence", threads, 0, ordering)


def meet(*warps: int) -> Step:
    return Step("barrier", tuple((warp, lane) for warp in warps for lane in LANES))


# Threads: two lanes of a block's first warp and one of its second, the same of another block, one of a third.
A, A_LANE, A_WARP = (0, 0), (0, 1), (1, 0)
B, B_LANE, B_WARP, C = (3, 0), (3, 1), (4, 0), (6, 0)
FLAG, OTHER_FLAG = FLAGS
WROTE, READS = by("write", A), by("read", B)
FENCE = Ordering(acquire=True, release=True)
FENCE_NARROW, NARROW_RELAXED = Ordering(acquire=True, release=True, wide=False), Ordering(wide=False)
GIVES, TAKES = by("write", A, FLAG, RELEASE), by("read", B, FLAG, ACQUIRE)
LETS, SEES = by("write", A, FLAG, RELAXED), by("read", B, FLAG, RELAXED)

ORDERED: dict[str, list[Step]] = {
    "release, acquire": [WROTE, GIVES, TAKES, READS],
    "by atomics": [WROTE, by("atomic", A, FLAG, RELEASE), by("atomic", B, FLAG, ACQUIRE), READS],
    "fences": [WROTE, fence(FENCE, A), LETS, SEES, fence(FENCE, B), READS],
    "a fence and an acquire": [WROTE, fence(FENCE, A), LETS, TAKES, READS],
    "a release and a fence": [WROTE, GIVES, SEES, fence(FENCE, B), READS],
    "through another's atomic": [WROTE, GIVES, by("atomic", C, FLAG, RELAXED), TAKES, READS],
    "a second write of who released": [WROTE, GIVES, LETS, TAKES, READS],
    "a read before the acquire": [WROTE, GIVES, SEES, by("write", C, FLAG, RELAXED), TAKES, READS],
    "three blocks": [
        *(WROTE, GIVES, TAKES),
        *(by("write", B, OTHER_FLAG, RELEASE), by("read", C, OTHER_FLAG, ACQUIRE), by("read", C)),
    ],
    "barriers on both sides": [by("write", A_WARP), meet(0, 1, 2), GIVES, TAKES, meet(3, 4, 5), by("read", B_WARP)],
    "one atomic after the other": [
        *(WROTE, by("atomic", A, FLAG, ACQ_REL), by("write", C, 4), by("atomic", C, FLAG, ACQ_REL)),
        *(by("atomic", B, FLAG, ACQ_REL), READS, by("read", B, 4)),
    ],
    "scope .cta inside a block": [
        *(WROTE, by("atomic", A, FLAG, FENCE_NARROW), by("atomic", A_WARP, FLAG, FENCE_NARROW), by("read", A_WARP)),
    ],
    "fences of scope .cta inside a block": [
        *(WROTE, fence(FENCE_NARROW, A), LETS),
        *(by("read", A_WARP, FLAG, RELAXED), fence(FENCE_NARROW, A_WARP), by("read", A_WARP)),
    ],
    "lanes of a warp": [WROTE, GIVES, by("read", A_LANE, FLAG, ACQUIRE), by("read", A_LANE)],
    "lanes in one instruction": [
        *(WROTE, Step("atomic", (A, A_LANE), FLAG, ACQ_REL), by("write", A_LANE)),
    ],
    "blocks in one instruction": [WROTE, Step("atomic", (A, B), FLAG, ACQ_REL), READS],
    "what a neighbouring lane released": [
        *(by("write", A_LANE), Step("lanes", (A, A_LANE)), GIVES, TAKES, READS),
    ],
    "fence.sc and barriers": [
        *(by("write", A_WARP), fence(SC, A, A_WARP), meet(0, 1, 2), LETS, SEES, meet(3, 4, 5)),
        *(fence(SC, B_WARP), by("read", B_WARP)),
    ],
    "fence.sc and no barrier after it": [
        by("write", A),
        fence(SC, A),
        LETS,
        SEES,
        meet(3, 4, 5),
        fence(SC, B_WARP),
        by("read", B_WARP),
    ],
    "fence.sc and a barrier of lanes": [
        *(by("write", A_LANE), fence(SC, A_LANE), Step("lanes", (A, A_LANE)), LETS, SEES, fence(SC, B), READS),
    ],
    "fence.sc under a later fence": [
        *(WROTE, fence(SC, A), fence(FENCE, A), LETS, SEES, meet(3, 4, 5), fence(SC, B_WARP), by("read", B_WARP)),
    ],
    "named barriers": [
        *(by("write", A_WARP), meet(0, 1), GIVES, by("read", B, FLAG, ACQUIRE), meet(3, 4), by("read", (4, 1))),
    ],
    "shared memory": [
        *(by("write", A, 0, None, "shared"), by("write", A, FLAG, RELEASE, "shared")),
        *(by("read", A_WARP, FLAG, ACQUIRE, "shared"), by("read", A_WARP, 0, None, "shared")),
    ],
    "the flag set back": [WROTE, fence(FENCE, A), LETS, SEES, fence(FENCE, B), by("write", B, FLAG)],
    "a counter set back": [by("atomic", A, FLAG, RELAXED), by("atomic", B, FLAG, RELAXED), by("write", B, FLAG)],
    "strong accesses among themselves": [LETS, SEES, by("write", B, FLAG, RELAXED), by("read", A, FLAG, RELAXED)],
    "reads": [SEES, by("read", A, FLAG)],
}
UNORDERED: dict[str, list[Step]] = {
    "no release": [WROTE, LETS, TAKES, READS],
    "no acquire": [WROTE, GIVES, SEES, READS],
    "a write after the release": [GIVES, WROTE, TAKES, READS],
    "a write after the fence": [fence(FENCE, A), WROTE, LETS, TAKES, READS],
    "a read before the acquire": [WROTE, GIVES, READS, TAKES],
    "a read before the fence": [WROTE, GIVES, SEES, READS, fence(FENCE, B)],
    "another thread's fence": [WROTE, GIVES, SEES, fence(FENCE, B_LANE), READS],
    "another thread acquires": [WROTE, GIVES, by("read", B_LANE, FLAG, ACQUIRE), READS],
    "another thread wrote": [by("write", A_LANE), GIVES, TAKES, READS],
    "no barrier before": [by("write", A_WARP), GIVES, TAKES, READS],
    "not all at a named barrier": [by("write", A_WARP), meet(0, 2), GIVES, TAKES, READS],
    "no barrier after": [WROTE, GIVES, TAKES, by("read", B_WARP)],
    "acquired too early": [WROTE, TAKES, GIVES, READS],
    "another flag": [WROTE, GIVES, by("read", B, OTHER_FLAG, ACQUIRE), READS],
    "a store of another in between": [WROTE, GIVES, by("write", C, FLAG, RELAXED), TAKES, READS],
    "a plain store in between": [WROTE, GIVES, by("write", A, FLAG), TAKES, READS],
    "the chain breaks off": [
        WROTE,
        GIVES,
        TAKES,
        by("write", B, OTHER_FLAG, RELAXED),
        by("read", C, OTHER_FLAG, ACQUIRE),
        by("read", C),
    ],
    "release of scope .cta": [WROTE, by("write", A, FLAG, FENCE_NARROW), TAKES, READS],
    "acquire of scope .cta": [WROTE, GIVES, by("read", B, FLAG, Ordering(acquire=True, wide=False)), READS],
    "fence of scope .cta before": [WROTE, fence(FENCE_NARROW, A), LETS, TAKES, READS],
    "fence of scope .cta after": [WROTE, GIVES, SEES, fence(FENCE_NARROW, B), READS],
    "write of scope .cta": [WROTE, fence(FENCE, A), by("write", A, FLAG, NARROW_RELAXED), TAKES, READS],
    "read of scope .cta": [WROTE, GIVES, by("read", B, FLAG, NARROW_RELAXED), fence(FENCE, B), READS],
    "an atomic of scope .cta between": [WROTE, GIVES, by("atomic", C, FLAG, NARROW_RELAXED), TAKES, READS],
    "the third block has not released": [
        *(WROTE, by("atomic", A, FLAG, ACQ_REL), by("atomic", B, FLAG, ACQ_REL), READS),
        *(by("write", C, 4), by("read", B, 4), by("atomic", C, FLAG, ACQ_REL)),
    ],
    "fence.acq_rel and barriers": [
        *(by("write", A_WARP), fence(FENCE, A, A_WARP), meet(0, 1, 2), LETS, SEES, meet(3, 4, 5)),
        *(fence(SC, B_WARP), by("read", B_WARP)),
    ],
    "fence.sc and no barrier": [by("write", A_WARP), fence(SC, A, A_WARP), LETS, SEES, fence(SC, B), READS],
    "fence.sc of another lane": [by("write", A_LANE), fence(SC, A, A_LANE), LETS, SEES, fence(SC, B), READS],
    "fence.sc and nothing read": [WROTE, fence(SC, A), LETS, fence(SC, B), READS],
    "the flag set back too early": [SEES, LETS, by("write", B, FLAG)],
    "a weak read of a flag": [LETS, by("read", B, FLAG)],
    "shared memory, no acquire": [
        *(by("write", A, 0, None, "shared"), by("write", A, FLAG, RELEASE, "shared")),
        *(by("read", A_WARP, FLAG, RELAXED, "shared"), by("read", A_WARP, 0, None, "shared")),
    ],
    "fence.sc before the write, fence.acq_rel after it": [
        *(fence(SC, A), WROTE, fence(FENCE, A), LETS, SEES, meet(3, 4, 5), fence(SC, B_WARP), by("read", B_WARP)),
    ],
    "one of three warps has not released": [
        *(by("read", thread, 0, None, "shared") for thread in (A, A_WARP, (2, 0))),
        *(GIVES, by("write", A_WARP, OTHER_FLAG, RELEASE)),
        *(by("read", (2, 1), FLAG, ACQUIRE), by("read", (2, 1), OTHER_FLAG, ACQUIRE)),
        by("write", (2, 1), 0, None, "shared"),
    ],
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_the_model_orders_is_no_race(name: str) -> None:
    assert detect(ORDERED[name]) == set()
    assert not any(address in DATA for address, _, _ in Model(ORDERED[name]).races())


@pytest.mark.parametrize("name", UNORDERED)
def test_what_it_does_not_order_is_one(name: str) -> None:
    assert detect(UNORDERED[name]) == Model(UNORDERED[name]).races() != set()


def threads(*warps: int) -> st.SearchStrategy[tuple[Thread, ...]]:
    every = [(warp, lane) for warp in warps or range(BLOCKS * WARPS) for lane in LANES]
    return st.sets(st.sampled_from(every), min_size=1, max_size=3).map(lambda those: tuple(sorted(those)))


@st.composite
def step(draw: st.DrawFn, space: str) -> Step:
    op = draw(st.sampled_from(["data"] * 4 + ["flag"] * 6 + ["fence"] * 3 + ["block", "some", "warp", "lanes"]))
    lanes = draw(threads())
    wide = draw(st.sampled_from([True, True, True, False]))
    if op == "data":
        return Step(draw(st.sampled_from(["read", "write"])), lanes, draw(st.sampled_from(DATA)), None, space)
    if op == "flag":
        kind = draw(st.sampled_from(["read", "write", "atomic", "atomic"]))
        acquire, release = draw(st.booleans()) and kind != "write", draw(st.booleans()) and kind != "read"
        ordering: Ordering | None = Ordering(acquire=acquire, release=release, wide=wide)
        if kind in {"read", "write"} and draw(st.integers(0, 3)) == 0:
            ordering = None
        return Step(kind, lanes, draw(st.sampled_from(FLAGS)), ordering, draw(st.sampled_from(["global", space])))
    if op == "fence":
        acquire, release = draw(st.sampled_from([(True, True), (True, True), (True, False), (False, True)]))
        sc = acquire and release and draw(st.booleans())
        return Step(op, lanes, 0, Ordering(acquire=acquire, release=release, wide=wide, sc=sc))
    if op == "lanes":
        return Step(op, lanes)
    block = draw(st.integers(0, BLOCKS - 1))
    inside = range(block * WARPS, (block + 1) * WARPS)
    chosen = list(inside) if op == "block" else sorted(draw(st.sets(st.sampled_from(inside), min_size=1)))
    return Step("barrier" if op != "warp" else op, tuple((warp, lane) for warp in chosen for lane in LANES))


def check(program: list[Step]) -> None:
    """Check that every race reported is one, and that one on data is reported if there is one.

    Of plain accesses to a flag the model here knows too little: what a thread observes is done, too. The first step is
    not compared: accesses of a warp's lanes may be remembered under the name of one.
    """
    races, true = detect(program), Model(program).races()
    assert {(address, second) for address, _, second in races} <= {(address, second) for address, _, second in true}
    assert any(address in DATA for address, _, _ in races) == any(address in DATA for address, _, _ in true)


@st.composite
def handover(draw: st.DrawFn, space: str) -> list[Step]:
    """Return one thread's data on its way to another one, with steps left out, weakened or in between."""
    near = space == "shared" or draw(st.sampled_from([False, False, True]))
    giver = draw(st.integers(0, BLOCKS * WARPS - 1))
    taker = (
        giver // WARPS * WARPS + draw(st.integers(0, WARPS - 1)) if near else draw(st.integers(0, BLOCKS * WARPS - 1))
    )
    lane = st.sampled_from([0, 0, 0, 1])
    wide = draw(st.sampled_from([True, True, True, not near]))
    sc = draw(st.booleans())
    fence = Ordering(acquire=True, release=True, wide=wide, sc=sc)
    data, flag = draw(st.sampled_from(DATA[:2])), draw(st.sampled_from(FLAGS))
    release, acquire = draw(st.booleans()), draw(st.booleans())
    kinds = draw(st.sampled_from([("atomic", "atomic"), ("write", "read"), ("write", "atomic"), ("atomic", "read")]))
    flags = draw(st.sampled_from(["global", space]))
    met = draw(st.booleans()) and not near
    block = [
        [Step("barrier", tuple((warp, lane) for warp in range(first, first + WARPS) for lane in LANES))] if met else []
        for first in (giver // WARPS * WARPS, taker // WARPS * WARPS)
    ]
    aside = draw(st.integers(0, WARPS - 1)) if met else 0
    there, here = (warp // WARPS * WARPS + (warp + aside) % WARPS for warp in (giver, taker))
    steps = [
        Step(draw(st.sampled_from(["write", "write", "read"])), ((giver, draw(lane)),), data, None, space),
        *([] if release else [Step("fence", ((giver, 0), (there, 0)), 0, fence)]),
        *block[0],
        *([] if release else [Step("fence", ((there, 0),), 0, fence)]),
        Step(kinds[0], ((there, 0),), flag, Ordering(release=release, wide=wide), flags),
        Step(kinds[1], ((here, 0),), flag, Ordering(acquire=acquire, wide=wide), flags),
        *([] if acquire else [Step("fence", ((here, 0),), 0, fence)]),
        *block[1],
        *([] if acquire else [Step("fence", ((taker, 0), (here, 0)), 0, fence)]),
        Step(draw(st.sampled_from(["write", "write", "read"])), ((taker, draw(lane)),), data, None, space),
    ]
    for index in draw(st.sets(st.integers(0, len(steps) - 1), max_size=2)):
        steps[index] = draw(step(space))
    return steps


@pytest.mark.parametrize("space", ["global", "shared"])
@examples(100)
@given(st.data())
def test_random_handovers_have_the_races_of_the_model(space: str, data: st.DataObject) -> None:
    program = [each for part in data.draw(st.lists(handover(space), min_size=1, max_size=4)) for each in part]
    check(program)


@pytest.mark.parametrize("space", ["global", "shared"])
@examples(100)
@given(st.data())
def test_random_programs_have_the_races_of_the_model(space: str, data: st.DataObject) -> None:
    program = data.draw(st.lists(step(space), min_size=3, max_size=24))
    check(program)


def test_no_more_than_eight_accesses_to_a_word_are_remembered() -> None:
    everybody = [by("read", (warp, lane)) for warp in range(BLOCKS * WARPS) for lane in LANES]
    assert len(detect([*everybody, by("write", C)])) == 8


def test_lanes_that_poll_in_turn_take_few_slots_and_their_last_polls_race() -> None:
    detector = RaceDetector(blocks=1, warps_per_block=2, releases=True, partial_barriers=True)
    turns = 64

    def access(warp: int, kind: str, active: NDArray[np.bool_], where: int) -> None:
        addresses = np.full((1, 32), FLAGS[0])
        detector.access(
            "shared", warp=np.array([warp]), addresses=addresses, active=active, width=4, kind=kind, where=where
        )

    for turn in range(turns):
        absent = np.arange(32)[None] == turn % 32
        access(0, "read", ~absent, turn)
        detector.warp_barrier(np.array([0]), absent)  # another clock, and no order among lanes
    assert len(detector._shared._cells._slots["read"]) <= 4
    access(1, "write", np.arange(32)[None] == 0, turns)
    races = {(race.first_where, race.second_where) for race in detector.races()}
    assert races == {(turns - 1, turns), (turns - 2, turns)}  # the last of 31 lanes, and of the one that was absent


def test_a_thousand_blocks_release_once_each_in_little_memory() -> None:
    blocks, per_block = 1000, 8
    detector = RaceDetector(blocks=blocks, warps_per_block=per_block, releases=True)
    everything = np.ones((per_block, 32), np.bool_)
    first_lanes = everything & (np.arange(32) == 0)

    def access(warps: NDArray[np.int64], kind: str) -> None:
        addresses = 4096 + 4 * (warps[:, None] * 32 + np.arange(32))
        detector.access("global", warp=by_last, addresses=addresses, active=everything, width=4, kind=kind, where=0)

    tracemalloc.start()
    for block in range(blocks):
        by_last = np.arange(per_block) + block * per_block
        access(by_last, "write")
        detector.warp_barrier(by_last, everything)
        detector.access(
            "global", warp=by_last, addresses=np.full((per_block, 32), FLAG), active=first_lanes, width=4,
            kind="atomic", where=1, ordering=ACQ_REL,
        )  # fmt: skip
        if block < blocks - 1:
            detector.release(np.array([block]))
    detector.barrier(by_last)
    for block in range(blocks):
        access(np.arange(per_block) + block * per_block, "read")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert detector.races() == []
    # Knowledge of all warps by all blocks would be 64 MB alone.
    assert most < 48 << 20
