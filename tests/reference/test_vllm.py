"""The twins: exact, and step by step what the published kernels do."""

import doctest
import itertools
import re

import numpy as np
import pandas as pd
import pytest

from topk_lab import cases, keys, schedules, toolchain, workloads
from topk_lab.contract import UNWRITTEN, assert_exact, find_violations, live_bounds
from topk_lab.reference import exact, trace, trace_record, vllm
from topk_lab.reference.trace_record import TRACE_STEP

NEG_INF = np.float32(-np.inf)
BOTH = ("vllm_generic", "vllm_k512")
ALL = (*BOTH, "vllm_k512_uncrowded")


def assert_twin_right(variant, logits, k=512, **lengths):
    """Hold a twin against the oracle and the specification; return what it left."""
    starts, ends = live_bounds(*logits.shape, **lengths)
    twin = vllm.select(variant, logits, k, starts, ends)
    assert_exact(logits, twin.indices, k=k, values=twin.values, **lengths)
    _, values = exact.select(logits, k, starts, ends)
    np.testing.assert_array_equal(np.sort(twin.values, axis=1), np.sort(values, axis=1))
    return twin


def slots_written(twin):
    return (twin.split_indices != UNWRITTEN).any(axis=2).sum(axis=1)


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ALL)
@pytest.mark.parametrize("name", workloads.names())
def test_workloads_with_poisoned_tails(variant, name):
    row_ends = np.array([20_001, 20_000, 16_385, 16_384, 1024, 513, 512, 511, 1, 0], np.int32)
    logits = workloads.make(name, len(row_ends), 20_001, row_ends=row_ends, poison="nan", seed=5)

    twin = assert_twin_right(variant, logits, row_ends=row_ends)

    splits = [1] * 10 if variant == "vllm_generic" else [8, 8, 8, *[1] * 7]
    assert twin.active_splits.tolist() == splits


@pytest.mark.parametrize("k", [1, 512, 1024, 2047, 2048])
@pytest.mark.parametrize("name", ["normal", "few_values", "masked_blocks", "near_equal"])
def test_generic_takes_k_up_to_2048(name, k):
    row_ends = np.array([30_000, 12_287, k + 1, k, k - 1], np.int32)
    logits = workloads.make(name, len(row_ends), 30_000, row_ends=row_ends, poison="inf")

    assert_twin_right("vllm_generic", logits, k, row_ends=row_ends)


