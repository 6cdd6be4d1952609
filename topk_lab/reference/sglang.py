"""How does the SGLang kernel find the k best logits of a row, pass by pass?

The twin of ``kernels/include/topk_lab/stash_select.hpp`` and the headers behind it: each function
here has the name of the device function that it mirrors, the same condition before it and the same
after it. A block visits its logits in the order of their positions (on a device the order is free),
so the lowest indices win ties, except that +0.0 stays above -0.0 as in the kernels; and where
candidates are dropped, it is the last of them that are.

1. A row of at most k live columns is its own answer.
2. Otherwise all logits are counted by coarse bin. The threshold bin holds the k-th.
3. If more logits are in it than the stash holds, the next digits of the key are counted over the
   row until what is left fits (``overflow="rescan"``), or not (``overflow="drop"``).
4. Logits above are selected, those in question stashed, and the stash is refined digit by digit.

Source: SGLang ``csrc/elementwise/deepseek_v4_topk.cu`` before and after #36004, with the drop; the
rescan is that of its exact successor, but selects nothing before its last read of the row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from topk_lab import schedules
from topk_lab.contract.words import check_word
from topk_lab.keys import (
    NEG_INF_BITS,
    NUM_DIGIT_BINS,
    NUM_PASSES,
    canonical_bits,
    coarse_bin,
    key_digit,
    order_key,
)
from topk_lab.reference.rows import ROW_LIST, ROWS, row_bits, row_bounds, row_kernel, whole_k
from topk_lab.reference.trace_record import (
    Selection,
    empty_trace,
    record_histogram,
    record_step,
    trace_words,
)
from topk_lab.schedules import Variant

__all__ = ["select"]

DIGIT_BITS = 8
FIRST_SHIFT = 24


class Cutoff(NamedTuple):
    """How far the k-th logit is known; a logit is in question if bin and fixed bits agree."""

    k: int
    coarse_bin: int
    prefix: np.uint32  # the key's fixed bits
    fixed: np.uint32  # which bits these are, from the top
    shift: int  # of the next digit; below 0 where all bits are fixed
    remaining_k: int  # how many of those in question are among the k best


class Threshold(NamedTuple):
    """The bin of 256 that holds the k-th logit: ``above <= remaining_k < above + bin_size``."""

    bin: int
    bin_size: int
    above: int


# Places of the counters that a block keeps beside its histogram.
FOUND = 0  # slots handed out to logits above the threshold bin
TIE_CURSOR = 1  # next slot for logits equal to the k-th
STASHED = 2  # candidates of the list that is being filled, those that were dropped included
NUM_COUNTERS = 3


@njit
def count_coarse_bins(logits, histogram):
    """Step "count": how many logits fall into each coarse bin.

    Parameters
    ----------
    logits : (length,) uint32
        Bits; a NaN is canonical.
    histogram : (256,) uint32
        Written.
    """
    histogram[:] = 0
    for i in range(logits.size):
        histogram[coarse_bin(logits[i])] += np.uint32(1)


@njit
def count_digits(logits, cutoff, histogram):
    """Step "count": the next digits of the logits still in question, over the whole row.

    Parameters
    ----------
    logits : (length,) uint32
    cutoff : Cutoff
    histogram : (256,) uint32
        Written.
    """
    histogram[:] = 0
    for i in range(logits.size):
        if coarse_bin(logits[i]) == cutoff.coarse_bin:
            key = order_key(logits[i])
            if key & cutoff.fixed == cutoff.prefix:
                histogram[key_digit(key, cutoff.shift)] += np.uint32(1)


@njit
def suffix_sum(histogram):
    """Population of each bin and of all better, that is higher, bins: (256,) -> (256,) int64."""
    sums = np.empty(histogram.size, np.int64)
    total = np.int64(0)
    for digit_bin in range(histogram.size - 1, -1, -1):
        total += np.int64(histogram[digit_bin])
        sums[digit_bin] = total
    return sums


@njit
def find_threshold_digit(histogram, remaining_k):
    """Step "threshold bin": the bin of 256 that holds the k-th logit.

    Before: ``0 < remaining_k < sum(histogram)``. After: ``above <= remaining_k < above +
    bin_size``, where `above` is the population of all better bins; exactly one bin qualifies, and
    nothing of it is needed where `above` is `remaining_k`.

    Parameters
    ----------
    histogram : (256,) uint32
    remaining_k : int64

    Returns
    -------
    Threshold
    """
    sums = suffix_sum(histogram)
    digit_bin = histogram.size - 1
    while sums[digit_bin] <= remaining_k:
        digit_bin -= 1
    above = sums[digit_bin + 1] if digit_bin + 1 < histogram.size else np.int64(0)
    return Threshold(digit_bin, sums[digit_bin] - above, above)


@njit
def fix_digit(cutoff, digit, above):
    """Move the cutoff one digit on: (Cutoff, int64, int64) -> Cutoff."""
    return Cutoff(
        cutoff.k,
        cutoff.coarse_bin,
        np.uint32(cutoff.prefix | np.uint32(digit << cutoff.shift)),
        np.uint32(cutoff.fixed | np.uint32((NUM_DIGIT_BINS - 1) << cutoff.shift)),
        cutoff.shift - DIGIT_BITS,
        cutoff.remaining_k - above,
    )


@njit
def keep_candidate(stash, cutoff, key, position, histogram, counters, positions):
    """Stash a logit that the digits so far can't tell from the k-th, and count its next digit.

    Where no digits are left it equals the k-th and takes a slot in order of arrival. A full list
    takes no more: with ``overflow="rescan"`` no list is ever filled up.
    """
    if cutoff.remaining_k == 0:
        return
    if cutoff.shift < 0:
        if counters[TIE_CURSOR] < cutoff.k:
            positions[counters[TIE_CURSOR]] = position
        counters[TIE_CURSOR] += 1
        return
    entry = counters[STASHED]
    counters[STASHED] += 1
    if entry < stash.size:
        stash[entry] = position
        histogram[key_digit(key, cutoff.shift)] += np.uint32(1)


@njit
def collect_candidates(logits, cutoff, stash, histogram, counters, positions):
    """Step "collect": one more read of the row.

    Before: counters cleared; no logit above the cutoff has a slot yet. After: all of them have one
    below ``k - remaining_k``, those in question are stashed and their next digits counted.

    Parameters
    ----------
    logits : (length,) uint32
    cutoff : Cutoff
    stash : (capacity,) int32
        Written.
    histogram : (256,) uint32
    counters : (3,) int64
    positions : (k,) int32
        Written.
    """
    for i in range(logits.size):
        logit_bin = coarse_bin(logits[i])
        if logit_bin < cutoff.coarse_bin:
            continue
        key = order_key(logits[i])
        known = key & cutoff.fixed
        if logit_bin > cutoff.coarse_bin or known > cutoff.prefix:
            positions[counters[FOUND]] = i
            counters[FOUND] += 1
        elif known == cutoff.prefix:
            keep_candidate(stash, cutoff, key, i, histogram, counters, positions)


@njit
def refine_stash(logits, cutoff, digit, items, stash, histogram, counters, positions):
    """Step "refine": the stashed logits, one digit of the key further.

    Before: counters cleared; `digit`, the one before the cutoff's next, is new in its prefix.
    After: the items above have a slot below ``k - remaining_k``, those in question are in the other
    list, their next digits counted.

    Parameters
    ----------
    logits : (length,) uint32
    cutoff : Cutoff
    digit : int64
    items : (num_items,) int32
        Positions.
    stash : (capacity,) int32
        Written: the other list.
    histogram : (256,) uint32
    counters : (3,) int64
    positions : (k,) int32
        Written.
    """
    for item in range(items.size):
        position = items[item]
        key = order_key(logits[position])
        its_digit = key_digit(key, cutoff.shift + DIGIT_BITS)
        if its_digit > digit:
            positions[counters[FOUND]] = position
            counters[FOUND] += 1
        elif its_digit == digit:
            keep_candidate(stash, cutoff, key, position, histogram, counters, positions)


@njit
def clear_counts(cutoff, histogram, counters):
    """Empty the histogram and the list that is filled next; ties begin behind what is above."""
    histogram[:] = 0
    counters[STASHED] = 0
    counters[TIE_CURSOR] = cutoff.k - cutoff.remaining_k


@njit
def select_with_stash(logits, capacity, rescan, positions, steps):
    """Select the k best of more than k logits, by one block.

    Before: ``len(logits) > k``. Before each pass ``0 < remaining_k <`` the number of logits still
    in question. After: the k slots hold distinct positions whose logits are the k best, unless
    candidates were dropped. The row is read twice where the coarse bin fits the stash, else at most
    six times.

    Parameters
    ----------
    logits : (length,) uint32
        Bits; a NaN is canonical.
    capacity : int64
        Positions that a list of the stash holds.
    rescan : bool
        What becomes of a threshold bin that is larger: counted again, or cut off.
    positions : (k,) int32
        Written.
    steps : (5, TRACE_WORDS) or (5, 0) uint32
        Trace of the block, written unless its records are empty.
    """
    k = positions.size
    traced = steps.shape[1] > 0
    histogram = np.empty(NUM_DIGIT_BINS, np.uint32)
    counters = np.zeros(NUM_COUNTERS, np.int64)
    cutoff = Cutoff(k, 0, np.uint32(0), np.uint32(0), FIRST_SHIFT, k)
    count_coarse_bins(logits, histogram)
    threshold = find_threshold_digit(histogram, k)
    cutoff = Cutoff(k, threshold.bin, np.uint32(0), np.uint32(0), FIRST_SHIFT, k - threshold.above)
    number = 0
    if traced:
        record_threshold(steps[0], 0, np.uint32(0), threshold, cutoff, capacity, histogram)
    if rescan:
        while threshold.bin_size > capacity and cutoff.remaining_k > 0 and cutoff.shift >= 0:
            count_digits(logits, cutoff, histogram)
            prefix = cutoff.prefix
            threshold = find_threshold_digit(histogram, cutoff.remaining_k)
            cutoff = fix_digit(cutoff, threshold.bin, threshold.above)
            number += 1
            if traced:
                record_threshold(
                    steps[number], number, prefix, threshold, cutoff, capacity, histogram
                )

    stash = np.empty((2, capacity), np.int32)
    filled = 0
    clear_counts(cutoff, histogram, counters)
    collect_candidates(logits, cutoff, stash[filled], histogram, counters, positions)
    if traced:
        record_collection(steps[number], cutoff, capacity, counters)
    while cutoff.remaining_k > 0 and cutoff.shift >= 0:
        prefix = cutoff.prefix
        threshold = find_threshold_digit(histogram, cutoff.remaining_k)
        cutoff = fix_digit(cutoff, threshold.bin, threshold.above)
        number += 1
        if traced:
            record_threshold(steps[number], number, prefix, threshold, cutoff, capacity, histogram)
        items = stash[filled, : min(counters[STASHED], capacity)]
        filled = 1 - filled
        clear_counts(cutoff, histogram, counters)
        refine_stash(
            logits, cutoff, threshold.bin, items, stash[filled], histogram, counters, positions
        )
        if traced:
            record_collection(steps[number], cutoff, capacity, counters)


@njit
def record_threshold(words, number, prefix, threshold, cutoff, capacity, histogram):
    """Write what is known of a pass when its threshold bin is."""
    above = cutoff.k - cutoff.remaining_k
    fits = threshold.bin_size <= capacity
    record_step(words, number, prefix, threshold.bin, threshold.bin_size, above, 0, 0, fits)
    record_histogram(words, histogram)


@njit
def record_collection(words, cutoff, capacity, counters):
    """Write what a collection left: words 5 and 6 of the record."""
    ties = cutoff.remaining_k > 0 and cutoff.shift < 0
    words[5] = min(counters[TIE_CURSOR], cutoff.k) if ties else counters[FOUND]
    words[6] = min(counters[STASHED], capacity)


@njit
def sort_positions(positions):
    """Step "order": the selected positions, rising."""
    positions.sort()


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    types.int64,
    types.boolean,
    types.boolean,
    types.int32[:, ::1],
    types.uint32[:, ::1],
    types.uint32[:, :, :, ::1],
)
def select_paged(
    first, last, logits, starts, ends, capacity, rescan, ascending, indices, bits, steps
):
    """Select the k best of each row: the launch. Slots are `paging.transform_pages`' to write."""
    k = indices.shape[1]
    for row in range(first, last):
        length = max(ends[row] - starts[row], 0)
        live = np.empty(length, np.uint32)
        for i in range(length):
            live[i] = canonical_bits(logits[row, starts[row] + i])
        if length > k:
            select_with_stash(live, capacity, rescan, indices[row], steps[row, 0])
            if ascending:
                sort_positions(indices[row])
        else:
            for slot in range(k):
                indices[row, slot] = slot if slot < length else -1
        for slot in range(k):
            index = indices[row, slot]
            bits[row, slot] = live[index] if index >= 0 else NEG_INF_BITS


