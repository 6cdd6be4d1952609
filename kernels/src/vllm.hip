// The two vLLM selections: before #56743 (vllm_generic) and after it for k = 512 (vllm_k512); and the
// latter without the contention that it leaves (vllm_k512_uncrowded).
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_changes.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/row_kernels.hpp>

namespace topk_lab {

// Narrow buffers never hold enough final items for a sort to pay.
inline constexpr TopKPolicy vllm_generic_rank_count{.final_order = FinalOrder::rank_count};

}  // namespace topk_lab

TOPK_LAB_KERNEL_PAIR(vllm_generic, topk_lab::vllm_generic)
TOPK_LAB_KERNEL_PAIR(vllm_k512, topk_lab::vllm_k512)
TOPK_LAB_KERNEL_PAIR(vllm_k512_uncrowded, topk_lab::vllm_k512_uncrowded)

TOPK_LAB_KERNEL(vllm_generic_rank_count_select, select_splits, topk_lab::vllm_generic_rank_count,
                topk_lab::vllm_generic_rank_count.block_size, false)
TOPK_LAB_KERNEL(vllm_generic_rank_count_select_traced, select_splits,
                topk_lab::vllm_generic_rank_count, topk_lab::vllm_generic_rank_count.block_size,
                true)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_splits(params);
  topk_lab::probe_policy<topk_lab::vllm_generic>(params, 0);
  topk_lab::probe_policy<topk_lab::vllm_k512>(params, 1);
  topk_lab::probe_policy<topk_lab::vllm_k512_uncrowded>(params, 2);
}
