// mma.sync on 8-bit integers. PTX ISA, "Warp-level matrix instructions: mma", with its section on the fragments of
// m16n8k32. Needs sm_80.
//
// Lane 4 g + t holds four bytes a register: columns 4 t, ... of rows g and g + 8 of A, then columns 4 t + 16, ... of the
// same rows; rows 4 t, ... of column g of B, then rows 4 t + 16, ...; columns 2 t, 2 t + 1 of rows g and g + 8 of C and D.
#pragma once

namespace matmill::ptx {

// c += a * b, which wraps around.
__device__ __forceinline__ void mma_m16n8k32(signed char, unsigned (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k32(unsigned char, unsigned (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace matmill::ptx
