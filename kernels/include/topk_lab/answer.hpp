// A slot of the answer: its index, its logit and its place in the paged cache.
#pragma once
#include <topk_lab/order_key.hpp>
#include <topk_lab/page_table.hpp>

namespace topk_lab {

// Writes one slot of the answer. A negative index marks a slot without a logit.
__device__ __forceinline__ void write_slot(const TopKParams& params, int32_t row, int32_t slot,
                                           int32_t index, uint32_t bits) {
  params.indices[static_cast<int64_t>(row) * params.indices_stride + slot] = index;
  if (params.values != nullptr) {
    params.values[static_cast<int64_t>(row) * params.values_stride + slot] =
        __uint_as_float(index < 0 ? neg_inf_bits : bits);
  }
}

// The same for a kernel whose page transform is fused: indices and slots are each written where they
// are wanted.
__device__ __forceinline__ void write_paged_slot(const PagedParams& params, int32_t row,
                                                 int32_t slot, int32_t index, const float* logits) {
  if (params.slots != nullptr) {
    params.slots[static_cast<int64_t>(row) * params.slots_stride + slot] =
        page_slot(params, row, index);
  }
  if (params.call.indices != nullptr) {
    const bool wanted = params.call.values != nullptr && index >= 0;
    write_slot(params.call, row, slot, index,
               wanted ? canonical_bits<LogitSource::row>(logits[index]) : 0u);
  }
}

}  // namespace topk_lab
