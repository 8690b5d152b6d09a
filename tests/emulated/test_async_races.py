"""Races through the async proxy, at mbarriers and in clusters: planted ones, right patterns, and random programs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator.races.async_units.async_detector import AsyncDetector
from support.async_programs import EVERYBODY, LANES, SIZE, WARPS, Do, Found, Reference, Teller, found, possible
from support.event_graph import Thread
from support.examples import examples

FULL, EMPTY, PEER_FULL = (0, 512), (0, 520), (1, 512)
PRODUCER, CONSUMER, THIRD = (0, 0), (1, 0), (1, 31)
OTHER = (WARPS, 0)


def by(kind: str, *threads: Thread, block: int = 0, address: int = 0) -> Do:
    return Do("access", threads, kind, block, address)


def async_(kind: str, agent: int, block: int = 0) -> Do:
    return Do("touch", kind=kind, agent=agent, block=block)


def arrive(barrier: tuple[int, int], *threads: Thread) -> Do:
    return Do("arrive", threads, barrier=barrier)


def passed(barrier: tuple[int, int], *threads: Thread) -> Do:
    return Do("passed", threads, barrier=barrier)


def init(barrier: tuple[int, int], thread: Thread = PRODUCER) -> Do:
    return Do("init", (thread,), barrier=barrier)


def done(barrier: tuple[int, int]) -> Do:
    return Do("done", barrier=barrier)


def issue(thread: Thread) -> Do:
    return Do("issue", (thread,))


def completes(agent: int, barrier: tuple[int, int] = FULL) -> Do:
    return Do("completes", agent=agent, barrier=barrier)


def waited(agent: int, *threads: Thread) -> Do:
    return Do("waited", threads, agent=agent)


def fence(*threads: Thread) -> Do:
    return Do("fence", threads)


SYNC = Do("sync")
MEET = Do("meet", EVERYBODY)
LOAD = [arrive(FULL, PRODUCER), issue(PRODUCER), async_("write", 0), completes(0), done(FULL)]
RELOAD = [issue(PRODUCER), async_("write", 1), completes(1)]
FREED = [arrive(EMPTY, CONSUMER), done(EMPTY), passed(EMPTY, PRODUCER)]

RACY: dict[str, tuple[list[Do], Found]] = {
    "no fence before a store reads": (
        [by("write", CONSUMER), SYNC, issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 0, 3)},
    ),
    "the fence after the barrier, by the reader": (
        [by("write", CONSUMER), SYNC, fence(PRODUCER), issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 0, 4)},
    ),
    "the fence after the barrier, by all": (
        [by("write", CONSUMER), SYNC, fence(PRODUCER, CONSUMER), issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 0, 4)},
    ),
    "the fence before the write": (
        [fence(CONSUMER), by("write", CONSUMER), SYNC, issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 1, 4)},
    ),
    "no fence of one's own": (
        [by("write", PRODUCER), issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 0, 2)},
    ),
    "no fence after an atomic": (
        [by("atomic", CONSUMER), SYNC, issue(PRODUCER), async_("read", 0)],
        {("missing-proxy-fence", 0, 3)},
    ),
    "no barrier at all": (
        [by("write", CONSUMER), fence(CONSUMER), issue(PRODUCER), async_("read", 0)],
        {("race", 0, 3)},
    ),
    "no wait on full": ([*LOAD, by("read", CONSUMER)], {("race", 2, 5)}),
    "no wait on full, by the producer itself": ([*LOAD, by("read", PRODUCER)], {("race", 2, 5)}),
    "one lane's wait on full": ([*LOAD, passed(FULL, CONSUMER), by("read", CONSUMER, THIRD)], {("race", 2, 6)}),
    "no wait on empty": (
        [*LOAD, passed(FULL, CONSUMER), by("read", CONSUMER), *RELOAD],
        {("race", 2, 8), ("race", 6, 8)},
    ),
    "an arrival too few": (
        [*LOAD, passed(FULL, CONSUMER, THIRD), by("read", CONSUMER), by("read", THIRD), *FREED, *RELOAD],
        {("race", 7, 12)},
    ),
    "the slot released before its last read": (
        [*LOAD, passed(FULL, CONSUMER), *FREED, by("read", CONSUMER), *RELOAD],
        {("race", 9, 11)},
    ),
    "the slot released before wgmma has read it": (
        [
            *(*LOAD, passed(FULL, CONSUMER), issue(CONSUMER), async_("read", 1), *FREED),
            *(issue(PRODUCER), async_("write", 2)),
        ],
        {("race", 7, 12)},
    ),
    "the wait for the phase before": (
        [arrive(FULL, PRODUCER), done(FULL), passed(FULL, CONSUMER), *LOAD, by("read", CONSUMER)],
        {("race", 5, 8)},
    ),
    "a store's source reused": (
        [by("write", PRODUCER), fence(PRODUCER), issue(PRODUCER), async_("read", 0), by("write", PRODUCER)],
        {("race", 3, 4)},
    ),
    "a store's source reused by others": (
        [issue(PRODUCER), async_("read", 0), waited(0, PRODUCER), by("write", CONSUMER)],
        {("race", 1, 3)},
    ),
    "a copy's end tells nothing of its issuer": (
        [
            by("write", PRODUCER),
            issue(PRODUCER),
            completes(0),
            done(FULL),
            passed(FULL, CONSUMER),
            by("read", CONSUMER),
        ],
        {("race", 0, 5)},
    ),
    "a multicast to a block that has not freed its slot": (
        [by("read", OTHER, block=1), issue(PRODUCER), async_("write", 0, block=1)],
        {("race", 0, 2)},
    ),
    "an exchange without a cluster barrier": (
        [by("write", OTHER, block=1), by("read", PRODUCER, block=1)],
        {("race", 0, 1)},
    ),
    "a thread that arrives at the cluster and does not wait": (
        [by("write", OTHER, block=1), Do("meet", (CONSUMER,)), by("read", PRODUCER, block=1)],
        {("race", 0, 2)},
    ),
    "an arrival with no barrier since the init": ([init(FULL), arrive(FULL, CONSUMER)], {("mbarrier", 0, 1)}),
    "a wait with no barrier since the init": ([init(FULL), passed(FULL, CONSUMER)], {("mbarrier", 0, 1)}),
    "a multicast to a barrier that is not ready": (
        [init(PEER_FULL, OTHER), SYNC, issue(PRODUCER), completes(0, PEER_FULL)],
        {("mbarrier", 0, 3)},
    ),
    "a store to a block that ends": ([by("write", PRODUCER, block=1), Do("exit", block=1)], {("cluster", 0, 1)}),
    "a store to a block that has ended": (
        [MEET, Do("exit", block=1), by("write", PRODUCER, block=1)],
        {("cluster", 2, 1)},
    ),
    "an arrival at a block that ends": ([arrive(PEER_FULL, PRODUCER), Do("exit", block=1)], {("cluster", 0, 1)}),
    "a multicast into a block that ends": (
        [issue(PRODUCER), async_("write", 0, block=1), completes(0, PEER_FULL), done(PEER_FULL), Do("exit", block=1)],
        {("cluster", 1, 4)},
    ),
}

FREE: dict[str, list[Do]] = {
    "a store's source": [
        *(by("write", CONSUMER), fence(CONSUMER), SYNC, issue(PRODUCER), async_("read", 0)),
        *(waited(0, PRODUCER), SYNC, by("write", CONSUMER)),
    ],
    "a ring": [
        *(*LOAD, passed(FULL, CONSUMER), by("read", CONSUMER), *FREED),
        *(*RELOAD, done(FULL), passed(FULL, CONSUMER), by("read", CONSUMER)),
    ],
    "a ring with wgmma": [
        *(*LOAD, passed(FULL, CONSUMER), issue(CONSUMER), async_("read", 1), waited(1, CONSUMER), *FREED),
        *(issue(PRODUCER), async_("write", 2)),
    ],
    "a barrier that is ready": [init(FULL), SYNC, *LOAD, passed(FULL, CONSUMER)],
    "a fence passed on": [
        *(by("write", CONSUMER), fence(CONSUMER), arrive(FULL, CONSUMER), done(FULL), passed(FULL, PRODUCER)),
        *(arrive(PEER_FULL, PRODUCER), done(PEER_FULL), passed(PEER_FULL, OTHER), issue(OTHER), async_("read", 0)),
    ],
    "copies where nobody reads": [issue(PRODUCER), async_("write", 0), issue(CONSUMER), async_("read", 1, block=1)],
    "a loaded slot read by a store": [*LOAD, passed(FULL, CONSUMER), issue(CONSUMER), async_("read", 1)],
    "an exchange in a cluster": [
        by("write", OTHER, block=1),
        MEET,
        by("read", PRODUCER, block=1),
        MEET,
        Do("exit", block=1),
    ],
    "a multicast that is waited for": [
        *(issue(PRODUCER), async_("write", 0, block=1), completes(0, PEER_FULL), done(PEER_FULL)),
        *(passed(PEER_FULL, OTHER), Do("exit", block=1)),
    ],
}


@pytest.mark.parametrize("name", RACY)
def test_races_are_found(name: str) -> None:
    program, expected = RACY[name]
    assert found(program) == expected


@pytest.mark.parametrize("name", FREE)
def test_nothing_else_is(name: str) -> None:
    assert found(FREE[name]) == set()


@st.composite
def event(draw: st.DrawFn) -> Do:
    op = draw(st.sampled_from([
        *("access",) * 6, *("touch",) * 4, *("issue",) * 3, *("completes", "waited", "fence") * 2,
        *("arrive", "done", "passed") * 2, "release", "acquire", "sync", "syncwarp", "meet",
    ]))  # fmt: skip
    warp = draw(st.integers(0, SIZE * WARPS - 1))
    anybody = st.sampled_from([(warp, lane) for lane in LANES] if op in ("issue", "syncwarp") else EVERYBODY)
    threads = tuple(sorted(draw(st.sets(anybody, min_size=1, max_size=3))))
    kind, block, agent = draw(st.sampled_from(["read", "write"])), draw(st.integers(0, 1)), draw(st.integers(0, 3))
    barrier = draw(st.sampled_from([FULL, EMPTY]))
    return Do(op, threads, kind, block, draw(st.sampled_from([0, 4])), barrier, agent)


@examples(100)
@given(st.lists(event(), min_size=4, max_size=30).map(possible))
def test_random_programs_have_the_races_brute_force_finds(program: list[Do]) -> None:
    races, true = found(program), Reference(program).races()
    assert races <= true
    assert bool(races) == bool(true)


def test_a_report_names_the_thread_that_started_a_copy() -> None:
    (race,) = Teller([*LOAD, by("read", CONSUMER)]).detector.races()
    assert (race.first_kind, race.first_thread, race.second_thread) == ("asynchronous write", (0, 0), (0, 32))


def test_agents_are_used_again_and_more_are_made_when_all_are_busy() -> None:
    detector = AsyncDetector(clusters=np.arange(SIZE)[None], warps_per_block=WARPS)
    lane = np.arange(32) == 0
    agents = [detector.issue(0, lane) for _ in range(100)]
    for number, agent in enumerate(agents):
        detector.agent_access(agent, "write", block=0, offsets=np.array([4 * number]), width=4, where=number)
        detector.agent_completes(agent, FULL, where=number)
    detector.phase_done(FULL)
    detector.passed(FULL, np.array([1]), np.ones((1, 32), np.bool_), where=100)
    for number in range(1000, 1200):
        agent = detector.issue(1, lane)
        offsets = 4 * np.array([number % 100])
        detector.agent_access(agent, "read", block=0, offsets=offsets, width=4, where=number)
        detector.agent_joined(agent, np.array([1]), lane[None])
    assert not detector.races()
    assert detector._threads._table.shape[2] == 32 * (SIZE * WARPS + 4)
    detector.agent_access(detector.issue(0, lane), "write", block=0, offsets=np.array([0]), width=4, where=5000)
    assert {(race.first_where, race.second_where) for race in detector.races()} == {(0, 5000), (1100, 5000)}


def test_an_agent_that_is_used_again_does_not_know_of_its_last_operation() -> None:
    idle = [do for number in range(1, 32) for do in (issue(PRODUCER), completes(number))]
    again = [issue(CONSUMER), async_("write", 32)]
    assert found([issue(PRODUCER), async_("write", 0), completes(0), *idle, *again]) == {("race", 1, 66)}
