// Register tiles read without bank conflicts: both shared tiles are rotated inside each group of 8 columns.
//
//   global ──▶ shared As[BM][BK], rotated by bit 3 of the row ──▶ a[TM], a column of A ──┐
//   global ──▶ shared Bs[BK][BN], rotated by column / 32 ───────▶ b[TN], a row of B ─────┴──▶ acc[TM][TN] ──▶ global C
//
//   per step: load both tiles │ barrier: tiles complete │ BK * 64 FMAs │ barrier: tiles may be overwritten
//
// Block: 16 x BM / 8 threads for a BM x 128 tile of C; thread (x, y) owns rows 8y … 8y + 7 and columns 8x … 8x + 7.
// Reads of As: the two rows of a warp are 8 apart, so they differ in bit 3, and the rotation puts their words,
// otherwise in one bank, in adjacent ones. Reads of Bs: lanes x, x + 4, x + 8, x + 12, otherwise in one bank, are
// rotated by 0, 1, 2, 3. Either way one wavefront. A rotation only permutes words inside an aligned group of 8, so
// stores remain runs of adjacent words, free of conflicts too.
__device__ __forceinline__ int rotated(int column, int by) { return (column & ~7) | ((column + by) & 7); }

extern "C" __global__ void __launch_bounds__((Config::BM / Config::TM) * (Config::BN / Config::TN))
    conflict_free(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
                  float alpha, float beta) {
  constexpr int BM = Config::BM;
  constexpr int BN = Config::BN;
  constexpr int BK = Config::BK;
  constexpr int TM = Config::TM;
  constexpr int TN = Config::TN;
  constexpr int THREADS = (BM / TM) * (BN / TN);
  static_assert(TM == 8 && TN == 8 && BK % 8 == 0, "the rotations are made for groups of 8");
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int thread = y * (BN / TN) + x;
  const size_t block_row = size_t(blockIdx.y) * BM;
  const size_t block_column = size_t(blockIdx.x) * BN;

  float acc[TM][TN] = {};
  for (int s = 0; s < k; s += BK) {
#pragma unroll
    for (int r = 0; r < BM; r += THREADS / BK) {
      const int i = r + thread / BK;
      As[i][rotated(thread % BK, i >> 3 & 1)] = A[(block_row + i) * k + s + thread % BK];
    }
#pragma unroll
    for (int r = 0; r < BK; r += THREADS / BN) {
      const int i = r + thread / BN;
      Bs[i][rotated(thread % BN, thread % BN >> 5)] = B[size_t(s + i) * n + block_column + thread % BN];
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < BK; ++p) {
      float a[TM];
      float b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = As[y * TM + i][rotated(p, y & 1)];  // y is the row's bits from 3 on
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j] = Bs[p][rotated(x * TN + j, x >> 2)];
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] += a[i] * b[j];
      }
    }
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < TM; ++i) {
    float* c = &C[(block_row + y * TM + i) * n + block_column + x * TN];
#pragma unroll
    for (int j = 0; j < TN; ++j)
      c[j] = beta == 0.0f ? alpha * acc[i][j] : alpha * acc[i][j] + beta * c[j];  // beta = 0 must not read C
  }
}
