// vllm_k512 with one or more of its changes undone, for study. The suffixes and fields are those of
// ABLATIONS in topk_lab/schedules.py.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_changes.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/row_kernels.hpp>

namespace topk_lab {

// One change alone.
inline constexpr TopKPolicy no_count = k512_with({.count_neg_inf = false});
inline constexpr TopKPolicy capacity_2048 = k512_with({.final_capacity = 2048});
inline constexpr TopKPolicy rank_count = k512_with({.final_order = FinalOrder::rank_count});
inline constexpr TopKPolicy radix_sort = k512_with({.final_order = FinalOrder::radix_sort});

// The rule on the -inf bin, and the pads.
inline constexpr TopKPolicy no_fits_rule = k512_with({.fits_rule = false});
inline constexpr TopKPolicy pad_after_all = k512_with({.final_pad = FinalPad::after_all});
inline constexpr TopKPolicy no_fits_rule_pad_after_all =
    k512_with({.fits_rule = false, .final_pad = FinalPad::after_all});
inline constexpr TopKPolicy pad_neg_flt_max = k512_with({.final_pad = FinalPad::neg_flt_max});
inline constexpr TopKPolicy no_fits_rule_pad_neg_flt_max =
    k512_with({.fits_rule = false, .final_pad = FinalPad::neg_flt_max});

// On the way from none of the changes to all: the capacity, then the order, then (no_count) the rule.
inline constexpr TopKPolicy no_changes = k512_with({.count_neg_inf = false,
                                                    .final_capacity = 2048,
                                                    .fits_rule = false,
                                                    .final_pad = FinalPad::after_all,
                                                    .final_order = FinalOrder::radix_sort});
inline constexpr TopKPolicy capacity_alone = k512_with({.count_neg_inf = false,
                                                        .fits_rule = false,
                                                        .final_pad = FinalPad::after_all,
                                                        .final_order = FinalOrder::radix_sort});
inline constexpr TopKPolicy capacity_and_order =
    k512_with({.count_neg_inf = false, .fits_rule = false, .final_pad = FinalPad::after_all});

}  // namespace topk_lab

TOPK_LAB_KERNEL_PAIR(vllm_k512_no_count, topk_lab::no_count)
TOPK_LAB_KERNEL_PAIR(vllm_k512_capacity_2048, topk_lab::capacity_2048)
TOPK_LAB_KERNEL_PAIR(vllm_k512_rank_count, topk_lab::rank_count)
TOPK_LAB_KERNEL_PAIR(vllm_k512_radix_sort, topk_lab::radix_sort)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule, topk_lab::no_fits_rule)
TOPK_LAB_KERNEL_PAIR(vllm_k512_pad_after_all, topk_lab::pad_after_all)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule_pad_after_all, topk_lab::no_fits_rule_pad_after_all)
TOPK_LAB_KERNEL_PAIR(vllm_k512_pad_neg_flt_max, topk_lab::pad_neg_flt_max)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_fits_rule_pad_neg_flt_max, topk_lab::no_fits_rule_pad_neg_flt_max)
TOPK_LAB_KERNEL_PAIR(vllm_k512_no_changes, topk_lab::no_changes)
TOPK_LAB_KERNEL_PAIR(vllm_k512_capacity_alone, topk_lab::capacity_alone)
TOPK_LAB_KERNEL_PAIR(vllm_k512_capacity_and_order, topk_lab::capacity_and_order)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_splits(params);
  topk_lab::probe_policy<topk_lab::no_count>(params, 0);
  topk_lab::probe_policy<topk_lab::capacity_2048>(params, 1);
  topk_lab::probe_policy<topk_lab::rank_count>(params, 2);
  topk_lab::probe_policy<topk_lab::radix_sort>(params, 3);
  topk_lab::probe_policy<topk_lab::no_fits_rule>(params, 4);
  topk_lab::probe_policy<topk_lab::pad_after_all>(params, 5);
  topk_lab::probe_policy<topk_lab::no_fits_rule_pad_after_all>(params, 6);
  topk_lab::probe_policy<topk_lab::pad_neg_flt_max>(params, 7);
  topk_lab::probe_policy<topk_lab::no_fits_rule_pad_neg_flt_max>(params, 8);
  topk_lab::probe_policy<topk_lab::no_changes>(params, 9);
  topk_lab::probe_policy<topk_lab::capacity_alone>(params, 10);
  topk_lab::probe_policy<topk_lab::capacity_and_order>(params, 11);
}
