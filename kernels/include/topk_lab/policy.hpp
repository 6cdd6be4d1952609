// Policies of the vLLM lineage as values, and the split schedule. Policies and splits are the truth that
// the host copy (topk_lab/schedules.py) is compared with, through policy_probe.hpp.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

// Key of the places that the final sort fills up with.
enum class FinalPad : int32_t {
  after_all,    // after every logit
  neg_inf,      // ties with -inf logits: sound only where those never become final items
  neg_flt_max,  // before -inf logits: for study
};

enum class FinalOrder : int32_t { rank_count, radix_sort, by_size };

// How logits are added to their bins.
enum class Increments : int32_t {
  each,    // one by one
  opaque,  // the same, but the 1 is hidden from the compiler: a control
  wave,    // lanes of a wave that share the bin of its first lane add once, together
  crowd,   // a bin that many of a wave's lanes share is kept back, and added once
  native,  // what suits the platform (bin_counter.hpp)
};

// How many blocks work on a row.
enum class SplitSchedule : int32_t {
  generic,  // as many as were launched, whatever the live length
  k512,     // vLLM's table, made for gfx950
  h200,     // a rule fitted to an NVIDIA H200
  fixed,    // as many as were launched, where each gets 512 columns: for study
};

struct TopKPolicy {
  int32_t block_size = 512;
  int32_t merge_block_size = 1024;
  int32_t final_capacity = 2048;
  int32_t max_k = 2048;
  bool count_neg_inf = false;
  bool fits_rule = false;
  bool equal_shortcut = false;
  FinalPad final_pad = FinalPad::after_all;
  FinalOrder final_order = FinalOrder::radix_sort;
  Increments increments = Increments::each;
  SplitSchedule splits = SplitSchedule::generic;
};

// vLLM before #56743, but for its pads: there they are -FLT_MAX with an unset index, which outrank
// real -inf logits.
inline constexpr TopKPolicy vllm_generic{};

// vLLM #56743: -inf counted per thread, fewer final items, splits chosen from the live length.
inline constexpr TopKPolicy vllm_k512{
    .block_size = 1024,
    .merge_block_size = 1024,
    .final_capacity = 1024,
    .max_k = 512,
    .count_neg_inf = true,
    .fits_rule = true,
    .final_pad = FinalPad::neg_inf,
    .final_order = FinalOrder::by_size,
    .splits = SplitSchedule::k512,
};

// Up to this many final items a rank count beats a sort of the whole buffer.
inline constexpr int32_t rank_count_limit = 128;

inline constexpr int32_t generic_split_columns = 200000;
inline constexpr int32_t generic_splits = 10;

inline constexpr int32_t kibi = 1024;

// What `fixed` may launch.
inline constexpr int32_t most_fixed_splits = 48;

// The rule `h200`: no more blocks than the device has multiprocessors (132), in powers of two, and of
// those what the length feeds. Fitted to times of every count: a merge that finds nothing to do costs
// 2 us, a block that returns at once 5 ns.
inline constexpr int32_t h200_blocks = 128;

__device__ __forceinline__ constexpr int32_t h200_splits(int32_t num_rows, int32_t columns) {
  int32_t splits = columns > 256 * kibi  ? 32
                   : columns > 64 * kibi ? 16
                   : columns > 16 * kibi ? 8
                                         : 1;
  while (splits > 1 && splits * num_rows > h200_blocks) splits /= 2;
  return splits;
}

// Blocks that a row is given at launch: a function of the shape alone, so that a captured graph
// stays valid.
__device__ __forceinline__ constexpr int32_t max_splits(SplitSchedule schedule, int32_t num_rows,
                                                        int32_t num_cols) {
  if (schedule == SplitSchedule::generic) {
    return num_cols >= generic_split_columns ? generic_splits : 1;
  }
  if (schedule == SplitSchedule::h200) return h200_splits(num_rows, num_cols);
  if (schedule == SplitSchedule::fixed) return most_fixed_splits;
  if (num_rows <= 32 && num_cols > 16 * kibi) return 16;
  if (num_rows <= 128 && num_cols > 64 * kibi) return 10;
  if (num_rows <= 160 && num_cols > 256 * kibi) return 3;
  if (num_rows <= 256 && num_cols > 256 * kibi) return 2;
  return 1;
}

// Blocks that work on a row, from its live length. But for generic every active split holds at least
// 512 columns, so that a merge never sees a pad.
__device__ __forceinline__ constexpr int32_t active_splits(SplitSchedule schedule, int32_t num_rows,
                                                           int32_t row_len, int32_t split_limit) {
  if (schedule == SplitSchedule::generic) return split_limit;
  int32_t wanted = 1;
  if (schedule == SplitSchedule::fixed) {
    wanted = split_limit;
  } else if (schedule == SplitSchedule::h200) {
    wanted = h200_splits(num_rows, row_len);
  } else if (num_rows <= 32) {
    wanted = row_len > 256 * kibi ? 16 : row_len > 128 * kibi ? 10 : row_len > 16 * kibi ? 8 : 1;
  } else if (num_rows <= 128) {
    wanted = row_len > 512 * kibi ? 10 : row_len > 64 * kibi ? 4 : 1;
  } else if (num_rows <= 160) {
    wanted = row_len > 256 * kibi ? 3 : 1;
  } else if (num_rows <= 256) {
    wanted = row_len > 256 * kibi ? 2 : 1;
  }
  const int32_t filled = row_len / 512 > 1 ? row_len / 512 : 1;
  wanted = wanted < split_limit ? wanted : split_limit;
  return wanted < filled ? wanted : filled;
}

}  // namespace topk_lab
