"""In which range does the k-th key lie? The cut of the delegate selection, pass by pass.

The twin of ``kernels/include/topk_lab/key_range.hpp`` and ``narrow_range.hpp``: each function here
has the name of the device function that it mirrors, the same condition before it and the same after
it. Keys are those of `topk_lab.keys.canonical_key`, which rise with the value.

1. The ends of a range move to the lowest and the greatest key that is in it.
2. Its keys are counted in 256 bins, the best first.
3. The bin that holds the k-th key is the range of the next pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topk_lab.keys import RANGE_BITS
from topk_lab.reference.trace_record import TRACE_STEP, record_histogram, record_step

__all__ = [
    "COMPARED_TIES",
    "GREATEST_FINITE_KEY",
    "GREATEST_KEY",
    "LOWEST_KEY",
    "UNCOUNTED",
    "KeyRange",
    "PassRecords",
    "contains",
    "is_one_key",
    "narrow_once",
    "narrow_range",
    "record_end",
    "tighten",
]

RANGE_BINS = 1 << RANGE_BITS
UNCOUNTED = 0x7FFFFFFF

ZERO_KEY = 0x80000000
LOWEST_KEY = 0x007FFFFF  # of -inf
GREATEST_FINITE_KEY = 0xFF7FFFFF
GREATEST_KEY = 0xFFFFFFFF

DEAD_OCTAVES = 3
ONE_OCTAVE = 1 << 23

COMPARED_TIES = 64  # so many keys of one bin are told apart by comparing each with each

EMITTED_WORD = TRACE_STEP.fields["emitted"][1] // 4


class KeyRange(NamedTuple):
    """Keys in [low, top]; ``above < k <= above + inside`` once a pass has counted them."""

    low: int
    top: int
    above: int  # keys above the top
    inside: int


class KeyBins(NamedTuple):
    """A monotone map of a range's keys onto bins, the best first.

    The distance below `top`, the dead zone skipped, shifted right. Keys above it are in the first
    bin too.
    """

    low: int
    dead_low: int  # keys in [dead_low, dead_high] are as one; both are the top where there are none
    dead_high: int
    top: int  # place of the greatest key, or of a lower one
    shift: int


class RankedBin(NamedTuple):
    """The bin that holds the key of a rank: ``above < rank <= above + population``."""

    bin: int
    population: int
    above: int


class PassRecords(NamedTuple):
    """The trace of a row."""

    steps: np.ndarray  # (22, TRACE_WORDS) uint32; (22, 0) where nothing is recorded
    number: np.ndarray  # (1,) int64, records made


@njit
def is_one_key(span):
    """Whether a range is a single key: KeyRange -> bool."""
    return span.low == span.top


@njit
def contains(span, key):
    """Whether a key is in question: (KeyRange, int64) -> bool."""
    return span.low <= key <= span.top


@njit
def key_bins(span, skip_tiny, focus):
    """Cut a range into bins: (KeyRange, bool, int64) -> KeyBins.

    Where a range has both signs, most of its keys are those of tiny magnitudes. With `skip_tiny`
    those below 2^-3 of its greatest magnitude are taken for one; a range that lies among them has
    none such the next time. Bins are spent on the lowest ``2**-focus`` of the range.
    """
    dead_low = span.top
    dead_high = span.top
    if skip_tiny and span.low < ZERO_KEY and span.top > ZERO_KEY:
        upper = span.top - ZERO_KEY
        lower = ZERO_KEY - 1 - span.low
        # What isn't finite says nothing of the magnitudes.
        if span.top > GREATEST_FINITE_KEY:
            upper = lower
        if span.low <= LOWEST_KEY:
            lower = upper
        dead = max(upper, lower) - DEAD_OCTAVES * ONE_OCTAVE
        if dead > 0 and ZERO_KEY - dead > span.low and ZERO_KEY + dead < span.top:
            dead_low = ZERO_KEY - dead
            dead_high = ZERO_KEY + dead
    top = place(KeyBins(span.low, dead_low, dead_high, 0, 0), span.top) >> focus
    bits = 0
    while top >> bits:
        bits += 1
    return KeyBins(span.low, dead_low, dead_high, top, max(bits - RANGE_BITS, 0))


@njit
def place(bins, key):
    """Where a key stands in its range, from 0: (KeyBins, int64) -> int64."""
    return min(key, bins.dead_low) - bins.low + max(key, bins.dead_high) - bins.dead_high


@njit
def bin_of(bins, key):
    """Bin of a key in the range: (KeyBins, int64) -> int64 in [0, 256)."""
    return max(bins.top - place(bins, key), 0) >> bins.shift


@njit
def lowest_key_at(bins, at):
    """The lowest key of a place: (KeyBins, int64) -> int64."""
    below = bins.dead_low - bins.low
    return bins.low + at if at <= below else bins.dead_high + at - below


@njit
def greatest_key_at(bins, at):
    """The greatest key of a place: (KeyBins, int64) -> int64."""
    below = bins.dead_low - bins.low
    return bins.low + at if at < below else bins.dead_high + at - below


@njit
def find_ranked_bin(histogram, rank):
    """The bin that holds the rank-th key.

    Before: ``0 < rank <= sum(histogram)``. After: ``above < rank <= above + population``, where
    `above` is the population of all earlier bins; exactly one bin qualifies.

    Parameters
    ----------
    histogram : (256,) uint32
    rank : int64

    Returns
    -------
    RankedBin
    """
    ranked = 0
    above = np.int64(0)
    while above + np.int64(histogram[ranked]) < rank:
        above += np.int64(histogram[ranked])
        ranked += 1
    return RankedBin(ranked, np.int64(histogram[ranked]), above)


@njit
def record_pass(records, histogram, low, found, above):
    """Write what a pass did, if passes are recorded; nothing is emitted yet."""
    if records.steps.shape[1] == 0:
        return
    number = records.number[0]
    words = records.steps[number]
    size = found.population
    record_step(words, number, low, found.bin, size, above, 0, size, size <= COMPARED_TIES)
    record_histogram(words, histogram)
    records.number[0] = number + 1


@njit
def record_end(records, k):
    """Write that the last pass that was made leads to k slots, if there was one."""
    if records.number[0] > 0:
        records.steps[records.number[0] - 1, EMITTED_WORD] = k


@njit
def narrow_once(keys, span, k, skip_tiny, focus, records):
    """Step "cut": one pass.

    Before: ``low < top``, and the k-th key is in the range. After: the range is what the threshold
    bin holds.

    Parameters
    ----------
    keys : (num,) uint32
    span : KeyRange
    k : int64
    skip_tiny : bool
    focus : int64
        As for `key_bins`.
    records : PassRecords

    Returns
    -------
    KeyRange
    """
    bins = key_bins(span, skip_tiny, focus)
    histogram = np.zeros(RANGE_BINS, np.uint32)
    for i in range(keys.size):
        key = np.int64(keys[i])
        if contains(span, key):
            histogram[bin_of(bins, key)] += np.uint32(1)
    found = find_ranked_bin(histogram, k - span.above)
    nearest = found.bin << bins.shift
    farthest = nearest + (1 << bins.shift) - 1
    low = lowest_key_at(bins, bins.top - farthest) if farthest < bins.top else span.low
    top = greatest_key_at(bins, bins.top - nearest) if found.bin > 0 else span.top
    above = span.above + found.above
    record_pass(records, histogram, span.low, found, above)
    return KeyRange(low, top, above, found.population)


@njit
def tighten(keys, span):
    """Bring a range's ends to the lowest and the greatest of its keys.

    Before: there is one.

    Parameters
    ----------
    keys : (num,) uint32
    span : KeyRange

    Returns
    -------
    KeyRange
    """
    low = GREATEST_KEY
    top = 0
    for i in range(keys.size):
        key = np.int64(keys[i])
        if contains(span, key):
            low = min(low, key)
            top = max(top, key)
    return KeyRange(low, top, span.above, span.inside)


@njit
def narrow_range(keys, span, k, enough, limit, records):
    """Step "cut": passes until ``enough(range, limit)``, or the range is one key.

    Each begins with the keys that are there, and makes the range 256 times smaller.

    Parameters
    ----------
    keys : (num,) uint32
    span : KeyRange
    k : int64
    enough : compiled function
        `can_be_gathered` or `can_be_compared`.
    limit : int64
        Its second argument.
    records : PassRecords

    Returns
    -------
    KeyRange
    """
    skip_tiny = True
    while not enough(span, limit):
        span = tighten(keys, span)
        if is_one_key(span):
            break
        span = narrow_once(keys, span, k, skip_tiny, 0, records)
        skip_tiny = False
    return span
