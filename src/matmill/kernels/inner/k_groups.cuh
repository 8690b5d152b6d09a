// The staged loop over k of k-groups: groups of a block's threads that take different k, each with its own stages of E
// and F and its own named barrier.
//
//   global E, F ── cp.async, STAGES deep ──▶ a k-group's stages ── one step ahead ──▶ registers
//
// A k-group never waits for another one's stage. Per k-group and stage t, in STEPS:
//
//   steps 0 .. STEPS - 2   load step + 1 │ multiply step
//   step  STEPS - 1        wait until stage t + 1 has landed, barrier ─▶ load its step 0 │ multiply
//                          ─▶ issue the copies of stage t + STAGES, if any, into the buffer that stage t left
//
// At that barrier all threads of the k-group hold the last operands of stage t in registers, so its buffer is free.
//
// A k-group with one stage fewer than the first passes one more barrier. If k-groups passed their barriers a different
// number of times, compute-sanitizer's racecheck could report false races across the block's barriers. A k-group
// without any k does the same. It also loads one step, of zeros: a branch around that load makes the compiler allocate
// registers differently, and float32 products of 32 x 32 and more take 2% longer on average, some 7%.
//
// One loop handles full and partial stages. With a second loop for the partial ones the compiler moves accumulators
// between registers, and register bank conflicts cost 10% more clocks (counted in machine code).
#pragma once

#include "kernels/inner/matrix.cuh"
#include "kernels/inner/stage.cuh"
#include "matmill/ptx/barrier.cuh"

namespace matmill {

// GRAM: F is E's transpose, and is not copied.
template <class StageE, class StageF, int BK, int STAGES, int STEPS, int K_GROUPS, int GROUP_THREADS, bool GRAM>
struct KGroupStages {
  static constexpr int BYTES = StageE::BYTES + (GRAM ? 0 : StageF::BYTES);  // per stage
  static constexpr int NEEDED = StageE::NEEDED > StageF::NEEDED ? StageE::NEEDED : StageF::NEEDED;
  static_assert(STAGES >= 2 && K_GROUPS <= 15,
                "one stage computes while another is in flight; named barriers are 1 to 15");

  // This thread's k-group, and its index in it.
  static __device__ __forceinline__ int k_group() { return K_GROUPS == 1 ? 0 : threadIdx.x / GROUP_THREADS; }
  static __device__ __forceinline__ int thread() { return K_GROUPS == 1 ? threadIdx.x : threadIdx.x % GROUP_THREADS; }

  // Runs over the k-group's k. `first(stage)` loads step 0. `step_of(stage, t, next)` multiplies step t and, before or
  // meanwhile, loads step `next`. `stage()` returns the stage's first element of E, which F's elements follow; callers
  // ask for it at each load.
  template <class First, class Step>
  static __device__ __forceinline__ void run(const Matrix& E, const Matrix& F, Index k, unsigned char* shared,
                                             First first, Step step_of) {
    shared += k_group() * (STAGES * BYTES);
    const unsigned stages = ptx::shared_address(shared);
    const Index step = Index(gridDim.x) * (K_GROUPS * BK), start = (Index(blockIdx.x) * K_GROUPS + k_group()) * BK;
    StageE e_copy(E.first + start * E.k_stride, E.outer_stride, E.k_stride, step);
    StageF f_copy(F.first + start * F.k_stride, F.outer_stride, F.k_stride, step);
    Index left = k - start;  // terms from the next stage to issue

    // A stage without k is filled with zeros if it `is_first`, and left alone otherwise.
    const auto issue = [&](unsigned offset, bool is_first) {
      if (left >= NEEDED) {
        e_copy.issue_whole(stages + offset);
        if constexpr (!GRAM) f_copy.issue_whole(stages + offset + StageE::BYTES);
      } else if (left > 0 || is_first) {
        e_copy.issue(stages + offset, left);
        if constexpr (!GRAM) f_copy.issue(stages + offset + StageE::BYTES, left);
      }
      // Commits even an empty group: cp_async_wait counts groups.
      ptx::cp_async_commit();
      left -= step;
    };
    const auto sync = [&] {
      if constexpr (GROUP_THREADS == 32) {
        __syncwarp();
      } else if constexpr (K_GROUPS == 1) {
        __syncthreads();
      } else {
        ptx::barrier_sync<GROUP_THREADS>(1 + k_group());
      }
    };

    Index rest = left;  // terms from the next stage to multiply
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) issue(s * BYTES, s == 0);
    ptx::cp_async_wait<STAGES - 1>();
    sync();
    unsigned reading = 0;
    const auto stage = [&] { return reinterpret_cast<const Scalar*>(shared + reading); };
    first(stage());
#pragma unroll 1
    for (; rest > 0; rest -= step) {
      const unsigned freed = reading;
#pragma unroll
      for (int t = 0; t < STEPS; ++t) {
        const int next = (t + 1) % STEPS;
        if (next == 0) {
          ptx::cp_async_wait<STAGES - 2>();
          sync();
          // After the last stage, its step 0 is loaded again and discarded.
          if (rest > step) reading = reading == (STAGES - 1) * BYTES ? 0 : reading + BYTES;
        }
        step_of(stage, t, next);
      }
      issue(freed, false);
    }
    ptx::cp_async_wait<0>();
    if (K_GROUPS > 1 && rest + k_group() * BK > 0) sync();
  }
};

}  // namespace matmill
