// SGLang's deepseek_v4_topk_transform: before #36004 (512 threads on a row) and after it (1024).
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/stash_kernels.hpp>

TOPK_LAB_PAGED_KERNEL(sglang_block512, topk_lab::sglang_block512)
TOPK_LAB_PAGED_KERNEL(sglang_block1024, topk_lab::sglang_block1024)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_stash_policy<topk_lab::sglang_block512>(params, 0);
  topk_lab::probe_stash_policy<topk_lab::sglang_block1024>(params, 1);
}
