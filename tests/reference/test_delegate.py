"""The twin of the delegate selection: exact, lowest index on ties, on both sides of every bound."""

import doctest

import numpy as np
import pandas as pd
import pytest

from topk_lab import keys, schedules, targets, workloads
from topk_lab.contract import assert_exact, live_bounds
from topk_lab.reference import delegate, exact, key_range, trace, twins
from topk_lab.reference.trace_record import empty_trace, trace_words
from topk_lab.schedules import DELEGATE_POLICIES

NAN, INF = np.float32(np.nan), np.float32(np.inf)
GREATEST = np.finfo(np.float32).max
NUM_BINS = 1 << keys.RANGE_BITS
LOWEST = {"tie_break": "lowest"}
K512 = DELEGATE_POLICIES["k512"]


def variant_of(member):
    return f"delegate[member={member}]"


def rising(indices):
    """Indices of each row in order, -1 last."""
    return np.sort(indices.view(np.uint32), axis=1).view(np.int32)


def assert_twin_right(variant, logits, k, **lengths):
    """Hold a twin's answer against oracle and specification; return what it left."""
    starts, ends = live_bounds(*logits.shape, **lengths)
    twin = delegate.select(variant, logits, k, starts, ends, trace=True)
    assert_exact(
        logits, twin.indices, k=k, values=twin.values, tie_break="lowest", **lengths
    )  # fmt: skip
    indices, _ = exact.select(logits, k, starts, ends)
    np.testing.assert_array_equal(rising(twin.indices), indices)
    return twin


def passes(twin, row=0):
    """Records of the passes that were made for a row."""
    return twin.trace[row, 0][twin.trace[row, 0]["step"] >= 0]


def canonical_keys(row):
    """Keys that rise with the value, zeros alike, from NumPy alone: (n,) int64."""
    bits = row.copy().view(np.uint32)
    bits[np.isnan(row)] = 0x7FFFFFFF
    bits[row == 0] = 0
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000)).astype(np.int64)


def lying(row, lead):
    """A row that begins so many columns behind a line of memory: (1, n) view."""
    room = targets.aligned(np.full(row.size + 64, NAN))
    room[lead : lead + row.size] = row
    return room[None, lead : lead + row.size]


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", list(DELEGATE_POLICIES))
@pytest.mark.parametrize("name", workloads.names())
def test_workloads_with_poisoned_tails(name, member):
    policy = DELEGATE_POLICIES[member]
    most, whole = policy.max_k, policy.whole_columns
    longest = 2 * whole + 1
    for k in (1, most):
        row_ends = np.array(
            [longest, whole + 1, whole, 3073, 2049, k + 1, k, k - 1, 1, 0], np.int32
        )
        logits = workloads.make(
            name, len(row_ends), longest, row_ends=row_ends, poison="nan", seed=5
        )

        twin = assert_twin_right(variant_of(member), logits, k, row_ends=row_ends)

        assert twin.active_splits.tolist() == [1] * len(row_ends)
        assert twin.split_indices.size == 0
        assert twin.trace.shape == (len(row_ends), 1, 23)


@pytest.mark.parametrize("k", ["1", "n - 1", "n", "n + 1", "4096"])
@pytest.mark.parametrize("num_cols", [1, 2, 3, 4, 5, 6, 7, 700, 4095])
@pytest.mark.parametrize("name", ["normal", "few_values", "constant"])
def test_every_k_around_the_length_of_a_row(name, num_cols, k):
    k = {
        "1": 1,
        "n - 1": max(num_cols - 1, 1),
        "n": num_cols,
        "n + 1": num_cols + 1,
        "4096": 4096,
    }[k]
    assert_twin_right("delegate", workloads.make(name, 2, num_cols), k)


@pytest.mark.parametrize("lead", range(32))
def test_rows_may_begin_anywhere_on_a_line(lead):
    for name in ("normal", "few_values", "ascending", "all_neg_inf"):
        for member in ("k512", "k512_long"):
            whole = DELEGATE_POLICIES[member].whole_columns
            # Rows that end on each column of a quad, kept whole or not.
            for length in (513, *range(whole - 2, whole + 3), *range(30_000, 30_004)):
                row = workloads.make(name, 1, length, seed=lead)[0]
                for k in (1, 512):
                    assert_twin_right(variant_of(member), lying(row, lead), k)


