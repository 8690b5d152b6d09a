"""mbarriers: phases, transaction counts, waits by parity and by state, misuse, and deadlocks that say who waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.emulator import KernelFault, Report
from support.ptx_tools import Options, compile_ptx, launch

PRELUDE = """
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(unsigned b, unsigned n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n));
}
__device__ void inval(unsigned b) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(b)); }
__device__ void arrive(unsigned b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b) : "memory"); }
__device__ unsigned long long arrive_state(unsigned b, unsigned n) {
  unsigned long long s;
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], %2;" : "=l"(s) : "r"(b), "r"(n) : "memory");
  return s;
}
__device__ void drop(unsigned b) { asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(b) : "memory"); }
__device__ void expect(unsigned b, unsigned n) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
__device__ void complete(unsigned b, unsigned n) {
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
__device__ void arrive_expect(unsigned b, unsigned n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"(n) : "memory");
}
__device__ bool try_wait(unsigned b, unsigned parity) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
    : "=r"(done) : "r"(b), "r"(parity) : "memory");
  return done;
}
__device__ bool test_wait(unsigned b, unsigned long long state) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
    : "=r"(done) : "r"(b), "l"(state) : "memory");
  return done;
}
__device__ void wait(unsigned b, unsigned parity) { while (!try_wait(b, parity)) {} }
"""

# Warp 0 fills a ring of two slots, warp 1 empties it.
RING = """
extern "C" __global__ void k(const int* a, int* o, int steps) {
  __shared__ int s[2][32];
  __shared__ __align__(8) unsigned long long full[2], empty[2];
  int lane = threadIdx.x % 32, role = threadIdx.x / 32;
  if (threadIdx.x == 0) for (int i = 0; i < 2; i++) { init(address(&full[i]), 32); init(address(&empty[i]), 32); }
  __syncthreads();
  for (int i = 0; i < steps; i++) {
    int slot = i % 2, phase = i / 2 % 2;
    if (role == 0) {
      WAIT_EMPTY
      s[slot][lane] = a[i * 32 + lane];
      arrive(address(&full[slot]));
    } else {
      WAIT_FULL
      o[i * 32 + lane] = s[slot][31 - lane];
      arrive(address(&empty[slot]));
    }
  }
}
"""
RIGHT = {"WAIT_EMPTY": "wait(address(&empty[slot]), phase ^ 1);", "WAIT_FULL": "wait(address(&full[slot]), phase);"}


def run(body: str, *arrays: np.ndarray, values: tuple[Any, ...] = (), **geometry: Any) -> Report:
    """Launch a kernel ``k`` on arrays named by their position."""
    return launch(compile_ptx(PRELUDE + body), {f"a{n}": a for n, a in enumerate(arrays)}, *values, **geometry)


def ring(changes: dict[str, str], options: Options) -> tuple[Report, bool]:
    """Return the ring with these waits: the report, and whether its numbers are right."""
    source = RING
    for name, text in changes.items():
        source = source.replace(name, text)
    a = np.arange(7 * 32, dtype=np.int32)
    out = np.zeros_like(a)
    report = run(source, a, out, values=(np.int32(7),), block=(64, 1, 1), options=options)
    return report, np.array_equal(out.reshape(7, 32), a.reshape(7, 32)[:, ::-1])


@pytest.mark.parametrize("schedule", range(5))
def test_a_ring_of_full_and_empty_barriers(schedule: int) -> None:
    report, right = ring(RIGHT, {"schedule": schedule})
    assert right
    assert report.ok, report.hazards


def test_a_wait_with_the_wrong_parity_is_a_deadlock_that_shows_every_barrier() -> None:
    wrong = RIGHT | {"WAIT_EMPTY": "wait(address(&empty[slot]), phase);"}
    with pytest.raises(KernelFault) as caught:
        ring(wrong, {})
    message = str(caught.value)
    assert caught.value.hazard.kind == "deadlock"
    assert "warp 0 of block (0, 0, 0) waits for parity 0 of the mbarrier at byte" in message
    assert "warp 1 of block (0, 0, 0) waits for parity 0 of the mbarrier at byte" in message
    assert message.count("phase 0, 32 of 32 arrivals pending, 0 B to come") == 4


PHASES = """
extern "C" __global__ void k(unsigned* o) {
  __shared__ __align__(8) unsigned long long b;
  unsigned at = address(&b);
  if (threadIdx.x) return;
  init(at, 3);
  o[0] = try_wait(at, 1);                        // a fresh barrier passes parity 1
  unsigned long long s = arrive_state(at, 2);
  unsigned pending;
  asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(s));
  o[1] = pending;                                // the state before the arrive
  o[2] = test_wait(at, s);
  expect(at, 48);
  arrive(at);
  o[3] = test_wait(at, s);                       // all have arrived, 48 bytes have not
  complete(at, 32);
  o[4] = test_wait(at, s);
  complete(at, 16);
  o[5] = test_wait(at, s);
  o[6] = try_wait(at, 0);
  drop(at);                                      // the open phase has two to come, later ones await two
  complete(at, 64);                              // bytes may come before they are expected
  arrive(at);
  arrive_expect(at, 64);
  o[7] = try_wait(at, 1);
  s = arrive_state(at, 1);
  arrive(at);
  o[8] = test_wait(at, s);
  inval(at);
  init(at, 1);
  arrive(at);
  o[9] = try_wait(at, 0);
}
"""


def test_phases_states_and_transaction_counts() -> None:
    out = np.full(10, 9, np.uint32)
    report = run(PHASES, out)
    assert out.tolist() == [1, 3, 0, 0, 0, 1, 1, 1, 1, 1]
    assert report.ok, report.hazards


MISUSE = {
    "that is live since": "init(at, 1); init(at, 1);",
    "where no mbarrier was initialised": "arrive(at);",
    "for 0 arrivals": "init(at, 0);",
    "out of its range": "init(at, 2); for (int i = 0; i < 9; i++) expect(at, 1 << 17);",
    "before any thread has observed the end of phase 0": "init(at, 1); arrive(at); arrive(at);",
    "writes 4 bytes at b + 4 B": "init(at, 1); ((volatile unsigned*)&b)[1] = 0;",
    "reads 8 bytes at b + 0 B": "init(at, 1); o[0] = (unsigned)*(volatile unsigned long long*)&b;",
    "arrives 2 times": "init(at, 1); arrive_state(at, 2);",
    "which .noComplete rules out": """init(at, 1);
      asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 _, [%0], 1;" :: "r"(at));""",
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_reported_once_and_says_what(what: str) -> None:
    source = f"""
    extern "C" __global__ void k(unsigned* o) {{
      __shared__ __align__(8) unsigned long long b;
      unsigned at = address(&b);
      if (threadIdx.x == 0) {{ {MISUSE[what]} o[0] = at; }}
    }}"""
    report = run(source, np.zeros(1, np.uint32))
    hazard = report.hazards[0]
    assert hazard.kind == "mbarrier"
    assert what in hazard.message.replace("k::", "")
    assert not report.ok


