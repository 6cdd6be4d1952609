"""Which k logits of each row are the greatest? The answer that every variant is held against.

One row after another, one logit after another:

1. Three passes find the k-th greatest key, 11, 11 and 10 bits at a time from the top.
2. A fourth keeps what is above it, and of what equals it the first few: the lowest indices.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from topk_lab.keys import NEG_INF_BITS, canonical_key
from topk_lab.reference.rows import ROW_LIST, ROWS, row_bits, row_bounds, row_kernel, whole_k

__all__ = ["select"]

ORDERS = ("any", "index", "value")

DIGIT_SHIFTS = (21, 10, 0)
DIGIT_BINS = 2048


@njit
def kth_key(row, k):
    """Find the k-th greatest key of a row.

    Parameters
    ----------
    row : (length,) uint32
        Bits of the live logits.
    k : int64
        1 <= k <= length.

    Returns
    -------
    key : uint32
        The k-th greatest canonical key.
    remaining_k : int64
        How many logits with that very key belong to the k greatest.
    """
    key = np.uint32(0)
    fixed = np.uint32(0)
    remaining_k = k
    for shift in DIGIT_SHIFTS:
        histogram = np.zeros(DIGIT_BINS, np.int64)
        digit_mask = np.uint32((1 << 10) - 1 if shift == 0 else (1 << 11) - 1)
        for i in range(row.size):
            candidate = canonical_key(row[i])
            if candidate & fixed == key:
                histogram[(candidate >> np.uint32(shift)) & digit_mask] += 1
        # num_above < k <= num_above + num_in_bin, counted from the greatest digit down; what is
        # left of k falls into that digit's bin: 0 < remaining_k <= num_in_bin.
        digit = np.int64(digit_mask)
        while remaining_k > histogram[digit]:
            remaining_k -= histogram[digit]
            digit -= 1
        key = np.uint32(key | np.uint32(digit << shift))
        fixed = np.uint32(fixed | np.uint32(digit_mask << np.uint32(shift)))
    return key, remaining_k


@njit
def select_row(row, k, indices, bits, keys):
    """Write the k greatest logits of a row in the order of their indices.

    Parameters
    ----------
    row : (length,) uint32
        Bits of the live logits.
    k : int64
        k >= 1; a shorter row is selected whole.
    indices : (k,) int32
        Written: positions in the row, then -1.
    bits : (k,) uint32
        Written: bits of the logits, then those of -inf.
    keys : (k,) uint32
        Written: canonical keys, then 0.
    """
    taken = 0
    if row.size > 0:
        key, remaining_k = kth_key(row, min(k, row.size))
        for i in range(row.size):
            candidate = canonical_key(row[i])
            if candidate < key or (candidate == key and remaining_k == 0):
                continue
            if candidate == key:
                remaining_k -= 1
            indices[taken] = i
            bits[taken] = row[i]
            keys[taken] = candidate
            taken += 1
    indices[taken:] = -1
    bits[taken:] = NEG_INF_BITS
    keys[taken:] = 0


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    types.int64,
    types.int32[:, ::1],
    types.uint32[:, ::1],
    types.uint32[:, ::1],
)
def select_rows(first, last, logits, starts, ends, k, indices, bits, keys):
    """Select from the live part of each row."""
    for row in range(first, last):
        live = logits[row, starts[row] : max(starts[row], ends[row])]
        select_row(live, k, indices[row], bits[row], keys[row])


def select(
    logits: object,
    k: int,
    starts: object = None,
    ends: object = None,
    *,
    order: str = "index",
) -> tuple[np.ndarray, np.ndarray]:
    """Select the k greatest logits of each row; the lowest indices win ties.

    NaN of either sign is the greatest value, all NaNs are alike, and so are both zeros.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores. Any strides; nothing is copied.
    k : int
        How many to select, k >= 1; it may exceed num_cols.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols] as
        `topk_lab.contract.live_bounds` gives them. Default: whole rows.
    order : {"any", "index", "value"}
        "value": descending, equal values by index. "any" is served as "index".

    Returns
    -------
    indices : (num_rows, k) int32 array
        Positions relative to the row's start; -1 behind the m = min(k, live length) selected.
    values : (num_rows, k) float32 array
        Their logits; -inf behind the m-th.

    Raises
    ------
    TypeError
        Logits that are not float32, k or bounds that are not integers.
    ValueError
        Wrong shape, k < 1, bounds outside the row, unknown order.

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab.reference import exact
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0]], np.float32)
    >>> indices, values = exact.select(row, 3, order="value")
    >>> indices.tolist(), values.tolist()
    ([[1, 3, 4]], [[2.0, 2.0, 1.0]])
    """
    if order not in ORDERS:
        raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    keys = np.empty((num_rows, k), np.uint32)
    num_logits = int(np.maximum(ends - starts, 0).sum())
    select_rows(num_rows, num_logits, live, starts, ends, k, indices, bits, keys)
    if order == "value":
        # One key that falls with the value and rises with the index; the -1 places come last
        # because their part of it is all ones.
        falling = (~keys).astype(np.uint64) << np.uint64(32) | indices.view(np.uint32)
        by_value = np.argsort(falling, axis=1)
        indices = np.take_along_axis(indices, by_value, axis=1)
        bits = np.take_along_axis(bits, by_value, axis=1)
    return indices, bits.view(np.float32)
