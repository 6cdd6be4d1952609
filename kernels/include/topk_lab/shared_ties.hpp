// Step "ties": the best of the threshold bin take what slots the winners left, by one block.
#pragma once
#include <topk_lab/digit_bin.hpp>
#include <topk_lab/shared_collect.hpp>

namespace topk_lab {

// The keys of a bin: [first, first + width).
struct KeyRange {
  uint32_t first;
  uint32_t width;
};

__device__ __forceinline__ KeyRange keys_of_half_bin(int32_t bin) {
  const uint32_t first = half_bin_start(bin);
  return {first, half_bin_start(bin + 1) - first};
}

// Where the logits of the threshold bin are found: in the row's list, or in the row among all others.
struct TieSource {
  RowSlice slice;
  const int32_t* positions;  // of the slice's logits in the row; null: it is the row
};

// Before: at most rank_limit ties in the list, of which more than remaining_k >= 1 or as many. After:
// write(slot, position) was called for each slot in [above, k), with the best of them.
template <SharedHistogramPolicy Policy, class Write>
__device__ __forceinline__ void rank_ties(SharedHistogramStorage<Policy>& lds,
                                          const TieSource& ties, int32_t above, int32_t k,
                                          Write write) {
  uint32_t* keys = lds.staged_bits();
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  if (own < ties.slice.length) {
    keys[own] = complement_key(positive_zero(__float_as_uint(ties.slice.logits[own])));
  }
  __syncthreads();
  if (own >= ties.slice.length) return;
  const uint32_t key = keys[own];
  int32_t slot = above;
  for (int32_t other = 0; other < ties.slice.length; ++other) {
    slot += keys[other] < key || (keys[other] == key && other < own) ? 1 : 0;
  }
  if (slot < k) write(slot, ties.positions[own]);
}

// Calls visit(key, i) for every logit of the source that falls into the bin: its key within the bin, and
// its place in the slice.
template <SharedHistogramPolicy Policy, class Visit>
__device__ __forceinline__ void for_each_tie(const TieSource& ties, const KeyRange& range,
                                             Visit visit) {
  for_each_logit<LogitSource::row, Policy.block_size>(ties.slice, [&](uint32_t bits, int32_t i) {
    const uint32_t key = complement_key(positive_zero(bits)) - range.first;
    if (key < range.width) visit(key, i);
  });
}

// Before (barrier passed): nobody reads the histogram. After (barrier included): histogram[b] is the
// number of ties that agree with the prefix and whose digit is b.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void count_tie_digits(SharedHistogramStorage<Policy>& lds,
                                                 const TieSource& ties, const KeyRange& range,
                                                 const KeyCutoff& cutoff, const Digit& digit) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    lds.digits.histogram[bin] = 0;
  }
  __syncthreads();
  for_each_tie<Policy>(ties, range, [&](uint32_t key, int32_t) {
    if ((key & cutoff.fixed) == cutoff.prefix) {
      atomicAdd(&lds.digits.histogram[(key >> digit.shift) & digit.mask], 1);
    }
  });
  __syncthreads();
}

// What is known of a pass when its digit is fixed; no tie has a slot yet.
template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void record_tie_pass(const SharedHistogramStorage<Policy>& lds,
                                                TraceStep* trace, uint32_t prefix,
                                                const KeyCutoff& cutoff, bool last) {
  for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < num_half_bins;
       bin += Policy.block_size) {
    trace[cutoff.num_digits].histogram[bin] = static_cast<uint32_t>(lds.digits.histogram[bin]);
  }
  if (threadIdx.x != 0) return;
  TraceStep& record = trace[cutoff.num_digits];
  record.step = cutoff.num_digits;
  record.prefix = prefix;
  record.threshold_bin = lds.digits.threshold_bin;
  record.bin_size = lds.digits.bin_size;
  record.above = cutoff.k - cutoff.remaining_k;
  record.emitted = last ? cutoff.k : 0;
  record.candidates = last ? 0 : lds.digits.bin_size;
  record.fits = lds.digits.bin_size == cutoff.remaining_k ? 1 : 0;
}

