// The k-th key of a row of more than k logits, by one block that reads the row once a pass.
#pragma once
#include <topk_lab/digit_bin.hpp>
#include <topk_lab/matching_digits.hpp>

namespace topk_lab {

// What is known of a pass when its digit is fixed; nothing is emitted yet.
template <OneBlockPolicy Policy>
__device__ __forceinline__ void record_pass(const OneBlockStorage<Policy>& lds, TraceStep* trace,
                                            uint32_t prefix, const KeyCutoff& cutoff) {
  if (threadIdx.x != 0) return;
  const bool settled = lds.bin_size == cutoff.remaining_k;
  const bool last = settled || cutoff.num_digits == num_digit_passes<Policy>;
  TraceStep& record = trace[cutoff.num_digits - 1];
  record.step = cutoff.num_digits - 1;
  record.prefix = prefix;
  record.threshold_bin = lds.threshold_bin;
  record.bin_size = lds.bin_size;
  record.above = cutoff.k - cutoff.remaining_k;
  record.emitted = 0;
  record.candidates = last ? 0 : lds.bin_size;
  record.fits = settled ? 1 : 0;
}

// Before: slice.length > k. Before each pass 0 < remaining_k <= the number of logits in question.
// After (barrier included): fewer than k logits order before the prefix; they, and remaining_k of those
// that agree with it, are the k best. Either these are all that agree, or no digit is left, and they are
// equal. found and ties are 0.
//
//   1. Count the next digit of the logits that agree with the prefix.
//   2. Find the bin that holds the k-th, and fix it in the prefix.
//   3. Stop early where all of that bin is wanted: no later digit matters.
//
// Reads of the row: one a pass, three at most.
template <OneBlockPolicy Policy, Emission Kind, bool Traced>
__device__ __forceinline__ KeyCutoff find_cutoff(OneBlockStorage<Policy>& lds,
                                                 const RowSlice& slice, int32_t k,
                                                 TraceStep* trace) {
  static_assert(num_histogram_bins<Policy> <= trace_bins);
  KeyCutoff cutoff{.k = k, .prefix = 0, .fixed = 0, .num_digits = 0, .remaining_k = k};
  if (threadIdx.x == 0) {
    lds.found = 0;
    lds.ties = 0;
  }
  bool settled = false;
#pragma unroll 1
  while (!settled && cutoff.num_digits < num_digit_passes<Policy>) {
    const Digit digit = digit_of_pass<Policy>(cutoff.num_digits);
    count_matching_digits<Policy, Kind>(lds, slice, cutoff, digit);
    if constexpr (Traced) {
      for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_histogram_bins<Policy>;
           bin += Policy.block_size) {
        trace[cutoff.num_digits].histogram[bin] = static_cast<uint32_t>(lds.histogram[bin]);
      }
    }
    find_digit_bin(lds, cutoff.remaining_k);
    const uint32_t prefix = cutoff.prefix;
    fix_digit(cutoff, digit, wave_uniform(lds.threshold_bin), wave_uniform(lds.above));
    settled = wave_uniform(lds.bin_size) == cutoff.remaining_k;
    if constexpr (Traced) record_pass(lds, trace, prefix, cutoff);
  }
  return cutoff;
}

}  // namespace topk_lab
