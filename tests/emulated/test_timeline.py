"""The timeline of a block: its events in order, where the picture has them, and the words above it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.pictures import pingpong_timeline
from matmill.cli import main
from matmill.emulator import Event, Report
from matmill.emulator.memory.address_space import SHARED_BASE
from matmill.errors import ArgumentError
from matmill.page.placement import Placement
from matmill.page.timeline import timeline, timeline_figure
from support.ptx_tools import entry, launch

PICTURE = Path(__file__).parents[2] / "benchmarks" / "results" / "pingpong_timeline.svg"
STEPS = 3
#: The bytes of the shared window at which the barriers are, behind two stages of 128 bytes.
FULL, EMPTY = ((SHARED_BASE + 256 + at, SHARED_BASE + 264 + at) for at in (0, 16))
SHARED = ".shared .align 128 .b8 shared[288];"


def _at(barrier: int) -> str:
    return f"[s+{barrier - SHARED_BASE}]"


START = """
.reg .b32 t, s, at, r; .reg .b64 from, to, state; .reg .pred consumer, first, other, done;
mov.u32 t, %tid.x; mov.u32 s, shared; setp.ge.u32 consumer, t, 32; setp.eq.u32 first, t, 0; setp.ne.u32 other, t, 0;
"""
START += "".join(
    f"@first mbarrier.init.shared::cta.b64 {_at(at)}, {n};" for n, ats in ((1, FULL), (32, EMPTY)) for at in ats
)


def _wait(name: str, at: int, parity: int) -> str:
    return f"{name}: mbarrier.try_wait.parity.shared::cta.b64 done, {_at(at)}, {parity}; @!done bra {name};"


def _produce(step: int) -> str:
    stage, parity = step % 2, step // 2 % 2
    return f"""{_wait(f"P{step}", EMPTY[stage], parity ^ 1)}
mbarrier.arrive.expect_tx.shared::cta.b64 _, {_at(FULL[stage])}, 128; add.u32 at, s, {128 * stage};
add.u64 from, a, {128 * step};
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [at], [from], 128, {_at(FULL[stage])};"""


def _consume(step: int) -> str:
    stage, parity = step % 2, step // 2 % 2
    return f"""{_wait(f"C{step}", FULL[stage], parity)}