def select(
    variant: str | Variant,
    logits: object,
    k: int,
    starts: object = None,
    ends: object = None,
    *,
    order: str = "any",
    trace: bool = False,
) -> Selection:
    """Select as the SGLang kernel does, pass by pass.

    Parameters
    ----------
    variant : str or Variant
        ``"sglang_block512"``, ``"sglang_block1024"``, or one with changed policy fields, as
        `topk_lab.schedules.parse_variant` reads them. An unsound policy is carried out as it is.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides.
    k : int
        1 to 1024.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    order : {"any", "index"}
        "index": rising.
    trace : bool
        Also record every pass: 16 KiB each.

    Returns
    -------
    Selection

    Raises
    ------
    TypeError
        Logits that are not float32, k or bounds that are not integers.
    ValueError
        Unknown variant, a shape or k that it does not take, bounds outside the row.

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab.reference import sglang
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0]], np.float32)
    >>> sglang.select("sglang_block1024", row, 3, order="index").indices[0].tolist()
    [1, 3, 4]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    variant.require_policy(schedules.StashPolicy)
    check_word("order", order, ("any", "index"))
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    refusal = schedules.gate_refusal(variant.name, num_rows, num_cols, k)
    if refusal:
        raise ValueError(refusal)
    policy = variant.policy
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    records = empty_trace(num_rows, 1, NUM_PASSES) if trace else None
    words = trace_words(records, num_rows, 1, NUM_PASSES)
    num_logits = int(np.maximum(ends - starts, 0).sum())
    select_paged(
        num_rows,
        num_logits,
        live,
        starts,
        ends,
        policy.stash_capacity,
        policy.overflow == "rescan",
        order == "index",
        indices,
        bits,
        words,
    )
    no_splits = (num_rows, 0, k)
    return Selection(
        indices,
        bits.view(np.float32),
        np.ones(num_rows, np.int64),
        np.empty(no_splits, np.int32),
        np.empty(no_splits, np.float32),
        records,
    )
