"""Is an answer on a device exact, without bringing the logits to the host?

The same judgement as `topk_lab.contract.find_violations` by the same argument, in torch operations
on the tensors' own device and without any top-k operator: m distinct live indices are a top m
exactly if no logit left out is greater than the least one chosen. Where it finds a fault,
`find_violations` says more of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topk_lab.contract.calls import check_tensor
from topk_lab.contract.lengths import check_per_row_shape
from topk_lab.contract.oracle import NO_INDEX, find_violations

if TYPE_CHECKING:
    import torch

__all__ = ["first_fault", "inexact_rows"]

CHUNK_ELEMENTS = 1 << 27
GREATEST_KEY = 2**31 - 1  # of a NaN
NEGATIVE_ZERO = -(2**31)  # its bits


def _keys(logits: torch.Tensor) -> torch.Tensor:
    """Order keys: one NaN, the greatest; one zero."""
    import torch

    bits = logits.view(torch.int32)  # no arithmetic on floats: it may flush subnormals
    bits = bits.masked_fill(bits == NEGATIVE_ZERO, 0)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return keys.masked_fill_(logits.isnan(), GREATEST_KEY)


def _chunk(logits: torch.Tensor, indices: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Which rows of a chunk are inexact; `live` is (num_rows, 1)."""
    import torch

    num_cols, k = logits.shape[1], indices.shape[1]
    wanted = live.clamp(max=k)
    filled = torch.arange(k, device=logits.device) < wanted
    in_place = torch.where(filled, (indices >= 0) & (indices < live), indices == NO_INDEX)
    columns = torch.where(filled & in_place, indices, NO_INDEX).to(torch.int64)
    ascending = columns.sort(dim=1).values
    twice = ((ascending[:, 1:] == ascending[:, :-1]) & (ascending[:, 1:] >= 0)).any(dim=1)
    bad = twice | ~in_place.all(dim=1)
    if num_cols == 0:
        return bad
    keys = _keys(logits)
    chosen = keys.gather(1, columns.clamp(min=0)).masked_fill(columns < 0, GREATEST_KEY)
    least = chosen.amin(dim=1, keepdim=True)
    above = (keys > least) & (torch.arange(num_cols, device=logits.device) < live)
    chosen_above = (columns >= 0) & (chosen > least)
    missed = above.sum(dim=1) != chosen_above.sum(dim=1)
    return bad | (missed & (wanted[:, 0] > 0))


def inexact_rows(
    logits: torch.Tensor, indices: torch.Tensor, row_ends: torch.Tensor
) -> torch.Tensor:
    """Rows whose indices are not an exact top-k of their live columns.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 tensor
        On any device.
    indices : (num_rows, k) int32 tensor
        The answer, on the same device.
    row_ends : (num_rows,) int32 tensor
        Live columns, clamped to ``[0, num_cols]``.

    Returns
    -------
    (any,) int64 tensor
        Their numbers, rising; empty for an exact answer.

    Raises
    ------
    TypeError
        Another dtype.
    ValueError
        Shapes that don't belong together.

    Notes
    -----
    A chunk of rows takes about twenty bytes of device memory for each of its logits.
    """
    import torch

    check_tensor("logits", logits, "float32")
    check_tensor("indices", indices, "int32", logits.device)
    check_tensor("row_ends", row_ends, "int32", logits.device)
    if logits.ndim != 2:
        raise ValueError(f"logits must be 2-D, got shape {tuple(logits.shape)}")
    num_rows, num_cols = logits.shape
    if indices.ndim != 2 or indices.shape[0] != num_rows or not indices.shape[1]:
        raise ValueError(
            f"indices must have shape (num_rows, k) with {num_rows} rows and k >= 1, "
            f"got {tuple(indices.shape)}"
        )
    check_per_row_shape("row_ends", tuple(row_ends.shape), num_rows)
    live = row_ends.to(torch.int64).clamp(0, num_cols)[:, None]
    step = max(1, CHUNK_ELEMENTS // max(num_cols, indices.shape[1], 1))
    found = [
        _chunk(logits[first : first + step], indices[first : first + step], live[first:][:step])
        for first in range(0, num_rows, step)
    ]
    return torch.cat(found).nonzero()[:, 0] if found else row_ends.new_empty(0, dtype=torch.int64)


def first_fault(logits: torch.Tensor, indices: torch.Tensor, row_ends: torch.Tensor) -> str | None:
    """What the first inexact row breaks of the contract, in one line.

    Parameters
    ----------
    logits, indices, row_ends
        As for `inexact_rows`.

    Returns
    -------
    str or None
        How many rows are inexact, and what `find_violations` says of the first, which alone is
        brought to the host; None if all are exact.
    """
    rows = inexact_rows(logits, indices, row_ends)
    if not rows.numel():
        return None
    row = int(rows[0])
    seen, answer, end = (part[row : row + 1].cpu() for part in (logits, indices, row_ends))
    found = find_violations(seen, answer, row_ends=end)
    said = f"{found[0].kind}: {found[0].detail}" if found else "not an exact selection"
    return f"{rows.numel()} rows; row {row}: {said}"
