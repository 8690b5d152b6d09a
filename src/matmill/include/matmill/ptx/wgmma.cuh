// wgmma: matrix products of a warp group, four warps of which the first has a number that 4 divides. PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions". Needs sm_90a.
//
// D (64 x N, float32) gets A (64 x K) times B (K x N), K being 32 bytes of elements, and optionally plus D. Warp w of the
// group has rows 16 w to 16 w + 15; thread 4 g + t of it holds in its sums of D
//
//   d[i]      row 16 w + g + 8 (i / 2 % 2), column 8 (i / 4) + 2 t + i % 2
//
// and, where A comes from registers, bytes 4 t to 4 t + 3 of rows g and g + 8 of its warp's rows of A, then the same 16
// bytes further on: for 16 bits what mma.sync takes.
//
// Products are asynchronous. wgmma_fence() precedes the first one and each change of registers; wgmma_commit() closes a
// group; until wgmma_wait() covers it, neither the sums, nor A's registers, nor the operands in shared memory may change.
// All threads of the warp group execute all of this together. wgmma reads shared memory in the async proxy: what threads
// stored there needs fence_proxy_async_shared() and a barrier first.
#pragma once

#include "matmill/dtype/half.cuh"

namespace matmill::ptx {

// Operands without a C++ type of their own: float32 whose lower 13 bits are ignored, and two types of 8 bits.
struct Tf32 {};
struct E4M3 {};
struct E5M2 {};

// Where an operand is in shared memory: its address, and the distances `leading` and `stride` in bytes, of which the
// layouts below make use. SWIZZLE is 0 or the 32, 64 or 128 bytes of the tensor map that loaded it; rows of 8 times as
// many bytes start at multiples of that. PTX ISA, "Matrix Descriptor Format".
template <int SWIZZLE>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address, unsigned leading, unsigned stride) {
  static_assert(SWIZZLE == 0 || SWIZZLE == 32 || SWIZZLE == 64 || SWIZZLE == 128, "a swizzle of tensor maps");
  constexpr unsigned long long MODE = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : SWIZZLE == 32 ? 3 : 0;
  return (address & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
         MODE << 62;
}

// Rows of k, SWIZZLE bytes each, one after another. The next K is 32 bytes on: later(descriptor, 32).
template <int SWIZZLE>
__device__ __forceinline__ unsigned long long k_major_descriptor(unsigned address) {
  static_assert(SWIZZLE != 0, "rows of 16 bytes have a leading distance");
  return matrix_descriptor<SWIZZLE>(address, 16, 8 * SWIZZLE);
}

// Columns of k: SWIZZLE bytes of m or n for each k. The next such columns are `leading` bytes on, the next 16 of k are
// later(descriptor, 16 * SWIZZLE). Float16 and bfloat16 alone.
template <int SWIZZLE>
__device__ __forceinline__ unsigned long long mn_major_descriptor(unsigned address, unsigned leading) {
  static_assert(SWIZZLE != 0, "columns of 16 bytes have other distances");
  return matrix_descriptor<SWIZZLE>(address, leading, 8 * SWIZZLE);
}

// The descriptor of the same layout, `bytes` further on in shared memory: its lower half has the address, with room for any.
__device__ __forceinline__ unsigned long long later(unsigned long long descriptor, unsigned bytes) {
  return (descriptor & 0xffffffff00000000) | (unsigned(descriptor) + (bytes >> 4));
}

// Orders registers and operands of this warp group before the products that follow.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Closes the group of products since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the newest groups are in flight.
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from reading the sums before this call: it takes those of a product for ready at once. Follows the
// wait that makes them so, and is no instruction.
template <int SUMS>
__device__ __forceinline__ void wgmma_pin(float (&d)[SUMS]) {
#pragma unroll
  for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// One instruction for each N; in its text the registers of D come first.
template <int N>
struct Wgmma;

#define MATMILL_D_4 "%0, %1, %2, %3"
#define MATMILL_D_8 MATMILL_D_4 ", %4, %5, %6, %7"
#define MATMILL_D_12 MATMILL_D_8 ", %8, %9, %10, %11"
#define MATMILL_D_16 MATMILL_D_12 ", %12, %13, %14, %15"
#define MATMILL_D_20 MATMILL_D_16 ", %16, %17, %18, %19"
#define MATMILL_D_24 MATMILL_D_20 ", %20, %21, %22, %23"
#define MATMILL_D_28 MATMILL_D_24 ", %24, %25, %26, %27"
#define MATMILL_D_32 MATMILL_D_28 ", %28, %29, %30, %31"
#define MATMILL_D_40 MATMILL_D_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MATMILL_D_48 MATMILL_D_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MATMILL_D_56 MATMILL_D_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MATMILL_D_64 MATMILL_D_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MATMILL_D_72 MATMILL_D_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MATMILL_D_80 MATMILL_D_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MATMILL_D_88 MATMILL_D_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MATMILL_D_96 MATMILL_D_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MATMILL_D_104 MATMILL_D_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define MATMILL_D_112 MATMILL_D_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define MATMILL_D_120 MATMILL_D_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define MATMILL_D_128 MATMILL_D_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define MATMILL_SUMS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MATMILL_SUMS_8 MATMILL_SUMS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MATMILL_SUMS_12 MATMILL_SUMS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define MATMILL_SUMS_16 MATMILL_SUMS_12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define MATMILL_SUMS_20 MATMILL_SUMS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define MATMILL_SUMS_24 MATMILL_SUMS_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define MATMILL_SUMS_28 MATMILL_SUMS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define MATMILL_SUMS_32 MATMILL_SUMS_28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MATMILL_SUMS_40 MATMILL_SUMS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), \
  "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define MATMILL_SUMS_48 MATMILL_SUMS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), \
  "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define MATMILL_SUMS_56 MATMILL_SUMS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), \
  "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define MATMILL_SUMS_64 MATMILL_SUMS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), \
  "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MATMILL_SUMS_72 MATMILL_SUMS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), \
  "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define MATMILL_SUMS_80 MATMILL_SUMS_72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), \
  "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define MATMILL_SUMS_88 MATMILL_SUMS_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), \
  "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define MATMILL_SUMS_96 MATMILL_SUMS_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), \
  "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define MATMILL_SUMS_104 MATMILL_SUMS_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), \
  "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define MATMILL_SUMS_112 MATMILL_SUMS_104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), \
  "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MATMILL_SUMS_120 MATMILL_SUMS_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), \
  "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define MATMILL_SUMS_128 MATMILL_SUMS_120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), \
  "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// A and B from shared memory, then A from registers. I0 and on are the numbers of the operands after D. Only 16-bit
