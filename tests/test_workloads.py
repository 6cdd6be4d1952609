"""Do the workloads hold exactly what their names say, and the same every time?"""

import re
import zlib

import numpy as np
import pytest

from topk_lab import workloads

INF = np.float32(np.inf)
FLT_MAX = np.finfo(np.float32).max
ROTATED = (
    "subnormals",
    "ascending",
    "descending",
    "near_equal",
    "signed_zeros",
    "finite_min",
    "pivot_bins",
)
# Wide enough for each workload's own counts, and no multiple of a block of 8.
LIVE = 1203


def bits(values):
    return np.ascontiguousarray(values).view(np.uint32)


def row_of(name, num_live=LIVE, row=0, **args):
    return workloads.make(name, row + 1, num_live, **args)[row]


def test_the_list():
    assert workloads.names() == (
        "normal",
        "uniform",
        "mostly_negative",
        "tiny",
        "beyond_fp16",
        "subnormals",
        "ascending",
        "descending",
        "near_equal",
        "near_one",
        "relu_heads",
        "same_leading_bits",
        "constant",
        "odd_one_out",
        "few_values",
        "relu_zeros",
        "signed_zeros",
        "nan",
        "infinities",
        "all_neg_inf",
        "masked_random",
        "masked_prefix",
        "masked_blocks",
        "finite_min",
        "pivot_bins",
    )


@pytest.mark.parametrize("name", workloads.names())
def test_each_says_what_it_is(name):
    line = workloads.describe(name)
    assert line.endswith(".")
    assert 10 < len(line) < 100


def test_defaults_are_what_a_record_needs():
    assert workloads.defaults("normal") == {}
    assert workloads.defaults("masked_random") == {"fraction": 0.875}
    assert workloads.defaults("masked_prefix") == {"finite": 524}
    assert workloads.defaults("pivot_bins") == {"count": 128, "k": 512}
    assert workloads.defaults("near_one") == {"scale": 1e-3}
    assert workloads.defaults("relu_heads") == {"heads": 16}
    for name in workloads.names():
        explicit = workloads.make(name, 2, 600, **workloads.defaults(name))
        assert (bits(explicit) == bits(workloads.make(name, 2, 600))).all()


# The same every time


@pytest.mark.parametrize("name", workloads.names())
def test_a_row_does_not_depend_on_what_is_around_it(name):
    ends = np.array([LIVE, 130, 0, 1, 77])
    logits = workloads.make(name, 5, LIVE, seed=9, row_ends=ends, poison="nan")
    assert logits.dtype == np.float32
    assert logits.flags.c_contiguous
    again = workloads.make(name, 5, LIVE, seed=9, row_ends=ends, poison="nan")
    assert (bits(again) == bits(logits)).all()
    wider = workloads.make(name, 5, LIVE + 50, seed=9, row_ends=ends, poison="1e20")
    for row, end in enumerate(ends):
        live = bits(logits[row, :end])
        fewer_rows = workloads.make(name, row + 1, LIVE, seed=9, row_ends=ends[: row + 1])
        assert (bits(fewer_rows[row, :end]) == live).all()
        assert (bits(wider[row, :end]) == live).all()


def test_seed_and_row_change_what_is_drawn():
    assert set(PINNED) == set(workloads.names()) - {
        *ROTATED,
        "constant",
        "odd_one_out",
        "all_neg_inf",
    }
    for name in PINNED:
        logits = workloads.make(name, 3, LIVE, seed=1)
        assert (bits(logits[0]) != bits(logits[1])).any(), name
        assert (bits(workloads.make(name, 3, LIVE, seed=2)) != bits(logits)).any(), name
    # Two workloads of one seed are drawn apart.
    assert (row_of("normal") != row_of("tiny", scale=1)).any()


