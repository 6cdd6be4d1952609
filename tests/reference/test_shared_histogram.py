"""The twin of blocks that share a row's histogram: exact, step by step, whatever fills the bin."""

import doctest

import numpy as np
import pandas as pd
import pytest

from topk_lab import keys, schedules, workloads
from topk_lab.contract import assert_exact, live_bounds
from topk_lab.reference import shared_histogram, trace, twins

NAN_BIN, INF_BIN, ZERO_BIN, NEG_INF_BIN = 0, 63, 2047, 4032


def assert_twin_right(variant, logits, k, **lengths):
    """Hold a twin's answer against the oracle; return what it left."""
    starts, ends = live_bounds(*logits.shape, **lengths)
    twin = shared_histogram.select(variant, logits, k, starts, ends, trace=True)
    assert_exact(logits, twin.indices, k=k, values=twin.values, **lengths)
    return twin


def half_bins(row):
    """Bins of a row from NumPy's own float16: (n,) int64."""
    with np.errstate(over="ignore"):
        half = np.where(row == 0, np.float32(0), row).astype(np.float16).view(np.uint16)
    bins = np.where(half & 0x8000, half, ~half & 0x7FFF).astype(np.int64) >> 4
    return np.where(np.isnan(row), NAN_BIN, bins)


def complement_keys(row):
    """Keys that fall as values rise, zeros alike, from NumPy alone: (n,) int64."""
    bits = row.copy().view(np.uint32)
    bits[np.isnan(row)] = 0x7FFFFFFF
    bits[row == 0] = 0
    return np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF)).astype(np.int64)


def float_of(key):
    """The logit of a complement key."""
    return np.array([keys.complement_key(np.uint32(key))], np.uint32).view(np.float32)[0]


# ---- bins ----------------------------------------------------------------------------------------


def test_bins_are_the_upper_bits_of_the_half():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 100_000, np.uint32)
    # Around every half, and around the middle to the next one.
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    near = np.concatenate([halves, middles, [np.float32(65520)]]).astype(np.float32)
    near = np.concatenate([near, np.nextafter(near, np.inf), np.nextafter(near, -np.inf)])
    special = np.array([np.inf, -np.inf, np.nan], np.float32)
    row = np.concatenate([bits.view(np.float32), near, -near, special])
    found = [shared_histogram.half_bin(keys.canonical_bits(one)) for one in row.view(np.uint32)]
    np.testing.assert_array_equal(found, half_bins(row))


def test_a_bin_begins_at_its_greatest_logit():
    start = shared_histogram.half_bin_start
    # No half is in the bins between NaN and infinity, and none behind minus infinity.
    for number in [*range(INF_BIN, NEG_INF_BIN + 1)]:
        first = int(start(number))
        greatest = float_of(first)
        assert half_bins(np.array([greatest]))[0] == number
        better = np.nextafter(greatest, np.float32(np.inf))
        if number > INF_BIN:
            assert half_bins(np.array([better]))[0] == number - 1
        assert (
            int(shared_histogram.keys_of_half_bin(number).width) == int(start(number + 1)) - first
        )
    starts = [int(start(number)) for number in range(NEG_INF_BIN + 2)]
    assert starts == sorted(starts)
    assert starts[NAN_BIN] == 0
    assert float_of(starts[INF_BIN]) == np.inf
    assert np.isnan(float_of(starts[INF_BIN] - 1))
    # 65520 is the least that rounds to infinity; both zeros share a bin, what is below them not.
    assert float_of(starts[INF_BIN + 1] - 1) == 65520
    assert float_of(starts[NEG_INF_BIN]) == -65520
    assert starts[ZERO_BIN + 1] == 0x80000001
    assert starts[NEG_INF_BIN + 1] == 0xFF800001


