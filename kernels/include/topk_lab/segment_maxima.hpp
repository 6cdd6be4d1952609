// Step "delegates": the greatest key of each segment of a row, the row read once.
//
// Segments are counted from the line of memory that the row begins in: `lead` columns of the first one lie
// before the row, so that those of any 4-byte aligned row lie on lines.
#pragma once
#include <topk_lab/key_range.hpp>
#include <topk_lab/row_slice.hpp>

namespace topk_lab {

// Positions are counted modulo 2^32: one is live if it is below the length.
template <int Segment>
struct Segments {
  const float* logits;
  uint32_t length;
  uint32_t lead;   // columns of the first segment that lie before the row
  uint32_t count;  // segments that hold a live column

  __device__ __forceinline__ explicit Segments(const RowSlice& slice)
      : logits(slice.logits),
        length(static_cast<uint32_t>(slice.length)),
        lead(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(slice.logits) >> 2) &
             (Segment - 1u)),
        count((lead + length + (Segment - 1u)) / Segment) {}

  // Columns that lie before the row on the 16 bytes that it begins in.
  __device__ __forceinline__ uint32_t misplaced() const { return lead & 3u; }

  // Four neighbours, the first at `position`; `absent` where no column is live.
  __device__ __forceinline__ float4 load(uint32_t position, float absent) const {
    if (position < length && position + 3u < length) {
      return *reinterpret_cast<const float4*>(logits + position);
    }
    const float x = position < length ? logits[position] : absent;
    const float y = position + 1u < length ? logits[position + 1u] : absent;
    const float z = position + 2u < length ? logits[position + 2u] : absent;
    const float w = position + 3u < length ? logits[position + 3u] : absent;
    return float4{x, y, z, w};
  }
};

// The greater of two, a NaN before all.
__device__ __forceinline__ float max_or_nan(float a, float b) {
#if defined(__CUDACC__)
  float greater;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(greater) : "f"(a), "f"(b));
  return greater;
#else
  if (__builtin_isunordered(a, b)) return __uint_as_float(canonical_nan_bits);
  return a > b ? a : b;
#endif
}

inline constexpr int delegate_loads = 8;  // 16-byte loads that a thread has under way

// Rounds of the reduction by lanes 1 to `Distance` apart, the farthest first: in each a lane gives one half of
// its values away and takes the other half of those of its partner, so that none is reduced twice. The last
// round's are the first ones.
template <uint32_t Distance, int Values>
__device__ __forceinline__ void reduce_among_lanes(uint32_t lane,
                                                   float (&greatest)[delegate_loads]) {
  if constexpr (Distance > 0) {
    constexpr int kept = Values / 2;
    const bool upper = (lane & Distance) != 0;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float own = upper ? greatest[i + kept] : greatest[i];
      const float given = upper ? greatest[i] : greatest[i + kept];
      const int taken =
          __shfl_xor(static_cast<int>(__float_as_uint(given)), static_cast<int>(Distance));
      greatest[i] = max_or_nan(own, __uint_as_float(static_cast<uint32_t>(taken)));
    }
    reduce_among_lanes<Distance / 2, kept>(lane, greatest);
  }
}

// Writes maxima[s], for every segment s, by all of the `num_waves` that share the row, of which the
// caller's is number `wave`; and with them those up to `room`, fewer than four, as if all columns there were
// -inf.
//
// A wave takes tiles of delegate_loads * wave_size quads. The lanes that share a segment hold
// delegate_loads quads of it and its neighbours.
template <int Segment>
__device__ __forceinline__ void reduce_segments(const Segments<Segment>& segments, uint32_t* maxima,
                                                uint32_t room, uint32_t wave, uint32_t num_waves) {
  constexpr uint32_t sharers = Segment / 4;
  constexpr uint32_t in_load = wave_size / sharers;
  constexpr uint32_t in_tile = delegate_loads * in_load;
  constexpr int own_segments = delegate_loads / sharers;
  static_assert(sharers >= 2 && delegate_loads % sharers == 0);
  const uint32_t lane = static_cast<uint32_t>(lane_index());
  const float absent = __uint_as_float(neg_inf_bits);
#pragma unroll 1
  for (uint32_t first = wave * in_tile; first < segments.count; first += num_waves * in_tile) {
    const uint32_t begin = first * Segment - segments.lead;
    const uint32_t end = begin + in_tile * Segment;
    const uint32_t position = begin + 4u * lane;
    float4 quads[delegate_loads];
    if (begin < segments.length && end <= segments.length) {
#pragma unroll
      for (int i = 0; i < delegate_loads; ++i) {
        quads[i] = *reinterpret_cast<const float4*>(segments.logits + position + i * 4 * wave_size);
      }
    } else {
#pragma unroll
      for (int i = 0; i < delegate_loads; ++i) {
        quads[i] = segments.load(position + i * 4 * wave_size, absent);
      }
    }
    float greatest[delegate_loads];
#pragma unroll
    for (int i = 0; i < delegate_loads; ++i) {
      greatest[i] =
          max_or_nan(max_or_nan(quads[i].x, quads[i].y), max_or_nan(quads[i].z, quads[i].w));
    }
    reduce_among_lanes<sharers / 2, delegate_loads>(lane, greatest);
#pragma unroll
    for (int i = 0; i < own_segments; ++i) {
      const uint32_t load = (lane % sharers) * own_segments + i;
      const uint32_t segment = first + load * in_load + lane / sharers;
      if (segment < room) maxima[segment] = delegate_key(greatest[i]);
    }
  }
}

}  // namespace topk_lab
