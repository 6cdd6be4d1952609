// Step "histogram": how many logits fall into each bin.
#pragma once
#include <topk_lab/bin_counter.hpp>
#include <topk_lab/row_slice.hpp>
#include <topk_lab/selection_storage.hpp>

namespace topk_lab {

// Before: nobody reads the histogram. After (barrier included): histogram[b] is the number of logits
// that match the prefix and fall into bin b.
//
// With count_neg_inf a thread keeps its -inf logits in a register and adds them once: masked rows put
// nearly everything into that one bin. What becomes of other crowded bins is the policy's increments
// (bin_counter.hpp).
template <TopKPolicy Policy, LogitSource Source, int BlockSize, int Step>
__device__ __forceinline__ void histogram_step(SelectionStorage<Policy, BlockSize>& lds,
                                               const RowSlice& slice, uint32_t prefix) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_bins; bin += BlockSize) {
    lds.histogram[bin] = 0;
  }
  __syncthreads();
  BinCounter<Policy.increments> counter{lds.histogram, step_bin<Step, Source>(neg_inf_bits)};
  int32_t neg_inf_count = 0;
  const auto count = [&](uint32_t bits, int32_t) {
    if (!step_matches<Step>(bits, prefix)) return;
    if (Policy.count_neg_inf && bits == neg_inf_bits) {
      ++neg_inf_count;
    } else {
      counter.add(step_bin<Step, Source>(bits));
    }
  };
  const auto look = [&](uint32_t bits) {
    if (!step_matches<Step>(bits, prefix)) return;
    if (Policy.count_neg_inf && bits == neg_inf_bits) return;
    counter.look(step_bin<Step, Source>(bits));
  };
  for_each_logit<Source, BlockSize>(slice, count, look);
  counter.flush();
  if (Policy.count_neg_inf && neg_inf_count > 0) {
    atomicAdd(&lds.histogram[step_bin<Step, Source>(neg_inf_bits)], neg_inf_count);
  }
  __syncthreads();
}

}  // namespace topk_lab
