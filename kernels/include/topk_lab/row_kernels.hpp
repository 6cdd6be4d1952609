// The bodies of the two kernels of the vLLM lineage: a block selects a row or a split of it, and a
// block merges the splits of a row. A lineage's source file instantiates them with its policies.
//
//   1. A slice of at most k live columns is its own answer: no logit is compared.
//   2. Without splits one block runs the radix steps over the row (select_row.hpp).
//   3. With splits, block (row, y) runs them over its share and writes k positions and logits to the
//      workspace, pads where the share is shorter; a second kernel runs the same steps over these.
//      Exact, because a logit among the k best of the row is among the k best of its share.
//   4. How many splits are active is decided from the live length, on the device: a captured graph
//      stays right for all later lengths.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/row_bounds.hpp>
#include <topk_lab/select_row.hpp>

namespace topk_lab {

// Dynamic LDS holds k positions, and k bit patterns behind them where values are wanted.
__device__ __forceinline__ Selected selected_in_lds(int32_t k, bool keep_values) {
  return {dynamic_lds, keep_values ? reinterpret_cast<uint32_t*>(dynamic_lds + k) : nullptr};
}

// Start of the workspace's k entries of a split.
__device__ __forceinline__ int64_t split_offset(const TopKParams& params, int32_t row,
                                                int32_t split) {
  return (static_cast<int64_t>(row) * params.max_splits + split) * params.k;
}

template <bool Traced>
__device__ __forceinline__ TraceStep* block_trace(const TopKParams& params, int32_t row,
                                                  int32_t block) {
  if constexpr (!Traced) return nullptr;
  return params.trace + (static_cast<int64_t>(row) * (params.max_splits + 1) + block) * num_steps;
}

// Launch: grid (num_rows, max_splits), Policy.block_size threads.
// After: a row with one active split is written by its block 0, and the merge kernel leaves it alone;
// otherwise split y < active holds the k best of its share in the workspace, positions relative to the
// row. Blocks beyond return at once.
template <TopKPolicy Policy, bool Traced>
__device__ __forceinline__ void select_splits(const TopKParams& params) {
  constexpr int block_size = Policy.block_size;
  __shared__ SelectionStorage<Policy, block_size> lds;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t split = static_cast<int32_t>(blockIdx.y);
  const RowBounds bounds = row_bounds(params, row);
  const int32_t active =
      active_splits(Policy.splits, params.num_rows, bounds.length, params.max_splits);
  if (split >= active) return;

  const bool whole = active == 1;
  const bool keep_bits = !whole || params.values != nullptr;
  const int32_t share = bounds.length / active;
  const int32_t first = split * share;
  const RowSlice slice{row_logits(params, row, bounds) + first,
                       split == active - 1 ? bounds.length - first : share};
  const auto write = [&](int32_t slot, int32_t position, uint32_t bits) {
    const int32_t index = position < 0 ? -1 : first + position;
    if (whole) {
      write_slot(params, row, slot, index, bits);
    } else {
      const int64_t entry = split_offset(params, row, split) + slot;
      params.split_indices[entry] = index;
      params.split_logits[entry] = __uint_as_float(index < 0 ? pad_bits : bits);
    }
  };

  if (slice.length <= params.k) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < params.k; i += block_size) {
      const bool live = i < slice.length;
      write(i, live ? i : -1,
            live && keep_bits ? canonical_bits<LogitSource::row>(slice.logits[i]) : 0u);
    }
    return;
  }
  const Selected selected = selected_in_lds(params.k, keep_bits);
  select_row<Policy, LogitSource::row, block_size, Traced>(lds, slice, params.k, selected,
                                                           block_trace<Traced>(params, row, split));
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < params.k; i += block_size) {
    write(i, selected.positions[i], keep_bits ? selected.bits[i] : 0u);
  }
}

// Launch: grid (num_rows), Policy.merge_block_size threads, after select_splits.
// Before: active * k workspace entries of the row, at least k of them. A pad orders after every logit.
template <TopKPolicy Policy, bool Traced>
__device__ __forceinline__ void merge_splits(const TopKParams& params) {
  constexpr int block_size = Policy.merge_block_size;
  __shared__ SelectionStorage<Policy, block_size> lds;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const RowBounds bounds = row_bounds(params, row);
  const int32_t active =
      active_splits(Policy.splits, params.num_rows, bounds.length, params.max_splits);
  if (active == 1) return;

  const bool keep_values = params.values != nullptr;
  const int32_t* split_indices = params.split_indices + split_offset(params, row, 0);
  const Selected selected = selected_in_lds(params.k, keep_values);
  select_row<Policy, LogitSource::splits, block_size, Traced>(
      lds, {params.split_logits + split_offset(params, row, 0), active * params.k}, params.k,
      selected, block_trace<Traced>(params, row, params.max_splits));
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < params.k; i += block_size) {
    const int32_t entry = selected.positions[i];
    write_slot(params, row, i, entry < 0 ? -1 : split_indices[entry],
               keep_values ? selected.bits[i] : 0u);
  }
}

}  // namespace topk_lab
