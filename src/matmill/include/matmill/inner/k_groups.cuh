// Stages of E and F in shared memory, of teams of a block's threads, read a step ahead of being multiplied.
//
//   global E, F ── cp.async, STAGES deep ──▶ a team's stages ── a step ahead ──▶ registers
//
// Each team has stages of its own: what one of them waits for holds up no other. Per team and stage t, in STEPS:
//
//   steps 0 .. STEPS - 2   load step + 1 │ multiply step
//   step  STEPS - 1        wait until stage t + 1 has landed, barrier ─▶ load its step 0 │ multiply
//                          ─▶ issue stage t + STAGES's copies into the place that stage t left, where one is left
//
// At that barrier all threads of the team hold the last operands of stage t, so that it may be overwritten.
//
// Of a block's teams those with a stage less than the first one meet once more: where some threads have met more often
// than others, compute-sanitizer's racecheck may find races across the block's own barriers, where there are none. So does
// a team without k's. It loads a step as well, of zeros: a branch around that makes the compiler place registers
// otherwise, and float32 products of 32 x 32 and more take 2% longer in the mean, some 7%.
//
// The loop is one for whole stages and short ones: a second one for those at the end makes the compiler move sums from
// register to register, and registers meet in their banks more often (a tenth more clocks, counted in machine code).
#pragma once

#include "matmill/inner/matrix.cuh"
#include "matmill/inner/stage.cuh"
#include "matmill/ptx/barrier.cuh"

namespace matmill {

// ONE: F is E's transpose, and not copied.
template <class StageE, class StageF, int BK, int STAGES, int STEPS, int TEAMS, int TEAM, bool ONE>
struct TeamStages {
  static constexpr int BYTES = StageE::BYTES + (ONE ? 0 : StageF::BYTES);  // of a stage
  static constexpr int NEEDED = StageE::NEEDED > StageF::NEEDED ? StageE::NEEDED : StageF::NEEDED;
  static_assert(STAGES >= 2 && TEAMS <= 15, "a stage lands while another is multiplied; barriers have numbers to 15");

  // This thread's team, and its number in it.
  static __device__ __forceinline__ int team() { return TEAMS == 1 ? 0 : threadIdx.x / TEAM; }
  static __device__ __forceinline__ int thread() { return TEAMS == 1 ? threadIdx.x : threadIdx.x % TEAM; }

  // The team's share of k. `first(stage)` loads step 0; `step(stage, t, next)` multiplies step t and, before that or
  // meanwhile, loads step `next`. `stage` gives the first element of E's, which F's follow, and is asked where it is
  // loaded from.
  template <class First, class Step>
  static __device__ __forceinline__ void run(const Matrix& E, const Matrix& F, Index k, unsigned char* shared,
                                             First first, Step step_of) {
    shared += team() * (STAGES * BYTES);
    const unsigned stages = ptx::shared_address(shared);
    const Index step = Index(gridDim.x) * (TEAMS * BK), start = (Index(blockIdx.x) * TEAMS + team()) * BK;
    StageE e_copy(E.first + start * E.k_stride, E.line_stride, E.k_stride, step);
    StageF f_copy(F.first + start * F.k_stride, F.line_stride, F.k_stride, step);
    Index left = k - start;  // terms from the next stage to be issued on

    // Of a stage with no k's zeros are copied where it `is_first`, and nothing elsewhere.
    const auto issue = [&](unsigned place, bool is_first) {
      if (left >= NEEDED) {
        e_copy.issue_whole(stages + place);
        if constexpr (!ONE) f_copy.issue_whole(stages + place + StageE::BYTES);
      } else if (left > 0 || is_first) {
        e_copy.issue(stages + place, left);
        if constexpr (!ONE) f_copy.issue(stages + place + StageE::BYTES, left);
      }
      // Also where there is nothing left to copy: the groups are counted.
      ptx::cp_async_commit();
      left -= step;
    };
    const auto meet = [&] {
      if constexpr (TEAM == 32) {
        __syncwarp();
      } else if constexpr (TEAMS == 1) {
        __syncthreads();
      } else {
        ptx::barrier_sync<TEAM>(1 + team());
      }
    };

    Index rest = left;  // terms from the stage to be multiplied next on
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) issue(s * BYTES, s == 0);
    ptx::cp_async_wait<STAGES - 1>();
    meet();
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
          meet();
          // After the last stage that one is loaded again, for nothing.
          if (rest > step) reading = reading == (STAGES - 1) * BYTES ? 0 : reading + BYTES;
        }
        step_of(stage, t, next);
      }
      issue(freed, false);
    }
    ptx::cp_async_wait<0>();
    if (TEAMS > 1 && rest + team() * BK > 0) meet();
  }
};

}  // namespace matmill
