// Step "order": an answer's slots sorted by index or by value.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/key_range.hpp>
#include <topk_lab/row_bounds.hpp>

namespace topk_lab {

inline constexpr int order_block_size = 512;

// Launch: grid (num_rows), order_block_size threads, 8 bytes of dynamic LDS for each of k slots rounded up
// to a power of two; after the kernel that wrote the row's indices, of which -1 are the last, where the
// answer's indices or its slots go. Bitonic sort of 64 bits: by index these are the index alone, by value
// the key's complement and the index.
__device__ __forceinline__ void order_answer(const PagedParams& params) {
  await_launch_ahead();
  const TopKParams& call = params.call;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const RowBounds bounds = row_bounds(call, row);
  const float* logits = row_logits(call, row, bounds);
  const int32_t count = bounds.length < call.k ? bounds.length : call.k;
  const int32_t* found = call.indices != nullptr
                             ? call.indices + static_cast<int64_t>(row) * call.indices_stride
                             : params.slots + static_cast<int64_t>(row) * params.slots_stride;
  uint64_t* const sorted = reinterpret_cast<uint64_t*>(dynamic_lds);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  int32_t padded = 1;
  while (padded < call.k) padded *= 2;
  for (int32_t i = thread; i < padded; i += order_block_size) {
    uint64_t order = ~0ull;
    if (i < count) {
      const uint32_t index = static_cast<uint32_t>(found[i]);
      const uint32_t key = params.order == Order::value ? delegate_key(logits[index]) : ~0u;
      order = static_cast<uint64_t>(~key) << 32 | index;
    }
    sorted[i] = order;
  }
  __syncthreads();
#pragma unroll 1
  for (int32_t run = 2; run <= padded; run *= 2) {
#pragma unroll 1
    for (int32_t distance = run / 2; distance > 0; distance /= 2) {
      for (int32_t pair = thread; pair < padded / 2; pair += order_block_size) {
        const int32_t low = 2 * pair - (pair & (distance - 1));
        const uint64_t first = sorted[low];
        const uint64_t second = sorted[low + distance];
        if ((first > second) == ((low & run) == 0)) {
          sorted[low] = second;
          sorted[low + distance] = first;
        }
      }
      __syncthreads();
    }
  }
  for (int32_t i = thread; i < call.k; i += order_block_size) {
    const int32_t index = i < count ? static_cast<int32_t>(static_cast<uint32_t>(sorted[i])) : -1;
    write_paged_slot(params, row, i, index, logits);
  }
}

}  // namespace topk_lab
