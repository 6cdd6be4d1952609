// Which columns of a row are live. Lengths are device data that changes between graph replays.
#pragma once
#include <topk_lab/params.hpp>
#include <topk_lab/platform.hpp>

namespace topk_lab {

struct RowBounds {
  int32_t start;   // first live column
  int32_t length;  // live columns, in [0, num_cols - start]
};

// Reads a value that may change between replays: an agent-scope atomic load, because a plain load of
// a uniform address becomes a scalar load, and stale scalar-cache reads inside graphs were reported
// on MI355X with ROCm 7.2. Precondition: it does not change while the kernels of one call run; every
// wave reads it for itself.
__device__ __forceinline__ int32_t load_replayed(const int32_t* address) {
  return wave_uniform(__hip_atomic_load(address, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));
}

__device__ __forceinline__ int32_t clamp_column(int64_t column, int32_t low, int32_t high) {
  return static_cast<int32_t>(column < low ? low : column > high ? high : column);
}

// After: 0 <= start and start + length <= num_cols, whatever the lengths hold.
__device__ __forceinline__ RowBounds row_bounds(const TopKParams& params, int32_t row) {
  int64_t end;
  if (params.next_n == 0) {
    end = load_replayed(params.row_ends + row);
  } else {
    end = static_cast<int64_t>(load_replayed(params.row_ends + row / params.next_n)) -
          params.next_n + row % params.next_n + 1;
  }
  int32_t start = 0;
  if (params.row_starts != nullptr) {
    start = clamp_column(load_replayed(params.row_starts + row), 0, params.num_cols);
  }
  return {start, clamp_column(end, start, params.num_cols) - start};
}

__device__ __forceinline__ const float* row_logits(const TopKParams& params, int32_t row,
                                                   const RowBounds& bounds) {
  return params.logits + static_cast<int64_t>(row) * params.row_stride + bounds.start;
}

}  // namespace topk_lab