# CRC-32 of three poisoned rows, alike under NumPy 1.26 and 2.4.
PINNED = {
    "normal": 973513703,
    "uniform": 2119330594,
    "mostly_negative": 1648411964,
    "tiny": 3171318608,
    "beyond_fp16": 1134943085,
    "near_one": 1300644800,
    "relu_heads": 2074745999,
    "same_leading_bits": 1012224239,
    "few_values": 3310879037,
    "relu_zeros": 1437514640,
    "nan": 430035476,
    "infinities": 1271286738,
    "masked_random": 3289287734,
    "masked_prefix": 2211549545,
    "masked_blocks": 3805422535,
}


def test_draws_are_pinned():
    # A record names a workload and a seed: if these change, old records describe other logits.
    ends = np.array([5000, 4000, 7])
    assert {
        name: zlib.crc32(workloads.make(name, 3, 5000, row_ends=ends, poison="nan").tobytes())
        for name in PINNED
    } == PINNED


@pytest.mark.parametrize("name", ROTATED)
def test_fixed_patterns_are_rotated_by_the_row(name):
    logits = workloads.make(name, 4, LIVE, row_ends=np.array([LIVE, LIVE, 700, 2]), poison="inf")
    pattern = bits(row_of(name))
    assert (bits(logits[0]) == pattern).all()
    assert (bits(logits[1]) == np.roll(pattern, 1)).all()
    assert (bits(logits[2, :700]) == np.roll(bits(row_of(name, 700)), 2)).all()
    assert (bits(logits[3, :2]) == np.roll(bits(row_of(name, 2)), 3)).all()
    assert (bits(logits[0]) != bits(logits[1])).any()


# Tails


@pytest.mark.parametrize(
    ("poison", "value"), [("nan", 0x7FC00000), ("inf", 0x7F800000), ("1e20", 0x60AD78EC)]
)
def test_poison_fills_the_columns_past_each_end(poison, value):
    ends = np.array([0, 1, 40, 99, 100])
    logits = workloads.make("ascending", 5, 100, row_ends=ends, poison=poison)
    past = np.arange(100) >= ends[:, None]
    assert (bits(logits)[past] == value).all()
    assert (logits[~past] < 100).all()


def test_without_poison_the_tail_is_stale():
    logits = workloads.make("masked_prefix", 1, 2000, row_ends=1000, finite=600)
    assert np.isfinite(logits[0, :600]).all()
    assert (logits[0, 600:1000] == -INF).all()
    assert np.isfinite(logits[0, 1000:1600]).all()
    assert (logits[0, :600] != logits[0, 1000:1600]).any()


def test_ends_are_clamped():
    logits = workloads.make(
        "ascending", 3, 10, row_ends=np.array([-5, 99, 2**31 - 1]), poison="inf"
    )
    assert (logits[0] == INF).all()
    assert (logits[1:] < INF).all()


