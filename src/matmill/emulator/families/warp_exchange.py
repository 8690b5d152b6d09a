"""Exchange between the lanes of a warp: shfl, vote, match, redux, activemask, elect.

PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync", "activemask", "elect.sync". The scheduler lets lanes with
the same member mask meet before one of these runs; they exchange values among themselves. Results that PTX leaves
undefined are poison: all bits set in a register, false in a predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.engine.bind.member_masks import WHOLE, Flags, Together, ballot
from matmill.emulator.engine.lanes import by_warp, shuffle_source
from matmill.emulator.frontend.syntax import Instruction, Pair, PtxOperand
from matmill.emulator.memory.banks import LANES
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Call, Modifiers, Value, instructions
from matmill.emulator.program.waits import Converge

_LANE = np.arange(LANES, dtype=np.int64)
# Takes each lane's companions (bool[warps, 32 or 1, 32]) and the operands ([warps, 32]); returns the results, each
# [warps, 32 or 1].
Combine: TypeAlias = "Callable[..., tuple[Row, ...]]"


def _collective(
    i: Instruction,
    operands: tuple[Sequence[Value], Sequence[PtxOperand]],
    results: Sequence[Value],
    combine: Combine,
    *,
    reads: Callable[..., Row] | None = None,
) -> Action:
    """Bind an action that combines values of the lanes of each mask.

    ``operands`` are the values and the member mask, which forms without ``.sync`` lack. ``reads`` returns for a shuffle
    the lane that each lane reads, from the values.
    """
    sources, members = operands
    inputs = (*sources, *(Value(x, "u4") for x in members))

    def bind(bound: BoundBlock) -> Call:
        together, width = Together(bound, i, synchronous=bool(members)), bound.lanes.count

        def call(*rows: Row) -> None:
            if together.whole(rows[len(inputs) - 1]):
                results = combine(WHOLE, *(by_warp(row, width) for row in rows[: len(sources)]))
                for row, result in zip(rows[len(inputs) :], results, strict=True):
                    row.reshape(-1, LANES)[...] = result
                return
            for exchange in together.exchanges(*rows[: len(inputs)]):
                values = exchange.operands[: len(sources)]
                results = combine(exchange.companions, *values)
                lost = [exchange.undefined] * len(results)
                if reads is not None:
                    lost[0] = together.unreadable(exchange, reads(*values))
                for row, result, undefined in zip(rows[len(inputs) :], results, lost, strict=True):
                    _deliver(row, result, exchange.lanes, undefined)

        return call

    return Action(i, inputs, tuple(results), bind=bind, detail=Converge(members[0]) if members else None)


def _deliver(row: Row, result: Row, lanes: Flags | None, undefined: Flags | None) -> None:
    """Write the results of ``lanes`` (bool[warps, 32], None for all), and poison where they are undefined."""
    out = row.reshape(-1, LANES)
    if lanes is None:
        out[...] = result
    else:
        np.copyto(out, result, where=lanes, casting="unsafe")
    if undefined is not None:
        bits = out if row.dtype == np.bool_ else out.view(f"u{row.itemsize}")
        bits[undefined] = 0 if row.dtype == np.bool_ else np.iinfo(bits.dtype).max


def _pair(d: PtxOperand, kind: str) -> list[Value]:
    """Return a result and, for ``d|p``, its predicate."""
    return [Value(d.first, kind), Value(d.second, "p")] if isinstance(d, Pair) else [Value(d, kind)]


@instructions("shfl")
def shuffle(i: Instruction) -> Action:
    """Bind shfl: a value from another lane, and whether that lane was in range."""
    m = Modifiers(i)
    synchronous = m.flag("sync")
    mode = m.need("up", "down", "bfly", "idx")
    m.type("b32")
    m.done()
    d, a, b, c, *members = i.operands
    if len(members) != synchronous:
        raise i.unsupported("its member mask")

    def combine(_companions: Flags, a: Row, b: Row, c: Row) -> tuple[Row, ...]:
        source, inside = shuffle_source(mode, b, c)
        return (np.take_along_axis(a, source, axis=1), inside)[: 1 + isinstance(d, Pair)]

    def reads(_a: Row, b: Row, c: Row) -> Row:
        return shuffle_source(mode, b, c)[0]

    return _collective(i, ([Value(x, "u4") for x in (a, b, c)], members), _pair(d, "u4"), combine, reads=reads)


@instructions("vote")
def vote(i: Instruction) -> Action:
    """Bind vote: all, any, uni or ballot of a predicate."""
    m = Modifiers(i)
    synchronous = m.flag("sync")
    mode = m.need("all", "any", "uni", "ballot")
    m.type("pred", "b32")
    m.done()
    d, a, *members = i.operands
    if len(members) != synchronous:
        raise i.unsupported("its member mask")

    def combine(companions: Flags, flags: Row) -> tuple[Row, ...]:
        yes = flags[:, None, :] & companions
        if mode == "ballot":
            return (ballot(yes),)
        some = np.asarray(yes.any(axis=2))
        if mode == "any":
            return (some,)
        every = np.asarray((yes == companions).all(axis=2))
        return (every if mode == "all" else every | ~some,)

    kind = "u4" if mode == "ballot" else "p"
    return _collective(i, ([Value(a, "p")], members), [Value(d, kind)], combine)


@instructions("activemask", operands=(1,))
def active_mask(i: Instruction) -> Action:
    """Bind activemask: the lanes that run together now."""
    return _collective(i, ((), ()), [Value(i.operands[0], "u4")], lambda companions: (ballot(companions),))


@instructions("match")
def match(i: Instruction) -> Action:
    """Bind match: the lanes with the same value (any), or all lanes if all have the same (all)."""
    m = Modifiers(i, "sync")
    mode = m.need("any", "all")
    kind = KIND_OF_TYPE[m.type("b32", "b64")]
    m.done()
    d, a, members = i.operands

    def combine(companions: Flags, value: Row) -> tuple[Row, ...]:
        masks = ballot((value[:, :, None] == value[:, None, :]) & companions)
        if mode == "any":
            return (masks,)
        agreed = masks == ballot(companions)
        return (np.where(agreed, masks, np.uint32(0)), agreed)[: 1 + isinstance(d, Pair)]

    return _collective(i, ([Value(a, kind)], (members,)), _pair(d, "u4"), combine)


# The reduction of lanes, and the value of a lane that does not take part.
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
    """Bind redux: a reduction over the lanes of a warp."""
    m = Modifiers(i, "sync")
    ufunc, neutral = _REDUCTIONS[m.pick(_REDUCTIONS)]
    kind = KIND_OF_TYPE[m.type("u32", "s32", "b32")]
    m.done()
    d, a, members = i.operands
    limits = np.iinfo(np.dtype(kind))
    start = {"most": limits.max, "least": limits.min}.get(neutral, -1 if neutral == "ones" else 0)
    fill = np.array(start, np.int64).astype(kind)

    def combine(companions: Flags, value: Row) -> tuple[Row, ...]:
        return (ufunc.reduce(np.where(companions, value[:, None, :], fill), axis=2, dtype=value.dtype),)

    return _collective(i, ([Value(a, kind)], (members,)), [Value(d, kind)], combine)


@instructions("elect")
def elect(i: Instruction) -> Action:
    """Bind elect.sync: one leader among the lanes of the mask, the lowest as on hardware."""
    Modifiers(i, "sync").done()
    d, members = i.operands
    if not isinstance(d, Pair):
        raise i.unsupported("its results")

    def combine(companions: Flags) -> tuple[Row, ...]:
        leader = companions.argmax(axis=2)
        return leader, leader == _LANE

    return _collective(i, ((), (members,)), _pair(d, "u4"), combine)
