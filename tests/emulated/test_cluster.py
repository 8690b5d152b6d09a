"""Thread block clusters: ranks, shared memory of other blocks, cluster barriers, mbarriers across blocks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from matmill.emulator import KernelFault, Memory, Report, run
from matmill.launch import Dim3, Launch
from support.ptx_tools import Options, compile_ptx

PRELUDE = """
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned rank() { unsigned r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ unsigned map(unsigned a, unsigned r) {
  unsigned m; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(r)); return m;
}
__device__ int* map(int* p, unsigned r) {
  unsigned long long m; asm("mapa.u64 %0, %1, %2;" : "=l"(m) : "l"((unsigned long long)p), "r"(r)); return (int*)m;
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
"""
SCHEDULES = range(4)


def emulate(
    body: str, *arrays: np.ndarray[Any, Any], grid: Dim3, block: Dim3 = (32, 1, 1), cluster: Dim3 = (1, 1, 1),
    options: Options | None = None,
) -> Report:  # fmt: skip
    """Launch a kernel ``k`` with clusters."""
    memory = Memory()
    pointers = tuple(memory.bind(f"a{n}", array, access="rw") for n, array in enumerate(arrays))
    launch = Launch("k", "k", grid, block, pointers, cluster=cluster)
    return run(compile_ptx(PRELUDE + body), launch, memory, **(options or {}))


NAMES = ("clusterid.x", "clusterid.y", "nclusterid.x", "nclusterid.y", "cluster_ctaid.x", "cluster_ctaid.y",
         "cluster_nctaid.x", "cluster_nctaid.y", "cluster_ctarank", "cluster_nctarank")  # fmt: skip
READ = "\n".join(
    f'asm("mov.u32 %0, %%{name};" : "=r"(v)); if (threadIdx.x == 0) o[{n}] = v;' for n, name in enumerate(NAMES)
)
REGISTERS = f"""
extern "C" __global__ void k(unsigned* o) {{
  unsigned v; o += (blockIdx.y * gridDim.x + blockIdx.x) * {len(NAMES)};
  {READ}
}}"""


def test_special_registers_of_a_grid_of_clusters() -> None:
    out = np.zeros((4, 6, len(NAMES)), np.uint32)
    emulate(REGISTERS, out, grid=(6, 4, 1), cluster=(3, 2, 1))
    for y, x in np.ndindex(4, 6):
        within = (x % 3, y % 2)
        assert out[y, x].tolist() == [x // 3, y // 2, 2, 2, *within, 3, 2, within[0] + 3 * within[1], 6]


def test_the_blocks_of_a_cluster_may_be_given_by_the_kernel() -> None:
    body = REGISTERS.replace("void k", "void __cluster_dims__(2, 1, 1) k")
    out = np.zeros((1, 4, len(NAMES)), np.uint32)
    emulate(body, out, grid=(4, 1, 1))
    assert out[0, :, 8].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("grid", "cluster", "wanted"),
    [
        ((3, 1, 1), (2, 1, 1), "a divisor"),
        ((32, 1, 1), (32, 1, 1), ".*16 blocks at most"),
        ((4, 1, 1), (0, 1, 1), "a div"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(grid: Dim3, cluster: Dim3, wanted: str) -> None:
    with pytest.raises(Exception, match=f"launch.cluster: got .* wanted {wanted}"):
        emulate(REGISTERS, np.zeros((math.prod(grid), len(NAMES)), np.uint32), grid=grid, cluster=cluster)


EXCHANGE = """
extern "C" __global__ void k(const int* a, int* o) {
  __shared__ int s[64], t[64];
  int i = threadIdx.x, n = CLUSTER, at = blockIdx.x * 64 + i;
  s[i] = a[at];
  t[i] = 0;
  arrive(); wait();
  unsigned next = (rank() + 1) % n;
  int v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(map(address(s + (i ^ 1)), next)) : "memory");
  *map(t + 63 - i, next) = v;                               // generic addresses reach the other block too
  arrive(); wait();
  atomicAdd(map(t + i, rank()), 1000);                      // and its own by its rank
  arrive(); wait();
  o[at] = t[i];
}
"""


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loads_stores_and_atomics_on_the_memory_of_other_blocks(size: int, schedule: int) -> None:
    a = np.arange(8 * 64, dtype=np.int32).reshape(8, 64)
    out = np.zeros_like(a)
    options: Options = {"schedule": schedule}
    report = emulate(
        EXCHANGE.replace("CLUSTER", str(size)), a, out, grid=(8, 1, 1), block=(64, 1, 1), cluster=(size, 1, 1),
        options=options,
    )  # fmt: skip
    blocks = np.arange(8)
    base = blocks - blocks % size
    before = base + (blocks - base - 1) % size
    after = base + (before - base + 1) % size
    want = a[after][:, np.arange(64) ^ 1][:, ::-1] + 1000
    np.testing.assert_array_equal(out, want)
    assert report.ok, report.hazards


VECTORS = """
extern "C" __global__ void k(const float4* a, float4* o) {
  __shared__ float4 s[32];
  int i = threadIdx.x;
  s[i] = a[blockIdx.x * 32 + i];
  arrive(); wait();
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(map(address(s + i), rank() ^ 1)) : "memory");
  o[blockIdx.x * 32 + i] = v;
  arrive(); wait();
}
"""


def test_vectors_of_another_block_are_not_the_own_ones() -> None:
    a = np.arange(4 * 128, dtype=np.float32).reshape(4, 128)
    out = np.zeros_like(a)
    assert emulate(VECTORS, a, out, grid=(4, 1, 1), block=(32, 1, 1), cluster=(2, 1, 1)).ok
    np.testing.assert_array_equal(out, a[[1, 0, 3, 2]])


def test_an_address_of_a_rank_that_does_not_exist_is_out_of_bounds() -> None:
    body = """
    extern "C" __global__ void k(int* o) {
      __shared__ int s[4];
      asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(map(address(s), 2)), "r"(1) : "memory");
    }"""
    with pytest.raises(KernelFault) as caught:
        emulate(body, np.zeros(1, np.int32), grid=(2, 1, 1), cluster=(2, 1, 1))
    assert caught.value.hazard.kind == "out-of-bounds"


RANKS = """
extern "C" __global__ void k(unsigned* o) {
  __shared__ int s[4];
  unsigned r;
  asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(r) : "r"(map(address(s), threadIdx.x % 4)));
  o[blockIdx.x * 32 + threadIdx.x] = r;
}"""


def test_the_rank_of_an_address() -> None:
    out = np.zeros((4, 32), np.uint32)
    emulate(RANKS, out, grid=(4, 1, 1), cluster=(4, 1, 1))
    assert (out == np.arange(32) % 4).all()


REMOTE = """
extern "C" __global__ void k(int* o) {
  __shared__ __align__(8) unsigned long long b;
  __shared__ int s;
  unsigned at = address(&b), done = 0;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  arrive(); wait();
  if (threadIdx.x == 0)
    for (int r = 0; r < 2; r++)
      asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(map(at, r)) : "memory");
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;"
                 "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
  o[blockIdx.x * 32 + threadIdx.x] = rank();
  LAST
}"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrivals_at_the_mbarriers_of_other_blocks(schedule: int) -> None:
    out = np.full((6, 32), -1, np.int32)
    report = emulate(
        REMOTE.replace("LAST", "arrive(); wait();"),
        out,
        grid=(6, 1, 1),
        cluster=(2, 1, 1),
        options={"schedule": schedule},
    )
    assert (out == np.arange(6)[:, None] % 2).all()
    assert report.ok, report.hazards


