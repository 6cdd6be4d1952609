"""Which bin does a logit fall into, at each step of the radix descent?

Scalar functions on the bits of a float32, compiled by Numba when first used. They hold integers
only: no float16 is needed (Numba's CPU target has none), and a NaN keeps its bits.

Two keys order the same values in opposite directions. `order_key` rises with the value. The bins
of the vLLM kernels are cut from its complement, so that bin 0 holds the best values and a prefix
sum over bins counts what is better.

A row is descended in four steps:

====  =====================  ========  =======================  ============================
step  key                    bits      counted if               one bin holds
====  =====================  ========  =======================  ============================
0     float16, complemented  [15:5]    always                   1/32 octave (of float16)
1     float32, complemented  [31:21]   always                   1/4 octave
2     float32, complemented  [20:10]   bits [31:21] as found    1024 neighbouring floats
3     float32, complemented  [9:0]     bits [31:10] as found    one float
====  =====================  ========  =======================  ============================

The SGLang kernels cut 256 bins at a time from `order_key` itself, so that the best bin is the last:
the upper 8 bits of the float16 key first, then the float32 key from the top, 8 bits a pass. The
AITER kernels cut theirs from the complement, 12 or 11 bits a pass from the top.

Source: the bins are those of vLLM ``csrc/libtorch_stable/sampler.cu``, of SGLang
``csrc/elementwise/deepseek_v4_topk.cu`` and of AITER ``csrc/kernels/topk_per_row_kernels.cu``; the
rounding is IEEE 754's to nearest, ties to even.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "NAN_BITS",
    "NEG_INF_BITS",
    "NUM_BINS",
    "NUM_DELEGATE_PASSES",
    "NUM_DIGIT_BINS",
    "NUM_DIGIT_PASSES",
    "NUM_HALF_BINS",
    "NUM_PASSES",
    "NUM_SHARED_STEPS",
    "NUM_STEPS",
    "PAD_BITS",
    "RANGE_BITS",
    "canonical_bits",
    "canonical_key",
    "coarse_bin",
    "complement_key",
    "extend_prefix",
    "half_bits",
    "key_digit",
    "order_key",
    "positive_zero",
    "step_bin",
    "step_matches",
]

NUM_STEPS = 4
NUM_BINS = 2048

NUM_PASSES = 5  # of the SGLang lineage: coarse, and the four digits of the key
NUM_DIGIT_BINS = 256

NUM_DIGIT_PASSES = 3  # of the AITER lineage: 12 or 11 bits of the key each, the last what is left

NUM_SHARED_STEPS = 4  # of a shared histogram: half bins, and up to three digits of the ties' keys
NUM_HALF_BINS = 4096

# Bits of a key's place in its range that a pass of the delegate selection fixes. Passes are over
# groups of delegates and of logits, over items with a focus, then over delegates, items, and kept
# logits twice.
RANGE_BITS = 8
MOST_GROUP_PASSES = 3
NUM_DELEGATE_PASSES = 2 * MOST_GROUP_PASSES + 1 + 4 * -(-32 // RANGE_BITS)

# The one NaN: complement key 0, bin 0 in every step.
NAN_BITS = np.uint32(0x7FFFFFFF)
NEG_INF_BITS = np.uint32(0xFF800000)
# A place with no logit behind it: complement key 0xffffffff, last bin in every step, after -inf.
PAD_BITS = np.uint32(0xFFFFFFFF)

SIGN = np.uint32(0x80000000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
POS_INF_BITS = np.uint32(0x7F800000)

# Magnitudes, as float32 bits, at which rounding to float16 changes its form.
HALF_OVERFLOW = np.uint32(0x477FF000)  # 65520: from here on, infinity
HALF_NORMAL = np.uint32(0x38800000)  # 2^-14: from here on, a normal float16
HALF_ZERO = np.uint32(0x33000000)  # 2^-25: up to here, zero (the tie is even)
HALF_REBIAS = np.uint32((127 - 15) << 23)

# Numba widens every uint32 operation to 64 bits, hence the np.uint32() around each result.


@njit
def canonical_bits(bits):
    """Bits of a logit with every NaN made the same: uint32 -> uint32."""
    if bits & MAGNITUDE > POS_INF_BITS:
        return NAN_BITS
    return np.uint32(bits)


@njit
def complement_key(bits):
    """Key that falls as the value rises: uint32 -> uint32. Bits are taken as they are.

    A NaN must have gone through `canonical_bits` before: a negative one orders after -inf, which
    is how a pad does.
    """
    if bits & SIGN:
        return np.uint32(bits)
    return np.uint32(~bits & MAGNITUDE)


@njit
def order_key(bits):
    """Key that rises with the value: uint32 -> uint32.

    All NaNs are alike and the greatest. -0.0 stands just below +0.0, as in the kernels.
    """
    return np.uint32(~complement_key(canonical_bits(bits)))


@njit
def positive_zero(bits):
    """Bits with -0.0 made +0.0, for selections that tell no zeros apart: uint32 -> uint32."""
    return np.uint32(0) if bits == SIGN else np.uint32(bits)


@njit
def canonical_key(bits):
    """Key of the contract: `order_key` with both zeros alike, uint32 -> uint32."""
    if bits == SIGN:
        return order_key(np.uint32(0))
    return order_key(bits)


@njit
def half_bits(bits):
    """Bits of the nearest float16, ties to even: uint32 -> uint32 (upper half zero).

    A NaN becomes 0x7fff with its sign, whatever its payload.
    """
    sign = np.uint32((bits >> np.uint32(16)) & np.uint32(0x8000))
    magnitude = np.uint32(bits & MAGNITUDE)
    if magnitude >= HALF_OVERFLOW:
        if magnitude > POS_INF_BITS:
            return np.uint32(sign | np.uint32(0x7FFF))
        return np.uint32(sign | np.uint32(0x7C00))
    if magnitude >= HALF_NORMAL:
        kept = np.uint32(magnitude - HALF_REBIAS)
        dropped = np.uint32(13)
    elif magnitude > HALF_ZERO:
        # A float16 subnormal counts units of 2^-24; the implicit bit becomes explicit.
        kept = np.uint32((magnitude & np.uint32(0x7FFFFF)) | np.uint32(0x800000))
        dropped = np.uint32(np.uint32(126) - (magnitude >> np.uint32(23)))
    else:
        return sign
    # Just below one half in the dropped bits, or one half exactly if the kept part is odd: a
    # carry runs into the exponent by itself, up to infinity.
    below_half = np.uint32((np.uint32(1) << (dropped - np.uint32(1))) - np.uint32(1))
    odd = np.uint32((kept >> dropped) & np.uint32(1))
    return np.uint32(sign | ((kept + below_half + odd) >> dropped))


@njit
def step_bin(step, bits):
    """Bin of a logit at a step: (int64, uint32) -> int64 in [0, 2048), or [0, 1024) at step 3.

    Bits are taken as they are: see `complement_key`.
    """
    if step == 0:
        half = half_bits(bits)
        if not half & np.uint32(0x8000):
            half = np.uint32(~half & np.uint32(0x7FFF))
        return np.int64(half >> np.uint32(5))
    key = complement_key(bits)
    if step == 1:
        return np.int64(key >> np.uint32(21))
    if step == 2:
        return np.int64((key >> np.uint32(10)) & np.uint32(0x7FF))
    return np.int64(key & np.uint32(0x3FF))


@njit
def step_matches(step, bits, prefix):
    """Whether a logit is still in question: (int64, uint32, uint32) -> bool.

    `prefix` holds the bits of the complement key that earlier steps found, each in its place.
    Steps 0 and 1 count every logit: step 1 starts afresh, on another key.
    """
    if step == 2:
        return (complement_key(bits) ^ prefix) >> np.uint32(21) == 0
    if step == 3:
        return (complement_key(bits) ^ prefix) >> np.uint32(10) == 0
    return True


@njit
def extend_prefix(step, prefix, threshold_bin):
    """Bits of the key that are known when a step ends: (int64, uint32, int64) -> uint32.

    Step 0 adds none: its bin is one of another key.
    """
    if step == 1:
        return np.uint32(threshold_bin << 21)
    if step == 2:
        return np.uint32(prefix | np.uint32(threshold_bin << 10))
    return np.uint32(prefix)


@njit
def coarse_bin(bits):
    """Bin of a logit in the SGLang lineage's first pass: uint32 -> int64 in [0, 256), best last.

    The upper 8 bits of the float16 key: sign, exponent and 2 bits of the mantissa. A NaN must have
    gone through `canonical_bits` before.
    """
    half = half_bits(bits)
    if half & np.uint32(0x8000):
        return np.int64((~half & np.uint32(0xFFFF)) >> np.uint32(8))
    return np.int64((half | np.uint32(0x8000)) >> np.uint32(8))


@njit
def key_digit(key, shift):
    """Bin of a logit in a later pass: (uint32 order key, int64) -> int64 in [0, 256)."""
    return np.int64((key >> np.uint32(shift)) & np.uint32(NUM_DIGIT_BINS - 1))