@pytest.mark.parametrize(
    ("offset", "kind"), [(4, "misaligned"), (1 << 20, "out-of-bounds")], ids=["misaligned", "outside"]
)
def test_addresses_of_no_barrier_end_the_kernel(offset: int, kind: str) -> None:
    source = f"""
    extern "C" __global__ void k(unsigned* o) {{
      __shared__ __align__(8) unsigned long long b[2];
      init(address(b) + {offset}, 1);
    }}"""
    with pytest.raises(KernelFault, match="names an mbarrier at") as caught:
        run(source, np.zeros(1, np.uint32))
    assert caught.value.hazard.kind == kind


SPIN = """
extern "C" __global__ void k(int* o) {
  __shared__ __align__(8) unsigned long long b;
  unsigned at = address(&b);
  if (threadIdx.x == 0) init(at, 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    unsigned tries = 0;
    while (!try_wait(at, 0)) if (++tries == 3) break;
    o[threadIdx.x] = tries;
  } ELSE
}
"""


def test_a_wait_that_nobody_answers_gives_up_as_on_hardware() -> None:
    out = np.zeros(32, np.int32)
    with pytest.raises(KernelFault, match="no warp can run"):
        run(SPIN.replace("ELSE", "").replace("if (++tries == 3) break", "tries++"), out, block=(32, 1, 1))
    report = run(SPIN.replace("ELSE", "else if (threadIdx.x == 32) arrive(at);"), out, block=(64, 1, 1))
    assert report.ok, report.hazards
    assert not out.any()


COPIES = """
extern "C" __global__ void k(const int* a, int* o) {
  __shared__ __align__(16) int s[128];
  __shared__ __align__(8) unsigned long long b;
  unsigned at = address(&b);
  int t = threadIdx.x;
  if (t == 0) init(at, COUNT);
  __syncthreads();
  if (t < 32) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(address(s + 4 * t)), "l"(a + 4 * t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.NOINC.shared::cta.b64 [%0];" :: "r"(at) : "memory");
    OWN
  }
  wait(at, 0);
  o[t] = s[127 - t];
}
"""


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("count", "noinc", "own"), [(32, "noinc.", ""), (32, "", "arrive(at);")])
def test_copies_of_threads_arrive_when_they_have_landed(count: int, noinc: str, own: str, *, late: bool) -> None:
    source = COPIES.replace("COUNT", str(count)).replace("NOINC.", noinc).replace("OWN", own)
    a = np.arange(128, dtype=np.int32)
    out = np.zeros_like(a)
    report = run(source, a, out, block=(128, 1, 1), options={"late_copies": late})
    np.testing.assert_array_equal(out, a[::-1])
    assert report.ok, report.hazards


def test_waits_and_arrivals_are_counted() -> None:
    # Two warps: 7 rounds, in each of which both wait and all 32 threads of both arrive.
    counters = ring(RIGHT, {})[0].counters
    assert (counters.mbarrier_waits, counters.mbarrier_arrivals) == (2 * 7, 2 * 7 * 32)
    # A wait that times out and is tried again counts once.
    body = SPIN.replace("ELSE", "").replace("tries == 3", "tries == 1").replace("break", "arrive(at)")
    counters = run(body, np.zeros(32, np.int32), block=(1, 1, 1)).counters
    assert (counters.mbarrier_waits, counters.mbarrier_arrivals) == (1, 1)
    # Every test counts.
    counters = run(PHASES, np.zeros(10, np.uint32)).counters
    assert (counters.mbarrier_waits, counters.mbarrier_arrivals) == (9, 8)
