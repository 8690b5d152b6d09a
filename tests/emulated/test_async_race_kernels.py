"""Races at mbarriers and in clusters, planted in kernels: each is found and names both lines, whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from matmill.emulator import Hazard, Memory, run
from matmill.launch import Launch
from support.ptx_tools import compile_ptx

PRELUDE = """
__device__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void init(void* b, unsigned n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(address(b)), "r"(n) : "memory");
}
__device__ void arrive(void* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(b)) : "memory");
}
__device__ void wait(void* b, unsigned parity) {
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(address(b)), "r"(parity) : "memory");
}
__device__ unsigned map(const void* p, unsigned rank) {
  unsigned m; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(m) : "r"(address(p)), "r"(rank)); return m;
}
__device__ void meet() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
"""

# Warp 0 fills a ring of two slots, warps 1 and 2 read what it holds.
RING = """
extern "C" __global__ void k(int* o) {
  __shared__ int s[2][32];
  __shared__ __align__(8) unsigned long long full[2], empty[2];
  int lane = threadIdx.x % 32, role = threadIdx.x / 32;
  if (threadIdx.x == 0) for (int i = 0; i < 2; i++) { init(&full[i], 32); init(&empty[i], 64); }
  __syncthreads();
  for (int i = 0; i < 6; i++) {
    int slot = i % 2, phase = i / 2 % 2;
    if (role == 0) {
      wait(&empty[slot], phase ^ 1);
      s[slot][lane] = i;
      arrive(&full[slot]);
    } else {
      wait(&full[slot], phase);
      o[threadIdx.x] += s[slot][31 - lane];
      if (i < 4) arrive(&empty[slot]);
    }
  }
}
"""
PUBLISH = """
extern "C" __global__ void k(int* o) {
  __shared__ __align__(8) unsigned long long b;
  if (threadIdx.x == 0) init(&b, 32);
  __syncthreads();
  if (threadIdx.x < 32) { o[threadIdx.x] = 1; arrive(&b); }
  else { wait(&b, 0); o[threadIdx.x] = o[threadIdx.x % 32] + 1; }
}
"""
EXCHANGE = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* o) {
  __shared__ int s[96];
  s[threadIdx.x] = threadIdx.x;
  meet();
  int v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(map(s + threadIdx.x, blockIdx.x ^ 1)) : "memory");
  o[threadIdx.x + 96 * blockIdx.x] = v;
  meet();
}
"""
FLAG = """
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(int* o) {
  __shared__ int s, flag;
  if (threadIdx.x == 0) s = flag = 0;
  meet();
  int v = 1;
  if (threadIdx.x == 0 && blockIdx.x == 0) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(map(&s, 1)), "r"(v) : "memory");
    asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" :: "r"(map(&flag, 1)), "r"(v) : "memory");
  } else if (threadIdx.x == 0) {
    do asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];" : "=r"(v) : "r"(address(&flag)) : "memory");
    while (v == 0);
    o[0] = s;
  }
  meet();
}
"""

DEFECTS: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "no last wait on full": (
        RING, "wait(&full[slot], phase);", "if (i < 5) wait(&full[slot], phase);", "race", ("st.shared", "ld.shared"),
    ),
    "no last wait on empty": (RING, "wait(&empty[", "if (i < 5) wait(&empty[", "race", ("st.shared", "ld.shared")),
    "an arrival too few counted": (RING, "&empty[i], 64", "&empty[i], 63", "race", ("st.shared", "ld.shared")),
    "the slot released before it is read": (
        RING, "o[threadIdx.x] += s[slot][31 - lane];\n      if (i < 4) arrive(&empty[slot]);",
        "if (i < 4) arrive(&empty[slot]);\n      o[threadIdx.x] += s[slot][31 - lane];",
        "race", ("st.shared", "ld.shared"),
    ),
    "no barrier after the init": (RING, "__syncthreads();", "", "mbarrier", ("mbarrier.init", "mbarrier.arrive")),
    "global memory before the wait": (PUBLISH, "wait(&b, 0);", "", "race", ("st.global", "ld.global")),
    "no cluster barrier before the read": (
        EXCHANGE, "meet();\n  int v;", "int v;", "race", ("st.shared", "ld.shared::cluster")
    ),
    "a flag that does not release": (
        FLAG, "st.release.cluster", "st.relaxed.cluster", "race", ("st.shared::cluster", "ld.shared")
    ),
    "no cluster barrier at the end": (EXCHANGE, "= v;\n  meet();", "= v;", "cluster", ("ld.shared::cluster", "ret")),
}  # fmt: skip


def hazards(source: str, schedule: int) -> tuple[Hazard, ...]:
    """Return what the emulator reports of one block of three warps, or of a cluster of two such blocks."""
    memory = Memory()
    pointer = memory.bind("o", np.zeros(192, np.int32), access="rw")
    blocks = 2 if "cluster_dims" in source else 1
    launch = Launch("k", "k", (blocks, 1, 1), (96, 1, 1), (pointer,))
    return run(compile_ptx(PRELUDE + source), launch, memory, schedule=schedule).hazards


@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize("source", [RING, PUBLISH, EXCHANGE, FLAG], ids=["ring", "publish", "exchange", "flag"])
def test_right_kernels_are_silent(source: str, schedule: int) -> None:
    assert not hazards(source, schedule)


@pytest.mark.parametrize("schedule", [0, 1])
@pytest.mark.parametrize("name", DEFECTS)
def test_each_defect_is_found_and_names_both_instructions(name: str, schedule: int) -> None:
    source, text, instead, kind, instructions = DEFECTS[name]
    assert source.count(text) == 1
    result = hazards(source.replace(text, instead), schedule)
    assert any(h.kind == kind and all(i in h.message for i in instructions) for h in result), result
