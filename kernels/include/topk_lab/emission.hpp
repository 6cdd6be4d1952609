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

// May the threshold bin become final items? It has to fit, and under the fits rule it must not be a
// bin that -inf falls into before step 3: masked logits are then left to step 3, which hands out slots
// to equal logits without any sort and so without pads.
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
// has a slot below `above`, unless this is a step 0 and the bin does not fit: step 1 starts from scratch
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

// The same for a threshold bin that does not fit, in place of a pass that would select nothing of it:
// its logits are presumed to be equal, and found out if they are not. Returns whether they are.
// Before: above < k <= above + bin_size; num_mixed is 0. After (barrier included): every logit above the
// threshold bin has a slot below `above`. If the logits of the bin are equal, as in step 3 they always
// are, the slots [above, k) hold some of them, in order of arrival. If not, whatever is written there
// will be overwritten, and a step 0 has selected nothing: step 1 starts from scratch.
template <TopKPolicy Policy, LogitSource Source, int BlockSize, int Step>
__device__ __forceinline__ bool collect_equal(SelectionStorage<Policy, BlockSize>& lds,
                                              const RowSlice& slice, uint32_t prefix,
                                              int32_t threshold_bin, int32_t above, int32_t k,
                                              const Selected& selected) {
  uint32_t least = ~0u;  // of the thread's logits in the threshold bin
  uint32_t greatest = 0;
  bool slots_left = true;
  for_each_logit<Source, BlockSize>(slice, [&](uint32_t bits, int32_t position) {
    if (!step_matches<Step>(bits, prefix)) return;
    const int32_t bin = step_bin<Step, Source>(bits);
    if (bin < threshold_bin) {
      select_into(selected, atomicAdd(&lds.found, 1), bits, position);
    } else if (bin == threshold_bin) {
      // Compared to the last, also when no slot is left: one that differs may be among the best.
      least = bits < least ? bits : least;
      greatest = bits > greatest ? bits : greatest;
      if (!slots_left || least != greatest) return;
      const int32_t slot = atomicAdd(&lds.tie_cursor, 1);
      slots_left = slot < k;
      if (slots_left) select_into(selected, slot, bits, position);
      if (slot == above) lds.tie_bits = bits;
    }
  });
  __syncthreads();
  if constexpr (Step == num_steps - 1) return true;
  const uint32_t tie_bits = lds.tie_bits;
  if (least <= greatest && (least != tie_bits || greatest != tie_bits)) {
    atomicAdd(&lds.num_mixed, 1);
  }
  __syncthreads();
  const bool equal = wave_uniform(lds.num_mixed) == 0;
  if (Step == 0 && !equal && threadIdx.x == 0) lds.found = 0;
  return equal;
}

}  // namespace topk_lab
