// Step "count": how many logits, or how many of those still in question, fall into each of 256 bins.
#pragma once
#include <topk_lab/row_slice.hpp>
#include <topk_lab/stash_storage.hpp>

namespace topk_lab {

// Before (barrier passed): nobody reads the histogram, the counters or the list that is filled next.
// After (barrier included): an empty histogram, an empty list `next`, ties from slot tie_cursor on.
template <StashPolicy Policy>
__device__ __forceinline__ void clear_counts(StashStorage<Policy>& lds, int next,
                                             int32_t tie_cursor) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  if (thread < num_digit_bins) lds.histogram[thread] = 0;
  if (thread == 0) {
    lds.num_stashed[next] = 0;
    lds.tie_cursor = tie_cursor;
  }
  __syncthreads();
}

// After (barrier included): histogram[b] is the number of logits in coarse bin b.
template <StashPolicy Policy>
__device__ __forceinline__ void count_coarse_bins(StashStorage<Policy>& lds,
                                                  const RowSlice& slice) {
  for_each_logit<LogitSource::row, Policy.block_size>(
      slice, [&](uint32_t bits, int32_t) { atomicAdd(&lds.histogram[coarse_bin(bits)], 1); });
  __syncthreads();
}

// After (barrier included): histogram[b] is the number of logits that are still in question and whose
// digit is b. Reads the row once more, whatever the stash holds.
template <StashPolicy Policy>
__device__ __forceinline__ void count_digits(StashStorage<Policy>& lds, const RowSlice& slice,
                                             const Cutoff& cutoff) {
  for_each_logit<LogitSource::row, Policy.block_size>(slice, [&](uint32_t bits, int32_t) {
    if (coarse_bin(bits) != cutoff.coarse_bin) return;
    const uint32_t key = order_key(bits);
    if ((key & cutoff.fixed) == cutoff.prefix) {
      atomicAdd(&lds.histogram[key_digit(key, cutoff.shift)], 1);
    }
  });
  __syncthreads();
}

}  // namespace topk_lab
