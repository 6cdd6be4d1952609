// The delegate selection: segments reduced to their greatest keys, and rows selected among these. A plan
// takes the kernels of one policy, by the shape of the call.
#include <topk_lab/delegate_kernels.hpp>
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/ordered_answer.hpp>
#include <topk_lab/policy_probe.hpp>

#define TOPK_LAB_REDUCE_KERNEL(segment)                                                \
  extern "C" __global__ void __launch_bounds__(topk_lab::reduce_block_size)            \
      delegate_reduce_##segment(topk_lab::DelegateParams params) {                     \
    topk_lab::reduce_row<segment>(params);                                             \
  }

#define TOPK_LAB_DELEGATE_KERNEL_OF(name, policy, traced, form)                              \
  extern "C" __global__ void TOPK_LAB_RESIDENT_BOUNDS((policy).block_size,                   \
                                                      (policy).blocks_per_unit)              \
      name(topk_lab::DelegateParams params) {                                                \
    topk_lab::select_by_delegates<policy, traced, topk_lab::DelegateForm::form>(params);     \
  }

#define TOPK_LAB_DELEGATE_KERNEL(member, suffix, form)                                          \
  TOPK_LAB_DELEGATE_KERNEL_OF(delegate_##member##_##suffix, topk_lab::delegate_##member, false, \
                              form)                                                             \
  TOPK_LAB_DELEGATE_KERNEL_OF(delegate_##member##_##suffix##_traced, topk_lab::delegate_##member, \
                              true, form)

TOPK_LAB_REDUCE_KERNEL(8)
TOPK_LAB_REDUCE_KERNEL(16)
TOPK_LAB_REDUCE_KERNEL(32)
TOPK_LAB_DELEGATE_KERNEL(k512, select, two)
TOPK_LAB_DELEGATE_KERNEL(k512_long, select, two)
TOPK_LAB_DELEGATE_KERNEL(k512_pair, select, two)
TOPK_LAB_DELEGATE_KERNEL(k512_crowd, select, two)
TOPK_LAB_DELEGATE_KERNEL(k1024, select, two)
TOPK_LAB_DELEGATE_KERNEL(k2048, select, two)
TOPK_LAB_DELEGATE_KERNEL(k4096, select, two)
TOPK_LAB_DELEGATE_KERNEL(k512, fused, fused)
TOPK_LAB_DELEGATE_KERNEL(k512_long, fused, fused)
TOPK_LAB_DELEGATE_KERNEL(k512_pair, fused, fused)
TOPK_LAB_DELEGATE_KERNEL(k512_crowd, fused, fused)
TOPK_LAB_DELEGATE_KERNEL(k1024, fused, fused)
TOPK_LAB_DELEGATE_KERNEL(k512_long, fused_global, fused_global)
TOPK_LAB_DELEGATE_KERNEL(k1024, fused_global, fused_global)
TOPK_LAB_DELEGATE_KERNEL(k2048, fused_global, fused_global)
TOPK_LAB_DELEGATE_KERNEL(k4096, fused_global, fused_global)

extern "C" __global__ void __launch_bounds__(topk_lab::order_block_size)
    delegate_order(topk_lab::PagedParams params) {
  topk_lab::order_answer(params);
}

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_delegate_policy<topk_lab::delegate_k512>(params, 0);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k512_long>(params, 1);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k512_pair>(params, 2);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k512_crowd>(params, 3);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k1024>(params, 4);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k2048>(params, 5);
  topk_lab::probe_delegate_policy<topk_lab::delegate_k4096>(params, 6);
}
