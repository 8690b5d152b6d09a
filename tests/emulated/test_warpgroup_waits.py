"""A product of wgmma is the warpgroup's: one thread's arrival after its wait frees a stage for all four warps.

The pipeline is that of CUTLASS's PipelineTmaAsync, with one signalling thread per consumer warpgroup. Measured on an
H100 on 2026-11-25: a warp passes ``wgmma.wait_group`` once its warpgroup has committed, and the group is complete for
all.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matmill

INCLUDE = Path(str(files("matmill"))) / "include"
#: One consumer warpgroup, and a producer warp that stores constants: the layout of a tile does not matter.
PIPELINE = """
#include "matmill/dtype/half.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/wgmma.cuh"
using namespace matmill;

constexpr int STAGES = 2, A_BYTES = 8192, B_BYTES = 1024, STAGE = A_BYTES + B_BYTES;

extern "C" __global__ void pipeline(float* out, int steps) {
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ unsigned long long full[STAGES], empty[STAGES];
  const unsigned warp = threadIdx.x / 32;
  const auto address = [](const void* x) { return unsigned(__cvta_generic_to_shared(x)); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      ptx::mbarrier_init(address(&full[s]), 32);
      ptx::mbarrier_init(address(&empty[s]), 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (warp == 4) {
    for (int step = 0; step < steps; ++step) {
      const int s = step % STAGES;
      if (step >= STAGES) ptx::mbarrier_wait(address(&empty[s]), step / STAGES - 1 & 1);
      const unsigned value = 0x3f803f80u + 0x00800080u * (step % 3);  // 1, 2 or 4
      unsigned* const words = reinterpret_cast<unsigned*>(shared + s * STAGE);
      for (int i = threadIdx.x % 32; i < STAGE / 4; i += 32) words[i] = i < A_BYTES / 4 ? value : 0x3f803f80u;
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      ptx::mbarrier_arrive(address(&full[s]));
    }
    return;
  }
  float d[4] = {};
  for (int step = 0; step < steps; ++step) {
    const int s = step % STAGES;
    ptx::mbarrier_wait(address(&full[s]), step / STAGES & 1);
    ptx::wgmma_fence();
    BEFORE_PRODUCT
    const unsigned tile = address(shared + s * STAGE);
    ptx::wgmma<BFloat>(d, ptx::k_major_descriptor<128>(tile), ptx::k_major_descriptor<128>(tile + A_BYTES), true);
    ptx::wgmma_commit();
    BEFORE_WAIT
    ptx::wgmma_wait<0>();
    AFTER_WAIT
  }
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""
ARRIVE = "if (threadIdx.x == SIGNAL) ptx::mbarrier_arrive(address(&empty[s]));"
STEPS = 7
WANTED = 16.0 * sum(2.0 ** (step % 3) for step in range(STEPS))


def emulated(
    *, after: str = ARRIVE, before: str = "", signal: int = 0, product: str = "", **options: Any
) -> tuple[np.ndarray, list[str]]:
    """Return the sums and the kinds of hazards of the pipeline with this code at its places."""
    source = PIPELINE.replace("AFTER_WAIT", after).replace("BEFORE_WAIT", before).replace("BEFORE_PRODUCT", product)
    out = np.zeros((128, 4), np.float32)
    report = matmill.emulate(
        source.replace("SIGNAL", str(signal)), "pipeline", 1, 160, out, np.int32(STEPS), shared=2 * 9216,
        include=[INCLUDE], **options,
    )  # fmt: skip
    return out, [hazard.kind for hazard in report.hazards]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("signal", [0, 127])
@pytest.mark.parametrize("schedule", range(5))
def test_one_thread_frees_a_stage(schedule: int, signal: int, late: bool) -> None:
    out, kinds = emulated(signal=signal, schedule=schedule, late_copies=late)
    assert (out == WANTED).all()
    assert kinds == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schedule", [0, 1])
def test_a_stage_that_is_freed_before_the_wait(schedule: int, late: bool) -> None:
    _, kinds = emulated(before=ARRIVE, after="", schedule=schedule, late_copies=late)
    assert "race" in kinds


def test_a_strict_reading_wants_every_warp_to_have_waited() -> None:
    """PTX says of a wait that the executing threads' groups are complete."""
    assert "race" in emulated(strict=True)[1]
    every = 'asm volatile("bar.sync 1, 128;" ::: "memory");'
    out, kinds = emulated(after=every + ARRIVE, strict=True)
    assert (out == WANTED).all()
    assert kinds == []


@pytest.mark.parametrize("code", [{"product": "if (warp == 2) return;"}, {"before": "if (warp == 2) return;"}])
def test_a_warp_that_never_comes(code: dict[str, str]) -> None:
    """The others would wait for ever on a GPU."""
    assert emulated(product=code.get("product", ""), before=code.get("before", ""))[1][-1] == "warpgroup"
