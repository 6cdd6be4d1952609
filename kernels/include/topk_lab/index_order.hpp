// Step "order": the selected positions, rising.
#pragma once
#include <topk_lab/stash_storage.hpp>

namespace topk_lab {

// Bitonic sort in place. Before (barrier passed): k positions, k <= Policy.max_k, which is a power of
// two. After (barrier included): they rise.
template <StashPolicy Policy>
__device__ __forceinline__ void sort_positions(StashStorage<Policy>& lds, int32_t k) {
  static_assert((Policy.max_k & (Policy.max_k - 1)) == 0);
  constexpr int32_t after_all = 0x7fffffff;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  int32_t padded = 1;
  while (padded < k) padded *= 2;
  for (int32_t i = k + thread; i < padded; i += Policy.block_size) lds.positions[i] = after_all;
  __syncthreads();
#pragma unroll 1
  for (int32_t run = 2; run <= padded; run *= 2) {
#pragma unroll 1
    for (int32_t distance = run / 2; distance > 0; distance /= 2) {
      for (int32_t pair = thread; pair < padded / 2; pair += Policy.block_size) {
        const int32_t low = 2 * pair - (pair & (distance - 1));
        const int32_t first = lds.positions[low];
        const int32_t second = lds.positions[low + distance];
        if ((first > second) == ((low & run) == 0)) {
          lds.positions[low] = second;
          lds.positions[low + distance] = first;
        }
      }
      __syncthreads();
    }
  }
}

}  // namespace topk_lab
