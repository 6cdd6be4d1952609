"""How close does the delegate selection come to reading its rows once, and beside what?

==================== ===========================================================================
experiment           what it asks
==================== ===========================================================================
``delegate_matrix``  the 1008 cases of `topk_lab.bench.matrix`, against the source's selection
``delegate_shapes``  the shapes of the published peers, against the other variants and the floor
``delegate_rows``    adversarial rows, against normal ones
``delegate_large_k`` more than 512 of a row
``delegate_growth``  calls of 128 KiB to 2 GiB: how the time grows with the bytes
``delegate_members`` every member on every shape, fused and not, for the regret of the choice
==================== ===========================================================================

`REDUCE` is the first launch alone of a selection in two. It reads every logit once and keeps the
greatest key of each segment: one more candidate for the read floor, beside
`topk_lab.bench.candidates.READS`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import plans, workloads
from topk_lab.bench import matrix
from topk_lab.bench.candidates import READS, Inputs, launched, stand_for
from topk_lab.bench.cells import Cell, warm_calls
from topk_lab.bench.device import Call, Device
from topk_lab.bench.device_logits import draw
from topk_lab.bench.ratios import TORCH, published_shapes
from topk_lab.bench.timing import Candidate, Effort
from topk_lab.models import REDUCE
from topk_lab.results import CACHES
from topk_lab.schedules import (
    DELEGATE_POLICIES,
    FUSED_GLOBAL,
    POLICIES,
    delegate_parts,
    delegate_policy,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "REDUCE",
    "SHAPES_EFFORT",
    "growth_cells",
    "host_candidates",
    "large_k_cells",
    "matrix_cells",
    "matrix_counters",
    "member",
    "member_cells",
    "row_cells",
    "shape_candidates",
    "shape_cells",
]

DELEGATE = "delegate"
K = 512

# Which states of the caches have which buffers of the matrix.
MATRIX_STATES = (("warm", "live"), ("warm", "full"), ("cold", "live"))
MATRIX_VARIANTS = ("vllm_k512", DELEGATE)

SHAPE_VARIANTS = (
    *(TORCH, "vllm_generic", "vllm_k512", "vllm_k512_uncrowded"),
    *("aiter_one_block", "shared_histogram", DELEGATE),
)
# A bar stands a few per cent above the floor: more samples than of a matrix.
SHAPES_EFFORT = Effort(min_samples=20, max_seconds=0.3, max_samples=40, warm_up_seconds=0.005)

ROW_SHAPES = ((24, 262_144), (1, 131_072), (8, 10_240), (256, 32_768))

LARGE_KS = (1024, 2048, 4096)
LARGE_K_ROWS = (1, 24, 128)
LARGE_K_COLUMNS = (32_768, 131_072, 1_048_576)
LARGE_K_VARIANTS = ("vllm_generic", "aiter_one_block", "shared_histogram", DELEGATE)

GROWTH_ROWS = (1, 24, 128)
GROWTH_COLUMNS = tuple(2**power for power in range(15, 23))
GROWTH_BYTES = 2**31  # of a call, at most

MEMBER_ROWS = (1, 8, 24, 64, 128, 256, 384)
MEMBER_COLUMNS = (8192, 32_768, 131_072, 524_288)
MEMBERS = {name: policy for name, policy in DELEGATE_POLICIES.items() if policy.max_k == K}
TWO = f"{DELEGATE}[launches=two]"  # where `REDUCE` is from

GRAPH_BYTES = 2**30  # that a warm graph reads, about


def matrix_cells() -> list[Cell]:
    """The cases of the matrix that are timed, in each buffer and state of the caches."""
    return [
        dataclasses.replace(cell, variants=MATRIX_VARIANTS)
        for cell in matrix.matrix_cells()
        if (cell.cache, cell.workload_args["buffer"]) in MATRIX_STATES
    ]


def _plan(num_rows: int, num_cols: int, k: int) -> plans.Plan:
    return plans.plan(TWO, plans.Shape(num_rows, num_cols, k, num_cols, k))


def _reads(num_rows: int, num_cols: int, k: int) -> tuple[str, ...]:
    """The read kernels of a shape: rows that are kept whole have no delegates to be reduced to."""
    reduces = _plan(num_rows, num_cols, k).workspace_bytes > 0
    return (*READS, REDUCE) if reduces else tuple(READS)


def shape_cells() -> list[Cell]:
    """The shapes of the peers' published times, in each state of the caches."""
    return [
        Cell(*shape, mode="graph", cache=cache, variants=(*_reads(*shape[:3]), *SHAPE_VARIANTS))
        for shape in published_shapes()
        for cache in CACHES
    ]


def row_cells() -> list[Cell]:
    """Every workload, with the arguments that it has by default."""
    return [
        Cell(*shape, K, name, workloads.defaults(name), "graph", "warm", MATRIX_VARIANTS)
        for shape in ROW_SHAPES
        for name in workloads.names()
    ]


