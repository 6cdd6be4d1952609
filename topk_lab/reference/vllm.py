"""How do the vLLM kernels find the k best logits of a row, step by step?

The twin of ``kernels/include/topk_lab/``: each function here has the name of the device function
that it mirrors, the same condition before it and the same after it. A block visits its logits in
the order of their positions (on a device the order is free), so the lowest indices win ties,
except that +0.0 stays above -0.0 as in the kernels.

1. A slice of at most k live columns is its own answer.
2. Otherwise up to four radix steps: a histogram, the threshold bin, a collection, until the
   threshold bin is small enough to be ordered as final items or, in step 3, holds equal logits.
3. With splits, blocks do that for shares of the row and leave k positions and logits each; the
   same steps over these give the row's answer.

Source: vLLM ``csrc/libtorch_stable/sampler.cu`` before and after #56743.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit, types

from topk_lab import schedules
from topk_lab.contract import UNWRITTEN
from topk_lab.keys import (
    NEG_INF_BITS,
    NUM_BINS,
    NUM_STEPS,
    PAD_BITS,
    canonical_bits,
    complement_key,
    extend_prefix,
    step_bin,
    step_matches,
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

FINAL_PAD_KEYS = {
    "after_all": PAD_BITS,
    "neg_inf": NEG_INF_BITS,
    "neg_flt_max": np.finfo(np.float32).min.view(np.uint32),
}

DIGIT_BITS = 4
NUM_DIGITS = 1 << DIGIT_BITS


class StepPolicy(NamedTuple):
    """What of a `TopKPolicy` the steps look at."""

    final_capacity: int
    rank_count_limit: int  # more final items than this are sorted
    final_pad_key: np.uint32
    count_neg_inf: bool
    fits_rule: bool
    equal_shortcut: bool


class Threshold(NamedTuple):
    """The bin that holds the k-th logit: ``above < k <= above + bin_size``."""

    bin: int
    bin_size: int  # its population
    above: int  # logits ordered before it, those selected by earlier steps included


class FinalItems(NamedTuple):
    """Candidates, as many as the threshold bin holds, or none where it does not fit."""

    keys: np.ndarray  # (bin_size,) uint32, complement keys
    positions: np.ndarray  # (bin_size,) int32, within the slice


class Selected(NamedTuple):
    """The selected logits of a slice."""

    positions: np.ndarray  # (k,) int32, within the slice; -1 for a pad
    bits: np.ndarray  # (k,) uint32


STEP_POLICY = types.NamedTuple(
    (types.int64, types.int64, types.uint32, types.boolean, types.boolean, types.boolean),
    StepPolicy,
)


@njit
def histogram_step(step, prefix, logits, count_neg_inf, histogram):
    """Step "histogram": how many logits fall into each bin.

    After: ``histogram[b]`` is the number of logits that match the prefix and fall into bin b. With
    `count_neg_inf` the -inf logits are counted apart and added once: the totals are the same, a
    device is spared one atomic each on a single address (`topk_lab.reference.increments` says how
    many it makes).

    Parameters
    ----------
    step : int64
    prefix : uint32
    logits : (length,) uint32
        Bits; a NaN is canonical, a pad may be among them.
    count_neg_inf : bool
    histogram : (2048,) uint32
        Written.
    """
    for histogram_bin in range(NUM_BINS):
        histogram[histogram_bin] = 0
    neg_inf_count = np.uint32(0)
    for i in range(logits.size):
        bits = logits[i]
        if step_matches(step, bits, prefix):
            if count_neg_inf and bits == NEG_INF_BITS:
                neg_inf_count = np.uint32(neg_inf_count + np.uint32(1))
            else:
                histogram[step_bin(step, bits)] += np.uint32(1)
    if neg_inf_count > 0:
        histogram[step_bin(step, NEG_INF_BITS)] += neg_inf_count


@njit
def find_threshold_bin(histogram, found, k):
    """Step "threshold bin": the bin that holds the k-th logit.

    Before: ``found < k <= found + sum(histogram)``. After: ``above < k <= above + bin_size``, where
    `above` is `found` and the population of all earlier bins; exactly one bin qualifies.

    Parameters
    ----------
    histogram : (2048,) uint32
    found : int64
        Slots that earlier steps handed out.
    k : int64

    Returns
    -------
    Threshold
    """
    above = found
    threshold_bin = 0
    while above + np.int64(histogram[threshold_bin]) < k:
        above += np.int64(histogram[threshold_bin])
        threshold_bin += 1
    return Threshold(threshold_bin, np.int64(histogram[threshold_bin]), above)


@njit
def final_bin_fits(step, prefix, threshold, policy):
    """Whether the threshold bin may become final items: (int64, uint32, Threshold, ...) -> bool.

    It has to fit, and under the fits rule it must not be a bin that -inf falls into before step 3:
    masked logits are then left to step 3, which hands out slots to equal logits without any pad.
    """
    if threshold.bin_size > policy.final_capacity:
        return False
    neg_inf_bin = step_bin(step, NEG_INF_BITS)
    holds_neg_inf = threshold.bin == neg_inf_bin and step_matches(step, NEG_INF_BITS, prefix)
    return not (policy.fits_rule and step < NUM_STEPS - 1 and holds_neg_inf)


@njit
def collect(step, prefix, logits, threshold, fits, policy, found, selected, items):
    """Step "collect": logits above the threshold bin are selected, those in it become candidates.

    Before: ``above < k <= above + bin_size``. After: every logit above the threshold bin has a slot
    below `above`, unless this is a step 0 that leaves all to step 1, which starts from scratch and
    would select them again. Of the threshold bin, all are final items if it fits; if its logits are
    equal, they take the slots [above, k) in order.

    In step 3 they always are equal. With the shortcut they are presumed to be in each step in which
    the bin does not fit, and found out if they are not: the pass would select nothing of the bin
    otherwise. Nothing is lost then, since the next step hands out the same slots again.

    Parameters
    ----------
    step : int64
    prefix : uint32
    logits : (length,) uint32
    threshold : Threshold
    fits : bool
    policy : StepPolicy
    found : int64
        Slots handed out so far.
    selected : Selected
        Written.
    items : FinalItems
        Written if the bin fits, before step 3.

    Returns
    -------
    found : int64
        `above`, or 0 after a step 0 that leaves all to step 1.
    num_items : int64
        Final items.
    equal : bool
        Whether the logits of the threshold bin are known to be equal: the slots [above, k) are
        filled.
    """
    is_last = step == NUM_STEPS - 1
    ties = is_last or (policy.equal_shortcut and not fits)
    num_items = 0
    tie_cursor = threshold.above
    tie_bits = np.uint32(0)
    mixed = False
    for i in range(logits.size):
        bits = logits[i]
        if not step_matches(step, bits, prefix):
            continue
        logit_bin = step_bin(step, bits)
        if logit_bin < threshold.bin:
            if step > 0 or fits or ties:
                selected.positions[found] = i
                selected.bits[found] = bits
                found += 1
        elif logit_bin == threshold.bin:
            if ties:
                if tie_cursor == threshold.above:
                    tie_bits = bits
                mixed = mixed or bits != tie_bits
                if tie_cursor < selected.positions.size:
                    selected.positions[tie_cursor] = i
                    selected.bits[tie_cursor] = bits
                tie_cursor += 1
            elif fits:
                items.keys[num_items] = complement_key(bits)
                items.positions[num_items] = i
                num_items += 1
    equal = ties and not mixed
    if step == 0 and not fits and not equal:
        found = 0
    return found, num_items, equal


@njit
def rank_final_items(items, above, selected):
    """Order final items by rank: the number of items before each, by key, equal keys by place.

    After: the k - above best have the slots [above, k). No pads.
    """
    for item in range(items.keys.size):
        key = items.keys[item]
        slot = above
        for other in range(items.keys.size):
            other_key = items.keys[other]
            if other_key < key or (other_key == key and other < item):
                slot += 1
        if slot < selected.positions.size:
            selected.positions[slot] = items.positions[item]
            selected.bits[slot] = complement_key(key)


@njit
def sort_final_items(items, above, policy, selected):
    """Order final items by a stable radix sort of the whole buffer, least significant digit first.

    Places behind the items hold pads: the policy's key, position -1. After: the first k - above of
    the sorted buffer have the slots [above, k). A pad is among them only if its key orders before
    that of an item.
    """
    keys = np.empty(policy.final_capacity, np.uint32)
    positions = np.empty(policy.final_capacity, np.int32)
    for place in range(keys.size):
        is_item = place < items.keys.size
        keys[place] = items.keys[place] if is_item else policy.final_pad_key
        positions[place] = items.positions[place] if is_item else np.int32(-1)
    from_keys = np.empty(policy.final_capacity, np.uint32)
    from_positions = np.empty(policy.final_capacity, np.int32)
    for shift in range(0, 32, DIGIT_BITS):
        from_keys, keys = keys, from_keys
        from_positions, positions = positions, from_positions
        places = np.zeros(NUM_DIGITS + 1, np.int64)
        for item in range(keys.size):
            places[((from_keys[item] >> np.uint32(shift)) & np.uint32(NUM_DIGITS - 1)) + 1] += 1
        for digit in range(NUM_DIGITS):
            places[digit + 1] += places[digit]
        for item in range(keys.size):
            digit = (from_keys[item] >> np.uint32(shift)) & np.uint32(NUM_DIGITS - 1)
            keys[places[digit]] = from_keys[item]
            positions[places[digit]] = from_positions[item]
            places[digit] += 1
    for slot in range(above, selected.positions.size):
        selected.positions[slot] = positions[slot - above]
        selected.bits[slot] = complement_key(keys[slot - above])


@njit
def order_final_items(items, above, policy, selected):
    """Step "final items": candidates few enough to order on chip.

    Before: the final items are the threshold bin, ``above < k <= above + num_items``. After: the
    slots [above, k) hold its best.

    Parameters
    ----------
    items : FinalItems
    above : int64
    policy : StepPolicy
    selected : Selected
        Written from slot `above` on.
    """
    if items.keys.size <= policy.rank_count_limit:
        rank_final_items(items, above, selected)
    else:
        sort_final_items(items, above, policy, selected)


@njit
def select_row(logits, policy, selected, steps):
    """Select the k best of more than k logits, by one block: up to four radix steps.

    Before: ``len(logits) > k``. Before each step: `found` slots hold the logits that order before
    all that match the prefix, and ``found < k <= found + (number that match)``. After: the k slots
    hold distinct positions whose logits are the k best (and -1, under an unsound policy).

    Parameters
    ----------
    logits : (length,) uint32
        Bits; a NaN is canonical, a pad may be among them.
    policy : StepPolicy
    selected : Selected
        Written; k is its length.
    steps : (4, TRACE_WORDS) or (4, 0) uint32
        Trace of the block, written unless its records are empty.
    """
    k = selected.positions.size
    histogram = np.empty(NUM_BINS, np.uint32)
    prefix = np.uint32(0)
    found = np.int64(0)
    for step in range(NUM_STEPS):
        histogram_step(step, prefix, logits, policy.count_neg_inf, histogram)
        threshold = find_threshold_bin(histogram, found, k)
        fits = final_bin_fits(step, prefix, threshold, policy)
        capacity = threshold.bin_size if fits and step < NUM_STEPS - 1 else 0
        items = FinalItems(np.empty(capacity, np.uint32), np.empty(capacity, np.int32))
        found, num_items, equal = collect(
            step, prefix, logits, threshold, fits, policy, found, selected, items
        )
        if steps.shape[1] > 0:
            emitted = k if equal else found
            record_step(
                steps[step],
                step,
                prefix,
                threshold.bin,
                threshold.bin_size,
                threshold.above,
                emitted,
                num_items,
                fits,
            )
            record_histogram(steps[step], histogram)
        if fits and not equal:
            order_final_items(items, threshold.above, policy, selected)
        if fits or equal:
            break
        prefix = extend_prefix(step, prefix, threshold.bin)


WRITTEN = (
    types.int32[:, :, ::1],  # split_indices (num_rows, max_splits, k)
    types.uint32[:, :, ::1],  # split_bits (num_rows, max_splits, k)
    types.int32[:, ::1],  # indices (num_rows, k)
    types.uint32[:, ::1],  # bits (num_rows, k)
    types.uint32[:, :, :, ::1],  # steps (num_rows, max_splits + 1, 4, TRACE_WORDS or 0)
)


@row_kernel(
    ROWS,
    ROW_LIST,
    ROW_LIST,
    ROW_LIST,
    STEP_POLICY,
    *WRITTEN,
)
def select_splits(
    first,
    last,
    logits,
    starts,
    ends,
    active,
    policy,
    split_indices,
    split_bits,
    indices,
    bits,
    steps,
):
    """Select the k best of each row, or of each share of it: the first launch.

    After: a row with one active split has its answer; otherwise ``[row, y, :]`` of the workspace
    holds the k best of share y, as indices in the row. Shares are ``row_len // active`` long, the
    last one goes to the end. A slot without a logit is a pad: index -1, and pad bits.
    """
    k = indices.shape[1]
    for row in range(first, last):
        row_len = max(ends[row] - starts[row], 0)
        share = row_len // active[row]
        for split in range(active[row]):
            start = split * share
            length = row_len - start if split == active[row] - 1 else share
            slice_bits = np.empty(length, np.uint32)
            for i in range(length):
                slice_bits[i] = canonical_bits(logits[row, starts[row] + start + i])
            out_indices = indices[row] if active[row] == 1 else split_indices[row, split]
            out_bits = bits[row] if active[row] == 1 else split_bits[row, split]
            if length > k:
                select_row(slice_bits, policy, Selected(out_indices, out_bits), steps[row, split])
            else:
                for i in range(k):
                    out_indices[i] = i if i < length else -1
                    out_bits[i] = slice_bits[i] if i < length else PAD_BITS
            for slot in range(k):
                if out_indices[slot] < 0:
                    out_bits[slot] = PAD_BITS
                else:
                    out_indices[slot] += start


@row_kernel(ROW_LIST, STEP_POLICY, *WRITTEN)
def merge_splits(first, last, active, policy, split_indices, split_bits, indices, bits, steps):
    """Select the k best of what the splits of each row left: the second launch.

    Exact, because a logit among the k best of the row is among the k best of its share, and a pad
    orders after every logit. A row with one active split is left alone.
    """
    k = indices.shape[1]
    for row in range(first, last):
        if active[row] == 1:
            continue
        merged_bits = np.empty(active[row] * k, np.uint32)
        for entry in range(merged_bits.size):
            merged_bits[entry] = split_bits[row, entry // k, entry % k]
        block = steps.shape[1] - 1
        select_row(merged_bits, policy, Selected(indices[row], bits[row]), steps[row, block])
        for slot in range(k):
            entry = indices[row, slot]
            if entry >= 0:
                indices[row, slot] = split_indices[row, entry // k, entry % k]


def step_policy(variant: Variant, num_cols: int) -> StepPolicy:
    """Reduce a variant's policy to what the steps look at, for rows of a width."""
    policy = variant.policy
    final_order = policy.final_order
    # Narrow buffers launch another instance of the generic kernel.
    narrow = num_cols < schedules.GENERIC_RANK_COUNT_COLUMNS
    if variant.name == "vllm_generic" and narrow and "final_order" not in variant.changes:
        final_order = "rank_count"
    rank_count_limit = {
        "rank_count": policy.final_capacity,
        "radix_sort": 0,
        "by_size": schedules.RANK_COUNT_LIMIT,
    }[final_order]
    return StepPolicy(
        policy.final_capacity,
        rank_count_limit,
        FINAL_PAD_KEYS[policy.final_pad],
        policy.count_neg_inf,
        policy.fits_rule,
        policy.equal_shortcut,
    )


