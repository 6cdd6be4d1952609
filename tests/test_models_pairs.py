"""Are speed-ups those of one run, is no losing cell hidden, and is it said what ran there?"""

import numpy as np
import pandas as pd
import pytest

from topk_lab import models, results

GENERIC, K512 = "vllm_generic", "vllm_k512"
CASE = {
    "concurrency": 4,
    "speculative_tokens": 6,
    "context": 100_000,
    "compression_ratio": 1,
    "logits": "dense",
    "buffer": "live",
}


def cell(variant, time_us, **other):
    """Record of a time on a cell of the matrix; three samples around it unless given."""
    samples = other.pop("samples_us", [0.99 * time_us, time_us, 1.01 * time_us])
    case = CASE | {name: other.pop(name) for name in list(other) if name in CASE}
    rows = case["concurrency"] * case["speculative_tokens"]
    width = case["context"] // case["compression_ratio"]
    return {
        "kind": "measured",
        "device": "NVIDIA H200",
        "target": "cuda",
        "experiment": "vllm_matrix",
        "run": "first",
        "recorded": "2026-11-29T10:00:00Z",
        "variant": variant,
        "num_rows": rows,
        "num_cols": width if case["buffer"] == "live" else 2**20,
        "k": 512,
        "next_n": case["speculative_tokens"],
        "workload": "normal",
        "workload_args": case,
        "seed": 0,
        "mode": "graph",
        "cache": "warm",
        "calls_per_graph": 20,
        "status": "ok",
        "samples_us": samples,
        "median_us": float(np.median(samples)),
        "counters": {},
    } | other


def both(before, after, **other):
    return [cell(GENERIC, before, **other), cell(K512, after, **other)]


def pairs_of(*cells):
    return models.paired(pd.DataFrame(list(cells)), GENERIC, K512)


def only(table):
    (line,) = table.to_dict("records")
    return line


def test_pairs_hold_both_times_and_every_argument_as_a_column():
    pairs = pairs_of(*both(40, 20), *both(30, 40, context=50_000, logits="masked"))
    assert list(pairs["speedup"]) == [2, 0.75]
    assert list(pairs["context"]) == [100_000, 50_000]
    assert list(pairs["logits"]) == ["dense", "masked"]
    assert pairs["baseline_samples"][0] == [39.6, 40, 40.4]
    assert set(pairs["baseline"]) == {GENERIC}
    assert set(pairs["candidate"]) == {K512}


def test_a_pair_is_of_one_run_and_the_last_counts():
    later = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    alone = cell(K512, 1, run="third", recorded="2026-12-01T10:00:00Z")
    pairs = pairs_of(*both(60, 20, **later), *both(40, 20), alone)
    assert only(pairs)["speedup"] == 3
    with pytest.raises(ValueError, match="in one run, got 1 and 1 that pair with none"):
        pairs_of(cell(GENERIC, 40), cell(K512, 20, **later))


def test_what_is_not_exact_pairs_with_nothing():
    wrong = cell(K512, 20) | {"status": "wrong"}
    with pytest.raises(ValueError, match="'vllm_k512' on one cell in one run, got 1 and 0"):
        pairs_of(cell(GENERIC, 40), wrong)


@pytest.mark.parametrize("name", ["cache", "calls_per_graph", "num_cols", "seed"])
def test_cells_that_differ_in_anything_are_no_pair(name):
    other = {"cache": "cold", "calls_per_graph": 2, "num_cols": 7, "seed": 1}
    with pytest.raises(ValueError, match="pair with none"):
        pairs_of(cell(GENERIC, 40), cell(K512, 20, **{name: other[name]}))


def test_an_argument_that_is_named_as_a_column_is_refused():
    cells = [one | {"workload_args": {"num_rows": 3}} for one in both(40, 20)]
    with pytest.raises(ValueError, match="name no argument as a column, got num_rows"):
        pairs_of(*cells)


def test_distribution_counts_what_a_mean_would_hide():
    cells = [
        line
        for context, after in ((10_000, 4.0), (50_000, 10.0), (100_000, 10.1), (200_000, 20.0))
        for line in both(10, after, context=context)
    ]
    found = only(models.distribution(pairs_of(*cells)))
    assert (found["buffer"], found["cache"], found["cases"]) == ("live", "warm", 4)
    ratios = [2.5, 1, 10 / 10.1, 0.5]
    assert found["geomean"] == pytest.approx(np.prod(ratios) ** 0.25)
    assert found["median"] == pytest.approx(np.median(ratios))
    assert (found["least"], found["greatest"]) == (0.5, 2.5)
    assert (found["slower"], found["losing"]) == (2, 1), "a hundredth slower is not losing"
    assert 0.5 < found["low"] < found["geomean"] < found["high"] < 2.5
    assert found["device"] == "NVIDIA H200"


def test_distribution_is_narrow_where_all_cells_agree():
    cells = [line for context in (10_000, 50_000) for line in both(30, 10, context=context)]
    found = only(models.distribution(pairs_of(*cells)))
    assert 2.9 < found["low"] <= 3 <= found["high"] < 3.1
    again = only(models.distribution(pairs_of(*cells)))
    assert again == found


