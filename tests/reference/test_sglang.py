"""The twin of the SGLang lineage: exact, pass by pass, and wrong where its source was."""

import doctest
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from topk_lab import keys, models, schedules, workloads
from topk_lab.contract import assert_exact, canonical_key, find_violations, live_bounds
from topk_lab.reference import exact, sglang, trace, twins, vllm

BOTH = ("sglang_block512", "sglang_block1024")
# One policy of each size of stash: 5120, 6144 and 16384 positions.
SOUND = (*BOTH, "sglang_block1024[stash_kib=48]", "sglang_block512[stash_kib=128]")
DROPPING = ("sglang_block512[overflow=drop]", "sglang_block1024[stash_kib=48,overflow=drop]")
ABOVE_THE_STASH = (6145, 6144, 5121, 5120)


def assert_twin_right(variant, logits, k=1024, **lengths):
    """Hold a twin against the oracle and the specification; return what it left."""
    starts, ends = live_bounds(*logits.shape, **lengths)
    twin = sglang.select(variant, logits, k, starts, ends)
    assert_exact(logits, twin.indices, k=k, values=twin.values, **lengths)
    _, values = exact.select(logits, k, starts, ends)
    np.testing.assert_array_equal(np.sort(twin.values, axis=1), np.sort(values, axis=1))
    return twin


def capacity_of(variant):
    return schedules.parse_variant(variant).policy.stash_capacity


def keys_and_bins(row):
    """Order keys and coarse bins of a row, from NumPy's own float16: (n,) int64 each."""
    bits = row.copy().view(np.uint32)
    nan = np.isnan(row)
    bits[nan] = keys.NAN_BITS
    key = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000)).astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        half = row.astype(np.float16).view(np.uint16)
    half[nan] = 0x7FFF
    half_key = np.where(half >> 15, ~half, half | np.uint16(0x8000))
    return key, half_key.astype(np.int64) >> 8


