"""The twin of the AITER lineage: exact, pass by pass, for any k, and stable where that is asked."""

import doctest
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from topk_lab import keys, schedules, workloads
from topk_lab.contract import assert_exact, live_bounds
from topk_lab.reference import aiter, exact, trace, twins

VARIANTS = ("aiter_one_block", "aiter_one_block[digit_bits=11]")
WIDTHS = {"aiter_one_block": (12, 12, 8), "aiter_one_block[digit_bits=11]": (11, 11, 10)}
LOWEST = {"tie_break": "lowest"}


def assert_twin_right(variant, logits, k, **lengths):
    """Hold both of a twin's answers against oracle and specification; return what they left."""
    starts, ends = live_bounds(*logits.shape, **lengths)
    free = aiter.select(variant, logits, k, starts, ends)
    assert_exact(logits, free.indices, k=k, values=free.values, **lengths)
    stable = aiter.select(variant, logits, k, starts, ends, tie_break="lowest")
    indices, values = exact.select(logits, k, starts, ends)
    np.testing.assert_array_equal(stable.indices, indices)
    np.testing.assert_array_equal(stable.values, values)
    promises = {"tie_break": "lowest", "order": "index"}
    assert_exact(logits, stable.indices, k=k, values=stable.values, **promises, **lengths)
    return free, stable


