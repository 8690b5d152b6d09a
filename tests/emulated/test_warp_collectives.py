"""Collectives of warps: who takes part, by member mask, compared with a reference that looks at one lane at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.emulator import Report
from support.examples import examples
from support.ptx_tools import compile_ptx, entry, launch

Array = NDArray[Any]
LANES = 32
FULL = 0xFFFFFFFF
POISON = 0xFFFFFFFF
#: The value and the predicate that a lane gets. The value is None where it is undefined; the predicate says whether the
#: mask was right, so that only the lane read by a shuffle was not.
Result: TypeAlias = tuple[int | None, int]
UNDEFINED: Result = (None, 0)


@dataclass(frozen=True)
class Lane:
    """One lane at one collective: its number in the warp, its value, vote, second operand and member mask."""

    number: int
    value: int
    vote: int
    other: int
    mask: int


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def votes(group: Sequence[Lane]) -> list[int]:
    return [lane.vote for lane in group]


def bits(lanes: Sequence[Lane]) -> int:
    return sum(1 << lane.number for lane in lanes)


def alike(lane: Lane, group: Sequence[Lane]) -> list[Lane]:
    return [other for other in group if other.value == lane.value]


def match_all(_lane: Lane, group: Sequence[Lane]) -> Result:
    agreed = len({lane.value for lane in group}) == 1
    return (bits(group) if agreed else 0, int(agreed))


def shuffled(mode: str, clamp: int) -> Callable[[Lane, Sequence[Lane]], Result]:
    """Return what shfl gives a lane, as PTX ISA writes it down."""
    segment, bound = clamp >> 8 & 31, clamp & 31

    def of(lane: Lane, group: Sequence[Lane]) -> Result:
        delta = lane.other & 31
        last, first = lane.number & segment | bound & ~segment & 31, lane.number & segment
        source = {
            "up": lane.number - delta, "down": lane.number + delta, "bfly": lane.number ^ delta,
            "idx": first | delta & ~segment,
        }[mode]  # fmt: skip
        inside = source >= last if mode == "up" else source <= last
        result = [other.value for other in group if other.number == (source if inside else lane.number)]
        return (result[0] if result else None, int(inside))

    return of


def folded(fold: Callable[[int, int], int], read: Callable[[int], int]) -> Callable[[Lane, Sequence[Lane]], Result]:
    """Return what redux gives every lane."""
    return lambda _lane, group: (reduce(fold, [read(lane.value) for lane in group]) & FULL, 0)


#: What a lane gets from its group, by instruction, which reads value v (w in 64 bits, predicate p: odd), operand x and
#: mask m; it writes d and predicate q.
COLLECTIVES: dict[str, Callable[[Lane, Sequence[Lane]], Result]] = {
    "vote.sync.all.pred q, p, m;": lambda _, group: (0, int(all(votes(group)))),
    "vote.sync.any.pred q, p, m;": lambda _, group: (0, int(any(votes(group)))),
    "vote.sync.any.pred q, !p, m;": lambda _, group: (0, int(any(votes(group)))),
    "vote.sync.uni.pred q, p, m;": lambda _, group: (0, int(len(set(votes(group))) == 1)),
    "vote.sync.ballot.b32 d, p, m;": lambda _, group: (bits([lane for lane in group if lane.vote]), 0),
    "match.any.sync.b32 d, v, m;": lambda lane, group: (bits(alike(lane, group)), 0),
    "match.any.sync.b64 d, w, m;": lambda lane, group: (bits(alike(lane, group)), 0),
    "match.all.sync.b32 d|q, v, m;": match_all,
    "match.all.sync.b64 d|q, w, m;": match_all,
    "elect.sync d|q, m;": lambda lane, group: (group[0].number, int(group[0] == lane)),
    **{
        f"shfl.sync.{mode}.b32 d|q, v, x, {clamp}, m;": shuffled(mode, clamp)
        for mode, clamp in (("up", 0), ("up", 0x1800), ("down", 31), ("down", 0x181F), ("bfly", 31), ("bfly", 0x1C1F),
                            ("idx", 31), ("idx", 0x101F))
    },
    "redux.sync.add.s32 d, v, m;": folded(lambda a, b: a + b, int),
    "redux.sync.min.u32 d, v, m;": folded(min, int),
    "redux.sync.max.s32 d, v, m;": folded(max, signed),
    "redux.sync.and.b32 d, v, m;": folded(lambda a, b: a & b, int),
    "redux.sync.xor.b32 d, v, m;": folded(lambda a, b: a ^ b, int),
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A place in the program: each lane takes one of two ways, on each of which it executes a collective.

    The arrays have an element for each thread.
    """

    collectives: tuple[str, str]
    guarded: bool
    way: Array
    mask: Array
    value: Array
    other: Array

    def kind(self, way: int) -> str:
        """Return opcode and modifiers of the collective on one of the ways."""
        return self.collectives[way].split(" ", maxsplit=1)[0]

    def lane(self, thread: int) -> Lane:
        """Return a thread's part."""
        value, vote = int(self.value[thread]), "!p" in self.collectives[self.way[thread]]
        return Lane(thread % LANES, value, value & 1 ^ vote, int(self.other[thread]), int(self.mask[thread]))

    def result(self, thread: int, here: Sequence[int]) -> Result:
        """Return what one thread gets, ``here`` being those of its warp that have not exited."""
        mine, way = self.lane(thread), self.way[thread]
        named = [t for t in here if mine.mask >> t % LANES & 1]
        if thread not in named:
            return UNDEFINED
        if any(self.kind(self.way[t]) != self.kind(way) or self.mask[t] != mine.mask for t in named):
            return UNDEFINED
        return COLLECTIVES[self.collectives[way]](mine, [self.lane(t) for t in named])