def test_distribution_is_by_any_columns_or_none():
    pairs = pairs_of(*both(40, 20), *both(30, 40, logits="masked"), *both(10, 5, buffer="full"))
    assert list(models.distribution(pairs)["buffer"]) == ["full", "live"]
    by_logits = models.distribution(pairs, ["logits"]).set_index("logits")
    assert by_logits["cases"].to_dict() == {"dense": 2, "masked": 1}
    assert only(models.distribution(pairs, []))["cases"] == 3
    with pytest.raises(ValueError, match="columns nosuch, got 3 without nosuch"):
        models.distribution(pairs, ["nosuch"])
    with pytest.raises(ValueError, match="got 0 without none missing"):
        models.distribution(pairs[:0])
    other = pairs.assign(device=["NVIDIA H200", "AMD Instinct MI355X", "NVIDIA H200"])
    with pytest.raises(ValueError, match="one device, got AMD Instinct MI355X, NVIDIA H200"):
        models.distribution(other)


def test_each_value_of_each_axis_is_summed_up_over_all_others():
    pairs = pairs_of(
        *both(40, 20),
        *both(90, 30, logits="masked"),
        *both(16, 20, context=50_000),
        *both(20, 4, context=50_000, cache="cold"),
    )
    found = models.distribution_by_axis(pairs, ["context", "logits"])
    place = ["axis", "value", "cache"]
    assert list(found.columns[:2]) == ["axis", "value"]
    geomeans = found.set_index(place)["geomean"].round(4).to_dict()
    assert geomeans == {
        ("context", 50_000, "cold"): 5,
        ("context", 50_000, "warm"): 0.8,
        ("context", 100_000, "warm"): round(6**0.5, 4),
        ("logits", "dense", "cold"): 5,
        ("logits", "dense", "warm"): round((2 * 0.8) ** 0.5, 4),
        ("logits", "masked", "warm"): 3,
    }
    assert set(models.distribution_by_axis(pairs)["axis"]) == {
        *("concurrency", "speculative_tokens", "context", "compression_ratio", "logits")
    }


def test_published_speedups_stand_in_the_same_columns():
    published = models.published_distribution().set_index("cache")
    assert list(published.index) == ["warm", "pressure_256MiB", "gpu_trace"]
    assert published.loc["warm", ["geomean", "median", "least", "greatest"]].tolist() == [
        *(2.310, 2.191, 1.008, 12.344),
    ]
    assert published["cases"].tolist() == [1008, 1008, 72]
    assert published["slower"].tolist()[:2] == [0, 0]
    assert results.only_kind(published) == "published"


def test_losing_cells_stand_worst_first_with_what_ran():
    lost = models.losing_cells(
        pairs_of(
            *both(40, 20),
            *both(6, 8, context=10_000, compression_ratio=2),
            *both(800, 1600, concurrency=64, context=1_000_000, buffer="full"),
            *both(90, 100, concurrency=4, context=1_000_000, buffer="ragged"),
        )
    )
    assert list(lost["speedup"]) == [0.5, 0.75, 0.9]
    assert list(lost["length"]) == [1_000_000, 5000, 1_000_000]
    assert list(lost["baseline_kernels"]) == [
        "10 of 10 blocks of 512 a row",
        "a block of 512 a row, final items ranked",
        "10 of 10 blocks of 512 a row",
    ]
    assert list(lost["candidate_kernels"]) == [
        "a block of 1024 a row",
        "a block of 1024 a row",
        "16 of 16 blocks of 1024 a row",
    ]
    # Quarters of 1 Mi tokens: 10, 16, 16 and 16 splits of six rows each.
    assert list(lost["candidate_blocks"]) == [384, 24, 6 * (10 + 3 * 16)]
    assert list(lost["baseline_blocks"]) == [3840, 24, 240]
    assert list(lost["candidate_resident"]) == [264] * 3, "two blocks of 1024 threads a unit"
    assert lost["candidate_rounds"][0] == pytest.approx(384 / 264)
    assert lost["baseline_resident"][0] == 528
    everything = models.losing_cells(pairs_of(*both(40, 20)), below=3)
    assert only(everything)["candidate_active"] == 8


def test_losing_cells_of_an_unknown_device_have_no_rounds():
    lost = models.losing_cells(pairs_of(*both(6, 8, device="a device")))
    assert lost[["candidate_resident", "candidate_rounds"]].isna().all(axis=None)
    assert only(lost)["candidate_blocks"] == 24 * 8
    with pytest.raises(ValueError, match="must be of vllm_matrix, got no column context"):
        models.losing_cells(pairs_of(*both(6, 8)).drop(columns="context"))


def test_losses_are_counted_by_the_kernels_of_both_sides():
    lost = models.losing_cells(
        pairs_of(
            *both(6, 8, context=10_000),
            *both(6, 7, context=10_000, concurrency=16),
            *both(6, 9, context=10_000, compression_ratio=2),
            *both(90, 100, concurrency=64, context=1_000_000),
        )
    )
    counted = models.losses_by_kernels(lost)
    assert list(counted["cells"]) == [3, 1]
    first = counted.iloc[0]
    assert first["baseline_kernels"] == "a block of 512 a row, final items ranked"
    assert (first["rows"], first["lengths"]) == ("24 to 96", "5000 to 10000")
    assert first["least"] == pytest.approx(6 / 9)
    assert list(models.losses_by_kernels(lost[:0]).columns) == list(counted.columns)


def test_events_are_held_against_the_profiler():
    cells = [
        one | {"counters": {"kernel_us": kernel_us}}
        for one, kernel_us in zip(both(40, 20), (40.0, 16.0), strict=True)
    ]
    found = only(models.agreement(pairs_of(*cells)))
    assert (found["baseline_ratio"], found["candidate_ratio"]) == (1, 1.25)
    assert found["kernel_speedup"] == 2.5
    assert found["difference"] == pytest.approx(-0.2)
    with pytest.raises(ValueError, match=r"a cell without counters\.kernel_us"):
        models.agreement(pairs_of(*both(40, 20)))
