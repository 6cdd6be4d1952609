// The k best of a row of more than k logits, by one block that keeps candidates on chip.
#pragma once
#include <topk_lab/digit_histogram.hpp>
#include <topk_lab/stash.hpp>
#include <topk_lab/suffix_sum.hpp>

namespace topk_lab {

inline constexpr int num_passes = 5;  // coarse, and the four digits of the key

// Fields of a pass that are known when its threshold bin is: those of the collection follow.
template <StashPolicy Policy>
__device__ __forceinline__ void record_threshold(const StashStorage<Policy>& lds, TraceStep* trace,
                                                 int pass, uint32_t prefix, const Cutoff& cutoff) {
  if (threadIdx.x != 0) return;
  trace[pass].step = pass;
  trace[pass].prefix = prefix;
  trace[pass].threshold_bin = lds.threshold_bin;
  trace[pass].bin_size = lds.bin_size;
  trace[pass].above = cutoff.k - cutoff.remaining_k;
  trace[pass].emitted = 0;
  trace[pass].candidates = 0;
  trace[pass].fits = lds.bin_size <= stash_capacity<Policy> ? 1 : 0;
}

template <StashPolicy Policy>
__device__ __forceinline__ void record_collection(const StashStorage<Policy>& lds, TraceStep* trace,
                                                  int pass, int32_t stashed, const Cutoff& cutoff) {
  if (threadIdx.x != 0) return;
  const bool ties = cutoff.remaining_k > 0 && cutoff.shift < 0;
  trace[pass].emitted = ties ? (lds.tie_cursor < cutoff.k ? lds.tie_cursor : cutoff.k) : lds.found;
  trace[pass].candidates = stashed;
}

template <bool Traced>
__device__ __forceinline__ void copy_digit_histogram(const int32_t* histogram, TraceStep* trace,
                                                     int pass) {
  if constexpr (Traced) {
    const int32_t bin = static_cast<int32_t>(threadIdx.x);
    // A thread's own bin: the sums leave it alone until their first barrier.
    if (bin < num_digit_bins) trace[pass].histogram[bin] = static_cast<uint32_t>(histogram[bin]);
  }
}

// Before: slice.length > k. After (barrier included): lds.positions holds k distinct positions; their
// logits are the k best of the slice, unless candidates were dropped.
//
//   1. Count all logits by coarse bin; the threshold bin is the cutoff so far.
//   2. Overflow::rescan: while more logits are in question than the stash holds, count those over the
//      row by the next digit. Nothing is selected yet.
//   3. Collect: one more read of the row.
//   4. While digits are left and winners are missing, find the next digit's threshold bin and refine
//      the stash.
//
// Reads of the row: 2 where the coarse bin fits; else at most 6, one for each digit counted in step 2
// beside these. Nothing on chip depends on the logits' distribution.
template <StashPolicy Policy, bool Traced>
__device__ __forceinline__ void select_with_stash(StashStorage<Policy>& lds, int32_t* stash,
                                                  const RowSlice& slice, int32_t k,
                                                  TraceStep* trace) {
  Cutoff cutoff{.k = k, .coarse_bin = 0, .prefix = 0, .fixed = 0, .shift = 24, .remaining_k = k};
  int pass = 0;
  if (threadIdx.x == 0) lds.found = 0;
  clear_counts(lds, 0, 0);
  count_coarse_bins(lds, slice);
  copy_digit_histogram<Traced>(lds.histogram, trace, pass);
  find_threshold_digit(lds, k);
  cutoff.coarse_bin = wave_uniform(lds.threshold_bin);
  cutoff.remaining_k = k - wave_uniform(lds.above);
  if constexpr (Traced) record_threshold(lds, trace, pass, 0u, cutoff);

  // One digit further: counted, its threshold bin is fixed in the cutoff.
  const auto next_digit = [&] {
    ++pass;
    copy_digit_histogram<Traced>(lds.histogram, trace, pass);
    find_threshold_digit(lds, cutoff.remaining_k);
    const int32_t digit = wave_uniform(lds.threshold_bin);
    const uint32_t prefix = cutoff.prefix;
    fix_digit(cutoff, digit, wave_uniform(lds.above));
    if constexpr (Traced) record_threshold(lds, trace, pass, prefix, cutoff);
    return digit;
  };

  if constexpr (Policy.overflow == Overflow::rescan) {
#pragma unroll 1
    while (wave_uniform(lds.bin_size) > stash_capacity<Policy> && cutoff.remaining_k > 0 &&
           cutoff.shift >= 0) {
      clear_counts(lds, 0, 0);
      count_digits(lds, slice, cutoff);
      next_digit();
    }
  }

  int list = 0;
  clear_counts(lds, list, k - cutoff.remaining_k);
  collect_candidates(lds, stash, slice, cutoff);
  const auto num_stashed = [&] {
    const int32_t num = wave_uniform(lds.num_stashed[list]);
    return num < stash_capacity<Policy> ? num : stash_capacity<Policy>;
  };
  if constexpr (Traced) record_collection(lds, trace, pass, num_stashed(), cutoff);
#pragma unroll 1
  while (cutoff.remaining_k > 0 && cutoff.shift >= 0) {
    const int32_t digit = next_digit();
    const int32_t num_items = num_stashed();
    clear_counts(lds, 1 - list, k - cutoff.remaining_k);
    refine_stash(lds, stash, list, num_items, slice, cutoff, digit);
    list = 1 - list;
    if constexpr (Traced) record_collection(lds, trace, pass, num_stashed(), cutoff);
  }
}

}  // namespace topk_lab
