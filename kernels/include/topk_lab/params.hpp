// The one argument of every selection kernel, mirrored field by field in topk_lab/plans.py.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace topk_lab {

inline constexpr int num_bins = 2048;
inline constexpr int num_steps = 4;

// What one radix step did, written by traced kernels alone. The Numba twin writes the same record
// (topk_lab/reference/vllm.py, TRACE_STEP).
struct TraceStep {
  int32_t step;           // 0..3; -1 where the step was not reached
  uint32_t prefix;        // complement-key bits fixed before the step
  int32_t threshold_bin;  // bin that holds the k-th logit
  int32_t bin_size;       // its population
  int32_t above;          // logits ordered before it, those emitted by earlier steps included
  int32_t emitted;        // output slots filled when the step ends
  int32_t candidates;     // logits copied to the final items
  int32_t fits;           // 1 if the threshold bin may become final items (step 3 makes none)
  uint32_t histogram[num_bins];
};
static_assert(sizeof(TraceStep) == 32 + 4 * num_bins);

struct TopKParams {
  const float* logits;        // (num_rows, row_stride)
  const int32_t* row_ends;    // next_n == 0: (num_rows,), else seq_lens (num_rows / next_n,)
  const int32_t* row_starts;  // (num_rows,) or null
  int32_t* indices;           // (num_rows, indices_stride)
  float* values;              // (num_rows, values_stride) or null
  int32_t* split_indices;     // (num_rows, max_splits, k); null without splits
  float* split_logits;        // (num_rows, max_splits, k)
  TraceStep* trace;           // (num_rows, max_splits + 1, num_steps); traced kernels only
  int64_t row_stride;         // elements
  int64_t indices_stride;     // elements
  int64_t values_stride;      // elements
  int32_t num_rows;
  int32_t num_cols;
  int32_t next_n;
  int32_t k;
  int32_t max_splits;
};
static_assert(offsetof(TopKParams, trace) == 56 && offsetof(TopKParams, row_stride) == 64 &&
              offsetof(TopKParams, num_rows) == 88 && offsetof(TopKParams, max_splits) == 104 &&
              sizeof(TopKParams) == 112);

}  // namespace topk_lab