def complement_keys(row, stable):
    """Keys that fall as values rise, from NumPy alone: (n,) int64."""
    bits = row.copy().view(np.uint32)
    bits[np.isnan(row)] = 0x7FFFFFFF
    if stable:
        bits[row == 0] = 0
    return np.where(bits >> 31, bits, ~bits & np.uint32(0x7FFFFFFF)).astype(np.int64)


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 512, 2048, 5000])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", workloads.names())
def test_workloads_with_poisoned_tails(variant, name, k):
    row_ends = np.array([12_001, 12_000, k + 1, k, k - 1, 1, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 12_001, row_ends=row_ends, poison="nan", seed=5)

    free, stable = assert_twin_right(variant, logits, k, row_ends=row_ends)

    for twin in (free, stable):
        assert twin.active_splits.tolist() == [1] * len(row_ends)
        assert twin.split_indices.size == 0
        assert twin.trace is None


@pytest.mark.parametrize("k", ["1", "n - 1", "n", "n + 1", "3 * n", "5000"])
@pytest.mark.parametrize("num_cols", [1, 2, 700, 5001])
@pytest.mark.parametrize("name", ["normal", "few_values", "constant"])
def test_every_k_around_the_length_of_a_row(name, num_cols, k):
    k = {
        "1": 1,
        "n - 1": max(num_cols - 1, 1),
        "n": num_cols,
        "n + 1": num_cols + 1,
        "3 * n": 3 * num_cols,
        "5000": 5000,
    }[k]
    for variant in VARIANTS:
        assert_twin_right(variant, workloads.make(name, 2, num_cols), k)


@pytest.mark.parametrize("poison", ["inf", "1e20"])
def test_other_poisons(poison):
    row_ends = np.array([7000, 601, 600, 599], np.int32)
    for name in ("few_values", "near_equal", "masked_blocks", "infinities"):
        logits = workloads.make(name, len(row_ends), 7000, row_ends=row_ends, poison=poison)
        assert_twin_right("aiter_one_block", logits, 600, row_ends=row_ends)


def test_row_starts_make_indices_relative():
    logits = workloads.make("few_values", 5, 40_000)
    row_starts = np.array([0, 1, 17_000, 39_999, 30_000], np.int32)
    row_ends = np.array([40_000, 600, 39_000, 17, 35_121], np.int32)

    for twin in assert_twin_right(
        "aiter_one_block", logits, 512, row_ends=row_ends, row_starts=row_starts
    ):
        assert twin.indices[2].max() < 22_000
        assert twin.indices[4].max() < 5121


def test_rows_of_any_stride_are_read():
    storage = np.full((3, 9000), np.float32(np.nan))
    logits = storage[:, 5:8005]
    logits[:] = workloads.make("normal", 3, 8000)

    for view in (logits, logits[::-1], logits[:, ::-1], np.broadcast_to(logits[1], (4, 8000))):
        twin = aiter.select("aiter_one_block", view, 512)
        assert_exact(np.ascontiguousarray(view), twin.indices, values=twin.values)


@pytest.mark.parametrize("shape", [(0, 512), (3, 0), (0, 0)])
@pytest.mark.parametrize("promises", [{}, LOWEST])
def test_nothing_to_select_from(shape, promises):
    twin = aiter.select("aiter_one_block", np.empty(shape, np.float32), 512, trace=True, **promises)

    assert twin.indices.shape == (shape[0], 512)
    assert (twin.indices == -1).all()
    assert (twin.values == -np.inf).all()
    assert twin.trace.shape == (shape[0], 1, 3)
    assert (twin.trace["step"] == -1).all()


def test_winners_come_from_the_front_and_ties_from_the_back():
    row = np.array([[1.0, 7.0, 1.0, 9.0, 0.5, 1.0, 8.0, 1.0]], np.float32)

    for variant in VARIANTS:
        # The ties that are met first take the last slots; what is met later finds none left.
        assert aiter.select(variant, row, 5).indices[0].tolist() == [1, 3, 6, 2, 0]
        # Whatever shares the k-th key's fixed bits is a tie, though it be alone.
        assert aiter.select(variant, row, 3).indices[0].tolist() == [3, 6, 1]
        assert aiter.select(variant, row, 5, order="index").indices[0].tolist() == [0, 1, 2, 3, 6]
        assert aiter.select(variant, row, 5, **LOWEST).indices[0].tolist() == [0, 1, 2, 3, 6]
        assert aiter.select(variant, row, 7).indices[0].tolist() == [1, 3, 6, 7, 5, 2, 0]


def test_a_tie_of_both_zeros_goes_by_the_index_where_the_answer_is_stable():
    row = np.full((1, 3000), -0.0, np.float32)
    row[0, 1::2] = 0.0
    row[0, 7] = 1.0

    for variant in VARIANTS:
        free = aiter.select(variant, row, 1000)
        assert set(free.indices[0].tolist()) == set(range(1, 2000, 2))
        assert_exact(row, free.indices, values=free.values)
        stable = aiter.select(variant, row, 1000, **LOWEST)
        assert stable.indices[0].tolist() == list(range(1000))
        # The zeros that were chosen come back with their own signs.
        np.testing.assert_array_equal(stable.values.view(np.uint32), row[:, :1000].view(np.uint32))


@pytest.mark.parametrize("promises", [{}, LOWEST])
def test_any_nan_comes_back_as_the_canonical_one(promises):
    logits = workloads.make("nan", 2, 20_000, count=700)

    twin = aiter.select("aiter_one_block", logits, 512, **promises)

    assert set(twin.values.view(np.uint32).ravel().tolist()) == {keys.NAN_BITS}
    for row in range(2):
        first = np.flatnonzero(np.isnan(logits[row]))[:512]
        np.testing.assert_array_equal(np.sort(twin.indices[row]), first)


def test_either_promise_makes_the_same_answer():
    logits = workloads.make("few_values", 3, 8000)
    asked = [LOWEST, {"order": "index"}, LOWEST | {"order": "index"}]
    answers = [aiter.select("aiter_one_block", logits, 900, **one).indices for one in asked]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])
    assert (np.diff(answers[0], axis=1) > 0).all()
    assert (np.diff(aiter.select("aiter_one_block", logits, 900).indices, axis=1) < 0).any()


@pytest.mark.parametrize("promises", [{}, LOWEST])
def test_a_row_alone_answers_as_among_others(promises):
    logits = workloads.make("near_equal", 40, 12_000)

    among = aiter.select("aiter_one_block", logits, 1024, trace=True, **promises)

    for row in (0, 17, 39):
        alone = aiter.select("aiter_one_block", logits[row : row + 1], 1024, trace=True, **promises)
        np.testing.assert_array_equal(alone.indices[0], among.indices[row])
        np.testing.assert_array_equal(alone.trace[0], among.trace[row])


