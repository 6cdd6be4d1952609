// Stand-in for ROCm's <hip/hip_runtime.h>: the part of HIP's device language that these kernels use, for
// a bare clang that targets amdgcn and for nvcc. With a ROCm install the real header is used instead.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <cuda/atomic>

#define HIP_SHIM_DEVICE static __device__ __forceinline__

// HIP's collectives speak of all lanes of a wave; kernels call them convergently.
HIP_SHIM_DEVICE unsigned __lane_id() { return threadIdx.x & 31; }
HIP_SHIM_DEVICE unsigned long long hip_shim_ballot(int predicate) {
  return __ballot_sync(~0u, predicate);
}
HIP_SHIM_DEVICE int hip_shim_shfl(int value, int lane) { return __shfl_sync(~0u, value, lane); }
HIP_SHIM_DEVICE int hip_shim_shfl_up(int value, unsigned distance) {
  return __shfl_up_sync(~0u, value, distance);
}
HIP_SHIM_DEVICE int hip_shim_shfl_xor(int value, int mask) {
  return __shfl_xor_sync(~0u, value, mask);
}
#define __ballot hip_shim_ballot
#define __shfl hip_shim_shfl
#define __shfl_up hip_shim_shfl_up
#define __shfl_xor hip_shim_shfl_xor

#define __HIP_MEMORY_SCOPE_AGENT 4
template <class T>
HIP_SHIM_DEVICE T __hip_atomic_load(const T* address, int, int) {
  return cuda::atomic_ref<T, cuda::thread_scope_device>(*const_cast<T*>(address))
      .load(cuda::memory_order_relaxed);
}
// Whatever order is asked for: the strongest that these kernels use.
template <class T>
HIP_SHIM_DEVICE T __hip_atomic_fetch_add(T* address, T value, int, int) {
  return cuda::atomic_ref<T, cuda::thread_scope_device>(*address).fetch_add(
      value, cuda::memory_order_acq_rel);
}

#elif defined(__HIP__) && defined(__AMDGCN__)

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))

// HIP's second argument is the least number of waves per SIMD. The plain launch_bounds attribute is
// ignored on amdgcn, so both arguments have to become amdgpu attributes.
#define HIP_SHIM_LAUNCH_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define HIP_SHIM_LAUNCH_BOUNDS_2(threads, waves) \
  __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define HIP_SHIM_PICK(one, two, name, ...) name
#define __launch_bounds__(...)                                                     \
  HIP_SHIM_PICK(__VA_ARGS__, HIP_SHIM_LAUNCH_BOUNDS_2, HIP_SHIM_LAUNCH_BOUNDS_1, ) \
  (__VA_ARGS__)

#define HIP_SHIM_DEVICE static __device__ __forceinline__

namespace hip_shim {
struct ThreadIndexX {
  HIP_SHIM_DEVICE unsigned get() { return __builtin_amdgcn_workitem_id_x(); }
};
struct BlockIndexX {
  HIP_SHIM_DEVICE unsigned get() { return __builtin_amdgcn_workgroup_id_x(); }
};
struct BlockIndexY {
  HIP_SHIM_DEVICE unsigned get() { return __builtin_amdgcn_workgroup_id_y(); }
};
struct GridSizeX {
  HIP_SHIM_DEVICE unsigned get() {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
  }
};
template <class Source>
struct Coordinate {
  __device__ __attribute__((always_inline)) operator unsigned() const { return Source::get(); }
};
struct ThreadIndex {
  Coordinate<ThreadIndexX> x;
};
struct BlockIndex {
  Coordinate<BlockIndexX> x;
  Coordinate<BlockIndexY> y;
};
struct GridSize {
  Coordinate<GridSizeX> x;
};
}  // namespace hip_shim

static constexpr __device__ hip_shim::ThreadIndex threadIdx{};
static constexpr __device__ hip_shim::BlockIndex blockIdx{};
static constexpr __device__ hip_shim::GridSize gridDim{};

typedef float float4 __attribute__((ext_vector_type(4)));
typedef unsigned uint4 __attribute__((ext_vector_type(4)));

HIP_SHIM_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
HIP_SHIM_DEVICE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
HIP_SHIM_DEVICE unsigned __lane_id() {
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
HIP_SHIM_DEVICE unsigned long long __ballot(int predicate) {
  return __builtin_amdgcn_ballot_w64(predicate != 0);
}
HIP_SHIM_DEVICE int __popcll(unsigned long long mask) { return __builtin_popcountll(mask); }
HIP_SHIM_DEVICE int __popc(unsigned mask) { return __builtin_popcount(mask); }
HIP_SHIM_DEVICE int __ffs(int x) { return __builtin_ffs(x); }
HIP_SHIM_DEVICE int __ffsll(long long x) { return __builtin_ffsll(x); }
HIP_SHIM_DEVICE int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
HIP_SHIM_DEVICE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
HIP_SHIM_DEVICE float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
HIP_SHIM_DEVICE int __shfl(int value, int lane) {
  return __builtin_amdgcn_ds_bpermute(lane << 2, value);
}
HIP_SHIM_DEVICE int __shfl_xor(int value, int mask) {
  return __builtin_amdgcn_ds_bpermute((static_cast<int>(__lane_id()) ^ mask) << 2, value);
}
HIP_SHIM_DEVICE int __shfl_up(int value, unsigned distance) {
  const int lane = static_cast<int>(__lane_id());
  const int source = lane - static_cast<int>(distance);
  return __builtin_amdgcn_ds_bpermute((source < 0 ? lane : source) << 2, value);
}
HIP_SHIM_DEVICE int atomicAdd(int* address, int value) {
  return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

#else
#error "this stand-in is for clang -x hip on amdgcn and for nvcc"
#endif
