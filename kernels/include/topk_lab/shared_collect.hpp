// Step "collect": what is above the threshold bin goes into the answer, what is in it to the row's list.
#pragma once
#include <topk_lab/digit_bin.hpp>
#include <topk_lab/shared_histogram_storage.hpp>

namespace topk_lab {

// What every block of a row finds out for itself: above < k <= above + bin_size.
struct HalfCutoff {
  int32_t bin;
  int32_t bin_size;
  int32_t above;  // winners: logits in better bins
  bool fits;      // the row's list holds the threshold bin
};

// Before: an earlier launch has counted the row, which has more than k logits. After (barrier included):
// found and ties are 0, and nobody reads the histogram in LDS any more.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ HalfCutoff find_half_cutoff(SharedHistogramStorage<Policy>& lds,
                                                       const int32_t* row_histogram, int32_t k) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    lds.digits.histogram[bin] = row_histogram[bin];
  }
  if (threadIdx.x == 0) {
    lds.digits.found = 0;
    lds.digits.ties = 0;
  }
  __syncthreads();
  find_digit_bin(lds.digits, k);
  const int32_t bin_size = wave_uniform(lds.digits.bin_size);
  return {wave_uniform(lds.digits.threshold_bin), bin_size, wave_uniform(lds.digits.above),
          bin_size <= Policy.tie_capacity};
}

// Before: find_half_cutoff. After (barrier included): the chunk's `found` winners are in dynamic LDS, and
// its `ties` logits of the threshold bin, where the list holds that, in place of the histogram.
//
// A logit's bin is not computed again: it is compared with the greatest logit of the threshold bin and
// with the greatest of the next one. A NaN is less than or equal to nothing, and so better than both;
// where its bin is the threshold bin there are no winners.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void collect_chunk(SharedHistogramStorage<Policy>& lds,
                                              const RowSlice& chunk, const HalfCutoff& cutoff) {
  const float greatest = __uint_as_float(complement_key(half_bin_start(cutoff.bin)));
  const float next_greatest = __uint_as_float(complement_key(half_bin_start(cutoff.bin + 1)));
  const bool any_winner = cutoff.above > 0;
  for_each_logit<LogitSource::row, Policy.block_size>(chunk, [&](uint32_t bits, int32_t position) {
    const float logit = __uint_as_float(bits);
    if (logit <= next_greatest) return;
    if (any_winner && !(logit <= greatest)) {
      dynamic_lds[atomicAdd(&lds.digits.found, 1)] = position;
    } else if (cutoff.fits) {
      const int32_t tie = atomicAdd(&lds.digits.ties, 1);
      lds.staged_bits()[tie] = bits;
      lds.staged_positions()[tie] = position;
    }
  });
  __syncthreads();
}

// Before: collect_chunk. After: each winner of the chunk has a slot below `above` of the answer, and each
// of its ties a place in the row's list. One atomic in memory reserves both, since winners are fewer
// than k and ties are what the list holds: they fit 16 bits each.
template <SharedHistogramPolicy Policy, class Write>
__device__ __forceinline__ void hand_in(SharedHistogramStorage<Policy>& lds,
                                        const SharedHistogramParams& params,
                                        const SharedRow& shared, Write write) {
  static_assert(Policy.max_k < 1 << 16 && Policy.tie_capacity < 1 << 15);
  const int32_t found = wave_uniform(lds.digits.found);
  const int32_t ties = wave_uniform(lds.digits.ties);
  if (threadIdx.x == 0) {
    int32_t* reserved = params.counters + shared.row * int64_t{counter_words} + reserved_counter;
    lds.ticket = atomicAdd(reserved, found | ties << 16);
  }
  __syncthreads();
  const int32_t first_slot = wave_uniform(lds.ticket) & 0xffff;
  const int64_t first_tie =
      shared.row * int64_t{Policy.tie_capacity} + (wave_uniform(lds.ticket) >> 16);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < found; i += Policy.block_size) {
    write(first_slot + i, shared.chunk_start + dynamic_lds[i]);
  }
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < ties; i += Policy.block_size) {
    params.tie_logits[first_tie + i] = __uint_as_float(lds.staged_bits()[i]);
    params.tie_positions[first_tie + i] = shared.chunk_start + lds.staged_positions()[i];
  }
  // Another block reads the list. The barrier before the arrival waits for no store to memory, and the
  // release of thread 0 for its own wave's alone: whoever wrote to the list releases it.
  if (static_cast<int32_t>(threadIdx.x) < ties) __threadfence();
}

// Are all other blocks of the row through? True in one block, the last to ask. Nobody waits: whoever is
// not the last is done. Before: hand_in. After (barriers included): in the last block, the lists of all
// others are there to be read. Release and acquire are of the agent's scope, since blocks of a row run
// on several dies, whose caches are not coherent; the first barrier puts the block's writes before the
// release, the second one its reads behind the acquire.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ bool last_to_arrive(SharedHistogramStorage<Policy>& lds,
                                               const SharedHistogramParams& params,
                                               const SharedRow& shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    int32_t* arrived = params.counters + shared.row * int64_t{counter_words} + arrived_counter;
    lds.ticket = __hip_atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
  }
  __syncthreads();
  return wave_uniform(lds.ticket) == shared.blocks - 1;
}

}  // namespace topk_lab
