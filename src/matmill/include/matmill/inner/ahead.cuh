// The long sum from stages, read ahead: a thread loads the operands of its next multiply-adds before it does the present
// ones, so that it waits neither for shared memory nor, but for the team's barrier, for other threads.
//
//   global E, F ── cp.async, STAGES deep ──▶ a team's stages ── a step ahead ──▶ registers ──▶ acc[TM][TN]
//
// A block's threads form TEAMS teams with stages of their own: what one of them waits for holds up no other. Per team and
// stage t, of STEPS k's for each of its groups of S threads:
//
//   steps 0 .. STEPS - 2   load step + 1 │ multiply step
//   step  STEPS - 1        wait until stage t + 1 has landed, barrier ─▶ load its step 0 │ multiply
//                          ─▶ issue stage t + STAGES's copies into the place that stage t left, where one is left
//
// At that barrier all threads of the team hold the last operands of stage t, so that it may be overwritten. Of a matrix
// whose stage holds k by k a step's lines are loaded at a time, of one whose lines lie along k those of V steps; two sets
// of registers take turns. Where that would be many registers, E has one: each of its lines is loaded again as soon as
// its last k is multiplied (13 x 11 tiles of single k's: two sets are 9% faster; 8 x 16: one set is).
//
// The loop is one for whole stages and short ones: a second one for those at the end makes the compiler move sums from
// register to register, and registers meet in their banks more often (a tenth more clocks, counted in machine code).
#pragma once

#include "matmill/inner/lines.cuh"
#include "matmill/inner/outputs.cuh"
#include "matmill/inner/stage.cuh"
#include "matmill/ptx/barrier.cuh"

namespace matmill {

// One operand: where it lies, and its strides in elements.
struct Matrix {
  const Scalar* first;
  Index line_stride, k_stride;
};

template <class Product>
struct Ahead {
  using Config = typename Product::Config;
  using StageE = typename Product::StageE;
  using StageF = typename Product::StageF;
  static constexpr int M = Product::M, N = Product::N, TM = Product::TM, TN = Product::TN, V = Product::V;
  static constexpr int DOWN = Product::DOWN, ACROSS = Product::ACROSS, S = Product::S, OUT = Product::OUT;
  static constexpr int TEAMS = Product::TEAMS, TEAM = Product::TEAM, GROUPS = Product::GROUPS;
  static constexpr int BK = Config::BK, STAGES = Config::STAGES, STEPS = BK / GROUPS;
  static constexpr bool E_ALONG = Product::LinesE::ALONG, F_ALONG = Product::LinesF::ALONG;
  static constexpr int E_V = E_ALONG ? V : 1, F_V = F_ALONG ? V : 1;  // k's of a set of registers
  static constexpr bool REFILLED = E_ALONG && (V > 1 || TM <= TN);    // E's one set
  using LinesE = Lines<Scalar, M, TM, DOWN, E_V, Config::E_MODE, Config::E_GROUP>;
  using LinesF = Lines<Scalar, N, TN, ACROSS, F_V, Config::F_MODE, Config::F_GROUP>;
  static constexpr int NEEDED = StageE::NEEDED > StageF::NEEDED ? StageE::NEEDED : StageF::NEEDED;
  static_assert(!Product::GRAM && !LinesE::RUN && !LinesF::RUN, "each thread takes some rows and some columns");
  static_assert(STEPS * GROUPS == BK && STEPS % V == 0, "every group of threads has whole pieces of a stage");
  static_assert((REFILLED || STEPS % 2 == 0) && STEPS / F_V % 2 == 0, "sets of registers take turns");
  static_assert(STAGES >= 2 && TEAMS <= 15, "a stage lands while another is multiplied; barriers have numbers to 15");

