"""Keys and bins, against numpy's own float16 and float32 order."""

import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from topk_lab import contract, keys

FLT_MAX = np.finfo(np.float32).max
LEAST_SUBNORMAL = np.float32(2.0**-149)


@njit("uint32[:, ::1](uint32[::1])")
def key_table(bits):
    table = np.empty((4, bits.size), np.uint32)
    for i in range(bits.size):
        table[0, i] = keys.half_bits(bits[i])
        table[1, i] = keys.order_key(bits[i])
        table[2, i] = keys.canonical_key(bits[i])
        table[3, i] = keys.complement_key(bits[i])
    return table


@njit("int64[:, ::1](uint32[::1])")
def bin_table(bits):
    table = np.empty((keys.NUM_STEPS, bits.size), np.int64)
    for step in range(keys.NUM_STEPS):
        for i in range(bits.size):
            table[step, i] = keys.step_bin(step, bits[i])
    return table


@njit("int64[::1](uint32[::1])")
def coarse_bins(bits):
    bins = np.empty(bits.size, np.int64)
    for i in range(bits.size):
        bins[i] = keys.coarse_bin(keys.canonical_bits(bits[i]))
    return bins


@njit("int64[:, ::1](uint32[::1])")
def digit_table(bits):
    table = np.empty((4, bits.size), np.int64)
    for place in range(4):
        for i in range(bits.size):
            table[place, i] = keys.key_digit(keys.order_key(bits[i]), 24 - 8 * place)
    return table


def bits_of(*values):
    return np.array(values, np.float32).view(np.uint32)


def random_bits(count=200_000):
    return np.random.default_rng(0).integers(0, 2**32, count, dtype=np.uint32)


def numpy_half_bits(bits):
    with np.errstate(all="ignore"):
        return bits.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)


