// The sum of each row of a matrix, one block of 128 threads per row.
//
//   each thread adds up every 128th element ── partial[128] in shared memory ── halved until one sum is left
extern "C" __global__ void rowsum(const float* x, float* sums, int columns) {
  __shared__ float partial[128];
  const int t = threadIdx.x;
  float sum = 0;
  for (int c = t; c < columns; c += 128) sum += x[blockIdx.x * columns + c];
  partial[t] = sum;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
    __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = partial[0];
}
