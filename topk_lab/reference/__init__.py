"""What is the right answer, and how do the kernels get there? Numba on the CPU.

`exact` is the specification; `vllm` mirrors the vLLM kernels step by step, and `trace` shows the
steps on one row.
"""

from topk_lab.reference.vllm import trace

__all__ = ["trace"]
