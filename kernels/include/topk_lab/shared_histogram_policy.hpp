// Policy of the lineage that shares a row's histogram between blocks, as a value, and how many blocks
// share it: what the host copy (topk_lab/schedules.py) is compared with, through policy_probe.hpp.
#pragma once
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

struct SharedHistogramPolicy {
  int32_t block_size = 1024;
  int32_t tie_capacity = 2048;  // logits of the threshold bin that a row's list holds
  int32_t rank_limit = 128;  // up to so many of these are ranked, more are counted digit by digit
  int32_t max_k = 4096;
};

inline constexpr SharedHistogramPolicy shared_histogram{};

inline constexpr int32_t fewest_sharing_blocks = 4;
inline constexpr int32_t most_sharing_blocks = 32;
inline constexpr int32_t sharing_blocks = 64;  // of all rows together, as far as these bounds allow

// SGLang takes these kernels for as many rows as a quarter of the device's compute units. A plan knows
// no device: this is a quarter of the 256 of an MI355X.
inline constexpr int32_t most_sharing_rows = 64;

// Columns from which several blocks share a row; more rows keep more of the device busy by themselves.
__device__ __forceinline__ constexpr int32_t shared_from_columns(int32_t num_rows) {
  return num_rows <= 8 ? 40960 : num_rows <= 16 ? 49152 : num_rows <= 32 ? 65536 : 114688;
}

// Blocks of a row of so many columns: 1, or a number that depends on the rows alone.
__device__ __forceinline__ constexpr int32_t shared_blocks(int32_t num_rows, int32_t columns) {
  if (num_rows > most_sharing_rows || columns < shared_from_columns(num_rows)) return 1;
  int32_t share = most_sharing_blocks;
  while (share > fewest_sharing_blocks && share * num_rows > sharing_blocks) --share;
  return share;
}

// Blocks at work on a row, of those that the width of the buffer launched.
__device__ __forceinline__ constexpr int32_t active_blocks(int32_t num_rows, int32_t row_len,
                                                           int32_t launched) {
  return row_len < shared_from_columns(num_rows) ? 1 : launched;
}

}  // namespace topk_lab