// The k-th key within its bin, as much of it as matters. Before: above < k <= above + ties. After
// (barrier included): fewer than k - above ties order before the prefix; they, and remaining_k of those
// that agree with it, are the best of them. Either these are all that agree, or they are equal.
//
// Digits are those of the key's distance to the first of the bin: the keys of a bin span 2^17 where
// halves are normal, and less than 2^30 everywhere, so that two passes do, and three always.
template <SharedHistogramPolicy Policy, bool Traced>
__device__ __forceinline__ KeyCutoff find_tie_cutoff(SharedHistogramStorage<Policy>& lds,
                                                     const TieSource& ties, const KeyRange& range,
                                                     int32_t above, int32_t k, TraceStep* trace) {
  constexpr int32_t digit_bits = tie_digits<Policy>.digit_bits;
  int32_t upper = 32 - __clz(static_cast<int32_t>(range.width - 1u));
  KeyCutoff cutoff{.k = k,
                   .prefix = 0,
                   .fixed = ~((1u << upper) - 1u),
                   .num_digits = 0,
                   .remaining_k = k - above};
  bool settled = false;
#pragma unroll 1
  while (!settled && upper > 0) {
    const int32_t shift = upper > digit_bits ? upper - digit_bits : 0;
    const Digit digit{shift, (1u << (upper - shift)) - 1u};
    count_tie_digits<Policy>(lds, ties, range, cutoff, digit);
    find_digit_bin(lds.digits, cutoff.remaining_k);
    const uint32_t prefix = cutoff.prefix;
    fix_digit(cutoff, digit, wave_uniform(lds.digits.threshold_bin),
              wave_uniform(lds.digits.above));
    settled = wave_uniform(lds.digits.bin_size) == cutoff.remaining_k;
    upper = shift;
    if constexpr (Traced) {
      record_tie_pass<Policy>(lds, trace, prefix, cutoff, settled || upper == 0);
    }
  }
  return cutoff;
}

// Before (barrier passed): the cutoff is found; found is `above`, and ties is 0. After:
// write(slot, position) was called for each slot in [above, k), from the front for what orders before
// the prefix, from the back for what agrees with it.
template <SharedHistogramPolicy Policy, class Write>
__device__ __forceinline__ void collect_ties(SharedHistogramStorage<Policy>& lds,
                                             const TieSource& ties, const KeyRange& range,
                                             const KeyCutoff& cutoff, Write write) {
  for_each_tie<Policy>(ties, range, [&](uint32_t key, int32_t i) {
    const uint32_t known = key & cutoff.fixed;
    if (known > cutoff.prefix) return;
    int32_t slot;
    if (known < cutoff.prefix) {
      slot = atomicAdd(&lds.digits.found, 1);
    } else {
      const int32_t tie = atomicAdd(&lds.digits.ties, 1);
      if (tie >= cutoff.remaining_k) return;
      slot = cutoff.k - 1 - tie;
    }
    write(slot, ties.positions == nullptr ? i : ties.positions[i]);
  });
}

// Before: all blocks of the row have handed in what they have. After: the slots [above, k) hold the best
// of the threshold bin.
//
// Few ties are ranked. More are told apart digit by digit, over the list, or over the row where they are
// more than the list holds: nothing is dropped, and the row is read four times more at most.
template <SharedHistogramPolicy Policy, bool Traced, class Write>
__device__ __forceinline__ void resolve_ties(SharedHistogramStorage<Policy>& lds,
                                             const TieSource& ties, const HalfCutoff& cutoff,
                                             int32_t k, TraceStep* trace, Write write) {
  if (cutoff.fits && cutoff.bin_size <= Policy.rank_limit) {
    rank_ties<Policy>(lds, ties, cutoff.above, k, write);
    return;
  }
  if (threadIdx.x == 0) {
    lds.digits.found = cutoff.above;
    lds.digits.ties = 0;
  }
  const KeyRange range = keys_of_half_bin(cutoff.bin);
  const KeyCutoff known = find_tie_cutoff<Policy, Traced>(lds, ties, range, cutoff.above, k, trace);
  collect_ties<Policy>(lds, ties, range, known, write);
}

}  // namespace topk_lab
