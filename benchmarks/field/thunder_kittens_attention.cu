// ThunderKittens' attention for H100, forward: O = softmax(Q K^T / sqrt(128)) V in bf16, all (batch, heads, length, 128).
// sizes: batch, length (a multiple of 384), heads of Q, heads of K and V, 1 for a causal mask.
#define main benchmark_main
#include "mha_h100.cu"

extern "C" int launch(void** arrays, const int* sizes) {
  using Globals = fwd_globals<128>;
  const auto batch = unsigned(sizes[0]), length = unsigned(sizes[1]), heads = unsigned(sizes[2]);
  const auto heads_k = unsigned(sizes[3]);
  const auto at = [&](int i) { return static_cast<bf16*>(arrays[i]); };
  const Globals globals{typename Globals::q_gl{at(0), batch, heads, length, 128U},
                        typename Globals::k_gl{at(1), batch, heads_k, length, 128U},
                        typename Globals::v_gl{at(2), batch, heads_k, length, 128U},
                        typename Globals::l_gl{static_cast<float*>(arrays[4]), batch, heads, 1U, length},
                        typename Globals::o_gl{at(3), batch, heads, length, 128U},
                        int(length),
                        int(heads / heads_k)};
  const dim3 grid(length / (CONSUMER_WARPGROUPS * 64), heads, batch);
  const int shared = kittens::MAX_SHARED_MEMORY - 1024;
  if (sizes[4]) {
    fwd_attend_ker<128, true><<<grid, 32 * NUM_WORKERS, shared>>>(globals);
  } else {
    fwd_attend_ker<128, false><<<grid, 32 * NUM_WORKERS, shared>>>(globals);
  }
  return 0;
}
