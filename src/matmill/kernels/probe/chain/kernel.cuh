// Latency of one instruction: LENGTH of them per trip, each dependent on the one before, and the cycles of all trips.
//
//   clock64 ──▶ trips x ( x = op(x, operand), LENGTH times ) ──▶ clock64
//
// One warp runs alone. The host compiles two lengths and subtracts their cycles for the same number of trips: the
// loop's own instructions and the clock reads cancel.
//
// Nothing can be folded: both values are run-time values, and float arithmetic may not be reassociated. The number of
// trips is a run-time value too, so the loop stays a loop, and the assembler moves no loop past a clock read.

struct Add {
  static __device__ __forceinline__ Scalar apply(Scalar x, Scalar operand) { return x + operand; }
};
struct Multiply {
  static __device__ __forceinline__ Scalar apply(Scalar x, Scalar operand) { return x * operand; }
};
struct MultiplyAdd {
  static __device__ __forceinline__ Scalar apply(Scalar x, Scalar operand) { return fma(x, operand, operand); }
};

// values: 32 starts and 32 operands, one per lane: a value that all lanes share would be in a uniform register, which
// is another instruction. result: the cycles, then the last value of each lane.
template <class Op>
__device__ __forceinline__ void chain(const Scalar* values, long long* result, int trips) {
  Scalar x = values[threadIdx.x];
  const Scalar operand = values[32 + threadIdx.x];
  const long long begin = clock64();
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int i = 0; i < Config::LENGTH; ++i) x = Op::apply(x, operand);
  }
  const long long end = clock64();
  reinterpret_cast<Scalar*>(result + 1)[threadIdx.x] = x;
  if (threadIdx.x == 0) *result = end - begin;
}

extern "C" __global__ void __launch_bounds__(32) chain_add(const Scalar* values, long long* result, int trips) {
  chain<Add>(values, result, trips);
}

extern "C" __global__ void __launch_bounds__(32) chain_multiply(const Scalar* values, long long* result, int trips) {
  chain<Multiply>(values, result, trips);
}

extern "C" __global__ void __launch_bounds__(32) chain_fma(const Scalar* values, long long* result, int trips) {
  chain<MultiplyAdd>(values, result, trips);
}
