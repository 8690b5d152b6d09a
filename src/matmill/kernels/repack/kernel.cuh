// Repacked copies of A, B or both in the workspace; see gemm/repack.cuh. grid.x: the blocks of A's vectors, then those
// of B's; a matrix that is not copied has none. `*_first` is the offset of a copy, in elements.
#include "matmill/gemm/repack.cuh"
#include "matmill/ptx/dependent_launch.cuh"

extern "C" __global__ void __launch_bounds__(Config::THREADS) repack(const __grid_constant__ Args args) {
  matmill::ptx::wait_then_trigger();
  const int a_blocks = (args.a_vectors + Config::THREADS - 1) / Config::THREADS;
  const int block = blockIdx.x;
  if (block < a_blocks) {
    const int index = block * Config::THREADS + threadIdx.x;
    if (index < args.a_vectors)
      matmill::repack_vector(args.A, args.workspace + args.a_first, index, args.a_lines, args.a_length,
                             args.a_line_stride, args.a_stride, args.a_batch_stride, args.a_width);
  } else {
    const int index = (block - a_blocks) * Config::THREADS + threadIdx.x;
    if (index < args.b_vectors)
      matmill::repack_vector(args.B, args.workspace + args.b_first, index, args.b_lines, args.b_length,
                             args.b_line_stride, args.b_stride, args.b_batch_stride, args.b_width);
  }
}