def test_three_digits_span_any_bin():
    widths = [
        int(shared_histogram.keys_of_half_bin(number).width)
        for number in (NAN_BIN, *range(INF_BIN, NEG_INF_BIN + 1))
    ]
    assert max(widths) <= 2**30 < 2 ** (3 * shared_histogram.DIGIT_BITS)
    # Where halves are normal: 16 of them, each for 2^13 floats.
    assert int(np.median(widths)) == 2**17


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 512, 2048, 4096])
@pytest.mark.parametrize("name", workloads.names())
def test_workloads_with_poisoned_tails(name, k):
    row_ends = np.array([41_001, 40_960, 40_959, k + 1, k, k - 1, 1, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 41_001, row_ends=row_ends, poison="nan", seed=5)

    twin = assert_twin_right("shared_histogram", logits, k, row_ends=row_ends)

    assert twin.active_splits.tolist() == [8, 8, 1, 1, 1, 1, 1, 1]
    assert twin.split_indices.size == 0
    assert twin.trace.shape == (8, 9, 4)


@pytest.mark.parametrize("changes", ["tie_capacity=0", "tie_capacity=7", "rank_limit=0"])
@pytest.mark.parametrize("name", ["normal", "few_values", "near_equal", "all_neg_inf", "nan"])
def test_other_policies_answer_alike(name, changes):
    logits = workloads.make(name, 2, 41_000)
    for k in (1, 700):
        own = assert_twin_right("shared_histogram", logits, k)
        other = assert_twin_right(f"shared_histogram[{changes}]", logits, k)
        np.testing.assert_array_equal(np.sort(own.indices), np.sort(other.indices))


def test_row_starts_make_indices_relative():
    logits = workloads.make("few_values", 5, 60_000)
    row_starts = np.array([0, 1, 17_000, 59_999, 30_000], np.int32)
    row_ends = np.array([60_000, 600, 59_000, 17, 35_121], np.int32)

    twin = assert_twin_right(
        "shared_histogram", logits, 512, row_ends=row_ends, row_starts=row_starts
    )

    assert twin.active_splits.tolist() == [12, 1, 12, 1, 1]
    assert twin.indices[2].max() < 42_000


def test_rows_of_any_stride_are_read():
    storage = np.full((3, 50_000), np.float32(np.nan))
    logits = storage[:, 5:45_005]
    logits[:] = workloads.make("normal", 3, 45_000)

    for view in (logits, logits[::-1], logits[:, ::-1], np.broadcast_to(logits[1], (4, 45_000))):
        twin = shared_histogram.select("shared_histogram", view, 512)
        assert_exact(np.ascontiguousarray(view), twin.indices, values=twin.values)


@pytest.mark.parametrize("shape", [(0, 512), (3, 0), (0, 0)])
def test_nothing_to_select_from(shape):
    twin = shared_histogram.select("shared_histogram", np.empty(shape, np.float32), 512, trace=True)

    assert twin.indices.shape == (shape[0], 512)
    assert (twin.indices == -1).all()
    assert (twin.values == -np.inf).all()
    assert (twin.trace["step"] == -1).all()


def test_the_lowest_of_equal_logits_win_where_blocks_take_their_turns_in_order():
    for ties in (100, 1000, 5000):
        row = np.full((1, 45_000), -1.0, np.float32)
        row[0, 8 : 8 + 9 * ties : 9] = 1.0
        row[0, 44_990:] = 2.0
        k = 10 + ties // 2
        twin = assert_twin_right("shared_histogram", row, k)
        assert twin.active_splits.tolist() == [32]
        assert sorted(twin.indices[0].tolist()) == [
            *range(8, 8 + 9 * (ties // 2), 9),
            *range(44_990, 45_000),
        ]


# ---- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 512, 3000])
@pytest.mark.parametrize("name", workloads.names())
def test_every_step_keeps_its_invariant(name, k):
    live = 41_003
    logits = workloads.make(name, 4, 42_000, row_ends=live, poison="nan", seed=2)
    twin = shared_histogram.select("shared_histogram", logits, k, ends=np.full(4, live), trace=True)
    blocks = 16
    assert twin.trace.shape == (4, blocks + 1, 4)

    for row in range(4):
        bins = half_bins(logits[row, :live])
        key = complement_keys(logits[row, :live])
        of_row = twin.trace[row, blocks]
        counts = np.bincount(bins, minlength=4096)
        threshold, size = int(of_row["threshold_bin"][0]), int(of_row["bin_size"][0])
        above = int(counts[:threshold].sum())
        assert size == counts[threshold]
        assert above < k <= above + size
        assert of_row["above"][0] == above

        for block in range(blocks):
            record = twin.trace[row, block]
            assert record["step"].tolist() == [0, -1, -1, -1]
            begin = block * (live // blocks)
            chunk = bins[begin : live if block == blocks - 1 else begin + live // blocks]
            np.testing.assert_array_equal(
                record["histogram"][0], np.bincount(chunk, minlength=4096)
            )
            same = ("threshold_bin", "bin_size", "above", "fits", "prefix")
            assert record[list(same)][0] == of_row[list(same)][0]
            assert record["emitted"][0] == (chunk < threshold).sum()
            tied = (chunk == threshold).sum()
            assert record["candidates"][0] == (tied if size <= 2048 else 0)

        ranked = size <= 128
        np.testing.assert_array_equal(of_row["histogram"][0], counts)
        assert of_row["fits"][0] == (size <= 2048)
        assert of_row["emitted"][0] == (k if ranked else above)
        assert of_row["candidates"][0] == (0 if ranked else size)
        made = int((of_row["step"] >= 0).sum())
        assert ranked == (made == 1)
        first = int(shared_histogram.half_bin_start(threshold))
        upper = int(shared_histogram.half_bin_start(threshold + 1) - first - 1).bit_length()
        asked, prefix, remaining = bins == threshold, 0, k - above
        for number, record in enumerate(of_row[1:made], 1):
            shift = max(upper - 12, 0)
            digits = (key - first) >> shift & (1 << upper - shift) - 1
            histogram = np.bincount(digits[asked], minlength=4096)
            np.testing.assert_array_equal(record["histogram"], histogram)
            threshold, size = int(record["threshold_bin"]), int(record["bin_size"])
            before = int(histogram[:threshold].sum())
            assert (record["step"], record["prefix"]) == (number, prefix)
            assert size == histogram[threshold]
            assert before < remaining <= before + size
            remaining -= before
            assert record["above"] == k - remaining
            assert record["fits"] == (size == remaining)
            asked &= digits == threshold
            prefix |= threshold << shift
            upper = shift
            last = size == remaining or upper == 0
            assert last == (number == made - 1)
            assert record["emitted"] == (k if last else 0)
            assert record["candidates"] == (0 if last else size)
        np.testing.assert_array_equal(np.sort(key[twin.indices[row]]), np.sort(key)[:k])


FIELDS = ["block", "step", "prefix", "threshold_bin", "bin_size", "above", "emitted"]
FIELDS += ["candidates", "fits"]


def test_a_trace_shows_each_block_and_the_row():
    row = np.full(40_960, -1.0, np.float32)
    row[[5, 1300, 20_000]] = 2.0
    # 1.0 is the half 0x3c00, its complement 0x43ff: bin 0x43f. The greatest of that bin is one
    # float below the middle between the halves 0x3c0f and 0x3c10.
    row[2000:2200] = 1.0

    shown = trace(row, 100, variant="shared_histogram").frame()

    bits = 0x3F800000
    greatest = 0x3F800000 + 15 * 0x2000 + 0x1000 - 1
    distance = greatest - bits
    # 200 equal logits: all digits of their distance are counted.
    first_digit, second_digit = distance >> 5, distance & 31
    lines = shown[shown["emitted"] + shown["candidates"] > 0]
    expected = pd.DataFrame(
        [
            ("split 0", 0, 0, 0x43F, 200, 3, 1, 0, True),
            ("split 1", 0, 0, 0x43F, 200, 3, 1, 200, True),
            ("split 15", 0, 0, 0x43F, 200, 3, 1, 0, True),
            ("merge", 0, 0, 0x43F, 200, 3, 3, 200, True),
            ("merge", 1, 0, first_digit, 200, 3, 0, 200, False),
            ("merge", 2, first_digit << 5, second_digit, 200, 3, 100, 0, False),
        ],
        columns=FIELDS,
    )
    pd.testing.assert_frame_equal(lines.reset_index(drop=True), expected, check_dtype=False)
    assert list(shown["block"]) == [*(f"split {n}" for n in range(32)), *["merge"] * 3]


@pytest.mark.parametrize(
    ("ties", "k", "steps"),
    [
        pytest.param(128, 50, 1, id="ranked"),
        pytest.param(129, 129, 2, id="all-of-the-bin-wanted"),
        pytest.param(129, 50, 3, id="told-apart-digit-by-digit"),
        pytest.param(2048, 50, 3, id="the-list-is-full"),
        pytest.param(2049, 50, 3, id="looked-for-in-the-row"),
    ],
)
def test_equal_ties_take_the_way_of_their_number(ties, k, steps):
    row = np.full((1, 4000), -1.0, np.float32)
    row[0, 1000 : 1000 + ties] = 1.0

    twin = assert_twin_right("shared_histogram", row, k)

    assert (twin.trace[0, -1]["step"] >= 0).sum() == steps
    assert bool(twin.trace[0, -1]["fits"][0]) == (ties <= 2048)


# ---- calls ---------------------------------------------------------------------------------------


def test_the_twin_is_reached_by_the_variants_name():
    logits = workloads.make("few_values", 2, 3000)
    named = twins.select("shared_histogram", logits, 100, trace=True)
    own = shared_histogram.select("shared_histogram", logits, 100, trace=True)
    np.testing.assert_array_equal(named.indices, own.indices)
    np.testing.assert_array_equal(named.trace, own.trace)
    for promise, message in (
        ({"tie_break": "lowest"}, r"^tie_break must be one of any, got 'lowest'$"),
        ({"order": "index"}, r"^order must be one of any, got 'index'$"),
    ):
        with pytest.raises(ValueError, match=message):
            twins.select("shared_histogram", logits, 100, **promise)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("vllm_k512", 512, {}), ValueError, "variant must be one of shared_histogram, got"),
        (("shared_histogram", 0, {}), ValueError, "k must be at least 1, got 0"),
        (
            ("shared_histogram", 4097, {}),
            ValueError,
            r"^k must be in \[1, 4096\] for shared_histogram, got 4097$",
        ),
        (("shared_histogram", True, {}), TypeError, "k must be an int, got bool"),
        (
            ("shared_histogram", 5, {"ends": np.array([9, 9])}),
            ValueError,
            r"ends must lie in \[0, num_cols\] = \[0, 8\], got 9",
        ),
    ],
)
def test_bad_calls_are_refused_by_name(arguments, error, message):
    variant, k, options = arguments
    with pytest.raises(error, match=message):
        shared_histogram.select(variant, np.zeros((2, 8), np.float32), k, **options)


def test_the_policy_is_exact():
    variant = schedules.parse_variant("shared_histogram")
    assert variant.policy.sound
    variant.refuse_unsound(study=False)


def test_compiled_steps_hold_no_floats():
    for name in ("normal", "constant"):
        logits = workloads.make(name, 1, 5000)
        shared_histogram.select("shared_histogram", logits, 50, trace=True)

    own = {
        name: list(map(str, function.nopython_signatures))
        for name, function in vars(shared_histogram).items()
        if hasattr(function, "nopython_signatures")
        and function.__module__ == shared_histogram.__name__
    }
    assert len(own) == 17
    assert all(own.values())
    assert not any("float" in signature for found in own.values() for signature in found)


def test_examples_in_the_docs():
    assert doctest.testmod(shared_histogram).failed == 0
