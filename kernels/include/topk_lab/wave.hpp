// What the lanes of a wave find out together. All of them call these.
#pragma once
#include <topk_lab/block_scan.hpp>

namespace topk_lab {

#if defined(__CUDACC__)
__device__ __forceinline__ int32_t wave_sum(int32_t value) { return __reduce_add_sync(~0u, value); }
__device__ __forceinline__ uint32_t wave_min(uint32_t value) {
  return __reduce_min_sync(~0u, value);
}
__device__ __forceinline__ uint32_t wave_max(uint32_t value) {
  return __reduce_max_sync(~0u, value);
}
#else
template <class Combine>
__device__ __forceinline__ uint32_t wave_reduce(uint32_t value, Combine combine) {
#pragma unroll
  for (int distance = 1; distance < wave_size; distance *= 2) {
    const int other = __shfl_xor(static_cast<int>(value), distance);
    value = combine(value, static_cast<uint32_t>(other));
  }
  return static_cast<uint32_t>(wave_uniform(static_cast<int32_t>(value)));
}
__device__ __forceinline__ int32_t wave_sum(int32_t value) {
  const auto add = [](uint32_t a, uint32_t b) { return a + b; };
  return static_cast<int32_t>(wave_reduce(static_cast<uint32_t>(value), add));
}
__device__ __forceinline__ uint32_t wave_min(uint32_t value) {
  return wave_reduce(value, [](uint32_t a, uint32_t b) { return a < b ? a : b; });
}
__device__ __forceinline__ uint32_t wave_max(uint32_t value) {
  return wave_reduce(value, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
#endif

// Hands out places of a list: each lane gets `wanted` of them in a row, and where they begin. One atomic a
// wave.
__device__ __forceinline__ int32_t reserve(int32_t* used, int32_t wanted) {
  const int32_t inclusive = wave_inclusive_sum(wanted);
  int32_t base = 0;
  if (lane_index() == wave_size - 1 && inclusive > 0) base = atomicAdd(used, inclusive);
  return __shfl(base, wave_size - 1) + inclusive - wanted;
}

}  // namespace topk_lab
