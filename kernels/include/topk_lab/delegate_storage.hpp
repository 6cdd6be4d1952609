// LDS plan of a block that selects among delegates.
#pragma once
#include <topk_lab/delegate_policy.hpp>
#include <topk_lab/key_range.hpp>
#include <topk_lab/wave.hpp>

namespace topk_lab {

// So many keys of one bin are told apart by comparing each with each.
inline constexpr int compared_ties = 64;

// What the threads of a wave have found (block_extremes).
struct alignas(16) WaveExtremes {
  uint32_t low;
  uint32_t floor;
  uint32_t top;
  uint32_t unused;
};

// A logit that passes the cut.
struct alignas(8) Item {
  float logit;
  uint32_t number;  // among all that are kept
};

template <DelegatePolicy Policy>
struct DelegateStorage {
  static constexpr int num_waves = Policy.block_size / wave_size;
  static constexpr int item_places = item_capacity<Policy> > 0 ? item_capacity<Policy> : 1;
  alignas(16) int32_t histograms[2][range_bins];  // the first pass over each kind of keys finds one zero
  union {
    Item items[item_places];
    uint8_t tie_bits[Policy.quads * Policy.block_size];  // of each quad, once the items are written
  };
  uint32_t segments[segment_capacity<Policy>];
  uint32_t answer[Policy.max_k];  // positions, before they are written where they are wanted
  uint32_t tie_keys[compared_ties];
  uint32_t tie_positions[compared_ties];
  ScanStorage<Policy.block_size> scan;
  int32_t wave_sums[num_waves];
  WaveExtremes wave_extremes[num_waves];
  int32_t num_segments;  // places handed out: of segments, of items, of the answer's front, of ties;
  int32_t num_items;     // those that found none left included
  int32_t num_written;
  int32_t num_ties;
};

}  // namespace topk_lab
