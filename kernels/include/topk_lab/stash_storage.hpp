// LDS plan of a block that keeps candidates in a stash, and what it knows of the k-th logit.
#pragma once
#include <topk_lab/order_key.hpp>
#include <topk_lab/stash_policy.hpp>

namespace topk_lab {

// Static LDS. The stash, two lists of stash_capacity positions, is dynamic.
template <StashPolicy Policy>
struct StashStorage {
  int32_t histogram[num_digit_bins];
  int32_t partial_sums[num_digit_bins];  // every other round of the suffix sum
  int32_t positions[Policy.max_k];       // the selected logits
  int32_t threshold_bin;
  int32_t bin_size;
  int32_t above;
  int32_t found;           // slots handed out to logits above the threshold bin
  int32_t tie_cursor;      // next slot for logits equal to the k-th
  int32_t num_stashed[2];  // of either list; may pass its capacity where candidates are dropped
};

// How far the k-th logit is known. A logit is above it if its coarse bin is, or its key's fixed bits
// are; it is still in question if both agree.
struct Cutoff {
  int32_t k;
  int32_t coarse_bin;
  uint32_t prefix;      // the key's fixed bits
  uint32_t fixed;       // which bits these are, from the top
  int32_t shift;        // of the next digit; below 0 where all bits are fixed
  int32_t remaining_k;  // how many of those in question are among the k best
};

__device__ __forceinline__ void fix_digit(Cutoff& cutoff, int32_t digit, int32_t above) {
  cutoff.prefix |= static_cast<uint32_t>(digit) << cutoff.shift;
  cutoff.fixed |= static_cast<uint32_t>(num_digit_bins - 1) << cutoff.shift;
  cutoff.shift -= 8;
  cutoff.remaining_k -= above;
}

}  // namespace topk_lab
