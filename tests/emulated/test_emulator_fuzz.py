"""Damaged kernels: whatever an instruction holds, it runs or is refused with a typed error, and nothing crashes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.emulator import KernelFault, parse
from matmill.emulator.program.translate import translate
from matmill.errors import ArgumentError, EmulationError, MatmillError
from support.examples import examples
from support.ptx_tools import entry, launch

# One instruction of each kind, without loops: a loop that stores may go on for ever, on a GPU too.
LINES = """
.reg .pred p, q; .reg .b16 h<4>; .reg .b32 r<12>; .reg .f32 f<8>; .reg .b64 a, b, d<4>; .reg .f64 g<4>;
.shared .align 128 .b8 room[2048]; .local .align 16 .b8 own[16];
mov.u32 r0, %tid.x; mov.u32 r1, room; shl.b32 r2, r0, 4; add.u32 r1, r1, r2; cvt.u64.u32 a, r2; add.u64 a, a, x;
mov.b32 r2, %laneid; mov.u32 r3, %clock; mov.u64 b, %globaltimer;
cp.async.ca.shared.global [r1], [a], 16; cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r4, r5, r6, r7}, [r1]; movmatrix.sync.aligned.m8n8.trans.b16 r8, r4;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {f0, f1, f2, f3}, {r4, r5, r6, r7}, {r8, r9}, {f0, f1, f2, f3};
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {g0, g1}, {g2}, {g3}, {g0, g1};
mma.sync.aligned.m8n8k16.row.col.satfinite.s32.s8.u8.s32 {r4, r5}, {r6}, {r8}, {r4, r5};
stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [r1], {r4, r5}; bar.warp.sync 0xffffffff;
ld.shared.v4.u32 {r4, r5, r6, r7}, [r1]; st.local.v2.b32 [own], {r4, r5}; ld.local.b64 d0, [own];
setp.lt.and.f32 p|q, f0, f1, p; @p add.f32 f2, f0, 0f3F800000; @!q mov.b32 f3, r4; selp.b32 r9, r4, r5, p;
shfl.sync.bfly.b32 r10|p, r4, 1, 31, 0xffffffff; vote.sync.ballot.b32 r11, p, 0xffffffff; activemask.b32 r4;
match.any.sync.b32 r5, r0, 0xffffffff; redux.sync.add.u32 r6, r0, 0xffffffff; elect.sync r7|q, 0xffffffff;
mad.lo.u32 r4, r5, r6, r7; mul.wide.s32 d1, r4, r5; div.u32 r5, r4, 3; rem.s32 r6, r4, r5; bfe.u32 r7, r4, 3, 5;
lop3.b32 r8, r4, r5, r6, 0x96; prmt.b32 r9, r4, r5, 0x3210; shf.l.wrap.b32 r10, r4, r5, 7; popc.b32 r11, r4;
fma.rn.f32 f4, f0, f1, f2; div.rn.f32 f5, f0, f1; sqrt.approx.f32 f6, f5; ex2.approx.ftz.f32 f7, f6; min.f32 f0, f1, f2;
cvt.rn.f16.f32 h0, f0; fma.rn.f16x2 r4, r5, r6, r7; add.rn.bf16x2 r5, r4, r6; cvt.rzi.s32.f32 r6, f0; neg.f16 h1, h0;
fma.rn.f64 g0, g1, g2, g3; mov.b64 {r4, r5}, d1; mov.b64 d2, {r4, r5}; cvt.rn.f32.f64 f1, g0; max.f16x2 r7, r4, r5;
atom.global.add.u32 r6, [a], r4; red.shared.max.s32 [r1], r5; atom.shared.cas.b32 r7, [r1], r4, r5;
dp4a.u32.s32 r8, r4, r5, r6; bar.red.popc.u32 r9, 1, p; barrier.sync 2, 64; membar.gl; prefetch.global.L2 [a];
isspacep.global q, a; st.global.v2.f32 [a+8], {f0, f1}; st.global.b64 [a], d2; @p bra END; st.global.u16 [a], h1;
END: ret;
"""  # fmt: skip
TOKEN = re.compile(r"[\w%$.:]+|[^\s\w]")
WORDS = sorted(set(TOKEN.findall(LINES)))
MODIFIERS = sorted({part for word in WORDS for part in word.split(".")[1:] if part and not part[0].isdigit()})


def damaged(data: st.DataObject, text: str) -> str:
    """Return the text with a token or two replaced, removed, doubled, or given other modifiers."""
    for _ in range(data.draw(st.integers(1, 2))):
        tokens = list(TOKEN.finditer(text))
        chosen = tokens[data.draw(st.integers(0, len(tokens) - 1))]
        word = chosen.group()
        parts = word.split(".")
        kinds = ["another", "nothing", "twice"] + ["modifier", "fewer", "more"] * 2 * (len(parts) > 1)
        kind = data.draw(st.sampled_from(kinds))
        at = data.draw(st.integers(1, max(len(parts) - 1, 1)))
        if kind == "another":
            word = data.draw(st.sampled_from(WORDS))
        elif kind in {"nothing", "twice"}:
            word = f"{word} {word}" * (kind == "twice")
        else:
            other = [] if kind == "fewer" else [data.draw(st.sampled_from(MODIFIERS))]
            word = ".".join([*parts[:at], *other, *parts[at + (kind != "more") :]])
        text = text[: chosen.start()] + word + text[chosen.end() :]
    return text


def run_once(text: str, *, late: bool) -> None:
    x = np.arange(1024, dtype=np.float32)
    launch(entry(text, ["x"]), {"x": x}, block=(64, 1, 1), options={"late_copies": late, "schedule": int(late)})


@pytest.mark.parametrize("late", [False, True])
def test_the_kernel_itself_runs(*, late: bool) -> None:
    run_once(LINES, late=late)


@examples(200)
@given(data=st.data(), late=st.booleans())
def test_damaged_kernels_run_or_are_refused(data: st.DataObject, *, late: bool) -> None:
    text = damaged(data, LINES)
    try:
        run_once(text, late=late)
    except EmulationError as error:
        assert re.match(r"PTX line \d+", str(error))  # noqa: PT017 - damage may be harmless
    except MatmillError as error:
        assert isinstance(error, KernelFault | ArgumentError)  # noqa: PT017 - the same


# What fuzzing found once: each crashed while it ran.


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("fma.rn.f16 h0, h1, h2;", "number of its operands"),
        ("mad.hi.u32 r0, r1, r2;", "number of its operands"),
        ("mul.lo.u32 r0, r1, r2, r3;", "number of its operands"),
        ("sad.u32 r0, r1;", "number of its operands"),
        ("setp.lt.and.u32 p, r0, r1;", "number of its operands"),
        ("setp.lt.u32 p, r0, r1, q;", "number of its operands"),
        ("atom.global.cas.b32 r0, [a], r1;", "number of its operands"),
        ("shfl.sync.bfly.b32 r0, r1, 1, 31;", "member mask"),
        ("max.f16x2 d0, r1, r2;", "wrong kind"),
        ("abs.bf16x2 r0, d0;", "wrong kind"),
        ("add.s64 d0, d1, %tid.x;", "32 bits"),
        ("add.u32 r0, r1, %clock;", "%clock"),
        ("shfl.sync.b32 r0, r1, 1, 31, -1;", "none of .up, .down, .bfly, .idx"),
        ("shf.l.b32 r0, r1, r2, r3;", "none of .wrap, .clamp"),
        ("bar.warp.sync %rd1;", "%rd1"),
        ("bar.warp.sync d0;", ""),
    ],
)
def test_operands_that_do_not_fit(line: str, why: str) -> None:
    declared = LINES.strip().splitlines()[0]
    if not why:
        # Of a wider register the low half is read.
        assert translate(parse(entry(f"{declared} {line}")), "k").blocks
        return
    with pytest.raises(EmulationError, match=why):
        translate(parse(entry(f"{declared} {line}")), "k")


def test_global_variables_declared_inside_a_function() -> None:
    x = np.zeros(32, np.uint32)
    body = """.global .align 4 .u32 seven = 7; .reg .b32 v, t; .reg .b64 a;
    ld.global.u32 v, [seven]; mov.u32 t, %tid.x; mad.wide.u32 a, t, 4, x; st.global.u32 [a], v;"""
    launch(entry(body, ["x"]), {"x": x})
    assert (x == 7).all()


@pytest.mark.parametrize("kind", ["b32", "f16x2", "bf16x2"])
def test_registers_declared_as_two_halves(kind: str) -> None:
    x = np.array([0x3C004000, 0x7BFF0001], np.uint32)
    out = np.zeros((3, 32), np.uint32)
    body = f""".reg .{kind} v, w; .reg .b64 d, a; .reg .b32 t; ld.global.b32 v, [x]; ld.global.b64 d, [x];
    mov.u32 t, %tid.x; mad.wide.u32 a, t, 4, o; st.global.b32 [a], v;
    mov.b64 {{v, w}}, d; st.global.b32 [a+128], v; st.global.b32 [a+256], w;"""
    launch(entry(body, ["x", "o"]), {"x": x, "o": out})
    assert (out == x[[0, 0, 1]][:, None]).all()
