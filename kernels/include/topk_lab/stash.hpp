// Step "collect": logits above the cutoff are selected, those still in question go to the stash. Step
// "refine": the same over the stash, one digit of the key further.
#pragma once
#include <topk_lab/row_slice.hpp>
#include <topk_lab/stash_storage.hpp>

namespace topk_lab {

// A logit that the digits so far can't tell from the k-th: while digits are left it is stashed and its
// next digit counted; where none are left it equals the k-th and takes a slot in order of arrival.
// A full list takes no more: under Overflow::rescan no list is ever filled up.
template <StashPolicy Policy>
__device__ __forceinline__ void keep_candidate(StashStorage<Policy>& lds, int32_t* list, int next,
                                               const Cutoff& cutoff, uint32_t key,
                                               int32_t position) {
  if (cutoff.remaining_k == 0) return;
  if (cutoff.shift < 0) {
    const int32_t slot = atomicAdd(&lds.tie_cursor, 1);
    if (slot < cutoff.k) lds.positions[slot] = position;
    return;
  }
  const int32_t entry = atomicAdd(&lds.num_stashed[next], 1);
  if (entry < stash_capacity<Policy>) {
    list[entry] = position;
    atomicAdd(&lds.histogram[key_digit(key, cutoff.shift)], 1);
  }
}

// Before (barrier passed): counts cleared; no logit above the cutoff has a slot yet. After (barrier
// included): all of them have one below k - remaining_k, and those in question are in list 0, their
// next digits counted. Reads the row once.
template <StashPolicy Policy>
__device__ __forceinline__ void collect_candidates(StashStorage<Policy>& lds, int32_t* stash,
                                                   const RowSlice& slice, const Cutoff& cutoff) {
  for_each_logit<LogitSource::row, Policy.block_size>(slice, [&](uint32_t bits, int32_t position) {
    const int32_t bin = coarse_bin(bits);
    if (bin < cutoff.coarse_bin) return;
    const uint32_t key = order_key(bits);
    const uint32_t known = key & cutoff.fixed;
    if (bin > cutoff.coarse_bin || known > cutoff.prefix) {
      lds.positions[atomicAdd(&lds.found, 1)] = position;
    } else if (known == cutoff.prefix) {
      keep_candidate(lds, stash, 0, cutoff, key, position);
    }
  });
  __syncthreads();
}

// Before (barrier passed): counts cleared, list `from` holds num_items positions, and `digit`, the one
// before the cutoff's next, is new in its prefix. After (barrier included): the items above have a
// slot below k - remaining_k, those in question are in the other list, their next digits counted. The
// logits are read again by position.
template <StashPolicy Policy>
__device__ __forceinline__ void refine_stash(StashStorage<Policy>& lds, int32_t* stash, int from,
                                             int32_t num_items, const RowSlice& slice,
                                             const Cutoff& cutoff, int32_t digit) {
  const int32_t* items = stash + from * stash_capacity<Policy>;
  int32_t* list = stash + (1 - from) * stash_capacity<Policy>;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_items; i += Policy.block_size) {
    const int32_t position = items[i];
    const uint32_t key = order_key(canonical_bits<LogitSource::row>(slice.logits[position]));
    const int32_t its_digit = key_digit(key, cutoff.shift + 8);
    if (its_digit > digit) {
      lds.positions[atomicAdd(&lds.found, 1)] = position;
    } else if (its_digit == digit) {
      keep_candidate(lds, list, 1 - from, cutoff, key, position);
    }
  }
  __syncthreads();
}

}  // namespace topk_lab
