// The sum of each row of a matrix, one block of 128 threads per row: wrong, see rowsum.cu.
//
//   each thread adds up every 128th element ── partial[128] in shared memory ── halved until one sum is left
//
// The planted mistake: the last steps, where one warp is at work, go without a barrier. On GPUs before Volta the lanes
// of a warp ran in step, and much code was written that way.
extern "C" __global__ void rowsum(const float* x, float* sums, int columns) {
  __shared__ float partial[128];
  const int t = threadIdx.x;
  float sum = 0;
  for (int c = t; c < columns; c += 128) sum += x[blockIdx.x * columns + c];
  partial[t] = sum;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
    if (step > 32) __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = partial[0];
}
