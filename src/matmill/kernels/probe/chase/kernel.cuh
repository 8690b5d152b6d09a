// Latency of one load by pointer chasing: each load's value is the address of the next, so one load is in flight at a
// time.
//
//   ring of addresses, one per cache line, in random order:  p ──▶ *p ──▶ **p ──▶ …    one lane, LENGTH loads per trip
//
// The ring's size decides what serves the loads: DRAM (far more than L2), L2, L1 or shared memory. The first `warm`
// loads are not timed; they fill the measured cache. The loop's own instructions run while a load is in flight; their
// rest cancels in the difference of two lengths.
//
// The loads are PTX, because a pointer that is loaded from memory is generic to the compiler, and a generic load
// resolves its state space first. The ring holds whole addresses, so that only the load is between two steps.

// PTX ISA, "Data Movement and Conversion Instructions: ld". Cached in L1, the default.
__device__ __forceinline__ unsigned long long load_global(unsigned long long p) {
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(p) : "l"(p) : "memory");
  return p;
}

// PTX ISA, "ld" with .cg: cached in L2 only.
__device__ __forceinline__ unsigned long long load_l2(unsigned long long p) {
  asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(p) : "l"(p) : "memory");
  return p;
}

// PTX ISA, "ld" of shared memory, whose addresses have 32 bits.
__device__ __forceinline__ unsigned load_shared(unsigned p) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(p) : "r"(p) : "memory");
  return p;
}

// One step of the chase in global memory.
__device__ __forceinline__ unsigned long long step(unsigned long long p) {
  return Config::BYPASS_L1 ? load_l2(p) : load_global(p);
}

// result: cycles of all trips, then where the chase ended. That and `start` are in bytes from the ring's first byte.
extern "C" __global__ void __launch_bounds__(1)
    chase_global(const unsigned long long* ring, long long* result, long long start, int warm, int trips) {
  const unsigned long long base = __cvta_generic_to_global(ring);
  unsigned long long p = base + start;
#pragma unroll 1
  for (int i = 0; i < warm; ++i) p = step(p);
  const long long begin = clock64();
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int i = 0; i < Config::LENGTH; ++i) p = step(p);
  }
  const long long end = clock64();
  result[0] = end - begin;
  result[1] = p - base;
}

// next: byte offsets of one ring through WORDS words of shared memory.
extern "C" __global__ void __launch_bounds__(Config::THREADS)
    chase_shared(const unsigned* next, long long* result, long long start, int warm, int trips) {
  __shared__ unsigned ring[Config::WORDS];
  const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(ring));
  for (int i = threadIdx.x; i < Config::WORDS; i += Config::THREADS) ring[i] = base + next[i];
  __syncthreads();
  if (threadIdx.x != 0) return;

  unsigned p = base + static_cast<unsigned>(start);
#pragma unroll 1
  for (int i = 0; i < warm; ++i) p = load_shared(p);
  const long long begin = clock64();
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int i = 0; i < Config::LENGTH; ++i) p = load_shared(p);
  }
  const long long end = clock64();
  result[0] = end - begin;
  result[1] = p - base;
}
