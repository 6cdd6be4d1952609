"""How does AITER's decode kernel find the k best logits of a row, pass by pass?

The twin of ``kernels/include/topk_lab/one_block_select.hpp`` and the headers around it: each
function here has the name of the device function that it mirrors, the same condition before it and
the same after it. A block visits its logits in the order of their positions (on a device the order
is free, but for stable answers), so the lowest indices win ties, except that +0.0 stays above -0.0
where the answer need not be stable.

1. A row of at most k live columns is its own answer.
2. Otherwise up to three passes fix the k-th key, 12 (or 11) bits a pass from the top: each counts
   the next digit of the logits that agree with the bits fixed so far, over the whole row, and finds
   the bin that holds the k-th. Where all of that bin is wanted, no later digit matters.
3. A last read selects: winners, whose fixed bits order before the k-th key's, from the front of the
   answer, and ties, whose fixed bits are equal to them, from its back, as many as are still wanted.
   A stable answer takes both as they come in the row: indices rise, the lowest of equal logits win.

Nothing is kept but a histogram, so k and the distribution of the logits are free, and the row is
read four times at most.

Source: ROCm/aiter ``csrc/kernels/topk_per_row_kernels.cu``, one block a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from topk_lab import schedules
from topk_lab.contract.words import TIE_BREAKS, check_word
from topk_lab.keys import (
    NEG_INF_BITS,
    NUM_DIGIT_PASSES,
    canonical_bits,
    complement_key,
    positive_zero,
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

KEY_BITS = 32


class Digit(NamedTuple):
    """The bits of the key that a pass counts."""

    shift: int
    mask: int


class KeyCutoff(NamedTuple):
    """How far the k-th key is known; a logit is in question if it has the same fixed bits."""

    k: int
    prefix: np.uint32  # the key's fixed bits
    fixed: np.uint32  # which bits these are, from the top
    num_digits: int  # how many digits these are
    remaining_k: int  # how many of those in question are among the k best


class DigitBin(NamedTuple):
    """The bin that holds the k-th logit: ``above < remaining_k <= above + bin_size``."""

    bin: int
    bin_size: int
    above: int


@njit
def ranked_key(bits, stable):
    """Key that falls as the value rises: (uint32, bool) -> uint32.

    A stable answer tells no zeros apart, as in the contract: ties are broken by index alone.
    """
    return complement_key(positive_zero(bits) if stable else bits)


@njit
def digit_of_pass(number, digit_bits):
    """The digit that a pass counts: (int64, int64) -> Digit. The last takes the bits left over."""
    upper = KEY_BITS - number * digit_bits
    shift = max(upper - digit_bits, 0)
    return Digit(shift, (1 << (upper - shift)) - 1)


@njit
def fix_digit(cutoff, digit, digit_bin, above):
    """Move the cutoff one digit on: (KeyCutoff, Digit, int64, int64) -> KeyCutoff."""
    return KeyCutoff(
        cutoff.k,
        np.uint32(cutoff.prefix | np.uint32(digit_bin << digit.shift)),
        np.uint32(cutoff.fixed | np.uint32(digit.mask << digit.shift)),
        cutoff.num_digits + 1,
        cutoff.remaining_k - above,
    )


@njit
def count_matching_digits(logits, cutoff, digit, stable, histogram):
    """Step "histogram": the next digits of the logits still in question, over the whole row.

    Parameters
    ----------
    logits : (length,) uint32
        Bits; a NaN is canonical.
    cutoff : KeyCutoff
    digit : Digit
    stable : bool
    histogram : (2**digit_bits,) uint32
        Written; bins beyond the digit's are empty.
    """
    histogram[:] = 0
    for i in range(logits.size):
        key = ranked_key(logits[i], stable)
        if key & cutoff.fixed == cutoff.prefix:
            histogram[np.int64(key >> np.uint32(digit.shift)) & digit.mask] += np.uint32(1)


@njit
def find_digit_bin(histogram, remaining_k):
    """Step "threshold bin": the bin that holds the k-th logit.

    Before: ``0 < remaining_k <= sum(histogram)``. After: ``above < remaining_k <= above +
    bin_size``, where `above` is the population of all earlier bins; exactly one bin qualifies.

    Parameters
    ----------
    histogram : (2**digit_bits,) uint32
    remaining_k : int64

    Returns
    -------
    DigitBin
    """
    digit_bin = 0
    above = np.int64(0)
    while above + np.int64(histogram[digit_bin]) < remaining_k:
        above += np.int64(histogram[digit_bin])
        digit_bin += 1
    return DigitBin(digit_bin, np.int64(histogram[digit_bin]), above)


@njit
def find_cutoff(logits, digit_bits, stable, k, steps):
    """All passes: fix as many digits of the k-th key as tell the k best apart.

    Before: ``len(logits) > k``. Before each pass ``0 < remaining_k <=`` the number of logits in
    question. After: fewer than k logits order before the prefix; they, and `remaining_k` of those
    that agree with it, are the k best. Either these are all that agree, or no digit is left, and
    they are equal.

    Parameters
    ----------
    logits : (length,) uint32
    digit_bits : int64
    stable : bool
    k : int64
    steps : (3, TRACE_WORDS) or (3, 0) uint32
        Trace of the block, written unless its records are empty.

    Returns
    -------
    KeyCutoff
    """
    traced = steps.shape[1] > 0
    histogram = np.empty(1 << digit_bits, np.uint32)
    cutoff = KeyCutoff(k, np.uint32(0), np.uint32(0), 0, k)
    settled = False
    while not settled and cutoff.num_digits < NUM_DIGIT_PASSES:
        digit = digit_of_pass(cutoff.num_digits, digit_bits)
        count_matching_digits(logits, cutoff, digit, stable, histogram)
        found = find_digit_bin(histogram, cutoff.remaining_k)
        prefix = cutoff.prefix
        cutoff = fix_digit(cutoff, digit, found.bin, found.above)
        settled = found.bin_size == cutoff.remaining_k
        if traced:
            record_pass(steps[cutoff.num_digits - 1], cutoff, prefix, found, histogram)
    return cutoff


@njit
def record_pass(words, cutoff, prefix, found, histogram):
    """Write what is known of a pass when its digit is fixed; nothing is emitted yet."""
    settled = found.bin_size == cutoff.remaining_k
    last = settled or cutoff.num_digits == NUM_DIGIT_PASSES
    above = cutoff.k - cutoff.remaining_k
    candidates = 0 if last else found.bin_size
    record_step(
        words,
        cutoff.num_digits - 1,
        prefix,
        found.bin,
        found.bin_size,
        above,
        0,
        candidates,
        settled,
    )
    record_histogram(words, histogram)


@njit
def collect_by_arrival(logits, cutoff, positions):
    """Step "collect": winners from the front, ties from the back.

    Before: the cutoff is found. After: the slots ``[0, k - remaining_k)`` hold the winners, and
    those from there on the first ties that were met, the first in the last slot.

    Parameters
    ----------
    logits : (length,) uint32
    cutoff : KeyCutoff
    positions : (k,) int32
        Written.

    Returns
    -------
    int64
        Slots filled.
    """
    found = 0
    ties = 0
    for i in range(logits.size):
        known = complement_key(logits[i]) & cutoff.fixed
        if known < cutoff.prefix:
            positions[found] = i
            found += 1
        elif known == cutoff.prefix:
            if ties < cutoff.remaining_k:
                positions[cutoff.k - 1 - ties] = i
            ties += 1
    return found + min(ties, cutoff.remaining_k)


@njit
def collect_in_row_order(logits, cutoff, positions):
    """Step "collect": winners and the first ties, as they come in the row.

    Before: the cutoff is found. After: the k slots hold rising positions, the lowest of equal
    logits among them.

    Parameters
    ----------
    logits : (length,) uint32
    cutoff : KeyCutoff
    positions : (k,) int32
        Written.

    Returns
    -------
    int64
        Slots filled.
    """
    winners = 0
    ties = 0
    for i in range(logits.size):
        taken = winners + min(ties, cutoff.remaining_k)
        if taken == cutoff.k:
            break
        known = ranked_key(logits[i], True) & cutoff.fixed
        if known < cutoff.prefix:
            positions[taken] = i
            winners += 1
        elif known == cutoff.prefix:
            if ties < cutoff.remaining_k:
                positions[taken] = i
            ties += 1
    return winners + min(ties, cutoff.remaining_k)


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    types.int64,
    types.boolean,
    types.int32[:, ::1],
    types.uint32[:, ::1],
    types.uint32[:, :, :, ::1],
)
def select_one_block(first, last, logits, starts, ends, digit_bits, stable, indices, bits, steps):
    """Select the k best of each row: the launch. Slots are `paging.transform_pages`' to write."""
    k = indices.shape[1]
    for row in range(first, last):
        length = max(ends[row] - starts[row], 0)
        live = np.empty(length, np.uint32)
        for i in range(length):
            live[i] = canonical_bits(logits[row, starts[row] + i])
        if length > k:
            cutoff = find_cutoff(live, digit_bits, stable, k, steps[row, 0])
            if stable:
                emitted = collect_in_row_order(live, cutoff, indices[row])
            else:
                emitted = collect_by_arrival(live, cutoff, indices[row])
            if steps.shape[3] > 0:
                steps[row, 0, cutoff.num_digits - 1, 5] = emitted
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
    tie_break: str = "any",
    order: str = "any",
    trace: bool = False,
) -> Selection:
    """Select as the AITER kernel does, pass by pass.

    Parameters
    ----------
    variant : str or Variant
        ``"aiter_one_block"``, or the same with changed policy fields, as
        `topk_lab.schedules.parse_variant` reads them.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides.
    k : int
        At least 1; it may exceed num_cols.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    tie_break : {"any", "lowest"}
    order : {"any", "index"}
        "lowest" or "index": a stable answer, which keeps both promises.
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
    >>> from topk_lab.reference import aiter
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0, 1.0]], np.float32)
    >>> aiter.select("aiter_one_block", row, 3).indices[0].tolist()
    [1, 3, 4]
    >>> aiter.select("aiter_one_block", row, 4).indices[0].tolist()
    [1, 3, 5, 4]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    variant.require_policy(schedules.OneBlockPolicy)
    check_word("tie_break", tie_break, TIE_BREAKS)
    check_word("order", order, ("any", "index"))
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    records = empty_trace(num_rows, 1, NUM_DIGIT_PASSES) if trace else None
    words = trace_words(records, num_rows, 1, NUM_DIGIT_PASSES)
    num_logits = int(np.maximum(ends - starts, 0).sum())
    select_one_block(
        num_rows,
        num_logits,
        live,
        starts,
        ends,
        variant.policy.digit_bits,
        tie_break == "lowest" or order == "index",
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
