"""How does the delegate selection find the k best logits of a row, if it reads the row once?

The twin of ``kernels/include/topk_lab/delegate_kernels.hpp`` and the headers around it: each
function here has the name of the device function that it mirrors, the same condition before it and
the same after it. What a thread keeps matters in one place alone, the groups of keys that bound the
cut: there threads take fours of delegates, or quads of the row, in turns.

1. A row of at most k live columns is its own answer.
2. A row that a block does not keep whole is cut into segments, counted from the line of memory that
   it begins in. The greatest key of each is its delegate.
3. A cut is found that at least k delegates pass, or k logits of a whole row, and not many more: the
   k-th of the greatest keys of groups of them is about one. The segments whose delegates pass are
   listed. Where they are too many, the cut becomes the k-th delegate's, as near as they fit; where
   too many are equal to it, the lowest of these make k segments.
4. The logits that pass, if few, are told apart alone, as items. Of a cut that is one key those
   above it pass: where they are fewer than k, the lowest of what is equal to it fill the answer up.
5. Otherwise all that are listed are told apart, and where more are equal at the k-th than can be
   compared, once more, with segments that rise.

In how many launches that is done, and where the delegates are meanwhile, changes nothing of it. A
call whose rows have kernels of their own by length takes for each row the member that has it.

To tell keys apart means to narrow the range in which the k-th lies, 256 bins a pass, until what is
left is wanted whole or can be compared, each with each. The lowest indices win ties.

Source: delegate-centric top-k is Gaihre et al., "Dr. Top-k" (SC 2021).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from topk_lab import schedules
from topk_lab.contract.words import ORDERS, TIE_BREAKS, check_word
from topk_lab.keys import (
    MOST_GROUP_PASSES,
    NEG_INF_BITS,
    NUM_DELEGATE_PASSES,
    canonical_bits,
    canonical_key,
)
from topk_lab.reference.key_range import (
    COMPARED_TIES,
    GREATEST_KEY,
    INF_KEY,
    LOWEST_KEY,
    UNCOUNTED,
    KeyRange,
    PassRecords,
    contains,
    is_one_key,
    narrow_once,
    narrow_range,
    record_end,
    tighten,
)
from topk_lab.reference.rows import ROW_LIST, ROWS, row_bits, row_bounds, row_kernel, whole_k
from topk_lab.reference.trace_record import Selection, empty_trace, trace_words
from topk_lab.schedules import Variant

__all__ = ["select"]

TURN = 3  # by so many in 16 a thread goes on from one of its quads to the next
ITEMS_FOCUS = 2  # bins are spent on the lowest quarter of a range of items


class Member(NamedTuple):
    """What a `topk_lab.schedules.DelegatePolicy` comes to in a twin."""

    block_size: int
    segment: int  # columns of one
    held: int  # delegates that a thread keeps
    groups: int  # of a thread's keys
    joined_groups: int  # of these that are one where wider ones will do
    segment_capacity: int
    whole_columns: int
    item_capacity: int
    loose_groups: int


class Segments(NamedTuple):
    """A row and where its segments lie."""

    keys: np.ndarray  # (length,) uint32, of the live logits
    lead: int  # columns of the first segment that lie before the row
    size: int  # columns of a segment
    count: int  # segments that hold a live column


class KeptRow(NamedTuple):
    """The logits that a block keeps: whole quads, and those of the row that lie beside any.

    These are six at most, and kept whether their segment is listed or not.
    """

    keys: np.ndarray  # (num,) uint32
    positions: np.ndarray  # (num,) int32
    quads: np.ndarray  # (num,) int32, the place of its quad among all that are kept; -1 beside any
    head: int  # logits of the row before its first whole quad
    tail: int  # position behind its last whole quad
    num_whole: int  # of those kept, the first ones, that lie in whole quads


# ---- step "delegates" ----------------------------------------------------------------------------


@njit
def reduce_segments(row, maxima):
    """Step "delegates": the greatest key of each segment, the row read once.

    Parameters
    ----------
    row : Segments
    maxima : (count,) uint32
        Written.
    """
    for segment in range(row.count):
        begin = segment * row.size - row.lead
        greatest = np.uint32(0)
        for position in range(max(begin, 0), min(begin + row.size, row.keys.size)):
            greatest = max(greatest, row.keys[position])
        maxima[segment] = greatest


@njit
def load_kept(row, listed):
    """Keep the logits of listed segments, one after another, and those beside whole quads.

    Parameters
    ----------
    row : Segments
    listed : (num,) int64
        Segments; all of them where a row is kept whole.

    Returns
    -------
    KeptRow
        Those before the first whole quad come behind all quads, those behind the last come last.
    """
    misplaced = row.lead % 4
    length = row.keys.size
    # All of the row begins where its first quad does.
    first = row.lead // 4 if listed.size == row.count else 0
    head = min(-misplaced % 4, length)
    tail = max((length + misplaced) // 4 * 4 - misplaced, head)
    positions = np.empty(min(listed.size * row.size, length) + head + length - tail, np.int32)
    quads = np.full(positions.size, -1, np.int32)
    num = 0
    for i in range(listed.size):
        begin = listed[i] * row.size - row.lead
        for position in range(max(begin, head), min(begin + row.size, tail)):
            positions[num] = position
            quads[num] = (i * row.size + position - begin) // 4 - first
            num += 1
    num_whole = num
    for position in range(head):
        positions[num] = position
        num += 1
    for position in range(tail, length):
        positions[num] = position
        num += 1
    positions = positions[:num]
    return KeptRow(row.keys[positions], positions, quads[:num], head, tail, num_whole)


# ---- step "cut" ----------------------------------------------------------------------------------


@njit
def greatest_delegates(maxima, member):
    """The greatest delegate of each group of each thread; threads take four neighbours in turns.

    From run to run of those that are kept, they change groups.

    Parameters
    ----------
    maxima : (count,) uint32
    member : Member

    Returns
    -------
    (block_size * groups,) uint32
        0 for a group of none.
    """
    groups = np.zeros(member.block_size * member.groups, np.uint32)
    for i in range(maxima.size):
        run = i // (4 * member.block_size)
        turned = 5 * run if 4 * run < member.held else 0
        thread = i // 4 % member.block_size
        group = thread * member.groups + (i % 4 + turned) % member.groups
        groups[group] = max(groups[group], maxima[i])
    return groups


@njit
def greatest_kept(kept, misplaced, member):
    """The greatest logit of each group of each thread; threads take quads in turns, which turn.

    Parameters
    ----------
    kept : KeptRow
        A whole row, or segments that rise.
    misplaced : int64
        Columns that lie before the row on the 16 bytes that it begins in.
    member : Member

    Returns
    -------
    (block_size * groups,) uint32
        0 for all groups of a thread without a logit. A thread whose one logit lies beside quads has
        -inf in the groups that it leaves empty: a lower bound stays one.
    """
    groups = np.zeros(member.block_size * member.groups, np.uint32)
    for i in range(kept.keys.size):
        position = np.int64(kept.positions[i])
        group = 0
        if i < kept.num_whole:
            place = np.int64(kept.quads[i])
            turn = place // member.block_size
            thread = (place // 16 * 16 + (place - TURN * turn) % 16) % member.block_size
            group = (4 * turn + (position + misplaced) % 4) % member.groups
        elif position < kept.head:
            thread = position
        else:
            thread = 4 + position - kept.tail
        first = thread * member.groups
        if groups[first] == 0:
            groups[first : first + member.groups] = LOWEST_KEY
        groups[first + group] = max(groups[first + group], kept.keys[i])
    return groups


@njit
def bound_of_groups(groups, member, k, records):
    """Step "cut": a key that the k-th is at least: the k-th of the greatest keys of groups.

    Where groups of -inf alone are needed to make k, it is -inf.

    Parameters
    ----------
    groups : (block_size * groups,) uint32
        Any key is in one at most.
    member : Member
    k : int64
    records : PassRecords

    Returns
    -------
    bound : KeyRange
        Its `low` is that key. It is one key where many may share it, so that it may well be the
        k-th itself: -inf, or where the range begins, or all that passes left. The range begins with
        the least of the groups' keys, those of -inf aside; or with that of fewer, wider groups, of
        which there are still k.
    top : int64
        The greatest key.
    """
    begin = GREATEST_KEY
    floor = GREATEST_KEY
    top = LOWEST_KEY
    for first in range(0, groups.size, member.joined_groups):
        joined = 0
        for i in range(first, first + member.joined_groups):
            key = np.int64(groups[i])
            joined = max(joined, key)
            if key > LOWEST_KEY:
                begin = min(begin, key)
        floor = min(floor, joined)
        top = max(top, joined)
    begin = floor if floor > LOWEST_KEY else begin
    lowest = KeyRange(LOWEST_KEY, LOWEST_KEY, 0, UNCOUNTED)
    if top == LOWEST_KEY:
        return lowest, top
    span = KeyRange(begin, top, 0, UNCOUNTED)
    # A bin of many leaves the bound far below the k-th of them.
    for number in range(MOST_GROUP_PASSES):
        span = narrow_once(groups, span, k, 0, records)
        if span.inside <= member.loose_groups or number == MOST_GROUP_PASSES - 1:
            break
        span = tighten(groups, span)
        if is_one_key(span):
            break
    if span.above + span.inside < k:
        return lowest, top
    is_shared = span.low == begin or (is_one_key(span) and span.inside > member.loose_groups)
    return KeyRange(span.low, span.low if is_shared else top, 0, UNCOUNTED), top


# ---- step "choose" -------------------------------------------------------------------------------


@njit
def can_be_gathered(span, segment_capacity):
    """Whether there is room for all segments that reach a range: (KeyRange, int64) -> bool."""
    return span.inside <= segment_capacity - span.above


@njit
def can_be_compared(span, k):
    """Whether no pass is needed: all of a range is wanted, or little: (KeyRange, int64) -> bool."""
    return span.above + span.inside == k or span.inside <= COMPARED_TIES


@njit
def list_segments(maxima, floor, listed):
    """Step "choose": list the segments whose delegates are at least `floor`.

    Parameters
    ----------
    maxima : (count,) uint32
    floor : int64
    listed : (segment_capacity,) int64
        Written.

    Returns
    -------
    int64
        How many there are, those that found no place included.
    """
    num = 0
    for segment in range(maxima.size):
        if maxima[segment] >= floor:
            if num < listed.size:
                listed[num] = segment
            num += 1
    return num


@njit
def list_in_order(maxima, cut, at_cut, expected, listed):
    """Step "choose": list the segments above a cut, and of those at it the first, as they come.

    Parameters
    ----------
    maxima : (count,) uint32
    cut : int64
    at_cut : int64
        How many of those at the cut.
    expected : int64
        How many in all: no more than there is room for.
    listed : (segment_capacity,) int64
        Written.
    """
    above = 0
    equal = 0
    segment = 0
    while above + min(equal, at_cut) < expected:
        if maxima[segment] > cut:
            listed[above + min(equal, at_cut)] = segment
            above += 1
        elif maxima[segment] == cut:
            if equal < at_cut:
                listed[above + equal] = segment
            equal += 1
        segment += 1


@njit
def choose_segments(maxima, bound, top, member, k, listed, records):
    """Step "choose": the segments to be read again.

    Those whose delegates pass the bound; where they are too many, those of a narrower cut. Where
    that is one key, those above it alone: `list_in_order` adds the others.

    Parameters
    ----------
    maxima : (count,) uint32
    bound : KeyRange
    top : int64
        As `bound_of_groups` returns them.
    member : Member
    k : int64
    listed : (segment_capacity,) int64
        Written.
    records : PassRecords

    Returns
    -------
    cut : KeyRange
        At least k delegates reach its `low`.
    one_key : bool
        Whether more of them may than are listed, which are then above it.
    at_cut : int64
        How many segments at the cut are wanted, if not all.
    num : int64
        How many are listed.
    """
    cut = KeyRange(bound.low, top, 0, UNCOUNTED)
    one_key = is_one_key(bound)
    at_cut = UNCOUNTED
    num = list_segments(maxima, bound.low + one_key, listed)
    if num > member.segment_capacity:
        cut = narrow_range(maxima, cut, k, False, can_be_gathered, member.segment_capacity, records)
        if not can_be_gathered(cut, member.segment_capacity):
            at_cut = k - cut.above
        one_key = at_cut != UNCOUNTED or is_one_key(cut)
        num = list_segments(maxima, cut.low + (at_cut != UNCOUNTED), listed)
    elif one_key and num < k:
        at_cut = k - num
    elif one_key:
        cut = KeyRange(bound.low + 1, top, 0, UNCOUNTED)
        one_key = False
    return cut, one_key, at_cut, num


@njit
def list_items(kept, bar, item_capacity):
    """Step "choose": the logits above a bar, to be told apart where they are few.

    Parameters
    ----------
    kept : KeptRow
    bar : int64
        None passes one that is below the keys of all, or above those of all but NaN.
    item_capacity : int64

    Returns
    -------
    items : (at most item_capacity,) int64
        Which of those kept.
    num : int64
        How many there are, those that found no place included.
    """
    items = np.empty(item_capacity, np.int64)
    num = 0
    if LOWEST_KEY <= bar < INF_KEY:
        for i in range(kept.keys.size):
            if kept.keys[i] > bar:
                if num < item_capacity:
                    items[num] = i
                num += 1
    return items[: min(num, item_capacity)], num


@njit
def write_best_ties(keys, positions, above, answer):
    """Write the best of the ties behind what is above them: of equal ones the lowest positions.

    Before: ``above < k <= above + ties``. After: the slots ``[above, k)`` are filled.

    Parameters
    ----------
    keys : (ties,) uint32
    positions : (ties,) int32
    above : int64
    answer : (k,) int32
        Written.
    """
    for tie in range(keys.size):
        slot = above
        for other in range(keys.size):
            if keys[other] > keys[tie] or (
                keys[other] == keys[tie] and positions[other] < positions[tie]
            ):
                slot += 1
        if slot < answer.size:
            answer[slot] = positions[tie]


@njit
def write_winners(keys, positions, span, answer):
    """Write what is above a range, and the best of what is inside if that can be compared.

    Parameters
    ----------
    keys : (num,) uint32
    positions : (num,) int32
    span : KeyRange
        Narrowed.
    answer : (k,) int32
        Written: all slots, or the first `above` of them.
    """
    takes_all = span.above + span.inside == answer.size
    compared = can_be_compared(span, answer.size) and not takes_all
    tie_keys = np.empty(COMPARED_TIES, np.uint32)
    tie_positions = np.empty(COMPARED_TIES, np.int32)
    written = 0
    ties = 0
    for i in range(keys.size):
        inside = contains(span, np.int64(keys[i]))
        if keys[i] > span.top or (takes_all and inside):
            answer[written] = positions[i]
            written += 1
        elif compared and inside:
            tie_keys[ties] = keys[i]
            tie_positions[ties] = positions[i]
            ties += 1
    if compared:
        write_best_ties(tie_keys[:ties], tie_positions[:ties], span.above, answer)


@njit
def write_best_items(keys, positions, span, answer, records):
    """Write the k best of the items.

    The k-th key of few enough items lies near their cut: the first pass spends its bins there. More
    equal ones than can be compared are told apart by their positions.

    Parameters
    ----------
    keys : (num_items,) uint32
    positions : (num_items,) int32
    span : KeyRange
        Holds all of them, k at least.
    answer : (k,) int32
        Written.
    records : PassRecords
    """
    k = answer.size
    # A floor that is no bound says nothing of where they lie.
    is_bound = span.low > LOWEST_KEY + 1
    if not is_bound:
        span = tighten(keys, span)
    if not can_be_compared(span, k) and not is_one_key(span):
        span = narrow_once(keys, span, k, ITEMS_FOCUS if is_bound else 0, records)
    span = narrow_range(keys, span, k, False, can_be_compared, k, records)
    if can_be_compared(span, k):
        write_winners(keys, positions, span, answer)
        return
    # The lowest first; what is above them comes before all, what is below behind.
    equal = span.low
    places = np.zeros(keys.size, np.uint32)
    for i in range(keys.size):
        if keys[i] == equal:
            places[i] = GREATEST_KEY - 1 - positions[i]
        elif keys[i] > equal:
            places[i] = GREATEST_KEY
    span = KeyRange(1, GREATEST_KEY - 1, span.above, span.inside)
    none = PassRecords(np.empty((NUM_DELEGATE_PASSES, 0), np.uint32), np.zeros(1, np.int64))
    span = narrow_range(places, span, k, False, can_be_compared, k, none)
    write_winners(places, positions, span, answer)


@njit
def write_equal(kept, cut, above, answer):
    """Write those of the kept logits that equal `cut`, the lowest positions first.

    Before: the positions of the quads rise, and the slots ``[0, above)`` are filled. After: all
    are.

    Parameters
    ----------
    kept : KeptRow
    cut : int64
    above : int64
    answer : (k,) int32
        Written.
    """
    slot = above
    behind = kept.num_whole + kept.head
    # What lies before the first whole quad comes first, what lies behind the last comes last.
    for first, last in (
        (kept.num_whole, behind),
        (0, kept.num_whole),
        (behind, kept.keys.size),
    ):
        for i in range(first, last):
            if slot < answer.size and kept.keys[i] == cut:
                answer[slot] = kept.positions[i]
                slot += 1


# ---- rows ----------------------------------------------------------------------------------------


@njit
def tell_apart(
    row, maxima, listed, expected, in_order, kept, cut, at_cut, span, is_tight, answer, records
):
    """Write the k best of all that is listed, whatever its size.

    Where more logits are equal than can be compared, the lowest of them are wanted, so that their
    segments have to rise.

    Parameters
    ----------
    row : Segments
    maxima : (count,) uint32
        Empty where the row is kept whole.
    listed : (segment_capacity,) int64
        Written where they have to rise.
    expected : int64
        How many of them there are then.
    in_order : bool
        Whether they do.
    kept : KeptRow
        Of those that are listed.
    cut : KeyRange
    at_cut : int64
        As `choose_segments` returns them.
    span : KeyRange
        Holds the k-th key, and all that are above it.
    is_tight : bool
        Whether it spans no more than there is.
    answer : (k,) int32
        Written.
    records : PassRecords
    """
    k = answer.size
    whole = span
    if at_cut == UNCOUNTED or in_order:
        span = narrow_range(kept.keys, span, k, is_tight, can_be_compared, k, records)
    if not in_order and not can_be_compared(span, k):
        list_in_order(maxima, cut.low, at_cut, expected, listed)
        kept = load_kept(row, listed[:expected])
        span = narrow_range(kept.keys, whole, k, is_tight, can_be_compared, k, records)
    record_end(records, k)
    write_winners(kept.keys, kept.positions, span, answer)
    if not can_be_compared(span, k):
        write_equal(kept, span.low, span.above, answer)


@njit
def choose_positions(row, member, answer, records):
    """Write the k best of a row of more than k logits.

    Parameters
    ----------
    row : Segments
    member : Member
    answer : (k,) int32
        Written.
    records : PassRecords
    """
    k = answer.size
    misplaced = row.lead % 4
    whole = row.keys.size <= member.whole_columns
    if whole:
        listed = np.arange(row.count)
        num = row.count
        maxima = np.empty(0, np.uint32)
        kept = load_kept(row, listed)
        bound, top = bound_of_groups(greatest_kept(kept, misplaced, member), member, k, records)
        cut = KeyRange(bound.low, top, 0, UNCOUNTED)
        one_key = is_one_key(bound)
        at_cut = UNCOUNTED
    else:
        listed = np.empty(member.segment_capacity, np.int64)
        maxima = np.empty(row.count, np.uint32)
        reduce_segments(row, maxima)
        bound, top = bound_of_groups(greatest_delegates(maxima, member), member, k, records)
        cut, one_key, at_cut, num = choose_segments(maxima, bound, top, member, k, listed, records)
        kept = load_kept(row, listed[:num])
    # Of a cut that is one key, those above it may do.
    low = cut.low
    bar = low - (not one_key)
    items, num_items = list_items(kept, bar, member.item_capacity)
    in_order = whole
    if num_items > member.item_capacity > 0 and not whole and is_one_key(bound):
        # The least of the delegates' groups is far below the k-th: groups of what was gathered
        # bound it anew.
        list_in_order(maxima, cut.low, UNCOUNTED if at_cut == UNCOUNTED else 0, num, listed)
        in_order = True
        kept = load_kept(row, listed[:num])
        bound, top = bound_of_groups(greatest_kept(kept, misplaced, member), member, k, records)
        low = bound.low
        one_key = is_one_key(bound)
        bar = low - (not one_key)
        items, num_items = list_items(kept, bar, member.item_capacity)
    expected = num if at_cut == UNCOUNTED else k
    if k <= num_items <= member.item_capacity:
        span = KeyRange(bar + 1, top, 0, num_items)
        write_best_items(kept.keys[items], kept.positions[items], span, answer, records)
        record_end(records, k)
        return
    if one_key and low != INF_KEY and num_items < k and num_items <= member.item_capacity:
        # They are among the k best, and what is left is equal.
        answer[:num_items] = kept.positions[items]
        if not in_order:
            list_in_order(maxima, cut.low, at_cut, expected, listed)
            kept = load_kept(row, listed[:expected])
        record_end(records, k)
        write_equal(kept, low, num_items, answer)
        return
    span = KeyRange(bar + 1 if num_items >= k else low, top, 0, UNCOUNTED)
    is_tight = low > LOWEST_KEY
    tell_apart(
        row, maxima, listed, expected, in_order, kept, cut, at_cut, span, is_tight, answer, records
    )


@njit
def order_answer(keys, by_value, answer):
    """Step "order": sort an answer's slots.

    Parameters
    ----------
    keys : (length,) uint32
        Of the row.
    by_value : bool
        Whether the greatest come first, and equal ones by index; else the lowest index does.
    answer : (min(k, length),) int32
        Written.
    """
    order = np.empty(answer.size, np.uint64)
    for slot in range(answer.size):
        index = np.uint64(answer[slot])
        key = keys[index] if by_value else np.uint32(GREATEST_KEY)
        order[slot] = np.uint64(np.uint32(~key)) << np.uint64(32) | index
    order.sort()
    for slot in range(answer.size):
        answer[slot] = order[slot] & np.uint64(0xFFFFFFFF)


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    ROW_LIST,
    types.NamedUniTuple(types.int64, len(Member._fields), Member),
    types.int64,
    types.int32[:, ::1],
    types.uint32[:, ::1],
    types.uint32[:, :, :, ::1],
)
def select_by_delegates(
    first, last, logits, starts, ends, leads, member, order, indices, bits, steps
):
    """Select the k best of each row: the launches. Slots are `paging.transform_pages`' to write.

    `order` is the place in `ORDERS` of the one that is asked for.
    """
    k = indices.shape[1]
    for row in range(first, last):
        length = max(ends[row] - starts[row], 0)
        keys = np.empty(length, np.uint32)
        for i in range(length):
            keys[i] = canonical_key(logits[row, starts[row] + i])
        if length > k:
            count = (leads[row] + length + member.segment - 1) // member.segment
            segments = Segments(keys, leads[row], member.segment, count)
            records = PassRecords(steps[row, 0], np.zeros(1, np.int64))
            choose_positions(segments, member, indices[row], records)
        else:
            for slot in range(k):
                indices[row, slot] = slot if slot < length else -1
        if order > 0:
            order_answer(keys, order == 2, indices[row, : min(k, length)])
        for slot in range(k):
            index = indices[row, slot]
            if index >= 0:
                bits[row, slot] = canonical_bits(logits[row, starts[row] + index])
            else:
                bits[row, slot] = NEG_INF_BITS


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
    """Select as the kernels of the delegate selection do, pass by pass.

    Parameters
    ----------
    variant : str or Variant
        ``"delegate"``, or one of its members by name, as `topk_lab.schedules.parse_variant` reads
        it.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides. Segments are counted from where a row lies in memory, so that records
        of a trace may depend on it; the logits that are kept don't.
    k : int
        Within [1, 4096], and no more than a member takes that is asked for.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    tie_break : {"any", "lowest"}
        The lowest indices win ties, whatever is asked for.
    order : {"any", "index", "value"}
        "value": descending, equal values by index.
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
    >>> from topk_lab.reference import delegate
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0, 1.0]], np.float32)
    >>> delegate.select("delegate", row, 3, order="index").indices[0].tolist()
    [1, 3, 4]
    >>> delegate.select("delegate", row, 4, order="value").indices[0].tolist()
    [1, 3, 4, 5]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    variant.require_policy(schedules.DelegateChoice)
    check_word("tie_break", tie_break, TIE_BREAKS)
    check_word("order", order, ORDERS)
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    refusal = schedules.gate_refusal(variant.name, num_rows, num_cols, k)
    if refusal:
        raise ValueError(refusal)
    row_stride, column_stride = live.strides
    begins = live.ctypes.data + np.arange(num_rows) * row_stride + starts * column_stride
    lengths = np.maximum(ends - starts, 0)
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    records = empty_trace(num_rows, 1, NUM_DELEGATE_PASSES) if trace else None
    words = trace_words(records, num_rows, 1, NUM_DELEGATE_PASSES)
    for part in schedules.delegate_parts(variant, num_rows, num_cols, k):
        mine = (part.least_length <= lengths) & (lengths <= part.most_length)
        whole = mine.all()
        rows = (live, starts, ends, begins, indices, bits, words)
        if not whole:
            rows = tuple(one[mine] for one in rows)
        select_by_delegates(
            len(rows[0]),
            int(lengths[mine].sum()),
            *rows[:3],
            rows[3] // live.itemsize % part.policy.segment,
            Member(*(getattr(part.policy, field) for field in Member._fields)),
            ORDERS.index(order),
            *rows[4:],
        )
        if not whole:
            for all_of, some in zip((indices, bits, words), rows[4:], strict=True):
                all_of[mine] = some
    no_splits = (num_rows, 0, k)
    return Selection(
        indices,
        bits.view(np.float32),
        np.ones(num_rows, np.int64),
        np.empty(no_splits, np.int32),
        np.empty(no_splits, np.float32),
        records,
    )
