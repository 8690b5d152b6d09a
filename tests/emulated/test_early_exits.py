"""Threads that have returned at barriers: whole warps are silent, a part of a warp is a note, a count still waits."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import KernelFault, Report
from support.ptx_tools import compile_ptx, launch

SCHEDULES = [0, 1, 2, 3, 4]
# The threads from n on return; the others exchange values across the barriers that all kernels here have.
EXCHANGE = """
extern "C" __global__ void k(int* o, int n) {
  __shared__ int s[128];
  const int t = threadIdx.x;
  BEFORE
  if (t >= n) return;
  #pragma unroll 1
  for (int round = 0; round < 3; round++) {
    s[t] = t + round;
    BARRIER
    o[t] = s[n - 1 - t];
    BARRIER
  }
}
"""


def exchanged(n: int, *, schedule: int = 0, barrier: str = "__syncthreads();", before: str = "") -> Report:
    """Return the report of a launch of 128 threads, of which ``n`` stay to the end."""
    out = np.zeros(128, np.int32)
    source = EXCHANGE.replace("BARRIER", barrier).replace("BEFORE", before)
    ptx = compile_ptx(source)
    report = launch(ptx, {"o": out}, np.int32(n), block=(128, 1, 1), options={"schedule": schedule})
    assert out.tolist() == [n + 1 - t for t in range(n)] + [0] * (128 - n)
    return report


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("n", [32, 64, 96])
def test_whole_warps_that_have_returned_are_silent(n: int, schedule: int) -> None:
    assert exchanged(n, schedule=schedule).hazards == ()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("n", [1, 40, 127])
def test_a_part_of_a_warp_is_a_note_for_each_barrier(n: int, schedule: int) -> None:
    report = exchanged(n, schedule=schedule)
    assert report.ok
    assert [(h.severity, h.kind) for h in report.hazards] == [("note", "early-exit")] * 2
    assert f"thread ({n}, 0, 0) of block (0, 0, 0) had ended" in report.hazards[0].message


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_warp_did_before_it_returned_is_ordered(schedule: int) -> None:
    text = """extern "C" __global__ void k(int* o) {
      __shared__ int s[64]; const int t = threadIdx.x; s[t] = t;
      if (t >= 32) return;
      __syncthreads(); o[t] = s[t + 32]; }"""
    out = np.zeros(32, np.int32)
    report = launch(compile_ptx(text), {"o": out}, block=(64, 1, 1), options={"schedule": schedule})
    assert out.tolist() == [*range(32, 64)]
    assert report.hazards == ()


def test_a_vote_of_the_block_leaves_out_who_has_returned() -> None:
    text = """extern "C" __global__ void k(int* o, int n) {
      const int t = threadIdx.x; if (t >= n) return;
      o[t] = __syncthreads_count(t % 2) + 100 * __syncthreads_and(t < n); }"""
    out = np.zeros(128, np.int32)
    report = launch(compile_ptx(text), {"o": out}, np.int32(64), block=(128, 1, 1))
    assert out.tolist() == [132] * 64 + [0] * 64
    assert report.hazards == ()


@pytest.mark.parametrize("n", [64, 96])
def test_a_barrier_for_a_number_of_threads_waits_for_them(n: int) -> None:
    with pytest.raises(KernelFault, match=r"no warp can run; warps 0-\d of block \(0, 0, 0\) waits at barrier 1"):
        exchanged(n, barrier='asm volatile("bar.sync 1, 128;" ::: "memory");')


def test_a_barrier_for_those_that_are_left_opens() -> None:
    assert exchanged(64, barrier='asm volatile("bar.sync 1, 64;" ::: "memory");').hazards == ()
    report = exchanged(40, barrier='asm volatile("bar.sync 1, 64;" ::: "memory");')
    assert [(h.severity, h.kind) for h in report.hazards] == [("note", "early-exit")] * 2


def test_threads_that_have_gone_another_way_are_an_error() -> None:
    elsewhere = 'if (t % 2 && t < n) { asm volatile("bar.sync 0;" ::: "memory"); } else __syncthreads();'
    report = exchanged(128, before=elsewhere)
    assert not report.ok
    assert {(h.severity, h.kind) for h in report.hazards} == {("error", "divergent-barrier")}
