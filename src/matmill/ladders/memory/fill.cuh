// Fills a matrix on the device with numbers that depend on position and seed alone: one thread per element.
//
//   index ──▶ 32-bit hash ──▶ 24 bits ──▶ X[index] in [-1, 1)
//
// A warp stores 32 adjacent words: 4 sectors, one request, nothing read. Every step is exact in float32, so the host
// gets the same numbers bit for bit (`filled` beside the descriptors). Beyond 2^32 elements values repeat.
extern "C" __global__ void __launch_bounds__(Config::THREADS)
    fill(float* __restrict__ X, long long elements, unsigned seed) {
  const long long index = (long long)blockIdx.x * Config::THREADS + threadIdx.x;
  if (index >= elements) return;

  // The finalizer of MurmurHash3 (Appleby, public domain): every bit of the input reaches every bit of the output.
  unsigned h = unsigned(index) + seed * 0x9e3779b9u;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  h ^= h >> 16;
  X[index] = float(h >> 8) * 0x1p-23f - 1.0f;
}
