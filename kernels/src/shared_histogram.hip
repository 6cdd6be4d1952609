// SGLang's second version for ROCm: blocks that share a row count it, then select from it, together.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/shared_kernels.hpp>

#define TOPK_LAB_SHARED_KERNEL(name, body, traced)                                  \
  TOPK_LAB_KERNEL_OF(SharedHistogramParams, name, body, topk_lab::shared_histogram, \
                     topk_lab::shared_histogram.block_size, traced)

TOPK_LAB_SHARED_KERNEL(shared_histogram_clear, clear_shared, false)
TOPK_LAB_SHARED_KERNEL(shared_histogram_count, count_shared, false)
TOPK_LAB_SHARED_KERNEL(shared_histogram_count_traced, count_shared, true)
TOPK_LAB_SHARED_KERNEL(shared_histogram_select, select_shared, false)
TOPK_LAB_SHARED_KERNEL(shared_histogram_select_traced, select_shared, true)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_shared_blocks(params);
  topk_lab::probe_shared_histogram_policy<topk_lab::shared_histogram>(params, 0);
}
