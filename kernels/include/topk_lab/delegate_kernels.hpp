// The bodies of the kernels of the delegate selection: each row is read once, and k segments of it again.
//
//   1. A row's segments are reduced to their greatest keys, its delegates: in LDS, by the block that selects
//      from it (fused), or in memory, by a launch whose blocks share the row (reduce). There are no atomics,
//      so that no logits cost more than others.
//   2. One block a row (fused, select) finds a cut that at least k delegates pass, and not many more (the k-th
//      of the greatest keys of groups of them is one). Their segments are gathered.
//   3. The logits that pass the cut are told apart, and the k best of them written. Where too many pass because
//      few delegates do, a cut is found among groups of logits as it was among delegates.
//
// Why the answer is exact: at least k delegates pass the cut, hence at least k logits, and every logit that
// passes lies in a segment whose delegate does. Where so many delegates are equal that their segments may be
// more than a block keeps, the cut becomes one key, T: all segments above it are taken, fewer than k, and
// of those at it the lowest, to make k. Each of these has a logit at T, so that no more ties are wanted
// than they hold; and they hold the lowest.
//
// Work and storage are bounded on every input: the delegates, length / segment of them, are passed over at
// most most_passes_of_a_kind times beyond once; what is gathered, segment_capacity segments, stays in
// registers. A row that fits there is read whole, by its block, and no delegates are made of it.
//
// Which of equal logits are kept is a function of the row alone, the lowest positions; the order of the
// answer is not.
#pragma once
#include <topk_lab/answer.hpp>
#include <topk_lab/delegate_lists.hpp>
#include <topk_lab/row_bounds.hpp>

