"""Is a policy's price split into what chose badly and what one graph costs, by hand and by fit?"""

import itertools

import numpy as np
import pandas as pd
import pytest

from topk_lab import models, schedules

K512 = "vllm_k512"
WIDTH = 2**20


def cell(experiment, variant, time_us, **other):
    samples = other.pop("samples_us", [0.999 * time_us, time_us, 1.001 * time_us])
    return {
        "kind": "measured",
        "device": "NVIDIA H200",
        "target": "cuda",
        "experiment": experiment,
        "run": "first",
        "recorded": "2026-11-29T10:00:00Z",
        "variant": variant,
        "num_rows": 24,
        "num_cols": WIDTH,
        "k": 512,
        "workload": "normal",
        "workload_args": {},
        "mode": "graph",
        "cache": "warm",
        "calls_per_graph": 20,
        "status": "ok",
        "samples_us": samples,
        "median_us": float(np.median(samples)),
        "counters": {},
    } | other


def shape(num_rows, length, times, **other):
    """Cells of one shape of split_policy: variant, or fixed count -> time."""
    return [
        cell(
            "split_policy",
            name if isinstance(name, str) else f"{K512}[splits=fixed_{name}]",
            time_us,
            num_rows=num_rows,
            workload_args={"length": length},
            **other,
        )
        for name, time_us in times.items()
    ]


def regret_of(*cells):
    return models.split_regret(pd.DataFrame(list(cells)))


def test_the_map_is_the_schedule():
    rows, lengths = (1, 32, 33, 384), (16_384, 16_385, 65_537, 262_145)
    found = models.split_map(K512, rows, lengths)
    assert len(found) == 16
    for line in found.to_dict("records"):
        launched = schedules.max_splits(K512, line["num_rows"], WIDTH)
        assert line["launched"] == launched
        assert line["exact_width"] == schedules.max_splits(K512, line["num_rows"], line["length"])
        assert line["active"] == schedules.active_splits(
            K512, line["num_rows"], line["length"], launched
        )
    at = found.set_index(["num_rows", "length"])
    assert at.loc[(1, 16_384), ["exact_width", "launched", "active"]].tolist() == [1, 16, 1]
    narrow = models.split_map(K512, [1], [262_145], num_cols=16_384)
    assert narrow[["launched", "active"]].to_numpy().tolist() == [[1, 1]]


def test_regret_is_choice_times_one_graph():
    # 24 rows of 16384: one split is due of 16 launched; two would have been faster.
    others = {"vllm_generic": 40, "aiter_one_block": 20, "vllm_k512_uncrowded": 11}
    cells = shape(24, 16_384, {K512: 12, 1: 10, 2: 8, 16: 20} | others)
    found = regret_of(*cells).set_index("policy")
    assert list(found.index) == ["aiter_one_block", "vllm_generic", K512, "vllm_k512_uncrowded"]
    ours = found.loc[K512]
    assert (ours["launched"], ours["active"]) == (16, 1)
    assert (ours["best_splits"], ours["best_us"]) == (2, 8)
    assert ours["regret"] == 1.5
    assert (ours["choice"], ours["one_graph"]) == (1.25, 1.2)
    assert (ours["idle_merges"], ours["retired_blocks"]) == (1, 24 * 15)
    assert found["regret"].to_dict() == {
        **{K512: 1.5, "vllm_generic": 5, "aiter_one_block": 2.5, "vllm_k512_uncrowded": 1.375},
    }
    other = found.loc[list(others), ["choice", "one_graph"]]
    assert other.isna().all(axis=None), "the fixed counts are those of another kernel"
    assert found.loc["vllm_generic", ["idle_merges", "retired_blocks"]].tolist() == [0, 0]


def test_a_merge_with_work_is_not_idle_and_a_count_that_was_not_timed_is_unknown():
    found = regret_of(*shape(24, 65_536, {K512: 12, 1: 10, 16: 20})).iloc[0]
    assert (found["active"], found["idle_merges"], found["retired_blocks"]) == (8, 0, 24 * 8)
    assert found["regret"] == 1.2
    assert np.isnan(found["choice"])


def test_times_of_two_runs_are_not_held_against_each_other():
    later = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    first = shape(24, 16_384, {K512: 12, 1: 10})
    second = shape(24, 16_384, {K512: 24, 1: 12}, **later)
    assert list(regret_of(*second, *first)["regret"]) == [2]
    with pytest.raises(ValueError, match="a policy and a fixed count in one run, got none"):
        regret_of(*shape(24, 16_384, {K512: 12}), *shape(24, 16_384, {1: 12}, **later))
    with pytest.raises(ValueError, match="must hold times of split_policy, got none"):
        regret_of(*(one | {"status": "wrong"} for one in first))


