// What differs between the platforms: wave size, launch bounds, uniform values.
#pragma once
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

// 64 lanes on every CDNA part; kernels use 64-bit masks throughout.
inline constexpr int wave_size = 64;

// Launch bound of a block of `threads`, of which `blocks` should fit on a compute unit at once.
// HIP's second argument counts waves on one of a compute unit's four SIMDs.
#define TOPK_LAB_LAUNCH_BOUNDS(threads, blocks) \
  __launch_bounds__(threads, (blocks) * (threads) / (4 * 64))

// Tells the compiler that all lanes of a wave hold the same value, so that it may live in a scalar
// register. Precondition: they do.
__device__ __forceinline__ int32_t wave_uniform(int32_t value) {
  return __builtin_amdgcn_readfirstlane(value);
}

__device__ __forceinline__ int lane_index() { return static_cast<int>(__lane_id()); }

// Lanes of `mask` below the caller's.
__device__ __forceinline__ int lanes_below(unsigned long long mask) {
  return __popcll(mask & ((1ull << lane_index()) - 1ull));
}

}  // namespace topk_lab
