// LDS plan of a block that keeps nothing of a row but a histogram, and what it knows of the k-th key.
#pragma once
#include <topk_lab/block_scan.hpp>
#include <topk_lab/one_block_policy.hpp>
#include <topk_lab/order_key.hpp>

namespace topk_lab {

// Static LDS; there is no other, so that any k is served.
template <OneBlockPolicy Policy>
struct OneBlockStorage {
  alignas(16) int32_t histogram[num_histogram_bins<Policy>];  // a thread reads its bins at once
  ScanStorage<Policy.block_size> scans[2];  // in turns: two scans then need no barrier between them
  int32_t threshold_bin;
  int32_t bin_size;
  int32_t above;
  int32_t found;  // slots handed out to winners, from the front
  int32_t ties;   // and to ties, from the back; those that found none left included
};

// How far the k-th key is known. A logit is a winner if its key's fixed bits are below the prefix; it
// is in question if they are equal to it.
struct KeyCutoff {
  int32_t k;
  uint32_t prefix;      // the key's fixed bits
  uint32_t fixed;       // which bits these are, from the top
  int32_t num_digits;   // how many digits these are
  int32_t remaining_k;  // how many of those in question are among the k best
};

// The bits of the key that a pass counts.
struct Digit {
  int32_t shift;
  uint32_t mask;
};

// A stable answer tells no zeros apart, as in the contract: ties are broken by index alone.
template <Emission Kind>
__device__ __forceinline__ constexpr uint32_t ranked_key(uint32_t bits) {
  return complement_key(Kind == Emission::row_order ? positive_zero(bits) : bits);
}

// The last pass takes the bits left over.
template <OneBlockPolicy Policy>
__device__ __forceinline__ constexpr Digit digit_of_pass(int32_t number) {
  const int32_t upper = 32 - number * Policy.digit_bits;
  const int32_t shift = upper > Policy.digit_bits ? upper - Policy.digit_bits : 0;
  return {shift, (1u << (upper - shift)) - 1u};
}

__device__ __forceinline__ void fix_digit(KeyCutoff& cutoff, const Digit& digit, int32_t bin,
                                          int32_t above) {
  cutoff.prefix |= static_cast<uint32_t>(bin) << digit.shift;
  cutoff.fixed |= digit.mask << digit.shift;
  ++cutoff.num_digits;
  cutoff.remaining_k -= above;
}

}  // namespace topk_lab
