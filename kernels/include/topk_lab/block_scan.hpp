// Prefix sum over the threads of a block.
#pragma once
#include <topk_lab/platform.hpp>

namespace topk_lab {

template <int BlockSize>
struct ScanStorage {
  int32_t wave_sums[BlockSize / wave_size];
};

__device__ __forceinline__ int32_t wave_inclusive_sum(int32_t value) {
#pragma unroll
  for (int distance = 1; distance < wave_size; distance *= 2) {
#if defined(__CUDACC__)
    // The shuffle itself tells whether there is such a lane.
    asm volatile(
        "{ .reg .s32 below; .reg .pred there; shfl.sync.up.b32 below|there, %0, %1, 0, -1; "
        "@there add.s32 %0, %0, below; }"
        : "+r"(value)
        : "r"(distance));
#else
    const int32_t below = __shfl_up(value, distance);
    if (lane_index() >= distance) value += below;
#endif
  }
  return value;
}

struct ScanResult {
  int32_t exclusive;  // sum over the threads before the caller's
  int32_t total;      // sum over the block
};

// Launch precondition: all threads of a one-dimensional block of BlockSize call it.
// After: a barrier is due before the storage is used again.
template <int BlockSize>
__device__ __forceinline__ ScanResult block_exclusive_sum(ScanStorage<BlockSize>& storage,
                                                          int32_t value) {
  constexpr int num_waves = BlockSize / wave_size;
  static_assert(num_waves * wave_size == BlockSize && num_waves <= wave_size);
  const int lane = lane_index();
  const int wave = wave_uniform(static_cast<int32_t>(threadIdx.x) / wave_size);
  const int32_t inclusive = wave_inclusive_sum(value);
  if (lane == wave_size - 1) storage.wave_sums[wave] = inclusive;
  __syncthreads();
  const int32_t sums = wave_inclusive_sum(lane < num_waves ? storage.wave_sums[lane] : 0);
  const int32_t before = wave == 0 ? 0 : wave_uniform(__shfl(sums, wave - 1));
  const int32_t total = wave_uniform(__shfl(sums, num_waves - 1));
  return {before + inclusive - value, total};
}

}  // namespace topk_lab
