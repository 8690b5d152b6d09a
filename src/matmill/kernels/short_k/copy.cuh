// Copies of a work tile's rows or columns of one operand, over the whole of k, to shared memory.
//
// A run is a row or column that is contiguous (or has one stride). Its copies are `width` elements each. Runs stand `pitch`
// elements apart in shared memory. ONE_RUN: what a work tile needs of the operand is contiguous as a whole, as packed
// batches are, and is copied as it is, in aligned vectors: its first element stands `head` elements behind a stage's start.
#pragma once

#include "matmill/ptx/cp_async.cuh"

namespace matmill {

// n / by for n below 2^16, where magic is ceil(2^32 / by), or 0 for by = 1.
struct Divisor {
  int by;
  unsigned magic;

  __device__ __forceinline__ int quotient(int n) const { return magic == 0 ? n : int(__umulhi(unsigned(n), magic)); }
};

// Of one operand, in elements: from run to run and from element to element in global memory, from a product's last run
// to the next product's first as compared with another run (`beyond`), runs of a product, and elements of a copy.
struct Runs {
  long long stride, element_stride, beyond;
  int count, pitch, width;
};

// IRREGULAR: products are not as far apart as their runs would be. SHIFTED: work tiles do not all start on 16 bytes.
// BY_REGISTERS: copies are of one element, which has fewer bytes than cp.async copies and goes through registers.
template <class Scalar, int THREADS, bool ONE_RUN, bool SHIFTED, bool IRREGULAR, bool BY_REGISTERS>
struct RunCopy {
  static constexpr int VECTOR = 16 / int(sizeof(Scalar));  // elements of a copy of one run
  static constexpr int AHEAD = 8;  // loads of elements that cp.async does not copy, in flight

  // A thread's next copy: its element in the run, its run in the product, and where it is.
  struct Place {
    int element, run, to;
    long long from;
  };

  Place first;
  Runs runs;
  int run_length, element_step, run_step, to_step;  // run_length: of all its copies
  long long from_step;

  // `run_copies` copies make a run.
  __device__ __forceinline__ RunCopy(const Runs& runs, Divisor run_copies) : runs(runs) {
    if constexpr (!ONE_RUN) {
      run_length = run_copies.by * runs.width;
      run_step = run_copies.quotient(THREADS);
      element_step = THREADS * runs.width - run_step * run_length;
      from_step = run_step * runs.stride + element_step * runs.element_stride;
      to_step = run_step * runs.pitch + element_step;
      const int run = run_copies.quotient(threadIdx.x);
      first.element = (int(threadIdx.x) - run * run_copies.by) * runs.width;
      first.to = run * runs.pitch + first.element;
      first.from = run * runs.stride + first.element * runs.element_stride;
      first.run = run;
      settle(first);
    }
  }

  // Elements between the last 16 aligned bytes and `source`: the matrix starts on 16 bytes.
  static __device__ __forceinline__ int head(const Scalar* source) {
    return SHIFTED ? int(reinterpret_cast<unsigned long long>(source) / sizeof(Scalar) % VECTOR) : 0;
  }

  // Starts the copies of the `elements` from `source` on, and of those between them and the last 16 aligned bytes.
  __device__ __forceinline__ void issue_run(Scalar* stage, const Scalar* source, int elements) const {
    static_assert(ONE_RUN, "");
    const int before = head(source), whole = (elements + before) / VECTOR, rest = (elements + before) % VECTOR;
    source -= before;
    const unsigned to = ptx::shared_address(stage);
    for (int first = threadIdx.x; first < whole; first += 4 * THREADS) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int v = first + i * THREADS;
        if (v < whole) ptx::cp_async<16>(to + v * 16, source + v * VECTOR);
      }
    }
    if (rest > 0 && threadIdx.x == THREADS - 1) {
      ptx::cp_async_src_size<16>(to + whole * 16, source + whole * VECTOR, rest * int(sizeof(Scalar)));
    }
  }

  // Starts `copies` copies from `source` to `stage`, of runs that have `length` elements.
  __device__ __forceinline__ void issue(Scalar* stage, const Scalar* source, int copies, int length) const {
    static_assert(!ONE_RUN, "");
    if constexpr (!BY_REGISTERS) {
      const int bytes = runs.width * int(sizeof(Scalar));  // a constant here would be a kernel for each width
      if (bytes == 16) {
        issue_copies<16>(stage, source, copies, length);
      } else if (bytes == 8) {
        issue_copies<8>(stage, source, copies, length);
      } else {
        issue_copies<4>(stage, source, copies, length);
      }
    } else {
      Place next = first;
      for (int v = threadIdx.x; v < copies; v += AHEAD * THREADS) {
        Scalar loaded[AHEAD];
        int to[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
          to[i] = v + i * THREADS < copies && next.element < length ? next.to : -1;
          if (to[i] >= 0) loaded[i] = source[next.from];
          advance(next);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
          if (to[i] >= 0) stage[to[i]] = loaded[i];
        }
      }
    }
  }

 private:
  template <int BYTES>
  __device__ __forceinline__ void issue_copies(Scalar* stage, const Scalar* source, int copies, int length) const {
    const unsigned to = ptx::shared_address(stage);
    Place place = first;
#pragma unroll 1
    for (int v = threadIdx.x; v < copies; v += THREADS) {
      if (place.element < length) ptx::cp_async<BYTES>(to + place.to * int(sizeof(Scalar)), source + place.from);
      advance(place);
    }
  }

  __device__ __forceinline__ void advance(Place& place) const {
    place.element += element_step;
    place.run += run_step;
    place.to += to_step;
    place.from += from_step;
    if (place.element >= run_length) {
      place.element -= run_length;
      ++place.run;
      place.to += runs.pitch - run_length;
      place.from += runs.stride - run_length * runs.element_stride;
    }
    settle(place);
  }

  // Goes on in another product where the runs of one end.
  __device__ __forceinline__ void settle(Place& place) const {
    if constexpr (IRREGULAR) {
      while (place.run >= runs.count) {
        place.run -= runs.count;
        place.from += runs.beyond;
      }
    }
  }
};

}  // namespace matmill
