"""Intervals between barriers that repeat: known ones are not checked again, and no finding changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator.races.shadow.interval_patterns import IntervalPatterns
from matmill.emulator.races.shadow.shared_space import SharedSpace
from support.examples import examples
from support.ptx_tools import entry, launch

#: Addresses in each half of ``room``: own words, a neighbour's, one of a warp or of all, 16 bytes, buffers.
ADDRESSES = (
    "shl.b32 a, t, 2;",
    "xor.b32 a, t, 1; shl.b32 a, a, 2;",
    "shl.b32 a, w, 2;",
    "mov.u32 a, 0;",
    "and.b32 a, t, 15; shl.b32 a, a, 4;",
    "and.b32 a, i, 1; shl.b32 a, a, 7; mad.lo.u32 a, t, 4, a;",
)
ACCESSES = ("ld.shared.u32 v, [a{half}];", "st.shared.u32 [a{half}], v;", "st.shared.u8 [a{half}], v;")
OTHERS = (
    "bar.warp.sync 0xffffffff;",
    "atom.shared.add.u32 v, [s], 1;",
    "ld.volatile.shared.u32 v, [s+4];",
    "@!p bra L{n}; bar.sync 1, 64; L{n}:",
    "cp.async.ca.shared.global [s+64], [x], 16; cp.async.wait_all;",
)
KERNEL = """.reg .pred p, e; .reg .b32 t, w, i, a, s, v, n; .shared .align 16 .b8 room[1024];
mov.u32 t, %tid.x; shr.u32 w, t, 5; mov.u32 s, room; mov.u32 i, 0; mov.u32 v, 7; setp.lt.u32 p, t, 64; {trips}
LOOP: {body}
add.u32 i, i, 1; setp.lt.u32 e, i, n; @e bra LOOP;"""


@st.composite
def kernels(draw: st.DrawFn) -> str:
    """Return a loop of accesses to shared memory, most of them between barriers, as often in all blocks or not."""
    steps = []
    for number in range(draw(st.integers(2, 6))):
        if draw(st.integers(0, 9)):
            half, guard = draw(st.sampled_from(("", "+512"))), draw(st.sampled_from(("", "", "@p ")))
            access = guard + draw(st.sampled_from(ACCESSES)).format(half=half)
            steps.append(f"{draw(st.sampled_from(ADDRESSES))} add.u32 a, a, s; {access}")
        else:
            steps.append(draw(st.sampled_from(OTHERS)).format(n=number))
        if draw(st.integers(0, 3)):
            steps.append("bar.sync 0;")
    trips = draw(st.sampled_from(("mov.u32 n, 4;", "mov.u32 n, 4;", "mov.u32 n, %ctaid.x; add.u32 n, n, 3;")))
    return KERNEL.format(trips=trips, body="\n".join(steps))


def findings(body: str, schedule: int) -> list[str]:
    """Return what the race detector says of three blocks of three warps."""
    x = np.zeros(64, np.uint32)
    report = launch(
        entry(body, ["x"]), {"x": x}, grid=(3, 1, 1), block=(96, 1, 1), options={"schedule": schedule}
    )  # fmt: skip
    return [str(hazard) for hazard in report.hazards]


@contextmanager
def counted(*, known: bool = True) -> Iterator[list[int]]:
    """Count the accesses to shared memory that are checked; unless ``known``, all are."""
    checked, check = [0], SharedSpace.access

    def counting(*arguments: object, **named: object) -> None:
        checked[0] += 1
        check(*arguments, **named)  # type: ignore[arg-type] # passed on

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedSpace, "access", counting)
        if not known:
            patch.setattr(IntervalPatterns, "on", property(lambda _self: False))
        yield checked


@examples(60)
@given(kernels(), st.sampled_from([0, 0, 1]))
def test_known_intervals_change_no_finding(body: str, schedule: int) -> None:
    with counted(known=False):
        expected = findings(body, schedule)
    assert findings(body, schedule) == expected


STAGED = """shl.b32 a, t, 2; add.u32 a, a, s; st.shared.u32 [a], v; bar.sync 0;
sub.u32 a, 95, t; shl.b32 a, a, 2; add.u32 a, a, s; ld.shared.u32 v, [a]; bar.sync 0;"""


def test_a_loop_is_checked_once() -> None:
    with counted() as checked:
        assert findings(KERNEL.format(trips="mov.u32 n, 9;", body=STAGED), 0) == []
    assert checked == [2]


def test_a_race_after_known_intervals_is_found() -> None:
    late = "setp.eq.u32 e, i, 7; @e st.shared.u32 [s], v; bar.sync 0;"
    assert findings(KERNEL.format(trips="mov.u32 n, 7;", body=f"{STAGED} {late}"), 0) == []
    result = findings(KERNEL.format(trips="mov.u32 n, 9;", body=f"{STAGED} {late}"), 0)
    assert any("same-value" in each or "race" in each for each in result)
