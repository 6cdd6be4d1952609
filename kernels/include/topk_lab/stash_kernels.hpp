// The body of the kernel of the SGLang lineage: one block a row, the page transform fused. A lineage's
// source file instantiates it with its policies.
//
//   1. A row of at most k live columns is its own answer: no logit is compared.
//   2. Otherwise the block selects its k best (stash_select.hpp).
//   3. Where rising indices are wanted, they are sorted (index_order.hpp).
//   4. Each selected column is written as an index, as a slot of the paged cache, or both.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/index_order.hpp>
#include <topk_lab/row_bounds.hpp>
#include <topk_lab/stash_select.hpp>

namespace topk_lab {

// Launch: grid (num_rows), Policy.block_size threads, stash_kib KiB of dynamic LDS;
// 1 <= k <= Policy.max_k; at least one of indices and slots is not null, values only beside indices.
template <StashPolicy Policy, bool Traced>
__device__ __forceinline__ void select_paged(const PagedParams& params) {
  const TopKParams& call = params.call;
  __shared__ StashStorage<Policy> lds;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const RowBounds bounds = row_bounds(call, row);
  const RowSlice slice{row_logits(call, row, bounds), bounds.length};
  const bool whole = slice.length <= call.k;
  if (!whole) {
    TraceStep* trace = nullptr;
    if constexpr (Traced) trace = call.trace + static_cast<int64_t>(row) * num_passes;
    select_with_stash<Policy, Traced>(lds, dynamic_lds, slice, call.k, trace);
    if (params.order == Order::index) sort_positions(lds, call.k);
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < call.k; i += Policy.block_size) {
    const int32_t index = !whole ? lds.positions[i] : i < slice.length ? i : -1;
    write_paged_slot(params, row, i, index, slice.logits);
  }
}

}  // namespace topk_lab
