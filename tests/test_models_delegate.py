"""Does the delegate selection's evidence come to what its records say, by hand?"""

import numpy as np
import pandas as pd
import pytest

from tests.test_models_graphs import cell
from topk_lab import models, plans, results, schedules
from topk_lab.bench import ratios
from topk_lab.bench.ratios import published_shapes

FLOORS = {"read_amax": 12.0, "read_amax_1024": 10.0, models.REDUCE: 9.0}
PUBLISHED = (
    results.load_published("peers_h200")
    .set_index(["rows", "cols", "distribution", "kernel"])
    .sort_index()
)
NAMES = {"masked_random": "neg_inf_0.9_random", "masked_prefix": "neg_inf_0.998_prefix"}


def at_shape(times, num_rows=24, num_cols=262_144, workload="normal", **other):
    """Cells of one shape of delegate_shapes: variant -> time."""
    where = {"num_rows": num_rows, "num_cols": num_cols, "workload": workload}
    experiment = other.pop("experiment", "delegate_shapes")
    return [cell(experiment, name, time_us, **where, **other) for name, time_us in times.items()]


def published_us(kernel, num_rows=24, num_cols=262_144, distribution="normal", column="warm_us"):
    return PUBLISHED.at[(num_rows, num_cols, distribution, kernel), column]


def shapes_of(*cells):
    return ratios.against_peers(pd.DataFrame(list(cells)))


# shapes


def test_a_shape_stands_between_the_floor_and_the_best_peer():
    # This run's torch.topk takes half the published time: so would the peers.
    torch_us = published_us("torch.topk") / 2
    (found,) = shapes_of(*at_shape({**FLOORS, "torch.topk": torch_us, "delegate": 6.0})).to_dict(
        "records"
    )
    kernels = PUBLISHED.loc[(24, 262_144, "normal")]["warm_us"]
    others = kernels.drop(["read_once_floor", "one_empty_kernel", "two_empty_kernels"])
    assert found["peer"] == others.idxmin() == "sglang_topk_v2"
    assert found["peer_us"] == pytest.approx(others.min() / 2)
    assert found["speedup"] == pytest.approx(others.min() / 2 / 6)
    assert found["ratio"] == pytest.approx(1 / found["speedup"])
    assert (found["floor"], found["floor_us"], found["reduce_us"]) == (models.REDUCE, 9, 9)
    assert found["launch_us"] == pytest.approx(
        published_us("two_empty_kernels") - published_us("one_empty_kernel")
    )
    assert found["peer_kind"] == "published"


def test_an_installed_peer_counts_by_the_torch_of_its_own_run():
    own = at_shape({**FLOORS, "torch.topk": 100.0, "delegate": 6.0})
    installed = at_shape(
        {"torch.topk": 50.0, "peer:deep_select": 4.0, "delegate": 1.0},
        **{"experiment": "peer_shapes", "run": "other", "recorded": "2026-11-30T10:00:00Z"},
    )
    (found,) = shapes_of(*own, *installed).to_dict("records")
    assert (found["peer"], found["peer_kind"]) == ("peer:deep_select", "measured")
    assert found["peer_us"] == 8
    assert found["time_us"] == 6


def test_the_last_run_that_is_whole_counts():
    whole = at_shape({**FLOORS, "torch.topk": 100.0, "delegate": 6.0})
    later = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    without_floor = at_shape({"torch.topk": 100.0, "delegate": 3.0}, **later)
    assert shapes_of(*whole, *without_floor)["time_us"].tolist() == [6.0]
    again = at_shape({**FLOORS, "torch.topk": 100.0, "delegate": 5.0}, **later)
    assert shapes_of(*again, *whole)["time_us"].tolist() == [5.0]
    with pytest.raises(ValueError, match=r"must hold delegate, torch.topk and a read kernel .* 2"):
        shapes_of(*without_floor)


def test_another_device_is_held_against_no_published_time():
    (found,) = shapes_of(
        *at_shape({**FLOORS, "torch.topk": 100.0, "delegate": 6.0}, device="AMD Instinct MI355X")
    ).to_dict("records")
    assert found["peer"] is None
    assert np.isnan(found["speedup"])
    assert np.isnan(found["launch_us"])
    assert found["floor_us"] == 9