def select(
    variant: str | Variant,
    logits: object,
    k: int,
    starts: object = None,
    ends: object = None,
    *,
    trace: bool = False,
) -> Selection:
    """Select as a vLLM kernel does, step by step.

    Parameters
    ----------
    variant : str or Variant
        ``"vllm_generic"``, ``"vllm_k512"`` or ``"vllm_k512_uncrowded"``, policy fields changed as
        `topk_lab.schedules.parse_variant` reads them. An unsound policy is carried out as it is.
    logits : (num_rows, num_cols) float32 array or CPU tensor
        Scores, any strides.
    k : int
        512 for the k512 variants, 1 to 2048 for vllm_generic.
    starts, ends : (num_rows,) int array, optional
        Live columns [start, end) of each row, within [0, num_cols]. Default: whole rows.
    trace : bool
        Also record every step: 16 KiB each.

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
    >>> from topk_lab.reference import vllm
    >>> row = np.array([[0.5, 2.0, -np.inf, 2.0, 1.0]], np.float32)
    >>> sorted(vllm.select("vllm_generic", row, 3).indices[0].tolist())
    [1, 3, 4]
    """
    if not isinstance(variant, Variant):
        variant = schedules.parse_variant(variant)
    variant.require_policy(schedules.TopKPolicy)
    k = whole_k(k)
    live = row_bits(logits)
    num_rows, num_cols = live.shape
    starts, ends = row_bounds(starts, ends, num_rows, num_cols)
    refusal = schedules.gate_refusal(variant.name, num_rows, num_cols, k)
    if refusal:
        raise ValueError(refusal)
    lengths = np.maximum(ends - starts, 0)
    max_splits = schedules.max_splits(variant, num_rows, num_cols)
    distinct, which = np.unique(lengths, return_inverse=True)
    active = np.array(
        [schedules.active_splits(variant, num_rows, int(n), max_splits) for n in distinct],
        np.int64,
    )[which]
    workspace = (num_rows, max_splits if max_splits > 1 else 0, k)
    split_indices = np.full(workspace, UNWRITTEN, np.int32)
    split_logits = np.full(workspace, np.nan, np.float32)
    indices = np.empty((num_rows, k), np.int32)
    bits = np.empty((num_rows, k), np.uint32)
    records = empty_trace(num_rows, max_splits + 1, NUM_STEPS) if trace else None
    words = trace_words(records, num_rows, max_splits + 1, NUM_STEPS)
    policy = step_policy(variant, num_cols)
    written = (split_indices, split_logits.view(np.uint32), indices, bits, words)
    select_splits(num_rows, int(lengths.sum()), live, starts, ends, active, policy, *written)
    if max_splits > 1:
        merge_splits(num_rows, int(active.sum()) * k, active, policy, *written)
    bits[indices < 0] = NEG_INF_BITS
    return Selection(indices, bits.view(np.float32), active, split_indices, split_logits, records)
