"""Control flow, barriers, exchanges inside warps, atomics and spins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from emulated.ptx_tools import Options, compile_ptx, entry, launch
from matmill.emulator import KernelFault, scheduler
from matmill.errors import EmulationError

SCHEDULES = [0, 1, 2, 3, 4]


def hailstone(n: int) -> int:
    steps = 0
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        steps += 1
    return steps


HAILSTONE = """
__device__ __noinline__ int step(int n) { return n % 2 ? 3 * n + 1 : n / 2; }
extern "C" __global__ void k(const int* a, int* o, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int v = a[i], s = 0;
  while (v != 1) { v = step(v); s++; }
  o[i] = s;
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loops_with_trip_counts_of_their_own_per_lane(schedule: int) -> None:
    a = np.arange(1, 301, dtype=np.int32)
    out = np.full(300, -1, np.int32)
    report = launch(
        compile_ptx(HAILSTONE),
        {"a": a, "o": out},
        np.int32(300),
        grid=(5, 1, 1),
        block=(64, 1, 1),
        options={"schedule": schedule},
    )
    assert out.tolist() == [hailstone(n) for n in a.tolist()]
    assert report.ok


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


SHUFFLES = """
extern "C" __global__ void k(const int* a, int* o) {
  int t = threadIdx.x, v = a[t];
  o[t] = __shfl_up_sync(~0u, v, 3); o[64 + t] = __shfl_down_sync(~0u, v, 5); o[128 + t] = __shfl_xor_sync(~0u, v, 7);
  o[192 + t] = __shfl_sync(~0u, v, t * 3); o[256 + t] = __shfl_sync(~0u, v, t + 1, 8);
  o[320 + t] = __shfl_up_sync(~0u, v, 2, 16); o[384 + t] = __shfl_down_sync(~0u, v, 2, 4);
}
"""


def test_shuffles() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-1000, 1000, 64).astype(np.int32)
    out = np.zeros((7, 64), np.int32)
    launch(compile_ptx(SHUFFLES), {"a": a, "o": out}, block=(64, 1, 1))
    for t in range(64):
        w, lane = t // 32 * 32, t % 32
        wanted = [
            a[t - 3] if lane >= 3 else a[t],
            a[t + 5] if lane + 5 < 32 else a[t],
            a[w + (lane ^ 7)],
            a[w + t * 3 % 32],
            a[t // 8 * 8 + (t + 1) % 8],
            a[t - 2] if lane % 16 >= 2 else a[t],
            a[t + 2] if lane % 4 + 2 < 4 else a[t],
        ]
        assert out[:, t].tolist() == wanted


VOTES = """
extern "C" __global__ void k(const int* a, unsigned* o) {
  int t = threadIdx.x, v = a[t];
  unsigned* p = o + t * 10;
  p[0] = __ballot_sync(~0u, v & 1); p[1] = __any_sync(~0u, v > 90); p[2] = __all_sync(~0u, v >= 0);
  p[3] = __match_any_sync(~0u, v % 4);
  int same; p[4] = __match_all_sync(~0u, t / 32 ? 5 : v, &same); p[5] = same;
  p[6] = __reduce_add_sync(~0u, v); p[7] = __reduce_min_sync(~0u, v - 50);
  if (v % 3 == 0) { p[8] = __activemask(); p[9] = __popc(__ballot_sync(__activemask(), v & 1)); }
}
"""


def test_votes_matches_and_reductions() -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(0, 100, 64).astype(np.int32)
    out = np.zeros((64, 10), np.uint32)
    launch(compile_ptx(VOTES), {"a": a, "o": out}, block=(64, 1, 1))
    for t in range(64):
        mine = a[t // 32 * 32 : t // 32 * 32 + 32]

        def mask(flags: NDArray[Any]) -> int:
            return sum(1 << n for n, f in enumerate(flags) if f)

        third = mine % 3 == 0
        wanted = [
            mask(mine & 1), (mine > 90).any(), 1, mask(mine % 4 == a[t] % 4), 0xFFFFFFFF if t >= 32 else 0, t >= 32,
            mine.sum(), (int(mine.min()) - 50) & 0xFFFFFFFF,
            mask(third) if a[t] % 3 == 0 else 0, int((mine[third] & 1).sum()) if a[t] % 3 == 0 else 0,
        ]  # fmt: skip
        assert out[t].tolist() == [int(w) for w in wanted]


REVERSE = """
extern "C" __global__ void k(const int* a, int* o) {
  extern __shared__ int s[];
  int t = threadIdx.x, n = blockDim.x;
  s[t] = a[blockIdx.x * n + t];
  BARRIER
  o[blockIdx.x * n + t] = s[n - 1 - t];
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_orders_the_block(schedule: int) -> None:
    a = np.arange(768, dtype=np.int32)
    out = np.zeros(768, np.int32)
    source = REVERSE.replace("BARRIER", "__syncthreads();")
    report = launch(
        compile_ptx(source),
        {"a": a, "o": out},
        grid=(6, 1, 1),
        block=(128, 1, 1),
        shared=512,
        options={"schedule": schedule},
    )
    np.testing.assert_array_equal(out.reshape(6, 128), a.reshape(6, 128)[:, ::-1])
    assert report.ok
    assert report.counters.barriers == 6 * 4


def test_a_missing_barrier_shows_as_race_and_in_some_schedule_as_wrong_numbers() -> None:
    a = np.arange(128, dtype=np.int32)
    ptx = compile_ptx(REVERSE.replace("BARRIER", ""))
    wrong = 0
    for schedule in SCHEDULES:
        out = np.zeros(128, np.int32)
        report = launch(ptx, {"a": a, "o": out}, block=(128, 1, 1), shared=512, options={"schedule": schedule})
        assert "race" in {h.kind for h in report.hazards}
        wrong += not np.array_equal(out, a[::-1])
    assert wrong, "every schedule hid the missing barrier"


NAMED = """
extern "C" __global__ void k(int* o) {
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t < 64) { s[t] = t; asm volatile("bar.sync 1, 64;" ::: "memory"); o[t] = s[63 - t]; }
  else { asm volatile("bar.sync 2, 32;" ::: "memory"); o[t] = t; }
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_named_barriers(schedule: int) -> None:
    out = np.zeros(96, np.int32)
    report = launch(compile_ptx(NAMED), {"o": out}, block=(96, 1, 1), options={"schedule": schedule})
    assert out.tolist() == [*range(63, -1, -1), *range(64, 96)]
    assert report.ok


PRODUCER = """
extern "C" __global__ void k(int* o) {
  __shared__ int s[2][32];
  int t = threadIdx.x, lane = t % 32;
  for (int i = 0; i < 8; i++) {
    if (t < 32) {
      if (i >= 2) asm volatile("bar.sync %0, 64;" :: "r"(3 + i % 2) : "memory");
      s[i % 2][lane] = 100 * i + lane;
      asm volatile("bar.arrive %0, 64;" :: "r"(1 + i % 2) : "memory");
    } else {
      asm volatile("bar.sync %0, 64;" :: "r"(1 + i % 2) : "memory");
      o[32 * i + lane] = s[i % 2][31 - lane];
      if (i < 6) asm volatile("bar.arrive %0, 64;" :: "r"(3 + i % 2) : "memory");
    }
  }
}
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_producer_and_consumer_take_turns_by_arrive_and_sync(schedule: int) -> None:
    out = np.zeros((8, 32), np.int32)
    report = launch(compile_ptx(PRODUCER), {"o": out}, block=(64, 1, 1), options={"schedule": schedule})
    np.testing.assert_array_equal(out, 100 * np.arange(8)[:, None] + np.arange(31, -1, -1))
    assert report.ok, report.hazards


def test_barrier_reductions() -> None:
    source = """extern "C" __global__ void k(int* o) { int t = threadIdx.x;
      o[t] = __syncthreads_count(t % 3 == 0); o[64 + t] = __syncthreads_and(t < 64);
      o[128 + t] = __syncthreads_or(t == 77); }"""
    out = np.zeros((3, 64), np.int32)
    launch(compile_ptx(source), {"o": out}, block=(64, 1, 1))
    assert (out == np.array([[22], [1], [0]])).all()


def test_lanes_of_one_warp_meet_at_a_warp_barrier() -> None:
    source = """extern "C" __global__ void k(int* o) {
      __shared__ int s[32]; int t = threadIdx.x;
      if (t % 2) { int v = t; for (int i = 0; i < t; i++) v = v * 3 + 1; s[t] = v; } else s[t] = -t;
      __syncwarp(); o[t] = s[t ^ 1]; }"""
    out = np.zeros(32, np.int32)
    report = launch(compile_ptx(source), {"o": out})
    assert out[1::2].tolist() == [-t for t in range(0, 32, 2)]
    assert report.ok, report.hazards


ATOMICS = """
extern "C" __global__ void k(int* total, unsigned* order, float* real, unsigned* bits, int* extremes, unsigned* ring) {
  __shared__ int local;
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  if (threadIdx.x == 0) local = 0;
  __syncthreads();
  atomicAdd(&local, t);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(total, local);
  unsigned place = atomicAdd(&ring[0], 1u); order[place] = t;
  atomicAdd(real, 0.5f);
  atomicOr(bits, 1u << t % 32); atomicXor(bits + 1, 1u << t % 32); atomicAnd(bits + 2, ~(1u << t % 7));
  atomicMax(extremes, t * 7 % 101); atomicMin(extremes + 1, -t); atomicInc(&ring[1], 9u); atomicDec(&ring[2], 4u);
  unsigned old, seen = ring[3]; do { old = seen; seen = atomicCAS(&ring[3], old, old * 5 + 1); } while (seen != old);
  atomicExch(&ring[4], 77u);
}
"""


@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_atomics(schedule: int) -> None:
    arrays = {
        "total": np.zeros(1, np.int32), "order": np.zeros(160, np.uint32), "real": np.zeros(1, np.float32),
        "bits": np.array([0, 0, 0xFF], np.uint32), "extremes": np.zeros(2, np.int32), "ring": np.zeros(5, np.uint32),
    }  # fmt: skip
    launch(
        compile_ptx(ATOMICS), arrays, grid=(4, 1, 1), block=(40, 1, 1), options={"schedule": schedule, "races": False}
    )
    assert arrays["total"][0] == sum(range(160))
    assert sorted(arrays["order"].tolist()) == list(range(160))
    assert arrays["real"][0] == 80.0
    assert arrays["bits"].tolist() == [0xFFFFFFFF, 0xFFFFFFFF if 160 // 32 % 2 else 0, 0x80]
    assert arrays["extremes"].tolist() == [max(t * 7 % 101 for t in range(160)), -159]
    value = 0
    for _ in range(160):
        value = (value * 5 + 1) & 0xFFFFFFFF
    down = 0
    for _ in range(160):
        down = 4 if down == 0 or down > 4 else down - 1
    assert arrays["ring"].tolist() == [160, 0, down, value, 77]


ASSERT = """
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
#define assert(x) ((x) ? (void)0 : __assertfail(#x, __FILE__, __LINE__, __func__, 1))
"""

HANDSHAKE = """
extern "C" __global__ void k(volatile int* flags, int* o) {
  if (threadIdx.x == 0) {
    if (blockIdx.x > 0) while (flags[blockIdx.x - 1] == 0) {}
    o[blockIdx.x] = blockIdx.x == 0 ? 1 : o[blockIdx.x - 1] * 2;
    __threadfence();
    if (blockIdx.x != BROKEN) flags[blockIdx.x] = 1;
  }
}
"""


@pytest.mark.parametrize("schedule", [0, 1, 2, 3])
def test_blocks_that_wait_for_other_blocks_get_there(schedule: int) -> None:
    out = np.zeros(20, np.int32)
    ptx = compile_ptx(HANDSHAKE.replace("BROKEN", "-1"))
    arrays = {"flags": np.zeros(20, np.int32), "o": out}
    launch(ptx, arrays, grid=(20, 1, 1), block=(1024, 1, 1), options={"schedule": schedule, "races": False})
    assert out.tolist() == [1 << n for n in range(20)]


def test_a_flag_that_nobody_sets_is_a_deadlock() -> None:
    ptx = compile_ptx(HANDSHAKE.replace("BROKEN", "7"))
    arrays = {"flags": np.zeros(20, np.int32), "o": np.zeros(20, np.int32)}
    with pytest.raises(KernelFault, match=r"spins at test\.cu:4") as caught:
        launch(ptx, arrays, grid=(20, 1, 1), block=(64, 1, 1), options={"races": False})
    assert caught.value.hazard.kind == "deadlock"


def test_a_spin_inside_a_block_lets_the_others_run() -> None:
    source = """extern "C" __global__ void k(int* o) { __shared__ volatile int flag; int w = threadIdx.x / 32;
      if (threadIdx.x == 0) flag = 0; __syncthreads();
      if (w == 0) { while (flag == 0) {} o[0] = 1; } else if (w == 1) { flag = 1; } }"""
    out = np.zeros(1, np.int32)
    launch(compile_ptx(source), {"o": out}, block=(64, 1, 1), options={"races": False})
    assert out[0] == 1


def test_half_of_the_warps_missing_at_a_barrier_is_a_deadlock() -> None:
    body = """.reg .b32 t; .reg .pred p; mov.u32 t, %tid.x; setp.lt.u32 p, t, 64; @p bar.sync 1, 128;
    @!p bar.sync 2, 128;"""
    with pytest.raises(
        KernelFault, match=r"warps 0-1 of block 0 waits at barrier 1.*warps 2-3 of block 0 waits at barrier 2"
    ):
        launch(entry(body), {}, block=(128, 1, 1))


def test_a_barrier_that_some_threads_of_a_warp_skip_is_reported() -> None:
    body = """.reg .b32 t, v; .reg .b64 at; .reg .pred p; mov.u32 t, %tid.x; mad.wide.u32 at, t, 4, o; and.b32 v, t, 1;
    setp.eq.u32 p, v, 1; @p bra ODD; bar.sync 0; mov.u32 v, 7; bra.uni END; ODD: bar.sync 0; mov.u32 v, 9;
    END: st.global.u32 [at], v;"""
    out = np.zeros(64, np.int32)
    report = launch(entry(body, ["o"]), {"o": out}, block=(64, 1, 1))
    assert out.tolist() == [7, 9] * 32
    assert {h.kind for h in report.hazards} == {"divergent-barrier"}


def test_exited_threads_do_not_hold_up_a_barrier_but_are_reported() -> None:
    source = """extern "C" __global__ void k(int* o, int n) {
      int t = threadIdx.x; if (t >= n) return; __syncthreads(); o[t] = t; }"""
    out = np.zeros(128, np.int32)
    report = launch(compile_ptx(source), {"o": out}, np.int32(70), block=(128, 1, 1))
    assert out.tolist() == [*range(70), *[0] * 58]
    assert {h.kind for h in report.hazards} == {"divergent-barrier"}


def test_a_trap_ends_the_kernel() -> None:
    source = 'extern "C" __global__ void k(int* o) { if (threadIdx.x == 5) __trap(); o[threadIdx.x] = 1; }'
    with pytest.raises(KernelFault, match=r"thread \(5, 0, 0\) of block 0 executes") as caught:
        launch(compile_ptx(source), {"o": np.zeros(32, np.int32)})
    assert caught.value.hazard.where == "test.cu:1"


def test_endless_arithmetic_is_noticed() -> None:
    body = ".reg .b32 v; mov.u32 v, 0; LOOP: and.b32 v, v, 255; add.u32 v, v, 1; bra LOOP;"
    with pytest.raises(KernelFault, match="spins"):
        launch(entry(body), {})


def test_a_kernel_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STEP_LIMIT", 3000)
    body = ".reg .b32 v; LOOP: mov.u32 v, %clock; bra LOOP;"
    with pytest.raises(KernelFault, match="3,000 steps without a store") as caught:
        launch(entry(body), {})
    assert caught.value.hazard.kind == "step-limit"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_any_size_meet_at_barriers(schedule: int) -> None:
    source = REVERSE.replace("BARRIER", "__syncthreads();")
    for size in (1, 31, 33, 40, 95):
        a, out = np.arange(3 * size, dtype=np.int32), np.zeros(3 * size, np.int32)
        report = launch(
            compile_ptx(source), {"a": a, "o": out}, grid=(3, 1, 1), block=(size, 1, 1), shared=4 * size,
            options={"schedule": schedule},
        )  # fmt: skip
        np.testing.assert_array_equal(out.reshape(3, size), a.reshape(3, size)[:, ::-1])
        assert report.ok


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


def test_a_failed_assertion_ends_the_kernel() -> None:
    source = """
      extern "C" __global__ void k(int* o) { assert(o[threadIdx.x] == 0); o[threadIdx.x] = 1; }"""
    ptx = compile_ptx(ASSERT + source)
    out = np.zeros(32, np.int32)
    launch(ptx, {"o": out})
    assert out.all()
    with pytest.raises(KernelFault, match=r"thread \(0, 0, 0\)"):
        launch(ptx, {"o": out})


def test_lanes_that_store_the_same_value_to_one_place_do_not_race() -> None:
    source = """extern "C" __global__ void k(int* o, int v) { if (threadIdx.x < 8) *o = VALUE; }"""
    for value, kinds in (("v", set()), ("v + threadIdx.x", {"race"})):
        report = launch(compile_ptx(source.replace("VALUE", value)), {"o": np.zeros(1, np.int32)}, np.int32(5))
        assert {h.kind for h in report.hazards} == kinds


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
