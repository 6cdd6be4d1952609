// The k best of a slice that holds more than k logits, by one block: up to four radix steps, each a
// histogram, a threshold bin and a collection, until the threshold bin fits on chip or holds equal
// logits only.
#pragma once
#include <topk_lab/final_items.hpp>
#include <topk_lab/histogram_step.hpp>
#include <topk_lab/threshold_bin.hpp>

namespace topk_lab {

__device__ __forceinline__ void copy_histogram(const int32_t* histogram, TraceStep* trace,
                                               int block_size) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_bins; bin += block_size) {
    trace->histogram[bin] = static_cast<uint32_t>(histogram[bin]);
  }
}

// What a radix step leaves to be done.
enum class Remaining : int32_t { next_step, final_items, nothing };

// One radix step.
template <TopKPolicy Policy, LogitSource Source, int BlockSize, bool Traced, int Step>
__device__ __forceinline__ Remaining radix_step(SelectionStorage<Policy, BlockSize>& lds,
                                                const RowSlice& slice, int32_t k,
                                                const Selected& selected, uint32_t& prefix,
                                                TraceStep* trace) {
  histogram_step<Policy, Source, BlockSize, Step>(lds, slice, prefix);
  if constexpr (Traced) copy_histogram(lds.histogram, trace + Step, BlockSize);
  find_threshold_bin<Policy, BlockSize>(lds, k);
  const int32_t threshold_bin = wave_uniform(lds.threshold_bin);
  const int32_t bin_size = wave_uniform(lds.bin_size);
  const int32_t above = wave_uniform(lds.above);
  const bool fits = final_bin_fits<Policy, Source, Step>(threshold_bin, bin_size, prefix);
  bool equal = Step == num_steps - 1;
  if (Policy.equal_shortcut && (equal || !fits)) {
    equal = collect_equal<Policy, Source, BlockSize, Step>(lds, slice, prefix, threshold_bin, above,
                                                           k, selected);
  } else {
    collect<Policy, Source, BlockSize, Step>(lds, slice, prefix, threshold_bin, fits, k, selected);
  }
  if constexpr (Traced) {
    if (threadIdx.x == 0) {
      trace[Step].step = Step;
      trace[Step].prefix = prefix;
      trace[Step].threshold_bin = threshold_bin;
      trace[Step].bin_size = bin_size;
      trace[Step].above = above;
      trace[Step].emitted = equal ? (lds.tie_cursor < k ? lds.tie_cursor : k) : lds.found;
      trace[Step].candidates = lds.num_items;
      trace[Step].fits = fits ? 1 : 0;
    }
  }
  prefix = extend_prefix<Step>(prefix, threshold_bin);
  return equal ? Remaining::nothing : fits ? Remaining::final_items : Remaining::next_step;
}

// Before: slice.length > k. After (barrier included): selected holds k distinct positions, whose
// values are the k best of the slice.
template <TopKPolicy Policy, LogitSource Source, int BlockSize, bool Traced>
__device__ __forceinline__ void select_row(SelectionStorage<Policy, BlockSize>& lds,
                                           const RowSlice& slice, int32_t k,
                                           const Selected& selected, TraceStep* trace) {
  if (threadIdx.x == 0) {
    lds.found = 0;
    lds.num_items = 0;
  }
  uint32_t prefix = 0;
  const auto step = [&]<int Step>() {
    return radix_step<Policy, Source, BlockSize, Traced, Step>(lds, slice, k, selected, prefix,
                                                               trace);
  };
  Remaining remaining = step.template operator()<0>();
  if (remaining == Remaining::next_step) remaining = step.template operator()<1>();
  if (remaining == Remaining::next_step) remaining = step.template operator()<2>();
  if (remaining == Remaining::next_step) remaining = step.template operator()<3>();
  if (remaining == Remaining::final_items) {
    order_final_items<Policy, BlockSize>(lds, wave_uniform(lds.above), k, selected);
    __syncthreads();
  }
}

}  // namespace topk_lab
