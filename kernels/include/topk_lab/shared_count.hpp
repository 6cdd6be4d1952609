// Step "histogram": how many logits of a row fall into each half bin, counted by all its blocks.
#pragma once
#include <topk_lab/shared_histogram_storage.hpp>

namespace topk_lab {

// After (barrier included): histogram[b] is the number of logits of the chunk in bin b.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void count_half_bins(int32_t* histogram, const RowSlice& chunk) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    histogram[bin] = 0;
  }
  __syncthreads();
  for_each_logit<LogitSource::row, Policy.block_size>(
      chunk, [&](uint32_t bits, int32_t) { atomicAdd(&histogram[half_bin(bits)], 1); });
  __syncthreads();
}

// Before: the row's histogram was cleared by an earlier launch. After the launch: row_histogram[b] is
// the number of logits of the row in bin b. An atomic a bin that is not empty: most of them are.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void add_to_row(const int32_t* histogram, int32_t* row_histogram) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    if (histogram[bin] > 0) atomicAdd(&row_histogram[bin], histogram[bin]);
  }
}

}  // namespace topk_lab
