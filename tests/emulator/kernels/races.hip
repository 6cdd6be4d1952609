// Kernels of two waves that meet in LDS, with a barrier between them or without.
#include <hip/hip_runtime.h>

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

struct Params {
  const int* in;
  int* out;
  int n;
  int which;  // nonzero: the barrier that makes it right is there
};

// Wave 0 writes, wave 1 reads. Waves that run one after the other get it right by chance.
KERNEL hand_over(Params p) {
  __shared__ int room[64];
  const int thread = threadIdx.x;
  if (thread < 64) room[thread] = thread + 1;
  if (p.which) __syncthreads();
  if (thread >= 64) p.out[thread - 64] = room[thread - 64];
}

// Wave 0 reads what it wrote, wave 1 writes there afterwards.
KERNEL write_behind_reader(Params p) {
  __shared__ int room[64];
  const int thread = threadIdx.x;
  if (thread < 64) {
    room[thread] = thread + 1;
    p.out[thread] = __hip_atomic_load(&room[thread ^ 1], __ATOMIC_RELAXED,
                                      __HIP_MEMORY_SCOPE_WORKGROUP);
  }
  if (p.which) __syncthreads();
  if (thread >= 64)
    __hip_atomic_store(&room[thread - 64], -1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
}

// Both waves count by atomics; the last line reads the count.
KERNEL count_together(Params p) {
  __shared__ int total;
  const int thread = threadIdx.x;
  if (thread == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, p.in[thread]);
  if (p.which) __syncthreads();
  if (thread == 0) p.out[0] = total;
}

// Both waves write the same value to one word.
KERNEL same_value(Params p) {
  __shared__ int word;
  if (threadIdx.x % 64 == 0) word = 7;
  __syncthreads();
  if (threadIdx.x == 0) p.out[0] = word;
}

// Neighbours of two waves, with no word in common.
KERNEL neighbours(Params p) {
  __shared__ int room[128];
  room[threadIdx.x] = threadIdx.x;
  p.out[threadIdx.x] = __hip_atomic_load(&room[threadIdx.x ^ 1], __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_WORKGROUP);
}
