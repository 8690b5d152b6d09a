// Bandwidth between the SMs and memory: 16 bytes per access, a warp's accesses adjacent.
//
//   stream_read   global ──▶ registers, summed     `passes` times over: with a buffer within L2, L2's own rate
//   stream_copy   global ──▶ registers ──▶ global
//   stream_write  registers ──▶ global
//
// A grid-stride loop; each thread has DEPTH accesses in flight. Sums are stored, or the compiler would remove the
// loads. BYPASS_L1 = 1 loads through L2 only (ld.global.cg): the L1 caches of all SMs together may hold what one L2
// holds.

__device__ __forceinline__ uint4 load(const uint4* p) { return Config::BYPASS_L1 ? __ldcg(p) : *p; }

__device__ __forceinline__ unsigned sum(uint4 v) { return v.x + v.y + v.z + v.w; }

// A thread's vectors, `stride` apart: whole groups of DEPTH, then the rest.
template <class Group, class Single>
__device__ __forceinline__ void each(long long vectors, Group group, Single single) {
  const long long stride = (long long)gridDim.x * Config::THREADS;
  long long i = (long long)blockIdx.x * Config::THREADS + threadIdx.x;
#pragma unroll 1
  for (; i + (Config::DEPTH - 1) * stride < vectors; i += Config::DEPTH * stride) group(i, stride);
#pragma unroll 1
  for (; i < vectors; i += stride) single(i);
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    stream_read(const uint4* source, unsigned* result, long long vectors, int passes) {
  unsigned total = 0;
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    each(
        vectors,
        [&](long long i, long long stride) {
          uint4 v[Config::DEPTH];
#pragma unroll
          for (int d = 0; d < Config::DEPTH; ++d) v[d] = load(&source[i + d * stride]);
#pragma unroll
          for (int d = 0; d < Config::DEPTH; ++d) total += sum(v[d]);
        },
        [&](long long i) { total += sum(load(&source[i])); });
  }
  result[blockIdx.x * Config::THREADS + threadIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    stream_copy(const uint4* source, uint4* target, long long vectors) {
  each(
      vectors,
      [&](long long i, long long stride) {
        uint4 v[Config::DEPTH];
#pragma unroll
        for (int d = 0; d < Config::DEPTH; ++d) v[d] = load(&source[i + d * stride]);
#pragma unroll
        for (int d = 0; d < Config::DEPTH; ++d) target[i + d * stride] = v[d];
      },
      [&](long long i) { target[i] = load(&source[i]); });
}

extern "C" __global__ void __launch_bounds__(Config::THREADS)
    stream_write(uint4* target, long long vectors, unsigned value) {
  const uint4 v = make_uint4(value, value, value, value);
  each(
      vectors,
      [&](long long i, long long stride) {
#pragma unroll
        for (int d = 0; d < Config::DEPTH; ++d) target[i + d * stride] = v;
      },
      [&](long long i) { target[i] = v; });
}

// As many bytes as a product reads and writes, and nothing else: the floor of its time. Vectors that no thread writes
// are stored where their sum is one that random data never has.
extern "C" __global__ void __launch_bounds__(Config::THREADS)
    stream_move(const uint4* source, uint4* target, long long vectors, long long written) {
  const long long i = (long long)blockIdx.x * Config::THREADS + threadIdx.x;
  uint4 v = make_uint4(1, 2, 3, 4);
  if (i < vectors) v = load(&source[i]);
  if (i < written || (v.x == 0x9e3779b9u && v.y == 0x7f4a7c15u && v.z == 0xf39cc060u)) target[i % written] = v;
}