@dataclass(frozen=True)
class Program:
    """Steps, before one of which a thread may exit; ``meets`` puts a warp barrier of all lanes after each step."""

    steps: list[Step]
    exits: Array
    meets: bool

    def ptx(self) -> str:
        """Return the kernel, on pointers to what the steps hold and to the results."""
        lines = [
            ".reg .b32 t, m, v, x, y, d, e, n; .reg .b64 at, from, w; .reg .pred p, q, r, s;",
            "mov.u32 t, %tid.x; mul.wide.u32 at, t, 4; add.u64 from, exits, at; ld.global.u32 e, [from];",
        ]
        for number, step in enumerate(self.steps):
            loads = (("m", "mask"), ("v", "value"), ("x", "other"), ("y", "way"))
            lines += [f"setp.eq.u32 s, e, {number}; @s exit;", "mov.u32 d, 0; setp.ne.u32 q, d, 0;"]
            lines += [f"add.u64 from, {name}{number}, at; ld.global.u32 {r}, [from];" for r, name in loads]
            lines += ["and.b32 n, v, 1; setp.eq.u32 p, n, 1; cvt.u64.u32 w, v; shl.b64 w, w, 9; setp.eq.u32 r, y, 0;"]
            for guard, skip, text in zip(("r", "!r"), ("!r", "r"), step.collectives, strict=True):
                after = f"L{number}_{skip.removeprefix('!')}{len(skip)}"
                lines += [f"@{guard} {text}"] if step.guarded else [f"@{skip} bra {after}; {text}", f"{after}:"]
            lines += [f"selp.u32 n, 1, 0, q; add.u64 from, d{number}, at; st.global.u32 [from], d;"]
            lines += [f"add.u64 from, q{number}, at; st.global.u32 [from], n;"]
            lines += ["bar.warp.sync 0xffffffff;"] * self.meets
        return entry("\n".join(lines), list(self.arrays()))

    def arrays(self) -> dict[str, Array]:
        """Return what the kernel's parameters point to."""
        result = {"exits": self.exits}
        for number, step in enumerate(self.steps):
            result |= {f"{name}{number}": getattr(step, name) for name in ("mask", "value", "other", "way")}
            result |= {f"{name}{number}": np.zeros_like(step.mask) for name in "dq"}
        return result

    def run(self, schedule: int) -> tuple[list[list[Result]], Report]:
        """Return what each thread got in each step, (0, 0) after its exit."""
        arrays = self.arrays()
        report = launch(self.ptx(), arrays, block=(len(self.exits), 1, 1), options={"schedule": schedule})
        pairs = [(arrays[f"d{n}"].tolist(), arrays[f"q{n}"].tolist()) for n in range(len(self.steps))]
        return [list(zip(*pair, strict=True)) for pair in pairs], report

    def expected(self) -> list[list[Result]]:
        """Return the same by the reference."""
        result: list[list[Result]] = []
        for number, step in enumerate(self.steps):
            results: list[Result] = [(0, 0)] * len(self.exits)
            for thread in np.flatnonzero(self.exits > number).tolist():
                warp = range(thread // LANES * LANES, min((thread // LANES + 1) * LANES, len(self.exits)))
                results[thread] = step.result(thread, [t for t in warp if self.exits[t] > number])
            result.append(results)
        return result


@st.composite
def programs(draw: st.DrawFn, *, misused: bool) -> Program:
    """Return programs in which the lanes of each mask meet; ``misused`` ones have some random masks besides."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    threads, count = draw(st.sampled_from([LANES, 20, 40])), draw(st.integers(1, 4))
    exits = np.where(rng.random(threads) < draw(st.sampled_from([0, 0.3])), rng.integers(0, count + 1, threads), count)
    steps = []
    for number in range(count):
        first = draw(st.sampled_from(list(COLLECTIVES)))
        second = first if draw(st.booleans()) else draw(st.sampled_from(list(COLLECTIVES)))
        way = rng.integers(0, 2, threads) * draw(st.booleans())
        step = Step(
            (first, second), draw(st.booleans()), way.astype(np.uint32), np.zeros(threads, np.uint32),
            rng.integers(0, draw(st.sampled_from([2, 1 << 32])), threads, np.uint32),
            rng.integers(0, 40, threads, np.uint32),
        )  # fmt: skip
        share(step, exits > number, rng, draw(st.integers(1, 4)))
        if misused:
            some = rng.random(threads) < 0.1
            step.mask[some] ^= np.uint32(1) << rng.integers(0, LANES, threads, np.uint32)[some]
        steps.append(step)
    return Program(steps, exits.astype(np.uint32), meets=misused or draw(st.booleans()))


def share(step: Step, alive: Array, rng: np.random.Generator, groups: int) -> None:
    """Give the lanes of each warp that execute one kind of collective masks of random groups.

    A group's mask may name lanes that have exited or that the block does not have.
    """
    label = rng.integers(0, groups, len(alive))
    if step.kind(0) != step.kind(1):
        label += groups * step.way
    for warp in range(0, len(alive), LANES):
        lanes = np.arange(warp, min(warp + LANES, len(alive)))
        absent = FULL & ~sum(1 << int(t - warp) for t in lanes[alive[lanes]])
        for group in np.unique(label[lanes]):
            mine = lanes[label[lanes] == group]
            mask = sum(1 << int(t - warp) for t in mine[alive[mine]])
            step.mask[mine] = mask | absent & int(rng.choice([0, FULL, int(rng.integers(0, FULL))]))


@examples(60)
@given(programs(misused=False), st.integers(0, 3))
def test_a_collective_combines_the_lanes_of_its_mask(program: Program, schedule: int) -> None:
    check(program, schedule)


@examples(40)
@given(programs(misused=True), st.integers(0, 3))
def test_misused_masks_are_reported_and_give_poison(program: Program, schedule: int) -> None:
    check(program, schedule)


def check(program: Program, schedule: int) -> None:
    """Run a program and compare with the reference, which also says whether something has to be reported."""
    result, report = program.run(schedule)
    expected = program.expected()
    for step, got, wanted in zip(program.steps, result, expected, strict=True):
        poison = [POISON if " d" in step.collectives[way] else 0 for way in step.way]
        assert got == [(p if d is None else d, q) for p, (d, q) in zip(poison, wanted, strict=True)], step
    undefined = {q for wanted in expected for d, q in wanted if d is None}
    assert {hazard.kind for hazard in report.hazards} == {("shuffle", "shuffle-source")[q] for q in undefined}


def ran(body: str, threads: int, schedule: int = 0) -> tuple[list[int], Report]:
    """Return what a CUDA C++ kernel leaves in y, -7 where it stores nothing.

    In its body ``t`` is the thread, ``lane`` its number in the warp.
    """
    y = np.full(threads, -7, np.int32)
    source = f"""extern "C" __global__ void k(int* y) {{
      const int t = threadIdx.x, lane = t % 32; const unsigned full = 0xffffffff;
      {body} }}"""
    report = launch(compile_ptx(source), {"y": y}, block=(threads, 1, 1), options={"schedule": schedule})
    return y.tolist(), report


def sums_of(width: int) -> Callable[[int], int]:
    """Return the sum of all threads of a thread's tile."""
    return lambda t: sum(range(t // width * width, (t // width + 1) * width))


#: What public code does and hardware executes as written: threads, kernel and what thread t of them leaves.
IDIOMS: dict[str, tuple[int, str, Callable[[int], int]]] = {
    "halves that vote": (
        32, "unsigned m = t < 16 ? 0xffffu : 0xffff0000u; y[t] = __any_sync(m, t == 20);", lambda t: int(t >= 16)
    ),
    **{
        f"a sum over tiles of {width}": (
            64, f"""const unsigned m = ((1u << {width}) - 1) << (lane & ~({width} - 1)); int v = t;
            for (int o = {width} / 2; o; o /= 2) v += __shfl_down_sync(m, v, o, {width});
            v = __shfl_sync(m, v, 0, {width}); y[t] = v == __reduce_add_sync(m, t) ? v : -1;""",
            sums_of(width),
        )
        for width in (16, 8, 4)
    },
    "a sum over whole warps": (
        64, "int v = t; for (int o = 16; o; o /= 2) v += __shfl_down_sync(full, v, o); if (!lane) y[t] = v;",
        lambda t: -7 if t % 32 else sums_of(32)(t),
    ),
    "a scan of a partial warp": (
        40, """int v = t; for (int o = 1; o < 32; o *= 2) { const int w = __shfl_up_sync(full, v, o);
        if (lane >= o) v += w; } y[t] = v;""",
        lambda t: sum(range(t // 32 * 32, t + 1)),
    ),
    "a vote of a partial warp": (40, "y[t] = __popc(__ballot_sync(full, t & 1));", lambda t: 16 if t < 32 else 4),
    "threads that return first": (
        40, "if (t % 5 == 4) return; y[t] = __shfl_sync(full, t, 3) + __popc(__ballot_sync(full, 1));",
        lambda t: -7 if t % 5 == 4 else 3 + 26 if t < 32 else 35 + 6,
    ),
    "a mask made by a vote": (
        32, "const unsigned m = __ballot_sync(full, t % 3 == 1); if (t % 3 == 1) y[t] = __shfl_sync(m, t, 31);",
        lambda t: 31 if t % 3 == 1 else -7,
    ),
    "lanes that run together": (
        40, """if (t % 3 == 1) { const unsigned m = __activemask(); const unsigned next = __fns(m, lane, 2);
        const int v = __shfl_sync(m, t, next == full ? lane : next); __syncwarp(m);
        y[t] = 100 * v + (lane == __ffs(m) - 1); }""",
        lambda t: -7 if t % 3 != 1 else 100 * (t if t in {31, 37} else t + 3) + (t in {1, 34}),
    ),
    "lanes with equal labels": (
        32, "const unsigned m = __match_any_sync(__activemask(), t % 3); y[t] = __reduce_add_sync(m, t);",
        lambda t: sum(range(t % 3, 32, 3)),
    ),
    "tiles that pass on data": (
        32, """__shared__ int s[32]; s[t] = t; if (t < 16) { __syncwarp(0xffff); y[t] = s[t ^ 15]; }
        else { __syncwarp(0xffff0000); y[t] = s[t ^ 15]; }""",
        lambda t: t ^ 15,
    ),
    "a barrier of the warp in two branches": (
        32, """__shared__ int s[32]; if (t < 16) { s[t] = t; __syncwarp(); y[t] = s[t ^ 16]; }
        else { s[t] = -t; __syncwarp(); y[t] = s[t ^ 16]; }""",
        lambda t: -(t ^ 16) if t < 16 else t ^ 16,
    ),
    # Measured on an H200: the lanes of both branches vote together, then those of the first branch alone.
    "votes in a branch and after it": (
        32, "int v; if (t < 16) v = __ballot_sync(full, 1); else v = t; y[t] = v + __ballot_sync(full, 0);",
        lambda t: 0xFFFF + (t if t >= 16 else 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("schedule", [0, 3])
@pytest.mark.parametrize("name", IDIOMS)
def test_what_is_right_on_hardware_is_right_here_and_not_reported(name: str, schedule: int) -> None:
    threads, body, expected = IDIOMS[name]
    result, report = ran(body, threads, schedule)
    assert result == [expected(t) for t in range(threads)]
    assert not report.hazards


#: What is wrong: threads, kernel, hazard and what thread t leaves, None where it does not matter.
MISUSES: dict[str, tuple[int, str, str, Callable[[int], int | None]]] = {
    "a mask without the lane": (
        32, "y[t] = __ballot_sync(0xffff, t & 1);",
        r"shuffle .*thread \(16, 0, 0\) of block .*, lane 16 of its warp, executes .* with mask 0x0000ffff, which",
        lambda t: 0xAAAA if t < 16 else -1,
    ),
    "a barrier's mask without the lane": (
        32, "__syncwarp(0xffff); y[t] = t;", r"shuffle .*lane 16 of its warp, executes 'bar.warp.sync", lambda t: t
    ),
    "two masks for one group": (
        32, "y[t] = __ballot_sync(t < 16 ? full : 0xffff0000u, 1);",
        r"shuffle .*with mask 0xffffffff, but lanes 16-31 of its warp with another: thread \(16, .* with 0xffff0000",
        lambda t: -1 if t < 16 else -65536,
    ),
    "a lane outside the mask": (
        32, "y[t] = __shfl_sync(t < 16 ? 0xffffu : 0xffff0000u, t, 20);",
        r"shuffle-source .*thread \(0, 0, 0\) of block .* reads lane 20 .*, which its mask 0x0000ffff does not name",
        lambda t: -1 if t < 16 else 20,
    ),
    "a lane that the block does not have": (
        40, "y[t] = __shfl_down_sync(full, t, 4);",
        r"shuffle-source .*thread \(36, 0, 0\) of block .* reads lane 8 of its warp, which the block does not have",
        lambda t: -1 if t >= 36 else None,
    ),
    "a lane that has exited": (
        32, "if (t >= 20) return; y[t] = __shfl_down_sync(full, t, 8);",
        r"shuffle-source .*thread \(12, .* reads lane 20 .*thread \(20, 0, 0\) of block \(0, 0, 0\), which has exited",
        lambda t: -7 if t >= 20 else t + 8 if t < 12 else -1,
    ),
    # An H200 never ends this kernel.
    "a full mask in a branch": (
        32, "int v = 5; if (t < 16) v = __shfl_sync(full, t, 3); __syncwarp(); y[t] = v;",
        r"shuffle .*with mask 0xffffffff for lanes 16-31 .*: thread \(16, 0, 0\) of block .* waits at test\.cu:3 ",
        lambda t: -1 if t < 16 else 5,
    ),
    "a barrier of the warp in a branch": (
        64, "if (t < 16) __syncwarp(); __syncthreads(); y[t] = t;",
        r"divergent-barrier .*waits in 'bar\.warp\.sync .* for lanes 16-31 .* waits at test\.cu:3 \('bar\.sync",
        lambda t: t,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named_and_gives_poison(name: str) -> None:
    threads, body, message, expected = MISUSES[name]
    result, report = ran(body, threads)
    wanted = [expected(t) for t in range(threads)]
    assert [w if w is None else f for f, w in zip(result, wanted, strict=True)] == wanted
    assert len(report.hazards) == 1
    assert re.search(message, str(report.hazards[0]))


def test_lanes_go_on_when_those_they_wait_for_exit_while_others_still_run() -> None:
    body = """.reg .b32 t, v; .reg .b64 at; .reg .pred p, q; mov.u32 t, %tid.x; mad.wide.u32 at, t, 4, y;
    setp.ge.u32 p, t, 8; @p bra REST; redux.sync.add.s32 v, t, 0xffff; bra END;
    REST: setp.ge.u32 q, t, 16; @q bra OTHERS; mov.u32 v, 1; st.global.u32 [at], v; exit;
    OTHERS: mov.u32 v, 2; END: bar.warp.sync 0xffffffff; st.global.u32 [at], v;"""
    y = np.zeros(32, np.int32)
    report = launch(entry(body, ["y"]), {"y": y})
    assert y.tolist() == [28] * 8 + [1] * 8 + [2] * 16
    assert not report.hazards


def test_the_old_shuffle_reads_active_lanes_alone() -> None:
    body = """.reg .b32 t, v, w; .reg .b64 at; .reg .pred p; mov.u32 t, %tid.x; mad.wide.u32 at, t, 4, y; mov.u32 v, 7;
    setp.lt.u32 p, t, 16; @p shfl.bfly.b32 v, t, 1, 31; @p shfl.down.b32 w, t, 8, 31; @p add.u32 v, v, w;
    st.global.u32 [at], v;"""
    y = np.zeros(32, np.int32)
    report = launch(entry(body, ["y"]), {"y": y})
    assert y.tolist() == [(t ^ 1) + (t + 8 if t < 8 else -1) if t < 16 else 7 for t in range(32)]
    assert [hazard.kind for hazard in report.hazards] == ["shuffle-source"]
    assert "reads lane 16 of its warp, thread (16, 0, 0) of block (0, 0, 0), which does not execute it" in str(
        report.hazards[0]
    )
