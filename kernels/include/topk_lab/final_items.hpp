// Step "final items": candidates few enough to order on chip.
#pragma once
#include <topk_lab/emission.hpp>

namespace topk_lab {

// An item's rank is the number of items that order before it: by key, equal keys by place. No pads.
// Before: final items [0, num_items). After: the k - above best have the slots [above, k).
template <TopKPolicy Policy, int BlockSize>
__device__ __forceinline__ void rank_final_items(SelectionStorage<Policy, BlockSize>& lds,
                                                 int32_t num_items, int32_t above, int32_t k,
                                                 const Selected& selected) {
  const auto& items = lds.final_items;
  for (int32_t item = static_cast<int32_t>(threadIdx.x); item < num_items; item += BlockSize) {
    const uint32_t key = items.keys[item];
    int32_t slot = above;
    for (int32_t other = 0; other < num_items; ++other) {
      const uint32_t other_key = items.keys[other];
      slot += other_key < key || (other_key == key && other < item) ? 1 : 0;
    }
    if (slot < k) select_into(selected, slot, complement_key(key), items.positions[item]);
  }
}

template <TopKPolicy Policy>
__device__ __forceinline__ constexpr uint32_t final_pad_key() {
  if constexpr (Policy.final_pad == FinalPad::neg_inf) return complement_key(neg_inf_bits);
  if constexpr (Policy.final_pad == FinalPad::neg_flt_max) return complement_key(neg_flt_max_bits);
  return complement_key(pad_bits);
}

// Stable radix sort of the whole buffer, least significant digit first, one item of each
// BlockSize-long stripe a thread. Places from num_items on hold pads: the policy's key, position -1.
// After (barrier included): items [0, capacity) ordered by key.
template <TopKPolicy Policy, int BlockSize>
__device__ __forceinline__ void sort_final_items(SelectionStorage<Policy, BlockSize>& lds,
                                                 int32_t num_items) {
  using Items = FinalItems<Policy, BlockSize>;
  constexpr int per_thread = Items::items_per_thread;
  constexpr int num_waves = BlockSize / wave_size;
  auto& items = lds.final_items;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t wave = wave_uniform(thread / wave_size);
  for (int32_t item = thread; item < Items::capacity; item += BlockSize) {
    if (item >= num_items) {
      items.keys[item] = final_pad_key<Policy>();
      items.positions[item] = -1;  // read again by this thread alone, until the first scatter
    }
  }
#pragma unroll 1
  for (int shift = 0; shift < 32; shift += digit_bits) {
    for (int32_t i = thread; i < Items::num_counts; i += BlockSize) items.digit_counts[i] = 0;
    __syncthreads();
    uint32_t keys[per_thread];
    int32_t positions[per_thread];
    int32_t ranks[per_thread];  // among the equal digits of the same stripe and wave
#pragma unroll
    for (int stripe = 0; stripe < per_thread; ++stripe) {
      keys[stripe] = items.keys[stripe * BlockSize + thread];
      positions[stripe] = items.positions[stripe * BlockSize + thread];
      const uint32_t digit = (keys[stripe] >> shift) & (num_digits - 1);
      // Not ~0: the complement of a 32-lane ballot has its upper half set.
      unsigned long long same = __ballot(true);
#pragma unroll
      for (int bit = 0; bit < digit_bits; ++bit) {
        const bool set = ((digit >> bit) & 1u) != 0;
        const unsigned long long setters = __ballot(set);
        same &= set ? setters : ~setters;
      }
      ranks[stripe] = lanes_below(same);
      if (ranks[stripe] == 0) {
        items.digit_counts[(digit * per_thread + stripe) * num_waves + wave] = __popcll(same);
      }
    }
    __syncthreads();
    int32_t before = 0;
#pragma unroll
    for (int first = 0; first < Items::num_counts; first += BlockSize) {
      const int32_t i = first + thread;
      const int32_t count = i < Items::num_counts ? items.digit_counts[i] : 0;
      const ScanResult scan = block_exclusive_sum(lds.scan, count);
      if (i < Items::num_counts) items.digit_counts[i] = before + scan.exclusive;
      before += scan.total;
      __syncthreads();
    }
#pragma unroll
    for (int stripe = 0; stripe < per_thread; ++stripe) {
      const uint32_t digit = (keys[stripe] >> shift) & (num_digits - 1);
      const int32_t place =
          items.digit_counts[(digit * per_thread + stripe) * num_waves + wave] + ranks[stripe];
      items.keys[place] = keys[stripe];
      items.positions[place] = positions[stripe];
    }
    __syncthreads();
  }
}

// Before (barrier passed): the final items are the threshold bin, above < k <= above + num_items.
// After: the slots [above, k) hold its best. The caller's barrier publishes them.
template <TopKPolicy Policy, int BlockSize>
__device__ __forceinline__ void order_final_items(SelectionStorage<Policy, BlockSize>& lds,
                                                  int32_t above, int32_t k,
                                                  const Selected& selected) {
  const int32_t num_items = wave_uniform(lds.num_items);
  if (Policy.final_order == FinalOrder::rank_count ||
      (Policy.final_order == FinalOrder::by_size && num_items <= rank_count_limit)) {
    rank_final_items<Policy, BlockSize>(lds, num_items, above, k, selected);
  } else {
    sort_final_items<Policy, BlockSize>(lds, num_items);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < k - above; i += BlockSize) {
      select_into(selected, above + i, complement_key(lds.final_items.keys[i]),
                  lds.final_items.positions[i]);
    }
  }
}

}  // namespace topk_lab