namespace topk_lab {

// Launch: grid (num_rows or more, blocks_per_row), reduce_block_size threads; before the kernel that
// selects.
template <int Segment>
__device__ __forceinline__ void reduce_row(const DelegateParams& params) {
  const TopKParams& call = params.paged.call;
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  await_launch_ahead();
  let_next_launch_begin();
  if (row >= call.num_rows) return;
  const RowBounds bounds = row_bounds(call, row);
  if (bounds.length <= call.k || bounds.length <= params.whole_columns) return;
  const Segments<Segment> segments({row_logits(call, row, bounds), bounds.length});
  constexpr uint32_t waves = reduce_block_size / wave_size;
  const uint32_t wave = static_cast<uint32_t>(
      wave_uniform(static_cast<int32_t>(blockIdx.y * waves + threadIdx.x / wave_size)));
  reduce_segments(segments, params.delegates + static_cast<int64_t>(row) * params.delegates_stride,
                  segments.count, wave, waves * static_cast<uint32_t>(params.blocks_per_row));
}

// A key that the k-th is at least: the k-th of the greatest keys of groups, of which any key is in one at most.
// It is all of the range where many may share it, so that it may well be the k-th itself: it is -inf, where
// groups of -inf alone are needed to make k, or where the range begins, or all that passes left. Otherwise
// `low` is that key. The range begins with the least of the groups' keys, those of -inf aside; or with that of
// fewer, wider groups, of which there are still k. Before: histogram 0 is zero, by the next barrier at the
// latest. After: `top` is the greatest key.
template <DelegatePolicy Policy, bool Traced>
__device__ __forceinline__ KeyRange bound_of_groups(
    DelegateStorage<Policy>& lds, const uint32_t (&greatest)[Policy.groups], int32_t k,
    uint32_t& top, PassRecords<Traced>& records) {
  KeyRange bound{0xffffffffu, lowest_key, 0, uncounted};
  uint32_t floor = 0xffffffffu;
#pragma unroll
  for (int i = 0; i < Policy.groups; i += joined_groups<Policy>) {
    uint32_t joined = 0;
#pragma unroll
    for (int j = i; j < i + joined_groups<Policy>; ++j) {
      bound.low = greatest[j] > lowest_key && greatest[j] < bound.low ? greatest[j] : bound.low;
      joined = greatest[j] > joined ? greatest[j] : joined;
    }
    bound.top = joined > bound.top ? joined : bound.top;
    floor = joined < floor ? joined : floor;
  }
  block_extremes(lds, bound.low, floor, bound.top);
  top = bound.top;
  const KeyRange lowest{lowest_key, lowest_key, 0, uncounted};
  if (top == lowest_key) return lowest;
  bound.low = floor > lowest_key ? floor : bound.low;
  const uint32_t begin = bound.low;
  const Visited groups{[&](auto visit) {
#pragma unroll
    for (int i = 0; i < Policy.groups; ++i) visit(greatest[i]);
  }};
  // A bin of many leaves the bound far below the k-th of them.
#pragma unroll 1
  for (int pass = 1;; ++pass) {
    narrow_once(lds.histograms[0], groups, bound, k, 0, records);
    if (bound.inside <= loose_groups<Policy> || pass == most_group_passes) break;
    __syncthreads();
    if (threadIdx.x < range_bins) lds.histograms[0][threadIdx.x] = 0;
    tighten(lds, groups, bound);
    if (bound.is_one_key()) break;
  }
  if (bound.above + bound.inside < k) return lowest;
  const bool is_shared =
      bound.low == begin || (bound.is_one_key() && bound.inside > loose_groups<Policy>);
  bound.top = is_shared ? bound.low : top;
  return bound;
}

// Puts the positions of the k best of a row in the answer's slots, in no order; ~0u where there are fewer.
// Before: the storage's counts and histograms are zero, by the next barrier at the latest; where the row has
// delegates, they are kept as far as there is room for them.
template <DelegatePolicy Policy, bool Traced>
__device__ __forceinline__ void choose_positions(DelegateStorage<Policy>& lds,
                                                 const RowSlice& slice, int32_t k,
                                                 const uint32_t* of_row,
                                                 KeptDelegates<Policy>& kept_delegates,
                                                 PassRecords<Traced>& records) {
  const uint32_t thread = threadIdx.x;
  if (slice.length <= k) {
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(thread); i < k; i += Policy.block_size) {
      lds.answer[i] = i < slice.length ? i : ~0u;
    }
    return;
  }
  const auto record_end = [&]() {
    if constexpr (Traced) {
      if (records.number > 0 && thread == 0) (records.next - 1)->emitted = k;
    }
  };

  const Segments<Policy.segment> segments(slice);
  const bool whole = slice.length <= whole_columns<Policy>;
  const Delegates<Policy> delegates{of_row, whole ? 0u : segments.count};
  RowQuads<Policy> quads{segments, nullptr, (segments.length + segments.misplaced() + 3u) / 4u,
                         RowQuads<Policy>::turn};
  KeptRow<Policy> kept;
  uint32_t greatest[Policy.groups];
  if (whole) {
    kept.load(quads);
    kept.greatest(greatest);
  } else {
    kept_delegates.limit(segments.count);
    kept_delegates.greatest(delegates, greatest);
  }
  uint32_t top = 0;
  KeyRange bound = bound_of_groups(lds, greatest, k, top, records);

  // Segments whose delegates pass the bound; where they are too many, those of a narrower cut. Where that is
  // one key, at first those above it alone.
  KeyRange cut{bound.low, top, 0, uncounted};
  int32_t at_cut = uncounted;  // segments that are wanted of those at the cut, if not all
  bool is_one_key = bound.is_one_key();
  if (!whole) {
    list_segments(lds, delegates, kept_delegates, bound.low - (is_one_key ? 0u : 1u));
    if (lds.num_segments > segment_capacity<Policy>) {
      const Visited all{[&](auto visit) { kept_delegates.visit_all(delegates, visit); }};
      narrow_range(
          lds, all, cut, k, false,
          [](const KeyRange& left) {
            return left.inside <= segment_capacity<Policy> - left.above;
          },
          records);
      if (cut.inside > segment_capacity<Policy> - cut.above) at_cut = k - cut.above;
      is_one_key = at_cut != uncounted || cut.is_one_key();
      if (thread == 0) lds.num_segments = 0;
      __syncthreads();
      list_segments(lds, delegates, kept_delegates, cut.low - (at_cut == uncounted ? 1u : 0u));
    } else if (is_one_key && lds.num_segments < k) {
      at_cut = k - lds.num_segments;
    } else if (is_one_key) {
      ++cut.low;
      is_one_key = false;
    }
    quads.listed = lds.segments;
    quads.count = quads.in_segment * static_cast<uint32_t>(lds.num_segments);
    kept.load(quads);
  }

