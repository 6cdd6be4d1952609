"""How are the k greatest logits of a row found on a CPU, at about the speed of reading it?

1. A row of at most k live columns is its own answer.
2. A row of many more columns than k is cut into segments of 64, counted from its start. The
   greatest key of each is its delegate: one vectorised pass, the only one over the whole row.
3. A floor that at least k delegates reach, and few more, is found by halving the range of keys:
   each step counts the delegates of the upper half, vectorised. The segments that reach it are
   listed in order; where too many are equal to it, the first of these.
4. A row without delegates lists all segments. Its floor is one that k of 2k or more *groups* reach;
   a group is one lane of segments that lie far apart.
5. The listed segments are read again, and what reaches the floor is kept, in order. There is room
   for 2k + 1024: when it is full, the k best stay, and the floor rises above the least of them.
6. Of what is kept, halving finds the k best.

Work and storage are bounded on every input. Where most of the k segments reach the floor (in a
rising row, say), the first overflow raises it by groups of the listed segments; each overflow after
that has taken in more than k logits of the 64 (k + k / 8 + 8) that are listed.

Exact, and lowest indices first: k delegates at the floor are k distinct logits, so the k-th logit
reaches it, and all that do lie in listed segments, but for ties at a floor that is the k-th
delegate itself. The listed segments above it and the first equal ones then hold the lowest k of
these. Equal logits are kept in the order of their columns, and of equal ones the first stay.

Keys are uint32 that rise with the value, all lanes by the same four operations: -inf is 0, NaN of
either sign lies above +inf. That -0.0 lies just below +0.0 there, and that NaNs differ, is undone
where keys are compared with one another: `canonical`, `least_alike`, `next_above`.

Step 5 over the whole row, with no floor to begin with, is exact too. It was slower where it was
measured: of 262,144 normal logits and k = 512 it took twice the time, and where they rise twenty
times, as every one of them is kept for a while.

Source: delegate-centric top-k is Gaihre et al., "Dr. Top-k" (SC 2021); a bounded list under a
rising floor is DeepSelect's (deepseek-ai, 2026).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topk_lab.keys import NEG_INF_BITS

__all__ = [
    "SEGMENT",
    "Scratch",
    "has_delegates",
    "reduce_segments",
    "scratch_words",
    "select_row",
    "write_row",
]

SEGMENT = 64
GROUPS_PER_K = 2
DELEGATES_PER_K = 2  # with fewer a floor of delegates would be far below the k-th logit
ROOM = 1024  # for logits beyond 2 k

INF_KEY = 0xFF000001
NAN_KEY = INF_KEY + 1
ZERO_KEY = 0x7F800001
NEGATIVE_ZERO_KEY = ZERO_KEY - 1
BEYOND_KEYS = 1 << 32
ALL_ONES = np.uint64(2**64 - 1)

STEPS_PER_LOOK = 6

# Times a power of two, its upper six bits differ for each of the 64: which bit of a word is set.
DE_BRUIJN = 0x03F79D71B4CB0A89
BIT_NUMBERS = np.zeros(64, np.uint8)
BIT_NUMBERS[[(DE_BRUIJN << bit) % 2**64 >> 58 for bit in range(64)]] = range(64)


class Scratch(NamedTuple):
    """What a thread writes while it works on a row."""

    maxima: np.ndarray  # (num_segments,) uint32
    listed: np.ndarray  # int32, segments
    groups: np.ndarray  # uint32
    kept: np.ndarray  # uint64, see `candidate`


def has_delegates(length: int, k: int) -> bool:
    """Whether a row is long enough to be reduced to delegates."""
    return length >= DELEGATES_PER_K * SEGMENT * k


def scratch_sizes(num_cols: int, k: int, reduces: bool) -> tuple[int, int, int, int]:
    """Items of each array of `Scratch`; without delegates where others reduce the rows."""
    kept = min(k, num_cols)
    listed = DELEGATES_PER_K * kept + SEGMENT
    groups = (GROUPS_PER_K * kept + SEGMENT) // SEGMENT * SEGMENT
    maxima = num_cols // SEGMENT + 1 if reduces else 0
    return maxima, listed, groups, 2 * kept + ROOM


def scratch_words(num_cols: int, k: int, reduces: bool = True) -> int:
    """Words of 8 bytes that hold all of `Scratch`."""
    maxima, listed, groups, kept = scratch_sizes(num_cols, k, reduces)
    return (maxima + 1) // 2 + (listed + 1) // 2 + groups // 2 + kept


# Called here and from compiled functions.
_has_delegates = njit(has_delegates)
_scratch_sizes = njit(scratch_sizes)


@njit
def scratch_of(words, num_cols, k, reduces):
    """Cut `scratch_words` uint64 into a `Scratch`."""
    maxima, listed, groups, kept = _scratch_sizes(num_cols, k, reduces)
    first = words[: (maxima + 1) // 2]
    begin = first.size
    second = words[begin : begin + (listed + 1) // 2]
    begin += second.size
    third = words[begin : begin + groups // 2]
    begin += third.size
    return Scratch(
        first.view(np.uint32),
        second.view(np.int32),
        third.view(np.uint32),
        words[begin : begin + kept],
    )


# ---- keys ----------------------------------------------------------------------------------------


@njit
def rising_key(bits):
    """Key of a logit's bits: uint32 -> uint32. Rises with the value; -inf is 0, NaNs are last.

    Flipping the lower bits of negative ones orders them as signed integers; turning the range by
    what -inf then is leaves room for all NaNs above +inf.
    """
    negative = np.uint32(np.int32(bits) >> np.int32(31))
    flipped = np.uint32(bits ^ (negative & np.uint32(0x7FFFFFFF)))
    return np.uint32(flipped + np.uint32(0x7F800001))


@njit
def canonical(key):
    """Key with NaNs alike and zeros alike: uint32 -> uint32."""
    if key >= NAN_KEY:
        return np.uint32(NAN_KEY)
    return np.uint32(ZERO_KEY if key == NEGATIVE_ZERO_KEY else key)


@njit
def least_alike(key):
    """Least key of the values that a canonical key stands for: uint32 -> uint32."""
    return np.uint32(NEGATIVE_ZERO_KEY if key == ZERO_KEY else key)


@njit
def next_above(key):
    """Least key above the values that a canonical key stands for: uint32 -> int64."""
    return np.int64(BEYOND_KEYS if key >= NAN_KEY else np.int64(key) + 1)


@njit
def candidate(bits, column):
    """One number that orders a logit as the contract does: (uint32, int64) -> uint64.

    The canonical key above, the complement of the column below: of equal logits the first column is
    the greatest. No two of a row are equal.
    """
    key = np.uint64(canonical(rising_key(bits)))
    return (key << np.uint64(32)) | np.uint64(np.uint32(~np.uint32(column)))


@njit
def column_of(kept):
    """Column of a `candidate`: uint64 -> int64."""
    return np.int64(np.uint32(~np.uint32(kept & np.uint64(0xFFFFFFFF))))


# ---- vectorised passes ---------------------------------------------------------------------------


@njit
def reduce_segments(row, first, last, maxima):
    """Write the greatest key of each of the segments ``[first, last)``.

    Parameters
    ----------
    row : (length,) uint32
        Bits of the live logits.
    first, last : int64
        Whole segments of the row.
    maxima : (last or more,) uint32
        Written there: canonical keys.
    """
    for number in range(first, last):
        segment = row[number * SEGMENT : (number + 1) * SEGMENT]
        greatest = np.uint32(0)
        for lane in range(SEGMENT):
            greatest = max(greatest, rising_key(segment[lane]))
        maxima[number] = canonical(greatest)


@njit
def num_reaching(keys, floor):
    """How many keys are at least `floor`: (keys, one like them) -> int64."""
    num = 0
    for i in range(keys.size):
        num += keys[i] >= floor
    return num


@njit
def ends_of(keys, low, high):
    """The least key that is at least `low` and the greatest that is at most `high`."""
    least = high
    greatest = low
    for i in range(keys.size):
        key = keys[i]
        least = min(least, key if key >= low else high)
        greatest = max(greatest, key if key <= high else low)
    return least, greatest


@njit
def floor_of(keys, k, slack):
    """Find a key that at least k keys reach, and at most k + slack unless more are equal to it.

    Halves the range between the least and the greatest key; there are as many steps as a key has
    bits at most.

    Parameters
    ----------
    keys : (num,) uint32 or uint64
        At least k.
    k, slack : int64

    Returns
    -------
    floor : as the keys
        The k-th key itself, where more than k + slack reach it.
    num : int64
        How many reach it.
    """
    low, high = ends_of(keys, keys.dtype.type(0), keys.dtype.type(ALL_ONES))
    # At least k reach low; fewer than k are above high.
    num = keys.size
    step = 0
    while low < high and num > k + slack:
        step += 1
        if step % STEPS_PER_LOOK == 0:
            # Nothing lies in a wide gap, such as that between zero and what is above it.
            low, high = ends_of(keys, low, high)
        width = np.uint64(high - low)
        middle = keys.dtype.type(np.uint64(low) + (width >> np.uint64(1)) + (width & np.uint64(1)))
        reaching = num_reaching(keys, middle)
        if reaching >= k:
            low, num = middle, reaching
        else:
            high = keys.dtype.type(middle - keys.dtype.type(1))
    return low, num


# ---- steps ---------------------------------------------------------------------------------------


@njit
def slack_of(k):
    """How many segments more than k may be listed: a step of halving costs more than these."""
    return k // 8 + 8


@njit
def list_segments(maxima, k, listed):
    """List the segments whose delegates reach a floor that k of them reach.

    Returns
    -------
    floor : uint32
        Canonical.
    num : int64
        How many are listed, in order.
    """
    floor, num = floor_of(maxima, k, slack_of(k))
    wanted_at_floor = num
    if num > k + slack_of(k):
        wanted_at_floor = k - num_reaching(maxima, np.uint32(floor + np.uint32(1)))
    num = 0
    at_floor = 0
    for number in range(maxima.size):
        # Without a branch: every place is written, and counted if it is wanted.
        listed[num] = number
        equal = maxima[number] == floor
        num += (maxima[number] > floor) | (equal & (at_floor < wanted_at_floor))
        at_floor += equal
    return floor, num


@njit
def group_floor(row, listed, k, groups):
    """Find a floor that k logits of the listed segments reach: the k-th greatest of groups of them.

    Parameters
    ----------
    row : (length,) uint32
    listed : (num,) int32
        Whole segments.
    k : int64
    groups : (GROUPS_PER_K k or more,) uint32
        Written.

    Returns
    -------
    uint32
        Canonical; 0 where there are fewer than k columns.
    """
    turns = min(groups.size // SEGMENT, listed.size)
    used = groups[: turns * SEGMENT]
    if used.size < k:
        return np.uint32(0)
    used[:] = 0
    turn = 0
    for number in listed:
        segment = row[number * SEGMENT : (number + 1) * SEGMENT]
        group = used[turn * SEGMENT : (turn + 1) * SEGMENT]
        for lane in range(SEGMENT):
            group[lane] = max(group[lane], rising_key(segment[lane]))
        turn = turn + 1 if turn + 1 < turns else 0
    for i in range(used.size):
        used[i] = canonical(used[i])
    return floor_of(used, k, slack_of(k))[0]


@njit
def keep_best(kept, k):
    """Move the k greatest of what is kept to the front, in the order in which they are.

    Returns
    -------
    uint32
        Canonical key of the least of them.
    """
    floor, _ = floor_of(kept, k, 0)
    num = 0
    for i in range(kept.size):
        # Without a branch, that nothing could foretell: what is written too much is written over.
        one = kept[i]
        kept[num] = one
        num += one >= floor
    least = kept[0]
    for i in range(k):
        least = min(least, kept[i])
    return np.uint32(least >> np.uint64(32))


@njit
def keep_segments(row, listed, floor, kept, num):
    """Append what reaches a floor, segment by segment, while there is room for another one's.

    Parameters
    ----------
    row : (length,) uint32
    listed : (num_listed,) int32
        Segments, in order.
    floor : uint32
        Least key that is kept.
    kept : (room,) uint64
        Written behind what it holds.
    num : int64
        How many it holds.

    Returns
    -------
    done : int64
        How many segments were looked at.
    num : int64
    """
    done = 0
    while done < listed.size and num <= kept.size - SEGMENT:
        begin = np.int64(listed[done]) * SEGMENT
        segment = row[begin : begin + SEGMENT]
        # One word says all: a branch for each part of a segment would be foretold worse.
        left = np.uint64(0)
        for lane in range(SEGMENT):
            left |= np.uint64(rising_key(segment[lane]) >= floor) << np.uint64(lane)
        while left:
            lowest = left & (~left + np.uint64(1))
            lane = np.int64(BIT_NUMBERS[(lowest * np.uint64(DE_BRUIJN)) >> np.uint64(58)])
            kept[num] = candidate(segment[lane], begin + lane)
            num += 1
            left ^= lowest
        done += 1
    return done, num


@njit
def keep_listed(row, num_listed, floor, by_groups, k, scratch):
    """Keep what reaches a floor in the listed segments and behind the last whole one.

    Parameters
    ----------
    row : (length,) uint32
    num_listed : int64
        Of ``scratch.listed``.
    floor : uint32
        Canonical; at least k logits of those reach it.
    by_groups : bool
        Whether it is the best that groups come to.
    k : int64
    scratch : Scratch

    Returns
    -------
    int64
        How many are kept, k at least.
    """
    kept = scratch.kept
    listed = scratch.listed[:num_listed]
    lowest = np.int64(least_alike(floor))
    num = 0
    turn = 0
    while turn < num_listed and lowest < BEYOND_KEYS:
        done, num = keep_segments(row, listed[turn:], np.uint32(lowest), kept, num)
        turn += done
        if turn == num_listed:
            break
        higher = floor
        if not by_groups:
            by_groups = True
            higher = group_floor(row, listed, k, scratch.groups)
        if higher > floor:
            # Starting anew costs no more than what was kept so far.
            lowest = np.int64(least_alike(higher))
            num = 0
            turn = 0
        else:
            lowest = next_above(keep_best(kept[:num], k))
            num = k
    for column in range(row.size // SEGMENT * SEGMENT, row.size):
        if np.int64(rising_key(row[column])) >= lowest:
            if num == kept.size:
                lowest = next_above(keep_best(kept[:num], k))
                num = k
            kept[num] = candidate(row[column], column)
            num += 1
    return num


@njit
def select_row(row, k, scratch, reduced):
    """Keep the k greatest logits of a row, of equal ones the first, in the order of columns.

    Parameters
    ----------
    row : (length,) uint32
        Bits of the live logits; length > k.
    k : int64
    scratch : Scratch
        ``kept[:k]`` holds them then.
    reduced : bool
        Whether ``maxima`` holds the delegates already.
    """
    whole = row.size // SEGMENT
    by_groups = not _has_delegates(row.size, k)
    if not by_groups:
        maxima = scratch.maxima[:whole]
        if not reduced:
            reduce_segments(row, 0, whole, maxima)
        floor, num_listed = list_segments(maxima, k, scratch.listed)
    else:
        num_listed = whole
        for number in range(whole):
            scratch.listed[number] = number
        floor = group_floor(row, scratch.listed[:whole], k, scratch.groups)
    num = keep_listed(row, num_listed, floor, by_groups, k, scratch)
    if num > k:
        keep_best(scratch.kept[:num], k)


# ---- the answer ----------------------------------------------------------------------------------


@njit
def sort_by_value(kept, spare):
    """Order candidates from the greatest down, a byte at a time; bytes that are all alike are left.

    Parameters
    ----------
    kept, spare : (num,) uint64
        `kept` is ordered, `spare` written.
    """
    counts = np.zeros((8, 256), np.int64)
    for i in range(kept.size):
        for digit in range(8):
            counts[digit, (~kept[i] >> np.uint64(8 * digit)) & np.uint64(255)] += 1
    source = kept
    target = spare
    moved = False
    for digit in range(8):
        shift = np.uint64(8 * digit)
        if counts[digit, (~kept[0] >> shift) & np.uint64(255)] == kept.size:
            continue
        place = 0
        for value in range(256):
            num = counts[digit, value]
            counts[digit, value] = place
            place += num
        for i in range(kept.size):
            value = (~source[i] >> shift) & np.uint64(255)
            target[counts[digit, value]] = source[i]
            counts[digit, value] += 1
        source, target = target, source
        moved = not moved
    if moved:
        kept[:] = source


@njit
def write_row(row, num, k, by_value, scratch, indices, values):
    """Write the answer of a row: what is kept, then -1 and -inf.

    Parameters
    ----------
    row : (length,) uint32
    num : int64
        Logits of ``scratch.kept`` that are selected, in the order of columns.
    k : int64
    by_value : bool
        Else they stay in that order.
    scratch : Scratch
    indices : (k,) int32
        Written.
    values : (k,) or (0,) uint32
        Written, if there is room: bits of the logits.
    """
    kept = scratch.kept[:num]
    if by_value:
        sort_by_value(kept, scratch.kept[num : 2 * num])
    for i in range(num):
        indices[i] = column_of(kept[i])
    for i in range(num, k):
        indices[i] = -1
    if values.size:
        for i in range(num):
            values[i] = row[column_of(kept[i])]
        for i in range(num, k):
            values[i] = NEG_INF_BITS