def half_boundaries():
    """Every float16, every midpoint of two neighbours, and the float32 on each side of those."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    edges = np.append(halves, 65536.0)
    midpoints = (edges[1:] + edges[:-1]) / 2
    exact = np.concatenate([edges, midpoints]).astype(np.float32)
    np.testing.assert_array_equal(exact, np.concatenate([edges, midpoints]))
    magnitudes = exact.view(np.uint32)
    around = np.concatenate([magnitudes, magnitudes + 1, magnitudes[magnitudes > 0] - 1])
    return np.concatenate([around, around | keys.SIGN])


def test_half_bits_of_every_float16_are_its_own():
    halves = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        bits = halves.view(np.float16).astype(np.float32).view(np.uint32)
    finite_or_inf = (halves & 0x7FFF) <= 0x7C00

    half = key_table(bits)[0]

    np.testing.assert_array_equal(half[finite_or_inf], halves[finite_or_inf])
    np.testing.assert_array_equal(half[~finite_or_inf], halves[~finite_or_inf] | 0x7FFF)


@pytest.mark.parametrize("bits", [half_boundaries(), random_bits()], ids=["boundaries", "random"])
def test_half_bits_round_as_numpy_does(bits):
    bits = bits[~np.isnan(bits.view(np.float32))]

    np.testing.assert_array_equal(key_table(bits)[0], numpy_half_bits(bits))


def test_half_bits_of_nan_keep_the_sign_only():
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)

    assert key_table(nans)[0].tolist() == [0x7FFF] * 3 + [0xFFFF] * 2


def test_order_key_rises_with_the_value_and_nan_is_the_greatest():
    values = np.array(
        [-np.inf, -FLT_MAX, -1, -LEAST_SUBNORMAL, -0.0, 0.0, LEAST_SUBNORMAL, 1, FLT_MAX, np.inf],
        np.float32,
    )
    order = key_table(values.view(np.uint32))[1].astype(np.int64)
    nans = key_table(np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32))[1]

    assert (np.diff(order) > 0).all()
    assert order[5] - order[4] == 1  # +0.0 just above -0.0
    assert nans.tolist() == [0xFFFFFFFF] * 4
    assert order[-1] < 0xFFFFFFFF


def test_order_key_sorts_as_float32_does():
    bits = random_bits()
    values = bits.view(np.float32)
    bits = bits[~np.isnan(values)]

    by_key = bits[np.argsort(key_table(bits)[1])].view(np.float32)

    np.testing.assert_array_equal(by_key, np.sort(bits.view(np.float32)))


def test_canonical_key_is_the_contracts():
    special = np.array([0, keys.SIGN, 1, keys.SIGN | 1, 0x7F800001, 0xFFC00000], np.uint32)
    bits = np.concatenate([random_bits(), special, keys.NEG_INF_BITS[None]])

    np.testing.assert_array_equal(key_table(bits)[2], contract.canonical_key(bits.view(np.float32)))


def test_complement_key_is_its_own_inverse_and_the_complement_of_order_key():
    bits = random_bits()
    bits = bits[~np.isnan(bits.view(np.float32))]
    _, order, _, complement = key_table(bits)

    np.testing.assert_array_equal(complement, ~order)
    np.testing.assert_array_equal(key_table(complement)[3], bits)


@pytest.mark.parametrize(
    ("value", "bins"),
    [
        pytest.param(np.inf, (31, 3, 2047, 1023), id="inf"),
        pytest.param(65520, (31, 452, 3, 1023), id="65520-overflows-float16"),
        pytest.param(65504, (32, 452, 7, 1023), id="65504-largest-float16"),
        pytest.param(1.0, (543, 515, 2047, 1023), id="one"),
        pytest.param(0.0, (1023, 1023, 2047, 1023), id="zero"),
        pytest.param(-0.0, (1024, 1024, 0, 0), id="negative-zero"),
        pytest.param(-1.0, (1504, 1532, 0, 0), id="minus-one"),
        pytest.param(-65520, (2016, 1595, 2044, 0), id="minus-65520-shares-bin-of-neg-inf"),
        pytest.param(-FLT_MAX, (2016, 2043, 2047, 1023), id="finfo-min"),
        pytest.param(-np.inf, (2016, 2044, 0, 0), id="neg-inf"),
    ],
)
def test_bin_landmarks(value, bins):
    assert tuple(bin_table(bits_of(value))[:, 0]) == bins


def test_nan_is_in_the_first_bin_and_a_pad_in_the_last_one():
    bins = bin_table(np.array([keys.NAN_BITS, keys.PAD_BITS], np.uint32))

    assert bins[:, 0].tolist() == [0, 0, 0, 0]
    assert bins[:, 1].tolist() == [2047, 2047, 2047, 1023]
    assert keys.complement_key(keys.PAD_BITS) > keys.complement_key(keys.NEG_INF_BITS)


def test_bins_fall_as_the_value_rises_and_make_up_the_key():
    bits = random_bits()
    values = bits.view(np.float32)
    bits = bits[~np.isnan(values)]
    bits = bits[np.argsort(bits.view(np.float32), kind="stable")]
    bins = bin_table(bits)

    assert (np.diff(bins[0]) <= 0).all()
    assert (np.diff(bins[1]) <= 0).all()
    assert bins.min() >= 0
    assert bins.max() < keys.NUM_BINS
    np.testing.assert_array_equal(bins[1] << 21 | bins[2] << 10 | bins[3], key_table(bits)[3])


@pytest.mark.parametrize(
    ("step", "prefix", "matching"),
    [
        pytest.param(0, 0xFFFFFFFF, [True] * 4, id="step-0-all"),
        pytest.param(1, 0xFFFFFFFF, [True] * 4, id="step-1-starts-afresh"),
        pytest.param(2, 0xFF800000, [True, True, True, False], id="step-2-upper-11-bits"),
        pytest.param(3, 0xFF800400, [False, False, True, False], id="step-3-upper-22-bits"),
    ],
)
def test_step_matches_compares_the_bits_found_so_far(step, prefix, matching):
    # Negative, so that the complement key is the bits themselves.
    logits = np.array([0xFF800000, 0xFF8003FF, 0xFF8007FF, 0xFF7FFFFF], np.uint32)

    assert [keys.step_matches(step, bits, np.uint32(prefix)) for bits in logits] == matching


def test_extend_prefix_puts_each_bin_in_its_place():
    zero = np.uint32(0)
    key = keys.complement_key(bits_of(1.5)[0])
    bins = bin_table(bits_of(1.5))[:, 0]

    first = keys.extend_prefix(1, zero, bins[1])
    second = keys.extend_prefix(2, np.uint32(first), bins[2])

    assert keys.extend_prefix(0, zero, bins[0]) == 0
    assert first == key & 0xFFE00000
    assert second == key & 0xFFFFFC00


def every_half():
    """Bits of the float32 of every float16 but NaN, in rising order, -0.0 before +0.0."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    halves = halves[halves & 0x7FFF <= 0x7C00]
    order = np.where(halves >> 15, ~halves, halves | np.uint16(0x8000))
    return halves[np.argsort(order)].view(np.float16).astype(np.float32).view(np.uint32)


def test_coarse_bins_rise_over_every_half_value():
    bits = every_half()
    bins = coarse_bins(bits)

    assert len(bits) == 2 * 0x7C01
    assert (np.diff(bits.view(np.float32)) >= 0).all()
    assert (np.diff(bins) >= 0).all()
    # -inf and +inf begin and end a bin; each between holds 256 neighbouring float16.
    populations = np.bincount(bins, minlength=256)
    assert populations[:3].sum() == populations[253:].sum() == 0
    assert (populations[3], populations[252]) == (1, 1)
    assert (populations[4:252] == 256).all()


def test_coarse_bins_are_the_upper_half_of_numpys_float16_key():
    bits = np.concatenate([random_bits(), half_boundaries()])
    nan = np.isnan(bits.view(np.float32))
    half = numpy_half_bits(bits)
    key = np.where(half & 0x8000, ~half & 0xFFFF, half | 0x8000)

    bins = coarse_bins(bits)

    np.testing.assert_array_equal(bins[~nan], key[~nan] >> 8)
    assert (bins[nan] == 255).all()
    assert nan.sum() > 500


