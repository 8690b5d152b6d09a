// Copies a box to shared memory through a tensor map in global memory, which was altered a moment before. Thread 0
// makes the map: that of `other`, with the address of the matrix x.
#include "matmill/ptx/mbarrier.cuh"
#include "matmill/ptx/tma.cuh"

using namespace matmill::ptx;

constexpr int BOX_BYTES = Config::ROWS * Config::COLUMNS * int(sizeof(Scalar));

extern "C" __global__ void __launch_bounds__(32)
    retarget_map(const __grid_constant__ matmill::TensorMap other, const Scalar* x, matmill::TensorMap* map, Scalar* d,
                 int pitch) {
  extern __shared__ __align__(128) unsigned char shared[];
  const unsigned box = shared_address(shared), full = box + BOX_BYTES;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    fence_mbarrier_init();
    *map = other;
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map), "l"(x) : "memory");
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    mbarrier_arrive_expect_tx(full, BOX_BYTES);
    tma_load_2d(box, map, full, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(full, 0);
  for (int i = threadIdx.x; i < Config::ROWS * Config::COLUMNS; i += 32) {
    d[i / Config::COLUMNS * pitch + i % Config::COLUMNS] = reinterpret_cast<Scalar*>(shared)[i];
  }
}