@pytest.mark.parametrize("k", [128, 512])
def test_generic_splits_shorter_than_k_leave_pads(k):
    row_ends = np.array([0, 1, 9, 10, 19, k - 1, k, k + 1, 10 * k, 10 * k + 9, 200_000], np.int32)
    logits = workloads.make(
        "masked_random", len(row_ends), 200_000, row_ends=row_ends, poison="nan", seed=1
    )

    twin = assert_twin_right("vllm_generic", logits, k, row_ends=row_ends)

    assert slots_written(twin).tolist() == [10] * len(row_ends)
    share = np.minimum(row_ends // 10, k)
    np.testing.assert_array_equal((twin.split_indices[:, 0] >= 0).sum(axis=1), share)
    pads = twin.split_logits.view(np.uint32)[twin.split_indices == -1]
    assert set(pads.tolist()) == {keys.PAD_BITS}


@pytest.mark.parametrize("variant", BOTH)
def test_row_starts_make_indices_relative(variant):
    logits = workloads.make("few_values", 4, 40_000)
    row_starts = np.array([0, 1, 17_000, 39_999], np.int32)
    row_ends = np.array([40_000, 600, 39_000, 17], np.int32)

    twin = assert_twin_right(variant, logits, row_ends=row_ends, row_starts=row_starts)

    assert twin.indices[2].max() < 22_000


@pytest.mark.parametrize("variant", BOTH)
def test_lowest_indices_win_ties(variant):
    logits = workloads.make("few_values", 3, 40_000, count=50)

    twin = vllm.select(variant, logits, 512)

    expected, _ = exact.select(logits, 512)
    np.testing.assert_array_equal(np.sort(twin.indices, axis=1), expected)


@pytest.mark.parametrize("variant", BOTH)
def test_any_nan_comes_back_as_the_canonical_one(variant):
    logits = workloads.make("nan", 2, 20_000, count=200)

    twin = vllm.select(variant, logits, 512)

    bits = twin.values.view(np.uint32)[np.isnan(twin.values)]
    assert len(bits) == 400
    assert set(bits.tolist()) == {keys.NAN_BITS}


@pytest.mark.parametrize("shape", [(0, 1024), (3, 0), (0, 0)])
@pytest.mark.parametrize("variant", BOTH)
def test_nothing_to_select_from(variant, shape):
    twin = vllm.select(variant, np.empty(shape, np.float32), 512, trace=True)

    assert twin.indices.shape == (shape[0], 512)
    assert (twin.indices == -1).all()
    assert (twin.values == -np.inf).all()
    assert (twin.trace["step"] == -1).all()


# ---- the sources' own lists ----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["rotated", "broadcast"])
@pytest.mark.parametrize("case", range(11), ids=[row[2] for row in cases.BOUNDARIES])
def test_boundaries(case, form):
    case = cases.boundaries(form)[case]
    given = case.build()

    _, ends = live_bounds(case.num_rows, case.num_cols, seq_lens=given.seq_lens, next_n=case.next_n)
    twin = vllm.select(case.variant, given.logits, case.k, ends=ends)

    assert twin.active_splits.tolist() == list(case.splits)
    written = np.array(case.splits) if max(case.splits) > 1 else np.zeros(case.num_rows)
    np.testing.assert_array_equal(slots_written(twin), written)
    # Each row counts up to its live length, from where its first column says and round again.
    expected = ends[:, None] - 1 - np.arange(case.k)
    np.testing.assert_array_equal(np.sort(twin.values, axis=1)[:, ::-1], expected)
    place = (twin.indices + given.logits[:, :1]) % ends[:, None]
    np.testing.assert_array_equal(place, twin.values)


@pytest.mark.parametrize("pattern", range(9))
def test_masked_replay_patterns(pattern):
    width, live = 262_145, 70_000
    logits = np.full((24, width), np.float32(1e20))
    logits[:, :live] = NEG_INF
    if pattern < 4:
        finite = (0, 1, 511, 513)[pattern]
        logits[:, :finite] = np.arange(finite)
    elif pattern == 4:
        logits[:, :511] = 0
        logits[:, 511] = np.finfo(np.float32).min
    else:
        count = (128, 129, 1024, 1025)[pattern - 5]
        twos = max(0, 512 - count // 2)
        logits[:, :twos] = 2
        logits[:, twos : twos + count] = 1
        logits[:, twos] = 1 + 2.0**-23
    row_ends = np.full(24, live, np.int32)

    for variant in BOTH:
        twin = assert_twin_right(variant, logits, row_ends=row_ends)
        assert (twin.indices >= 0).all()
        if pattern > 4:
            assert (twin.indices == twos).any(axis=1).all()


def test_masked_replay_bounds():
    lengths = [0, 511, 512, 513, 16384, 16385, 131072, 131073, 262144, 262145]
    row_ends = np.resize(lengths, 24).astype(np.int32)
    logits = np.broadcast_to(np.arange(262_145, dtype=np.float32), (24, 262_145))

    twin = assert_twin_right("vllm_k512", logits, row_ends=row_ends)

    assert twin.active_splits[:10].tolist() == [1, 1, 1, 1, 1, 8, 8, 10, 10, 16]
    np.testing.assert_array_equal(
        slots_written(twin), np.where(twin.active_splits > 1, twin.active_splits, 0)
    )
    # Every merged split is full, so that a merge never sees a pad.
    assert (twin.split_indices != -1).all()


def test_one_d_lengths_in_sliced_rows():
    seq_lens = np.array([0, 1, 511, 512, 513, 1023, 1024, 16_000], np.int32)
    storage = np.full((48, 16_384 + 8), np.float32(1e20))
    logits = storage[:, 1 : 1 + 16_384]
    logits[:, :16_000] = np.arange(16_000)

    for variant in BOTH:
        assert_twin_right(variant, logits, seq_lens=seq_lens, next_n=6)


# ---- steps ---------------------------------------------------------------------------------------


def test_masked_row_is_refined_to_the_last_step():
    row = np.full(1000, NEG_INF)
    row[:300] = np.arange(300)

    shown = trace(row, 512, variant="vllm_k512")

    fields = ["block", *(name for name in TRACE_STEP.names if name != "histogram")]
    expected = pd.DataFrame(
        [
            ("row", 0, 0x00000000, 2016, 700, 300, 0, 0, False),
            ("row", 1, 0x00000000, 2044, 700, 300, 300, 0, False),
            ("row", 2, 0xFF800000, 0, 700, 300, 300, 0, False),
            ("row", 3, 0xFF800000, 0, 700, 300, 512, 0, True),
        ],
        columns=fields,
    )
    pd.testing.assert_frame_equal(shown.frame(), expected, check_dtype=False)
    assert sorted(shown.indices.tolist()) == list(range(512))
    assert shown.steps["histogram"][0, 0, 2016] == 700


@pytest.mark.parametrize(
    ("fields", "pads"),
    [
        pytest.param("fits_rule=false,final_pad=neg_flt_max", 212, id="pads-outrank-neg-inf"),
        pytest.param("fits_rule=false,final_pad=neg_inf", 0, id="pads-tie-and-sort-is-stable"),
        pytest.param("fits_rule=false,final_pad=after_all", 0, id="pads-after-all"),
        pytest.param("final_pad=neg_flt_max", 0, id="fits-rule-keeps-pads-away"),
        pytest.param(
            "fits_rule=false,final_pad=neg_flt_max,final_order=rank_count",
            0,
            id="ranks-need-no-pads",
        ),
        pytest.param(
            "fits_rule=false,final_pad=neg_flt_max,final_capacity=512", 0, id="bin-too-big-to-sort"
        ),
    ],
)
def test_legacy_pads_take_the_slots_of_masked_logits(fields, pads):
    row = np.full(1000, NEG_INF)
    row[:300] = np.arange(300)

    indices = trace(row, 512, variant=f"vllm_k512[{fields}]").indices

    assert (indices == -1).sum() == pads
    chosen = indices[indices >= 0]
    assert len(set(chosen.tolist())) == 512 - pads
    assert set(range(300)) <= set(chosen.tolist())


POLICY_FIELDS = {
    "count_neg_inf": ("true", "false"),
    "fits_rule": ("true", "false"),
    "final_capacity": ("64", "1024", "2048"),
    "final_pad": schedules.FINAL_PADS,
    "final_order": schedules.FINAL_ORDERS,
    "equal_shortcut": ("true", "false"),
}


@pytest.mark.parametrize("name", ["masked_prefix", "masked_blocks", "finite_min", "pivot_bins"])
def test_no_policy_gives_garbage_and_sound_ones_are_exact(name):
    row_ends = np.array([20_001, 16_385, 3_000, 1_500, 600, 512], np.int32)
    arguments = {"finite": 300} if name == "masked_prefix" else {}
    logits = workloads.make(name, 6, 20_001, row_ends=row_ends, poison="inf", **arguments)
    starts, ends = live_bounds(*logits.shape, row_ends=row_ends)

    for values in itertools.product(*POLICY_FIELDS.values()):
        fields = ",".join("=".join(pair) for pair in zip(POLICY_FIELDS, values, strict=True))
        variant = schedules.parse_variant(f"vllm_k512[{fields}]")
        twin = vllm.select(variant, logits, 512, starts, ends)
        kinds = {
            violation.kind
            for violation in find_violations(
                logits, twin.indices, row_ends=row_ends, values=twin.values
            )
        }
        assert kinds <= (set() if variant.policy.sound else {"hole", "missing"}), fields


@pytest.mark.parametrize("variant", ALL)
@pytest.mark.parametrize("name", workloads.names())
def test_every_step_keeps_its_invariant(variant, name):
    k = 512
    logits = workloads.make(name, 2, 16_384, row_ends=16_000, poison="nan", seed=2)
    twin = vllm.select(variant, logits, k, ends=np.full(2, 16_000), trace=True)
    capacity = schedules.POLICIES[variant].final_capacity
    fits_rule = schedules.POLICIES[variant].fits_rule
    shortcut = schedules.POLICIES[variant].equal_shortcut

    for row in range(2):
        bits = logits[row, :16_000].copy().view(np.uint32)
        bits[np.isnan(logits[row, :16_000])] = keys.NAN_BITS
        key = np.where(bits & 0x80000000, bits, ~bits & 0x7FFFFFFF).astype(np.int64)
        with np.errstate(over="ignore"):
            half = bits.view(np.float32).astype(np.float16).view(np.uint16).astype(np.int64)
        half[bits == keys.NAN_BITS] = 0x7FFF
        half_key = np.where(half & 0x8000, half, ~half & 0x7FFF)
        bins = [half_key >> 5, key >> 21, key >> 10 & 0x7FF, key & 0x3FF]
        found, prefix, matching = 0, 0, np.ones(16_000, bool)
        steps = twin.trace[row, 0]
        made = int((steps["step"] >= 0).sum())
        assert steps["step"].tolist() == [*range(made), *[-1] * (4 - made)]
        for step, record in enumerate(steps[:made]):
            if step == 2:
                matching = key >> 21 == prefix >> 21
            elif step == 3:
                matching = key >> 10 == prefix >> 10
            histogram = np.bincount(bins[step][matching], minlength=keys.NUM_BINS)
            threshold, size, above = (
                int(record[field]) for field in ("threshold_bin", "bin_size", "above")
            )
            np.testing.assert_array_equal(record["histogram"][:2048], histogram)
            assert not record["histogram"][2048:].any()
            assert record["prefix"] == prefix
            assert above == found + histogram[:threshold].sum()
            assert size == histogram[threshold]
            assert above < k <= above + size
            in_bin = matching & (bins[step] == threshold)
            refused = fits_rule and step < 3 and (bits[in_bin] == keys.NEG_INF_BITS).any()
            fits = size <= capacity and not refused
            assert record["fits"] == fits
            assert record["candidates"] == (size if fits and step < 3 else 0)
            equal = step == 3 or (shortcut and not fits and len(set(bits[in_bin].tolist())) == 1)
            found = k if equal else above if step > 0 or fits else 0
            assert record["emitted"] == found
            assert (fits or equal) == (step == made - 1)
            prefix |= {1: threshold << 21, 2: threshold << 10}.get(step, 0)
        assert not twin.trace[row, 1]["histogram"].any()


@pytest.mark.parametrize(
    ("name", "arguments", "made"),
    [
        pytest.param("normal", {}, 1, id="spread-values-fit-at-once"),
        pytest.param("masked_prefix", {"finite": 524}, 1, id="enough-finite-values"),
        pytest.param("near_equal", {}, 3, id="clustered-values-need-the-float32-key"),
        pytest.param("same_leading_bits", {}, 4, id="equal-upper-22-bits"),
        pytest.param("constant", {}, 4, id="ties"),
        pytest.param("all_neg_inf", {}, 4, id="masked"),
        pytest.param("pivot_bins", {"count": 1024}, 1, id="bin-at-capacity"),
        pytest.param("pivot_bins", {"count": 1025}, 4, id="bin-above-capacity"),
    ],
)
def test_steps_that_rows_need(name, arguments, made):
    logits = workloads.make(name, 1, 16_384, **arguments)

    frame = trace(logits[0], 512, variant="vllm_k512").frame()

    assert frame["step"].tolist() == list(range(made))


def test_trace_of_splits_names_its_blocks():
    shown = trace(workloads.make("normal", 1, 40_000)[0], 512, variant="vllm_k512", row_end=16_385)

    frame = shown.frame()
    assert frame["block"].unique().tolist() == [*(f"split {y}" for y in range(8)), "merge"]
    assert shown.steps.shape == (17, 4)
    counted = shown.steps["histogram"][:, 0].sum(axis=1)
    assert counted[:8].tolist() == [*[2048] * 7, 2049]
    assert counted[16] == 8 * 512
    assert (frame["above"] < 512).all()
    assert (frame["above"] + frame["bin_size"] >= 512).all()


def test_traced_and_untraced_answers_agree():
    logits = workloads.make("masked_blocks", 3, 40_000)
    for variant in BOTH:
        plain = vllm.select(variant, logits, 512)
        traced = vllm.select(variant, logits, 512, trace=True)
        assert plain.trace is None
        np.testing.assert_array_equal(plain.indices, traced.indices)


def test_counting_neg_inf_apart_changes_no_histogram():
    logits = workloads.make("masked_blocks", 2, 40_000)
    traces = [
        vllm.select(f"vllm_k512[count_neg_inf={count}]", logits, 512, trace=True).trace
        for count in ("true", "false")
    ]

    np.testing.assert_array_equal(*traces)


def a_crowd_with(value, odd_one_out):
    """A row that ends with 2000 logits of one value, but for one of them."""
    row = np.full(2100, value, np.float32)
    row[:100] = np.arange(100, 0, -1)
    row[1500] = odd_one_out
    return row


@pytest.mark.parametrize(
    ("name", "arguments", "made"),
    [
        pytest.param("normal", {}, 1, id="spread-values-fit-at-once"),
        pytest.param("constant", {}, 1, id="one-value"),
        pytest.param("all_neg_inf", {}, 1, id="masked"),
        pytest.param("masked_prefix", {"finite": 300}, 1, id="masked-behind-fewer-than-k"),
        pytest.param("relu_zeros", {}, 1, id="zeros-behind-fewer-than-k"),
        pytest.param("same_leading_bits", {}, 4, id="equal-upper-22-bits"),
        pytest.param("finite_min", {}, 2, id="least-finite-value-among-masked"),
        pytest.param("beyond_fp16", {}, 2, id="infinite-in-half-precision-alone"),
    ],
)
def test_steps_that_the_shortcut_leaves(name, arguments, made):
    logits = workloads.make(name, 1, 16_384, **arguments)

    shown = trace(logits[0], 512, variant="vllm_k512[equal_shortcut=true]").frame()
    assert len(shown) == made
    full = trace(logits[0], 512, variant="vllm_k512").frame()
    columns = ["prefix", "threshold_bin", "bin_size", "above", "candidates"]
    np.testing.assert_array_equal(shown[columns], full.loc[: made - 1, columns])


@pytest.mark.parametrize(
    ("value", "odd_one_out", "made"),
    [
        # The step in which the odd one out leaves the threshold bin, and the one behind it.
        pytest.param(0.5, 0.5, 1, id="equal"),
        pytest.param(0.5, np.float32(0.5 + 2**-24), 4, id="apart-in-the-last-bits"),
        pytest.param(0.5, np.float32(0.5 + 2**-12), 3, id="apart-in-bits-of-step-2"),
        pytest.param(0.5, np.float32(0.5 - 2**-25), 2, id="apart-below-the-octave"),
        pytest.param(-np.inf, -65_520.0, 2, id="masked-and-infinite-in-half-precision"),
        pytest.param(-np.inf, -np.finfo(np.float32).max, 2, id="masked-and-the-least-finite"),
        pytest.param(0.0, -0.0, 1, id="zeros-of-either-sign"),
        pytest.param(0.0, 1e-30, 2, id="zero-in-half-precision-alone"),
    ],
)
def test_a_presumption_that_fails_costs_a_step_and_no_winner(value, odd_one_out, made):
    row = a_crowd_with(value, odd_one_out)
    for order in (row, row[::-1].copy()):
        twin = assert_twin_right("vllm_k512_uncrowded", order[None])
        assert ((1500 if order is row else 599) in twin.indices[0]) == (odd_one_out > value)
        assert len(trace(order, 512, variant="vllm_k512_uncrowded").frame()) == made


@pytest.mark.parametrize("size", [0, 1, 2, 128, 129, 1023, 1024])
def test_rank_count_and_radix_sort_order_alike(size):
    k, above = 600, 600 - min(size, 300)
    item_keys = np.random.default_rng(size).integers(0, 50, size, dtype=np.uint32) << 24
    items = vllm.FinalItems(item_keys, np.arange(size, dtype=np.int32) * 3)
    policy = vllm.step_policy(schedules.parse_variant("vllm_k512[final_pad=after_all]"), 20_000)
    answers = []
    for order in ("rank", "sort"):
        selected = vllm.Selected(np.full(k, UNWRITTEN, np.int32), np.zeros(k, np.uint32))
        if order == "rank":
            vllm.rank_final_items(items, np.int64(above), selected)
        else:
            vllm.sort_final_items(items, np.int64(above), policy, selected)
        answers.append(selected)
    by_key = np.argsort(item_keys, kind="stable")[: k - above]

    for selected in answers:
        assert (selected.positions[:above] == UNWRITTEN).all()
        np.testing.assert_array_equal(selected.positions[above:], 3 * by_key)


def test_generic_ranks_in_narrow_buffers_and_sorts_in_wide_ones():
    variant = schedules.parse_variant("vllm_generic")

    assert vllm.step_policy(variant, 12_287).rank_count_limit == 2048
    assert vllm.step_policy(variant, 12_288).rank_count_limit == 0


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "shape", "k", "message"),
    [
        ("vllm_k512", (1, 8), 511, "k must be 512 for vllm_k512, got 511"),
        ("vllm_k512", (385, 8), 512, "num_rows must be at most 384 for vllm_k512, got 385"),
        (
            "vllm_k512",
            (1, 2**20 + 1),
            512,
            "num_cols must be at most 1048576 for vllm_k512, got 1048577",
        ),
        ("vllm_generic", (1, 8), 2049, r"k must be in \[1, 2048\] for vllm_generic, got 2049"),
        (
            "vllm",
            (1, 8),
            1,
            "variant must be one of vllm_generic, vllm_k512, .*, delegate, got 'vllm'",
        ),
    ],
)
def test_a_call_outside_the_gate_is_refused(variant, shape, k, message):
    logits = np.broadcast_to(np.zeros(1, np.float32), shape)

    with pytest.raises(ValueError, match=f"^{message}$"):
        vllm.select(variant, logits, k)


