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
inline constexpr uint32_t inf_key = 0xff800000u;
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

inline constexpr int range_bits = 8;
inline constexpr int range_bins = 1 << range_bits;

// Places of keys by their order alone.
struct KeyPlaces {
  __device__ __forceinline__ int32_t of(uint32_t key) const {
    return static_cast<int32_t>(key ^ 0x80000000u);
  }
  __device__ __forceinline__ uint32_t lowest_key_of(int32_t place) const {
    return static_cast<uint32_t>(place) ^ 0x80000000u;
  }
  __device__ __forceinline__ uint32_t greatest_key_of(int32_t place) const { return lowest_key_of(place); }
};

// Places of keys by the value of their logit: its magnitude as a fixed-point number, all bits of that turned
// if it is negative. Where a range has both signs, most of its keys are those of tiny magnitudes, but few of
// its logits are.
struct FixedPoint {
  static constexpr float most = 0x1p24f;  // what is greater, or a NaN, is taken for it
  float scale;                            // a power of two

  // Before: the range has both signs. What isn't finite in it says nothing of the magnitudes.
  __device__ __forceinline__ explicit FixedPoint(const KeyRange& range) {
    const uint32_t lower = range.low <= lowest_key ? 0u : zero_key - 1u - range.low;
    const uint32_t upper = range.top > greatest_finite_key ? 0u : range.top - zero_key;
    const uint32_t exponent = (upper > lower ? upper : lower) >> 23;
    scale = __uint_as_float((277u - (exponent > 24u ? exponent : 24u)) << 23);
  }
  __device__ __forceinline__ int32_t of(uint32_t key) const {
    const uint32_t negative = key < zero_key ? ~0u : 0u;
    const float magnitude = __uint_as_float((key ^ negative) & 0x7fffffffu);
    return static_cast<int32_t>(lesser(magnitude * scale, most)) ^ static_cast<int32_t>(negative);
  }
  __device__ __forceinline__ uint32_t lowest_key_of(int32_t place) const {
    return place < 0 ? ~first_key(~place + 1) + 1u : first_key(place);
  }
  __device__ __forceinline__ uint32_t greatest_key_of(int32_t place) const {
    return place < 0 ? ~first_key(~place) : first_key(place + 1) - 1u;
  }

 private:
  __device__ __forceinline__ uint32_t first_key(int32_t place) const {
    const float unit = __uint_as_float((254u << 23) - __float_as_uint(scale));
    return order_key(__float_as_uint(static_cast<float>(place) * unit));
  }
};

// A monotone map of a range's keys onto range_bins bins: how many places below the range's top, shifted
// right. Keys above that are in the first bin too.
template <class Places>
struct KeyBins {
  Places places;
  uint32_t low;  // place of the lowest key
  uint32_t top;  // places that the greatest key is above it, or a lower one
  int32_t shift;

  __device__ __forceinline__ int32_t bin(uint32_t key) const {
    const uint32_t at = static_cast<uint32_t>(places.of(key)) - low;
    return at < top ? static_cast<int32_t>((top - at) >> shift) : 0;
  }
  // The lowest key that is so many places above the lowest, and the greatest.
  __device__ __forceinline__ uint32_t lowest_key_at(uint32_t at) const {
    return places.lowest_key_of(place_at(at));
  }
  __device__ __forceinline__ uint32_t greatest_key_at(uint32_t at) const {
    return places.greatest_key_of(place_at(at));
  }

 private:
  __device__ __forceinline__ int32_t place_at(uint32_t at) const {
    return static_cast<int32_t>(low + at);
  }
};

// `focus`: bins are spent on the lowest 2^-focus of the range.
template <class Places>
__device__ __forceinline__ KeyBins<Places> key_bins(const KeyRange& range, const Places& places,
                                                    int focus) {
  const uint32_t low = static_cast<uint32_t>(places.of(range.low));
  const uint32_t top = (static_cast<uint32_t>(places.of(range.top)) - low) >> focus;
  const int32_t bits = 32 - __clz(static_cast<int>(top));
  return {places, low, top, bits > range_bits ? bits - range_bits : 0};
}

}  // namespace topk_lab
