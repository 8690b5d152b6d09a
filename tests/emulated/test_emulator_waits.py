"""Threads that wait for each other: barriers of blocks and warps, atomics, spins, and waits that nobody answers."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import KernelFault
from support.ptx_tools import compile_ptx, entry, launch

SCHEDULES = [0, 1, 2, 3, 4]

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
  unsigned slot = atomicAdd(&ring[0], 1u); order[slot] = t;
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


@pytest.mark.parametrize("schedule", [0, 1, 2, 3])
def test_blocks_that_pass_barriers_while_they_wait_for_a_lock_get_there(schedule: int) -> None:
    source = """extern "C" __global__ void k(int* lock, volatile int* o) { __shared__ volatile int taken;
      do { __syncthreads(); if (threadIdx.x == 0) taken = atomicCAS(lock, 0, 1); __syncthreads(); } while (taken);
      if (threadIdx.x == 0) { __threadfence(); *o = *o * 2 + 1; __threadfence(); }
      __syncthreads(); if (threadIdx.x == 0) atomicExch(lock, 0); }"""
    arrays = {"lock": np.zeros(1, np.int32), "o": np.zeros(1, np.int32)}
    launch(compile_ptx(source), arrays, grid=(20, 1, 1), block=(64, 1, 1), options={"schedule": schedule})
    assert arrays["o"][0] == (1 << 20) - 1


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
        KernelFault,
        match=r"warps 0-1 of block \(0, 0, 0\) waits at barrier 1.*warps 2-3 of block \(0, 0, 0\) waits at barrier 2",
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
