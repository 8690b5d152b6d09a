// The pieces of A and B in the workspace, their exponents, and sizes of the smallest elements: see split.cuh.
// grid.x: A's blocks, then those of B, each whole clusters; none of B's where both share A's pieces. `*_first` is where
// pieces start, in elements of theirs, `*_exponents` where exponents do, in words.
#include "kernels/pieces/split.cuh"
#include "matmill/ptx/dependent_launch.cuh"

using Piece = matmill::PieceOf<Config::PIECES>;

// Splits one matrix with the block's share of its `blocks`. Returns the size of the smallest element.
template <bool ALONG_K, int RUN_THREADS>
__device__ __forceinline__ unsigned split_matrix(const matmill::SplitMatrix<Piece>& x, int block, int blocks) {
  if constexpr (ALONG_K || !Piece::SCALED) {
    matmill::RunSplitter<Piece, Config::THREADS, RUN_THREADS> splitter{x};
    if (!Piece::SCALED && x.stride != 1 && x.run_stride == 1) {
      splitter.run_transposed(block, blocks);
    } else {
      splitter.run(block, blocks);
    }
    return splitter.smallest;
  } else {
    extern __shared__ __align__(16) float staged[];
    matmill::ColumnSplitter<Piece, Config::THREADS, Config::STAGED> splitter{x, staged};
    const int size = int(matmill::ptx::cluster_size());
    splitter.run(block / size, blocks / size);
    return splitter.smallest;
  }
}

// Stores the smallest of all threads' sizes at the block's index of its matrix, and behind those of the last block what
// says that there is no element.
__device__ __forceinline__ void store_smallest(unsigned smallest, unsigned* sizes, int block, int blocks) {
  __shared__ unsigned of_block;
  if (threadIdx.x == 0) of_block = matmill::NO_ELEMENT;
  __syncthreads();
  atomicMin(&of_block, smallest);
  __syncthreads();
  if (threadIdx.x == 0) sizes[block] = of_block;
  if (block > 0) return;
  for (int i = blocks + threadIdx.x; i < matmill::SIZES; i += Config::THREADS) sizes[i] = matmill::NO_ELEMENT;
}

extern "C" __global__ void __launch_bounds__(Config::THREADS, 2) split(PARAMETERS) {
  // It does not trigger the product, whose blocks then start when these end: those that start earlier and wait cost 10 us
  // on an H200 where another kernel ran before.
  matmill::ptx::wait_on_dependency();
  using Matrix = matmill::SplitMatrix<Piece>;
  auto* const pieces = static_cast<typename Piece::Type*>(workspace);
  auto* const exponents = static_cast<int*>(workspace);
  auto* const sizes = static_cast<unsigned*>(workspace);
  const int block = blockIdx.x, b_blocks = gridDim.x - a_blocks;
  if (block < a_blocks) {
    const Matrix a{A, pieces + a_first, exponents + a_exponents, a_count, a_runs, a_length, a_pitch,
                   a_run_stride, a_stride, a_batch_stride};
    const unsigned smallest = split_matrix<Config::A_K_INNER != 0, Config::A_RUN_THREADS>(a, block, a_blocks);
    store_smallest(smallest, sizes, block, a_blocks);
    if (b_blocks == 0) store_smallest(smallest, sizes + matmill::SIZES, block, a_blocks);  // B is A's transpose
  } else {
    const Matrix b{B, pieces + b_first, exponents + b_exponents, b_count, b_runs, b_length, b_pitch,
                   b_run_stride, b_stride, b_batch_stride};
    store_smallest(split_matrix<Config::B_K_INNER != 0, Config::B_RUN_THREADS>(b, block - a_blocks, b_blocks),
                   sizes + matmill::SIZES, block - a_blocks, b_blocks);
  }
}