  // Logits that pass the cut, told apart where they are few. Of a cut that is one key, those above it may
  // do.
  uint32_t low = cut.low;  // the k-th key is that at least
  uint32_t bar = low - (is_one_key ? 0u : 1u);
  list_items(lds, kept, bar);
  int32_t num_items = lds.num_items;
  bool in_order = whole;
  if (item_capacity<Policy> > 0 && num_items > item_capacity<Policy> && !whole &&
      bound.is_one_key()) {
    // The least of the delegates' groups is far below the k-th: groups of what was gathered bound it anew.
    // Their segments have to rise, for the groups to be a function of the row.
    list_in_order(lds, delegates, cut.low, at_cut == uncounted ? uncounted : 0, lds.num_segments);
    in_order = true;
    if (thread < range_bins) lds.histograms[0][thread] = 0;
    if (thread == 0) lds.num_items = 0;
    kept.load(quads);
    kept.greatest(greatest);
    bound = bound_of_groups(lds, greatest, k, top, records);
    low = bound.low;
    is_one_key = bound.is_one_key();
    bar = low - (is_one_key ? 0u : 1u);
    kept.load(quads);
    list_items(lds, kept, bar);
    num_items = lds.num_items;
  }
  if (num_items >= k && num_items <= item_capacity<Policy>) {
    write_best_items(lds, quads, KeyRange{bar + 1u, top, 0, num_items}, k, records);
    record_end();
    return;
  }
  const int32_t expected = at_cut == uncounted ? lds.num_segments : k;
  if (is_one_key && low != inf_key && num_items < k && num_items <= item_capacity<Policy>) {
    // All that lies above the cut are items, and among the k best; what is left is equal: the lowest of
    // it, so that segments have to rise.
#pragma unroll 1
    for (int32_t i = static_cast<int32_t>(thread); i < num_items; i += Policy.block_size) {
      lds.answer[i] = kept.number_position(quads, lds.items[i].number);
    }
    if (in_order) {
      __syncthreads();  // the items' place is taken next
    } else {
      list_in_order(lds, delegates, cut.low, at_cut, expected);
      quads.count = quads.in_segment * static_cast<uint32_t>(expected);
    }
    quads.turned = 0;
    kept.load(quads);
    record_end();
    write_equal(lds, quads, kept, low, num_items, k);
    return;
  }

  // Otherwise all of it is told apart. Where more logits are equal than can be compared, the lowest of them
  // are wanted, so that their segments have to rise.
  KeyRange range{};
  quads.turned = 0;
#pragma unroll 1
  for (;;) {
    if (at_cut == uncounted || in_order) {
      kept.load(quads);
      range = {num_items >= k ? bar + 1u : low, top, 0, uncounted};
      narrow_range(
          lds, kept, range, k, low > lowest_key,
          [&](const KeyRange& left) { return can_be_compared(left, k); }, records);
      if (in_order || can_be_compared(range, k)) break;
    }
    list_in_order(lds, delegates, cut.low, at_cut, expected);
    in_order = true;
    quads.count = quads.in_segment * static_cast<uint32_t>(expected);
  }
  record_end();
  const bool takes_all = range.above + range.inside == k;
  const uint32_t below_winners = takes_all ? range.low - 1u : range.top;
  const auto winners = kept.marks([&](int i) { return kept.key(i) > below_winners; });
  int32_t slot = reserve(&lds.num_written, winners.count());
  winners.visit([&](uint32_t i) { lds.answer[slot++] = kept.position(quads, i); });
  if (takes_all) return;
  if (!can_be_compared(range, k)) {
    write_equal(lds, quads, kept, range.low, range.above, k);
    return;
  }
  const auto ties = kept.marks([&](int i) { return range.contains(kept.key(i)); });
  ties.visit([&](uint32_t i) {
    const uint32_t position = kept.position(quads, i);
    add_tie(lds, delegate_key(slice.logits[position]), position);
  });
  write_best_ties(lds, range, k);
}

