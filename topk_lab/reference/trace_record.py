"""What does a twin leave behind: an answer, and a record of each step that led to it?

The records are those that traced kernels write, byte for byte
(``kernels/include/topk_lab/params.hpp``, TraceStep).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

__all__ = [
    "TRACE_BINS",
    "TRACE_STEP",
    "TRACE_WORDS",
    "Selection",
    "empty_trace",
    "record_histogram",
    "record_step",
    "trace_words",
]

TRACE_BINS = 4096  # as many as the finest histogram has, that of the AITER lineage

TRACE_STEP = np.dtype(
    [
        ("step", "<i4"),  # from 0; -1 where the step was not reached
        ("prefix", "<u4"),  # key bits fixed before the step
        ("threshold_bin", "<i4"),  # bin that holds the k-th logit
        ("bin_size", "<i4"),  # its population
        ("above", "<i4"),  # logits ordered before it, those emitted by earlier steps included
        ("emitted", "<i4"),  # output slots filled when the step ends
        ("candidates", "<i4"),  # logits for what comes next: final items, the stash, or a pass
        ("fits", "<i4"),  # 1 if the threshold bin may be kept on chip, or is wanted whole
        ("histogram", "<u4", (TRACE_BINS,)),  # of which a step may use the first ones alone
    ]
)
TRACE_WORDS = TRACE_STEP.itemsize // 4
HISTOGRAM_WORD = TRACE_STEP.fields["histogram"][1] // 4


@dataclass(frozen=True)
class Selection:
    """What a twin answered, and what it left behind.

    Attributes
    ----------
    indices : (num_rows, k) int32 array
        Positions relative to the row's start, in no order; -1 in a slot without a logit.
    values : (num_rows, k) float32 array
        Their logits, any NaN as the one canonical NaN; -inf in a slot without a logit.
    active_splits : (num_rows,) int64 array
        Blocks that worked on each row.
    split_indices, split_logits : (num_rows, max_splits, k) int32, float32 arrays
        The workspace; -777 and NaN where no split wrote. Without splits, max_splits is 0 here.
    trace : (num_rows, blocks a row, steps a block) TRACE_STEP array or None
        One record a step, a merge's block last; step is -1 where none was made.
    """

    indices: np.ndarray
    values: np.ndarray
    active_splits: np.ndarray
    split_indices: np.ndarray
    split_logits: np.ndarray
    trace: np.ndarray | None


def empty_trace(*shape: int) -> np.ndarray:
    """Records of steps that nobody made.

    Parameters
    ----------
    *shape : int
        Rows, blocks a row, steps a block.

    Returns
    -------
    TRACE_STEP array
    """
    records = np.zeros(shape, TRACE_STEP)
    records["step"] = -1
    return records


def trace_words(records: np.ndarray | None, *shape: int) -> np.ndarray:
    """View records as the words that compiled functions write; no words of each without records."""
    if records is None:
        return np.empty((*shape, 0), np.uint32)
    return records.view(np.uint32).reshape(*shape, TRACE_WORDS)


@njit
def record_step(words, step, prefix, threshold_bin, bin_size, above, emitted, candidates, fits):
    """Write one TRACE_STEP, as words, without its histogram."""
    words[0] = step
    words[1] = prefix
    words[2] = threshold_bin
    words[3] = bin_size
    words[4] = above
    words[5] = emitted
    words[6] = candidates
    words[7] = fits


@njit
def record_histogram(words, histogram):
    """Write the histogram of a TRACE_STEP: a full one, or its first bins."""
    for histogram_bin in range(histogram.size):
        words[HISTOGRAM_WORD + histogram_bin] = histogram[histogram_bin]