def test_parts_add_up_to_the_time():
    frame = shapes_of(*at_shape({**FLOORS, "read_amax": 8.0, "torch.topk": 100, "delegate": 15}))
    parts = models.time_parts(frame)
    launch = published_us("two_empty_kernels") - published_us("one_empty_kernel")
    assert parts["part_us"].tolist() == pytest.approx([8, 1, launch, 15 - 9 - launch])
    assert parts["part_us"].sum() == pytest.approx(15)
    assert set(parts["num_rows"]) == {24}
    # A row that is kept whole is read by the one launch that there is.
    floors = {name: time for name, time in FLOORS.items() if name != models.REDUCE}
    whole = shapes_of(
        *at_shape({**floors, "torch.topk": 100, "delegate": 15}, 6, 10_240, "masked_random")
    )
    assert models.time_parts(whole)["part_us"].tolist() == [10, 0, 0, 5]
    # And so is a longer one where its block reduces it, though the first launch alone was timed.
    cells = at_shape({**FLOORS, "torch.topk": 100, "delegate": 15}, counters={"launches": "fused"})
    assert models.time_parts(shapes_of(*cells))["part_us"].tolist() == [9, 0, 0, 6]


# rows, growth, members


def rows_cell(workload, time_us, variant="delegate", **other):
    return cell("delegate_rows", variant, time_us, workload=workload, **other)


def test_adversarial_rows_are_held_against_normal_ones_of_their_run():
    later = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    records = pd.DataFrame(
        [
            rows_cell("normal", 10.0),
            rows_cell("constant", 12.0),
            rows_cell("constant", 40.0, "vllm_k512"),
            rows_cell("normal", 20.0, "vllm_k512"),
            rows_cell("ascending", 5.0, num_rows=1),
            rows_cell("normal", 4.0, num_rows=1),
            rows_cell("constant", 99.0, **later),  # alone in its run
        ]
    )
    found = models.adversarial_ratios(records).set_index(["num_rows", "variant", "workload"])
    assert found["ratio"].to_dict() == {
        (1, "delegate", "ascending"): 1.25,
        (1, "delegate", "normal"): 1,
        (24, "delegate", "constant"): 1.2,
        (24, "delegate", "normal"): 1,
        (24, "vllm_k512", "constant"): 2,
        (24, "vllm_k512", "normal"): 1,
    }
    with pytest.raises(ValueError, match="normal rows beside others in one run, got none"):
        models.adversarial_ratios(records[records["workload"] != "normal"])


def growth_cells(num_rows, fixed, slope, floor_fixed, floor_slope):
    """Times that are lines in the bytes (us a GB)."""
    cells = []
    for power in range(15, 23):
        nbytes = 4 * num_rows * 2**power
        lines = {
            "read_amax": floor_fixed + floor_slope * nbytes / 1e9,
            "read_amax_256": 1e6,
            "delegate": fixed + slope * nbytes / 1e9,
        }
        cells += [
            cell(
                "delegate_growth",
                name,
                time_us,
                num_rows=num_rows,
                num_cols=2**power,
                counters={"input_bytes": nbytes},
            )
            for name, time_us in lines.items()
        ]
    return cells


def test_slopes_are_those_of_long_calls():
    cells = [*growth_cells(24, 10, 300, 2, 250), *growth_cells(1, 5, 300, 1, 250)]
    for one in cells:  # short calls are nothing like it
        if one["counters"]["input_bytes"] < models.LARGE_BYTES and one["variant"] == "delegate":
            one["median_us"] = 1000.0
    times = models.growth_times(pd.DataFrame(cells))
    assert set(times["ran"]) == {"delegate", "read_amax"}
    assert set(times["line"]) == {"delegate", "floor"}
    longest = times[(times["line"] == "floor") & (times["num_cols"] == 2**22)].iloc[-1]
    assert longest["bytes_per_s"] == pytest.approx(
        1e6 * longest["input_bytes"] / longest["time_us"]
    )
    (found,) = models.growth_slopes(times).to_dict("records")
    assert (found["num_rows"], found["points"]) == (24, 3)
    assert found["slope_us"] == pytest.approx(300)
    assert found["floor_slope_us"] == pytest.approx(250)
    assert (found["fixed_us"], found["floor_fixed_us"]) == (pytest.approx(10), pytest.approx(2))
    assert found["low"] < found["ratio"] == pytest.approx(1.2)
    assert found["ratio"] < found["high"]
    with pytest.raises(ValueError, match="two calls of 10000000000 bytes or more, got fewer"):
        models.growth_slopes(times, 10**10)
    with pytest.raises(ValueError, match="one variant beside the floor, got delegate, other"):
        models.growth_slopes(pd.concat([times, times.assign(line="other")]))


