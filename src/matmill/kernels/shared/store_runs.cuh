// Stores of runs that start anywhere in global memory, from shared memory: aligned vectors of 16 bytes inside, and the
// elements before and after them one by one.
#pragma once

#include "kernels/shared/realign.cuh"
#include "matmill/ptx/ld_shared.cuh"

namespace matmill {

// Elements of a run before its first aligned vector.
template <class Element>
__device__ __forceinline__ int elements_ahead(const Element* run) {
  constexpr int V = 16 / int(sizeof(Element));
  return -static_cast<int>(reinterpret_cast<unsigned long long>(run) / sizeof(Element)) & (V - 1);
}

template <class Element>
__device__ __forceinline__ void store_element(Element* to, unsigned from) {
  if constexpr (sizeof(Element) == 2) {
    *reinterpret_cast<unsigned short*>(to) = ptx::ld_shared_u16(from);
  } else {
    *reinterpret_cast<unsigned*>(to) = ptx::ld_shared_u32(from);
  }
}

// Stores `runs` runs of `length` elements, which are `stride` elements apart at D. Of THREADS threads this is number
// `thread`, LANES take a run, and each stores AT_ONCE vectors at a time.
//
// Staged has the addresses of elements in shared memory, address(run, element), and the bytes between elements of runs
// that are a multiple of eight apart, distance(runs). SHIFTED: a run starts there as far behind 16 bytes as it does at D.
// Otherwise it starts on 16 bytes, and its vectors are shifted on the way. A thread's runs are a multiple of eight apart:
// all start as far behind 16 bytes, so that neither shift nor address depends on the run.
template <int THREADS, int LANES, int AT_ONCE, class Staged, class Element>
__device__ __forceinline__ void store_runs(const Staged& staged, Element* D, long long stride, int runs, int length,
                                           int thread) {
  constexpr int SIZE = sizeof(Element), V = 16 / SIZE, APART = THREADS / LANES;
  static_assert(SIZE == 2 || SIZE == 4, "other elements have no store of their own");
  static_assert(APART % 8 == 0, "runs eight apart start as far behind 16 bytes");
  const int first_run = thread / LANES;
  const int head = elements_ahead(D + first_run * stride);
#pragma unroll 1
  for (int first = thread % LANES * V; first + head + V <= length; first += LANES * V) {
    unsigned low = staged.address(first_run, Staged::SHIFTED ? first + head : first);
    unsigned high = Staged::SHIFTED || head == 0 ? low : staged.address(first_run, first + V);
    Element* to = D + first_run * stride + first + head;
#pragma unroll AT_ONCE
    for (int run = first_run; run < runs; run += APART) {
      uint4 vector = ptx::ld_shared_v4(low);
      if constexpr (!Staged::SHIFTED) vector = realigned(vector, ptx::ld_shared_v4(high), SIZE * head);
      *reinterpret_cast<uint4*>(to) = vector;
      low += staged.distance(APART), high += staged.distance(APART), to += APART * stride;
    }
  }
  // Before and after its vectors a run has less than 2 V elements; V or none where its length is a multiple of V.
  constexpr int LOG = V == 8 ? 3 : 2;
  const int slots = length % V == 0 ? LOG : LOG + 1;
#pragma unroll 2
  for (int v = thread; v < runs << slots; v += THREADS) {
    const int run = v >> slots, slot = v - (run << slots);
    Element* const to = D + run * stride;
    const int ahead = elements_ahead(to), after = ahead + (length > ahead ? (length - ahead) / V * V : 0);
    const int element = slot < ahead ? slot : after + slot - ahead;
    if (element < length) store_element(to + element, staged.address(run, element));
  }
}

}  // namespace matmill
