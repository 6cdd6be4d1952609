"""Which kernel does vLLM on ROCm choose for a call, and which variant of this package is that?

vLLM decides twice. Its Python selector walks a decision table, first match wins, and answers
native, AITER prefill or AITER decode: `decide`. The host launcher of the native kernels then has a
gate of its own, the shape gate of `topk_lab.schedules`: `dispatch` goes through both and says what
runs in the end.

Source: ``_get_aiter_top_k_kernel`` of vLLM ``vllm/v1/attention/ops/rocm_aiter_mla_sparse.py`` after
#56743, and the decode launcher of ``csrc/libtorch_stable/sampler.cu``. The policy ``live_length``
is an experiment that was never merged.
"""

from topk_lab.gate.launches import Dispatch, decode_max_len, dispatch
from topk_lab.gate.rules import (
    KERNELS,
    LIVE_LENGTH_LIMITS,
    PHASES,
    POLICIES,
    Decision,
    Query,
    Rule,
    decide,
    prefers_native,
    supports_aiter,
)
from topk_lab.gate.truth import truth_table

__all__ = [
    "KERNELS",
    "LIVE_LENGTH_LIMITS",
    "PHASES",
    "POLICIES",
    "Decision",
    "Dispatch",
    "Query",
    "Rule",
    "decide",
    "decode_max_len",
    "dispatch",
    "prefers_native",
    "supports_aiter",
    "truth_table",
]
