// Step "threshold bin": the bin of 256 that holds the k-th logit, by a suffix sum over the bins.
#pragma once
#include <topk_lab/stash_storage.hpp>

namespace topk_lab {

// After (barrier included): histogram[b] is the population of bin b and of all better, that is higher,
// bins. Rounds go to and fro between two arrays, a barrier each.
template <StashPolicy Policy>
__device__ __forceinline__ void suffix_sum(StashStorage<Policy>& lds) {
  static_assert(Policy.block_size >= num_digit_bins);
  const int32_t bin = static_cast<int32_t>(threadIdx.x);
  int32_t* from = lds.histogram;
  int32_t* to = lds.partial_sums;
#pragma unroll
  for (int distance = 1; distance < num_digit_bins; distance *= 2) {
    if (bin < num_digit_bins) {
      to[bin] = from[bin] + (bin + distance < num_digit_bins ? from[bin + distance] : 0);
    }
    __syncthreads();
    int32_t* const swapped = from;
    from = to;
    to = swapped;
  }
}

// Before (barrier passed): 0 < remaining_k < sum(histogram). After (barrier included): above <=
// remaining_k < above + bin_size, where above is the population of all better bins: exactly one bin
// qualifies, and nothing of it is needed where above is remaining_k.
template <StashPolicy Policy>
__device__ __forceinline__ void find_threshold_digit(StashStorage<Policy>& lds,
                                                     int32_t remaining_k) {
  suffix_sum(lds);
  const int32_t bin = static_cast<int32_t>(threadIdx.x);
  if (bin < num_digit_bins) {
    const int32_t with_bin = lds.histogram[bin];
    const int32_t above = bin + 1 < num_digit_bins ? lds.histogram[bin + 1] : 0;
    if (above <= remaining_k && remaining_k < with_bin) {
      lds.threshold_bin = bin;
      lds.bin_size = with_bin - above;
      lds.above = above;
    }
  }
  __syncthreads();
}

}  // namespace topk_lab