def test_coarse_bins_rise_with_the_value():
    bits = random_bits()
    bits = bits[~np.isnan(bits.view(np.float32))]
    bins = coarse_bins(bits[np.argsort(bits.view(np.float32), kind="stable")])

    assert (np.diff(bins) >= 0).all()
    assert (bins[0], bins[-1]) == (3, 252)


@pytest.mark.parametrize(
    ("value", "coarse", "digits"),
    [
        pytest.param(np.inf, 252, (0xFF, 0x80, 0, 0), id="inf"),
        pytest.param(65520, 252, (0xC7, 0x7F, 0xF0, 0), id="65520-shares-bin-of-inf"),
        pytest.param(65519, 251, (0xC7, 0x7F, 0xEF, 0), id="65519-is-finite-in-float16"),
        pytest.param(1.0, 188, (0xBF, 0x80, 0, 0), id="one"),
        pytest.param(2.0**-24, 128, (0xB3, 0x80, 0, 0), id="least-float16-subnormal"),
        pytest.param(LEAST_SUBNORMAL, 128, (0x80, 0, 0, 1), id="least-subnormal"),
        pytest.param(0.0, 128, (0x80, 0, 0, 0), id="zero"),
        pytest.param(-0.0, 127, (0x7F, 0xFF, 0xFF, 0xFF), id="negative-zero"),
        pytest.param(-1.0, 67, (0x40, 0x7F, 0xFF, 0xFF), id="minus-one"),
        pytest.param(-65519, 4, (0x38, 0x80, 0x10, 0xFF), id="minus-65519"),
        pytest.param(-65520, 3, (0x38, 0x80, 0x0F, 0xFF), id="minus-65520-shares-bin-of-neg-inf"),
        pytest.param(-FLT_MAX, 3, (0, 0x80, 0, 0), id="finfo-min"),
        pytest.param(-np.inf, 3, (0, 0x7F, 0xFF, 0xFF), id="neg-inf"),
    ],
)
def test_landmarks_of_the_sglang_bins(value, coarse, digits):
    assert coarse_bins(bits_of(value)).tolist() == [coarse]
    assert tuple(digit_table(bits_of(value))[:, 0]) == digits


@pytest.mark.parametrize("edge", [0.25, 1.0, 1.25, 1.5, 1.75, 2.0, 1024.0])
def test_a_coarse_bin_begins_half_a_float16_step_early(edge):
    # A quarter of an octave; what rounds up to its first float16 is in it, the tie odd below.
    step = np.float32(edge) - np.nextafter(np.float16(edge), np.float16(0)).astype(np.float32)
    first = np.float32(edge) - step / 2
    below = np.nextafter(first, np.float32(0))

    low, high = coarse_bins(bits_of(below, first)).tolist()

    assert high == low + 1 == coarse_bins(bits_of(edge))[0]
    assert coarse_bins(bits_of(-below, -first)).tolist() == [255 - low, 255 - high]


def test_nan_of_any_sign_and_payload_is_in_the_last_bins():
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32)

    assert coarse_bins(nans).tolist() == [255] * 5
    assert (digit_table(nans) == 255).all()


def test_digits_make_up_the_order_key():
    bits = np.concatenate([random_bits(), half_boundaries()])
    digits = digit_table(bits)

    assert digits.min() >= 0
    assert digits.max() < keys.NUM_DIGIT_BINS
    whole = digits[0] << 24 | digits[1] << 16 | digits[2] << 8 | digits[3]
    np.testing.assert_array_equal(whole, key_table(bits)[1])


def test_unsigned_arithmetic_stays_32_bits_wide():
    extremes = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF], np.uint32)

    assert key_table(extremes)[3].tolist() == [0x7FFFFFFF, 0x7FFFFFFE, 0, 0x80000000, 0xFFFFFFFF]
    for function in (keys.half_bits, keys.order_key, keys.canonical_key, keys.complement_key):
        assert [str(one) for one in function.nopython_signatures] == ["(uint32,) -> uint32"]
    assert [str(one) for one in keys.step_bin.nopython_signatures] == ["(int64, uint32) -> int64"]
    assert [str(one) for one in keys.coarse_bin.nopython_signatures] == ["(uint32,) -> int64"]
    assert [str(one) for one in keys.key_digit.nopython_signatures] == ["(uint32, int64) -> int64"]


def test_import_compiles_nothing():
    source = (
        "from topk_lab import keys; from topk_lab.reference import exact, vllm\n"
        "jitted = [f for m in (keys, exact, vllm) for f in vars(m).values()"
        " if hasattr(f, 'nopython_signatures')]\n"
        "print(len(jitted), sum(len(f.signatures) for f in jitted))"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )

    jitted, compiled = map(int, done.stdout.split())
    assert jitted > 15
    assert compiled == 0
