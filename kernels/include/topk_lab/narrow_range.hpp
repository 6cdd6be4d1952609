// Step "cut": narrows the range of keys in which the k-th one lies, pass by pass.
#pragma once
#include <topk_lab/delegate_storage.hpp>

namespace topk_lab {

// Passes of one kind of keys: 32 bits, of which a pass fixes range_bits.
inline constexpr int most_passes_of_a_kind = (32 + range_bits - 1) / range_bits;
// Over groups of delegates and of logits, over items with a focus, then over delegates, items, and kept logits
// twice.
inline constexpr int most_group_passes = 3;
inline constexpr int num_delegate_passes = 2 * most_group_passes + 1 + 4 * most_passes_of_a_kind;

// What each pass did, in traced kernels alone.
template <bool Traced>
struct PassRecords {
  TraceStep* next;
  int32_t number = 0;

  // After a pass's barrier, before its histogram is cleared.
  __device__ __forceinline__ void add(const int32_t* histogram, uint32_t low, int32_t bin,
                                      int32_t population, int32_t above) {
    if constexpr (Traced) {
      if (threadIdx.x < range_bins) next->histogram[threadIdx.x] = histogram[threadIdx.x];
      if (threadIdx.x == 0) {
        next->step = number;
        next->prefix = low;
        next->threshold_bin = bin;
        next->bin_size = population;
        next->above = above;
        next->emitted = 0;
        next->candidates = population;
        next->fits = population <= compared_ties ? 1 : 0;
      }
      ++next;
      ++number;
    }
  }
};

// The lowest of two values each, and the greatest of one, over the threads of a block. Before (barrier passed):
// nobody reads the storage. After (barrier included): all threads know them; a barrier is due before it is used
// again.
template <DelegatePolicy Policy>
__device__ __forceinline__ void block_extremes(DelegateStorage<Policy>& lds, uint32_t& low,
                                               uint32_t& floor, uint32_t& top) {
  constexpr int num_waves = DelegateStorage<Policy>::num_waves;
  const int lane = lane_index();
  const int wave = static_cast<int>(threadIdx.x) / wave_size;
  low = wave_min(low);
  floor = wave_min(floor);
  top = wave_max(top);
  if (lane == 0) lds.wave_extremes[wave] = {low, floor, top, 0};
  __syncthreads();
  const WaveExtremes of_wave = lds.wave_extremes[lane % num_waves];
  low = wave_min(of_wave.low);
  floor = wave_min(of_wave.floor);
  top = wave_max(of_wave.top);
}

// Threads for which the predicate holds. Barrier included; another is due before it is called again.
template <DelegatePolicy Policy>
__device__ __forceinline__ int32_t block_count(DelegateStorage<Policy>& lds, bool predicate) {
  constexpr int num_waves = DelegateStorage<Policy>::num_waves;
  const int lane = lane_index();
  const int32_t of_wave = __popcll(__ballot(predicate));
  if (lane == 0) lds.wave_sums[threadIdx.x / wave_size] = of_wave;
  __syncthreads();
  return wave_sum(lane < num_waves ? lds.wave_sums[lane] : 0);
}

struct RankedBin {
  int32_t bin;
  int32_t population;
  int32_t above;  // population of all earlier bins
};

// The bin that holds the rank-th key. Before (barrier passed): 0 < rank. After: above < rank <= above +
// population, for exactly one bin; or, if there are fewer keys, the last one. Every wave finds it for itself,
// so that none waits for another.
__device__ __forceinline__ RankedBin find_ranked_bin(const int32_t* histogram, int32_t rank) {
  constexpr int own = range_bins / wave_size;
  struct alignas(16) Bins {
    int32_t of[own];
  };
  Bins sums = reinterpret_cast<const Bins*>(histogram)[lane_index()];
#pragma unroll
  for (int i = 1; i < own; ++i) sums.of[i] += sums.of[i - 1];
  const int32_t inclusive = wave_inclusive_sum(sums.of[own - 1]);
  const int32_t before = inclusive - sums.of[own - 1];
  // The last one where no bin holds it.
  const int lane =
      (__ffsll(static_cast<long long>(__ballot(inclusive >= rank))) - 1) & (wave_size - 1);
  // Of what follows, that lane's alone is right.
  int32_t above = 0;
  int32_t bin = lane_index() * own;
#pragma unroll
  for (int i = 0; i < own - 1; ++i) {
    const bool is_above = sums.of[i] < rank - before;
    above = is_above ? sums.of[i] : above;
    bin += is_above ? 1 : 0;
  }
  bin = wave_uniform(__shfl(bin, lane));
  return {bin, wave_uniform(histogram[bin]), wave_uniform(__shfl(before + above, lane))};
}

// One pass. Before: the histogram is zero, by this barrier at the latest; the range's invariant holds, and
// low < top. After: the range is what the threshold bin holds.
template <class Bins, bool Traced, class Keys>
__device__ __forceinline__ void narrow_in(const Bins& bins, int32_t* histogram, const Keys& keys,
                                          KeyRange& range, int32_t k,
                                          PassRecords<Traced>& records) {
  keys.visit([&](uint32_t key) {
    if (range.contains(key)) atomicAdd(&histogram[bins.bin(key)], 1);
  });
  __syncthreads();
  const RankedBin found = find_ranked_bin(histogram, k - range.above);
  const uint32_t low = range.low;
  const uint32_t nearest = static_cast<uint32_t>(found.bin) << bins.shift;
  const uint32_t farthest = nearest + ((1u << bins.shift) - 1u);
  range.low = farthest < bins.top ? bins.lowest_key_at(bins.top - farthest) : range.low;
  if (found.bin > 0) range.top = bins.greatest_key_at(bins.top - nearest);
  range.above += found.above;
  range.inside = found.population;
  records.add(histogram, low, found.bin, found.population, range.above);
}

// The same with bins of logits that are evenly far apart where the range has both signs, else of keys.
template <bool Traced, class Keys>
__device__ __forceinline__ void narrow_once(int32_t* histogram, const Keys& keys, KeyRange& range,
                                            int32_t k, int focus, PassRecords<Traced>& records) {
  if (range.low < zero_key && range.top > zero_key) {
    narrow_in(key_bins(range, FixedPoint(range), focus), histogram, keys, range, k, records);
  } else {
    narrow_in(key_bins(range, KeyPlaces{}, focus), histogram, keys, range, k, records);
  }
}

// Brings the range's ends to the lowest and the greatest of its keys.
template <DelegatePolicy Policy, class Keys>
__device__ __forceinline__ void tighten(DelegateStorage<Policy>& lds, const Keys& keys,
                                        KeyRange& range) {
  uint32_t low = 0xffffffffu;
  uint32_t floor = low;
  uint32_t top = 0;
  keys.visit([&](uint32_t key) {
    if (!range.contains(key)) return;
    low = key < low ? key : low;
    top = key > top ? key : top;
  });
  block_extremes(lds, low, floor, top);
  range.low = low;
  range.top = top;
}

// Passes until enough(range) or the range is one key. Each begins with the keys that are there, the first one
// if `is_tight` doesn't tell that they span the range, and makes the range 2^range_bits times smaller.
template <DelegatePolicy Policy, bool Traced, class Keys, class Enough>
__device__ __forceinline__ void narrow_range(DelegateStorage<Policy>& lds, const Keys& keys,
                                             KeyRange& range, int32_t k, bool is_tight,
                                             Enough enough, PassRecords<Traced>& records) {
#pragma unroll 1
  while (!enough(range)) {
    __syncthreads();
    if (threadIdx.x < range_bins) lds.histograms[0][threadIdx.x] = 0;
    if (is_tight) {
      __syncthreads();
    } else {
      tighten(lds, keys, range);
    }
    is_tight = false;
    if (range.is_one_key()) return;
    narrow_in(key_bins(range, KeyPlaces{}, 0), lds.histograms[0], keys, range, k, records);
  }
}

}  // namespace topk_lab
