// The bodies of the kernels of the AITER lineage: one block a row, the page transform fused. A lineage's
// source file instantiates them with its policies.
//
//   1. A row of at most k live columns is its own answer: no logit is compared.
//   2. Otherwise passes over the row find the k-th key, or as much of it as matters
//      (one_block_select.hpp).
//   3. A last read writes each of the k best as an index, as a slot of the paged cache, or both
//      (one_block_collect.hpp).
//
// Reads of the row: four at most, whatever it holds.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/one_block_collect.hpp>
#include <topk_lab/one_block_select.hpp>
#include <topk_lab/row_bounds.hpp>

namespace topk_lab {

// Launch: grid (num_rows), Policy.block_size threads; k >= 1; at least one of indices and slots is not
// null, values only beside indices.
template <OneBlockPolicy Policy, Emission Kind, bool Traced>
__device__ __forceinline__ void select_one_block(const PagedParams& params) {
  const TopKParams& call = params.call;
  __shared__ OneBlockStorage<Policy> lds;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const RowBounds bounds = row_bounds(call, row);
  const RowSlice slice{row_logits(call, row, bounds), bounds.length};
  const auto write = [&](int32_t slot, int32_t index) {
    write_paged_slot(params, row, slot, index, slice.logits);
  };
  if (slice.length <= call.k) {
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < call.k; i += Policy.block_size) {
      write(i, i < slice.length ? i : -1);
    }
    return;
  }
  TraceStep* trace = nullptr;
  if constexpr (Traced) {
    trace = call.trace + static_cast<int64_t>(row) * num_digit_passes<Policy>;
  }
  const KeyCutoff cutoff = find_cutoff<Policy, Kind, Traced>(lds, slice, call.k, trace);
  int32_t emitted = 0;
  if constexpr (Kind == Emission::row_order) {
    emitted = collect_in_row_order(lds, slice, cutoff, write);
  } else {
    collect_by_arrival(lds, slice, cutoff, write);
    if constexpr (Traced) {
      __syncthreads();
      emitted = lds.found + (lds.ties < cutoff.remaining_k ? lds.ties : cutoff.remaining_k);
    }
  }
  if constexpr (Traced) {
    if (threadIdx.x == 0) trace[cutoff.num_digits - 1].emitted = emitted;
  }
}

template <OneBlockPolicy Policy, bool Traced>
__device__ __forceinline__ void select_by_arrival(const PagedParams& params) {
  select_one_block<Policy, Emission::arrival, Traced>(params);
}

template <OneBlockPolicy Policy, bool Traced>
__device__ __forceinline__ void select_in_row_order(const PagedParams& params) {
  select_one_block<Policy, Emission::row_order, Traced>(params);
}

}  // namespace topk_lab
