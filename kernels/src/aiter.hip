// AITER's top_k_per_row_decode, one block a row: 12 bits a pass, and 11 as smaller devices get it
// (the suffix and field are those of ABLATIONS in topk_lab/schedules.py).
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/one_block_kernels.hpp>
#include <topk_lab/policy_probe.hpp>

namespace topk_lab {

inline constexpr OneBlockPolicy digit11{.digit_bits = 11};

}  // namespace topk_lab

TOPK_LAB_ONE_BLOCK_KERNELS(aiter_one_block, topk_lab::aiter_one_block)
TOPK_LAB_ONE_BLOCK_KERNELS(aiter_one_block_digit11, topk_lab::digit11)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_one_block_policy<topk_lab::aiter_one_block>(params, 0);
  topk_lab::probe_one_block_policy<topk_lab::digit11>(params, 1);
}
