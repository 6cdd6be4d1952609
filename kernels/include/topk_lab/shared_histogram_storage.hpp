// What blocks that share a row know of it: their argument, the row's part of the workspace, the LDS plan.
#pragma once
#include <topk_lab/half_bins.hpp>
#include <topk_lab/one_block_storage.hpp>
#include <topk_lab/row_bounds.hpp>
#include <topk_lab/row_slice.hpp>
#include <topk_lab/shared_histogram_policy.hpp>

namespace topk_lab {

// Counters of a row, on a line of their own: blocks of other rows count on other lines.
inline constexpr int counter_words = 32;
inline constexpr int reserved_counter = 0;  // slots of the answer below, places of the list above
inline constexpr int arrived_counter = 1;   // blocks that have written all they have

// Mirrored field by field in topk_lab/plans.py. What the workspace holds before a call is of no
// account.
struct SharedHistogramParams {
  PagedParams paged;
  int32_t* histograms;     // (num_rows, num_half_bins)
  int32_t* counters;       // (num_rows, counter_words)
  float* tie_logits;       // (num_rows, tie_capacity): logits of the threshold bin, in no order
  int32_t* tie_positions;  // (num_rows, tie_capacity): where they stand in the row
};
static_assert(offsetof(SharedHistogramParams, histograms) == 160 &&
              offsetof(SharedHistogramParams, counters) == 168 &&
              offsetof(SharedHistogramParams, tie_logits) == 176 &&
              offsetof(SharedHistogramParams, tie_positions) == 184 &&
              sizeof(SharedHistogramParams) == 192);

// The ties are told apart by digits of 12 bits, with the steps of the AITER lineage.
template <SharedHistogramPolicy Policy>
inline constexpr OneBlockPolicy tie_digits{.block_size = Policy.block_size, .digit_bits = 12};

// Static LDS. Dynamic LDS holds the positions of a block's winners, k at most.
template <SharedHistogramPolicy Policy>
struct SharedHistogramStorage {
  OneBlockStorage<tie_digits<Policy>> digits;
  int32_t ticket;  // what a counter in memory said to the block

  static_assert(num_histogram_bins<tie_digits<Policy>> == num_half_bins);
  static_assert(2 * Policy.tie_capacity <= num_half_bins && Policy.rank_limit <= Policy.block_size);

  // The histogram is dead once the threshold bin is known. In its place, one after another: the block's
  // ties, the keys that are ranked, and histograms of the ties' digits.
  __device__ __forceinline__ uint32_t* staged_bits() {
    return reinterpret_cast<uint32_t*>(digits.histogram);
  }
  __device__ __forceinline__ int32_t* staged_positions() {
    return digits.histogram + Policy.tie_capacity;
  }
};

// A block's part of a row.
struct SharedRow {
  int32_t row;
  int32_t block;
  int32_t blocks;  // that share the row, by its live length
  RowSlice whole;
  RowSlice chunk;  // of `whole`, from position chunk_start on
  int32_t chunk_start;
};

// Launch: grid (num_rows, max_splits). A block that is not below `blocks` has no part of the row.
__device__ __forceinline__ SharedRow shared_row(const TopKParams& params) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t block = static_cast<int32_t>(blockIdx.y);
  const RowBounds bounds = row_bounds(params, row);
  const float* logits = row_logits(params, row, bounds);
  const int32_t blocks = active_blocks(params.num_rows, bounds.length, params.max_splits);
  const int32_t share = bounds.length / blocks;
  const int32_t start = block * share;
  const int32_t rest = bounds.length - start;
  return {row,
          block,
          blocks,
          {logits, bounds.length},
          {logits + start, block == blocks - 1 ? rest : share},
          start};
}

}  // namespace topk_lab
