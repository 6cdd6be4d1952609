"""How are large inputs made where they are used?

The workloads of `topk_lab.workloads` drawn by the device's own generator: the same distributions
and the same counts, other numbers. A row depends on the shape too, not on the seed alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import workloads

if TYPE_CHECKING:
    import torch

__all__ = ["DRAWN", "STALE", "draw"]

# Workloads, and those of their arguments that may be given.
DRAWN = {
    "normal": (),
    "masked_random": ("fraction",),
    "masked_prefix": ("finite",),
    "masked_blocks": (),
}
STALE = 1e20  # what columns past a row's end hold
BLOCK = 8  # columns that are masked together
GROUP = 8  # blocks, of which one is kept
CHUNK_ELEMENTS = 1 << 28


def _in_blocks(rows: torch.Tensor, ends: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
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


def _anywhere(
    rows: torch.Tensor, ends: torch.Tensor, generator: torch.Generator, fraction: float
) -> torch.Tensor:
    """Which columns are among exactly so many of the live ones, every choice alike."""
    import torch

    columns = torch.arange(rows.shape[1], device=rows.device)
    places = torch.rand(rows.shape, generator=generator, device=rows.device)
    order = places.masked_fill_(columns >= ends[:, None], 2).argsort(dim=1)
    count = (fraction * ends.to(torch.float64) + 0.5).to(torch.int64)
    return torch.zeros_like(rows, dtype=torch.bool).scatter_(1, order, columns < count[:, None])


def _masked(
    workload: str,
    rows: torch.Tensor,
    ends: torch.Tensor,
    generator: torch.Generator,
    arguments: dict[str, Any],
) -> torch.Tensor | None:
    """Which columns of rows are -inf; None for a workload that masks none."""
    import torch

    if workload == "masked_blocks":
        return _in_blocks(rows, ends, generator)
    if workload == "masked_random":
        return _anywhere(rows, ends, generator, **arguments)
    if workload == "masked_prefix":
        return torch.arange(rows.shape[1], device=rows.device) >= arguments["finite"]
    return None


def draw(
    workload: str,
    row_ends: np.ndarray,
    num_cols: int,
    place: str,
    *,
    seed: int = 0,
    columns_reversed: bool = False,
    **arguments: Any,
) -> torch.Tensor:
    """Draw the logits of a workload on a device.

    Parameters
    ----------
    workload : {"normal", "masked_random", "masked_prefix", "masked_blocks"}
        As `topk_lab.workloads` describes it.
    row_ends : (num_rows,) int32 ndarray
        Live columns of each row, in [0, num_cols].
    num_cols : int
        Width of the buffer. Columns past a row's end hold 1e20.
    place : str
        Where torch puts the tensor.
    seed : int, default 0
    columns_reversed : bool, default False
        The last column stands first; every row must be live to its end.
    **arguments
        Of the workload: ``fraction`` of masked_random, ``finite`` of masked_prefix.

    Returns
    -------
    (num_rows, num_cols) float32 tensor

    Raises
    ------
    TypeError
        Ends of another dtype, or an argument that is none of the workload's here.
    ValueError
        Another workload, an end outside the buffer, or one before the last column of a row that is
        to be reversed.
    """
    import torch

    if workload not in DRAWN:
        raise ValueError(f"workload must be one of {', '.join(DRAWN)} here, got {workload!r}")
    for name in arguments.keys() - set(DRAWN[workload]):
        allowed = ", ".join(DRAWN[workload]) or "none"
        raise TypeError(f"arguments of {workload} must be among {allowed} here, got {name}")
    if row_ends.dtype != np.int32:
        raise TypeError(f"row_ends must be int32, got {row_ends.dtype}")
    outside = row_ends[(row_ends < 0) | (row_ends > num_cols)]
    if outside.size:
        raise ValueError(f"row_ends must be in [0, {num_cols}], got {outside[0]}")
    if columns_reversed and (row_ends != num_cols).any():
        raise ValueError(f"row_ends must be {num_cols} with columns_reversed, got {row_ends.min()}")
    defaults = workloads.defaults(workload)
    arguments = {name: defaults[name] for name in DRAWN[workload]} | arguments
    generator = torch.Generator(place).manual_seed(seed)
    ends = torch.from_numpy(row_ends).to(place, torch.int64)
    logits = torch.empty(len(row_ends), num_cols, device=place)
    columns = torch.arange(num_cols, device=place)
    step = max(1, CHUNK_ELEMENTS // max(num_cols, 1))
    for first in range(0, len(row_ends), step):
        rows = logits[first : first + step]
        live = ends[first : first + step]
        rows.normal_(generator=generator)
        masked = _masked(workload, rows, live, generator, arguments)
        if masked is not None:
            rows.masked_fill_(masked.flip(-1) if columns_reversed else masked, -torch.inf)
        rows.masked_fill_(columns >= live[:, None], STALE)
    return logits
