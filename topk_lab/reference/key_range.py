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
    "GREATEST_KEY",
    "INF_KEY",
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
INF_KEY = 0xFF800000
GREATEST_KEY = 0xFFFFFFFF

MANTISSA_BITS = 23
ONE_OCTAVE = 1 << MANTISSA_BITS
LEAST_EXPONENT = 24  # of the magnitudes that fixed-point numbers are scaled to

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

    How many places below the range's top, shifted right. Keys above that are in the first bin too.
    """

    exponent: int  # greatest of a logit that is told apart, where places are by value; else 0
    low: int  # place of the lowest key
    top: int  # places that the greatest key is above it, or a lower one
    shift: int


class RankedBin(NamedTuple):
    """The bin that holds the key of a rank: ``above < rank <= above + population``."""

    bin: int
    population: int
    above: int


class PassRecords(NamedTuple):
    """The trace of a row."""

    steps: np.ndarray  # (passes, TRACE_WORDS) uint32; (passes, 0) if nothing is recorded
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
def has_both_signs(span):
    """Whether logits below and above zero are in a range: KeyRange -> bool."""
    return span.low < ZERO_KEY < span.top


@njit
def value_exponent(span):
    """Exponent of the greatest magnitude in a range of both signs: KeyRange -> int64.

    What isn't finite says nothing of the magnitudes.
    """
    upper = 0 if span.top > GREATEST_FINITE_KEY else span.top - ZERO_KEY
    lower = 0 if span.low <= LOWEST_KEY else ZERO_KEY - 1 - span.low
    return max(max(upper, lower) >> MANTISSA_BITS, LEAST_EXPONENT)


@njit
def key_bins(span, exponent, focus):
    """Cut a range into bins: (KeyRange, int64, int64) -> KeyBins.

    Where a range has both signs, most of its keys are those of tiny magnitudes, but few of its
    logits are: with an `exponent`, places are those of the logits as fixed-point numbers. Bins are
    spent on the lowest ``2**-focus`` of the range.
    """
    low = place_of(exponent, span.low)
    top = (place_of(exponent, span.top) - low) >> focus
    bits = 0
    while top >> bits:
        bits += 1
    return KeyBins(exponent, low, top, max(bits - RANGE_BITS, 0))


@njit
def place_of(exponent, key):
    """Where a key stands among all: (int64, int64) -> int64.

    By value, a magnitude is a fixed-point number of 24 bits, and all bits of that are turned if it
    is negative. One beyond `exponent` is taken for the next number, and so is a NaN.
    """
    if exponent == 0:
        return key
    negative = key < ZERO_KEY
    magnitude = ZERO_KEY - 1 - key if negative else key - ZERO_KEY
    own = magnitude >> MANTISSA_BITS
    mantissa = magnitude & (ONE_OCTAVE - 1) | (ONE_OCTAVE if own > 0 else 0)
    place = mantissa >> min(exponent - max(own, 1), 63) if own <= exponent else 2 * ONE_OCTAVE
    return ~place if negative else place


@njit
def first_key_of(exponent, place):
    """The lowest key of a place that is no negative logit's: (int64, int64) -> int64."""
    bits = 0
    while place >> bits:
        bits += 1
    if bits == 0:
        return ZERO_KEY
    own = exponent + bits - (MANTISSA_BITS + 1)
    mantissa = (place << (MANTISSA_BITS + 2 - bits)) >> 1
    return ZERO_KEY + (own << MANTISSA_BITS) + (mantissa & (ONE_OCTAVE - 1))


@njit
def bin_of(bins, key):
    """Bin of a key in the range: (KeyBins, int64) -> int64 in [0, 256)."""
    return max(bins.top - (place_of(bins.exponent, key) - bins.low), 0) >> bins.shift


@njit
def lowest_key_at(bins, at):
    """The lowest key so many places above the lowest one: (KeyBins, int64) -> int64."""
    place = bins.low + at
    if bins.exponent == 0:
        return place
    if place < 0:
        return GREATEST_KEY - first_key_of(bins.exponent, ~place + 1) + 1
    return first_key_of(bins.exponent, place)


@njit
def greatest_key_at(bins, at):
    """The greatest key so many places above the lowest one: (KeyBins, int64) -> int64."""
    place = bins.low + at
    if bins.exponent == 0:
        return place
    if place < 0:
        return GREATEST_KEY - first_key_of(bins.exponent, ~place)
    return first_key_of(bins.exponent, place + 1) - 1


@njit
def find_ranked_bin(histogram, rank):
    """The bin that holds the rank-th key.

    Before: ``0 < rank``. After: ``above < rank <= above + population``, where `above` is the
    population of all earlier bins, for exactly one bin; or, if there are fewer keys, the last one.

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
    while ranked < RANGE_BINS - 1 and above + np.int64(histogram[ranked]) < rank:
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
def narrow_in(bins, keys, span, k, records):
    """Step "cut": one pass.

    Before: ``low < top``, and the k-th key is in the range. After: the range is what the threshold
    bin holds.

    Parameters
    ----------
    bins : KeyBins
        Of the range.
    keys : (num,) uint32
    span : KeyRange
    k : int64
    records : PassRecords

    Returns
    -------
    KeyRange
    """
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
def narrow_once(keys, span, k, focus, records):
    """One pass with bins of logits evenly far apart where the range has both signs, else of keys.

    Parameters
    ----------
    keys : (num,) uint32
    span : KeyRange
    k : int64
    focus : int64
        As for `key_bins`.
    records : PassRecords

    Returns
    -------
    KeyRange
    """
    exponent = value_exponent(span) if has_both_signs(span) else 0
    return narrow_in(key_bins(span, exponent, focus), keys, span, k, records)


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
def narrow_range(keys, span, k, is_tight, enough, limit, records):
    """Step "cut": passes until ``enough(range, limit)``, or the range is one key.

    Each begins with the keys that are there, the first one if `is_tight` doesn't tell that they
    span the range, and makes the range 256 times smaller.

    Parameters
    ----------
    keys : (num,) uint32
    span : KeyRange
    k : int64
    is_tight : bool
    enough : compiled function
        `can_be_gathered` or `can_be_compared`.
    limit : int64
        Its second argument.
    records : PassRecords

    Returns
    -------
    KeyRange
    """
    while not enough(span, limit):
        if not is_tight:
            span = tighten(keys, span)
        is_tight = False
        if is_one_key(span):
            break
        span = narrow_in(key_bins(span, 0, 0), keys, span, k, records)
    return span