@pytest.mark.parametrize("length", range(2, 40))
def test_short_rows_lie_beside_whole_quads(length):
    for lead in range(4):
        for name in ("normal", "few_values"):
            logits = lying(workloads.make(name, 1, length)[0], lead)
            for k in {1, 2, length // 2, length - 1} - {length}:
                assert_twin_right("delegate", logits, max(k, 1))


@pytest.mark.parametrize("member", list(DELEGATE_POLICIES))
@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan])
def test_more_equal_logits_than_a_block_keeps(member, value):
    policy = DELEGATE_POLICIES[member]
    for above in (0, 1, policy.max_k - 1):
        row = np.full(3 * policy.whole_columns, value, np.float32)
        better = np.linspace(7, row.size - 1, above).astype(int)
        row[better] = NAN if value == np.inf else 2.0  # less than NaN
        k = policy.max_k
        twin = assert_twin_right(variant_of(member), row[None], k)
        best = np.argsort(-canonical_keys(row), kind="stable")[:k]
        np.testing.assert_array_equal(rising(twin.indices)[0], np.sort(best))


@pytest.mark.parametrize("ties", [1, 2, 63, 64, 65, 66])
@pytest.mark.parametrize("length", [6000, 40_000])
def test_few_ties_are_compared_and_more_taken_as_they_come(length, ties):
    rng = np.random.default_rng(ties)
    columns = rng.permutation(length)
    row = -1 - rng.random(length, np.float32)
    row[columns[:ties]] = 1.0
    row[columns[ties : ties + 500]] = 2 + rng.random(500, np.float32)
    for k in (501, 500 + (ties + 1) // 2, 499 + ties, 500 + ties):
        if k <= 512:
            twin = assert_twin_right("delegate", row[None], k)
            last = passes(twin)[-1]
            assert last["above"] < k <= last["above"] + last["bin_size"]
            wanted_whole = last["above"] + last["bin_size"] == k
            assert last["fits"] or wanted_whole or ties > 64


def test_zeros_of_either_sign_are_equal():
    for length in (6000, 40_000):
        row = np.full(length, -0.0, np.float32)
        row[1::2] = 0.0
        row[7] = 1.0
        twin = assert_twin_right("delegate", row[None], 500, row_ends=np.array([length], np.int32))
        assert rising(twin.indices)[0].tolist() == list(range(500))
        # The zeros that were chosen come back with their own signs.
        np.testing.assert_array_equal(
            twin.values[0].view(np.uint32), row[twin.indices[0]].view(np.uint32)
        )


def test_any_nan_comes_back_as_the_canonical_one():
    logits = workloads.make("nan", 2, 40_000, count=700)
    twin = assert_twin_right("delegate", logits, 512)
    assert set(twin.values.view(np.uint32).ravel().tolist()) == {keys.NAN_BITS}


@pytest.mark.parametrize("infinite", [0, 1, 511, 512, 513, 30_000])
def test_cutoffs_at_either_infinity(infinite):
    pairs = [(INF, 1.0), (INF, GREATEST), (INF, -INF), (1.0, -INF)]
    pairs += [(NAN, INF), (NAN, GREATEST), (NAN, -INF)]
    for value, rest in pairs:
        row = np.full(40_000, rest, np.float32)
        row[np.random.default_rng(infinite).permutation(40_000)[:infinite]] = value
        for length in (6000, 40_000):
            assert_twin_right("delegate", row[None, :length], 512)


def test_row_starts_make_indices_relative():
    logits = workloads.make("few_values", 5, 60_000)
    row_starts = np.array([0, 1, 17_000, 59_999, 30_000], np.int32)
    row_ends = np.array([60_000, 600, 59_000, 17, 35_121], np.int32)

    twin = assert_twin_right("delegate", logits, 512, row_ends=row_ends, row_starts=row_starts)

    assert twin.indices[2].max() < 42_000


def test_rows_of_any_stride_are_read():
    storage = np.full((3, 50_000), NAN)
    logits = storage[:, 5:45_005]
    logits[:] = workloads.make("normal", 3, 45_000)

    for view in (logits, logits[::-1], logits[:, ::-1], np.broadcast_to(logits[1], (4, 45_000))):
        twin = delegate.select("delegate", view, 512)
        assert_exact(np.ascontiguousarray(view), twin.indices, values=twin.values)


@pytest.mark.parametrize("shape", [(0, 512), (3, 0), (0, 0)])
@pytest.mark.parametrize("order", ["any", "index", "value"])
def test_nothing_to_select_from(shape, order):
    twin = delegate.select("delegate", np.empty(shape, np.float32), 512, order=order, trace=True)

    assert twin.indices.shape == (shape[0], 512)
    assert (twin.indices == -1).all()
    assert (twin.values == -np.inf).all()
    assert (twin.trace["step"] == -1).all()


@pytest.mark.parametrize("order", ["index", "value"])
@pytest.mark.parametrize("name", ["normal", "few_values", "signed_zeros", "nan", "infinities"])
def test_answers_come_in_the_order_that_is_asked_for(name, order):
    row_ends = np.array([30_000, 5000, 700, 3, 0], np.int32)
    logits = workloads.make(name, 5, 30_000, row_ends=row_ends, poison="inf")

    twin = delegate.select("delegate", logits, 700, ends=row_ends, order=order, **LOWEST)

    indices, values = exact.select(logits, 700, ends=row_ends, order=order)
    np.testing.assert_array_equal(twin.indices, indices)
    np.testing.assert_array_equal(twin.values, values)


def test_a_row_alone_answers_as_among_others():
    logits = targets.aligned(workloads.make("near_equal", 40, 12_800))
    among = delegate.select(variant_of("k512"), logits, 512, trace=True)
    for row in (0, 17, 39):
        alone = delegate.select(variant_of("k512"), logits[row : row + 1], 512, trace=True)
        np.testing.assert_array_equal(alone.indices[0], among.indices[row])
        np.testing.assert_array_equal(alone.trace[0], among.trace[row])


# ---- steps ---------------------------------------------------------------------------------------


def some_ranges():
    rng = np.random.default_rng(0)
    ends = [0x007FFFFF, 0x7FFFFFFF, 0x80000000, 0xBF800000, 0xFF7FFFFF, 0xFF800000, 0xFFFFFFFF]
    near = [end + step for end in ends for step in (-300, -1, 0, 1, 300) if end + step < 2**32]
    drawn = rng.choice([*near, *rng.integers(0x007FFFFF, 2**32, 60)], (400, 2))
    return [tuple(sorted(map(int, pair))) for pair in drawn if pair[0] != pair[1]]


@pytest.mark.parametrize("focus", [0, 2])
@pytest.mark.parametrize("by_value", [False, True])
def test_bins_are_a_monotone_map_with_an_inverse(by_value, focus):
    rng = np.random.default_rng(1)
    both_signs = 0
    for low, top in some_ranges():
        span = key_range.KeyRange(low, top, 0, 0)
        both_signs += key_range.has_both_signs(span)
        exponent = 0
        if by_value and key_range.has_both_signs(span):
            exponent = key_range.value_exponent(span)
        bins = key_range.key_bins(span, exponent, focus)
        asked = np.unique(np.concatenate([rng.integers(low, top, 200), [low, top]]))
        numbers = np.array([key_range.bin_of(bins, key) for key in asked.tolist()])
        assert (np.diff(numbers) <= 0).all()
        assert numbers[-1] == 0
        assert numbers[0] < NUM_BINS
        # Half of them at least are within reach, unless there is no place for each.
        assert numbers[0] >= NUM_BINS // 2 or bins.shift == 0
        for place in {key_range.place_of(exponent, key) for key in asked.tolist()}:
            if exponent and place in (2**24, ~(2**24)):
                continue  # of all that is beyond: an end of the range
            at = place - bins.low
            least, most = key_range.lowest_key_at(bins, at), key_range.greatest_key_at(bins, at)
            assert key_range.place_of(exponent, least) == place
            assert key_range.place_of(exponent, most) == place
            assert least <= most
            assert key_range.place_of(exponent, least - 1) == place - 1
            assert key_range.place_of(exponent, most + 1) == place + 1
    assert both_signs > 20


def test_places_by_value_are_fixed_point_numbers():
    rng = np.random.default_rng(3)
    values = (rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 2, 2000)).astype(np.float32)
    values = np.concatenate([values, np.float32([0, 1e-45, -1e-45, 7.9999995, -7.9999995])])
    exponent = 127 + 2  # magnitudes below 8 come to less than 2^24
    for value, key in zip(values.tolist(), canonical_keys(values).tolist(), strict=True):
        whole = int(abs(value) * 2.0**21)
        assert key_range.place_of(exponent, key) == (~whole if value < 0 else whole)
    for value in (8.0, 1e30, np.inf, np.nan):
        key = int(canonical_keys(np.array([value], np.float32))[0])
        assert key_range.place_of(exponent, key) == 2**24
    for value in (-8.0, -1e30, -np.inf):
        key = int(canonical_keys(np.array([value], np.float32))[0])
        assert key_range.place_of(exponent, key) == ~(2**24)


