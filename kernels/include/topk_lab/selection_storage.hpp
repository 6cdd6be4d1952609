// LDS plan of a selecting block.
#pragma once
#include <topk_lab/block_scan.hpp>
#include <topk_lab/policy.hpp>

namespace topk_lab {

// Digits of the final radix sort: 4 bits, counted for each wave and each item that a thread holds.
inline constexpr int digit_bits = 4;
inline constexpr int num_digits = 1 << digit_bits;

template <TopKPolicy Policy, int BlockSize>
struct FinalItems {
  static constexpr int capacity = Policy.final_capacity;
  static constexpr int items_per_thread = capacity / BlockSize;
  static_assert(items_per_thread * BlockSize == capacity);
  static constexpr int num_counts = num_digits * items_per_thread * (BlockSize / wave_size);

  uint32_t keys[capacity];
  int32_t positions[capacity];
  int32_t digit_counts[num_counts];
};

// Static LDS. The histogram is dead once the threshold bin is known, the final items are born then.
template <TopKPolicy Policy, int BlockSize>
struct SelectionStorage {
  union {
    int32_t histogram[num_bins];
    FinalItems<Policy, BlockSize> final_items;
  };
  ScanStorage<BlockSize> scan;
  int32_t threshold_bin;
  int32_t bin_size;
  int32_t above;
  int32_t found;       // output slots handed out to logits above the threshold bin
  int32_t num_items;   // final items
  int32_t tie_cursor;  // next slot for logits equal to the k-th
  uint32_t tie_bits;   // of the logit in slot `above`, where ties were presumed
  int32_t num_mixed;   // threads that found that the presumption does not hold
};

// Dynamic LDS: the selected logits, k of each, written to memory at the end.
struct Selected {
  int32_t* positions;  // (k,) within the slice
  uint32_t* bits;      // (k,) or null where nobody asks for values
};

}  // namespace topk_lab
