// Repacked copies of A, B or both in the workspace; see gemm/repack.cuh. grid.x: the blocks of A's vectors, then those
// of B's; a matrix that is not copied has none. `*_first` is the offset of a copy, in elements.
#include "kernels/repack/repack.cuh"
#include "matmill/ptx/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(Config::THREADS) repack(PARAMETERS) {
  matmill::ptx::wait_then_trigger();
  const int a_blocks = (a_vectors + Config::THREADS - 1) / Config::THREADS;
  const int block = blockIdx.x;
  if (block < a_blocks) {
    const int index = block * Config::THREADS + threadIdx.x;
    if (index < a_vectors)
      matmill::repack_vector(A, workspace + a_first, index, a_pitch, a_runs, a_length, a_run_stride, a_stride,
                             a_batch_stride);
  } else {
    const int index = (block - a_blocks) * Config::THREADS + threadIdx.x;
    if (index < b_vectors)
      matmill::repack_vector(B, workspace + b_first, index, b_pitch, b_runs, b_length, b_run_stride, b_stride,
                             b_batch_stride);
  }
}
