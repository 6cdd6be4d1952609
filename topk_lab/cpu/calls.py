"""What does the selection on a CPU take, and which threads work on which rows?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numba import types

from topk_lab.compiled import compiled
from topk_lab.contract.words import ORDERS, as_array, check_word
from topk_lab.cpu.selection import (
    SEGMENT,
    Scratch,
    candidate,
    has_delegates,
    reduce_segments,
    scratch_of,
    scratch_words,
    select_row,
    write_row,
)
from topk_lab.reference.rows import row_bounds, whole_k
from topk_lab.threads import available_threads, run_all

__all__ = ["Rows", "rows_of", "select", "select_into"]

BITS = types.Array(types.uint32, 1, "C", readonly=True)
LENGTHS = types.Array(types.int64, 1, "C", readonly=True)
WORDS = types.uint64[::1]

# What a row costs beyond reading it, in columns: some, and some for each that is selected.
COLUMNS_PER_ROW = 1 << 13
COLUMNS_PER_SELECTED = 8
# It takes some 60 us until a waiting thread is at work. A thread is worth that from so much on, and
# a part of the work is worth taking from so much on.
COLUMNS_PER_THREAD = 3 << 19
COLUMNS_PER_PART = 1 << 18
PARTS_PER_THREAD = 4

NO_MAXIMA = np.empty((0, 0), np.uint32)


class Rows(NamedTuple):
    """Where the rows of a tensor lie.

    Attributes
    ----------
    bits : (span,) uint32 array
        All memory from the first logit to the last.
    num_rows, num_cols : int
    row_stride : int
        Elements from row to row; 0 and less than `num_cols` included.
    """

    bits: np.ndarray
    num_rows: int
    num_cols: int
    row_stride: int


@compiled(
    types.void(
        *(types.int64, types.int64, BITS, types.int64, types.int64, LENGTHS, LENGTHS),
        *(types.int64, types.boolean, WORDS, types.uint32[:, ::1]),
        *(types.int32[:, :], types.uint32[:, :]),
    )
)
def select_rows(
    first, last, bits, row_stride, num_cols, starts, ends, k, by_value, words, maxima, indices,
    values,
):  # fmt: skip
    """Select from the rows ``[first, last)``.

    Parameters
    ----------
    first, last : int64
    bits, row_stride, num_cols
        As in `Rows`.
    starts, ends : (num_rows,) int64
        Live columns.
    k : int64
    by_value : bool
    words : (scratch_words,) uint64
        Written; of this thread alone.
    maxima : (num_rows, num_segments) or (0, 0) uint32
        Delegates of all rows, if they are there already.
    indices : (num_rows, k) int32
        Written.
    values : (num_rows, k) or (num_rows, 0) uint32
        Written, if there is room.
    """
    own = scratch_of(words, num_cols, k, maxima.size == 0)
    for number in range(first, last):
        begin = number * row_stride + starts[number]
        row = bits[begin : begin + max(ends[number] - starts[number], 0)]
        if row.size > k:
            num = k
            if maxima.size:
                scratch = Scratch(maxima[number], own.listed, own.groups, own.kept)
                select_row(row, k, scratch, True)
            else:
                select_row(row, k, own, False)
        else:
            num = row.size
            for column in range(num):
                own.kept[column] = candidate(row[column], column)
        write_row(row, num, k, by_value, own, indices[number], values[number])


@compiled(
    types.void(
        *(types.int64, types.int64, types.int64, BITS, types.int64, LENGTHS, LENGTHS),
        types.uint32[:, ::1],
    )
)
def reduce_columns(number, first, last, bits, row_stride, starts, ends, maxima):
    """Reduce the segments ``[first, last)`` of one row, as far as it is live."""
    begin = number * row_stride + starts[number]
    row = bits[begin : begin + max(ends[number] - starts[number], 0)]
    whole = row.size // SEGMENT
    reduce_segments(row, min(first, whole), min(last, whole), maxima[number])


def rows_of(logits: object) -> Rows:
    """View logits as rows in memory, without a copy.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Last dimension contiguous, any row stride that is not negative, any 4-byte aligned base.

    Returns
    -------
    Rows

    Raises
    ------
    TypeError
        Not float32.
    ValueError
        Another shape, stride or alignment.
    """
    values = as_array("logits", logits)
    if values.dtype != np.float32:
        raise TypeError(f"logits must be float32, got {values.dtype}")
    if values.ndim != 2:
        raise ValueError(f"logits must have shape (num_rows, num_cols), got {values.shape}")
    if not values.flags.aligned:
        raise ValueError("logits must be 4-byte aligned, got an array that is not")
    num_rows, num_cols = values.shape
    row_bytes, column_bytes = values.strides
    if not values.size:
        return Rows(np.empty(0, np.uint32), num_rows, num_cols, 0)
    if num_cols > 1 and column_bytes != values.itemsize:
        raise ValueError(
            "logits must be contiguous in the last dimension (stride 1), "
            f"got strides of {values.strides} bytes"
        )
    row_stride = row_bytes // values.itemsize if num_rows > 1 else 0
    if row_stride < 0:
        raise ValueError(f"logits must have no negative row stride, got {row_stride}")
    span = (num_rows - 1) * row_stride + num_cols
    memory = np.lib.stride_tricks.as_strided(values, (span,), (values.itemsize,), writeable=False)
    return Rows(memory.view(np.uint32), num_rows, num_cols, row_stride)


def select_into(
    rows: Rows,
    k: int,
    starts: np.ndarray,
    ends: np.ndarray,
    order: str,
    indices: np.ndarray,
    values: np.ndarray | None,
    threads: int | None = None,
) -> None:
    """Select the k greatest logits of each row into arrays that are there.

    Parameters
    ----------
    rows : Rows
    k : int
        At least 1.
    starts, ends : (num_rows,) int64 array
        Live columns, ``0 <= starts <= ends <= num_cols`` where the row is not empty.
    order : {"any", "index", "value"}
        "any" is served as "index".
    indices : (num_rows, k) int32 array
        Written.
    values : (num_rows, k) float32 array or None
        Written.
    threads : int, optional
        At most so many; see `topk_lab.threads.available_threads`.
    """
    if not rows.num_rows:
        return
    bits, num_rows, num_cols, row_stride = rows
    # What may be written is of another type to a compiled function.
    bits.flags.writeable = starts.flags.writeable = ends.flags.writeable = False
    wanted = np.empty((num_rows, 0), np.uint32) if values is None else values.view(np.uint32)
    per_row = COLUMNS_PER_ROW + COLUMNS_PER_SELECTED * min(k, num_cols)
    num_threads = _worthwhile(threads, num_rows * (num_cols + per_row))
    maxima, parts = NO_MAXIMA, [(0, num_rows)]
    if num_threads > 1:
        lengths = np.maximum(ends - starts, 0)
        work = lengths + per_row
        num_threads = _worthwhile(num_threads, int(work.sum()))
        parts = _row_parts(work, num_threads)
        if num_threads > num_rows and has_delegates(int(lengths.max()), k):
            maxima = np.empty((num_rows, num_cols // SEGMENT + 1), np.uint32)
            run_all(
                _column_parts(lengths, num_threads),
                num_threads,
                lambda: lambda *part: reduce_columns(*part, bits, row_stride, starts, ends, maxima),
            )
    num_words = scratch_words(num_cols, k, reduces=not maxima.size)

    def start() -> Callable[[int, int], None]:
        words = np.empty(num_words, np.uint64)
        return lambda first, last: select_rows(
            *(first, last, bits, row_stride, num_cols, starts, ends, k),
            *(order == "value", words, maxima, indices, wanted),
        )

    run_all(parts, num_threads, start)


def _worthwhile(threads: int | None, columns: int) -> int:
    """How many of the threads are worth being woken for so many columns."""
    return min(available_threads(threads), 1 + columns // COLUMNS_PER_THREAD)


def _row_parts(work: np.ndarray, threads: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, a few a thread, with about as much to do in each."""
    done = np.cumsum(work)
    num_parts = max(threads, min(PARTS_PER_THREAD * threads, int(done[-1]) // COLUMNS_PER_PART))
    edges = np.searchsorted(done, np.linspace(0, done[-1], num_parts + 1)[1:-1]) + 1
    edges = [0, *dict.fromkeys(edges.tolist()), len(work)]
    return ((first, last) for first, last in itertools.pairwise(edges) if first < last)


def _column_parts(lengths: np.ndarray, threads: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of segments of each row, as many as there are threads."""
    for number, length in enumerate(lengths.tolist()):
        edges = np.linspace(0, length // SEGMENT, threads + 1).astype(int).tolist()
        for first, last in itertools.pairwise(edges):
            yield number, first, last


def select(
    logits: object,
    k: int,
    starts: object = None,
    ends: object = None,
    *,
    order: str = "any",
    threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Select the k greatest logits of each row; the lowest indices win ties.

    Parameters
    ----------
    logits : (num_rows, num_cols) float32 array or CPU tensor
        As `rows_of` takes them; nothing is copied.
    k : int
        How many to select, k >= 1; it may exceed num_cols.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    order : {"any", "index", "value"}
        "value": descending, equal values by index. "any" is served as "index".
    threads : int, optional
        At most so many; default ``NUMBA_NUM_THREADS``.

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
        Wrong shape, stride or alignment, k < 1, bounds outside the row, unknown order.

    Notes
    -----
    The answer is that of `topk_lab.reference.exact.select`, on any number of threads.

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab import cpu
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0]], np.float32)
    >>> indices, values = cpu.select(row, 3, order="value")
    >>> indices.tolist(), values.tolist()
    ([[1, 3, 4]], [[2.0, 2.0, 1.0]])
    """
    check_word("order", order, ORDERS)
    k = whole_k(k)
    rows = rows_of(logits)
    starts, ends = row_bounds(starts, ends, rows.num_rows, rows.num_cols)
    indices = np.empty((rows.num_rows, k), np.int32)
    values = np.empty((rows.num_rows, k), np.float32)
    select_into(rows, k, starts, ends, order, indices, values, threads)
    return indices, values
