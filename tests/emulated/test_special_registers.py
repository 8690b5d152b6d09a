"""Special registers beside the indices of threads: shared memory of the system, sizes, and what is always 0."""

from __future__ import annotations

import numpy as np
import pytest

import matmill

pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")

TILES = """#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void tiles(const int* x, int* sums, int* shifted, int* most, int* mine) {
  __shared__ int own[256];
  const auto block = cg::this_thread_block();
  const auto tile = cg::tiled_partition<64>(block);
  const int t = block.thread_rank(), v = x[t];
  own[t] = v;
  sums[t] = cg::reduce(tile, v, cg::plus<int>());
  tile.sync();
  mine[t] = own[t ^ 63];
  shifted[t] = tile.shfl(v, 40);
  most[t] = cg::reduce(cg::tiled_partition<128>(block), v, cg::greater<int>()) + tile.any(v > 97);
}
"""
REGISTERS = """
#define READ(N, TYPE, NAME) { TYPE a; asm volatile("mov." #TYPE " %0, %%" NAME ";" : SIZE_##TYPE(a)); x[N] = a; }
using u16 = unsigned short; using u32 = unsigned; using u64 = unsigned long long;
#define SIZE_u16 "=h"
#define SIZE_u32 "=r"
#define SIZE_u64 "=l"
__global__ void registers(u64* x) {
  extern __shared__ char bytes[];
  READ(0, u32, "reserved_smem_offset_end") READ(1, u32, "reserved_smem_offset_begin")
  READ(2, u32, "reserved_smem_offset_cap") READ(3, u32, "reserved_smem_offset_0")
  READ(4, u32, "pm3") READ(5, u64, "pm3_64") READ(6, u32, "envreg31") READ(7, u64, "current_graph_exec")
  READ(8, u64, "gridid") READ(9, u16, "ntid.x") READ(10, u32, "total_smem_size") READ(11, u32, "aggr_smem_size")
  asm("{.reg .pred p; mov.pred p, %%is_explicit_cluster; selp.u64 %0, 1, 0, p;}" : "=l"(x[12]));
  x[13] = __cvta_generic_to_shared(bytes);
}
"""


def test_tiles_of_several_warps() -> None:
    x = np.random.default_rng(0).integers(0, 100, 256).astype(np.int32)
    sums, shifted, most, mine = np.zeros((4, 256), np.int32)
    report = matmill.emulate(TILES, "tiles", 1, 256, x, sums, shifted, most, mine)
    assert report.ok, str(report)
    by_tile = x.reshape(4, 64)
    assert (sums.reshape(4, 64) == by_tile.sum(axis=1, keepdims=True)).all()
    assert (shifted.reshape(4, 64) == by_tile[:, 40:41]).all()
    assert (mine.reshape(4, 64) == by_tile[:, ::-1]).all()
    greatest = np.repeat(x.reshape(2, 128).max(axis=1), 128)
    assert (most == greatest + np.repeat((by_tile > 97).any(axis=1), 64)).all()


def test_what_registers_hold() -> None:
    x = np.full(16, 99, np.uint64)
    assert matmill.emulate(REGISTERS, "registers", 1, 1, x, shared=300).ok
    end, begin, size, first, *zeros = x[:9].tolist()
    assert (end - begin, size, first, zeros) == (1024, 1024, begin, [0] * 5)
    assert x[9:13].tolist() == [1, 384, 384 + 1024, 0]
    assert x[13] >= end