def idle_cells(merge_us, block_ns, more=lambda num_rows, length: 0.0):
    """Cells in which one graph for all lengths costs so much."""
    cells = []
    for num_rows, length in itertools.product((1, 8, 24, 96), (4096, 65_536, 2**19)):
        launched = schedules.max_splits(K512, num_rows, WIDTH)
        active = schedules.active_splits(K512, num_rows, length, launched)
        idle = merge_us * (active == 1) + 1e-3 * block_ns * num_rows * (launched - active)
        time_us = 20 + idle + more(num_rows, length)
        cells += shape(num_rows, length, {K512: time_us, active: 20.0})
    return cells


def test_the_fit_finds_what_made_the_times():
    found = models.idle_costs(regret_of(*idle_cells(2.0, 5.0))).set_index("part")
    merge, block = found.loc["a merge without work"], found.loc["a block that returns at once"]
    assert merge["cost"] == pytest.approx(2.0)
    assert block["cost"] == pytest.approx(5.0)
    assert (merge["unit"], block["unit"]) == ("us", "ns")
    for one in (merge, block):
        assert one["low"] < one["cost"] < one["high"]
        assert one["r2"] == pytest.approx(1)
        assert one["shapes"] == 12
        assert abs(one["worst_us"]) < 1e-9


def test_the_fit_says_where_it_misses():
    def crowded(num_rows, length):
        return 9.0 * (num_rows == 96 and length == 65_536)

    found = models.idle_costs(regret_of(*idle_cells(2.0, 5.0, crowded))).iloc[0]
    assert (found["worst_rows"], found["worst_length"]) == (96, 65_536)
    assert found["worst_us"] > 3
    assert found["rms_us"] > 1
    assert found["r2"] < 0.9


def test_a_part_that_no_shape_has_costs_nobody_knows_what():
    regret = regret_of(*shape(24, 2**19, {K512: 21, 16: 20}), *shape(24, 2**20, {K512: 22, 16: 20}))
    found = models.idle_costs(regret)
    assert found["cost"].isna().all()
    assert found["low"].isna().all()
    assert set(found["rms_us"].round(3)) == {1.581}
    # One shape can't tell the two parts from each other.
    alone = models.idle_costs(regret_of(*shape(24, 4096, {K512: 21, 1: 20})))
    assert alone["cost"].isna().all()


def timeline(variant, lengths, times, **other):
    return cell(
        "graph_replay",
        variant,
        1.0,
        samples_us=times,
        counters={"lengths": lengths},
        **other,
    )


def test_replays_say_which_splits_were_due():
    lengths = [1000, 20_000, 200_000, 2**20]
    records = pd.DataFrame(
        [
            timeline(K512, lengths, [8.0, 15.0, 30.0, 80.0]),
            timeline(f"{K512}[splits=fixed_16]", lengths, [14.0, 20.0, 30.0, 80.0]),
        ]
    )
    found = models.replays(records)
    ours = found[found["variant"] == K512]
    assert list(ours["replay"]) == [0, 1, 2, 3]
    assert list(ours["length"]) == lengths
    assert list(ours["active"]) == [1, 8, 10, 16]
    assert set(found["launched"]) == {16}
    assert list(ours["time_us"]) == [8.0, 15.0, 30.0, 80.0]
    frozen = found[found["variant"] != K512]
    assert list(frozen["active"]) == [1, 16, 16, 16], "512 columns a split at least"
    with pytest.raises(ValueError, match="a time a length, got 3 of vllm_k512 for 4 lengths"):
        models.replays(pd.DataFrame([timeline(K512, lengths, [1.0, 2.0, 3.0])]))


def test_graph_saving_is_the_launch_that_calls_share():
    calls = (1, 2, 5, 10, 20, 50, 100)
    cells = [cell("graph_calls", K512, 10 + 6 / n, calls_per_graph=n) for n in calls]
    eager = cell("graph_calls", K512, 19.0, mode="eager", calls_per_graph=None)
    (found,) = models.graph_saving(pd.DataFrame([*cells, eager])).to_dict("records")
    assert found["kernel_us"] == pytest.approx(10)
    assert found["launch_us"] == pytest.approx(6)
    assert found["kernel_low"] < 10 < found["kernel_high"]
    assert found["launch_low"] < 6 < found["launch_high"]
    assert found["eager_us"] == 19
    assert found["residual"] < 1e-9
    assert found["points"] == 7
    (alone,) = models.graph_saving(pd.DataFrame(cells)).to_dict("records")
    assert np.isnan(alone["eager_us"])
    with pytest.raises(ValueError, match="three numbers of calls or more, got fewer"):
        models.graph_saving(pd.DataFrame(cells[:2]))