// Launch: grid (num_rows), Policy.block_size threads; 1 <= k <= Policy.max_k; whole_columns are the
// policy's. There is room for delegates_stride delegates a row: in dynamic LDS, or in memory.
template <DelegatePolicy Policy, bool Traced, DelegateForm Form>
__device__ __forceinline__ void select_by_delegates(const DelegateParams& params) {
  const TopKParams& call = params.paged.call;
  __shared__ DelegateStorage<Policy> storage;
  DelegateStorage<Policy>& lds = addressed_once(storage);
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const uint32_t thread = threadIdx.x;
  PassRecords<Traced> records{};
  if constexpr (Traced) {
    records.next = call.trace + static_cast<int64_t>(row) * num_delegate_passes;
  }
  if (thread < range_bins) {
    lds.histograms[0][thread] = 0;
    lds.histograms[1][thread] = 0;
  }
  if (thread == 0) {
    lds.num_segments = 0;
    lds.num_items = 0;
    lds.num_written = 0;
    lds.num_ties = 0;
  }
  constexpr bool fused = Form != DelegateForm::two;
  // Of no other kernel is it asked that it leaves rows to another.
  constexpr bool partial = fused && (Policy.blocks_per_unit > 1 || Policy.segment > 16);
  const bool reduced = call.num_cols > whole_columns<Policy>;
  // The launch that reduces lets this one begin when the lengths are final, but not its delegates.
  if (fused || !reduced) await_launch_ahead();
  const RowBounds bounds = row_bounds(call, row);
  if (partial && (bounds.length < params.least_length || bounds.length > params.most_length)) return;
  const RowSlice slice{row_logits(call, row, bounds), bounds.length};
  uint32_t* maxima = nullptr;
  if constexpr (Form == DelegateForm::fused) {
    maxima = reinterpret_cast<uint32_t*>(dynamic_lds);
  } else {
    maxima = params.delegates + static_cast<int64_t>(row) * params.delegates_stride;
  }
  KeptDelegates<Policy> kept_delegates;
  if constexpr (fused) {
    if (slice.length > call.k && slice.length > whole_columns<Policy>) {
      constexpr uint32_t waves = Policy.block_size / wave_size;
      const int32_t wave = wave_uniform(static_cast<int32_t>(thread) / wave_size);
      const Segments<Policy.segment> segments(slice);
      const uint32_t room = (segments.count + 3u) & ~3u;
      reduce_segments(segments, maxima, room, static_cast<uint32_t>(wave), waves);
      __syncthreads();
      kept_delegates.load(maxima, room);
    }
    let_next_launch_begin();
  } else if (reduced) {
    // They are read before it is known how many there are, as far as shapes say that there is room for them.
    await_launch_ahead();
    kept_delegates.load(maxima, static_cast<uint32_t>(params.delegates_stride));
  }
  choose_positions(lds, slice, call.k, maxima, kept_delegates, records);
  __syncthreads();
#pragma unroll 1
  for (int32_t slot = static_cast<int32_t>(thread); slot < call.k; slot += Policy.block_size) {
    write_paged_slot(params.paged, row, slot, static_cast<int32_t>(lds.answer[slot]), slice.logits);
  }
}

}  // namespace topk_lab
