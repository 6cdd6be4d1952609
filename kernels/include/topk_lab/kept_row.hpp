// What the threads of a block keep: delegates of a row, and logits of the row or of its chosen segments.
//
// A selection is a chain of short steps, each run once: what every row needs is unrolled over registers,
// the rest is loops.
#pragma once
#include <topk_lab/delegate_storage.hpp>
#include <topk_lab/segment_maxima.hpp>

namespace topk_lab {

// A bit for each of so many things of a thread.
template <int Count>
struct Marks {
  static constexpr int num_words = (Count + 31) / 32;
  uint32_t words[num_words];

  __device__ __forceinline__ void add(int i, bool marked) {
    if (marked) words[i / 32] |= 1u << (i % 32);
  }
  __device__ __forceinline__ bool has(int i) const {
    return (words[i / 32] & 1u << (i % 32)) != 0;
  }
  __device__ __forceinline__ int32_t count() const {
    int32_t count = 0;
#pragma unroll
    for (int i = 0; i < num_words; ++i) count += __popc(words[i]);
    return count;
  }

  // Calls visit(i) for each that is marked.
  template <class Visit>
  __device__ __forceinline__ void visit(Visit visit) const {
#pragma unroll
    for (int i = 0; i < num_words; ++i) {
      uint32_t left = words[i];
#pragma unroll 1
      while (left != 0) {
        visit(static_cast<uint32_t>(32 * i + __ffs(static_cast<int>(left)) - 1));
        left &= left - 1;
      }
    }
  }
};

// The delegates of a row in runs, of which each thread has four neighbours.
template <DelegatePolicy Policy>
struct Delegates {
  static constexpr uint32_t in_run = 4 * Policy.block_size;
  const uint32_t* keys;
  uint32_t count;

  // Four of the caller's; 0, which is no logit's key, for those that aren't there.
  __device__ __forceinline__ uint4 load(uint32_t first) const {
    uint4 four{};
    if (first < count) four = *reinterpret_cast<const uint4*>(keys + first);
    if (first + 1 >= count) four.y = 0u;
    if (first + 2 >= count) four.z = 0u;
    if (first + 3 >= count) four.w = 0u;
    return four;
  }

  template <class Visit>
  __device__ __forceinline__ void visit_runs(uint32_t from, Visit visit) const {
#pragma unroll 1
    for (uint32_t run = from; run < count; run += in_run) {
      visit(load(run + 4u * threadIdx.x), run + 4u * threadIdx.x);
    }
  }
};

// The first `held` of them in registers; who visits all visits the others in memory.
template <DelegatePolicy Policy>
struct KeptDelegates {
  static constexpr int runs = Policy.held / 4;
  static constexpr uint32_t in_run = Delegates<Policy>::in_run;
  uint32_t keys[Policy.held];

  // Reads them before it is known how many there are: as far as there is room for delegates.
  __device__ __forceinline__ void load(const uint32_t* delegates, uint32_t room) {
#pragma unroll
    for (int i = 0; i < runs; ++i) {
      const uint32_t first = i * in_run + 4u * threadIdx.x;
      uint4 four{};
      if (first < room) four = *reinterpret_cast<const uint4*>(delegates + first);
      keys[4 * i] = four.x;
      keys[4 * i + 1] = four.y;
      keys[4 * i + 2] = four.z;
      keys[4 * i + 3] = four.w;
    }
  }

  // Drops those that aren't there.
  __device__ __forceinline__ void limit(uint32_t count) {
#pragma unroll
    for (int i = 0; i < Policy.held; ++i) {
      keys[i] = i / 4 * in_run + 4u * threadIdx.x + i % 4 < count ? keys[i] : 0u;
    }
  }

