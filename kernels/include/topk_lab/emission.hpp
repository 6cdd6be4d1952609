// Step "collect": logits above the threshold bin are selected, those in it become candidates.
#pragma once
#include <topk_lab/row_slice.hpp>
#include <topk_lab/selection_storage.hpp>

namespace topk_lab {

__device__ __forceinline__ void select_into(const Selected& selected, int32_t slot, uint32_t bits,
                                            int32_t position) {
  selected.positions[slot] = position;
  if (selected.bits != nullptr) selected.bits[slot] = bits;
}

// May the threshold bin become final items? It has to fit, and under the fits rule it must not be a bin
// that -inf falls into before step 3: masked logits are then left to step 3, which hands out slots to
// equal logits without any sort and so without pads.
template <TopKPolicy Policy, LogitSource Source, int Step>
__device__ __forceinline__ bool final_bin_fits(int32_t threshold_bin, int32_t bin_size,
                                               uint32_t prefix) {
  if (bin_size > Policy.final_capacity) return false;
  if constexpr (Policy.fits_rule && Step < 3) {
    if (step_matches<Step>(neg_inf_bits, prefix) &&
        threshold_bin == step_bin<Step, Source>(neg_inf_bits)) {
      return false;
    }
  }
  return true;
}

// Before: above < k <= above + bin_size. After (barrier included): every logit above the threshold bin
// has a slot below `above`, unless this is step 0 and the bin does not fit: step 1 starts from scratch
// and would select them again. Of the threshold bin, all are final items if it fits; in step 3 all are
// equal and take the slots [above, k) in order of arrival.
template <TopKPolicy Policy, LogitSource Source, int BlockSize, int Step>
__device__ __forceinline__ void collect(SelectionStorage<Policy, BlockSize>& lds,
                                        const RowSlice& slice, uint32_t prefix,
                                        int32_t threshold_bin, bool fits, int32_t k,
                                        const Selected& selected) {
  for_each_logit<Source, BlockSize>(slice, [&](uint32_t bits, int32_t position) {
    if (!step_matches<Step>(bits, prefix)) return;
    const int32_t bin = step_bin<Step, Source>(bits);
    if (bin < threshold_bin) {
      if (Step > 0 || fits) {
        select_into(selected, atomicAdd(&lds.found, 1), bits, position);
      }
    } else if (bin == threshold_bin) {
      if constexpr (Step == num_steps - 1) {
        const int32_t slot = atomicAdd(&lds.tie_cursor, 1);
        if (slot < k) select_into(selected, slot, bits, position);
      } else if (fits) {
        const int32_t item = atomicAdd(&lds.num_items, 1);
        lds.final_items.keys[item] = complement_key(bits);
        lds.final_items.positions[item] = position;
      }
    }
  });
  __syncthreads();
}

}  // namespace topk_lab
