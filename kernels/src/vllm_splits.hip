// vllm_k512 under other schedules of the splits of a row. The suffixes and fields are those of ABLATIONS
// in topk_lab/schedules.py.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_changes.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/row_kernels.hpp>

namespace topk_lab {

inline constexpr TopKPolicy h200_splits_policy = k512_with({.splits = SplitSchedule::h200});

// The launch says how many: what every schedule is compared with.
inline constexpr TopKPolicy fixed_splits = k512_with({.splits = SplitSchedule::fixed});

}  // namespace topk_lab

TOPK_LAB_KERNEL_PAIR(vllm_k512_h200_splits, topk_lab::h200_splits_policy)
TOPK_LAB_KERNEL_PAIR(vllm_k512_fixed_splits, topk_lab::fixed_splits)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_splits(params);
  topk_lab::probe_policy<topk_lab::h200_splits_policy>(params, 0);
  topk_lab::probe_policy<topk_lab::fixed_splits>(params, 1);
}
