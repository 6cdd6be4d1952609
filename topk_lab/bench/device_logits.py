"""How are large inputs made where they are used?

The workloads of `topk_lab.workloads` drawn by the device's own generator: the same distributions
and the same counts, other numbers. A row depends on the shape too, not on the seed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["DRAWN", "STALE", "draw"]

DRAWN = ("normal", "masked_blocks")
STALE = 1e20  # what columns past a row's end hold
BLOCK = 8  # columns that are masked together
GROUP = 8  # blocks, of which one is kept
CHUNK_ELEMENTS = 1 << 28


def _masked(rows: torch.Tensor, ends: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Which columns lie in a block that is masked: one block is kept of each group of a row.

    Of a last group of fewer blocks one is kept too.
    """
    import torch

    num_rows, num_cols = rows.shape
    place = rows.device
    blocks = -(-ends // BLOCK)[:, None]
    groups = torch.arange(-(-num_cols // (BLOCK * GROUP)), device=place)
    among = (blocks - GROUP * groups).clamp(1, GROUP)
    drawn = torch.rand(num_rows, len(groups), generator=generator, device=place)
    kept = (drawn * among).to(torch.int8)
    columns = torch.arange(num_cols, device=place)
    return (columns // BLOCK % GROUP).to(torch.int8) != kept[:, columns // (BLOCK * GROUP)]


def draw(
    workload: str, row_ends: np.ndarray, num_cols: int, place: str, *, seed: int = 0
) -> torch.Tensor:
    """Draw the logits of a workload on a device.

    Parameters
    ----------
    workload : {"normal", "masked_blocks"}
        As `topk_lab.workloads` describes it.
    row_ends : (num_rows,) int32 ndarray
        Live columns of each row, in [0, num_cols].
    num_cols : int
        Width of the buffer. Columns past a row's end hold 1e20.
    place : str
        Where torch puts the tensor.
    seed : int, default 0

    Returns
    -------
    (num_rows, num_cols) float32 tensor

    Raises
    ------
    TypeError
        Ends of another dtype.
    ValueError
        Another workload, or an end outside the buffer.
    """
    import torch

    if workload not in DRAWN:
        raise ValueError(f"workload must be one of {', '.join(DRAWN)} here, got {workload!r}")
    if row_ends.dtype != np.int32:
        raise TypeError(f"row_ends must be int32, got {row_ends.dtype}")
    outside = row_ends[(row_ends < 0) | (row_ends > num_cols)]
    if outside.size:
        raise ValueError(f"row_ends must be in [0, {num_cols}], got {outside[0]}")
    generator = torch.Generator(place).manual_seed(seed)
    ends = torch.from_numpy(row_ends).to(place, torch.int64)
    logits = torch.empty(len(row_ends), num_cols, device=place)
    columns = torch.arange(num_cols, device=place)
    step = max(1, CHUNK_ELEMENTS // max(num_cols, 1))
    for first in range(0, len(row_ends), step):
        rows = logits[first : first + step]
        live = ends[first : first + step]
        rows.normal_(generator=generator)
        if workload == "masked_blocks":
            rows.masked_fill_(_masked(rows, live, generator), -torch.inf)
        rows.masked_fill_(columns >= live[:, None], STALE)
    return logits
