"""What does "auto" stand for, and is the choice the one that the records speak for?"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from topk_lab import registry, results, schedules
from topk_lab.registry import auto

DATA = Path(__file__).parents[1] / "data"
MATRIX = DATA / "measured" / "nvidia-h200" / "delegate_matrix.jsonl.gz"


def matrix_times():
    """Times of the warm cells of the matrix, a column a variant."""
    frame = results.load([MATRIX])
    frame = frame[(frame["cache"] == "warm") & (frame["status"] == "ok")]
    cells = frame.assign(arguments=frame["workload_args"].map(str))
    return cells.pivot_table(
        index=["num_rows", "num_cols", "k", "workload", "arguments"],
        columns="variant",
        values="median_us",
    ).reset_index()


def test_the_choice_is_as_fast_as_the_faster_one_at_every_shape_of_the_matrix():
    times = matrix_times()
    assert len(times) == 2016
    chosen = np.array(
        [
            row[auto("cuda", int(row["num_rows"]), int(row["num_cols"]), int(row["k"])).variant]
            for _, row in times.iterrows()
        ]
    )
    # Over rows that are alike: which of them are masked, no shape tells.
    shapes = [times["num_rows"], times["num_cols"]]
    means = [
        np.log(time).groupby(shapes).mean()
        for time in (pd.Series(chosen), times["vllm_k512"], times["delegate"])
    ]
    of_chosen, *singles = means
    assert len(of_chosen) > 100
    for single in singles:
        assert (of_chosen - single).max() <= np.log(1.03)


def test_the_choice_for_a_larger_k_is_about_the_fastest_at_most_shapes():
    frame = results.load([MATRIX.with_name("delegate_large_k.jsonl")])
    frame = results.latest(frame[frame["status"] == "ok"])
    shapes = frame.pivot_table(
        index=["k", "num_rows", "num_cols"], columns="variant", values="median_us"
    )
    over = np.array(
        [
            times[auto("cuda", rows, cols, k).variant] / times.min()
            for (k, rows, cols), times in shapes.iterrows()
        ]
    )
    assert len(over) == 27
    # All but a long row by itself, which one block finishes.
    assert (over > 1.03).sum() <= 2


@pytest.mark.parametrize(
    ("call", "variant"),
    [
        pytest.param((128, 7500, 512), "delegate", id="short-rows"),
        pytest.param((256, 28_672, 512), "delegate", id="two-on-each-multiprocessor"),
        pytest.param((1, 2**20, 512), "delegate", id="a-long-row"),
        pytest.param((385, 5000, 512), "delegate", id="outside-the-gate"),
        pytest.param((4, 10_000, 511), "delegate", id="another-k"),
        pytest.param((4, 10_000, 2048), "delegate", id="a-large-k"),
        pytest.param((4, 10_000, 2049), "shared_histogram", id="without-items"),
        pytest.param((4, 10_000, 4096), "shared_histogram", id="the-largest-k"),
        pytest.param((4, 10_000, 4097), "aiter_one_block", id="a-larger-k"),
    ],
)
def test_choice_by_shape_on_a_cuda_device(call, variant):
    chosen = auto("cuda", *call)
    assert chosen.variant == variant
    # What was measured is no reason where a promise is what decides.
    assert ("H200" in chosen.reason) == (variant != "aiter_one_block")
    assert "H200" not in auto("cuda", *call, tie_break="lowest").reason
    for promise in ({"tie_break": "lowest"}, {"order": "index"}):
        asked = auto("cuda", *call, **promise).variant
        assert asked == ("aiter_one_block" if call[2] > 4096 else "delegate")


@pytest.mark.parametrize(
    ("call", "promise", "variant"),
    [
        ((24, 262_144, 512), {}, "vllm_k512"),
        ((24, 262_144, 2048), {}, "vllm_generic"),
        ((24, 262_144, 2049), {}, "delegate"),
        ((24, 262_144, 512), {"tie_break": "lowest"}, "delegate"),
        ((24, 262_144, 512), {"order": "value"}, "delegate"),
        ((24, 262_144, 5000), {"tie_break": "lowest"}, "aiter_one_block"),
    ],
)
def test_choice_on_an_amd_device_is_what_was_published(call, promise, variant):
    chosen = auto("hip", *call, **promise)
    assert chosen.variant == variant
    assert registry.resolve(chosen.variant, **promise)


@pytest.mark.parametrize("k", [1, 4097, 10**6])
def test_one_variant_serves_the_cpu(k):
    for promise in ({}, {"tie_break": "lowest"}, {"order": "value"}):
        chosen = auto("cpu", 1, 10, k, **promise)
        assert chosen.variant == "cpu_delegate"
        assert registry.resolve(chosen.variant, **promise).max_k is None


def test_the_delegate_selection_of_devices_has_a_greatest_k():
    assert schedules.POLICIES["delegate"].max_k == 4096
