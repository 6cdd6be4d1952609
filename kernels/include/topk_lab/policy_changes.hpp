// Departures from vllm_k512, for study.
#pragma once
#include <topk_lab/policy.hpp>

namespace topk_lab {

struct Changes {
  bool count_neg_inf = vllm_k512.count_neg_inf;
  int32_t final_capacity = vllm_k512.final_capacity;
  bool fits_rule = vllm_k512.fits_rule;
  bool equal_shortcut = vllm_k512.equal_shortcut;
  FinalPad final_pad = vllm_k512.final_pad;
  FinalOrder final_order = vllm_k512.final_order;
  Increments increments = vllm_k512.increments;
  SplitSchedule splits = vllm_k512.splits;
};

constexpr TopKPolicy k512_with(const Changes& changes) {
  TopKPolicy policy = vllm_k512;
  policy.count_neg_inf = changes.count_neg_inf;
  policy.final_capacity = changes.final_capacity;
  policy.fits_rule = changes.fits_rule;
  policy.equal_shortcut = changes.equal_shortcut;
  policy.final_pad = changes.final_pad;
  policy.final_order = changes.final_order;
  policy.increments = changes.increments;
  policy.splits = changes.splits;
  return policy;
}

// vllm_k512 without what crowds: -inf needs no test of its own, since any crowded bin is dealt with as
// the platform likes it best; and no bin of equal logits is refined.
inline constexpr TopKPolicy vllm_k512_uncrowded =
    k512_with({.count_neg_inf = false, .equal_shortcut = true, .increments = Increments::native});

}  // namespace topk_lab
