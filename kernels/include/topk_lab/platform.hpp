// What differs between the platforms: wave size, launch bounds, uniform values.
#pragma once
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#include <stdint.h>

namespace topk_lab {

// Masks of lanes are 64 bits wide throughout.
#if defined(__CUDACC__)
inline constexpr int wave_size = 32;
#elif defined(__GFX9__)
inline constexpr int wave_size = 64;
#else
#error "these kernels are for CDNA (64 lanes) and NVIDIA GPUs"
#endif

// Launch bound of a block of `threads`, of which two fit on a compute unit as far as registers go; LDS
// is the other limit (README.md, LDS plan). HIP's second argument counts waves on one of a compute
// unit's four SIMDs. CUDA's counts blocks: 512 threads get three, since registers for four make the
// final sort spill.
#if defined(__CUDACC__)
#define TOPK_LAB_LAUNCH_BOUNDS(threads) __launch_bounds__(threads, (threads) > 512 ? 2 : 3)
#else
#define TOPK_LAB_LAUNCH_BOUNDS(threads) __launch_bounds__(threads, 2 * (threads) / (4 * 64))
#endif

// The same for kernels of which `blocks` are meant to be on a multiprocessor of CUDA at a time. On AMD devices
// one on a compute unit has to fit; registers are many there.
#if defined(__CUDACC__)
#define TOPK_LAB_RESIDENT_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#else
#define TOPK_LAB_RESIDENT_BOUNDS(threads, blocks) __launch_bounds__(threads, (threads) / (4 * 64))
#endif

// A launch that overlaps the one ahead of it (plans.Launch.overlaps) may begin before that has ended, on
// devices of CUDA from sm_90 on. What such a launch reads or writes has to wait for what is ahead.
__device__ __forceinline__ void await_launch_ahead() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The launch behind may begin once every block has said so or ended.
__device__ __forceinline__ void let_next_launch_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// A block's LDS beyond what its kernel declares: as much as the launch asks for.
alignas(16) extern __shared__ int32_t dynamic_lds[];

// Tells the compiler that all lanes of a wave hold the same value, so that it may live in a scalar
// register. Precondition: they do.
__device__ __forceinline__ int32_t wave_uniform(int32_t value) {
#if defined(__CUDACC__)
  return value;
#else
  return __builtin_amdgcn_readfirstlane(value);
#endif
}

// The same object of LDS, its address in a register. nvcc takes the address of a shared variable for cheap
// and forms it anew, from a special register, in every branch that needs it.
template <class T>
__device__ __forceinline__ T& addressed_once(T& shared) {
#if defined(__CUDACC__)
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(&shared));
  asm volatile("" : "+r"(address));
  return *static_cast<T*>(__cvta_shared_to_generic(address));
#else
  return shared;
#endif
}

// The same address of global memory, in a register rather than formed anew wherever it is used.
__device__ __forceinline__ const float* formed_once(const float* global) {
#if defined(__CUDACC__)
  size_t address = __cvta_generic_to_global(global);
  asm volatile("" : "+l"(address));
  return static_cast<const float*>(__cvta_global_to_generic(address));
#else
  return global;
#endif
}

// The same value, of which the compiler does not know that it was there before: what is made of it in a loop
// is made in each turn, and takes no register in between.
__device__ __forceinline__ float here(float value) {
#if defined(__CUDACC__)
  asm volatile("" : "+f"(value));
#else
  asm volatile("" : "+v"(value));
#endif
  return value;
}

// Lanes that have come here together. What follows may be called where lanes have parted, by the lanes
// of one mask.
__device__ __forceinline__ unsigned long long active_lanes() {
#if defined(__CUDACC__)
  return __activemask();
#else
  return __ballot(true);
#endif
}

// The caller's value in the first of the lanes.
__device__ __forceinline__ int32_t first_of(unsigned long long lanes, int32_t value) {
#if defined(__CUDACC__)
  const unsigned mask = static_cast<unsigned>(lanes);
  return __shfl_sync(mask, value, __ffs(mask) - 1);
#else
  static_cast<void>(lanes);
  return __builtin_amdgcn_readfirstlane(value);
#endif
}

// Those of the lanes for which the predicate holds.
__device__ __forceinline__ unsigned long long ballot_of(unsigned long long lanes, bool predicate) {
#if defined(__CUDACC__)
  return __ballot_sync(static_cast<unsigned>(lanes), predicate);
#else
  static_cast<void>(lanes);
  return __ballot(predicate);
#endif
}

// A 1 that the compiler can't tell from another value. Precondition: blocks are one-dimensional.
__device__ __forceinline__ int32_t opaque_one() {
#if defined(__CUDACC__)
  return static_cast<int32_t>(blockDim.z);  // ptxas sees through an empty asm statement
#else
  int32_t one = 1;
  asm volatile("" : "+v"(one));
  return one;
#endif
}

// The lesser of two, the other where one is a NaN.
__device__ __forceinline__ float lesser(float a, float b) {
#if defined(__CUDACC__)
  return fminf(a, b);
#else
  return __builtin_fminf(a, b);
#endif
}

__device__ __forceinline__ int lane_index() { return static_cast<int>(__lane_id()); }

// Lanes of `mask` below the caller's.
__device__ __forceinline__ int lanes_below(unsigned long long mask) {
  return __popcll(mask & ((1ull << lane_index()) - 1ull));
}

}  // namespace topk_lab
