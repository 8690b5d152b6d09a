"""Exchange between the lanes of a warp: shfl, vote, match, redux, activemask, elect.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask". The lanes named by a member mask have met
before one of these runs (the scheduler sees to it), so only active lanes matter here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.site import Site
from matmill.emulator.frontend.syntax import Instruction, Negated, Pair
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, instructions
from matmill.emulator.program.waits import Converge

_LANE = np.arange(LANES, dtype=np.int64)
_BITS = np.uint32(1) << np.arange(LANES, dtype=np.uint32)


def by_warp(row: Row, warps: int) -> Row:
    """A row (or scalar) as [warps, 32]."""
    return np.broadcast_to(row, warps * LANES).reshape(warps, LANES)


def ballot(flags: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """bool[warps, 32] to one mask per warp."""
    return np.asarray(np.where(flags, _BITS, np.uint32(0)).sum(axis=1, dtype=np.uint32))


@instructions("shfl")
def shuffle(i: Instruction) -> Action:
    """shfl: a value from another lane, and whether that lane was in range."""
    m = Modifiers(i)
    synchronous = m.flag("sync")
    mode = m.need("up", "down", "bfly", "idx")
    m.type("b32")
    m.done()
    d, a, b, c, *members = i.operands
    if len(members) != synchronous:
        raise i.unsupported("its member mask")
    results = [Value(d.first, "u4"), Value(d.second, "p")] if isinstance(d, Pair) else [Value(d, "u4")]

    def bind(site: Site) -> Call:
        warps = site.lanes.warp_count

        def call(a: Row, b: Row, c: Row, *rows: Row) -> None:
            value = by_warp(a, warps)
            delta = by_warp(b, warps).astype(np.int64) & 31
            clamp = by_warp(c, warps).astype(np.int64)
            segment, bound = (clamp >> 8) & 31, clamp & 31
            last = (_LANE & segment) | (bound & ~segment)
            first = _LANE & segment
            if mode == "up":
                source = _LANE - delta
                inside = source >= last
            else:
                source = {"down": _LANE + delta, "bfly": _LANE ^ delta, "idx": first | (delta & ~segment)}[mode]
                inside = source <= last
            chosen = np.take_along_axis(value, np.where(inside, source, _LANE) & 31, axis=1)
            outs = rows[len(members) :]
            if len(outs) > 1:
                outs[1][...] = inside.reshape(-1)
            outs[0][...] = chosen.reshape(-1)

        return call

    sources = [Value(a, "u4"), Value(b, "u4"), Value(c, "u4"), *(Value(x, "u4") for x in members)]
    converge = Converge(members[0]) if synchronous else None
    return Action(i, tuple(sources), tuple(results), bind=bind, detail=converge)


@instructions("vote")
def vote(i: Instruction) -> Action:
    """vote: all, any, uni or ballot of a predicate."""
    m = Modifiers(i)
    synchronous = m.flag("sync")
    mode = m.need("all", "any", "uni", "ballot")
    m.type("pred", "b32")
    m.done()
    d, a, *members = i.operands
    if len(members) != synchronous:
        raise i.unsupported("its member mask")
    negated = isinstance(a, Negated)
    predicate = a.register if isinstance(a, Negated) else a

    def bind(site: Site) -> Call:
        lanes, participants = site.lanes, site.participants()

        def call(a: Row, *rows: Row) -> None:
            active = participants()
            flags = by_warp(a, lanes.warp_count) != negated
            yes = flags & active
            out = rows[-1]
            if mode == "ballot":
                result = ballot(yes)
            elif mode == "any":
                result = yes.any(axis=1)
            else:
                all_of = (yes == active).all(axis=1)
                result = all_of if mode == "all" else all_of | ~yes.any(axis=1)
            out[...] = np.repeat(result, LANES)

        return call

    kind = "u4" if mode == "ballot" else "p"
    sources = (Value(predicate, "p"), *(Value(x, "u4") for x in members))
    converge = Converge(members[0]) if synchronous else None
    return Action(i, sources, (Value(d, kind),), bind=bind, detail=converge)


@instructions("activemask", operands=(1,))
def active_mask(i: Instruction) -> Action:
    """activemask: the lanes that run together now."""

    def bind(site: Site) -> Call:
        participants = site.participants()

        def call(out: Row) -> None:
            out[...] = np.repeat(ballot(participants()), LANES)

        return call

    return Action(i, (), (Value(i.operands[0], "u4"),), bind=bind)


@instructions("match")
def match(i: Instruction) -> Action:
    """match: the lanes that hold the same value (any), or all lanes if all do (all)."""
    m = Modifiers(i, "sync")
    mode = m.need("any", "all")
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    m.done()
    d, a, members = i.operands
    results = [Value(d.first, "u4"), Value(d.second, "p")] if isinstance(d, Pair) else [Value(d, "u4")]

    def bind(site: Site) -> Call:
        lanes, participants = site.lanes, site.participants()

        def call(a: Row, _members: Row, *outs: Row) -> None:
            active = participants()
            value = by_warp(a, lanes.warp_count)
            same = (value[:, :, None] == value[:, None, :]) & active[:, None, :]
            masks = np.where(same, _BITS, np.uint32(0)).sum(axis=2, dtype=np.uint32)
            if mode == "any":
                outs[0][...] = masks.reshape(-1)
                return
            agreed = masks == ballot(active)[:, None]
            if len(outs) > 1:
                outs[1][...] = agreed.reshape(-1)
            outs[0][...] = np.where(agreed, masks, np.uint32(0)).reshape(-1)

        return call

    return Action(i, (Value(a, kind), Value(members, "u4")), tuple(results), bind=bind, detail=Converge(members))


# How lanes are combined, and the value of a lane that takes no part.
_REDUCTIONS: dict[str, tuple[Any, str]] = {
    "add": (np.add, "zero"),
    "min": (np.minimum, "most"),
    "max": (np.maximum, "least"),
    "and": (np.bitwise_and, "ones"),
    "or": (np.bitwise_or, "zero"),
    "xor": (np.bitwise_xor, "zero"),
}


@instructions("redux")
def reduce(i: Instruction) -> Action:
    """redux: a reduction over the lanes of a warp."""
    m = Modifiers(i, "sync")
    ufunc, neutral = _REDUCTIONS[m.pick(_REDUCTIONS)]
    kind = KIND_OF_TYPE[m.type("u32", "s32", "b32")]
    m.done()
    d, a, members = i.operands
    limits = np.iinfo(np.dtype(kind))
    start = {"most": limits.max, "least": limits.min}.get(neutral, -1 if neutral == "ones" else 0)
    fill = np.array(start, np.int64).astype(kind)

    def bind(site: Site) -> Call:
        lanes, participants = site.lanes, site.participants()

        def call(a: Row, _members: Row, out: Row) -> None:
            value = np.where(participants(), by_warp(a, lanes.warp_count), fill)
            out[...] = np.repeat(ufunc.reduce(value, axis=1, dtype=value.dtype), LANES)

        return call

    return Action(i, (Value(a, kind), Value(members, "u4")), (Value(d, kind),), bind=bind, detail=Converge(members))


@instructions("elect")
def elect(i: Instruction) -> Action:
    """elect.sync: one leader among the lanes of the mask, here as on hardware the lowest."""
    Modifiers(i, "sync").done()
    d, members = i.operands
    if not isinstance(d, Pair):
        raise i.unsupported("its results")

    def bind(site: Site) -> Call:
        participants = site.participants()

        def call(_members: Row, out: Row, leads: Row) -> None:
            active = participants()
            leader = active.argmax(axis=1)
            out[...] = np.repeat(leader.astype(np.uint32), LANES)
            leads[...] = ((leader[:, None] == _LANE) & active).reshape(-1)

        return call

    results = (Value(d.first, "u4"), Value(d.second, "p"))
    return Action(i, (Value(members, "u4"),), results, bind=bind, detail=Converge(members))