  // Greatest of each of the caller's groups, kept or not; 0 for none. From run to run the kept ones change
  // groups, so that a pattern of four segments leaves none empty.
  __device__ __forceinline__ void greatest(const Delegates<Policy>& all,
                                           uint32_t (&of)[Policy.groups]) const {
#pragma unroll
    for (int i = 0; i < Policy.groups; ++i) of[i] = 0;
#pragma unroll
    for (int i = 0; i < Policy.held; ++i) {
      uint32_t& greatest = of[(i + i / 4) % Policy.groups];
      greatest = keys[i] > greatest ? keys[i] : greatest;
    }
    all.visit_runs(runs * in_run, [&](const uint4& four, uint32_t) {
      const uint32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t& greatest = of[i % Policy.groups];
        greatest = others[i] > greatest ? others[i] : greatest;
      }
    });
  }

  // A bit for each kept one that is above `bar`.
  __device__ __forceinline__ Marks<Policy.held> above(uint32_t bar) const {
    Marks<Policy.held> marks{};
#pragma unroll
    for (int i = 0; i < Policy.held; ++i) marks.add(i, keys[i] > bar);
    return marks;
  }

  template <class Visit>
  __device__ __forceinline__ void visit_all(const Delegates<Policy>& all, Visit visit) const {
#pragma unroll
    for (int i = 0; i < Policy.held; ++i) visit(keys[i]);
    all.visit_runs(runs * in_run, [&](const uint4& four, uint32_t) {
      visit(four.x);
      visit(four.y);
      visit(four.z);
      visit(four.w);
    });
  }

  __device__ __forceinline__ static uint32_t segment(uint32_t i) {
    return i / 4 * in_run + 4u * threadIdx.x + i % 4;
  }
};

// Quads of a row, `quads` a thread: all of them, or those of its listed segments one after another. Logit
// i of quad q is number 4 * q + i. Where the segments rise, and nothing is turned, positions rise with the
// numbers.
template <DelegatePolicy Policy>
struct RowQuads {
  static constexpr uint32_t in_segment = Policy.segment / 4;
  // From one of its quads to the next a thread goes on by so many in 16 more, so that a pattern of the row
  // leaves none without its best.
  static constexpr uint32_t turn = 3;
  const Segments<Policy.segment>& row;
  const uint32_t* listed;  // segments, or null for all of the row
  uint32_t count;
  uint32_t turned;  // `turn`, or 0: positions rise

  __device__ __forceinline__ uint32_t place(uint32_t quad) const {
    return (quad & ~15u) | ((quad + turned * (quad / Policy.block_size)) & 15u);
  }
  __device__ __forceinline__ uint32_t position(uint32_t quad) const {
    const uint32_t at = place(quad);
    if (listed == nullptr) return 4u * at - row.misplaced();
    return listed[at / in_segment] * Policy.segment + 4u * (at % in_segment) - row.lead;
  }
  __device__ __forceinline__ static uint32_t own_quad(uint32_t i) {
    return i * Policy.block_size + threadIdx.x;
  }
  // Where the caller's i-th quad begins; the length, or what is behind it, if it has none.
  __device__ __forceinline__ uint32_t own_position(uint32_t i) const {
    static_assert(Policy.block_size % 16 == 0);
    const uint32_t at = i * Policy.block_size + (threadIdx.x & ~15u) + ((threadIdx.x + turned * i) & 15u);
    if (listed == nullptr) return 4u * at - row.misplaced();
    if (at >= count) return row.length;
    return listed[at / in_segment] * Policy.segment + 4u * (at % in_segment) - row.lead;
  }
};

// A thread's logits: whole quads, and in some threads one of the row's six at most that lie beside whole
// quads. These take part whether their segment is listed or not: what passes a cut lies in a listed one.
template <DelegatePolicy Policy>
struct KeptRow {
  static constexpr int count = 4 * Policy.quads + 1;
  float4 quads[Policy.quads];
  float beside;
  uint32_t there;  // a bit for each quad, the last one for the logit beside

