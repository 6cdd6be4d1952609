// Instantiates the kernels of one policy, each with its traced twin: select and merge of the vLLM
// lineage, select alone of the SGLang lineage, and of the AITER lineage one select of either emission.
// The includer brings the bodies.
#pragma once
#include <topk_lab/params.hpp>
#include <topk_lab/platform.hpp>

#define TOPK_LAB_KERNEL_OF(params_type, name, body, policy, threads, traced)                      \
  extern "C" __global__ void TOPK_LAB_LAUNCH_BOUNDS(threads) name(topk_lab::params_type params) { \
    topk_lab::body<policy, traced>(params);                                                       \
  }

#define TOPK_LAB_KERNEL(name, body, policy, threads, traced) \
  TOPK_LAB_KERNEL_OF(TopKParams, name, body, policy, threads, traced)

#define TOPK_LAB_KERNEL_PAIR(prefix, policy)                                                \
  TOPK_LAB_KERNEL(prefix##_select, select_splits, policy, (policy).block_size, false)       \
  TOPK_LAB_KERNEL(prefix##_merge, merge_splits, policy, (policy).merge_block_size, false)   \
  TOPK_LAB_KERNEL(prefix##_select_traced, select_splits, policy, (policy).block_size, true) \
  TOPK_LAB_KERNEL(prefix##_merge_traced, merge_splits, policy, (policy).merge_block_size, true)

#define TOPK_LAB_PAGED_KERNEL(prefix, policy)                                                 \
  TOPK_LAB_KERNEL_OF(PagedParams, prefix##_select, select_paged, policy, (policy).block_size, \
                     false)                                                                   \
  TOPK_LAB_KERNEL_OF(PagedParams, prefix##_select_traced, select_paged, policy,               \
                     (policy).block_size, true)

#define TOPK_LAB_ONE_BLOCK_KERNEL(name, body, policy)                             \
  TOPK_LAB_KERNEL_OF(PagedParams, name, body, policy, (policy).block_size, false) \
  TOPK_LAB_KERNEL_OF(PagedParams, name##_traced, body, policy, (policy).block_size, true)

#define TOPK_LAB_ONE_BLOCK_KERNELS(prefix, policy)                      \
  TOPK_LAB_ONE_BLOCK_KERNEL(prefix##_select, select_by_arrival, policy) \
  TOPK_LAB_ONE_BLOCK_KERNEL(prefix##_stable_select, select_in_row_order, policy)
