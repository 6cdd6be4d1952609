// The bodies of the kernels that share a row's histogram between blocks: SGLang's second version, as it
// is for ROCm, where no cluster of blocks shares LDS. A kernel boundary is the barrier between them. The
// source file instantiates them.
//
//   1. Clear: the histogram and the counters of each row. SGLang's last block leaves them cleared for the
//      next call; here a call takes a workspace as it finds it.
//   2. Count: the blocks of a row count a chunk of it each, and add what they counted (shared_count.hpp).
//   3. Select: each of them finds the same threshold bin, and reads its chunk once more
//      (shared_collect.hpp). The last to have done so sorts the threshold bin out (shared_ties.hpp).
//
// How many blocks share a row is decided from the live length, on the device: a captured graph stays
// right for all later lengths. A row of at most k live columns is its own answer: no logit is compared.
//
// Reads of the row: two; where the threshold bin is larger than the list, four more at most, all by one
// block.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/shared_count.hpp>
#include <topk_lab/shared_ties.hpp>

namespace topk_lab {

inline constexpr int num_shared_steps = 4;  // the half bins, and three digits of the ties

// Records of a traced block; those of the whole row, by its last block, are behind those of all blocks.
template <bool Traced>
__device__ __forceinline__ TraceStep* shared_trace(const TopKParams& params, int32_t row,
                                                   int32_t block) {
  if constexpr (!Traced) return nullptr;
  return params.trace +
         (static_cast<int64_t>(row) * (params.max_splits + 1) + block) * num_shared_steps;
}

template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void record_half_bins(const int32_t* histogram, TraceStep* trace) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    trace->histogram[bin] = static_cast<uint32_t>(histogram[bin]);
  }
}

// One of a block that has handed in its chunk, or of the row.
__device__ __forceinline__ void record_half_cutoff(TraceStep* trace, const HalfCutoff& cutoff,
                                                   int32_t emitted, int32_t candidates) {
  if (threadIdx.x != 0) return;
  trace->step = 0;
  trace->prefix = 0;
  trace->threshold_bin = cutoff.bin;
  trace->bin_size = cutoff.bin_size;
  trace->above = cutoff.above;
  trace->emitted = emitted;
  trace->candidates = candidates;
  trace->fits = cutoff.fits ? 1 : 0;
}

// Launch: grid (num_rows), Policy.block_size threads.
template <SharedHistogramPolicy Policy, bool>
__device__ __forceinline__ void clear_shared(const SharedHistogramParams& params) {
  const int64_t row = blockIdx.x;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t bin = thread; bin < num_half_bins; bin += Policy.block_size) {
    params.histograms[row * num_half_bins + bin] = 0;
  }
  if (thread < counter_words) params.counters[row * counter_words + thread] = 0;
}

// Launch: grid (num_rows, max_splits), Policy.block_size threads, after clear_shared.
template <SharedHistogramPolicy Policy, bool Traced>
__device__ __forceinline__ void count_shared(const SharedHistogramParams& params) {
  const TopKParams& call = params.paged.call;
  __shared__ int32_t histogram[num_half_bins];
  const SharedRow shared = shared_row(call);
  if (shared.block >= shared.blocks || shared.whole.length <= call.k) return;
  count_half_bins<Policy>(histogram, shared.chunk);
  add_to_row<Policy>(histogram, params.histograms + shared.row * int64_t{num_half_bins});
  if constexpr (Traced) {
    record_half_bins<Policy>(histogram, shared_trace<Traced>(call, shared.row, shared.block));
  }
}

// Launch: the same, after count_shared, with 4 * k bytes of dynamic LDS; 1 <= k <= Policy.max_k; at least
// one of indices and slots is not null, values only beside indices.
template <SharedHistogramPolicy Policy, bool Traced>
__device__ __forceinline__ void select_shared(const SharedHistogramParams& params) {
  const TopKParams& call = params.paged.call;
  __shared__ SharedHistogramStorage<Policy> lds;
  const SharedRow shared = shared_row(call);
  if (shared.block >= shared.blocks) return;
  const RowSlice& row = shared.whole;
  const auto write = [&](int32_t slot, int32_t index) {
    write_paged_slot(params.paged, shared.row, slot, index, row.logits);
  };
  if (row.length <= call.k) {
    if (shared.block > 0) return;
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < call.k; i += Policy.block_size) {
      write(i, i < row.length ? i : -1);
    }
    return;
  }
  const int32_t* row_histogram = params.histograms + shared.row * int64_t{num_half_bins};
  const HalfCutoff cutoff = find_half_cutoff(lds, row_histogram, call.k);
  collect_chunk(lds, shared.chunk, cutoff);
  hand_in(lds, params, shared, write);
  if constexpr (Traced) {
    record_half_cutoff(shared_trace<Traced>(call, shared.row, shared.block), cutoff,
                       lds.digits.found, lds.digits.ties);
  }
  if (!last_to_arrive(lds, params, shared)) return;

  const int64_t list = shared.row * int64_t{Policy.tie_capacity};
  const TieSource ties = cutoff.fits ? TieSource{{params.tie_logits + list, cutoff.bin_size},
                                                 params.tie_positions + list}
                                     : TieSource{row, nullptr};
  TraceStep* trace = shared_trace<Traced>(call, shared.row, call.max_splits);
  if constexpr (Traced) {
    record_half_bins<Policy>(row_histogram, trace);
    const bool ranked = cutoff.fits && cutoff.bin_size <= Policy.rank_limit;
    record_half_cutoff(trace, cutoff, ranked ? call.k : cutoff.above, ranked ? 0 : cutoff.bin_size);
  }
  resolve_ties<Policy, Traced>(lds, ties, cutoff, call.k, trace, write);
}

}  // namespace topk_lab