shl.b32 at, t, 2; sub.u32 at, at, 128; cvt.u64.u32 to, at; add.u64 to, to, o; add.u32 at, at, s;
ld.shared.b32 r, [at+{128 * stage}]; st.global.b32 [to+{128 * step}], r;
mbarrier.arrive.shared::cta.b64 state, {_at(EMPTY[stage])};"""


#: Warp 0 copies three rows through two stages, warp 1 stores them.
ROLES = f"""{START} bar.sync 0; @consumer bra CONSUMER; @other bra END;
{"".join(map(_produce, range(STEPS)))} bra END;
CONSUMER: {"".join(map(_consume, range(STEPS)))}
END:"""


def roles(*, wanted: bool = True) -> Report:
    ptx = entry(ROLES, ["a", "o"], SHARED)
    data, out = np.arange(32 * STEPS, dtype=np.int32), np.zeros(32 * STEPS, np.int32)
    report = launch(ptx, {"a": data, "o": out}, block=(64, 1, 1), options={"timeline": wanted})
    assert report.ok
    assert (out == data).all()
    return report


def test_events_are_in_the_order_of_execution() -> None:
    events = [(e.warp, e.kind, e.barrier, e.phase) for e in roles().timeline]
    assert events == [
        (0, "meet", -1, 0), (1, "meet", -1, 0),
        (0, "wait", EMPTY[0], -1), (0, "arrive", FULL[0], 0), (0, "load", FULL[0], 0),
        (0, "wait", EMPTY[1], -1), (0, "arrive", FULL[1], 0), (0, "load", FULL[1], 0),
        (1, "wait", FULL[0], 0), (1, "read", -1, -1), (1, "store", -1, -1), (1, "arrive", EMPTY[0], 0),
        (0, "wait", EMPTY[0], 0), (0, "arrive", FULL[0], 1), (0, "load", FULL[0], 1),
        (1, "wait", FULL[1], 0), (1, "read", -1, -1), (1, "store", -1, -1), (1, "arrive", EMPTY[1], 0),
        (1, "wait", FULL[0], 1), (1, "read", -1, -1), (1, "store", -1, -1), (1, "arrive", EMPTY[0], 1),
    ]  # fmt: skip
    assert {e.count for e in roles().timeline if e.kind == "load"} == {128}
    assert all(e.where.startswith("PTX line") for e in roles().timeline if e.kind != "meet")


def test_a_launch_without_a_timeline_keeps_no_events() -> None:
    assert roles(wanted=False).timeline == ()


def test_bars_are_as_far_left_as_the_barriers_allow() -> None:
    placement = Placement(roles().timeline)
    assert [(row.name, list(row.warps)) for row in placement.rows] == [("producer", [0]), ("consumer", [1])]
    assert [(bar.start, bar.use) for bar in placement.of_kind("load")] == [
        (0, (FULL[0], 0)), (0.25, (FULL[1], 0)), (2.25, (FULL[0], 1)),
    ]  # fmt: skip
    # Each step reads and stores; the consumer waits for the first load alone, the producer for the first stage.
    assert [bar.start for bar in placement.of_kind("product")] == [0.25, 2.25, 4.25]
    assert [(bar.row, bar.start, bar.end) for bar in placement.of_kind("wait")] == [(1, 0, 0.25), (0, 0.5, 2.25)]
    assert placement.conclusion() == "one role reads, and the readers wait twice, while tiles are stored"


def test_the_picture_has_a_row_for_each_role_and_an_arrow_for_each_dependency() -> None:
    picture = timeline("a.b.copies", roles().timeline)
    assert picture.count('<g class="role">') == 2
    assert [picture.count(f'<path class="{kind}') for kind in ("full", "free", "turn")] == [STEPS + 1, 1 + 1, 0]
    assert [picture.count(f'<g class="load s{stage}">') for stage in range(3)] == [2, 1, 0]
    assert ">copies: one role reads" in picture
    assert "prefers-color-scheme: dark" in picture
    figure = timeline_figure("a.b.copies", roles().timeline)
    assert "<strong>copies: one role reads" in figure
    assert "prefers-color-scheme" not in figure  # its colours are the page's
    assert figure.count('<g class="role">') == 2


def test_a_kernel_without_mbarriers_has_no_timeline() -> None:
    report = launch(entry(".reg .b32 t; bar.sync 0;", ["a"]), {"a": np.zeros(1)}, options={"timeline": True})
    assert timeline_figure("k", report.timeline) == ""
    with pytest.raises(ArgumentError, match="kernel k, in which no thread waits for an mbarrier") as problem:
        timeline("k", report.timeline)
    assert problem.value.fix == "Omit --timeline; --html shows the counts of any kernel."


def test_turns_at_barriers_of_the_block_are_arrows() -> None:
    events = [Event(0, "wait", 0, -1), Event(4, "wait", 0, -1), Event(0, "product"), Event(0, "signal", phase=1)]
    events += [Event(4, "meet", phase=1), Event(4, "product")]
    placement = Placement(events)
    assert placement.turns == {(0, 1, 1.0)}
    assert placement.conclusion() == "two consumers alternate, and no barrier holds up the tensor cores"
    both = Placement([event for event in events if event.kind not in {"signal", "meet"}])
    assert both.turns == set()
    assert both.conclusion() == "two consumers multiply side by side, and no barrier holds up the tensor cores"


def test_the_picture_of_pingpong_is_what_the_emulator_runs_now() -> None:
    picture = pingpong_timeline()
    assert PICTURE.read_text(encoding="utf-8") == picture, "make docs draws it"
    assert ">pingpong: two consumers alternate, and no barrier holds up the tensor cores</text>" in picture
    assert picture.count('<g class="role">') == 3
    assert 'class="idle"' not in picture


def test_the_ladder_s_page_shows_what_specialisation_is_worth(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    args = ["--rungs", "swizzled,wgmma,persistent", "--on", "emulator", "--html", str(page)]
    assert main(["ladder", "hgemm", *args]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('class="timeline"') == 2
    assert ">wgmma: one role copies and multiplies, and the tensor cores wait 5 times, for data<" in text
    assert ">persistent: two consumers multiply side by side, and the tensor cores wait once, while tiles" in text


def test_the_command_draws_any_kernel(tmp_path: Path) -> None:
    source = tmp_path / "k.ptx"
    source.write_text(entry(ROLES, ["a", "o"], SHARED), encoding="utf-8")
    arguments = ["emulate", str(source), "--block", "64", "--arg", "random:i32:96", "--arg", "zeros:i32:96"]
    svg, page = tmp_path / "k.svg", tmp_path / "k.html"
    assert main([*arguments, "--orders", "1", "--timeline", str(svg), "--html", str(page)]) == 0
    assert svg.read_text(encoding="utf-8") == timeline("k", roles().timeline)
    assert timeline_figure("k", roles().timeline) in page.read_text(encoding="utf-8")


def test_the_command_refuses_a_kernel_without_mbarriers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, svg = tmp_path / "k.ptx", tmp_path / "k.svg"
    source.write_text(entry("bar.sync 0;"), encoding="utf-8")
    assert main(["emulate", str(source), "--block", "32", "--timeline", str(svg)]) == 2
    assert "in which no thread waits for an mbarrier" in capsys.readouterr().err
    assert not svg.exists()