# ---- passes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 512, 3000])
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", workloads.names())
def test_every_pass_keeps_its_invariant(variant, name, stable, k):
    live = 16_500
    logits = workloads.make(name, 2, 17_000, row_ends=live, poison="nan", seed=2)
    promises = LOWEST if stable else {}
    twin = aiter.select(variant, logits, k, ends=np.full(2, live), trace=True, **promises)

    for row in range(2):
        key = complement_keys(logits[row, :live], stable)
        steps = twin.trace[row, 0]
        made = int((steps["step"] >= 0).sum())
        assert steps["step"].tolist() == [*range(made), *[-1] * (3 - made)]
        asked, prefix, remaining, shift = np.ones(live, bool), 0, k, 32
        for number, record in enumerate(steps[:made]):
            width = WIDTHS[variant][number]
            shift -= width
            digits = key >> shift & (1 << width) - 1
            histogram = np.bincount(digits[asked], minlength=1 << width)
            threshold, size = int(record["threshold_bin"]), int(record["bin_size"])
            above = int(histogram[:threshold].sum())
            np.testing.assert_array_equal(record["histogram"][: 1 << width], histogram)
            assert not record["histogram"][1 << width :].any()
            assert record["prefix"] == prefix
            assert size == histogram[threshold]
            assert above < remaining <= above + size

            remaining -= above
            assert record["above"] == k - remaining
            assert record["fits"] == (size == remaining)
            asked &= digits == threshold
            prefix |= threshold << shift
            last = size == remaining or number == 2
            assert last == (number == made - 1)
            assert record["emitted"] == (k if last else 0)
            assert record["candidates"] == (0 if last else size)
        chosen = np.sort(key[twin.indices[row]])
        np.testing.assert_array_equal(chosen, np.sort(key)[:k])


FIELDS = ["block", "step", "prefix", "threshold_bin", "bin_size", "above", "emitted"]
FIELDS += ["candidates", "fits"]


@pytest.mark.parametrize(
    ("variant", "lines"),
    [
        (
            "aiter_one_block",
            # 1.0 is 0x3f800000, its key 0x407fffff: digits 0x407, 0xfff, 0xff.
            [
                ("row", 0, 0x00000000, 0x407, 4, 1, 0, 4, False),
                ("row", 1, 0x40700000, 0xFFF, 3, 2, 0, 3, False),
                ("row", 2, 0x407FFF00, 0xFF, 2, 3, 4, 0, False),
            ],
        ),
        (
            "aiter_one_block[digit_bits=11]",
            # 0x203, 0x7ff, 0x3ff.
            [
                ("row", 0, 0x00000000, 0x203, 4, 1, 0, 4, False),
                ("row", 1, 0x40600000, 0x7FF, 3, 2, 0, 3, False),
                ("row", 2, 0x407FFC00, 0x3FF, 2, 3, 4, 0, False),
            ],
        ),
    ],
)
def test_a_trace_shows_each_pass(variant, lines):
    above_one = np.nextafter(np.float32(1), np.float32(2))
    row = np.array([0.5, 1.0, 1.0625, above_one, 2.0, 1.0], np.float32)

    shown = trace(row, 4, variant=variant)

    expected = pd.DataFrame(lines, columns=FIELDS)
    pd.testing.assert_frame_equal(shown.frame(), expected, check_dtype=False)
    assert shown.indices.tolist() == [2, 3, 4, 1]
    assert shown.steps.shape == (1, 3)
    assert shown.steps["histogram"].shape == (1, 3, 4096)
    assert str(shown.variant) == variant


