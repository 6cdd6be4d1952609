// The SGLang selections with another block size, stash or overflow, for study. The suffixes and fields
// are those of ABLATIONS in topk_lab/schedules.py.
#include <topk_lab/kernel_pair.hpp>
#include <topk_lab/policy_probe.hpp>
#include <topk_lab/stash_kernels.hpp>

namespace topk_lab {

inline constexpr StashPolicy block256{.block_size = 256};
inline constexpr StashPolicy block768{.block_size = 768};
inline constexpr StashPolicy block1024_stash48{.stash_kib = 48};
inline constexpr StashPolicy block1024_drop{.overflow = Overflow::drop};
inline constexpr StashPolicy block1024_drop_stash48{.stash_kib = 48, .overflow = Overflow::drop};
inline constexpr StashPolicy block512_stash48{.block_size = 512, .stash_kib = 48};
inline constexpr StashPolicy block512_drop{.block_size = 512, .overflow = Overflow::drop};
inline constexpr StashPolicy block512_drop_stash48{
    .block_size = 512, .stash_kib = 48, .overflow = Overflow::drop};

}  // namespace topk_lab

TOPK_LAB_PAGED_KERNEL(sglang_block1024_block256, topk_lab::block256)
TOPK_LAB_PAGED_KERNEL(sglang_block1024_block768, topk_lab::block768)
TOPK_LAB_PAGED_KERNEL(sglang_block1024_stash48, topk_lab::block1024_stash48)
TOPK_LAB_PAGED_KERNEL(sglang_block1024_drop, topk_lab::block1024_drop)
TOPK_LAB_PAGED_KERNEL(sglang_block1024_drop_stash48, topk_lab::block1024_drop_stash48)
TOPK_LAB_PAGED_KERNEL(sglang_block512_stash48, topk_lab::block512_stash48)
TOPK_LAB_PAGED_KERNEL(sglang_block512_drop, topk_lab::block512_drop)
TOPK_LAB_PAGED_KERNEL(sglang_block512_drop_stash48, topk_lab::block512_drop_stash48)

extern "C" __global__ void __launch_bounds__(topk_lab::policy_probe_block_size)
    policy_probe(topk_lab::PolicyProbeParams params) {
  topk_lab::probe_stash_policy<topk_lab::block256>(params, 0);
  topk_lab::probe_stash_policy<topk_lab::block768>(params, 1);
  topk_lab::probe_stash_policy<topk_lab::block1024_stash48>(params, 2);
  topk_lab::probe_stash_policy<topk_lab::block1024_drop>(params, 3);
  topk_lab::probe_stash_policy<topk_lab::block1024_drop_stash48>(params, 4);
  topk_lab::probe_stash_policy<topk_lab::block512_stash48>(params, 5);
  topk_lab::probe_stash_policy<topk_lab::block512_drop>(params, 6);
  topk_lab::probe_stash_policy<topk_lab::block512_drop_stash48>(params, 7);
}
