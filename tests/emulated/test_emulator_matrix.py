"""Matrix instructions: the cases of tests/agreement beside matrices, who may execute them, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement.matrix import FORMS, LATER, WARPS, Mma, multiply
from matmill.emulator import KernelFault, Report, parse
from matmill.emulator.program.translate import translate
from matmill.errors import EmulationError
from support.mma_fragments import equal, matrices, product
from support.ptx_tools import HEADER, compile_ptx, entry, launch

Array = NDArray[Any]
#: The warps of small integers; and one of random numbers, and one with infinities, NaN and subnormals strewn in.
SMALL, SOME = slice(0, WARPS // 3), [40, 70]


def targets(form: Mma) -> tuple[str, ...]:
    """Return targets, of different tensor cores, that have an instruction."""
    if form in LATER or form.a in {"e4m3", "e5m2"} or (form.a == "f64" and form.shape[0] == 16):
        return ("sm_90a",)
    return ("sm_75",) * (form.shape in {(16, 8, 8), (8, 8, 16)} and form.a in {"f16", "s8", "u8"}) + ("sm_80", "sm_90a")


@pytest.mark.parametrize(
    ("form", "target"),
    [(form, target) for form in (*FORMS, *LATER) for target in targets(form)],
    ids=lambda x: x if isinstance(x, str) else x.opcode,
)
def test_products(form: Mma, target: str) -> None:
    arrays, report = multiply(form).emulate(target)
    assert report.ok
    a, b, c, d = matrices(form, arrays, slice(None) if form.d == "s32" else SOME[: 1 + (target == "sm_90a")])
    assert equal(d, product(form, target, a, b, c))
    a, b, c, d = matrices(form, arrays, SMALL)
    if "popc" not in form.extra and form.extra != ".satfinite":
        assert equal(d, (a @ b.transpose(0, 2, 1) + c).astype(d.dtype))
    counted, (m, n, k) = report.counters.as_dict(), form.shape
    name = {"f64": "dmma", "s32": "imma"}.get(form.d, "hmma")
    assert [counted[x] for x in ("hmma", "imma", "dmma")] == [WARPS * (x == name) for x in ("hmma", "imma", "dmma")]
    assert counted["matrix_flops"] == WARPS * 2 * m * n * k
    assert report.counters.nsight_names()[f"sm__inst_executed_pipe_tensor_op_{name}"] == WARPS


# Who takes part

PRODUCT = (
    'asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %2}, {%2}, {%0, %1};" '
    ': "+r"(d), "+r"(e) : "r"(x));'
)
BRANCHING = f"""extern "C" __global__ void k(unsigned* o) {{
  unsigned d = 0, e = 0, x = 0x3C003C00;
  if (CONDITION) {PRODUCT}
  o[threadIdx.x] = d + e;
}}"""


def branching(condition: str, out: Array) -> Report:
    """Run the kernel with as many threads as ``out`` has elements."""
    ptx = compile_ptx(BRANCHING.replace("CONDITION", condition))
    return launch(ptx, {"o": out}, block=(len(out), 1, 1))


def test_whole_warps_may_branch() -> None:
    out = np.zeros(96, np.uint32)
    report = branching("threadIdx.x / 32 != 1", out)
    assert report.ok
    assert report.counters.hmma == 2
    assert report.counters.matrix_flops == 2 * 2 * 16 * 8 * 8
    assert out.reshape(3, 32).any(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize("condition", ["threadIdx.x % 32 < 20", "threadIdx.x != 40"])
def test_parts_of_warps_may_not(condition: str) -> None:
    with pytest.raises(KernelFault, match=r"of the 32 threads of a warp execute 'mma\.sync") as caught:
        branching(condition, np.zeros(64, np.uint32))
    assert caught.value.hazard.kind == "partial-warp"
    assert re.search(r"thread \((20|40), 0, 0\) of block \(0, 0, 0\) does not", str(caught.value))
    assert caught.value.hazard.where == "test.cu:3"


def test_a_block_that_fills_no_warp() -> None:
    with pytest.raises(KernelFault, match=r"8 of the 32 threads .* the block has no threads for the others"):
        branching("true", np.zeros(40, np.uint32))


def test_guards_of_whole_warps() -> None:
    # A guard on the instruction itself, which compilers do not write here but PTX allows.
    body = """.reg .pred p; .reg .b32 t, d, e, x; .reg .b64 a;
    mov.u32 t, %tid.x; setp.GUARD p, t, 32; mov.b32 x, 0x3C003C00; mov.b32 d, 0; mov.b32 e, 0;
    @p mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {d, e}, {x, x}, {x}, {d, e};
    mad.wide.u32 a, t, 4, o; st.global.u32 [a], d;"""
    for guard in ("lt", "ge"):
        out = np.zeros(64, np.uint32)
        counted = launch(entry(body.replace("GUARD", f"{guard}.u32"), ["o"]), {"o": out}, block=(64, 1, 1)).counters
        assert (counted.hmma, counted.matrix_flops) == (1, 2 * 16 * 8 * 8)
        assert out.reshape(2, 32).any(axis=1).tolist() == [guard == "lt", guard == "ge"]
    with pytest.raises(KernelFault, match="7 of the 32 threads"):
        launch(entry(body.replace("GUARD p, t, 32", "lt.u32 p, t, 7"), ["o"]), {"o": out}, block=(64, 1, 1))


@pytest.mark.parametrize(
    ("types", "a", "b", "c", "wanted"),
    [
        # 8 products of 1 and 2, or 2 and 1, alternating as the halves do, and C: 0.5 and 1.
        ("f16.f16.f16.f16", "0x40003C00", "0x3C004000", "0x3C003800", "16.5 17.0"),
        ("f32.bf16.bf16.f32", "0x40003F80", "0x3F804000", "0f3F000000", "16.5 16.5"),
        ("f32.tf32.tf32.f32", "0x40000000", "0x3F800000", "0f3F000000", "16.5 16.5"),
    ],
)
def test_immediate_operands(types: str, a: str, b: str, c: str, wanted: str) -> None:
    half = types.endswith("f16")
    registers = 2 if half else 4
    a_count, b_count = (4, 2) if "tf32" in types else (2, 1)
    d = ", ".join(f"d{n}" for n in range(registers))
    vectors = ["{" + ", ".join([x] * n) + "}" for x, n in ((a, a_count), (b, b_count), (c, registers))]
    body = f""".reg .{"b32" if half else "f32"} d<4>; .reg .b32 t; .reg .b64 p;
    mma.sync.aligned.m16n8k8.row.col.{types} {{{d}}}, {", ".join(vectors)};
    mov.u32 t, %tid.x; mad.wide.u32 p, t, 4, o; st.global.b32 [p], d1;"""
    out = np.zeros(64, np.uint32)
    assert launch(entry(body, ["o"]), {"o": out}, block=(64, 1, 1)).ok
    result = out.view(np.float16 if half else np.float32).reshape(-1, 2)
    assert (result == np.array(wanted.split(), result.dtype)).all()


# What is refused

REGISTERS = ".reg .b32 r<9>; .reg .f32 f<9>; .reg .f64 d<9>; .reg .b64 p; .reg .pred q;"


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {r0,r1,r2,r3}, {r4,r5}, {r6,r7}, {r0,r1,r2,r3};", "types"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {r0,r1}, {r2,r3}, {r4,r5}, {r0,r1}, r6, 0;", "sparse"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.bf16.f32 {f0,f1,f2,f3}, {r0,r1}, {r2}, {f0,f1,f2,f3};", "types"),
        ("mma.sync.aligned.m16n8k8.col.col.f16.f16.f16.f16 {r0,r1}, {r2,r3}, {r4}, {r0,r1};", "modifiers"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r0,r1}, {r2}, {r4}, {r0,r1};", "number of its registers"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r0,p}, {r2,r3}, {r4}, {r0,r1};", "width of its registers"),
        ("mma.sync.aligned;", "types"),
        ("mma;", "types"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r0, r1}, [r2];", "only sm_100"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0}, [r2];", "its vector"),
        ("movmatrix.sync.aligned.m8n8.b16 r0, r1;", "its shape"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {r0}, {r1}, {r2}, {r3};", "do not fit"),
        ("tcgen05.wait::ld.sync.aligned;", "sm_100"),
    ],
)
def test_what_is_not_emulated_is_named(instruction: str, why: str) -> None:
    text = f"{HEADER}.entry k() {{\n{REGISTERS}\n{instruction}\nret;\n}}"
    with pytest.raises(EmulationError, match=why) as caught:
        translate(parse(text), "k")
    assert str(caught.value).startswith("PTX line 6:")
    assert instruction.split(maxsplit=1)[0].rstrip(";") in str(caught.value)