  __device__ __forceinline__ void load(const RowQuads<Policy>& all) {
    const Segments<Policy.segment>& row = all.row;
    const float absent = __uint_as_float(neg_inf_bits);
    const float* const logits = formed_once(row.logits);
    const uint32_t last = row.length > 3u ? row.length - 3u : 0u;  // whole quads begin before it
    there = 0;
#pragma unroll
    for (int i = 0; i < Policy.quads; ++i) {
      const uint32_t position = all.own_position(i);
      quads[i] = float4{absent, absent, absent, absent};
      if (position < last) {
        quads[i] = *reinterpret_cast<const float4*>(logits + position);
        there |= 1u << i;
      }
    }
    beside = absent;
    if (threadIdx.x < 8) {
      const uint32_t position = position_beside(row);
      if (position < row.length) {
        beside = row.logits[position];
        there |= 1u << Policy.quads;
      }
    }
  }

  // Of the caller's logit beside whole quads, the length if it has none. Threads 0 to 3 have what lies before
  // the first whole quad, threads 4 to 7 what lies behind the last.
  __device__ __forceinline__ static uint32_t position_beside(const Segments<Policy.segment>& row) {
    const uint32_t head = (4u - row.misplaced()) & 3u;
    if (threadIdx.x < 4) return threadIdx.x < head ? threadIdx.x : row.length;
    if (threadIdx.x < 8 && row.length >= head) return tail(row) + (threadIdx.x - 4u);
    return row.length;
  }
  // Where the last whole quad ends. Before: the row is longer than what lies before the first.
  __device__ __forceinline__ static uint32_t tail(const Segments<Policy.segment>& row) {
    return ((row.length + row.misplaced()) & ~3u) - row.misplaced();
  }

  // Position of a thread's i-th logit.
  __device__ __forceinline__ static uint32_t position(const RowQuads<Policy>& all, uint32_t i) {
    return i == count - 1 ? position_beside(all.row) : all.position(all.own_quad(i / 4)) + i % 4;
  }
  // Number of it among all logits of the block; those beside quads come behind.
  __device__ __forceinline__ static uint32_t number(uint32_t i) {
    return i == count - 1 ? 4u * Policy.quads * Policy.block_size + threadIdx.x
                          : 4u * RowQuads<Policy>::own_quad(i / 4) + i % 4;
  }
  __device__ __forceinline__ static uint32_t number_position(const RowQuads<Policy>& all,
                                                             uint32_t number) {
    constexpr uint32_t end = 4u * Policy.quads * Policy.block_size;
    if (number < end) return all.position(number / 4) + number % 4;
    return number < end + 4 ? number - end : tail(all.row) + (number - end - 4u);
  }

  __device__ __forceinline__ float logit(int i) const {
    if (i == count - 1) return beside;
    const float4& four = quads[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
  // 0 for none: the lowest logit has a greater one.
  __device__ __forceinline__ uint32_t key(int i) const {
    return (there >> (i / 4) & 1u) != 0 ? delegate_key(here(logit(i))) : 0u;
  }

  template <class Visit>
  __device__ __forceinline__ void visit(Visit visit) const {
#pragma unroll
    for (int i = 0; i < count; ++i) visit(key(i));
  }

  __device__ __forceinline__ void greatest(uint32_t (&of)[Policy.groups]) const {
    float greatest[Policy.groups];
#pragma unroll
    for (int i = 0; i < Policy.groups; ++i) greatest[i] = __uint_as_float(neg_inf_bits);
#pragma unroll
    for (int i = 0; i < count; ++i) {
      greatest[i % Policy.groups] = max_or_nan(greatest[i % Policy.groups], logit(i));
    }
#pragma unroll
    for (int i = 0; i < Policy.groups; ++i) {
      of[i] = there != 0 ? delegate_key(greatest[i]) : 0u;
    }
  }

  template <class Passes>
  __device__ __forceinline__ Marks<count> marks(Passes passes) const {
    Marks<count> marks{};
#pragma unroll
    for (int i = 0; i < count; ++i) marks.add(i, passes(i));
    return marks;
  }
};

}  // namespace topk_lab
