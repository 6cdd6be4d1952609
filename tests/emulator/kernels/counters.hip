// Kernels whose counts can be worked out by hand: one access, at places that the caller gives.
#include <hip/hip_runtime.h>

#define KERNEL extern "C" __global__ void __launch_bounds__(1024)

struct Params {
  const int* in;  // (threads,): byte address in LDS, or element of `out`; negative: the lane is off
  int* out;
  int n;
  int which;
};

typedef int Words2 __attribute__((ext_vector_type(2)));
typedef int Words3 __attribute__((ext_vector_type(3)));
typedef int Words4 __attribute__((ext_vector_type(4)));

#define LDS_READ(name, Words, zero)                                                        \
  KERNEL name(Params p) {                                                                  \
    const int address = p.in[threadIdx.x];                                                 \
    Words words = zero;                                                                    \
    if (address >= 0)                                                                      \
      asm volatile("ds_" #name " %0, %1\n s_waitcnt lgkmcnt(0)" : "=v"(words) : "v"(address)); \
    *reinterpret_cast<Words*>(p.out + 4 * threadIdx.x) = words;                            \
  }

#define LDS_WRITE(name, Words, zero)                                                       \
  KERNEL name(Params p) {                                                                  \
    const int address = p.in[threadIdx.x];                                                 \
    const Words words = zero;                                                              \
    if (address >= 0)                                                                      \
      asm volatile("ds_" #name " %0, %1\n s_waitcnt lgkmcnt(0)" : : "v"(address), "v"(words)); \
  }

LDS_READ(read_b32, int, 0)
LDS_READ(read_b64, Words2, Words2(0))
LDS_READ(read_b96, Words3, Words3(0))
LDS_READ(read_b128, Words4, Words4(0))
LDS_WRITE(write_b8, int, 0)
LDS_WRITE(write_b32, int, 0)
LDS_WRITE(write_b64, Words2, Words2(0))
LDS_WRITE(write_b96, Words3, Words3(0))
LDS_WRITE(write_b128, Words4, Words4(0))
LDS_WRITE(add_u32, int, 1)

// Two addresses, `n` bytes apart.
KERNEL read2_b32(Params p) {
  const int address = p.in[threadIdx.x];
  Words2 words = Words2(0);
  if (address >= 0)
    asm volatile("ds_read2_b32 %0, %1 offset0:0 offset1:32\n s_waitcnt lgkmcnt(0)"
                 : "=v"(words) : "v"(address));
  *reinterpret_cast<Words2*>(p.out + 2 * threadIdx.x) = words;
}

// Each lane reads the element of `in` that it finds at its own place; negative: the lane is off.
KERNEL gather(Params p) {
  const int element = p.in[threadIdx.x];
  int x = 0;
  if (element >= 0) x = p.in[element];
  if (p.which && x == -1) p.out[threadIdx.x] = x;
}

KERNEL gather_16_bytes(Params p) {
  const int element = p.in[threadIdx.x];
  Words4 x = Words4(0);
  if (element >= 0) x = *reinterpret_cast<const Words4*>(p.in + element);
  if (x[0] + x[3] == 1) p.out[threadIdx.x] = 1;
}

KERNEL scatter(Params p) {
  const int element = p.in[threadIdx.x];
  if (element >= 0) p.out[element] = 1;
}

KERNEL global_add(Params p) {
  const int element = p.in[threadIdx.x];
  if (element >= 0) atomicAdd(p.out + element, static_cast<int>(threadIdx.x));
}

// Ten vector instructions with eight lanes on, all others with every lane on.
KERNEL eight_lanes_ten_times(Params p) {
  int x = p.which;
  unsigned long long all;
  asm volatile("s_mov_b64 %1, exec\n"
               "s_mov_b64 exec, 0xff\n"
               ".rept 10\n"
               "v_add_u32 %0, 1, %0\n"
               ".endr\n"
               "s_mov_b64 exec, %1"
               : "+v"(x), "=&s"(all));
  p.out[threadIdx.x] = x;
}

// Ten vector instructions in a branch that lanes below `which` take.
KERNEL branch_of_ten(Params p) {
  int x = 0;
  if (static_cast<int>(threadIdx.x) < p.which)
    asm volatile(".rept 10\nv_add_u32 %0, 1, %0\n.endr" : "+v"(x));
  p.out[threadIdx.x] = x;
}

// Block b reads b + 1 times.
KERNEL more_by_block(Params p) {
  int sum = 0;
  for (unsigned i = 0; i <= blockIdx.x; ++i)
    sum += __hip_atomic_load(p.in + threadIdx.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  p.out[blockIdx.x * 64 + threadIdx.x] = sum;
}
