// Policies of the AITER lineage as values: what the host copy (topk_lab/schedules.py) is compared with,
// through policy_probe.hpp.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

struct OneBlockPolicy {
  int32_t block_size = 1024;
  int32_t digit_bits = 12;
};

// Bins of a pass; the last pass has fewer bits left and uses the first ones alone.
template <OneBlockPolicy Policy>
inline constexpr int num_histogram_bins = 1 << Policy.digit_bits;

template <OneBlockPolicy Policy>
inline constexpr int num_digit_passes = (32 + Policy.digit_bits - 1) / Policy.digit_bits;

// AITER's decode kernel as a device of at least 128 compute units, or of 128 KiB of LDS on each of them,
// gets it; on others it takes 11 bits a pass.
inline constexpr OneBlockPolicy aiter_one_block{};

// Which of equal logits win, and in which order the answer comes.
enum class Emission : int32_t {
  arrival,    // winners from the front, ties from the back, as threads meet them
  row_order,  // rising indices, the lowest of equal logits: a function of the row alone
};

}  // namespace topk_lab
