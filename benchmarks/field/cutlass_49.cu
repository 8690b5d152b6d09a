// CUTLASS's example 49, one product by seven schedules: D (m, n) = A (m, k) B (n, k)^T + C / 2, of half_t; A and B
// row-major, C and D column-major.
// sizes: m, n, k, the schedule by its place in the example's main, the SMs for persistent schedules.
#define main example_main
#include "49_collective_builder.cu"

namespace {

template <class Runner, bool kCustomEpilogue = false>
int run_product(void** arrays, const int* sizes) {
  using Gemm = typename Runner::Gemm;
  const int m = sizes[0], n = sizes[1], k = sizes[2];
  const auto at = [&](int i) { return static_cast<cutlass::half_t*>(arrays[i]); };
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = sizes[4];
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {m, n, k, 1},
      {at(0), cutlass::make_cute_packed_stride(typename Runner::StrideA{}, {m, k, 1}), at(1),
       cutlass::make_cute_packed_stride(typename Runner::StrideB{}, {n, k, 1})},
      {{}, at(2), cutlass::make_cute_packed_stride(typename Runner::StrideC{}, {m, n, 1}), at(3),
       cutlass::make_cute_packed_stride(typename Runner::StrideD{}, {m, n, 1})},
      hardware};
  if constexpr (kCustomEpilogue) {
    arguments.epilogue.thread = {{{0.5f}}, {}, {{{1.f}}, {}, {}}, {}};
  } else {
    arguments.epilogue.thread.alpha = 1.f;
    arguments.epilogue.thread.beta = 0.5f;
  }
  Gemm gemm;
  cutlass::device_memory::allocation<uint8_t> workspace(Gemm::get_workspace_size(arguments));
  if (gemm.initialize(arguments, workspace.get()) != cutlass::Status::kSuccess) return 1;
  return gemm.run() != cutlass::Status::kSuccess;
}

}  // namespace

extern "C" int launch(void** arrays, const int* sizes) {
  using namespace cutlass;
  using gemm::KernelTma, gemm::KernelTmaWarpSpecialized, gemm::KernelTmaWarpSpecializedPingpong;
  using gemm::KernelTmaWarpSpecializedCooperative, gemm::collective::StageCountAuto;
  using epilogue::TmaWarpSpecializedCooperative;
  switch (sizes[3]) {
    case 0: return run_product<ExampleRunner<>>(arrays, sizes);
    case 1:
      return run_product<ExampleRunner<gemm::collective::KernelScheduleAuto, epilogue::collective::EpilogueScheduleAuto, _5>>(
          arrays, sizes);
    case 2: return run_product<ExampleRunner<KernelTma, epilogue::NoSmemWarpSpecialized>>(arrays, sizes);
    case 3: return run_product<ExampleRunner<KernelTmaWarpSpecialized, epilogue::NoSmemWarpSpecialized>>(arrays, sizes);
    case 4:
      return run_product<ExampleRunner<KernelTmaWarpSpecializedPingpong, epilogue::TmaWarpSpecialized>>(arrays, sizes);
    case 5:
      return run_product<ExampleRunner<KernelTmaWarpSpecializedCooperative, TmaWarpSpecializedCooperative, StageCountAuto,
                                   gemm::StreamKScheduler>>(arrays, sizes);
    case 6:
      return run_product<ExampleRunner<KernelTmaWarpSpecializedCooperative, TmaWarpSpecializedCooperative, StageCountAuto,
                                   gemm::PersistentScheduler, true>,
                     true>(arrays, sizes);
  }
  return 1;
}
