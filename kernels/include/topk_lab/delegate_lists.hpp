// Step "choose": which segments are read again, which logits are told apart, and in which slots they go.
#pragma once
#include <topk_lab/kept_row.hpp>
#include <topk_lab/narrow_range.hpp>

namespace topk_lab {

// Keys that a pass visits, by a function that visits them.
template <class Each>
struct Visited {
  Each each;

  template <class Visit>
  __device__ __forceinline__ void visit(Visit visit) const {
    each(visit);
  }
};
template <class Each>
Visited(Each) -> Visited<Each>;

// Lists the segments whose delegates are above `bar`, in no order. After (barrier included): all of them, if
// num_segments tells that there is room.
template <DelegatePolicy Policy>
__device__ __forceinline__ void list_segments(DelegateStorage<Policy>& lds,
                                              const Delegates<Policy>& all,
                                              const KeptDelegates<Policy>& kept, uint32_t bar) {
  const auto marks = kept.above(bar);
  const int32_t own = marks.count();
  const int32_t place = reserve(&lds.num_segments, own);
  if (place + own <= segment_capacity<Policy>) {
    uint32_t* next = lds.segments + place;
#pragma unroll
    for (int i = 0; i < Policy.held; ++i) {
      if (!marks.has(i)) continue;
      *next = kept.segment(i);
      ++next;
    }
  }
  all.visit_runs(kept.runs * kept.in_run, [&](const uint4& four, uint32_t first) {
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (keys[i] <= bar) continue;
      const int32_t next = atomicAdd(&lds.num_segments, 1);
      if (next < segment_capacity<Policy>) lds.segments[next] = first + i;
    }
  });
  __syncthreads();
}

// Lists in index order the segments whose delegates are above `cut`, and of those at the cut the first
// `at_cut`: `expected` of them, no more than there is room for. Barrier included.
template <DelegatePolicy Policy>
__device__ __forceinline__ void list_in_order(DelegateStorage<Policy>& lds,
                                              const Delegates<Policy>& all, uint32_t cut,
                                              int32_t at_cut, int32_t expected) {
  static_assert(4 * Policy.block_size < 1 << 15, "two counts share a sum");
  int32_t above = 0;
  int32_t equal = 0;
  const auto wanted = [&](int32_t met) { return met < at_cut ? met : at_cut; };
#pragma unroll 1
  for (uint32_t run = 0; above + wanted(equal) < expected; run += all.in_run) {
    const uint32_t first = run + 4u * threadIdx.x;
    const uint4 four = all.load(first);
    const uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    int32_t own = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) own += keys[i] > cut ? 1 : keys[i] == cut ? 1 << 16 : 0;
    const ScanResult scan = block_exclusive_sum(lds.scan, own);
    int32_t above_before = above + (scan.exclusive & 0xffff);
    int32_t equal_before = equal + (scan.exclusive >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (keys[i] > cut || (keys[i] == cut && equal_before < at_cut)) {
        lds.segments[above_before + wanted(equal_before)] = first + i;
      }
      above_before += keys[i] > cut ? 1 : 0;
      equal_before += keys[i] == cut ? 1 : 0;
    }
    above += scan.total & 0xffff;
    equal += scan.total >> 16;
    __syncthreads();
  }
}

// Lists the logits whose keys are above `bar` as items; none where that is below the keys of all, or above
// those of all but NaN. After (barrier included): all of them, if num_items tells that there is room.
template <DelegatePolicy Policy>
__device__ __forceinline__ void list_items(DelegateStorage<Policy>& lds, const KeptRow<Policy>& kept,
                                           uint32_t bar) {
  if (bar >= lowest_key && bar < inf_key) {
    // A NaN is not less than anything, and passes.
    const float passing = key_logit(bar + 1u);
    const auto marks = kept.marks([&](int i) { return !(kept.logit(i) < passing); });
    const int32_t own = marks.count();
    const int32_t place = reserve(&lds.num_items, own);
    if (place + own <= item_capacity<Policy>) {
      Item* next = lds.items + place;
#pragma unroll
      for (int i = 0; i < KeptRow<Policy>::count; ++i) {
        if (!marks.has(i)) continue;
        *next = Item{kept.logit(i), KeptRow<Policy>::number(i)};
        ++next;
      }
    }
  }
  __syncthreads();
}

template <DelegatePolicy Policy>
__device__ __forceinline__ void add_tie(DelegateStorage<Policy>& lds, uint32_t key,
                                        uint32_t position) {
  const int32_t place = atomicAdd(&lds.num_ties, 1);
  lds.tie_keys[place] = key;
  lds.tie_positions[place] = position;
}

// Writes the best of the ties that were added, which are all of the range, behind what is above it: of
// equal ones those of the lowest positions. A wave compares one with all others at a time.
template <DelegatePolicy Policy>
__device__ __forceinline__ void write_best_ties(DelegateStorage<Policy>& lds,
                                                const KeyRange& range, int32_t k) {
  __syncthreads();
  const int32_t lane = lane_index();
#pragma unroll 1
  for (int32_t tie = wave_uniform(static_cast<int32_t>(threadIdx.x) / wave_size);
       tie < range.inside; tie += DelegateStorage<Policy>::num_waves) {
    const uint32_t key = lds.tie_keys[tie];
    const uint32_t position = lds.tie_positions[tie];
    int32_t slot = range.above;
#pragma unroll
    for (int32_t first = 0; first < compared_ties; first += wave_size) {
      const int32_t other = first + lane < range.inside ? first + lane : tie;  // not better than itself
      const uint32_t other_key = lds.tie_keys[other];
      const bool is_better =
          other_key > key || (other_key == key && lds.tie_positions[other] < position);
      slot += __popcll(__ballot(is_better));
    }
    if (lane == 0 && slot < k) lds.answer[slot] = position;
  }
}

