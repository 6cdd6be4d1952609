// Kernels for the emulator's tests: one that is right, the same with a barrier less, and one for each
// thing that a kernel must not do. Blocks have up to 1024 threads.
#include <hip/hip_runtime.h>

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

namespace {

constexpr int kThreads = 1024;
constexpr int kBins = 2048;

__device__ unsigned order_key(float x) {
  const unsigned bits = __float_as_uint(x);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

struct HistogramParams {
  const float* values;   // (num_blocks, n)
  unsigned* histogram;   // (num_blocks, kBins)
  int* indices;          // (num_blocks, k): those above the threshold bin, any order
  int* count;            // (num_blocks,)
  int n;
  int k;
};

// Threshold bin of the k-th greatest value by an LDS histogram and a scan from the top; the columns
// above it. Barrier number `kWithout` is left out.
template <int kWithout>
__device__ void histogram_topk(const HistogramParams& p) {
  __shared__ int histogram[kBins];
  __shared__ int wave_sums[kThreads / 64];
  __shared__ int threshold_bin;
  __shared__ int num_above;
  const int thread = threadIdx.x, lane = thread & 63, wave = thread >> 6;
  const float* row = p.values + static_cast<size_t>(blockIdx.x) * p.n;

  for (int bin = thread; bin < kBins; bin += kThreads) histogram[bin] = 0;
  if (thread == 0) num_above = 0;
  if constexpr (kWithout != 1) __syncthreads();
  for (int i = thread; i < p.n; i += kThreads) atomicAdd(&histogram[order_key(row[i]) >> 21], 1);
  if constexpr (kWithout != 2) __syncthreads();

  const int high = histogram[kBins - 1 - 2 * thread], low = histogram[kBins - 2 - 2 * thread];
  int sum = high + low;
  for (int distance = 1; distance < 64; distance *= 2) {
    const int before = __shfl_up(sum, distance);
    if (lane >= distance) sum += before;
  }
  if (lane == 63) wave_sums[wave] = sum;
  if constexpr (kWithout != 3) __syncthreads();
  for (int w = 0; w < wave; ++w) sum += wave_sums[w];
  const int above = sum - high - low;
  if (above < p.k && above + high >= p.k) threshold_bin = kBins - 1 - 2 * thread;
  if (above + high < p.k && sum >= p.k) threshold_bin = kBins - 2 - 2 * thread;
  if constexpr (kWithout != 4) __syncthreads();

  const unsigned threshold = threshold_bin;
  for (int bin = thread; bin < kBins; bin += kThreads)
    p.histogram[blockIdx.x * kBins + bin] = histogram[bin];
  for (int base = 0; base < p.n; base += kThreads) {
    const int i = base + thread;
    const bool kept = i < p.n && order_key(row[i]) >> 21 > threshold;
    const unsigned long long mask = __ballot(kept);
    int place = 0;
    if (lane == 0 && mask) place = atomicAdd(&num_above, __popcll(mask));
    place = __shfl(place, 0) + __popcll(mask & ((1ull << lane) - 1));
    if (kept) p.indices[blockIdx.x * p.k + place] = i;
  }
  if constexpr (kWithout != 5) __syncthreads();
  if (thread == 0) p.count[blockIdx.x] = num_above;
}

}  // namespace

KERNEL histogram_topk_right(HistogramParams p) { histogram_topk<0>(p); }
KERNEL histogram_topk_without_1(HistogramParams p) { histogram_topk<1>(p); }
KERNEL histogram_topk_without_2(HistogramParams p) { histogram_topk<2>(p); }
KERNEL histogram_topk_without_3(HistogramParams p) { histogram_topk<3>(p); }
KERNEL histogram_topk_without_4(HistogramParams p) { histogram_topk<4>(p); }
KERNEL histogram_topk_without_5(HistogramParams p) { histogram_topk<5>(p); }

struct Params {
  const int* in;  // (n,)
  int* out;
  int n;
  int which;      // the thread, place or distance that a test picks
};

// One thread of the grid reads `n` elements too far.
KERNEL read_too_far(Params p) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  p.out[i] = p.in[i == p.which ? p.n : i];
}

