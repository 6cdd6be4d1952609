"""How many atomics does a block make of a histogram pass, and how many on its fullest bin?

The twin of ``kernels/include/topk_lab/bin_counter.hpp``. A histogram is the same however logits are
added to it; what differs is how many atomics that takes, and how many of them meet at one address.
So threads and waves are followed here in the order in which ``for_each_logit`` hands them logits
(``row_slice.hpp``), for waves of AMD's 64 lanes.

Two counts are made. *Source*: the atomics that the source code asks for. *Compiled*: the lanes that
execute one, for clang adds up what the lanes of a wave add to one uniform address, and lets a
single lane do it: the count of -inf logits that each thread kept back. The histogram's atomics are
all that is counted: where logits were presumed to be equal and are not, waves say so by one more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from topk_lab.contract.words import positive_int
from topk_lab.keys import (
    NEG_INF_BITS,
    NUM_BINS,
    NUM_STEPS,
    canonical_bits,
    step_bin,
    step_matches,
)
from topk_lab.schedules import INCREMENTS, TopKPolicy

__all__ = ["LANES", "PassAtomics", "pass_atomics"]

LANES = 64

WAVE, CROWD = INCREMENTS.index("wave"), INCREMENTS.index("crowd")
NATIVE = "crowd"  # on AMD targets


class PassAtomics(NamedTuple):
    """Non-returning LDS atomics of one histogram pass of one block.

    Attributes
    ----------
    hot_bin : int
        The fullest bin of the pass, the first of several.
    source, source_hot : int
        Atomics that the source asks for; those on the hot bin.
    compiled, compiled_hot : int
        Lanes that execute one in code for AMD targets; those on the hot bin.
    """

    hot_bin: int
    source: int
    source_hot: int
    compiled: int
    compiled_hot: int


@njit
def _position(visit, thread, head, quads, length, block_size):
    """Position of a thread's logit at a visit, or -1: four visits a round, and one for the rest."""
    rounds = (quads + block_size - 1) // block_size
    if visit < 4 * rounds:
        quad = visit // 4 * block_size + thread
        return head + 4 * quad + visit % 4 if quad < quads else -1
    tail = head + 4 * quads
    if thread >= head + length - tail:
        return -1
    return thread if thread < head else tail + thread - head


@njit
def _look(bins, positions, crowded_bin, kept, crowded, hot_bin):
    """What a wave makes of the bins of its next logits: (atomics, those on the hot bin)."""
    shared_bin = -1
    active = as_before = sharers = 0
    for lane in range(LANES):
        looked = bins[positions[lane]] if positions[lane] >= 0 else -1
        if looked >= 0:
            active += 1
            if shared_bin < 0:
                shared_bin = looked
            as_before += looked == crowded_bin[lane]
            sharers += looked == shared_bin
    enough = (active + 3) // 4
    total = hot = 0
    for lane in range(LANES):
        if positions[lane] < 0 or bins[positions[lane]] < 0:
            continue
        crowded[lane] = as_before >= enough or sharers >= enough
        if crowded[lane] and as_before < enough:
            if kept[lane] > 0:
                total += 1
                hot += crowded_bin[lane] == hot_bin
            crowded_bin[lane] = shared_bin
            kept[lane] = 0
    return total, hot


@njit
def _add(bins, positions, increments, crowded_bin, kept, crowded, hot_bin):
    """A wave adds a logit of each lane: (atomics, those on the hot bin)."""
    shared_bin = -1
    total = hot = 0
    for lane in range(LANES):
        added_bin = bins[positions[lane]] if positions[lane] >= 0 else -1
        if added_bin < 0:
            continue
        if increments == CROWD and crowded[lane] and added_bin == crowded_bin[lane]:
            kept[lane] += 1
            continue
        if increments == WAVE:
            if added_bin == shared_bin:
                continue
            if shared_bin < 0:
                shared_bin = added_bin
        total += 1
        hot += added_bin == hot_bin
    return total, hot