// The k-th key of few enough items lies near their cut: bins are spent on that part of the range.
inline constexpr int items_focus = 2;

__device__ __forceinline__ bool can_be_compared(const KeyRange& range, int32_t k) {
  return range.above + range.inside == k || range.inside <= compared_ties;
}

// Writes the k best of the items, which are logits of the quads, by the narrowed range of their ranks.
template <DelegatePolicy Policy, class Rank, class Position>
__device__ __forceinline__ void write_ranked_items(DelegateStorage<Policy>& lds, int32_t num_items,
                                                   const KeyRange& range, int32_t k, Rank rank,
                                                   Position position) {
  const bool takes_all = range.above + range.inside == k;
  const uint32_t below_winners = takes_all ? range.low - 1u : range.top;
  int32_t own = 0;
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_items; i += Policy.block_size) {
    const uint32_t of_item = rank(i);
    own += of_item > below_winners ? 1 : 0;
    if (of_item >= range.low && of_item <= below_winners) add_tie(lds, of_item, position(i));
  }
  int32_t slot = reserve(&lds.num_written, own);
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_items; i += Policy.block_size) {
    if (rank(i) > below_winners) lds.answer[slot++] = position(i);
  }
  if (!takes_all) write_best_ties(lds, range, k);
}

// Writes the k best of the items. Before: `range` holds all of them, k at least.
template <DelegatePolicy Policy, bool Traced>
__device__ __forceinline__ void write_best_items(DelegateStorage<Policy>& lds,
                                                 const RowQuads<Policy>& quads, KeyRange range,
                                                 int32_t k, PassRecords<Traced>& records) {
  const int32_t num_items = range.inside;
  const auto position = [&](int32_t i) {
    return KeptRow<Policy>::number_position(quads, lds.items[i].number);
  };
  const auto key = [&](int32_t i) { return delegate_key(lds.items[i].logit); };
  const auto ranked = [&](auto rank) {
    return Visited{[=](auto visit) {
#pragma unroll 1
      for (int32_t i = static_cast<int32_t>(threadIdx.x); i < num_items; i += Policy.block_size) {
        visit(rank(i));
      }
    }};
  };
  const auto items = ranked(key);
  const auto enough = [&](const KeyRange& left) { return can_be_compared(left, k); };
  // A floor that is no bound says nothing of where they lie.
  const bool is_bound = range.low > lowest_key + 1u;
  if (!is_bound) tighten(lds, items, range);
  if (!enough(range) && !range.is_one_key()) {
    narrow_once(lds.histograms[1], items, range, k, is_bound ? items_focus : 0, records);
  }
  narrow_range(lds, items, range, k, false, enough, records);
  if (enough(range)) {
    write_ranked_items(lds, num_items, range, k, key, position);
    return;
  }
  // More equal ones than can be compared are told apart by their positions, the lowest first.
  const uint32_t equal = range.low;
  const auto place = [&](int32_t i) {
    const uint32_t of_item = key(i);
    return of_item > equal ? ~0u : of_item < equal ? 0u : ~0u - 1u - position(i);
  };
  range = {1u, ~0u - 1u, range.above, range.inside};
  PassRecords<false> none{};
  narrow_range(lds, ranked(place), range, k, false, enough, none);
  write_ranked_items(lds, num_items, range, k, place, position);
}

// Writes those of the kept logits that equal `cut`, the lowest positions first, from slot `above` on.
// Before: the quads' positions rise.
template <DelegatePolicy Policy>
__device__ __forceinline__ void write_equal(DelegateStorage<Policy>& lds,
                                            const RowQuads<Policy>& quads,
                                            const KeptRow<Policy>& kept, uint32_t cut,
                                            int32_t above, int32_t k) {
#pragma unroll
  for (int i = 0; i < Policy.quads; ++i) {
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) bits |= kept.key(4 * i + j) == cut ? 1u << j : 0u;
    lds.tie_bits[quads.own_quad(i)] = static_cast<uint8_t>(bits);
  }
  // What lies before the first whole quad comes first, what lies behind the last comes last.
  const bool beside = kept.key(kept.count - 1) == cut;
  const int32_t head = block_count(lds, beside && threadIdx.x < 4);
  int32_t slot = above + head;
#pragma unroll 1
  for (int i = 0; i < Policy.quads && slot < k; ++i) {
    uint32_t left = lds.tie_bits[quads.own_quad(i)];
    const ScanResult ties = block_exclusive_sum(lds.scan, __popc(left));
    int32_t own = slot + ties.exclusive;
    const uint32_t position = left != 0 ? quads.position(quads.own_quad(i)) : 0u;
    for (; left != 0 && own < k; left &= left - 1) {
      lds.answer[own++] = position + static_cast<uint32_t>(__ffs(static_cast<int>(left)) - 1);
    }
    slot += ties.total;
    __syncthreads();
  }
  const unsigned long long lanes = __ballot(beside);
  if (!beside) return;
  // Lanes below those that have what comes last have what comes first.
  const int32_t own = lanes_below(lanes) + (threadIdx.x < 4 ? above : slot - head);
  if (own < k) lds.answer[own] = kept.position_beside(quads.row);
}

}  // namespace topk_lab