def test_the_greatest_finite_magnitude_sets_the_scale():
    def exponent(least, greatest):
        low, top = canonical_keys(np.array([least, greatest], np.float32)).tolist()
        span = key_range.KeyRange(low, top, 0, 0)
        return key_range.value_exponent(span) if key_range.has_both_signs(span) else None

    assert exponent(-1.0, 4.0) == 129
    assert exponent(-8.0, 4.0) == 130
    assert exponent(-1e-6, 4.0) == 129
    # Infinity and NaN have no magnitude to go by.
    assert exponent(-np.inf, 4.0) == 129
    assert exponent(-4.0, np.inf) == 129
    assert exponent(-4.0, np.nan) == 129
    # The scale of tiny ones would be no float.
    assert exponent(-1e-40, 1e-38) == exponent(-np.inf, np.nan) == 24
    # A range of one sign has no need of it.
    assert exponent(1.0, 4.0) is exponent(0.0, 4.0) is exponent(-4.0, 0.0) is None


def test_the_ranked_bin_is_the_one():
    histogram = np.zeros(NUM_BINS, np.uint32)
    histogram[[3, 4, 200, -1]] = (5, 1, 7, 2)
    found = [tuple(key_range.find_ranked_bin(histogram, rank)) for rank in range(1, 16)]
    due = [(3, 5, 0)] * 5 + [(4, 1, 5)] + [(200, 7, 6)] * 7 + [(NUM_BINS - 1, 2, 13)] * 2
    assert found == due