def passes_and_reads(variant, row, k=1024):
    """Passes made, and reads of the row: one a counted pass, and one that first stores anything."""
    steps = trace(row, k, variant=variant).steps[0]
    steps = steps[steps["step"] >= 0]
    stored = (steps["emitted"] > 0) | (steps["candidates"] > 0)
    return len(steps), 2 + int(np.argmax(stored))


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1024, 512, 1])
@pytest.mark.parametrize("variant", SOUND)
@pytest.mark.parametrize("name", workloads.names())
def test_workloads_with_poisoned_tails(variant, name, k):
    row_ends = np.array([20_001, 20_000, *ABOVE_THE_STASH, k + 1, k, k - 1, 1, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 20_001, row_ends=row_ends, poison="nan", seed=5)

    twin = assert_twin_right(variant, logits, k, row_ends=row_ends)

    assert twin.active_splits.tolist() == [1] * len(row_ends)
    assert twin.split_indices.size == 0


@pytest.mark.parametrize("k", [2, 1023])
@pytest.mark.parametrize("poison", ["inf", "1e20"])
def test_other_k_and_poisons(k, poison):
    row_ends = np.array([*ABOVE_THE_STASH, k + 1, k, k - 1], np.int32)
    for name in ("few_values", "near_equal", "masked_blocks", "infinities"):
        logits = workloads.make(name, len(row_ends), 7000, row_ends=row_ends, poison=poison)
        assert_twin_right("sglang_block1024", logits, k, row_ends=row_ends)


@pytest.mark.parametrize("variant", BOTH)
def test_row_starts_make_indices_relative(variant):
    logits = workloads.make("few_values", 5, 40_000)
    row_starts = np.array([0, 1, 17_000, 39_999, 30_000], np.int32)
    row_ends = np.array([40_000, 600, 39_000, 17, 35_121], np.int32)

    twin = assert_twin_right(variant, logits, row_ends=row_ends, row_starts=row_starts)

    assert twin.indices[2].max() < 22_000
    assert twin.indices[4].max() < 5121


@pytest.mark.parametrize("variant", SOUND)
@pytest.mark.parametrize("count", [2, 50, 2000])
def test_lowest_indices_win_ties(variant, count):
    logits = workloads.make("few_values", 3, 40_000, count=count)

    twin = sglang.select(variant, logits, 1024)

    expected, _ = exact.select(logits, 1024)
    np.testing.assert_array_equal(np.sort(twin.indices, axis=1), expected)


def test_positive_zeros_win_over_negative_ones():
    row = np.full((1, 6000), -0.0, np.float32)
    row[0, 1::2] = 0.0

    twin = sglang.select("sglang_block1024", row, 1024, order="index")

    assert twin.indices[0].tolist() == list(range(1, 2048, 2))
    assert_exact(row, twin.indices, order="index")


@pytest.mark.parametrize("variant", BOTH)
def test_any_nan_comes_back_as_the_canonical_one(variant):
    logits = workloads.make("nan", 2, 20_000, count=200)

    twin = sglang.select(variant, logits, 1024)

    bits = twin.values.view(np.uint32)[np.isnan(twin.values)]
    assert len(bits) == 400
    assert set(bits.tolist()) == {keys.NAN_BITS}


@pytest.mark.parametrize("variant", BOTH)
def test_more_nan_than_k_are_tied(variant):
    logits = workloads.make("nan", 1, 20_000, count=6000)

    twin = sglang.select(variant, logits, 1024, order="index")

    first = np.flatnonzero(np.isnan(logits[0]))[:1024]
    np.testing.assert_array_equal(twin.indices[0], first)


@pytest.mark.parametrize("shape", [(0, 1024), (3, 0), (0, 0)])
@pytest.mark.parametrize("variant", BOTH)
def test_nothing_to_select_from(variant, shape):
    twin = sglang.select(variant, np.empty(shape, np.float32), 1024, trace=True)

    assert twin.indices.shape == (shape[0], 1024)
    assert (twin.indices == -1).all()
    assert (twin.values == -np.inf).all()
    assert twin.trace.shape == (shape[0], 1, 5)
    assert (twin.trace["step"] == -1).all()


@pytest.mark.parametrize("k", [1, 512, 1024])
@pytest.mark.parametrize("name", ["normal", "few_values", "near_equal"])
def test_order_by_index_rises(name, k):
    row_ends = np.array([20_000, 5121, k + 1, k, k - 1, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 20_000, row_ends=row_ends, poison="nan")
    _, ends = live_bounds(*logits.shape, row_ends=row_ends)

    free = sglang.select("sglang_block512", logits, k, ends=ends)
    rising = sglang.select("sglang_block512", logits, k, ends=ends, order="index")

    question = {"k": k, "row_ends": row_ends, "values": rising.values}
    assert_exact(logits, rising.indices, order="index", **question)
    np.testing.assert_array_equal(np.sort(free.indices, axis=1), np.sort(rising.indices, axis=1))


def test_a_row_alone_answers_as_among_others():
    logits = workloads.make("near_equal", 40, 12_000)

    among = sglang.select("sglang_block1024", logits, 1024, trace=True)

    for row in (0, 17, 39):
        alone = sglang.select("sglang_block1024", logits[row : row + 1], 1024, trace=True)
        np.testing.assert_array_equal(alone.indices[0], among.indices[row])
        np.testing.assert_array_equal(alone.trace[0], among.trace[row])


def test_rows_of_any_stride_are_read():
    storage = np.full((3, 9000), np.float32(np.nan))
    logits = storage[:, 5:8005]
    logits[:] = workloads.make("normal", 3, 8000)

    for view in (logits, logits[::-1], logits[:, ::-1], np.broadcast_to(logits[1], (4, 8000))):
        copied = np.ascontiguousarray(view)
        twin = sglang.select("sglang_block1024", view, 1024)
        assert_exact(copied, twin.indices, values=twin.values)


# ---- passes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1024, 37])
@pytest.mark.parametrize("variant", SOUND)
@pytest.mark.parametrize("name", workloads.names())
def test_every_pass_keeps_its_invariant(variant, name, k):
    live = 16_500
    logits = workloads.make(name, 2, 17_000, row_ends=live, poison="nan", seed=2)
    twin = sglang.select(variant, logits, k, ends=np.full(2, live), trace=True)
    capacity = capacity_of(variant)

    for row in range(2):
        key, coarse = keys_and_bins(logits[row, :live])
        digits = [coarse, *(key >> shift & 0xFF for shift in (24, 16, 8, 0))]
        steps = twin.trace[row, 0]
        made = int((steps["step"] >= 0).sum())
        assert steps["step"].tolist() == [*range(made), *[-1] * (5 - made)]
        asked, prefix, remaining, collected = np.ones(live, bool), 0, k, False
        for number, record in enumerate(steps[:made]):
            histogram = np.bincount(digits[number][asked], minlength=256)
            threshold, size = int(record["threshold_bin"]), int(record["bin_size"])
            above = int(histogram[threshold + 1 :].sum())
            np.testing.assert_array_equal(record["histogram"][:256], histogram)
            assert not record["histogram"][256:].any()
            assert record["prefix"] == prefix
            assert size == histogram[threshold]
            assert above <= remaining < above + size

            remaining -= above
            assert record["above"] == k - remaining
            assert record["fits"] == (size <= capacity)
            asked &= digits[number] == threshold
            if number:
                prefix |= threshold << 8 * (4 - number)
            last = number == 4 or remaining == 0
            assert last == (number == made - 1)
            # Nothing is selected or stashed before the last read of the row.
            collected |= size <= capacity or last
            ties = remaining > 0 and number == 4
            emitted = k if ties else k - remaining
            assert record["emitted"] == (emitted if collected else 0)
            assert record["candidates"] == (size if collected and not last else 0)
        assert collected
        chosen = np.sort(key[twin.indices[row]])
        np.testing.assert_array_equal(chosen, np.sort(key)[-k:])


@pytest.mark.parametrize(
    ("name", "num_cols", "passes", "reads"),
    [
        pytest.param("normal", 20_000, 4, 2, id="the-coarse-bin-fits"),
        pytest.param("uniform", 131_072, 5, 4, id="the-coarse-bin-is-too-large"),
        pytest.param("constant", 5120, 5, 2, id="ties-that-fit"),
        pytest.param("constant", 5121, 5, 6, id="ties-beyond-the-stash"),
        pytest.param("all_neg_inf", 5121, 5, 6, id="masks-beyond-the-stash"),
        pytest.param("same_leading_bits", 20_000, 5, 5, id="the-last-digit-tells-apart"),
    ],
)
def test_passes_and_reads(name, num_cols, passes, reads):
    row = workloads.make(name, 1, num_cols)[0]

    assert passes_and_reads("sglang_block1024", row) == (passes, reads)


@pytest.mark.parametrize(
    ("period", "reads"),
    [pytest.param(6, 2, id="5000-below-fit"), pytest.param(7, 6, id="6000-below-do-not")],
)
def test_a_row_whose_bins_end_at_k_is_done_at_once(period, reads):
    row = np.zeros(1000 * period, np.float32)
    row[::period] = 2.0

    done = trace(row, 1000, variant="sglang_block1024")

    # The bin of zeros is the first that holds more than is wanted, and none of it is.
    coarse = done.steps[0][0]
    assert done.steps[0]["step"].tolist() == [0, -1, -1, -1, -1]
    assert (coarse["bin_size"], coarse["above"]) == (1000 * (period - 1), 1000)
    assert (coarse["emitted"], coarse["candidates"]) == (1000, 0)
    assert sorted(done.indices.tolist()) == list(range(0, len(row), period))
    assert passes_and_reads("sglang_block1024", row, 999) == (5, 2)
    assert passes_and_reads("sglang_block1024", row, 1001) == (5, reads)


@pytest.mark.parametrize(
    ("value", "length", "reads"),
    [(1.0, 5120, 2), (1.0, 5121, 6), (np.nan, 5121, 6), (-np.inf, 5121, 6), (0.0, 1500, 2)],
)
def test_a_row_is_read_once_a_counted_pass_and_once_to_collect(monkeypatch, value, length, reads):
    calls = Counter()

    def counted(name, function):
        def call(*arguments):
            calls[name] += 1
            return function(*arguments)

        return call

    for name, function in vars(sglang).copy().items():
        if hasattr(function, "py_func") and function.__module__ == sglang.__name__:
            monkeypatch.setattr(sglang, name, counted(name, function.py_func))
    # Called from Python, a compiled key would come back as an int: another specialisation.
    monkeypatch.setattr(sglang, "order_key", lambda bits: np.uint32(keys.order_key(bits)))
    bits = np.full(length, keys.canonical_bits(np.float32(value).view(np.uint32)), np.uint32)
    positions = np.full(1024, -777, np.int32)

    sglang.select_with_stash(bits, 5120, True, positions, np.empty((5, 0), np.uint32))

    assert positions.tolist() == list(range(1024))
    whole_rows = ("count_coarse_bins", "count_digits", "collect_candidates")
    assert sum(calls[name] for name in whole_rows) == reads
    assert calls["collect_candidates"] == 1


def test_a_trace_shows_each_pass():
    # Neighbouring floats from 1.0 on: one coarse bin, told apart by the two last digits.
    row = (np.arange(6000, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)

    shown = trace(row, 1024, variant="sglang_block1024")

    fields = ["block", "step", "prefix", "threshold_bin", "bin_size", "above", "emitted"]
    expected = pd.DataFrame(
        [
            ("row", 0, 0x00000000, 188, 6000, 0, 0, 0, False),
            ("row", 1, 0x00000000, 191, 6000, 0, 0, 0, False),
            ("row", 2, 0xBF000000, 128, 6000, 0, 0, 0, False),
            ("row", 3, 0xBF800000, 19, 256, 880, 880, 256, True),
            ("row", 4, 0xBF801300, 111, 1, 1024, 1024, 0, True),
        ],
        columns=[*fields, "candidates", "fits"],
    )
    pd.testing.assert_frame_equal(shown.frame(), expected, check_dtype=False)
    assert sorted(shown.indices.tolist()) == list(range(4976, 6000))
    assert shown.steps.shape == (1, 5)
    assert str(shown.variant) == "sglang_block1024"


# ---- a stash that drops --------------------------------------------------------------------------


@pytest.mark.parametrize("variant", DROPPING)
@pytest.mark.parametrize("name", workloads.names())
def test_a_drop_never_gives_garbage(variant, name):
    capacity = capacity_of(variant)
    row_ends = np.array([40_000, capacity + 1, capacity, 1025, 1024, 100, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 40_000, row_ends=row_ends, poison="inf", seed=1)
    starts, ends = live_bounds(*logits.shape, row_ends=row_ends)

    twin = sglang.select(variant, logits, 1024, starts, ends)

    found = find_violations(logits, twin.indices, row_ends=row_ends, values=twin.values)
    assert {violation.kind for violation in found} <= {"wrong_values"}
    assert {violation.row for violation in found} <= {0, 1}  # the others fit


@pytest.mark.parametrize("variant", DROPPING)
@pytest.mark.parametrize("name", ["uniform", "near_one", "tiny", "near_equal", "few_values"])
def test_a_drop_keeps_the_first_that_arrive(variant, name):
    logits = workloads.make(name, 2, 60_000)
    capacity = capacity_of(variant)

    twin = sglang.select(variant, logits, 1024, trace=True)

    for row in range(2):
        _, coarse = keys_and_bins(logits[row])
        threshold = twin.trace[row, 0, 0]["threshold_bin"]
        stashed = np.flatnonzero(coarse == threshold)[:capacity]
        seen = np.sort(np.concatenate([np.flatnonzero(coarse > threshold), stashed]))
        expected, _ = exact.select(logits[row, seen][None], 1024)
        np.testing.assert_array_equal(np.sort(twin.indices[row]), seen[expected[0]])
        assert twin.trace[row, 0, 0]["candidates"] == min(capacity, (coarse == threshold).sum())
        assert twin.trace[row, 0, 1]["histogram"].sum() == len(stashed)


@pytest.mark.parametrize(
    ("name", "num_cols", "capacity"),
    [
        ("uniform", 131_072, 5120),
        ("uniform", 131_072, 6144),
        ("near_one", 32_768, 5120),
        ("near_one", 32_768, 16_384),
        ("tiny", 32_768, 6144),
    ],
)
def test_a_drop_loses_as_many_winners_as_the_model_expects(name, num_cols, capacity):
    k, num_rows = 1024, 8
    logits = workloads.make(name, num_rows, num_cols, seed=4)
    variant = f"sglang_block1024[stash_kib={capacity * 8 // 1024},overflow=drop]"

    twin = sglang.select(variant, logits, k, trace=True)

    kept = expected = variance = 0.0
    for row in range(num_rows):
        best = np.sort(canonical_key(logits[row]))[-k:]
        chosen = canonical_key(logits[row, twin.indices[row]])
        kept += (Counter(best.tolist()) & Counter(chosen.tolist())).total()
        coarse = twin.trace[row, 0, 0]
        size, above = int(coarse["bin_size"]), int(coarse["above"])
        expected += k * models.expected_recall(k, above, size, capacity)
        share = (k - above) / size  # hypergeometric: winners among the first to arrive
        variance += capacity * share * (1 - share) * (size - capacity) / (size - 1)
    assert kept < num_rows * k
    assert abs(kept - expected) < 5 * np.sqrt(variance)

    rescanned = sglang.select(variant.replace("drop", "rescan"), logits, k)
    assert_exact(logits, rescanned.indices, values=rescanned.values)


def test_a_drop_fails_at_one_more_than_it_holds():
    # Falling values: what comes last is least. Rising: the greatest is what is lost.
    variant = "sglang_block512[overflow=drop]"
    rising = (np.arange(5121, dtype=np.uint32) + np.uint32(0x3F800000)).view(np.float32)[None]

    lost = sglang.select(variant, rising, 1024, order="index")

    assert lost.indices[0].tolist() == list(range(4096, 5120))
    assert [found.kind for found in find_violations(rising, lost.indices)] == ["wrong_values"]
    for logits in (rising[:, ::-1], rising[:, 1:]):
        kept = sglang.select(variant, np.ascontiguousarray(logits), 1024)
        assert_exact(np.ascontiguousarray(logits), kept.indices)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "k", "message"),
    [
        ("sglang_block1024", 1025, r"k must be in \[1, 1024\] for sglang_block1024, got 1025"),
        ("sglang_block512", 2048, r"k must be in \[1, 1024\] for sglang_block512, got 2048"),
        ("sglang_block512", 0, "k must be at least 1, got 0"),
        (
            "sglang",
            1,
            "variant must be one of vllm_generic, vllm_k512, .*, delegate, got 'sglang'",
        ),
        (
            "sglang_block512[stash_kib=64]",
            1,
            "policy field stash_kib must be one of 40, 48, 128, got 64",
        ),
        (
            "sglang_block512[overflow=lose]",
            1,
            "policy field overflow must be one of rescan, drop, got 'lose'",
        ),
    ],
)
def test_a_call_outside_the_gate_is_refused(variant, k, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        sglang.select(variant, np.zeros((1, 8), np.float32), k)


@pytest.mark.parametrize("k", [True, 5.0, "5", None])
def test_k_is_an_int(k):
    with pytest.raises(TypeError, match="k must be an int"):
        sglang.select("sglang_block512", np.zeros((1, 8), np.float32), k)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"ends": np.array([9])}, r"ends must lie in \[0, num_cols\] = \[0, 8\], got 9"),
        ({"starts": np.array([-1])}, r"starts must lie in \[0, num_cols\] = \[0, 8\], got -1"),
        ({"ends": np.array([1, 2])}, r"ends must have shape \(num_rows,\) = \(1,\), got \(2,\)"),
    ],
)
def test_bounds_outside_the_row_are_refused(bounds, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        sglang.select("sglang_block512", np.zeros((1, 8), np.float32), 4, **bounds)


def test_few_specialisations_and_no_floats():
    sglang.select("sglang_block512", workloads.make("uniform", 1, 131_072), 1024, trace=True)

    jitted = {
        name: function.nopython_signatures
        for name, function in vars(sglang).items()
        if hasattr(function, "nopython_signatures") and function.__module__ == sglang.__name__
    }
    assert len(jitted) == 13
    assert "float" not in str(jitted)
    # Positions are int64 in a row and int32 in the stash; the first pass is a literal 0.
    twice = {name for name, signatures in jitted.items() if len(signatures) != 1}
    assert twice <= {"keep_candidate", "record_threshold"}


def test_examples_in_the_docs():
    assert doctest.testmod(sglang).failed == 0


def test_a_twin_refuses_what_is_another_lineages():
    row = np.zeros((1, 2000), np.float32)
    with pytest.raises(
        ValueError, match="must be one of sglang_block512, sglang_block1024, got 'vllm_k512'"
    ):
        sglang.select("vllm_k512", row, 512)
    with pytest.raises(
        ValueError, match="must be one of vllm_generic, vllm_k512, vllm_k512_uncrowded, got 'sgl"
    ):
        vllm.select("sglang_block512", row, 512)
    with pytest.raises(ValueError, match="order must be one of any, index, got 'value'"):
        sglang.select("sglang_block512", row, 512, order="value")
    with pytest.raises(ValueError, match="order must be one of any, got 'index'"):
        twins.select("vllm_k512", row, 512, order="index")
