// Policies of the delegate selection as values: what the host copy (topk_lab/schedules.py) is compared
// with, through policy_probe.hpp.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

inline constexpr int reduce_block_size = 256;  // threads of a block that reduces segments

// Who reduces a row, and where its delegates are.
enum class DelegateForm {
  two,           // blocks of a launch ahead, in memory
  fused,         // the block that selects from it, in LDS
  fused_global,  // the same block, in memory: there are more than LDS holds
};

struct DelegatePolicy {
  int32_t block_size;       // threads of the block that selects a row
  int32_t blocks_per_unit;  // of which so many are meant to be on a compute unit
  int32_t segment;          // columns that one delegate stands for
  int32_t quads;            // 16-byte loads of the row that a thread keeps
  int32_t held;             // delegates that it keeps; what is beyond them is read again
  int32_t groups;           // of a thread's keys, whose greatest ones bound the k-th
  int32_t max_k;            // no more than the groups of all threads
};

inline constexpr DelegatePolicy delegate_k512{.block_size = 512,
                                              .blocks_per_unit = 1,
                                              .segment = 16,
                                              .quads = 6,
                                              .held = 16,
                                              .groups = 4,
                                              .max_k = 512};
// Longer rows: fewer delegates.
inline constexpr DelegatePolicy delegate_k512_long{.block_size = 512,
                                                   .blocks_per_unit = 1,
                                                   .segment = 32,
                                                   .quads = 12,
                                                   .held = 32,
                                                   .groups = 4,
                                                   .max_k = 512};
// More rows than compute units: blocks that wait for memory by turns.
inline constexpr DelegatePolicy delegate_k512_pair{.block_size = 256,
                                                   .blocks_per_unit = 2,
                                                   .segment = 16,
                                                   .quads = 12,
                                                   .held = 16,
                                                   .groups = 4,
                                                   .max_k = 512};
inline constexpr DelegatePolicy delegate_k512_crowd{.block_size = 256,
                                                    .blocks_per_unit = 3,
                                                    .segment = 16,
                                                    .quads = 10,
                                                    .held = 16,
                                                    .groups = 8,
                                                    .max_k = 512};
inline constexpr DelegatePolicy delegate_k1024{.block_size = 512,
                                               .blocks_per_unit = 1,
                                               .segment = 16,
                                               .quads = 12,
                                               .held = 16,
                                               .groups = 4,
                                               .max_k = 1024};
inline constexpr DelegatePolicy delegate_k2048{.block_size = 1024,
                                               .blocks_per_unit = 1,
                                               .segment = 8,
                                               .quads = 6,
                                               .held = 16,
                                               .groups = 4,
                                               .max_k = 2048};
inline constexpr DelegatePolicy delegate_k4096{.block_size = 1024,
                                               .blocks_per_unit = 1,
                                               .segment = 8,
                                               .quads = 8,
                                               .held = 4,
                                               .groups = 4,
                                               .max_k = 4096};

// Segments that are gathered at most: what a block keeps of them. More than k, for a bin of delegates
// goes with the k-th.
template <DelegatePolicy Policy>
inline constexpr int segment_capacity = 4 * Policy.quads * Policy.block_size / Policy.segment;

// Columns of a row that is kept whole. An unaligned row may have a quad more than an aligned one.
template <DelegatePolicy Policy>
inline constexpr int whole_columns = 4 * Policy.quads * Policy.block_size - 3;

// Logits that pass the cut and are moved together, so that few threads have to tell them apart.
template <DelegatePolicy Policy>
inline constexpr int item_capacity = Policy.max_k <= 1024   ? 2048
                                     : Policy.max_k <= 2048 ? 3072
                                                            : 0;

// So many of a thread's groups may be one, and those of all threads are still k at least.
template <DelegatePolicy Policy>
inline constexpr int joined_groups = Policy.block_size < Policy.max_k
                                         ? Policy.groups * Policy.block_size / Policy.max_k
                                         : Policy.groups;

// So many groups in the bin of the k-th are too many for a bound.
template <DelegatePolicy Policy>
inline constexpr int loose_groups = Policy.max_k / 5;

}  // namespace topk_lab
