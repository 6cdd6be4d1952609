// Policies of the SGLang lineage as values: what the host copy (topk_lab/schedules.py) is compared with,
// through policy_probe.hpp.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

// What becomes of a threshold bin that the stash can't hold.
enum class Overflow : int32_t {
  rescan,  // its next digit is counted over the row again, until what is left fits
  drop,    // what comes too late is lost, as published: for study
};

struct StashPolicy {
  int32_t block_size = 1024;
  int32_t stash_kib = 40;
  int32_t max_k = 1024;
  Overflow overflow = Overflow::rescan;
};

// Entries of either of the two lists: positions of 4 bytes.
template <StashPolicy Policy>
inline constexpr int32_t stash_capacity = Policy.stash_kib * 1024 / (2 * 4);

// SGLang #36004: 16 waves of 64 on a row.
inline constexpr StashPolicy sglang_block1024{};

// What was there before it: 8 waves.
inline constexpr StashPolicy sglang_block512{.block_size = 512};

}  // namespace topk_lab