@pytest.mark.parametrize("shape", [(0, 10), (3, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("name", workloads.names())
def test_small_shapes(name, shape):
    assert workloads.make(name, *shape).shape == shape


# What each holds


def test_normal_and_uniform():
    row = row_of("normal", 100_000)
    assert abs(row.mean()) < 0.02
    assert abs(row.std() - 1) < 0.02
    row = row_of("uniform", 100_000)
    assert row.min() >= 0
    assert row.max() < 1
    assert abs(row.mean() - 0.5) < 0.01
    assert (row * 2**24 == np.floor(row * 2**24)).all()


def test_mostly_negative_has_the_reported_shape():
    row = np.sort(row_of("mostly_negative", 65539))[::-1]
    assert 0 <= np.count_nonzero(row > 0) < 10
    assert row[511] == pytest.approx(-0.87, abs=0.05)


def test_tiny_is_zero_in_half_precision():
    row = row_of("tiny")
    assert (row.astype(np.float16) == 0).all()
    assert (row != 0).all()
    assert row.std() == pytest.approx(1e-9, rel=0.1)
    assert row_of("tiny", scale=1e-3).std() == pytest.approx(1e-3, rel=0.1)


def test_beyond_fp16_is_finite_and_infinite_in_half_precision():
    row = row_of("beyond_fp16", 20_000)
    assert np.isfinite(row).all()
    assert np.abs(row).min() >= 65536
    assert np.abs(row).max() > 2.0**126
    assert 9_000 < np.count_nonzero(row < 0) < 11_000
    exponents = np.unique(bits(row) >> 23 & 0xFF)
    assert exponents.tolist() == list(range(143, 255))


def test_subnormals():
    row = row_of("subnormals")
    assert bits(row).tolist() == list(range(LIVE))
    assert row[1] == 2.0**-149
    assert (row < np.finfo(np.float32).tiny).all()


def test_ramps():
    assert row_of("ascending").tolist() == list(range(LIVE))
    assert row_of("descending").tolist() == list(range(LIVE - 1, -1, -1))
    rows = workloads.make("descending", 1, 20, row_ends=5, poison="inf")[0]
    assert rows.tolist() == [4, 3, 2, 1, 0, *[np.inf] * 15]


def test_near_equal_is_exact():
    row = row_of("near_equal", 4608)
    assert row.dtype == np.float32
    assert row.tolist() == [1 + i * 2.0**-20 for i in range(4608)]
    assert (np.diff(row_of("near_equal", 1 << 20)) == 2.0**-20).all()


def test_near_one_fills_two_coarse_bins():
    row = row_of("near_one", 32_768)
    assert row.mean() == pytest.approx(1, abs=1e-4)
    assert row.std() == pytest.approx(1e-3, rel=0.02)
    # Bins of a float16's upper 8 bits: below 1.0 one begins, at 1.0 - 2^-12 in float32.
    coarse = row.astype(np.float16).view(np.uint16) >> 8
    assert np.unique(coarse).tolist() == [0x3B, 0x3C]
    above = np.count_nonzero(coarse == 0x3C)
    assert above == np.count_nonzero(row >= 1 - 2.0**-12)
    # Where the cutoff's bin is the upper one, three stashes of 5120 would not hold it.
    assert 19_000 < above < 20_000
    assert row_of("near_one", 32_768, scale=0.5).std() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("heads", [1, 2, 16, 64])
def test_relu_heads_are_sums_of_positive_parts(heads):
    row = row_of("relu_heads", 100_000, heads=heads)
    assert row.dtype == np.float32
    assert row.min() >= 0
    assert not np.signbit(row).any()
    # Every head is zero in half of the columns, all of them in 2^-heads.
    zeros = np.count_nonzero(row == 0) / 100_000
    assert zeros == pytest.approx(2.0**-heads, abs=0.01)
    # A positive part has mean 1 / sqrt(2 pi), a weight at most 1.
    assert 0 < row.mean() < heads * 0.4
    assert row.max() < 6 * heads


def test_no_heads_are_zeros():
    assert bits(row_of("relu_heads", heads=0)).tolist() == [0] * LIVE


def test_same_leading_bits():
    row = bits(row_of("same_leading_bits", 20_000))
    assert (row & 0xFFFFFC00 == 0x3F900000).all()
    assert len(np.unique(row)) == 1024


def test_constant():
    assert (row_of("constant") == 1).all()
    assert (row_of("constant", value=-2.5) == -2.5).all()
    assert bits(row_of("constant", value=-0.0)).tolist() == [0x80000000] * LIVE


def test_odd_one_out():
    row = row_of("odd_one_out")
    assert (row[:-1] == 0.5).all()
    assert row[-1] == np.nextafter(np.float32(0.5), np.float32(1))
    # One logit in the last bit, and the same in half precision.
    assert bits(row)[-1] == bits(row)[0] + 1
    assert np.float16(row[-1]) == row[0]
    assert row_of("odd_one_out", num_live=1) == row[-1]


def test_masked_blocks_keep_one_in_as_many_as_asked():
    for of in (1, 2, 8, 100):
        row = row_of("masked_blocks", num_live=8 * 200, of=of)
        kept = np.isfinite(row).reshape(-1, 8)
        assert (kept.all(axis=1) | ~kept.any(axis=1)).all()
        assert kept.all(axis=1).sum() == 200 // of
        assert (np.add.reduceat(kept.all(axis=1), np.arange(0, 200, of)) == 1).all()
    # Fewer blocks than one is kept of.
    assert np.isfinite(row_of("masked_blocks", num_live=80, of=10**30)).sum() == 8
    for of in (0, -1, 1.5, 8.0, float("nan")):
        with pytest.raises(ValueError, match="of must be a whole number of at least 1, got"):
            row_of("masked_blocks", of=of)


def test_few_values():
    assert np.unique(row_of("few_values")).tolist() == list(range(10))
    assert np.unique(row_of("few_values", count=3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("positive", [0, 1, 100, LIVE, LIVE + 5])
def test_relu_zeros(positive):
    row = row_of("relu_zeros", positive=positive)
    assert np.count_nonzero(row > 0) == min(positive, LIVE)
    assert np.count_nonzero(bits(row) == 0) == LIVE - min(positive, LIVE)
    assert row.max() <= 1


def test_signed_zeros():
    row = bits(row_of("signed_zeros", 1024))
    assert (row[:200:2] == 0x3F800000).all()
    assert (row[200::2] == 0x80000000).all()
    assert (row[1::2] == 0).all()
    assert not np.any(row_of("signed_zeros", ones=0))


@pytest.mark.parametrize("count", [0, 1, 2, 100, 101, LIVE])
def test_nan_of_both_signs(count):
    row = row_of("nan", count=count)
    is_nan = np.isnan(row)
    assert np.count_nonzero(is_nan) == count
    payloads = bits(row)[is_nan]
    assert np.count_nonzero(payloads >> 31) == count // 2
    if count >= 100:
        assert len(np.unique(payloads & 0x7FFFFF)) > count - 5
        quiet = payloads >> 22 & 1
        assert 0 < quiet.sum() < count  # signalling NaN survive too


@pytest.mark.parametrize("fraction", [0, 0.25, 0.5, 1])
def test_infinities(fraction):
    row = row_of("infinities", 1000, fraction=fraction)
    assert np.count_nonzero(row == INF) == fraction * 1000
    assert np.count_nonzero(row == -INF) == 1000 - fraction * 1000


def test_all_neg_inf():
    assert (bits(row_of("all_neg_inf")) == 0xFF800000).all()


@pytest.mark.parametrize(
    ("num_live", "fraction", "masked"),
    [
        (1000, 0.875, 875),
        (262144, 0.875, 229376),
        (10, 0.25, 3),
        (10, 0, 0),
        (10, 1, 10),
        (0, 1, 0),
    ],
)
def test_masked_random_masks_an_exact_count(num_live, fraction, masked):
    rows = workloads.make("masked_random", 2, num_live, fraction=fraction)
    assert np.count_nonzero(rows == -INF, axis=1).tolist() == [masked] * 2
    assert np.isfinite(rows[rows != -INF]).all()
    if num_live > 100:
        # Anywhere: each quarter of the row has its share.
        quarters = np.count_nonzero((rows[0] == -INF).reshape(4, -1), axis=1)
        assert (np.abs(quarters - masked / 4) < num_live * 0.04).all()


def test_masks_are_counted_among_the_live_columns():
    logits = workloads.make(
        "masked_random", 3, 1000, row_ends=np.array([800, 80, 8]), poison="1e20"
    )
    assert [np.count_nonzero(row == -INF) for row in logits] == [700, 70, 7]
    assert [np.count_nonzero(row == np.float32(1e20)) for row in logits] == [200, 920, 992]


@pytest.mark.parametrize("finite", [0, 1, 524, LIVE, LIVE + 1])
def test_masked_prefix(finite):
    row = row_of("masked_prefix", finite=finite)
    assert np.isfinite(row[:finite]).all()
    assert (row[finite:] == -INF).all()


@pytest.mark.parametrize("num_live", [64, 640, 1024, 262144])
def test_masked_blocks_keep_one_block_of_each_eight(num_live):
    row = row_of("masked_blocks", num_live)
    masked = (row == -INF).reshape(-1, 8, 8)  # (group, block, column)
    assert (masked.all(axis=2) == masked.any(axis=2)).all()
    assert (np.count_nonzero(masked.all(axis=2), axis=1) == 7).all()
    if num_live > 1000:
        kept = np.argmin(masked.all(axis=2), axis=1)
        assert len(np.unique(kept)) > 4


@pytest.mark.parametrize(
    ("num_live", "most_kept"),
    [(1, 1), (7, 7), (8, 8), (9, 8), (63, 8), (65, 9), (67, 11), (100, 16)],
)
def test_masked_blocks_of_a_cut_group(num_live, most_kept):
    for seed in range(8):
        finite = np.flatnonzero(np.isfinite(row_of("masked_blocks", num_live, seed=seed)))
        groups = -(-num_live // 64)
        assert len(np.unique(finite // 64)) == groups
        assert len(np.unique(finite // 8)) == groups
        assert len(finite) <= most_kept


def test_finite_min_beside_neg_inf():
    row = row_of("finite_min")
    assert (bits(row[:511]) == 0).all()
    assert row[511] == -FLT_MAX
    assert (row[512:] == -INF).all()
    assert row_of("finite_min", zeros=3, num_live=5).tolist() == [0, 0, 0, -FLT_MAX, -INF]


@pytest.mark.parametrize(
    ("count", "twos"), [(128, 448), (129, 448), (1024, 0), (1025, 0), (1, 512), (3, 511), (0, 512)]
)
def test_pivot_bins(count, twos):
    row = row_of("pivot_bins", 2000, count=count)
    assert (row[:twos] == 2).all()
    ones = bits(row[twos : twos + count])
    assert ones.tolist() == [0x3F800001, *[0x3F800000] * (count - 1)][:count]
    assert (row[twos + count :] == -INF).all()
    if count > 1:
        # The k-th greatest lies in the bin, and the first of the ones is always chosen.
        assert np.sort(row)[-512] in (1, 1 + np.float32(2**-23))


# Bad input


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("gauss", {}, ValueError, "workload must be one of normal, uniform, "),
        (
            "normal",
            {"poison": "zero"},
            ValueError,
            "poison must be one of nan, inf, 1e20 or None, got 'zero'",
        ),
        (
            "normal",
            {"fraction": 1},
            TypeError,
            "arguments of workload normal must be among: none; got fraction",
        ),
        (
            "pivot_bins",
            {"counts": 1},
            TypeError,
            "arguments of workload pivot_bins must be among: count, k; got counts",
        ),
        ("normal", {"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ("masked_random", {"fraction": 1.5}, ValueError, "fraction must be in [0, 1], got 1.5"),
        ("masked_prefix", {"finite": -1}, ValueError, "finite must be at least 0, got -1"),
        ("relu_heads", {"heads": -1}, ValueError, "heads must be at least 0, got -1"),
        (
            "normal",
            {"row_ends": np.zeros(3, np.int32)},
            ValueError,
            "row_ends must have shape (num_rows,) = (2,), got (3,)",
        ),
    ],
)
def test_bad_input(name, arguments, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        workloads.make(name, 2, 10, **arguments)


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"^num_rows must be at least 0, got -1$"):
        workloads.make("normal", -1, 10)
    with pytest.raises(ValueError, match=r"^num_cols must be at least 0, got -1$"):
        workloads.make("normal", 1, -1)
    for ask in (workloads.describe, workloads.defaults):
        with pytest.raises(ValueError, match=r"^workload must be one of normal.*, got 'no'$"):
            ask("no")
