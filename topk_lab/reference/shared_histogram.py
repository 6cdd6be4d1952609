"""How do several blocks find the k best logits of a row, if its histogram is all that they share?

The twin of ``kernels/include/topk_lab/shared_kernels.hpp`` and the headers around it: each function
here has the name of the device function that it mirrors, the same condition before it and the same
after it. Blocks take their turns one after another, and each visits its logits in the order of
their positions (on a device both orders are free), so the lowest indices win ties.

1. A row of at most k live columns is its own answer.
2. Otherwise each block counts its chunk of the row by the upper 12 bits of the half key, and adds
   what it counted to the row's histogram.
3. Each block finds the same threshold bin in it, and reads its chunk once more: what is above the
   bin goes into the answer, what is in it to the row's list of ties.
4. The last block to have done so takes the best of the ties for the slots that are left: few are
   ranked, more are told apart by the digits of their keys' distance to the first key of the bin. A
   bin that is larger than the list is looked for in the row again: nothing is dropped.

Source: SGLang 0.5.23 ``topk_v2.cuh``, as it is for ROCm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from topk_lab import schedules
from topk_lab.keys import (
    HALF_REBIAS,
    NEG_INF_BITS,
    NUM_HALF_BINS,
    NUM_SHARED_STEPS,
    POS_INF_BITS,
    SIGN,
    canonical_bits,
    complement_key,
    half_bits,
    positive_zero,
)
from topk_lab.reference.aiter import Digit, KeyCutoff, find_digit_bin, fix_digit
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

HALF_INFINITY = 0x7C00
LEAST_NORMAL_HALF = 0x400
DIGIT_BITS = 12  # of the ties' keys


class HalfCutoff(NamedTuple):
    """What every block of a row finds out for itself: ``above < k <= above + bin_size``."""

    bin: int
    bin_size: int
    above: int  # winners: logits in better bins
    fits: bool  # the row's list holds the threshold bin


class KeyRange(NamedTuple):
    """The keys of a bin: ``[first, first + width)``."""

    first: np.uint32
    width: np.uint32


class Ties(NamedTuple):
    """Where the logits of the threshold bin are found: in the row's list, or in the row."""

    bits: np.ndarray  # (num,) uint32
    positions: np.ndarray  # (num,) int32, of these bits in the row


@njit
def half_bin(bits):
    """Bin of a logit: uint32 -> int64 in [0, 4096), the best first.

    The upper 12 bits of the complemented half key. A NaN must have gone through `canonical_bits`
    before; zeros are alike.
    """
    half = half_bits(positive_zero(bits))
    if not half & np.uint32(0x8000):
        half = np.uint32(~half & np.uint32(0x7FFF))
    return np.int64(half >> np.uint32(4))


@njit
def midpoint_above(half):
    """Bits of the float between a finite half without its sign and the next: int64 -> uint32.

    65520, the middle between the greatest half and 65536, where infinity begins, is one of them.
    """
    if half >= LEAST_NORMAL_HALF:
        return np.uint32((half << 13) + np.int64(HALF_REBIAS) + (1 << 12))
    # Subnormal halves count units of 2^-24: an odd number of 2^-25, its leading bit made implicit.
    odd = 2 * half + 1
    lead = 0
    while odd >> (lead + 1):
        lead += 1
    return np.uint32(((lead - 25 + 127) << 23) + ((odd << (23 - lead)) & 0x7FFFFF))