@pytest.mark.parametrize(
    ("k", "passes", "fits"),
    [
        pytest.param(1, 1, True, id="the-one-of-its-bin"),
        pytest.param(2, 3, False, id="one-of-two-equal-ones"),
        pytest.param(3, 1, True, id="both-of-them"),
        pytest.param(4, 2, True, id="told-apart-by-the-second-digit"),
        pytest.param(5, 1, True, id="all-of-a-mixed-bin"),
        pytest.param(6, 1, True, id="all-but-the-last"),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_pass_follows_one_whose_bin_is_wanted_whole(variant, k, passes, fits):
    row = np.array([1.0625, 8.0, 4.0, 1.0, 4.0, -3.0, -5.0], np.float32)

    for promises in ({}, LOWEST):
        twin = aiter.select(variant, row[None], k, trace=True, **promises)
        steps = twin.trace[0, 0]
        assert (steps["step"] >= 0).sum() == passes
        assert bool(steps["fits"][passes - 1]) == fits
        assert_exact(row[None], twin.indices, k=k, **promises)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("normal", 2),
        ("ascending", 2),
        ("constant", 3),
        ("all_neg_inf", 3),
        ("same_leading_bits", 3),
    ],
)
def test_a_row_is_read_once_a_pass_and_once_to_collect(monkeypatch, name, passes):
    calls = Counter()

    def counted(name, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    for step, function in vars(aiter).copy().items():
        if hasattr(function, "py_func") and function.__module__ == aiter.__name__:
            monkeypatch.setattr(aiter, step, counted(step, function.py_func))
    # Called from Python, a compiled key would come back as an int: another specialisation.
    monkeypatch.setattr(
        aiter, "complement_key", lambda bits: np.uint32(keys.complement_key(np.uint32(bits)))
    )
    bits = workloads.make(name, 1, 3000)[0].view(np.uint32)
    positions = np.full(512, -777, np.int32)

    cutoff = aiter.find_cutoff(bits, 12, False, 512, np.empty((3, 0), np.uint32))
    assert aiter.collect_by_arrival(bits, cutoff, positions) == 512

    assert calls["count_matching_digits"] == passes == cutoff.num_digits
    assert_exact(bits.view(np.float32)[None], positions[None])


# ---- calls ---------------------------------------------------------------------------------------


def test_the_twin_is_reached_by_the_variants_name():
    logits = workloads.make("few_values", 2, 3000)
    for promises in ({}, LOWEST, {"order": "index"}):
        named = twins.select("aiter_one_block", logits, 100, trace=True, **promises)
        own = aiter.select("aiter_one_block", logits, 100, trace=True, **promises)
        np.testing.assert_array_equal(named.indices, own.indices)
        np.testing.assert_array_equal(named.trace, own.trace)
    for variant in ("vllm_generic", "sglang_block512"):
        with pytest.raises(ValueError, match=r"^tie_break must be one of any, got 'lowest'$"):
            twins.select(variant, logits, 100, tie_break="lowest")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("vllm_k512", 512, {}), ValueError, "variant must be one of aiter_one_block, got"),
        (("aiter_one_block[digit_bits=8]", 5, {}), ValueError, "must be one of 11, 12, got 8"),
        (("aiter_one_block", 0, {}), ValueError, "k must be at least 1, got 0"),
        (("aiter_one_block", True, {}), TypeError, "k must be an int, got bool"),
        (
            ("aiter_one_block", 5, {"order": "value"}),
            ValueError,
            "order must be one of any, index, got 'value'",
        ),
        (
            ("aiter_one_block", 5, {"tie_break": "highest"}),
            ValueError,
            "tie_break must be one of any, lowest, got 'highest'",
        ),
        (
            ("aiter_one_block", 5, {"ends": np.array([9, 9])}),
            ValueError,
            r"ends must lie in \[0, num_cols\] = \[0, 8\], got 9",
        ),
    ],
)
def test_bad_calls_are_refused_by_name(arguments, error, message):
    variant, k, options = arguments
    with pytest.raises(error, match=message):
        aiter.select(variant, np.zeros((2, 8), np.float32), k, **options)


def test_the_policies_of_the_lineage_are_exact():
    for variant in (schedules.parse_variant(text) for text in VARIANTS):
        assert variant.policy.sound
        variant.refuse_unsound(study=False)


def test_compiled_steps_hold_no_floats():
    aiter.select("aiter_one_block", workloads.make("normal", 1, 2000), 50, trace=True)

    own = [
        list(map(str, function.nopython_signatures))
        for function in vars(aiter).values()
        if hasattr(function, "nopython_signatures") and function.__module__ == aiter.__name__
    ]
    assert len(own) == 9
    assert all(own)
    assert not any("float" in signature for signatures in own for signature in signatures)


def test_examples_in_the_docs():
    assert doctest.testmod(aiter).failed == 0