KERNEL write_before_begin(Params p) {
  if (static_cast<int>(threadIdx.x) == p.which) p.out[-2] = 1;
}

KERNEL write_to_input(Params p) {
  if (static_cast<int>(threadIdx.x) == p.which) const_cast<int*>(p.in)[threadIdx.x] = 1;
}

// A scalar load: the address is the same in all lanes.
KERNEL read_length_too_far(Params p) { p.out[threadIdx.x] = p.in[p.which]; }

KERNEL lds_too_far(Params p) {
  extern __shared__ int room[];
  room[threadIdx.x] = threadIdx.x;
  __syncthreads();
  p.out[threadIdx.x] = room[threadIdx.x + (static_cast<int>(threadIdx.x) == p.which ? p.n : 0)];
}

KERNEL misaligned(Params p) {
  auto* bytes = reinterpret_cast<const char*>(p.in);
  p.out[threadIdx.x] = *reinterpret_cast<const int*>(bytes + 4 * threadIdx.x +
                                                     (static_cast<int>(threadIdx.x) == p.which));
}

// Waves from `which` on leave before the barrier.
KERNEL leave_before_barrier(Params p) {
  if (static_cast<int>(threadIdx.x) >= 64 * p.which) return;
  __syncthreads();
  p.out[threadIdx.x] = 1;
}

KERNEL wait_forever(Params p) {
  while (__hip_atomic_load(p.in, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) == 0) {
  }
  p.out[threadIdx.x] = 1;
}

// Wave 0 waits for what wave 1 writes to LDS.
KERNEL wait_for_other_wave(Params p) {
  __shared__ int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x >= 64) {
    __hip_atomic_store(&flag, p.which, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_WORKGROUP);
  } else {
    while (__hip_atomic_load(&flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_WORKGROUP) == 0) {
    }
  }
  p.out[threadIdx.x] = flag;
}

KERNEL give_up(Params p) {
  if (p.which) __builtin_trap();
  p.out[threadIdx.x] = 1;
}

KERNEL uninitialised_lds(Params p) {
  __shared__ int room[256];
  if (p.which) room[threadIdx.x] = 7;
  p.out[threadIdx.x] = room[threadIdx.x ^ 1];
}

KERNEL needs_scratch(Params p) {
  volatile int own[64];
  for (int i = 0; i < 64; ++i) own[i] = p.in[i];
  p.out[threadIdx.x] = own[threadIdx.x & 63];
}

// All lanes of a wave write to one place, and count themselves at another (`in` holds zeros: the
// compiler must not know that the places are the same).
KERNEL conflicting_lanes(Params p) {
  __shared__ int last[2], turn[2];
  const int thread = threadIdx.x, place = p.in[thread];
  if (thread == 0) turn[0] = 0;
  __syncthreads();
  last[place] = thread;
  p.out[thread] = atomicAdd(&turn[place], (thread & 1) + 1);
  __syncthreads();
  if (thread == 0) p.out[64] = last[0];
}

__constant__ const int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};

KERNEL constant_table(Params p) { p.out[threadIdx.x] = squares[p.in[threadIdx.x]]; }

// Where every thread is, and how large the grid is.
KERNEL places(Params p) {
  const int block = blockIdx.y * gridDim.x + blockIdx.x;
  p.out[block * 100 + threadIdx.x] = (blockIdx.x << 24) + (blockIdx.y << 16) + threadIdx.x;
}

// Blocks add up `in`; the last one to finish says so.
KERNEL sum_of_blocks(Params p) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  atomicAdd(&p.out[0], i < p.n ? p.in[i] : 0);
  __syncthreads();
  if (threadIdx.x == 0) {
    const int before = __hip_atomic_fetch_add(&p.out[1], 1, __ATOMIC_ACQ_REL,
                                              __HIP_MEMORY_SCOPE_AGENT);
    if (before + 1 == p.which) p.out[2] = blockIdx.x + 1;
  }
}
