// Step "collect": the last read of the row writes its k best, winners and as many ties as are wanted.
#pragma once
#include <topk_lab/one_block_storage.hpp>
#include <topk_lab/row_slice.hpp>

namespace topk_lab {

// Before (barrier passed): the cutoff is found; found and ties are 0. After: write(slot, position) was
// called once for each of k slots: winners have those below k - remaining_k, ties the others, from the
// back, each in order of arrival.
template <OneBlockPolicy Policy, class Write>
__device__ __forceinline__ void collect_by_arrival(OneBlockStorage<Policy>& lds,
                                                   const RowSlice& slice, const KeyCutoff& cutoff,
                                                   Write write) {
  for_each_logit<LogitSource::row, Policy.block_size>(slice, [&](uint32_t bits, int32_t position) {
    const uint32_t known = ranked_key<Emission::arrival>(bits) & cutoff.fixed;
    if (known > cutoff.prefix) return;
    int32_t slot;
    if (known < cutoff.prefix) {
      slot = atomicAdd(&lds.found, 1);
    } else {
      const int32_t tie = atomicAdd(&lds.ties, 1);
      if (tie >= cutoff.remaining_k) return;
      slot = cutoff.k - 1 - tie;
    }
    write(slot, position);
  });
}

// What becomes of a logit, as a sum counts it: winners in the lower half, ties in the upper.
inline constexpr uint32_t a_winner = 1u;
inline constexpr uint32_t a_tie = 1u << 16;

__device__ __forceinline__ uint32_t fate_in_row_order(uint32_t bits, const KeyCutoff& cutoff) {
  const uint32_t known = ranked_key<Emission::row_order>(bits) & cutoff.fixed;
  return known < cutoff.prefix ? a_winner : known == cutoff.prefix ? a_tie : 0u;
}

// Before (barrier passed): the cutoff is found. After: write(slot, position) was called once for each
// of k slots, with positions that rise with the slots, the lowest of equal logits among them. Returns
// how many slots were filled.
//
// The row is walked tile by tile, four neighbouring logits a thread. Invariant: `winners` and `ties` are
// those of all earlier tiles, and the slots below winners + min(ties, remaining_k) are filled. One
// prefix sum places both those of a tile: at most 4 * block_size, they fit 16 bits.
template <OneBlockPolicy Policy, class Write>
__device__ __forceinline__ int32_t collect_in_row_order(OneBlockStorage<Policy>& lds,
                                                        const RowSlice& slice,
                                                        const KeyCutoff& cutoff, Write write) {
  static_assert(4 * Policy.block_size < 1 << 15);
  const QuadsInOrder quads(slice);
  const auto wanted = [&](int32_t met) {
    return met < cutoff.remaining_k ? met : cutoff.remaining_k;
  };
  float4 arriving[loads_ahead];
#pragma unroll
  for (int ahead = 0; ahead < loads_ahead; ++ahead) {
    arriving[ahead] = quads.load(threadIdx.x + static_cast<uint32_t>(ahead * Policy.block_size));
  }
  int32_t winners = 0;
  int32_t ties = 0;
  int turn = 0;
#pragma unroll 1
  for (uint32_t tile = 0; tile < quads.count && winners + wanted(ties) < cutoff.k;
       tile += Policy.block_size) {
    const uint32_t quad = tile + threadIdx.x;
    const float4 four = arriving[0];
#pragma unroll
    for (int ahead = 1; ahead < loads_ahead; ++ahead) arriving[ahead - 1] = arriving[ahead];
    arriving[loads_ahead - 1] =
        quads.load(quad + static_cast<uint32_t>(loads_ahead * Policy.block_size));

    const float logits[4] = {four.x, four.y, four.z, four.w};
    const uint32_t first = quads.position(quad);
    uint32_t fates[4];
    uint32_t own = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool live = first + i < static_cast<uint32_t>(slice.length);
      const uint32_t bits = canonical_bits<LogitSource::row>(logits[i]);
      fates[i] = live ? fate_in_row_order(bits, cutoff) : 0u;
      own += fates[i];
    }
    const ScanResult scan = block_exclusive_sum(lds.scans[turn], static_cast<int32_t>(own));
    turn ^= 1;
    int32_t winners_before = winners + (scan.exclusive & 0xffff);
    int32_t ties_before = ties + (scan.exclusive >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (fates[i] == a_winner || (fates[i] == a_tie && ties_before < cutoff.remaining_k)) {
        write(winners_before + wanted(ties_before), static_cast<int32_t>(first + i));
      }
      winners_before += fates[i] == a_winner ? 1 : 0;
      ties_before += fates[i] == a_tie ? 1 : 0;
    }
    winners += scan.total & 0xffff;
    ties += scan.total >> 16;
  }
  return winners + wanted(ties);
}

}  // namespace topk_lab
