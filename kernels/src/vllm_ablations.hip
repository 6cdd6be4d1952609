// vllm_k512 with one or more of its changes undone, for study. The suffixes and fields are those of
// ABLATIONS in topk_lab/schedules.py.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/row_kernels.hpp>

namespace topk_lab {

struct Changes {
  bool count_neg_inf = vllm_k512.count_neg_inf;
  int32_t final_capacity = vllm_k512.final_capacity;
  bool fits_rule = vllm_k512.fits_rule;
  FinalPad final_pad = vllm_k512.final_pad;
};

constexpr TopKPolicy k512_with(const Changes& changes) {
  TopKPolicy policy = vllm_k512;
  policy.count_neg_inf = changes.count_neg_inf;
  policy.final_capacity = changes.final_capacity;
  policy.fits_rule = changes.fits_rule;
  policy.final_pad = changes.final_pad;
  return policy;
}

inline constexpr TopKPolicy no_count = k512_with({.count_neg_inf = false});
inline constexpr TopKPolicy capacity_2048 = k512_with({.final_capacity = 2048});
inline constexpr TopKPolicy no_fits_rule = k512_with({.fits_rule = false});
inline constexpr TopKPolicy pad_after_all = k512_with({.final_pad = FinalPad::after_all});
inline constexpr TopKPolicy no_fits_rule_pad_after_all =
    k512_with({.fits_rule = false, .final_pad = FinalPad::after_all});
inline constexpr TopKPolicy pad_neg_flt_max = k512_with({.final_pad = FinalPad::neg_flt_max});
inline constexpr TopKPolicy no_fits_rule_pad_neg_flt_max =
    k512_with({.fits_rule = false, .final_pad = FinalPad::neg_flt_max});

}  // namespace topk_lab

TOPK_LAB_KERNEL_PAIR(vllm_k512_no_count, topk_lab::no_count)
TOPK_LAB_KERNEL_PAIR(vllm_k512_capacity_2048, topk_lab::capacity_2048)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule, topk_lab::no_fits_rule)
TOPK_LAB_KERNEL_PAIR(vllm_k512_pad_after_all, topk_lab::pad_after_all)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule_pad_after_all, topk_lab::no_fits_rule_pad_after_all)
TOPK_LAB_KERNEL_PAIR(vllm_k512_pad_neg_flt_max, topk_lab::pad_neg_flt_max)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule_pad_neg_flt_max, topk_lab::no_fits_rule_pad_neg_flt_max)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_splits(params);
  topk_lab::probe_policy<topk_lab::no_count>(params, 0);
  topk_lab::probe_policy<topk_lab::capacity_2048>(params, 1);
  topk_lab::probe_policy<topk_lab::no_fits_rule>(params, 2);
  topk_lab::probe_policy<topk_lab::pad_after_all>(params, 3);
  topk_lab::probe_policy<topk_lab::no_fits_rule_pad_after_all>(params, 4);
  topk_lab::probe_policy<topk_lab::pad_neg_flt_max>(params, 5);
  topk_lab::probe_policy<topk_lab::no_fits_rule_pad_neg_flt_max>(params, 6);
}
