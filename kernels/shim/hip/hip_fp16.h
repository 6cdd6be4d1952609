// Stand-in for ROCm's <hip/hip_fp16.h>: the two conversions that these kernels use.
#pragma once
#include <hip/hip_runtime.h>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#else

typedef _Float16 __half;

HIP_SHIM_DEVICE __half __float2half(float x) { return static_cast<__half>(x); }
HIP_SHIM_DEVICE unsigned short __half_as_ushort(__half h) {
  return __builtin_bit_cast(unsigned short, h);
}

#endif