def _warm_cell(num_rows: int, num_cols: int, k: int, variants: tuple[str, ...]) -> Cell:
    calls = warm_calls(4 * num_rows * num_cols, GRAPH_BYTES)
    return Cell(
        num_rows, num_cols, k, "normal", {}, "graph", "warm", variants, calls_per_graph=calls
    )


def large_k_cells() -> list[Cell]:
    """Every k above 512 that has a member, by the variants that go as far."""

    def serves(variant: str, k: int) -> bool:
        most = getattr(POLICIES[variant], "max_k", None)
        return most is None or k <= most

    return [
        _warm_cell(rows, cols, k, tuple(name for name in LARGE_K_VARIANTS if serves(name, k)))
        for k in LARGE_KS
        for rows in LARGE_K_ROWS
        for cols in LARGE_K_COLUMNS
    ]


def growth_cells() -> list[Cell]:
    """Ever longer rows, as far as a call reads no more than `GROWTH_BYTES`."""
    return [
        _warm_cell(rows, cols, K, (*_reads(rows, cols, K), DELEGATE))
        for rows in GROWTH_ROWS
        for cols in GROWTH_COLUMNS
        if 4 * rows * cols <= GROWTH_BYTES
    ]


def member_cells() -> list[Cell]:
    """What is chosen by the shape, every member, and rows by eights as for eight dies."""

    def forms(cols: int) -> Iterator[str]:
        for name, policy in MEMBERS.items():
            yield f"{DELEGATE}[member={name},launches=two]"
            stride = policy.delegates_stride(cols)
            if 0 < stride <= policy.fused_delegates:
                yield f"{DELEGATE}[member={name},launches=fused]"
            elif stride > 0 and name in FUSED_GLOBAL:
                yield f"{DELEGATE}[member={name},launches=fused_global]"

    return [
        _warm_cell(rows, cols, K, (DELEGATE, *forms(cols), f"{DELEGATE}[launches=two,dies=8]"))
        for rows in MEMBER_ROWS
        for cols in MEMBER_COLUMNS
    ]


def _maxima(delegates: torch.Tensor, most: int) -> torch.Tensor:
    """The logits of delegates; NaN where one of a row's first `most` was not written."""
    import torch

    # The key of no logit is 0, and turns into a NaN as those of NaN do.
    logits = torch.where(delegates < 0, delegates & 0x7FFFFFFF, ~delegates).view(torch.float32)
    # Behind these there is room for those of rows that begin in the middle of a line.
    logits[:, most:].nan_to_num_(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    return logits


def _reduce(k: int, inputs: Inputs, device: Device) -> Candidate:
    """Stand for the selection's first launch alone."""
    num_rows, num_cols = inputs.logits.shape
    whole = _plan(num_rows, num_cols, k)
    _, policy = delegate_policy(whole.variant, num_rows, num_cols, k)
    plan = dataclasses.replace(whole, launches=whole.launches[:1])

    def make(logits: torch.Tensor) -> tuple[Call, torch.Tensor]:
        import torch

        words = plan.workspace_bytes // 4
        delegates = torch.empty(words, dtype=torch.int32, device=logits.device).view(num_rows, -1)
        tensors = {"logits": logits, "row_ends": inputs.row_ends, "workspace": delegates}
        return launched(plan, tensors, device), delegates

    return inputs.read(make, lambda keys: _maxima(keys, -(-num_cols // policy.segment)), poison=0)


def shape_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """What stands for the variants of a cell: its logits are made on the device."""
    ends = np.full(cell.num_rows, cell.num_cols, np.int32)
    logits = draw(
        cell.workload, ends, cell.num_cols, device.place, seed=cell.seed, **cell.workload_args
    )
    inputs = Inputs(logits, device, cell.cache)
    return {
        name: _reduce(cell.k, inputs, device) if name == REDUCE else stand_for(name, cell.k, inputs)
        for name in cell.variants
    }


def host_candidates(cell: Cell, device: Device) -> dict[str, Candidate]:
    """The same for logits that are made on the host; answers are judged on the device."""
    import torch

    inputs = Inputs(torch.from_numpy(cell.logits()).to(device.place), device, cell.cache)
    return {name: stand_for(name, cell.k, inputs) for name in cell.variants}


def member(cell: Cell, variant: str, device: Device) -> dict[str, Any]:
    """Which members a plan of the selection takes, or `REDUCE` is of, and how they are launched."""
    name = TWO if variant == REDUCE else variant
    if name.partition("[")[0] != DELEGATE:
        return {}
    parts = delegate_parts(name, cell.num_rows, cell.num_cols, cell.k)
    return {
        "member": "+".join(part.member for part in parts),
        "launches": "+".join(part.form for part in parts),
    }


def matrix_counters(cell: Cell, variant: str, device: Device) -> dict[str, Any]:
    """What is known of a case of the matrix."""
    return matrix.read_bytes(cell, variant, device) | member(cell, variant, device)
