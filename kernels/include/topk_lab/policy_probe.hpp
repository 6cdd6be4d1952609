// Lets the host ask a code object which policies it was compiled with (topk_lab/schedules.py holds the
// copy that a test compares).
#pragma once
#include <topk_lab/delegate_policy.hpp>
#include <topk_lab/one_block_policy.hpp>
#include <topk_lab/policy.hpp>
#include <topk_lab/shared_histogram_policy.hpp>
#include <topk_lab/stash_policy.hpp>

namespace topk_lab {

struct PolicyProbeParams {
  const int32_t* queries;  // (num_queries, 4): schedule, num_rows, num_cols, row_len
  int32_t* splits;         // (num_queries, 2): max_splits, active_splits
  // (num_policies, 11) of a TopKPolicy, 4 of a StashPolicy, 2 of a OneBlockPolicy, 4 of a
  // SharedHistogramPolicy, 9 of a DelegatePolicy: its fields and what follows from them
  int32_t* fields;
  int32_t num_queries;
  int32_t num_policies;
};
static_assert(sizeof(PolicyProbeParams) == 32);

inline constexpr int policy_probe_block_size = 256;

// Launch: grid (ceil(num_queries / 256)), 256 threads.
__device__ __forceinline__ void probe_splits(const PolicyProbeParams& params) {
  const int32_t query = static_cast<int32_t>(blockIdx.x * policy_probe_block_size + threadIdx.x);
  if (query >= params.num_queries) return;
  const int32_t* asked = params.queries + 4 * query;
  const auto schedule = static_cast<SplitSchedule>(asked[0]);
  const int32_t limit = max_splits(schedule, asked[1], asked[2]);
  params.splits[2 * query] = limit;
  params.splits[2 * query + 1] = active_splits(schedule, asked[1], asked[3], limit);
}

static_assert(sizeof(TopKPolicy) == 4 * 4 + 4 + 4 * 4, "a new field has to be probed too");

template <TopKPolicy Policy>
__device__ __forceinline__ void probe_policy(const PolicyProbeParams& params, int32_t row) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || row >= params.num_policies) return;
  int32_t* fields = params.fields + 11 * row;
  fields[0] = Policy.block_size;
  fields[1] = Policy.merge_block_size;
  fields[2] = Policy.final_capacity;
  fields[3] = Policy.max_k;
  fields[4] = Policy.count_neg_inf;
  fields[5] = Policy.fits_rule;
  fields[6] = Policy.equal_shortcut;
  fields[7] = static_cast<int32_t>(Policy.final_pad);
  fields[8] = static_cast<int32_t>(Policy.final_order);
  fields[9] = static_cast<int32_t>(Policy.increments);
  fields[10] = static_cast<int32_t>(Policy.splits);
}

static_assert(sizeof(StashPolicy) == 4 * 4, "a new field has to be probed too");

template <StashPolicy Policy>
__device__ __forceinline__ void probe_stash_policy(const PolicyProbeParams& params, int32_t row) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || row >= params.num_policies) return;
  int32_t* fields = params.fields + 4 * row;
  fields[0] = Policy.block_size;
  fields[1] = Policy.stash_kib;
  fields[2] = Policy.max_k;
  fields[3] = static_cast<int32_t>(Policy.overflow);
}

static_assert(sizeof(OneBlockPolicy) == 2 * 4, "a new field has to be probed too");

template <OneBlockPolicy Policy>
__device__ __forceinline__ void probe_one_block_policy(const PolicyProbeParams& params,
                                                       int32_t row) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || row >= params.num_policies) return;
  int32_t* fields = params.fields + 2 * row;
  fields[0] = Policy.block_size;
  fields[1] = Policy.digit_bits;
}

// The same of the blocks that share a row. Their rule is one: the schedule asked for is of no account.
__device__ __forceinline__ void probe_shared_blocks(const PolicyProbeParams& params) {
  const int32_t query = static_cast<int32_t>(blockIdx.x * policy_probe_block_size + threadIdx.x);
  if (query >= params.num_queries) return;
  const int32_t* asked = params.queries + 4 * query;
  const int32_t launched = shared_blocks(asked[1], asked[2]);
  params.splits[2 * query] = launched;
  params.splits[2 * query + 1] = active_blocks(asked[1], asked[3], launched);
}

static_assert(sizeof(SharedHistogramPolicy) == 4 * 4, "a new field has to be probed too");

template <SharedHistogramPolicy Policy>
__device__ __forceinline__ void probe_shared_histogram_policy(const PolicyProbeParams& params,
                                                              int32_t row) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || row >= params.num_policies) return;
  int32_t* fields = params.fields + 4 * row;
  fields[0] = Policy.block_size;
  fields[1] = Policy.tie_capacity;
  fields[2] = Policy.rank_limit;
  fields[3] = Policy.max_k;
}

static_assert(sizeof(DelegatePolicy) == 7 * 4, "a new field has to be probed too");

template <DelegatePolicy Policy>
__device__ __forceinline__ void probe_delegate_policy(const PolicyProbeParams& params,
                                                      int32_t row) {
  if (blockIdx.x != 0 || threadIdx.x != 0 || row >= params.num_policies) return;
  int32_t* fields = params.fields + 12 * row;
  fields[0] = Policy.block_size;
  fields[1] = Policy.blocks_per_unit;
  fields[2] = Policy.segment;
  fields[3] = Policy.quads;
  fields[4] = Policy.held;
  fields[5] = Policy.groups;
  fields[6] = Policy.max_k;
  fields[7] = segment_capacity<Policy>;
  fields[8] = whole_columns<Policy>;
  fields[9] = item_capacity<Policy>;
  fields[10] = joined_groups<Policy>;
  fields[11] = loose_groups<Policy>;
}

}  // namespace topk_lab