def test_a_run_without_a_floor_has_no_slope():
    cells = [one for one in growth_cells(24, 1, 1, 1, 1) if one["variant"] == "delegate"]
    with pytest.raises(ValueError, match="delegate beside a read kernel in one run, got none"):
        models.growth_times(pd.DataFrame(cells))


def test_the_regret_of_the_choice_is_over_the_best_member():
    times = {
        "delegate": ("k512", 12.0),
        "delegate[member=k512]": ("k512", 12.1),
        "delegate[member=k512_pair]": ("k512_pair", 10.0),
        "delegate[dies=8]": ("k512", 9.0),
    }
    cells = [
        cell("delegate_members", name, time_us, counters={"member": member})
        for name, (member, time_us) in times.items()
    ]
    found = models.member_regret(pd.DataFrame(cells)).set_index("policy")
    assert set(found["best"]) == {"k512_pair"}
    assert found["regret"].to_dict() == pytest.approx(
        {
            "delegate": 1.2,
            "delegate[member=k512]": 1.21,
            "delegate[member=k512_pair]": 1.0,
            "delegate[dies=8]": 0.9,
        }
    )
    assert set(found["length"]) == {2**20}


# traffic


def profiled(variant, workload, read, written, num_cols=131_072, **other):
    return cell(
        "profile",
        variant,
        1.0,
        kind="emulated",
        target="gfx950",
        device="gfx950",
        num_rows=2,
        num_cols=num_cols,
        workload=workload,
        counters={
            "global_bytes_read": read,
            "global_bytes_written": written,
            "lds_atomic_serialized_lanes": [1, 2],
            "global_atomic_lanes": [0, 4],
        },
        **other,
    )


def test_traffic_is_what_all_launches_move_over_the_live_bytes():
    live = 4 * 2 * 131_072
    policy = schedules.DELEGATE_POLICIES["k512"]
    gathered = 4 * 2 * policy.segment_capacity * policy.segment
    bound = 1.05 * (live * (1 + 2 / 16) + gathered)
    within, beyond = int(bound), int(bound) + 1
    records = pd.DataFrame(
        [
            profiled("delegate", "normal", [live, within - live - 8], [4, 4]),
            profiled("delegate", "constant", [live, beyond - live], [0, 0]),
            profiled("shared_histogram", "constant", [3 * live, 2 * live], [0, live]),
            profiled("delegate", "normal", [4 * 2 * 8192, 0], [0, 0], num_cols=8192),
            profiled("delegate", "ascending", [1], [1], status="wrong"),
        ]
    )
    found = models.traffic(records).set_index(["variant", "workload", "num_cols"])
    ours = found.loc[("delegate", "normal", 131_072)]
    assert ours["bytes"] == within
    assert ours["bound"] == pytest.approx(bound / live)
    assert ours["within"] is True or ours["within"] == np.True_
    assert not found.loc[("delegate", "constant", 131_072), "within"]
    assert found.loc[("shared_histogram", "constant", 131_072), "reads"] == 6
    assert np.isnan(found.loc[("shared_histogram", "constant", 131_072), "bound"])
    assert np.isnan(found.loc[("delegate", "normal", 8192), "bound"]), "kept whole"
    assert found.loc[("delegate", "normal", 8192), "within"] is None
    assert set(found["serialized_lanes"]) == {3}
    assert set(found["global_atomic_lanes"]) == {4}
    assert len(found) == 4
    with pytest.raises(ValueError, match="records of profile, got none"):
        models.traffic(records[records["status"] == "wrong"])


# bars


