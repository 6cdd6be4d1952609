// Step "key": from a logit to the bin of each radix step.
//
// The complement key falls as the value rises, so that bins are met best first:
//   key(x) = bits            if the sign is set
//            ~bits & 0x7fff'ffff otherwise
// Every NaN first becomes the one pattern 0x7fff'ffff, whose key, 0, orders before +inf. A pad is the
// pattern 0xffff'ffff, whose key orders after -inf; only merges and final items ever see one.
#pragma once
#include <topk_lab/params.hpp>
#include <topk_lab/platform.hpp>

namespace topk_lab {

inline constexpr uint32_t canonical_nan_bits = 0x7fffffffu;
inline constexpr uint32_t pad_bits = 0xffffffffu;
inline constexpr uint32_t neg_inf_bits = 0xff800000u;
inline constexpr uint32_t neg_flt_max_bits = 0xff7fffffu;

__device__ __forceinline__ constexpr bool is_nan_bits(uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// Where logits come from.
enum class LogitSource {
  row,     // live logits: NaN has to be made canonical
  splits,  // logits that splits wrote: canonical already, pads among them
};

template <LogitSource Source>
__device__ __forceinline__ uint32_t canonical_bits(float logit) {
  if constexpr (Source == LogitSource::splits) return __float_as_uint(logit);
#if defined(__CUDACC__)
  // One instruction, where a test and a selection take three: its NaN is the canonical one.
  asm("max.NaN.f32 %0, %0, %0;" : "+f"(logit));
  return __float_as_uint(logit);
#else
  const uint32_t bits = __float_as_uint(logit);
  return is_nan_bits(bits) ? canonical_nan_bits : bits;
#endif
}

// Its own inverse.
__device__ __forceinline__ constexpr uint32_t complement_key(uint32_t bits) {
  return (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
}

// For selections that tell no zeros apart.
__device__ __forceinline__ constexpr uint32_t positive_zero(uint32_t bits) {
  return bits == 0x80000000u ? 0u : bits;
}

// Rises with the value.
__device__ __forceinline__ constexpr uint32_t order_key(uint32_t bits) {
  return ~complement_key(bits);
}

// Round to nearest even. The canonical NaN becomes a positive NaN of either format's hardware, which
// orders before +inf; a pad has to keep its sign, which hardware may drop.
template <LogitSource Source>
__device__ __forceinline__ uint32_t half_bits(uint32_t bits) {
  const uint32_t rounded = __half_as_ushort(__float2half(__uint_as_float(bits)));
  if constexpr (Source == LogitSource::row) return rounded;
  return bits == pad_bits ? 0xffffu : rounded;
}

// Bin of a step: 11 bits of the half key, then 11, 11 and 10 bits of the key.
template <int Step, LogitSource Source>
__device__ __forceinline__ int32_t step_bin(uint32_t bits) {
  if constexpr (Step == 0) {
    const uint32_t half = half_bits<Source>(bits);
    return static_cast<int32_t>(((half & 0x8000u) != 0 ? half : ~half & 0x7fffu) >> 5);
  } else if constexpr (Step == 1) {
    return static_cast<int32_t>(complement_key(bits) >> 21);
  } else if constexpr (Step == 2) {
    return static_cast<int32_t>((complement_key(bits) >> 10) & 0x7ffu);
  } else {
    return static_cast<int32_t>(complement_key(bits) & 0x3ffu);
  }
}

inline constexpr int num_digit_bins = 256;

// Bin of the SGLang lineage's first pass: the upper 8 bits of the half order key, the best bin last.
__device__ __forceinline__ int32_t coarse_bin(uint32_t bits) {
  const uint32_t half = half_bits<LogitSource::row>(bits);
  return static_cast<int32_t>(((half & 0x8000u) != 0 ? ~half & 0xffffu : half | 0x8000u) >> 8);
}

// Bin of its later passes: 8 bits of the order key.
__device__ __forceinline__ constexpr int32_t key_digit(uint32_t key, int32_t shift) {
  return static_cast<int32_t>((key >> shift) & (num_digit_bins - 1));
}

// Does the key agree with the bits that earlier steps fixed? Steps 0 and 1 start from scratch.
template <int Step>
__device__ __forceinline__ bool step_matches(uint32_t bits, uint32_t prefix) {
  if constexpr (Step < 2) {
    return true;
  } else {
    constexpr int fixed_from = Step == 2 ? 21 : 10;
    return ((complement_key(bits) ^ prefix) >> fixed_from) == 0;
  }
}

// The bits that a step adds to the prefix.
template <int Step>
__device__ __forceinline__ uint32_t extend_prefix(uint32_t prefix, int32_t threshold_bin) {
  if constexpr (Step == 1) return static_cast<uint32_t>(threshold_bin) << 21;
  if constexpr (Step == 2) return prefix | static_cast<uint32_t>(threshold_bin) << 10;
  return prefix;
}

}  // namespace topk_lab
