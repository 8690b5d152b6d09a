"""Copies in flight at waits for asynchronous copies, and the arithmetic that hides them."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import Report
from matmill.emulator.engine.state.copy_waits import LATENCY
from support.ptx_tools import Options, entry, launch

#: Threads of the block, and those of a warp's copies of 16 bytes each.
THREADS, WARP_BYTES = 256, 512
WARPS = THREADS // 32
#: FMAs of every thread of the block that an SM executes in one clock.
PER_CLOCK = 128 / THREADS

START = """
.reg .b32 t, at, full, other; .reg .b64 from, state; .reg .f32 f; .reg .pred first, done;
mov.u32 t, %tid.x; shl.b32 t, t, 4; mov.u32 at, s; add.u32 at, at, t; cvt.u64.u32 from, t; add.u64 from, from, a;
setp.eq.u32 first, t, 0; mov.f32 f, 0f3F800000; mov.u32 full, bars; add.u32 other, full, 8;
"""
COPY = "cp.async.cg.shared.global [at], [from], 16;"
GROUP = f"{COPY} cp.async.commit_group;"
INIT = "".join(f"@first mbarrier.init.shared::cta.b64 [{each}], {{0}};" for each in ("full", "other")) + "bar.sync 0;"


def fmas(count: float) -> str:
    return "fma.rn.f32 f, f, f, f;" * int(count)


def run(body: str, *, late: bool = False, counters: bool = True) -> Report:
    declared = ".shared .align 128 .b8 s[4096]; .shared .align 8 .b8 bars[16];"
    ptx = entry(START + body, ["a"], declared)
    options: Options = {"late_copies": late, "counters": counters}
    return launch(ptx, {"a": np.ones(1024, np.float32)}, block=(THREADS, 1, 1), options=options)


def counted(body: str, *, late: bool = False) -> tuple[int, int, int, int, int]:
    """Return waits, those that found data ready, bytes waited for, bytes in flight then, and clocks of arithmetic."""
    c = run(body, late=late).counters
    return c.copy_waits, c.copy_waits_ready, c.copy_bytes_waited, c.copy_bytes_in_flight, c.copy_work_clocks


def load(barrier: str, nbytes: int) -> str:
    """Write PTX by which thread 0 loads bytes, for the phase of a barrier."""
    return (
        f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {nbytes};"
        f"@first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [at], [from], {nbytes}, [{barrier}];"
    )


def wait(barrier: str, parity: int = 0) -> str:
    label = f"W_{barrier}_{parity}"
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity}; @!done bra {label};"


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_group_left_in_flight_is_depth(*, late: bool) -> None:
    body = f"{GROUP} {GROUP} cp.async.wait_group 1;"
    assert counted(body, late=late) == (WARPS, 0, WARPS * WARP_BYTES, WARPS * WARP_BYTES, 0)


def test_a_wait_for_each_copy_as_it_is_issued_has_no_depth() -> None:
    body = f"{GROUP} cp.async.wait_group 0;" * 2
    assert counted(body) == (2 * WARPS, 0, 2 * WARPS * WARP_BYTES, 0, 0)


def test_wait_all_needs_no_commit_and_bytes_are_waited_for_once() -> None:
    body = f"{COPY} cp.async.wait_all; cp.async.wait_all; cp.async.commit_group; cp.async.wait_group 0;"
    assert counted(body) == (WARPS, 0, WARPS * WARP_BYTES, 0, 0)


@pytest.mark.parametrize(("clocks", "ready"), [(LATENCY, WARPS), (LATENCY - 2, 0)])
def test_arithmetic_of_the_block_hides_a_copy_from_the_latency_on(clocks: int, ready: int) -> None:
    body = f"{GROUP} {fmas(clocks * PER_CLOCK)} bar.sync 0; cp.async.wait_group 0;"
    assert counted(body) == (WARPS, ready, WARPS * WARP_BYTES, 0, WARPS * clocks)


def test_arithmetic_before_the_issue_hides_nothing() -> None:
    body = f"{fmas(LATENCY * PER_CLOCK)} {GROUP} cp.async.wait_group 0;"
    assert counted(body) == (WARPS, 0, WARPS * WARP_BYTES, 0, 0)


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_phase_counts_once_however_many_warps_wait_for_it(*, late: bool) -> None:
    loads = f"{INIT.format(1)} {load('full', 1024)} {load('other', 512)}"
    assert counted(f"{loads} {wait('full')} bar.sync 0; {wait('other')}", late=late) == (2, 0, 1536, 512, 0)
    hidden = f"{loads} {fmas(LATENCY * PER_CLOCK)} {wait('full')}"
    assert counted(hidden, late=late)[:2] == (1, 1)


def test_copies_that_arrive_at_an_mbarrier_are_waited_for_there() -> None:
    arrive = "cp.async.mbarrier.arrive.noinc.shared.b64 [full];"
    both = f"{INIT.format(THREADS)} {COPY} {arrive} {wait('full')}"
    assert counted(both) == (1, 0, WARPS * WARP_BYTES, 0, 0)
    assert counted(f"{both} cp.async.wait_all;") == counted(both)


def test_waits_without_copies_and_launches_without_counters_count_nothing() -> None:
    assert counted("cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all;") == (0,) * 5
    assert counted(f"{INIT.format(THREADS)} mbarrier.arrive.shared::cta.b64 state, [full]; {wait('full')}") == (0,) * 5
    assert run(f"{GROUP} cp.async.wait_all;", counters=False).counters.copy_waits == 0


def test_the_line_of_the_wait_has_its_counts() -> None:
    report = run(f"{GROUP}\n cp.async.wait_all;")
    (line,) = [counts for counts in report.by_line.values() if counts.copy_waits]
    assert line.copy_bytes_waited == WARPS * WARP_BYTES
    assert line.cp_async_bytes == 0


def test_a_copy_by_another_warp_counts_from_when_it_could_be_issued() -> None:
    # Warp 0 hands a stage over, computes, and waits for it; warp 1 refills it, and the emulator runs it later.
    body = f"""{INIT.format(1)}
    setp.lt.u32 done, t, 512; @!done bra PRODUCER;
    @first mbarrier.arrive.shared::cta.b64 state, [other]; bra NEXT;
    NEXT: {fmas(4 * LATENCY)} {wait("full")} bra END;
    PRODUCER: setp.ne.u32 done, t, 512; @done bra END;
    {wait("other")} mov.u32 at, s; mov.u64 from, a; setp.eq.u32 first, t, 512; {load("full", 512)}
    END:"""
    assert counted(body) == (1, 1, 512, 0, LATENCY)
    late = body.replace("@first mbarrier.arrive.shared::cta.b64 state, [other];", "").replace(
        wait("full"), f"@first mbarrier.arrive.shared::cta.b64 state, [other]; {wait('full')}"
    )
    assert counted(late) == (1, 0, 512, 0, 0)


def test_a_wait_without_a_number_leaves_nothing_in_flight() -> None:
    # ptxas would refuse it; the emulator also runs kernels of which a token is lost.
    assert counted(f"{GROUP} cp.async.wait_group;") == counted(f"{GROUP} cp.async.wait_group 0;")
