// Step "page transform": from a column of the row to its slot in a paged cache.
#pragma once
#include <topk_lab/params.hpp>
#include <topk_lab/platform.hpp>

namespace topk_lab {

inline constexpr int page_transform_block_size = 256;
inline constexpr int64_t greatest_slot = 0x7fffffff;

// Before: index is -1 or a live column, and the table is as wide as the logits: no column lies past
// its end. After: -1 for -1, for a page that is not there (a negative id) and for a slot that int32
// can't name; else table[index / page] * page + index % page.
__device__ __forceinline__ int32_t page_slot(const PagedParams& params, int32_t row,
                                             int32_t index) {
  if (index < 0) return -1;
  const int64_t table_row = static_cast<int64_t>(row / params.table_next_n);
  const int32_t page =
      params.page_table[table_row * params.page_table_stride + (index >> params.page_bits)];
  const int64_t slot =
      (static_cast<int64_t>(page) << params.page_bits) | (index & ((1 << params.page_bits) - 1));
  return page < 0 || slot > greatest_slot ? -1 : static_cast<int32_t>(slot);
}

// Launch: grid (num_rows), page_transform_block_size threads, after the kernels that wrote the
// indices; the slots may take their place.
__device__ __forceinline__ void transform_pages(const PagedParams& params) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t* indices =
      params.call.indices + static_cast<int64_t>(row) * params.call.indices_stride;
  int32_t* slots = params.slots + static_cast<int64_t>(row) * params.slots_stride;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < params.call.k;
       i += page_transform_block_size) {
    slots[i] = page_slot(params, row, indices[i]);
  }
}

}  // namespace topk_lab
