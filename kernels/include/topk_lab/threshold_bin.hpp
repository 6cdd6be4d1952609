// Step "threshold bin": the bin that holds the k-th logit.
#pragma once
#include <topk_lab/selection_storage.hpp>

namespace topk_lab {

// Before: found < k <= found + sum(histogram). After (barrier included):
// above < k <= above + bin_size, where above = found + the population of all earlier bins; exactly one
// bin qualifies; tie_cursor = above, num_mixed = 0. Bins come best first, so that few rounds of
// BlockSize bins are looked at.
template <TopKPolicy Policy, int BlockSize>
__device__ __forceinline__ void find_threshold_bin(SelectionStorage<Policy, BlockSize>& lds,
                                                   int32_t k) {
  int32_t before_round = wave_uniform(lds.found);
#pragma unroll 1
  for (int32_t first = 0; first < num_bins; first += BlockSize) {
    const int32_t bin = first + static_cast<int32_t>(threadIdx.x);
    const int32_t population = lds.histogram[bin];
    const ScanResult scan = block_exclusive_sum(lds.scan, population);
    const int32_t above = before_round + scan.exclusive;
    if (above < k && k <= above + population) {
      lds.threshold_bin = bin;
      lds.bin_size = population;
      lds.above = above;
      lds.tie_cursor = above;
      lds.num_mixed = 0;
    }
    before_round += scan.total;
    __syncthreads();
    if (before_round >= k) break;
  }
}

}  // namespace topk_lab
