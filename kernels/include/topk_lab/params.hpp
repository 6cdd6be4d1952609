// The one argument of every selection kernel, and that of kernels with a page transform, mirrored field
// by field in topk_lab/plans.py.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace topk_lab {

inline constexpr int num_bins = 2048;
inline constexpr int num_steps = 4;
inline constexpr int trace_bins = 4096;  // as many as the finest histogram has, the AITER lineage's

// What one radix step did, written by traced kernels alone. The Numba twin writes the same record
// (topk_lab/reference/trace_record.py, TRACE_STEP).
struct TraceStep {
  int32_t step;           // from 0; -1 where the step was not reached
  uint32_t prefix;        // key bits fixed before the step
  int32_t threshold_bin;  // bin that holds the k-th logit
  int32_t bin_size;       // its population
  int32_t above;          // logits ordered before it, those emitted by earlier steps included
  int32_t emitted;        // output slots filled when the step ends
  int32_t candidates;     // logits for what comes next: final items, the stash, or another pass
  int32_t fits;           // 1 if the threshold bin may be kept on chip, or is wanted whole
  uint32_t histogram[trace_bins];  // of which a step may use the first ones alone
};
static_assert(sizeof(TraceStep) == 32 + 4 * trace_bins);

// Order of a row's answer.
enum class Order : int32_t { any, index, value };

struct TopKParams {
  const float* logits;        // (num_rows, row_stride)
  const int32_t* row_ends;    // next_n == 0: (num_rows,), else seq_lens (num_rows / next_n,)
  const int32_t* row_starts;  // (num_rows,) or null
  int32_t* indices;           // (num_rows, indices_stride); null only where slots alone are wanted
  float* values;              // (num_rows, values_stride) or null
  int32_t* split_indices;     // (num_rows, max_splits, k); null without splits
  float* split_logits;        // (num_rows, max_splits, k)
  TraceStep* trace;           // (num_rows, blocks a row, steps a block); traced kernels only
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

// A struct of its own: the same fields in TopKParams made nvcc spill three times as much in the generic
// selection, which never looks at them, and cost it 3 % on an H200.
struct PagedParams {
  TopKParams call;
  const int32_t* page_table;  // (num_rows / table_next_n, page_table_stride) or null
  int32_t* slots;             // (num_rows, slots_stride) or null; may be the indices
  int64_t page_table_stride;  // elements
  int64_t slots_stride;       // elements
  int32_t page_bits;          // a page holds 2^page_bits columns
  int32_t table_next_n;       // rows that share a row of the page table
  Order order;
};
static_assert(offsetof(PagedParams, page_table) == 112 && offsetof(PagedParams, slots) == 120 &&
              offsetof(PagedParams, page_bits) == 144 && offsetof(PagedParams, order) == 152 &&
              sizeof(PagedParams) == 160);

// The delegate selection's: what one of its kernels hands the other, behind all that a paged call needs.
struct DelegateParams {
  PagedParams paged;
  uint32_t* delegates;       // (num_rows, delegates_stride) order keys
  int64_t delegates_stride;  // elements, a multiple of 4
  int32_t blocks_per_row;    // of the launch that reduces
  int32_t whole_columns;     // rows of up to so many are not reduced
  int32_t least_length;      // shorter rows are another launch's
  int32_t most_length;       // and so are longer ones
};
static_assert(offsetof(DelegateParams, delegates) == 160 &&
              offsetof(DelegateParams, blocks_per_row) == 176 &&
              offsetof(DelegateParams, least_length) == 184 && sizeof(DelegateParams) == 192);

}  // namespace topk_lab
