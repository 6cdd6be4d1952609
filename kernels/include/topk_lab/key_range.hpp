// Which keys are still in question, and how a pass tells them apart: bins of a range of keys, the best
// first.
#pragma once
#include <topk_lab/order_key.hpp>

namespace topk_lab {

// Keys in [low, top]. Invariant: above < k <= above + inside, where `above` keys are above the top and
// `inside`, once a pass has counted them, are in the range.
struct KeyRange {
  uint32_t low;
  uint32_t top;
  int32_t above;
  int32_t inside;

  __device__ __forceinline__ bool is_one_key() const { return low == top; }
  __device__ __forceinline__ bool contains(uint32_t key) const { return top - key <= top - low; }
};

inline constexpr int32_t uncounted = 0x7fffffff;

inline constexpr uint32_t zero_key = 0x80000000u;
inline constexpr uint32_t lowest_key = 0x007fffffu;           // of -inf
inline constexpr uint32_t greatest_finite_key = 0xff7fffffu;  // of the greatest finite logit
static_assert(order_key(0u) == zero_key && order_key(neg_inf_bits) == lowest_key &&
              order_key(0x7f7fffffu) == greatest_finite_key);

// No zero is told apart from another, and no NaN.
__device__ __forceinline__ uint32_t delegate_key(float logit) {
#if defined(__CUDACC__)
  // A sum is no negative zero, and its NaN is the canonical one.
  const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.f));
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
#else
  return order_key(positive_zero(canonical_bits<LogitSource::row>(logit)));
#endif
}

// Of a key that is no NaN's.
__device__ __forceinline__ float key_logit(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Where a range has both signs, most of its keys are those of tiny magnitudes. Those of less than
// 2^-dead_octaves of the range's greatest magnitude are taken for one.
inline constexpr uint32_t dead_octaves = 3;
inline constexpr uint32_t one_octave = 1u << 23;

inline constexpr int range_bits = 8;
inline constexpr int range_bins = 1 << range_bits;

// A monotone map of a range's keys onto range_bins bins: the distance below `top`, the dead zone skipped,
// shifted right. Keys above it are in the first bin too.
struct KeyBins {
  uint32_t low;
  uint32_t dead_low;  // keys in [dead_low, dead_high] are as one; both are the top where there are none
  uint32_t dead_high;
  uint32_t top;  // place of the greatest key, or of a lower one
  int32_t shift;

  // Rises with the key, from 0.
  __device__ __forceinline__ uint32_t place(uint32_t key) const {
    const uint32_t lower = key < dead_low ? key : dead_low;
    const uint32_t upper = key > dead_high ? key : dead_high;
    return (lower - low) + (upper - dead_high);
  }
  __device__ __forceinline__ int32_t bin(uint32_t key) const {
    const uint32_t at = place(key);
    return at < top ? static_cast<int32_t>((top - at) >> shift) : 0;
  }
  // The lowest key of a place, and the greatest.
  __device__ __forceinline__ uint32_t lowest_key_at(uint32_t place) const {
    return place <= dead_low - low ? low + place : dead_high + (place - (dead_low - low));
  }
  __device__ __forceinline__ uint32_t greatest_key_at(uint32_t place) const {
    return place < dead_low - low ? low + place : dead_high + (place - (dead_low - low));
  }
};

// `skip_tiny` asks for a dead zone: a range that lies in one has none the next time. `focus`: bins are
// spent on the lowest 2^-focus of the range.
__device__ __forceinline__ KeyBins key_bins(const KeyRange& range, bool skip_tiny, int focus) {
  KeyBins bins{range.low, range.top, range.top, 0, 0};
  if (skip_tiny && range.low < zero_key && range.top > zero_key) {
    uint32_t upper = range.top - zero_key;
    uint32_t lower = zero_key - 1u - range.low;
    // What isn't finite says nothing of the magnitudes.
    if (range.top > greatest_finite_key) upper = lower;
    if (range.low <= lowest_key) lower = upper;
    const uint32_t magnitude = upper > lower ? upper : lower;
    const uint32_t dead =
        magnitude > dead_octaves * one_octave ? magnitude - dead_octaves * one_octave : 0u;
    if (dead > 0 && zero_key - dead > range.low && zero_key + dead < range.top) {
      bins.dead_low = zero_key - dead;
      bins.dead_high = zero_key + dead;
    }
  }
  bins.top = bins.place(range.top) >> focus;
  const int32_t bits = 32 - __clz(static_cast<int>(bins.top));
  bins.shift = bits > range_bits ? bits - range_bits : 0;
  return bins;
}

}  // namespace topk_lab
