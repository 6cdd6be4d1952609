"""What does a bin that most of a row falls into cost, and what do the remedies save?

Every change of the source is undone alone and each remedy of this package is tried alone, on the
same input and side by side.
"""

from __future__ import annotations

from topk_lab import schedules
from topk_lab.bench.cells import Cell
from topk_lab.crowds import LENGTHS, UNMASKED, masks

__all__ = ["contention_cells"]

ROWS = 24  # 4 sequences of 6 tokens, as in the published times
K = 512
VARIANTS = ("vllm_generic", "vllm_k512", "vllm_k512_uncrowded")
COLD_VARIANTS = (
    *VARIANTS,
    "vllm_k512[count_neg_inf=false]",
    "vllm_k512[equal_shortcut=true]",
    "vllm_k512[count_neg_inf=false,increments=opaque]",
)
COLD_WORKLOADS = ("normal", "all_neg_inf", "constant")
COLD_FRACTION = 0.875
# Of the longest length: more blocks than a device holds at once, by few and by many.
MORE_ROWS = (8, 16, 20, 28, 32)


def contention_cells() -> list[Cell]:
    """Every cell: all masks and the other crowded rows warm, some cold, some with more rows."""
    own = schedules.POLICIES["vllm_k512"]
    exact = [
        str(variant)
        for variant in schedules.ablations("vllm_k512")
        if variant.policy.sound and variant.policy.splits == own.splits
    ]
    cells = []
    for num_cols in LENGTHS:
        listed = [*masks(num_cols), *((name, {}) for name in UNMASKED)]
        cold = [
            (name, arguments)
            for name, arguments in listed
            if name in COLD_WORKLOADS or arguments.get("fraction") == COLD_FRACTION
        ]
        cells += [
            Cell(ROWS, num_cols, K, name, arguments, "graph", cache, variants)
            for cache, variants, shown in (
                ("warm", (*VARIANTS, *exact), listed),
                ("cold", COLD_VARIANTS, cold),
            )
            for name, arguments in shown
        ]
    cells += [
        Cell(num_rows, LENGTHS[-1], K, "normal", {}, "graph", "warm", COLD_VARIANTS)
        for num_rows in MORE_ROWS
    ]
    return cells
