// FlashAttention-3's forward kernel for sm_90: O = softmax(Q K^T / sqrt(128)) V in bf16, of heads of 128 elements;
// Q, K, V and O are (batch, length, heads, 128).
// sizes: batch, length of Q, length of K and V, heads of Q, heads of K and V, 1 for a causal mask.
#include <cmath>

#include "flash_fwd_launch_template.h"

extern "C" int launch(void** arrays, const int* sizes) {
  constexpr int kHead = 128;
  const int heads = sizes[3], heads_k = sizes[4];
  Flash_fwd_params params = {};
  params.b = params.b_k = sizes[0], params.seqlen_q = sizes[1], params.seqlen_k = sizes[2];
  params.h = heads, params.h_k = heads_k, params.d = params.dv = kHead;
  params.q_ptr = arrays[0], params.k_ptr = arrays[1], params.v_ptr = arrays[2], params.o_ptr = arrays[3];
  params.softmax_lse_ptr = arrays[4], params.tile_count_semaphore = static_cast<int*>(arrays[5]);
  params.q_head_stride = params.k_head_stride = params.v_head_stride = params.o_head_stride = kHead;
  params.q_row_stride = params.o_row_stride = heads * kHead;
  params.k_row_stride = params.v_row_stride = heads_k * kHead;
  params.q_batch_stride = params.o_batch_stride = int64_t(params.seqlen_q) * heads * kHead;
  params.k_batch_stride = params.v_batch_stride = int64_t(params.seqlen_k) * heads_k * kHead;
  params.v_dim_stride = 1;
  params.scale_softmax = 1 / std::sqrt(float(kHead));
  params.is_bf16 = true, params.is_causal = sizes[5];
  params.window_size_left = -1, params.window_size_right = sizes[5] ? 0 : -1;
  params.num_splits = 1, params.arch = 90, params.num_sm = 4;
  run_mha_fwd_<90, cutlass::bfloat16_t, kHead, kHead, false, false, false, false>(params, nullptr);
  return 0;
}