def test_trace_takes_one_row():
    with pytest.raises(ValueError, match=r"^row must have shape \(num_cols,\), got \(2, 3\)$"):
        trace(np.zeros((2, 3), np.float32), 512, variant="vllm_k512")


def test_trace_record_is_the_kernels():
    words = [(name, TRACE_STEP.fields[name][1]) for name in TRACE_STEP.names]

    assert words == [
        ("step", 0),
        ("prefix", 4),
        ("threshold_bin", 8),
        ("bin_size", 12),
        ("above", 16),
        ("emitted", 20),
        ("candidates", 24),
        ("fits", 28),
        ("histogram", 32),
    ]
    header = toolchain.kernels_folder() / "include" / "topk_lab" / "params.hpp"
    (bins,) = re.findall(r"inline constexpr int trace_bins = (\d+);", header.read_text())
    assert TRACE_STEP.itemsize == 32 + 4 * int(bins) == 32 + 4 * 4096


def test_one_specialisation_and_no_floats():
    vllm.select("vllm_k512", workloads.make("normal", 1, 20_000), 512, trace=True)

    def jitted(module):
        return [
            list(map(str, function.nopython_signatures))
            for function in vars(module).values()
            if hasattr(function, "nopython_signatures") and function.__module__ == module.__name__
        ]

    own, shared = jitted(vllm), jitted(trace_record)
    assert (len(own), len(shared)) == (8, 2)
    assert [len(signatures) for signatures in own] == [1] * 8
    # What the records share with the SGLang twin may have been compiled for it too.
    for signatures in own + shared:
        assert signatures
        assert not any("float" in signature for signature in signatures)


def test_examples_in_the_docs():
    assert doctest.testmod(vllm).failed == 0