@njit
def half_bin_start(number):
    """The least complement key that falls into a bin or a worse one: int64 -> uint32.

    That of the greatest logit. A bin is the keys from its start up to the next bin's. Where bins
    begin the half is even without its sign, so that a float in the middle between two of them
    belongs to the bin of the greater magnitude.
    """
    if number == 0:
        return np.uint32(0)  # NaN, which has the bin for itself
    if number < NUM_HALF_BINS // 2:
        greatest = 0x7FFF - 16 * number
        if greatest >= HALF_INFINITY:
            return complement_key(POS_INF_BITS)
        return complement_key(np.uint32(midpoint_above(greatest) - np.uint32(1)))
    least = 16 * (number - NUM_HALF_BINS // 2)
    if least == 0:
        return np.uint32(SIGN + np.uint32(1))  # behind both zeros
    if least > HALF_INFINITY:
        return np.uint32(NEG_INF_BITS + np.uint32(1))
    return np.uint32(SIGN | midpoint_above(least - 1))


@njit
def keys_of_half_bin(number):
    """The keys of a bin: int64 -> KeyRange."""
    start = half_bin_start(number)
    return KeyRange(start, np.uint32(half_bin_start(number + 1) - start))


@njit
def count_half_bins(chunk, histogram):
    """Step "histogram": the half bins of a chunk of a row.

    Parameters
    ----------
    chunk : (length,) uint32
        Bits; a NaN is canonical.
    histogram : (4096,) uint32
        Written.
    """
    histogram[:] = 0
    for i in range(chunk.size):
        histogram[half_bin(chunk[i])] += np.uint32(1)


@njit
def add_to_row(histogram, row_histogram):
    """Step "histogram": add a chunk's to the row's, both (4096,) uint32."""
    for bin_number in range(histogram.size):
        if histogram[bin_number] > 0:
            row_histogram[bin_number] += histogram[bin_number]


@njit
def find_half_cutoff(row_histogram, tie_capacity, k):
    """Step "threshold bin": ((4096,) uint32, int64, int64) -> HalfCutoff.

    Before: the row, of more than k logits, is counted. After: ``above < k <= above + bin_size``.
    """
    found = find_digit_bin(row_histogram, k)
    return HalfCutoff(found.bin, found.bin_size, found.above, found.bin_size <= tie_capacity)


@njit
def collect_chunk(chunk, cutoff, winners, ties):
    """Step "collect": the winners of a chunk, and its logits of the threshold bin if these fit.

    A logit's bin is not computed again: its key is compared with where the threshold bin begins,
    and with where the next one does.

    Parameters
    ----------
    chunk : (length,) uint32
    cutoff : HalfCutoff
    winners, ties : (length,) int32
        Positions in the chunk. Written.

    Returns
    -------
    found, num_ties : int64
        How many of each there are.
    """
    start = half_bin_start(cutoff.bin)
    next_start = half_bin_start(cutoff.bin + 1)
    found = 0
    num_ties = 0
    for i in range(chunk.size):
        key = complement_key(positive_zero(chunk[i]))
        if key >= next_start:
            continue
        if key < start:
            winners[found] = i
            found += 1
        elif cutoff.fits:
            ties[num_ties] = i
            num_ties += 1
    return found, num_ties


@njit
def hand_in(winners, found, tied, num_ties, chunk, chunk_start, filled, positions, listed, ties):
    """Step "collect": a chunk's winners go into the answer, its ties to the row's list.

    Parameters
    ----------
    winners, tied : (length,) int32
        Positions in the chunk, of which the first `found`, `num_ties` are taken.
    found, num_ties : int64
    chunk : (length,) uint32
    chunk_start : int64
        Where the chunk begins in the row.
    filled, listed : int64
        Slots of the answer and places of the list that other chunks have taken.
    positions : (k,) int32
        Written from slot `filled` on.
    ties : Ties
        Written from place `listed` on.
    """
    for i in range(found):
        positions[filled + i] = chunk_start + winners[i]
    for i in range(num_ties):
        ties.bits[listed + i] = chunk[tied[i]]
        ties.positions[listed + i] = chunk_start + tied[i]


@njit
def rank_ties(ties, above, positions):
    """Step "ties": few of them, each counts those that order before it.

    Before: ``above < k <= above + ties``. After: the slots ``[above, k)`` hold the best of them.

    Parameters
    ----------
    ties : Ties
    above : int64
    positions : (k,) int32
        Written.
    """
    keys = np.empty(ties.bits.size, np.uint32)
    for i in range(keys.size):
        keys[i] = complement_key(positive_zero(ties.bits[i]))
    for own in range(keys.size):
        slot = above
        for other in range(keys.size):
            if keys[other] < keys[own] or (keys[other] == keys[own] and other < own):
                slot += 1
        if slot < positions.size:
            positions[slot] = ties.positions[own]


@njit
def count_tie_digits(ties, keys, cutoff, digit, histogram):
    """Step "ties": the next digits of those that agree with the prefix.

    Parameters
    ----------
    ties : Ties
        Among them logits of other bins, where these are all of a row.
    keys : KeyRange
    cutoff : KeyCutoff
        Of keys within the bin.
    digit : Digit
    histogram : (4096,) uint32
        Written.
    """
    histogram[:] = 0
    for i in range(ties.bits.size):
        key = np.uint32(complement_key(positive_zero(ties.bits[i])) - keys.first)
        if key < keys.width and key & cutoff.fixed == cutoff.prefix:
            histogram[np.int64(key >> np.uint32(digit.shift)) & digit.mask] += np.uint32(1)


@njit
def find_tie_cutoff(ties, keys, above, k, steps):
    """Step "ties": the k-th key within its bin, as much of it as matters.

    Before: ``above < k <= above + ties``. After: fewer than ``k - above`` ties order before the
    prefix; they, and `remaining_k` of those that agree with it, are the best of them. Either these
    are all that agree, or they are equal.

    Parameters
    ----------
    ties : Ties
    keys : KeyRange
    above, k : int64
    steps : (4, TRACE_WORDS) or (4, 0) uint32
        Trace of the row, written behind its first record unless its records are empty.

    Returns
    -------
    KeyCutoff
    """
    upper = 0
    while upper < 32 and np.int64(keys.width - np.uint32(1)) >> upper:
        upper += 1
    fixed = np.uint32(0xFFFFFFFF ^ ((1 << upper) - 1))
    cutoff = KeyCutoff(k, np.uint32(0), fixed, 0, k - above)
    histogram = np.empty(NUM_HALF_BINS, np.uint32)
    settled = False
    while not settled and upper > 0:
        shift = max(upper - DIGIT_BITS, 0)
        digit = Digit(shift, (1 << (upper - shift)) - 1)
        count_tie_digits(ties, keys, cutoff, digit, histogram)
        found = find_digit_bin(histogram, cutoff.remaining_k)
        prefix = cutoff.prefix
        cutoff = fix_digit(cutoff, digit, found.bin, found.above)
        settled = found.bin_size == cutoff.remaining_k
        upper = shift
        if steps.shape[1] > 0:
            words = steps[cutoff.num_digits]
            record_tie_pass(words, cutoff, prefix, found, settled or upper == 0)
            record_histogram(words, histogram)
    return cutoff


@njit
def record_tie_pass(words, cutoff, prefix, found, last):
    """Write what is known of a pass when its digit is fixed; no tie has a slot yet."""
    record_step(
        words,
        cutoff.num_digits,
        prefix,
        found.bin,
        found.bin_size,
        cutoff.k - cutoff.remaining_k,
        cutoff.k if last else 0,
        0 if last else found.bin_size,
        found.bin_size == cutoff.remaining_k,
    )


@njit
def collect_ties(ties, keys, cutoff, above, positions):
    """Step "ties": what orders before the prefix from the front, what agrees with it from the back.

    Before: the cutoff is found. After: the slots ``[above, k)`` are filled.

    Parameters
    ----------
    ties : Ties
    keys : KeyRange
    cutoff : KeyCutoff
    above : int64
    positions : (k,) int32
        Written.
    """
    found = above
    equal = 0
    for i in range(ties.bits.size):
        key = np.uint32(complement_key(positive_zero(ties.bits[i])) - keys.first)
        known = key & cutoff.fixed
        if key >= keys.width or known > cutoff.prefix:
            continue
        if known < cutoff.prefix:
            positions[found] = ties.positions[i]
            found += 1
        else:
            if equal < cutoff.remaining_k:
                positions[cutoff.k - 1 - equal] = ties.positions[i]
            equal += 1


@njit
def resolve_ties(ties, cutoff, rank_limit, positions, steps):
    """Step "ties": the best of the threshold bin take the slots that the winners left.

    Before: all chunks are handed in. After: the slots ``[above, k)`` hold the best of the bin.

    Parameters
    ----------
    ties : Ties
        The list, or the whole row if the list does not hold the bin.
    cutoff : HalfCutoff
    rank_limit : int64
        Up to so many are ranked, if the list holds them.
    positions : (k,) int32
        Written.
    steps : (4, TRACE_WORDS) or (4, 0) uint32
        Trace of the row, written behind its first record unless its records are empty.
    """
    if cutoff.fits and cutoff.bin_size <= rank_limit:
        rank_ties(ties, cutoff.above, positions)
        return
    keys = keys_of_half_bin(cutoff.bin)
    known = find_tie_cutoff(ties, keys, cutoff.above, positions.size, steps)
    collect_ties(ties, keys, known, cutoff.above, positions)


@njit
def record_half_cutoff(words, cutoff, emitted, candidates):
    """Write the record of a block that has handed in its chunk, or of the row."""
    record_step(
        words,
        0,
        np.uint32(0),
        cutoff.bin,
        cutoff.bin_size,
        cutoff.above,
        emitted,
        candidates,
        cutoff.fits,
    )


@njit
def count_shared(live, blocks, row_histogram, steps):
    """Count a row, chunk by chunk: the launch.

    Parameters
    ----------
    live : (length,) uint32
        Bits of the row; a NaN is canonical.
    blocks : int64
        That share the row.
    row_histogram : (4096,) uint32
        Written.
    steps : (blocks launched + 1, 4, TRACE_WORDS or 0) uint32
        Histograms are written unless the records are empty.
    """
    histogram = np.empty(NUM_HALF_BINS, np.uint32)
    row_histogram[:] = 0
    share = live.size // blocks
    for block in range(blocks):
        end = live.size if block == blocks - 1 else (block + 1) * share
        count_half_bins(live[block * share : end], histogram)
        add_to_row(histogram, row_histogram)
        if steps.shape[2] > 0:
            record_histogram(steps[block, 0], histogram)


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    ROW_LIST,
    types.int64,
    types.int64,
    types.int32[:, ::1],
    types.uint32[:, ::1],
    types.uint32[:, :, :, ::1],
)
def select_shared(
    first, last, logits, starts, ends, active, tie_capacity, rank_limit, indices, bits, steps
):
    """Count and select each row: both launches. Slots are `paging.transform_pages`' to write."""
    k = indices.shape[1]
    row_histogram = np.empty(NUM_HALF_BINS, np.uint32)
    for row in range(first, last):
        length = max(ends[row] - starts[row], 0)
        live = np.empty(length, np.uint32)
        for i in range(length):
            live[i] = canonical_bits(logits[row, starts[row] + i])
        if length > k:
            positions = indices[row]
            count_shared(live, active[row], row_histogram, steps[row])
            cutoff = find_half_cutoff(row_histogram, tie_capacity, k)
            num_listed = cutoff.bin_size if cutoff.fits else 0
            ties = Ties(np.empty(num_listed, np.uint32), np.empty(num_listed, np.int32))
            filled = 0
            listed = 0
            share = length // active[row]
            for block in range(active[row]):
                end = length if block == active[row] - 1 else (block + 1) * share
                chunk = live[block * share : end]
                winners = np.empty(chunk.size, np.int32)
                tied = np.empty(chunk.size, np.int32)
                found, num_ties = collect_chunk(chunk, cutoff, winners, tied)
                hand_in(
                    winners, found, tied, num_ties, chunk, block * share, filled, positions,
                    listed, ties,
                )  # fmt: skip
                filled += found
                listed += num_ties
                if steps.shape[3] > 0:
                    record_half_cutoff(steps[row, block, 0], cutoff, found, num_ties)
            if not cutoff.fits:
                ties = Ties(live, np.arange(length).astype(np.int32))
            row_steps = steps[row, steps.shape[1] - 1]
            if steps.shape[3] > 0:
                record_histogram(row_steps[0], row_histogram)
                ranked = cutoff.fits and cutoff.bin_size <= rank_limit
                candidates = 0 if ranked else cutoff.bin_size
                record_half_cutoff(row_steps[0], cutoff, k if ranked else cutoff.above, candidates)
            resolve_ties(ties, cutoff, rank_limit, positions, row_steps)
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
    trace: bool = False,
) -> Selection:
    """Select as the kernels do whose blocks share a row's histogram, step by step.

    Parameters
    ----------
    variant : str or Variant
        ``"shared_histogram"``, or the same with changed policy fields, as
        `topk_lab.schedules.parse_variant` reads them.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides.
    k : int
        1 to 4096; it may exceed num_cols.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    trace : bool
        Also record every step: 16 KiB each. Blocks of a row have a record each, of their chunk;
        the row's own come last: the half bins, and up to three digits of the ties.

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
    >>> from topk_lab.reference import shared_histogram
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0]], np.float32)
    >>> shared_histogram.select("shared_histogram", row, 3).indices[0].tolist()
    [1, 3, 4]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    variant.require_policy(schedules.SharedHistogramPolicy)
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    refusal = schedules.gate_refusal(variant.name, num_rows, num_cols, k)
    if refusal:
        raise ValueError(refusal)
    lengths = np.maximum(ends - starts, 0)
    launched = schedules.max_splits(variant, num_rows, num_cols)
    active = np.array(
        [
            schedules.active_splits(variant, num_rows, length, launched)
            for length in lengths.tolist()
        ],
        np.int64,
    )
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    records = empty_trace(num_rows, launched + 1, NUM_SHARED_STEPS) if trace else None
    words = trace_words(records, num_rows, launched + 1, NUM_SHARED_STEPS)
    select_shared(
        num_rows,
        int(lengths.sum()),
        live,
        starts,
        ends,
        active,
        variant.policy.tie_capacity,
        variant.policy.rank_limit,
        indices,
        bits,
        words,
    )
    no_splits = (num_rows, 0, k)
    return Selection(
        indices,
        bits.view(np.float32),
        active,
        np.empty(no_splits, np.int32),
        np.empty(no_splits, np.float32),
        records,
    )
