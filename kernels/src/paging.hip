// The page transform as a pass of its own, behind selections that write indices alone.
#include <topk_lab/page_table.hpp>

extern "C" __global__ void __launch_bounds__(topk_lab::page_transform_block_size)
    page_transform(topk_lab::PagedParams params) {
  topk_lab::transform_pages(params);
}