@njit
def _count(bits, bins, head, block_size, count_neg_inf, increments, neg_inf_bin, hot_bin):
    """Follow a block through a pass; bins are -1 where the prefix does not match.

    Returns the atomics, those on the hot bin, and the threads and waves that add -inf logits which
    they kept back.
    """
    quads = (bits.size - head) // 4
    rounds = (quads + block_size - 1) // block_size
    total = hot = threads = waves = 0
    positions = np.empty(LANES, np.int64)
    for wave in range(0, block_size, LANES):
        crowded_bin = np.full(LANES, neg_inf_bin)
        kept = np.zeros(LANES, np.int64)
        crowded = np.zeros(LANES, np.bool_)
        has_neg_inf = np.zeros(LANES, np.bool_)
        for visit in range(4 * rounds + 1):
            for lane in range(LANES):
                position = _position(visit, wave + lane, head, quads, bits.size, block_size)
                if position >= 0 and count_neg_inf and bits[position] == NEG_INF_BITS:
                    has_neg_inf[lane] = has_neg_inf[lane] or bins[position] >= 0
                    position = -1
                positions[lane] = position
            if increments == CROWD and visit % 4 == 0 and visit < 4 * rounds:
                made = _look(bins, positions, crowded_bin, kept, crowded, hot_bin)
                total += made[0]
                hot += made[1]
            made = _add(bins, positions, increments, crowded_bin, kept, crowded, hot_bin)
            total += made[0]
            hot += made[1]
        shared = False
        for lane in range(LANES):
            if kept[lane] == 0 or (shared and crowded_bin[lane] == crowded_bin[0]):
                continue
            shared = shared or crowded_bin[lane] == crowded_bin[0]
            total += 1
            hot += crowded_bin[lane] == hot_bin
        threads += has_neg_inf.sum()
        waves += has_neg_inf.any()
    return total, hot, threads, waves


@njit
def _bins(logits, step, prefix):
    """Canonical bits, bins (-1 where the prefix does not match), and the fullest of these."""
    bits = np.empty_like(logits)
    bins = np.full(logits.size, -1, np.int64)
    histogram = np.zeros(NUM_BINS, np.int64)
    for i in range(logits.size):
        bits[i] = canonical_bits(logits[i])
        if step_matches(step, bits[i], prefix):
            bins[i] = step_bin(step, bits[i])
            histogram[bins[i]] += 1
    return bits, bins, np.argmax(histogram)


def pass_atomics(
    logits: np.ndarray, policy: TopKPolicy, step: int = 0, prefix: int = 0
) -> PassAtomics:
    """Count the atomics of one histogram pass.

    Parameters
    ----------
    logits : (length,) float32 array, contiguous
        A block's share of a row. How it is aligned to 16 bytes decides which thread takes which.
    policy : TopKPolicy
        How they are added.
    step : int, default 0
        Radix step.
    prefix : int, default 0
        Key bits fixed before it.

    Returns
    -------
    PassAtomics

    Raises
    ------
    TypeError
        Logits that are not float32, a policy of another lineage, or a step or prefix that is no
        int.
    ValueError
        Logits of another shape, a step that there is not, a prefix that is no uint32, or a block
        that is not made of whole waves.

    Examples
    --------
    >>> import numpy as np
    >>> from topk_lab import schedules
    >>> from topk_lab.reference.increments import pass_atomics
    >>> masked = np.full(16_384, -np.inf, np.float32)
    >>> made = pass_atomics(masked, schedules.POLICIES["vllm_k512"])
    >>> made.source, made.compiled
    (1024, 16)
    """
    if not isinstance(policy, TopKPolicy):
        raise TypeError(f"policy must be a TopKPolicy, got {type(policy).__name__}")
    step = positive_int("step", step, NUM_STEPS - 1, least=0)
    prefix = positive_int("prefix", prefix, 2**32 - 1, least=0)
    if logits.dtype != np.float32:
        raise TypeError(f"logits must be float32, got {logits.dtype}")
    if logits.ndim != 1 or not logits.flags.c_contiguous:
        raise ValueError(f"logits must have shape (length,), contiguous, got {logits.shape}")
    if policy.block_size < 1 or policy.block_size % LANES:
        raise ValueError(
            f"block_size must be a multiple of {LANES} threads, got {policy.block_size}"
        )
    head = min(-(logits.ctypes.data // logits.itemsize) % 4, logits.size)
    bits, bins, hot_bin = _bins(logits.view(np.uint32), step, np.uint32(prefix))
    neg_inf_bin = int(step_bin(step, NEG_INF_BITS))
    total, hot, threads, waves = _count(
        bits,
        bins,
        head,
        policy.block_size,
        policy.count_neg_inf,
        INCREMENTS.index(NATIVE if policy.increments == "native" else policy.increments),
        neg_inf_bin,
        hot_bin,
    )
    on_hot = int(hot_bin) == neg_inf_bin
    return PassAtomics(
        hot_bin=int(hot_bin),
        source=int(total + threads),
        source_hot=int(hot + on_hot * threads),
        compiled=int(total + waves),
        compiled_hot=int(hot + on_hot * waves),
    )
