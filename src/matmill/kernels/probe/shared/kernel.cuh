// How fast an SM reads its shared memory: 16 bytes per lane, 512 contiguous bytes per warp.
//
//   shared pattern[ROWS][THREADS] ──▶ LENGTH loads per trip and thread, summed
//
// Such a load takes four wavefronts of 128 bytes, the minimum: no bank conflicts. A thread cycles through its ROWS
// vectors, THREADS apart. Shared memory does not change meanwhile, so the compiler could load each vector once: `asm
// volatile` keeps NVRTC from that, and `ld.volatile` the assembler, which left 4 loads of 32 without it (NVRTC 13.5,
// 2026-11-20).

// PTX ISA, "Data Movement and Conversion Instructions: ld", with .volatile.
__device__ __forceinline__ uint4 load_shared(unsigned address) {
  uint4 v;
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS) shared_read(unsigned* result, int trips) {
  __shared__ uint4 pattern[Config::ROWS][Config::THREADS];
  for (int row = 0; row < Config::ROWS; ++row) {
    const unsigned i = row * Config::THREADS + threadIdx.x;
    pattern[row][threadIdx.x] = make_uint4(i, 2 * i, 3 * i, 4 * i);
  }
  __syncthreads();

  const unsigned own = static_cast<unsigned>(__cvta_generic_to_shared(&pattern[0][threadIdx.x]));
  unsigned total = 0;
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int i = 0; i < Config::LENGTH; ++i) {
      const uint4 v = load_shared(own + i % Config::ROWS * Config::THREADS * 16);
      total += v.x + v.y + v.z + v.w;
    }
  }
  result[blockIdx.x * Config::THREADS + threadIdx.x] = total;
}
