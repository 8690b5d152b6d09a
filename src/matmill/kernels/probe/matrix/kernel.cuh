// FMA throughput of the tensor cores through mma.sync, from registers alone.
//
//   per warp   fragments a, b (all elements equal)   acc[t] = a * b + acc[t] for TILES tiles, LENGTH rounds per trip
//
// INPUT is the type of a and b and K their inner size; sums are float32, or float64 for float64 inputs. The TILES
// accumulators are independent, so that no mma waits for the one before. As in `fma`, the host compiles two lengths and
// takes the difference.
//
// Hopper's tensor cores are built for wgmma, which reads shared memory: mma.sync does not reach their peak.

enum { FLOAT16, BFLOAT16, TF32, FLOAT64 };

// The asm is volatile: all tiles hold the same numbers, and the compiler would merge them.
//
// One instruction: registers per lane of a (A), b (B) and the sums (C). Elements of 32 bits or less are packed in
// words. PTX ISA, "Matrix multiply-accumulate operation using mma instruction", sections "Matrix fragments for mma.…".
template <int INPUT, int K>
struct Mma;

template <>
struct Mma<FLOAT16, 8> {  // m16n8k8, sm_75
  using Word = unsigned;
  using Sum = float;
  static constexpr int A = 2, B = 1, C = 4;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  }
};

template <>
struct Mma<FLOAT16, 16> {  // m16n8k16, sm_80
  using Word = unsigned;
  using Sum = float;
  static constexpr int A = 4, B = 2, C = 4;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct Mma<BFLOAT16, 16> {  // m16n8k16, sm_80
  using Word = unsigned;
  using Sum = float;
  static constexpr int A = 4, B = 2, C = 4;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct Mma<TF32, 8> {  // m16n8k8, sm_80
  using Word = unsigned;
  using Sum = float;
  static constexpr int A = 4, B = 2, C = 4;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

template <>
struct Mma<FLOAT64, 4> {  // m8n8k4, sm_80
  using Word = double;
  using Sum = double;
  static constexpr int A = 1, B = 1, C = 2;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a[0]), "d"(b[0]));
  }
};

template <>
struct Mma<FLOAT64, 16> {  // m16n8k16, sm_90
  using Word = double;
  using Sum = double;
  static constexpr int A = 8, B = 4, C = 4;
  static __device__ __forceinline__ void apply(Sum (&c)[C], const Word (&a)[A], const Word (&b)[B]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
        "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
          "d"(b[2]), "d"(b[3]));
  }
};

using Unit = Mma<Config::INPUT, Config::K>;

// words: the value of every register of a, then of b. Each register reads it anew: if they were known to be equal, the
// assembler would keep one and copy it inside the loop.
extern "C" __global__ void __launch_bounds__(Config::THREADS)
    matrix(const volatile Unit::Word* words, Unit::Sum* result, int trips) {
  Unit::Word a[Unit::A];
  Unit::Word b[Unit::B];
  Unit::Sum acc[Config::TILES][Unit::C];
#pragma unroll
  for (int i = 0; i < Unit::A; ++i) a[i] = words[0];
#pragma unroll
  for (int i = 0; i < Unit::B; ++i) b[i] = words[1];
#pragma unroll
  for (int t = 0; t < Config::TILES; ++t) {
#pragma unroll
    for (int i = 0; i < Unit::C; ++i) acc[t][i] = 0;
  }
#pragma unroll 1
  for (int trip = 0; trip < trips; ++trip) {
#pragma unroll
    for (int round = 0; round < Config::LENGTH; ++round) {
#pragma unroll
      for (int t = 0; t < Config::TILES; ++t) Unit::apply(acc[t], a, b);
    }
  }
  Unit::Sum sum = 0;
#pragma unroll
  for (int t = 0; t < Config::TILES; ++t) {
#pragma unroll
    for (int i = 0; i < Unit::C; ++i) sum += acc[t][i];
  }
  result[blockIdx.x * Config::THREADS + threadIdx.x] = sum;
}
