// TM x TN = 8 x 8 outputs per thread, held in registers.
//
//   global ──▶ shared As[BM][BK] ──▶ a[TM], one column of A ──┐
//   global ──▶ shared Bs[BK][BN] ──▶ b[TN], one row of B ─────┴──▶ acc[TM][TN] ──▶ global C
//
//   per step: load both tiles │ barrier: tiles complete │ BK * 64 FMAs │ barrier: tiles may be overwritten
//
// Block: 16 x 16 threads for a 128 x 128 tile of C; thread (x, y) owns rows 8y … 8y + 7 and columns 8x … 8x + 7.
// Reads of As: a warp reads two rows, 8 * 16 words apart, so both words are in one bank: 2 wavefronts. Reads of Bs: 16
// words, 8 apart, four each in banks j, j + 8, j + 16 and j + 24: 4 wavefronts. The minimum is one for either. Stores
// to both tiles are runs of adjacent words, free of conflicts. C is written in words 32 bytes apart, each in its own
// sector.
extern "C" __global__ void __launch_bounds__((Config::BM / Config::TM) * (Config::BN / Config::TN))
    register_tile(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int m, int n, int k,
                  float alpha, float beta) {
  constexpr int BM = Config::BM;
  constexpr int BN = Config::BN;
  constexpr int BK = Config::BK;
  constexpr int TM = Config::TM;
  constexpr int TN = Config::TN;
  constexpr int THREADS = (BM / TM) * (BN / TN);
  __shared__ float As[BM][BK];
  __shared__ float Bs[BK][BN];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  const int thread = y * (BN / TN) + x;
  const size_t block_row = size_t(blockIdx.y) * BM;
  const size_t block_column = size_t(blockIdx.x) * BN;

  // volatile, because the compiler would otherwise fuse adjacent reads into 16-byte ones. That is another idea, with
  // its own conflicts; here every read is one word, as in the source.
  const volatile float* a_words = &As[y * TM][0];
  const volatile float* b_words = &Bs[0][x * TN];

  float acc[TM][TN] = {};
  for (int s = 0; s < k; s += BK) {
#pragma unroll
    for (int r = 0; r < BM; r += THREADS / BK) {
      const int i = r + thread / BK;
      As[i][thread % BK] = A[(block_row + i) * k + s + thread % BK];
    }
#pragma unroll
    for (int r = 0; r < BK; r += THREADS / BN) {
      const int i = r + thread / BN;
      Bs[i][thread % BN] = B[size_t(s + i) * n + block_column + thread % BN];
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < BK; ++p) {
      float a[TM];
      float b[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = a_words[i * BK + p];
#pragma unroll
      for (int j = 0; j < TN; ++j) b[j] = b_words[p * BN + j];
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