// operands can be transposed.
#define MATMILL_WGMMA_16(SCALAR, SHAPE, R, I0, I1, I2, I3, I4, I5, I6)                                               \
  template <int TRANSPOSED_A, int TRANSPOSED_B>                                                                      \
  static __device__ __forceinline__ void run(SCALAR, float (&d)[R], unsigned long long a, unsigned long long b,      \
                                             int accumulate) {                                                       \
    asm volatile("{.reg .pred accumulate; setp.ne.b32 accumulate, %" #I2 ", 0; wgmma.mma_async.sync.aligned." SHAPE  \
                 " {" MATMILL_D_##R "}, %" #I0 ", %" #I1 ", accumulate, 1, 1, %" #I3 ", %" #I4 ";}"                  \
                 : MATMILL_SUMS_##R                                                                                  \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(TRANSPOSED_A), "n"(TRANSPOSED_B));                           \
  }                                                                                                                  \
  template <int TRANSPOSED_A, int TRANSPOSED_B>                                                                      \
  static __device__ __forceinline__ void run(SCALAR, float (&d)[R], const unsigned (&a)[4], unsigned long long b,    \
                                             int accumulate) {                                                       \
    static_assert(TRANSPOSED_A == 0, "A in registers has no layout");                                                \
    asm volatile("{.reg .pred accumulate; setp.ne.b32 accumulate, %" #I5 ", 0; wgmma.mma_async.sync.aligned." SHAPE  \
                 " {" MATMILL_D_##R "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", accumulate, 1, 1, %" #I6 \
                 ";}"                                                                                                \
                 : MATMILL_SUMS_##R                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANSPOSED_B));          \
  }

#define MATMILL_WGMMA_K_MAJOR(SCALAR, SHAPE, R, I0, I1, I2, I3, I4, I5)                                              \
  template <int TRANSPOSED_A, int TRANSPOSED_B>                                                                      \
  static __device__ __forceinline__ void run(SCALAR, float (&d)[R], unsigned long long a, unsigned long long b,      \
                                             int accumulate) {                                                       \
    static_assert(TRANSPOSED_A + TRANSPOSED_B == 0, "operands of this type are K-major");                            \
    asm volatile("{.reg .pred accumulate; setp.ne.b32 accumulate, %" #I2 ", 0; wgmma.mma_async.sync.aligned." SHAPE  \
                 " {" MATMILL_D_##R "}, %" #I0 ", %" #I1 ", accumulate, 1, 1;}"                                      \
                 : MATMILL_SUMS_##R                                                                                  \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                 \
  }                                                                                                                  \
  template <int TRANSPOSED_A, int TRANSPOSED_B>                                                                      \
  static __device__ __forceinline__ void run(SCALAR, float (&d)[R], const unsigned (&a)[4], unsigned long long b,    \
                                             int accumulate) {                                                       \
    static_assert(TRANSPOSED_A + TRANSPOSED_B == 0, "operands of this type are K-major");                            \
    asm volatile("{.reg .pred accumulate; setp.ne.b32 accumulate, %" #I5 ", 0; wgmma.mma_async.sync.aligned." SHAPE  \
                 " {" MATMILL_D_##R "}, {%" #I0 ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", accumulate, 1, 1;}"      \
                 : MATMILL_SUMS_##R                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                             \
  }

#define MATMILL_WGMMA(N, R, I0, I1, I2, I3, I4, I5, I6)                                                      \
  template <>                                                                                                \
  struct Wgmma<N> {                                                                                          \
    MATMILL_WGMMA_16(Half, "m64n" #N "k16.f32.f16.f16", R, I0, I1, I2, I3, I4, I5, I6)                       \
    MATMILL_WGMMA_16(BFloat, "m64n" #N "k16.f32.bf16.bf16", R, I0, I1, I2, I3, I4, I5, I6)                   \
    MATMILL_WGMMA_K_MAJOR(Tf32, "m64n" #N "k8.f32.tf32.tf32", R, I0, I1, I2, I3, I4, I5)                     \
    MATMILL_WGMMA_K_MAJOR(E4M3, "m64n" #N "k32.f32.e4m3.e4m3", R, I0, I1, I2, I3, I4, I5)                    \
    MATMILL_WGMMA_K_MAJOR(E5M2, "m64n" #N "k32.f32.e5m2.e5m2", R, I0, I1, I2, I3, I4, I5)                    \
  };

MATMILL_WGMMA(8, 4, 4, 5, 6, 7, 8, 9, 10)
MATMILL_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
MATMILL_WGMMA(24, 12, 12, 13, 14, 15, 16, 17, 18)
MATMILL_WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
MATMILL_WGMMA(40, 20, 20, 21, 22, 23, 24, 25, 26)
MATMILL_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
MATMILL_WGMMA(56, 28, 28, 29, 30, 31, 32, 33, 34)
MATMILL_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
MATMILL_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
MATMILL_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
MATMILL_WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
MATMILL_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
MATMILL_WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
MATMILL_WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
MATMILL_WGMMA(176, 88, 88, 89, 90, 91, 92, 93, 94)
MATMILL_WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
MATMILL_WGMMA(208, 104, 104, 105, 106, 107, 108, 109, 110)
MATMILL_WGMMA(224, 112, 112, 113, 114, 115, 116, 117, 118)
MATMILL_WGMMA(240, 120, 120, 121, 122, 123, 124, 125, 126)
MATMILL_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef MATMILL_WGMMA
#undef MATMILL_WGMMA_K_MAJOR
#undef MATMILL_WGMMA_16

// d = a * b, plus d where `accumulate`, for operands of type T: Half, BFloat, Tf32, E4M3 or E5M2. N is twice the sums per
// thread. `a` is a descriptor, or four registers; TRANSPOSED operands are MN-major. Without `accumulate` the old sums do
// not matter, also where they are NaN.
template <class T, bool TRANSPOSED_A = false, bool TRANSPOSED_B = false, class A, int SUMS>
__device__ __forceinline__ void wgmma(float (&d)[SUMS], const A& a, unsigned long long b, bool accumulate) {
  Wgmma<2 * SUMS>::template run<TRANSPOSED_A, TRANSPOSED_B>(T(), d, a, b, accumulate);
}

}  // namespace matmill::ptx