@pytest.mark.parametrize("size", [8, 16, 32])
def test_delegates_are_the_greatest_of_lines(size):
    rng = np.random.default_rng(size)
    for lead in range(size):
        for length in (1, size - lead, size - lead + 1, 1000):
            row = rng.integers(1, 2**32, length, np.uint32)
            count = -(-(lead + length) // size)
            maxima = np.zeros(count, np.uint32)
            delegate.reduce_segments(delegate.Segments(row, lead, size, count), maxima)
            lines = np.zeros(count * size, np.uint32)
            lines[lead : lead + length] = row
            np.testing.assert_array_equal(maxima, lines.reshape(count, size).max(axis=1))


def test_segments_at_a_cut_are_listed_lowest_first():
    maxima = np.array([5, 9, 5, 1, 5, 7, 5, 8], np.uint32)
    listed = np.full(8, -1, np.int64)
    delegate.list_in_order(maxima, 5, 2, 5, listed)
    assert listed.tolist() == [0, 1, 2, 5, 7, -1, -1, -1]
    assert delegate.list_segments(maxima, 7, listed[:2]) == 3
    assert listed[:2].tolist() == [1, 5]


def crowded_segments(num):
    """A row of 4096 segments, of which `num` hold two logits near one, and all others zeros.

    They are in 384 groups or 385 of two delegates each, so that zero bounds the cut.
    """
    row = np.zeros((4096, 16), np.float32)
    held = np.r_[0:384, 2048 : 2048 + num - 384]
    row[held, 3] = 1 + np.arange(num) * np.float32(2**-23)
    row[held, 9] = row[held, 3]
    return lying(row.ravel(), 0)


@pytest.mark.parametrize("num", [767, 768, 769])
def test_segments_that_find_no_place_are_chosen_by_their_delegates(num):
    assert K512.segment_capacity == 768
    twin = assert_twin_right("delegate", crowded_segments(num), 512)
    counted = passes(twin)["histogram"].sum(axis=1).tolist()
    assert counted[0] == 2048  # groups
    # Logits of the segments that pass, as items; or first all delegates.
    assert counted[1] == (2 * num if num <= 768 else 4096)


@pytest.mark.parametrize("num", [2047, 2048, 2049])
def test_logits_that_find_no_place_are_told_apart_where_they_are(num):
    assert K512.item_capacity == 2048
    row = np.zeros((5, 512, 4), np.float32)
    # No more than 112 of 512 threads have any, in 448 groups: zero bounds the cut.
    some = np.zeros((5, 112, 4), np.float32)
    order = np.random.default_rng(num).permutation(some.size)[:num]
    some.reshape(-1)[order] = 1 + np.arange(num) * np.float32(2**-16)
    row[:, :112] = some
    twin = assert_twin_right("delegate", lying(row.ravel(), 0), 512)
    first, second, *_ = passes(twin)["histogram"]
    assert first.sum() == 2048  # groups
    assert second.sum() == num  # those above zero


def test_a_loose_bound_is_narrowed_before_segments_are_listed():
    # All groups but one lie close together: the first pass has them in a bin, the second apart.
    row = -1 - np.random.default_rng(0).random(100_000, np.float32)
    row[17] = 1e30
    twin = assert_twin_right("delegate", lying(row, 0), 512)
    made = passes(twin)
    counted = made["histogram"].sum(axis=1)
    assert 512 < counted[0] < 2048  # groups above the least of the threads' greatest
    assert made["bin_size"][0] == counted[1] == counted[0] - 1
    assert made["bin_size"][1] <= K512.loose_groups == 102
    assert 512 <= counted[2] <= K512.item_capacity
    assert len(made) == 4  # the last over items that share the lowest quarter


@pytest.mark.parametrize("name", ["k512", "k512_crowd", "k2048", "k4096"])
def test_the_range_of_groups_begins_where_wider_ones_are_still_k(name):
    policy = DELEGATE_POLICIES[name]
    member = delegate.Member(*(getattr(policy, field) for field in delegate.Member._fields))
    joined = policy.joined_groups
    groups = 1 << 30 | np.arange(policy.block_size * policy.groups).astype(np.uint32)
    wide = groups.reshape(-1, joined)
    np.random.default_rng(0).shuffle(wide, axis=1)
    wide[:, joined // 2] += np.uint32(1 << 31)  # the greatest of those that are one
    assert policy.max_k <= len(wide) < 2 * policy.max_k
    for emptied, begin in ((False, wide.max(axis=1).min()), (True, 1 << 30 | 1)):
        if emptied:  # one of them has no key: less than k may be left
            wide[0] = 0
            begin = groups[groups > 0].min()
        made = empty_trace(1, 1, keys.NUM_DELEGATE_PASSES)
        words = trace_words(made, 1, 1, keys.NUM_DELEGATE_PASSES)[0, 0]
        records = key_range.PassRecords(words, np.zeros(1, np.int64))
        bound, top = delegate.bound_of_groups(groups, member, policy.max_k, records)
        first = made[0, 0, 0]
        assert first["prefix"] == begin
        assert first["histogram"].sum() == (groups >= begin).sum()
        assert top == groups.max()
        # The k-th of the greatest, or of what a bin of few has with it; -inf where they are fewer.
        due = np.sort(groups)[-policy.max_k]
        assert (begin <= bound.low <= due) if due > 0 else bound.low == key_range.LOWEST_KEY


@pytest.mark.parametrize("ties", [64, 65, 1000])
def test_equal_items_are_told_apart_by_their_positions(ties):
    # The k-th of the items is one of so many equal ones, in segments that are not in order.
    rng = np.random.default_rng(ties)
    row = rng.random(60_000, np.float32)
    where = rng.permutation(row.size)
    row[where[:500]] = 3 + rng.random(500, np.float32)
    row[where[500 : 500 + ties]] = 2
    twin = assert_twin_right("delegate", lying(row, 0), 512)
    # Passes over positions are no passes over keys.
    counted = passes(twin)["histogram"].sum(axis=1)
    assert (counted[1:] <= K512.item_capacity).all()


@pytest.mark.parametrize("greatest", [np.nan, np.inf, np.finfo(np.float32).max])
def test_rows_whose_greatest_logits_are_too_many(greatest):
    rng = np.random.default_rng(0)
    for width in (9000, 100_000):
        row = rng.standard_normal(width).astype(np.float32)
        row[::3] = greatest
        for above in (None, np.inf, np.nan):
            if above is not None:
                row[rng.permutation(width)[:7]] = above
            assert_twin_right("delegate", lying(row, 0), 512)


def test_groups_take_fours_in_turns():
    member = delegate.Member(*(getattr(K512, field) for field in delegate.Member._fields))
    maxima = np.arange(1, 2 * 2048 + 7).astype(np.uint32)
    groups = delegate.greatest_delegates(maxima, member).reshape(512, 4)
    # Each run of 2048 goes to groups one further than the run before it: the last has six.
    assert groups[0].tolist() == [4099, 4100, 4097, 4098]
    assert groups[1].tolist() == [2056, 2053, 4101, 4102]
    assert groups[2:].tolist() == [
        [4 * thread + 2052, *range(4 * thread + 2049, 4 * thread + 2052)]
        for thread in range(2, 512)
    ]
    # Those that a thread doesn't keep, behind four runs, stay in their places.
    groups = delegate.greatest_delegates(np.arange(5 * 2048).astype(np.uint32), member)
    assert groups.tolist() == [*range(4 * 2048, 5 * 2048)]
    # A column before the first quad, two quads, and a column behind them. A thread that has but a
    # column has -inf in its other groups.
    row = delegate.Segments(np.arange(2**31, 2**31 + 10).astype(np.uint32), 3, 16, 1)
    kept = delegate.load_kept(row, np.arange(1))
    assert (kept.head, kept.tail, kept.num_whole) == (1, 9, 8)
    assert kept.positions.tolist() == [*range(1, 9), 0, 9]
    lowest = [0x007FFFFF] * 3
    groups = delegate.greatest_kept(kept, 3, member).tolist()
    assert groups[:4] == [2**31, *lowest]
    assert groups[4:12] == [*range(2**31 + 1, 2**31 + 9)]
    assert groups[12:20] == [0, 0, 0, 0, 2**31 + 9, *lowest]
    assert not any(groups[20:])


@pytest.mark.parametrize("phase", range(16))
def test_no_pattern_of_the_row_leaves_most_groups_empty(phase):
    member = delegate.Member(*(getattr(K512, field) for field in delegate.Member._fields))
    # One segment in four has a logit.
    maxima = np.zeros(8192, np.uint32)
    maxima[phase % 4 :: 4] = 7
    assert delegate.greatest_delegates(maxima, member).all()
    # One quad in 16 has: of the 6 of a thread, no two in the same place among 16.
    row = delegate.Segments(np.zeros(12_288, np.uint32), 0, 16, 768)
    row.keys.reshape(-1, 16, 4)[:, phase] = 2**31
    kept = delegate.load_kept(row, np.arange(768))
    groups = delegate.greatest_kept(kept, 0, member)
    assert np.count_nonzero(groups == 2**31) == 12_288 // 16
    assert np.unique(kept.quads).size == 12_288 // 4


@pytest.mark.parametrize("k", [1, 512])
@pytest.mark.parametrize("member", list(DELEGATE_POLICIES))
@pytest.mark.parametrize("name", workloads.names())
def test_every_pass_keeps_its_invariant(name, member, k):
    whole = DELEGATE_POLICIES[member].whole_columns
    row_ends = np.array([3 * whole, whole + 1, whole, 5000], np.int32)
    logits = workloads.make(name, 4, 3 * whole, row_ends=row_ends, poison="nan", seed=2)
    twin = delegate.select(variant_of(member), logits, k, ends=row_ends, trace=True)

    for row in range(4):
        made = passes(twin, row)
        assert twin.trace["step"][row, 0].tolist() == [
            *range(len(made)),
            *[-1] * (keys.NUM_DELEGATE_PASSES - len(made)),
        ]
        above = 0
        for record in made:
            threshold = record["threshold_bin"]
            better = int(record["histogram"][:threshold].sum())
            assert not record["histogram"][NUM_BINS:].any()
            assert record["bin_size"] == record["histogram"][threshold] == record["candidates"]
            # Another kind of keys begins with all of them.
            assert record["above"] - better in (0, above)
            # Too few groups may be finite: then -inf bounds the cut.
            is_short = record["step"] == 0 and threshold == 255
            assert record["above"] < k
            assert k <= record["above"] + record["bin_size"] or is_short
            assert record["fits"] == (record["bin_size"] <= 64)
            above = int(record["above"])
        assert made["emitted"].tolist() == ([*[0] * (len(made) - 1), k] if len(made) else [])
        # No range of a pass begins above the k-th key.
        key = np.sort(canonical_keys(logits[row, : row_ends[row]]))
        assert all(record["prefix"] <= key[-k] or record["threshold_bin"] == 255 for record in made)


def test_rows_are_passed_over_once_where_their_logits_spread():
    # One pass bounds the cut; what is left in the bin of the k-th item can be compared.
    logits = workloads.make("normal", 8, 100_000)
    twin = delegate.select(variant_of("k512"), logits, 512, trace=True)
    assert [len(passes(twin, row)) for row in range(8)] == [2] * 8


def test_records_have_room_for_every_pass():
    assert keys.NUM_DELEGATE_PASSES == 23
    rng = np.random.default_rng(0)
    most = 0
    for _ in range(300):
        # Keys that lie far apart, and close together where the k-th is.
        bits = rng.integers(0, 2**32, 30_000, np.uint32)
        bits[:20_000] &= np.uint32(0xFFFFFFFF << int(rng.integers(0, 31)) & 0xFFFFFFFF)
        bits[: rng.integers(1, 30_000)] = rng.choice([0, 0x3F800000, 0xFF800000, 0xBF800001])
        row = rng.permutation(bits).view(np.float32)
        row[rng.integers(0, row.size, 9)] = rng.choice([np.nan, np.inf, -np.inf, 0])
        k = int(rng.integers(1, 513))
        most = max(most, len(passes(assert_twin_right("delegate", row[None], k))))
    assert 5 <= most < 23, most


FIELDS = ["block", "step", "prefix", "threshold_bin", "bin_size", "above", "emitted"]
FIELDS += ["candidates", "fits"]


def test_a_trace_shows_each_pass():
    # The key of 1.0 is 0xbf800000; behind 300 ones come 31 neighbours of it, and 69 times the next.
    row = np.full(400, 1.0, np.float32)
    row[300:] = 1 + np.arange(1, 101).clip(max=32) * np.float32(2**-23)

    shown = trace(lying(row, 0)[0], 70, variant="delegate")

    # No two logits share a group, so that the bound is the 70th logit: a key, above which are 69.
    expected = pd.DataFrame([("row", 0, 0xBF800000, 1, 1, 69, 70, 1, True)], columns=FIELDS)
    pd.testing.assert_frame_equal(shown.frame(), expected, check_dtype=False)
    assert sorted(shown.indices.tolist()) == [*range(330, 400)]
    assert shown.steps.shape == (1, 23)
    assert shown.steps["histogram"].shape == (1, 23, 4096)


# ---- calls ---------------------------------------------------------------------------------------


def test_the_twin_is_reached_by_the_variants_name():
    logits = targets.aligned(workloads.make("few_values", 2, 30_000))
    for promises in ({}, LOWEST, {"order": "index"}, LOWEST | {"order": "value"}):
        named = twins.select("delegate", logits, 100, trace=True, **promises)
        own = delegate.select("delegate", logits, 100, trace=True, **promises)
        np.testing.assert_array_equal(named.indices, own.indices)
        np.testing.assert_array_equal(named.trace, own.trace)


def test_a_call_takes_the_member_of_its_shape():
    shapes = {
        "k512": (2, 30_000, 512),
        "k512_long": (1, 262_145, 512),
        "k512_pair": (133, 65_537, 512),
        "k512_crowd": (265, 30_000, 512),
        "k1024": (2, 60_000, 1024),
        "k2048": (2, 60_000, 1025),
        "k4096": (2, 80_000, 2049),
    }
    assert list(shapes) == list(DELEGATE_POLICIES)
    for member, (num_rows, num_cols, k) in shapes.items():
        logits = targets.aligned(workloads.make("normal", 2, num_cols))
        logits = np.broadcast_to(logits[1], (num_rows, num_cols))
        ends = np.r_[num_cols, np.zeros(num_rows - 1, int)]
        by_shape = delegate.select("delegate", logits, k, ends=ends, trace=True)
        named = delegate.select(variant_of(member), logits, k, ends=ends, trace=True)
        assert schedules.delegate_policy("delegate", *logits.shape, k)[0] == member
        assert len(passes(by_shape)) > 0
        np.testing.assert_array_equal(by_shape.trace, named.trace)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("vllm_k512", 512, {}), ValueError, "variant must be one of delegate, got 'vllm_k512'"),
        (("delegate", 0, {}), ValueError, "k must be at least 1, got 0"),
        (("delegate", 4097, {}), ValueError, r"k must be in \[1, 4096\] for delegate, got 4097"),
        (
            ("delegate[member=k1024]", 1025, {}),
            ValueError,
            r"k must be at most 1024 for delegate\[member=k1024\], got 1025",
        ),
        (("delegate[member=k8]", 5, {}), ValueError, "member must be one of by_shape, k512, .*k8"),
        (("delegate", True, {}), TypeError, "k must be an int, got bool"),
        (
            ("delegate", 5, {"order": "rank"}),
            ValueError,
            "order must be one of any, index, value, got 'rank'",
        ),
        (
            ("delegate", 5, {"tie_break": "highest"}),
            ValueError,
            "tie_break must be one of any, lowest, got 'highest'",
        ),
        (("delegate", 5, {"ends": np.array([9])}), ValueError, r"ends must lie in \[0, num_cols\]"),
        (("delegate", 5, {"ends": np.array([1.0])}), TypeError, "ends must be integers, got float"),
    ],
)
def test_what_the_twin_refuses(arguments, error, message):
    variant, k, options = arguments
    with pytest.raises(error, match=message):
        delegate.select(variant, np.zeros((1, 8), np.float32), k, **options)


@pytest.mark.parametrize(
    ("logits", "error", "message"),
    [
        (np.zeros((1, 8)), TypeError, "logits must be float32, got float64"),
        (np.zeros(8, np.float32), ValueError, "logits must have shape"),
    ],
)
def test_logits_that_the_twin_refuses(logits, error, message):
    with pytest.raises(error, match=message):
        delegate.select("delegate", logits, 5)


def test_examples_run():
    assert doctest.testmod(delegate) == (0, 5)


def test_every_member_is_named_in_the_schedules():
    assert [str(variant) for variant in schedules.ablations("delegate")] == [
        variant_of(member) for member in DELEGATE_POLICIES
    ]