RELAXED = REMOTE.replace("arrive(); wait();", "relaxed(); wait();", 1).replace("LAST", "arrive(); wait();")
RELAXED = '__device__ void relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }' + RELAXED


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fence_publishes_initialised_barriers_by_a_relaxed_arrival(schedule: int) -> None:
    report = emulate(
        RELAXED, np.zeros((2, 32), np.int32), grid=(2, 1, 1), cluster=(2, 1, 1), options={"schedule": schedule}
    )
    assert report.ok, report.hazards


@pytest.mark.parametrize(
    "changed",
    [
        RELAXED.replace("fence.mbarrier_init.release.cluster;", ""),
        # Behind the arrival, and by a thread that has initialised nothing.
        RELAXED.replace("fence.mbarrier_init.release.cluster;", "").replace(
            "relaxed(); wait();", 'relaxed(); asm volatile("fence.mbarrier_init.release.cluster;"); wait();'
        ),
        RELAXED.replace('asm volatile("fence', 'if (threadIdx.x) asm volatile("fence'),
        # Without a wait by the block that arrives at the other's barrier.
        RELAXED.replace("relaxed(); wait();", "relaxed(); if (rank()) wait();"),
    ],
)
def test_a_relaxed_arrival_alone_publishes_no_barriers(changed: str) -> None:
    report = emulate(changed, np.zeros((2, 32), np.int32), grid=(2, 1, 1), cluster=(2, 1, 1))
    assert "mbarrier" in {hazard.kind for hazard in report.hazards}


def test_a_wait_for_a_block_that_never_arrives_is_a_deadlock() -> None:
    body = """
    extern "C" __global__ void k(int* o) {
      if (rank() == 0) arrive();
      if (rank() == 0) wait();
      else while (!*(volatile int*)o) {}
    }"""
    with pytest.raises(KernelFault, match="spins at") as caught:
        emulate(body, np.zeros(1, np.int32), grid=(2, 1, 1), cluster=(2, 1, 1))
    assert "warp 0 of block (0, 0, 0) waits for its cluster" in str(caught.value)


def test_blocks_that_have_ended_are_not_waited_for() -> None:
    body = """
    extern "C" __global__ void k(int* o) {
      if (rank() == 1) return;
      arrive(); wait();
      o[blockIdx.x] = 1;
    }"""
    out = np.zeros(2, np.int32)
    emulate(body, out, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert out.tolist() == [1, 0]


def test_a_second_arrive_before_the_wait_is_reported() -> None:
    body = 'extern "C" __global__ void k(int* o) { arrive(); arrive(); wait(); }'
    report = emulate(body, np.zeros(1, np.int32), grid=(1, 1, 1), options={"schedule": 1})
    assert "arrives again before it has waited" in report.hazards[0].message
