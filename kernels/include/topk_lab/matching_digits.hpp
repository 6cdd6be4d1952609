// Step "histogram": how many of the logits still in question fall into each bin of the next digit.
#pragma once
#include <topk_lab/one_block_storage.hpp>
#include <topk_lab/row_slice.hpp>

namespace topk_lab {

// Before (barrier passed): nobody reads the histogram. After (barrier included): histogram[b] is the
// number of logits that agree with the prefix and whose digit is b. Reads the row once.
template <OneBlockPolicy Policy, Emission Kind>
__device__ __forceinline__ void count_matching_digits(OneBlockStorage<Policy>& lds,
                                                      const RowSlice& slice,
                                                      const KeyCutoff& cutoff, const Digit& digit) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_histogram_bins<Policy>;
       bin += Policy.block_size) {
    lds.histogram[bin] = 0;
  }
  __syncthreads();
  for_each_logit<LogitSource::row, Policy.block_size>(slice, [&](uint32_t bits, int32_t) {
    const uint32_t key = ranked_key<Kind>(bits);
    if ((key & cutoff.fixed) == cutoff.prefix) {
      atomicAdd(&lds.histogram[(key >> digit.shift) & digit.mask], 1);
    }
  });
  __syncthreads();
}

}  // namespace topk_lab
