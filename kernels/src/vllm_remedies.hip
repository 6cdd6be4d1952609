// vllm_k512 with this package's own remedies for crowded bins, one by one, for study. The suffixes and
// fields are those of ABLATIONS in topk_lab/schedules.py.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_changes.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/row_kernels.hpp>

namespace topk_lab {

inline constexpr TopKPolicy shortcut = k512_with({.equal_shortcut = true});

// In place of the source's remedy, which knows -inf alone.
inline constexpr TopKPolicy no_count_wave =
    k512_with({.count_neg_inf = false, .increments = Increments::wave});
inline constexpr TopKPolicy no_count_crowd =
    k512_with({.count_neg_inf = false, .increments = Increments::crowd});

// A control: what the increments cost where no compiler knows that they are increments.
inline constexpr TopKPolicy no_count_opaque =
    k512_with({.count_neg_inf = false, .increments = Increments::opaque});

}  // namespace topk_lab

TOPK_LAB_KERNEL_PAIR(vllm_k512_shortcut, topk_lab::shortcut)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_count_wave, topk_lab::no_count_wave)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_count_crowd, topk_lab::no_count_crowd)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_count_opaque, topk_lab::no_count_opaque)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_splits(params);
  topk_lab::probe_policy<topk_lab::shortcut>(params, 0);
  topk_lab::probe_policy<topk_lab::no_count_wave>(params, 1);
  topk_lab::probe_policy<topk_lab::no_count_crowd>(params, 2);
  topk_lab::probe_policy<topk_lab::no_count_opaque>(params, 3);
}
