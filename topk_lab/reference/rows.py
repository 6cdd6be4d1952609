"""What does a compiled reference take, and how are its rows spread over threads?"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np
from numba import types

from topk_lab.compiled import Compiled
from topk_lab.contract import MAX_COLUMNS
from topk_lab.contract.words import as_array
from topk_lab.threads import available_threads, run_all

__all__ = ["ROWS", "ROW_LIST", "RowKernel", "row_bits", "row_bounds", "row_kernel", "whole_k"]

# Types of what every row kernel is given: bits of the logits, and a number a row.
ROWS = types.Array(types.uint32, 2, "A", readonly=True)
ROW_LIST = types.Array(types.int64, 1, "C", readonly=True)

# Below this many logits a thread costs more to start than it saves.
LOGITS_PER_THREAD = 1 << 16


class RowKernel(Compiled):
    """A compiled function that works on a range of rows; see `row_kernel`."""

    def __call__(self, num_rows: int, num_logits: int, *args: object) -> None:
        """Run the function on all rows, which hold `num_logits` logits."""
        run = self.ready()
        threads = min(available_threads(), num_rows, 1 + num_logits // LOGITS_PER_THREAD)
        # Lengths differ from row to row: a few ranges a thread even the load out.
        parts = 1 if threads <= 1 else min(4 * threads, num_rows)
        edges = np.linspace(0, num_rows, parts + 1).astype(int).tolist()
        run_all(
            itertools.pairwise(edges), threads, lambda: lambda first, last: run(first, last, *args)
        )


def row_kernel(
    *argument_types: types.Type, keep: bool = False
) -> Callable[[Callable[..., None]], RowKernel]:
    """Compile ``function(first_row, last_row, *args)`` to be called on all rows, over threads.

    The decorated function is called as ``kernel(num_rows, num_logits, *args)``, `num_logits` being
    the amount of work. Its signature is stated here and compiled at the first call. Turns on
    different rows share nothing that they write, so ranges of rows run on threads that hold no GIL
    (`topk_lab.threads`).

    Parameters
    ----------
    *argument_types : numba types
        Of the arguments behind the two row numbers. The function writes only to rows
        [first_row, last_row) of them.
    keep : bool, default False
        Keep what was compiled for other processes, as `topk_lab.compiled` does. Numba can't where a
        step is handed to another as an argument.
    """
    signature = types.void(types.int64, types.int64, *argument_types)
    return lambda function: RowKernel(function, signature, keep)


def row_bits(logits: object) -> np.ndarray:
    """View logits as their bits, without a copy.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Any strides, 0 included.

    Returns
    -------
    (num_rows, num_cols) uint32 array
        Read-only view of the same memory.

    Raises
    ------
    TypeError
        Not float32.
    ValueError
        Not two-dimensional, or more columns than an int32 index can name.
    """
    values = as_array("logits", logits)
    if values.dtype != np.float32:
        raise TypeError(f"logits must be float32, got {values.dtype}")
    if values.ndim != 2:
        raise ValueError(f"logits must have shape (num_rows, num_cols), got {values.shape}")
    if values.shape[1] > MAX_COLUMNS:
        raise ValueError(f"logits must have at most {MAX_COLUMNS} columns, got {values.shape[1]}")
    bits = values.view(np.uint32)
    bits.flags.writeable = False
    return bits


def row_bounds(
    starts: object, ends: object, num_rows: int, num_cols: int
) -> tuple[np.ndarray, np.ndarray]:
    """Check the live part of each row; nothing behind this point looks at bounds again.

    Parameters
    ----------
    starts, ends : (num_rows,) int array or None
        First live column of each row and the one after its last, within [0, num_cols] (as
        `topk_lab.contract.live_bounds` gives them). None: 0 and num_cols. An end at or before its
        start is an empty row.
    num_rows, num_cols : int
        Shape of the logits.

    Returns
    -------
    starts, ends : (num_rows,) int64 array

    Raises
    ------
    TypeError
        Not integers.
    ValueError
        Wrong shape, or outside the row.
    """
    bounds = []
    for name, given, default in (("starts", starts, 0), ("ends", ends, num_cols)):
        bound = np.full(num_rows, default, np.int64) if given is None else np.asarray(given)
        if not np.issubdtype(bound.dtype, np.integer):
            raise TypeError(f"{name} must be integers, got {bound.dtype}")
        if bound.shape != (num_rows,):
            raise ValueError(
                f"{name} must have shape (num_rows,) = ({num_rows},), got {bound.shape}"
            )
        outside = bound[(bound < 0) | (bound > num_cols)]
        if outside.size:
            raise ValueError(
                f"{name} must lie in [0, num_cols] = [0, {num_cols}], got {outside[0]}"
            )
        bounds.append(np.ascontiguousarray(bound, np.int64))
    return bounds[0], bounds[1]


def whole_k(k: object) -> int:
    """Return k as an int.

    Raises
    ------
    TypeError
        Not an integer; a bool is none.
    ValueError
        Below 1.
    """
    if isinstance(k, (bool, np.bool_)) or not hasattr(k, "__index__"):
        raise TypeError(f"k must be an int, got {type(k).__name__}")
    if operator.index(k) < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    return operator.index(k)
