// Step "key" of a histogram of half keys: 4096 bins, and where each begins among the keys of fp32.
#pragma once
#include <topk_lab/order_key.hpp>

namespace topk_lab {

inline constexpr int num_half_bins = 4096;

inline constexpr uint32_t half_infinity = 0x7c00u;
inline constexpr uint32_t least_normal_half = 0x0400u;
inline constexpr uint32_t sign_bit = 0x80000000u;

// The upper 12 bits of the complemented half key, the best bin first: sign, exponent and 6 bits of the
// mantissa. Zeros are alike: comparisons of floats, which stand for bins below, can't tell them apart.
__device__ __forceinline__ int32_t half_bin(uint32_t bits) {
  const uint32_t half = half_bits<LogitSource::row>(positive_zero(bits));
  return static_cast<int32_t>(((half & 0x8000u) != 0 ? half : ~half & 0x7fffu) >> 4);
}

// Bits of the float in the middle between a finite half without its sign and the next one, which is
// 65536 for the greatest of them: from there on, or behind it where the half is even, floats round up.
__device__ __forceinline__ uint32_t midpoint_above(uint32_t half) {
  if (half >= least_normal_half) return (half << 13) + (112u << 23) + (1u << 12);
  return __float_as_uint(static_cast<float>(2 * half + 1) * 0x1p-25f);
}

// The least complement key, that is the greatest logit, that falls into the bin or into a worse one. A
// bin is the keys from its start up to the next bin's. Where bins begin the half is even without its
// sign, so that a float in the middle belongs to the bin of the greater magnitude.
__device__ __forceinline__ uint32_t half_bin_start(int32_t bin) {
  if (bin == 0) return 0u;  // NaN, which has the bin for itself
  if (bin < num_half_bins / 2) {
    const uint32_t greatest = 0x7fffu - 16u * static_cast<uint32_t>(bin);
    if (greatest >= half_infinity) return complement_key(0x7f800000u);
    return complement_key(midpoint_above(greatest) - 1u);
  }
  const uint32_t least = 16u * static_cast<uint32_t>(bin - num_half_bins / 2);
  if (least == 0) return sign_bit + 1u;  // behind both zeros
  if (least > half_infinity) return neg_inf_bits + 1u;
  return sign_bit | midpoint_above(least - 1u);
}

}  // namespace topk_lab
