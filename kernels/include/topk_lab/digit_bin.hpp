// Step "threshold bin": the bin of a digit that holds the k-th logit, by one prefix sum over a block.
#pragma once
#include <topk_lab/one_block_storage.hpp>

namespace topk_lab {

// Before (barrier passed): 0 < remaining_k <= sum(histogram). After (barrier included):
// above < remaining_k <= above + bin_size, where above is the population of all earlier bins: exactly
// one bin qualifies.
template <OneBlockPolicy Policy>
__device__ __forceinline__ void find_digit_bin(OneBlockStorage<Policy>& lds, int32_t remaining_k) {
  constexpr int bins_per_thread = num_histogram_bins<Policy> / Policy.block_size;
  static_assert(bins_per_thread * Policy.block_size == num_histogram_bins<Policy>);
  const int32_t first = static_cast<int32_t>(threadIdx.x) * bins_per_thread;
  int32_t populations[bins_per_thread];
  int32_t own = 0;
#pragma unroll
  for (int i = 0; i < bins_per_thread; ++i) {
    populations[i] = lds.histogram[first + i];
    own += populations[i];
  }
  int32_t above = block_exclusive_sum(lds.scans[0], own).exclusive;
#pragma unroll
  for (int i = 0; i < bins_per_thread; ++i) {
    if (above < remaining_k && remaining_k <= above + populations[i]) {
      lds.threshold_bin = first + i;
      lds.bin_size = populations[i];
      lds.above = above;
    }
    above += populations[i];
  }
  __syncthreads();
}

}  // namespace topk_lab
