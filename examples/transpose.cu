// A matrix is transposed through a tile of shared memory. Without padding, the reads of a column meet in one bank.
template <int PAD>
__global__ void transpose(const float* in, float* out, int n) {
  __shared__ float tile[32][32 + PAD];
  const int x = blockIdx.x * 32, y = blockIdx.y * 32;
  tile[threadIdx.y][threadIdx.x] = in[(y + threadIdx.y) * n + x + threadIdx.x];
  __syncthreads();
  out[(x + threadIdx.y) * n + y + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}

void launch(const float* in, float* out) {
  transpose<0><<<dim3(4, 4), dim3(32, 32)>>>(in, out, 128);
  transpose<1><<<dim3(4, 4), dim3(32, 32)>>>(in, out, 128);
}
