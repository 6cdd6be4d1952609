"""What is the right answer, and how do the kernels get there? Numba on the CPU.

`exact` is the specification; `vllm`, `sglang`, `aiter`, `shared_histogram` and `delegate` mirror
the kernels of these lineages step by step, `paging` their page transform, and `trace` shows the
steps on one row.
"""

from topk_lab.reference.twins import trace

__all__ = ["trace"]