  static __device__ __forceinline__ void run(Acc (&acc)[OUT], const Matrix& E, const Matrix& F, Index k,
                                             unsigned char* shared) {
    const int team = TEAMS == 1 ? 0 : threadIdx.x / TEAM, thread = TEAMS == 1 ? threadIdx.x : threadIdx.x % TEAM;
    const int group = TEAM % S == 0 || thread / S < GROUPS ? thread / S : GROUPS - 1;
    int down, across, e_at[TM], f_at[TN];
    Product::tile_of(thread % S, down, across);
    LinesE::template places<StageE::PITCH>(e_at, down, group * V, E.first, E.line_stride);
    LinesF::template places<StageF::PITCH>(f_at, across, group * V, F.first, F.line_stride);
    shared += team * (STAGES * Product::STAGE_BYTES);
    const unsigned stages = ptx::shared_address(shared);
    const Index step = Index(gridDim.x) * (TEAMS * BK), start = (Index(blockIdx.x) * TEAMS + team) * BK;
    StageE e_copy(E.first + start * E.k_stride, E.line_stride, E.k_stride, step);
    StageF f_copy(F.first + start * F.k_stride, F.line_stride, F.k_stride, step);
    Index left = k - start;  // terms from the next stage to be issued on

    const auto issue = [&](unsigned place) {
      if (left >= NEEDED) {
        e_copy.issue_whole(stages + place);
        f_copy.issue_whole(stages + place + StageE::BYTES);
      } else if (left > 0) {
        e_copy.issue(stages + place, left);
        f_copy.issue(stages + place + StageE::BYTES, left);
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
        ptx::barrier_sync<TEAM>(1 + team);
      }
    };
    const auto at = [](int t) { return t / V * (GROUPS * V) + t % V; };  // of step t, from the group's first k on

    Index rest = left;  // terms from the stage to be multiplied next on
#pragma unroll 1
    for (int s = 0; s < STAGES; ++s) issue(s * Product::STAGE_BYTES);
    if (rest <= 0) return;
    ptx::cp_async_wait<STAGES - 1>();
    meet();
    LinesE e[REFILLED ? 1 : 2];
    LinesF f[2];
    unsigned reading = 0;
    const auto stage = [&] { return reinterpret_cast<const Scalar*>(shared + reading); };
    e[0].template read_stage<StageE::PITCH>(stage(), e_at, 0);
    f[0].template read_stage<StageF::PITCH>(stage() + StageE::ELEMENTS, f_at, 0);
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
          if (rest > step)
            reading = reading == (STAGES - 1) * Product::STAGE_BYTES ? 0 : reading + Product::STAGE_BYTES;
        }
        if constexpr (!REFILLED) e[(t + 1) % 2].template read_stage<StageE::PITCH>(stage(), e_at, at(next));
        if (next % F_V == 0)
          f[(t / F_V + 1) % 2].template read_stage<StageF::PITCH>(stage() + StageE::ELEMENTS, f_at, at(next));
        multiply(acc, e[REFILLED ? 0 : t % 2], t % E_V, f[t / F_V % 2], t % F_V, [&](int row) {
          if (REFILLED && next % E_V == 0) e[0].template read_group<StageE::PITCH>(stage(), e_at, at(next), row);
        });
      }
      issue(freed);
    }
    ptx::cp_async_wait<0>();
  }

 private:
  // acc += e's k number e_k times f's k number f_k. Along the shorter side of the tile, back and forth: the order of
  // which the compiler makes the fewest reads of registers that meet. `done(row)` where E is refilled.
  template <class Done>
  static __device__ __forceinline__ void multiply(Acc (&acc)[OUT], const LinesE& e, int e_k, const LinesF& f, int f_k,
                                                  Done done) {
    Acc columns[TN];
#pragma unroll
    for (int j = 0; j < TN; ++j) columns[j] = f.wide(j, f_k);
    if constexpr (REFILLED || TN < TM) {
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        const Acc row = e.wide(i, e_k);
#pragma unroll
        for (int jj = 0; jj < TN; ++jj) {
          const int j = i % 2 ? TN - 1 - jj : jj;
          acc[i * TN + j] += row * columns[j];
        }
        done(i);
      }
    } else {
      Acc rows[TM];
#pragma unroll
      for (int i = 0; i < TM; ++i) rows[i] = e.wide(i, e_k);
#pragma unroll
      for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int ii = 0; ii < TM; ++ii) {
          const int i = j % 2 ? TM - 1 - ii : ii;
          acc[i * TN + j] += rows[i] * columns[j];
        }
    }
  }
};

}  // namespace matmill
