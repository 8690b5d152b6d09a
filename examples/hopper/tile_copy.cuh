// Copies a matrix box by box through shared memory, with two stages: while one box is stored, the next one is loaded.
//
//   thread 0, box i of its own, stage i % 2
//     waits until        how                                        then
//     box i - 1 is read  bulk_wait_read<0>                          loads box i + 1 into that stage
//     box i has come     full[i % 2], parity i / 2 % 2              stores box i, commits
//
// TMA omits what is outside the matrix: it loads zeros there, and stores nothing. The launch is a dependent one: barriers
// are ready before the launch before it ends.
#include "matmill/ptx/dependent_launch.cuh"
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/tma.cuh"

using namespace matmill::ptx;

constexpr int BOX_BYTES = Config::ROWS * Config::COLUMNS * int(sizeof(Scalar));

// As many blocks as one likes. Both maps have boxes of ROWS x COLUMNS and no swizzle.
extern "C" __global__ void __launch_bounds__(32)
    tile_copy(const __grid_constant__ matmill::TensorMap from, const __grid_constant__ matmill::TensorMap to, int rows,
              int columns) {
  extern __shared__ __align__(128) unsigned char shared[];  // two boxes and their barriers
  const unsigned boxes = shared_address(shared), full = boxes + 2 * BOX_BYTES;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(full + 8, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  wait_then_trigger();  // what comes before it overlaps the launch before

  const int across = (columns + Config::COLUMNS - 1) / Config::COLUMNS;
  const int down = (rows + Config::ROWS - 1) / Config::ROWS;
  const auto load = [&](int tile, int stage) {
    mbarrier_arrive_expect_tx(full + 8 * stage, BOX_BYTES);
    tma_load_2d(boxes + stage * BOX_BYTES, &from, full + 8 * stage, tile % across * Config::COLUMNS,
                tile / across * Config::ROWS);
  };
  int tile = blockIdx.x;
  if (tile < across * down) load(tile, 0);
  for (int i = 0; tile < across * down; ++i) {
    const int next = tile + gridDim.x, stage = i % 2;
    bulk_wait_read<0>();
    if (next < across * down) load(next, 1 - stage);
    mbarrier_wait(full + 8 * stage, i / 2 % 2);
    tma_store_2d(&to, boxes + stage * BOX_BYTES, tile % across * Config::COLUMNS, tile / across * Config::ROWS);
    bulk_commit();
    tile = next;
  }
  bulk_wait_read<0>();  // shared memory outlives the stores' reads
}
