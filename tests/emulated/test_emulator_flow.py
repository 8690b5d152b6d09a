"""Control flow, exchanges inside warps, how kernels end, and what is not known."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import KernelFault
from matmill.emulator.engine.schedule import deadlocks as stuck
from matmill.errors import EmulationError
from support.ptx_tools import Options, compile_ptx, entry, launch

SCHEDULES = [0, 1, 2, 3, 4]


NESTED = """
extern "C" __global__ void k(int* o) {
  int t = threadIdx.x, v = 0;
  for (int i = 0; i < t % 5; i++) {
    if (t & 1) { for (int j = 0; j <= i; j++) { if ((t + j) % 3 == 0) continue; v += j * t; } }
    else if (t % 4 == 2) { if (i == 2) break; v -= i; }
    else { switch (t % 7) { case 0: v += 1; break; case 1: v += 20; case 2: v += 300; break; case 3: v = -v; break;
           case 4: v ^= 5; break; default: v += t; } }
    v = v * 3 + 1;
  }
  o[t] = v;
}
"""


def nested_reference(t: int) -> int:
    v = 0
    for i in range(t % 5):
        if t & 1:
            v += sum(j * t for j in range(i + 1) if (t + j) % 3)
        elif t % 4 == 2:
            if i == 2:
                break
            v -= i
        else:
            case = t % 7
            if case == 0:
                v += 1
            elif case in {1, 2}:
                v += 320 if case == 1 else 300
            elif case == 3:
                v = -v
            elif case == 4:
                v ^= 5
            else:
                v += t
        v = v * 3 + 1
    return v


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nested_divergence_comes_together_again(schedule: int) -> None:
    out = np.zeros(100, np.int32)
    launch(compile_ptx(NESTED), {"o": out}, block=(100, 1, 1), options={"schedule": schedule})
    assert out.tolist() == [nested_reference(t) for t in range(100)]


def test_branch_tables() -> None:
    body = """
    .reg .b32 t, v; .reg .b64 at; mov.u32 t, %tid.x; and.b32 v, t, 3;
    table: .branchtargets A, B, C, A;
    brx.idx v, table;
    A: mov.u32 v, 10; bra.uni DONE;
    B: mov.u32 v, 20; bra.uni DONE;
    C: mov.u32 v, 30;
    DONE: mad.wide.u32 at, t, 4, o; st.global.u32 [at], v;
    """
    out = np.zeros(32, np.uint32)
    launch(entry(body, ["o"]), {"o": out})
    assert out.tolist() == [10, 20, 30, 10] * 8


def test_scopes_hide_outer_names() -> None:
    body = """
    .reg .b32 v, t; .reg .b64 at; mov.u32 v, 1; mov.u32 t, %tid.x;
    { .reg .b32 v; mov.u32 v, 7; bra.uni L; mov.u32 t, 99; L: add.u32 v, v, 1; }
    { .reg .b32 v; mov.u32 v, 8; bra.uni L; mov.u32 t, 99; L: add.u32 v, v, 1; }
    mad.wide.u32 at, t, 4, o; st.global.u32 [at], v;
    """
    out = np.zeros(32, np.uint32)
    launch(entry(body, ["o"]), {"o": out})
    assert out.tolist() == [1] * 32


def test_guards_and_sinks() -> None:
    body = """
    .reg .b32 t, v; .reg .b64 at; .reg .pred p, q; mov.u32 t, %tid.x; mov.u32 v, 5;
    setp.lt.u32 p|q, t, 10; @p add.u32 v, v, 1; @!p sub.u32 v, v, 1; @q mul.lo.u32 v, v, 3;
    shfl.sync.idx.b32 _|p, v, 0, 31, -1; @!p mov.u32 v, 0;
    mad.wide.u32 at, t, 4, o; setp.ne.u32 p, t, 20; @p st.global.u32 [at], v;
    """
    out = np.zeros(32, np.uint32)
    report = launch(entry(body, ["o"]), {"o": out})
    assert out.tolist() == [6] * 10 + [12] * 10 + [0] + [12] * 11
    assert report.counters.global_store_bytes == 31 * 4


def test_special_registers() -> None:
    source = """extern "C" __global__ void k(unsigned* o) {
      int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      unsigned lane, warp, below, size;
      asm("mov.u32 %0, %%laneid;" : "=r"(lane)); asm("mov.u32 %0, %%warpid;" : "=r"(warp));
      asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below)); asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(size));
      unsigned* p = o + 8 * (b * 60 + t);
      p[0] = t; p[1] = b; p[2] = lane; p[3] = warp; p[4] = below; p[5] = size; p[6] = clock() != 0;
    }"""
    out = np.zeros((12, 60, 8), np.uint32)
    launch(compile_ptx(source), {"o": out}, grid=(2, 3, 2), block=(5, 4, 3), shared=256)
    t = np.arange(60)
    for b in range(12):
        np.testing.assert_array_equal(out[b, :, 0], t)
        assert (out[b, :, 1] == b).all()
        np.testing.assert_array_equal(out[b, :, 2], t % 32)
        np.testing.assert_array_equal(out[b, :, 3], t // 32)
        np.testing.assert_array_equal(out[b, :, 4], (1 << t % 32) - 1)
        assert (out[b, :, 5] == 256).all()
        assert (out[b, :, 6] == 1).all()


def test_a_trap_ends_the_kernel() -> None:
    source = 'extern "C" __global__ void k(int* o) { if (threadIdx.x == 5) __trap(); o[threadIdx.x] = 1; }'
    with pytest.raises(KernelFault, match=r"thread \(5, 0, 0\) of block \(0, 0, 0\) executes") as caught:
        launch(compile_ptx(source), {"o": np.zeros(32, np.int32)})
    assert caught.value.hazard.where == "test.cu:1"


def test_endless_arithmetic_is_noticed() -> None:
    body = ".reg .b32 v; mov.u32 v, 0; LOOP: and.b32 v, v, 255; add.u32 v, v, 1; bra LOOP;"
    with pytest.raises(KernelFault, match="spins"):
        launch(entry(body), {})


def test_a_kernel_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "STEP_LIMIT", 3000)
    body = ".reg .b32 v; LOOP: mov.u32 v, %clock; bra LOOP;"
    with pytest.raises(KernelFault, match="3,000 steps without a store") as caught:
        launch(entry(body), {})
    assert caught.value.hazard.kind == "step-limit"


@pytest.mark.parametrize(
    "body",
    [
        ".reg .b32 v; mov.u32 v, %nonsense;",
        ".reg .b32 v; tcgen05.nop v;",
        ".reg .b32 v; add.rn.ftz.q32 v, v, v;",
        ".reg .b32 v; add.u32 v, v;",
        ".reg .b32 v; mul.u32 v, v, v;",
        ".reg .f32 v; fma.rn.sideways.f32 v, v, v, v;",
        "bra NOWHERE;",
        "call.uni nobody, ();",
        ".reg .b64 v; ld.global.v3.u32 {v, v, v}, [v];",
        ".reg .b32 v; setp.foo.u32 v, v, v;",
    ],
)
def test_unknown_instructions_name_their_line_and_text(body: str) -> None:
    with pytest.raises(
        EmulationError, match=r"PTX line 8.*" + body.split(";")[-2].split(maxsplit=1)[0].split(".", maxsplit=1)[0]
    ):
        launch(entry(body), {})


ASSERT = """
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#define assert(x) ((x) ? (void)0 : __assertfail(#x, __FILE__, __LINE__, __func__, 1))
"""


def test_a_failed_assertion_ends_the_kernel() -> None:
    source = """
      extern "C" __global__ void k(int* o) { assert(o[threadIdx.x] == 0); o[threadIdx.x] = 1; }"""
    ptx = compile_ptx(ASSERT + source)
    out = np.zeros(32, np.int32)
    launch(ptx, {"o": out})
    assert out.all()
    with pytest.raises(KernelFault, match=r"thread \(0, 0, 0\)"):
        launch(ptx, {"o": out})


def test_guarded_commits_and_active_masks() -> None:
    body = """.reg .b32 t, at, v; .reg .b64 from, to; .reg .pred p; mov.u32 t, %tid.x; setp.lt.u32 p, t, 7;
    mov.u32 at, s; mad.lo.u32 at, t, 4, at; mad.wide.u32 from, t, 4, a; mad.wide.u32 to, t, 4, o;
    cp.async.ca.shared.global [at], [from], 4; @p cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.u32 v, [at]; st.global.u32 [to], v; @p activemask.b32 v; st.global.u32 [to+128], v; cp.async.wait_all;"""
    a, out = np.arange(1, 33).astype(np.uint32), np.zeros((2, 32), np.uint32)
    declared = ".shared .align 16 .b8 s[128];"
    options: Options = {"late_copies": True, "races": False}
    launch(entry(body, ["a", "o"], declared), {"a": a, "o": out}, options=options)
    assert out[0].tolist() == [*range(1, 8), *[0xFFFFFFFF] * 25]
    assert out[1].tolist() == [0x7F] * 7 + [0xFFFFFFFF] * 25