def all_shapes(time_of):
    """Every published shape, torch.topk as published; `time_of` floor, columns and best peer."""
    cells = []
    for num_rows, num_cols, _, workload, _ in published_shapes():
        distribution = NAMES.get(workload, workload)
        for cache, column in ratios.PUBLISHED_TIMES.items():
            kernels = PUBLISHED.loc[(num_rows, num_cols, distribution)][column]
            best = kernels.drop(["read_once_floor", *ratios.EMPTY_KERNELS]).min()
            floor = kernels["read_once_floor"]
            times = {
                "read_amax": floor,
                "torch.topk": kernels["torch.topk"],
                "delegate": time_of(floor, num_cols, best),
            }
            cells += at_shape(times, num_rows, num_cols, workload, cache=cache)
    return shapes_of(*cells)


def pairs(speedups, **columns):
    return pd.DataFrame({"speedup": speedups, **columns})


def judged(time_of=lambda floor, cols, best: best / 1.5, **tables):
    buffers = {"cache": ["warm", "warm", "cold"], "buffer": ["live", "full", "live"]}
    given = {
        "matrix": pairs([2.5, 3.0, 1.8], **buffers),
        "rows": pd.DataFrame(
            {
                "variant": ["delegate", "delegate", "vllm_k512"],
                "workload": ["normal", "constant", "constant"],
                "ratio": [1.0, 1.3, 9.0],
            }
        ),
        "large_k": pairs([2.5, 2.4, 2.6, 0.1], k=[1024, 2048, 2048, 4096]),
        "growth": pd.DataFrame({"ratio": [1.1, 1.3]}),
    }
    found = models.judge_bars(shapes=all_shapes(time_of), **(given | tables))
    return found.set_index("bar")


def bar_of(found, *words):
    (name,) = (name for name in found.index if all(word in name for word in words))
    return found.loc[name]


def test_a_bar_is_met_at_its_target_and_missed_beyond():
    found = judged()
    assert bar_of(found, "cases slower", "warm", "live")["value"] == 0
    for words in (("over vllm_k512", "live", "warm"), ("over vllm_k512", "cold"), ("adversarial",)):
        assert bar_of(found, *words)["met"], words
    assert bar_of(found, "k 1024")["value"] == 2.5
    assert not bar_of(found, "k 2048")["met"], "2.498"
    assert bar_of(found, "slope")["value"] == 1.3
    assert bar_of(found, "slope")["met"]
    worse = judged(
        matrix=pairs([2.4, 0.9, 3.0, 1.7], cache=["warm"] * 3 + ["cold"], buffer=["live"] * 4),
        growth=pd.DataFrame({"ratio": [1.31]}),
    )
    assert bar_of(worse, "cases slower", "warm", "live")["value"] == 1
    for words in (("cases slower", "warm", "live"), ("over vllm_k512", "cold"), ("slope",)):
        assert not bar_of(worse, *words)["met"], words
    absent = bar_of(worse, "over vllm_k512", "full")
    assert absent["cells"] == 0
    assert np.isnan(absent["value"])
    assert not absent["met"]


def test_shapes_are_held_against_floor_and_peers():
    found = judged()
    assert bar_of(found, "best peer, warm", "geomean")["value"] == pytest.approx(1.5)
    assert bar_of(found, "best peer, cache pressure", "least")["value"] == pytest.approx(1.5)
    assert bar_of(found, "longer rows")["cells"] == 17
    assert bar_of(found, "up to 16384 columns")["cells"] == 1
    at_the_bar = judged(lambda floor, cols, best: models.allowed_us(floor, cols))
    for words in (("longer rows",), ("up to 16384",)):
        assert bar_of(at_the_bar, *words)["value"] == pytest.approx(1)
        assert bar_of(judged(lambda floor, cols, best: best), *words)["value"] > 1
    even = judged(lambda floor, cols, best: best)
    assert bar_of(even, "best peer, warm", "least")["value"] == pytest.approx(1)


def test_what_a_call_may_take():
    assert models.allowed_us(10.0, 16_385) == pytest.approx(16.0)
    assert models.allowed_us(10.0, 16_384) == pytest.approx(12.2)


def test_the_promise_of_the_lowest_index_launches_the_same_kernels():
    for num_rows, num_cols, k, _, _ in published_shapes():
        launched = [
            plans.plan("delegate", plans.Shape(num_rows, num_cols, k, num_cols, k, tie_break=ties))
            for ties in ("any", "lowest")
        ]
        assert launched[0].launches == launched[1].launches
