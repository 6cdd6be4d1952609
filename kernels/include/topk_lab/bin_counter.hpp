// How a thread adds its logits to a histogram in LDS.
//
// Atomics of a wave on one address are served lane by lane, so a bin that most logits fall into costs
// as many turns as it has logits. The counters here differ in how many of these they make of a
// crowded bin; whichever is used, a bin ends up with the number of logits that were added to it.
#pragma once
#include <topk_lab/block_scan.hpp>
#include <topk_lab/policy.hpp>

namespace topk_lab {

// look(bin) may be called with the bin of the first of the next few logits, before they are added, and
// add(bin) with that of each logit, both by any lanes of a wave. After flush(), called once by all lanes
// of a wave together, and the caller's barrier, histogram[b] has grown by the number of add(b).
template <Increments Kind>
struct BinCounter {
  int32_t* histogram;
  int32_t expected_bin;  // which bin is likely to be crowded; nothing depends on it but the time

  __device__ __forceinline__ void look(int32_t) {}
  __device__ __forceinline__ void add(int32_t bin) {
    atomicAdd(&histogram[bin], Kind == Increments::opaque ? opaque_one() : 1);
  }
  __device__ __forceinline__ void flush() {}
};

// Lanes that share the bin of their wave's first lane add once, all others each for itself.
template <>
struct BinCounter<Increments::wave> {
  int32_t* histogram;
  int32_t expected_bin;

  __device__ __forceinline__ void look(int32_t) {}
  __device__ __forceinline__ void add(int32_t bin) {
    const unsigned long long lanes = active_lanes();
    const int32_t shared_bin = first_of(lanes, bin);
    const unsigned long long sharers = ballot_of(lanes, bin == shared_bin);
    if (bin != shared_bin) {
      atomicAdd(&histogram[bin], 1);
    } else if (lanes_below(sharers) == 0) {
      atomicAdd(&histogram[bin], __popcll(sharers));
    }
  }
  __device__ __forceinline__ void flush() {}
};

// A bin is crowded where at least a quarter of a wave's lanes look at it: the one that was crowded
// before (at first the one that is expected to be), or else that of the first lane. Until the next look
// each lane counts what falls into that bin in a register; it adds the count when another bin is
// crowded, or no logit is left. Where no bin is crowded, logits are added one by one.
// Invariant: `kept` logits of `bin` are not in the histogram yet. It holds for each lane by itself, so
// lanes may part.
template <>
struct BinCounter<Increments::crowd> {
  int32_t* histogram;
  int32_t bin;
  int32_t kept = 0;
  bool crowded = false;

  __device__ __forceinline__ void look(int32_t next_bin) {
    const unsigned long long lanes = active_lanes();
    const int enough = (static_cast<int>(__popcll(lanes)) + 3) / 4;
    const bool as_before =
        static_cast<int>(__popcll(ballot_of(lanes, next_bin == bin))) >= enough;
    const int32_t shared_bin = first_of(lanes, next_bin);
    const bool as_first =
        static_cast<int>(__popcll(ballot_of(lanes, next_bin == shared_bin))) >= enough;
    crowded = as_before || as_first;
    if (as_before || !as_first) return;
    if (kept > 0) atomicAdd(&histogram[bin], kept);
    bin = shared_bin;
    kept = 0;
  }
  __device__ __forceinline__ void add(int32_t added_bin) {
    if (crowded && added_bin == bin) {
      ++kept;
    } else {
      atomicAdd(&histogram[added_bin], 1);
    }
  }
  // In a crowded row most lanes end with the same bin: what those of a wave kept of its first lane's is
  // added up first.
  __device__ __forceinline__ void flush() {
    const int32_t shared_bin = wave_uniform(__shfl(bin, 0));
    const int32_t shared = wave_inclusive_sum(bin == shared_bin ? kept : 0);
    if (lane_index() == wave_size - 1 && shared > 0) atomicAdd(&histogram[shared_bin], shared);
    if (bin != shared_bin && kept > 0) atomicAdd(&histogram[bin], kept);
  }
};

// NVIDIA's increment of LDS adds up the lanes that share an address, so nothing is saved there by looking
// for them. AMD's atomics are served lane by lane.
#if defined(__CUDACC__)
inline constexpr Increments native_increments = Increments::each;
#else
inline constexpr Increments native_increments = Increments::crowd;
#endif

template <>
struct BinCounter<Increments::native> : BinCounter<native_increments> {};

}  // namespace topk_lab
