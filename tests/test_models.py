"""Do the models give what their formulas give by hand, and admit what records can't tell?"""

import math

import numpy as np
import pandas as pd
import pytest

from topk_lab import models, results

KIB = 1024
H200 = "NVIDIA H200"


def cell(num_rows, time_us, **other):
    """Record of a time; three samples around it unless given."""
    samples = other.pop("samples_us", [0.99 * time_us, time_us, 1.01 * time_us])
    resident = other.pop("resident", 264)
    return {
        "kind": "measured",
        "device": H200,
        "experiment": "latency_vs_batch",
        "run": "first",
        "recorded": "2026-11-29T10:00:00Z",
        "variant": "block1024",
        "num_rows": num_rows,
        "num_cols": 32768,
        "k": 1024,
        "cache": "warm",
        "workload_args": {},
        "status": "ok",
        "samples_us": samples,
        "median_us": float(np.median(samples)),
        "q1_us": min(samples),
        "q3_us": max(samples),
        "counters": {
            "input_bytes": 4 * 32768 * num_rows,
            "blocks_per_unit": resident // 132,
            "units": 132,
            "resident_blocks": resident,
        },
    } | other


def frame(*cells):
    return pd.DataFrame(list(cells))


def only(table):
    (line,) = table.to_dict("records")
    return line


# 46.4 KiB: 40 KiB of stash, and the static histograms and indices.
SELECT = {"vgpr": 32, "agpr": 0, "sgpr": 60, "lds": 6554}
STASH = 40 * KIB


@pytest.mark.parametrize(
    ("device", "block_size", "blocks", "waves", "resident", "limit"),
    [
        # 47514 bytes are 38 granules of 1280: 48640, of which 163840 holds 3.
        pytest.param("gfx950", 512, 3, 24, 768, "lds", id="three-of-160-KiB"),
        pytest.param("gfx950", 1024, 2, 32, 512, "threads", id="2048-threads-are-two-blocks"),
        pytest.param("gfx942", 512, 1, 8, 304, "lds", id="one-of-64-KiB"),
        pytest.param("gfx942", 1024, 1, 16, 304, "lds", id="one-of-64-KiB-1024-threads"),
        pytest.param("gfx90a", 512, 1, 8, 110, "lds", id="one-die-of-an-mi250x"),
        # 47616 bytes and 1 KiB: 4.8 of 228 KiB; 2048 threads are 4 blocks.
        pytest.param("sm_90", 512, 4, 64, 528, "threads", id="h200-four"),
        pytest.param("sm_90", 1024, 2, 64, 264, "threads", id="h200-two"),
    ],
)
def test_resident_blocks_of_the_published_kernel(
    device, block_size, blocks, waves, resident, limit
):
    found = models.resident_blocks(SELECT, block_size, STASH, device)
    assert found == models.Occupancy(blocks, waves, resident, limit)


@pytest.mark.parametrize(
    ("device", "lds", "blocks"),
    [
        pytest.param("gfx950", 32 * 1280, 4, id="gfx950-whole-granules"),
        pytest.param("gfx950", 32 * 1280 + 1, 3, id="gfx950-one-byte-more-is-a-granule-more"),
        pytest.param("gfx942", 16384, 4, id="gfx942-a-quarter"),
        pytest.param("gfx942", 16385, 3, id="gfx942-one-byte-more"),
        pytest.param("sm_90", 56 * KIB, 4, id="h200-57-KiB-with-the-reserved-one"),
        pytest.param("sm_90", 56 * KIB + 1, 3, id="h200-one-byte-more"),
        pytest.param("sm_90", 227 * KIB, 1, id="h200-all-that-a-block-may-have"),
    ],
)
def test_lds_is_taken_in_granules(device, lds, blocks):
    found = models.resident_blocks({"vgpr": 32, "lds": 0}, 512, lds, device)
    assert found.blocks_per_unit == blocks


@pytest.mark.parametrize(
    ("resources", "device", "blocks", "limit"),
    [
        # 8 waves of 64 a block on 4 SIMDs: two waves a SIMD for each block.
        pytest.param({"vgpr": 64}, "gfx950", 4, "threads", id="64-vector-registers"),
        pytest.param({"vgpr": 65}, "gfx950", 3, "registers", id="65-take-72-so-7-waves"),
        pytest.param({"vgpr": 128}, "gfx950", 2, "registers", id="128-give-4-waves"),
        # 62 and 4 accumulation registers: those begin at 64, 68 take 72.
        pytest.param({"vgpr": 62, "agpr": 4}, "gfx950", 3, "registers", id="accumulation"),
        # 7 waves a SIMD, as the compiler states for a kernel with 106.
        pytest.param({"vgpr": 32, "sgpr": 106}, "gfx942", 3, "registers", id="scalar-112"),
        pytest.param({"vgpr": 32, "sgpr": 96}, "gfx942", 4, "threads", id="scalar-96"),
        # 16 waves of 32 a block, 40 * 32 registers a wave: 12 waves in each quarter.
        pytest.param({"vgpr": 40}, "sm_90", 3, "registers", id="h200-40"),
        pytest.param({"vgpr": 32, "sgpr": 106}, "sm_90", 4, "threads", id="h200-32"),
    ],
)
def test_registers_limit_waves(resources, device, blocks, limit):
    found = models.resident_blocks(resources, 512, 0, device)
    assert (found.blocks_per_unit, found.limit) == (blocks, limit)


def test_small_blocks_are_limited_in_number():
    found = models.resident_blocks({"vgpr": 16}, 32, 0, "sm_90")
    assert found == models.Occupancy(32, 32, 32 * 132, "blocks")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, 512, 0, "gfx1100"), "device must be one of gfx90a, gfx942, gfx950, sm_90"),
        (({}, 96, 0, "gfx950"), "block_size must be a multiple of 64"),
        (({}, 0, 0, "sm_90"), "block_size must be a multiple of 32"),
        (({}, 2048, 0, "sm_90"), "from 32 to 1024, got 2048"),
        (({"lds": 7 * KIB}, 512, 58 * KIB, "gfx942"), "dynamic_lds must be from 0 to 58368"),
        (({}, 512, 228 * KIB, "sm_90"), "dynamic_lds must be from 0 to 232448"),
        (({"vgpr": 256}, 1024, 0, "gfx950"), "resources must leave room for one block of 1024"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.resident_blocks(*arguments)


def test_wave_fit_finds_what_made_the_times():
    rows = (1, 8, 64, 264, 265, 528, 529, 1024)
    waves = (1, 1, 1, 1, 2, 2, 3, 4)
    fit = only(
        models.fit_waves(frame(*(cell(n, 5 + 20 * w) for n, w in zip(rows, waves, strict=True))))
    )
    assert (fit["fixed_us"], fit["per_wave_us"]) == pytest.approx((5, 20))
    assert fit["fixed_low"] <= 5 <= fit["fixed_high"]
    assert 19 < fit["per_wave_low"] <= 20 <= fit["per_wave_high"] < 21
    assert fit["one_wave_us"] == pytest.approx(25)
    assert (fit["r2"], fit["residual"]) == pytest.approx((1, 0), abs=1e-9)
    assert (fit["points"], fit["waves"], fit["verdict"]) == (8, 4, "fits")
    assert (fit["blocks_per_unit"], fit["resident_blocks"], fit["held"]) == (2, 264, False)


def test_wave_fit_is_the_same_every_time_and_whatever_else_is_there():
    cells = [cell(n, 10 + n / 50) for n in (1, 100, 300, 600, 1000)]
    alone = models.fit_waves(frame(*cells))
    others = [cell(n, 7 + n / 90, variant="block512", resident=528) for n in (1, 600, 1100)]
    both = models.fit_waves(frame(*others, *cells))
    assert only(alone) == only(both[both["variant"] == "block1024"])
    assert (
        only(models.fit_waves(frame(*cells), seed=1))["per_wave_low"] != only(alone)["per_wave_low"]
    )


def test_wave_fit_says_where_steps_do_not_describe_the_times():
    # Waves 1, 2, 3: times 10, 20, 60 give the line -20 + 25 w, at the first 5 where 10 was found.
    fit = only(models.fit_waves(frame(cell(264, 10), cell(528, 20), cell(792, 60))))
    assert (fit["fixed_us"], fit["per_wave_us"]) == pytest.approx((-20, 25))
    assert fit["residual"] == pytest.approx(0.5)
    # Residuals 5, -10, 5 of times that lie -20, -10, 30 from their mean.
    assert fit["r2"] == pytest.approx(1 - 150 / 1400)
    assert fit["verdict"] == "does not fit"


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        pytest.param((1, 64, 264), "not identifiable: all rows fit in one wave", id="one-wave"),
        pytest.param(
            (265, 400, 528), "not identifiable: all rows take as many waves", id="two-waves"
        ),
        pytest.param((1, 528), "not identifiable: fewer than 3 points", id="two-points"),
    ],
)
def test_wave_fit_invents_no_slope(rows, verdict):
    fit = only(models.fit_waves(frame(*(cell(n, 25) for n in rows))))
    assert fit["verdict"] == verdict
    numbers = [fit[f"{name}_{end}"] for name in ("fixed", "per_wave") for end in ("us", "low")]
    assert all(math.isnan(number) for number in numbers)
    assert fit["one_wave_us"] == pytest.approx(25) or rows[0] > 264


def test_occupancy_axis_is_fitted_by_itself_and_kept_out_of_everything_else():
    main = [cell(n, 25) for n in (8, 64, 256)]
    held = [
        cell(n, t, workload_args={"blocks_per_unit": 1}, resident=132)
        for n, t in ((8, 20), (132, 20), (256, 40))
    ]
    table = frame(*main, *held)
    fits = models.fit_waves(table).set_index("held")
    assert fits.loc[True, ["fixed_us", "per_wave_us"]].tolist() == pytest.approx([0, 20])
    assert fits.loc[True, "resident_blocks"] == 132
    assert fits.loc[False, "verdict"].endswith("one wave")
    assert only(models.flatness(table))["growth"] == 1


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        pytest.param((36.8, 36.8), "latency-bound", id="as-published"),
        pytest.param((40, 43), "latency-bound", id="7-per-cent"),
        pytest.param((40, 80), "between", id="doubled-for-32-times-the-rows"),
        pytest.param((40, 320), "throughput-bound", id="eightfold"),
        # Samples 1 % either side: growth from 1.089 * 0.98 to 1.089 * 1.02 spans 1.10.
        pytest.param((100, 108.9), "undecided", id="interval-spans-the-bound"),
    ],
)
def test_flatness_goes_by_the_interval_of_the_growth(times, verdict):
    line = only(models.flatness(frame(cell(8, times[0]), cell(256, times[1]))))
    assert line["growth"] == pytest.approx(times[1] / times[0])
    assert line["growth_low"] <= line["growth"] <= line["growth_high"]
    assert (line["least_us"], line["most_us"]) == pytest.approx(times)
    assert line["verdict"] == verdict


def test_flatness_sees_a_hump_between_the_ends():
    rows = (4, 8, 64, 256, 512)
    times = (99, 20, 30, 21, 99)
    line = only(models.flatness(frame(*map(cell, rows, times))))
    assert (line["points"], line["least_rows"], line["most_rows"]) == (3, 8, 256)
    assert line["spread"] == pytest.approx(1.5)
    assert line["spread_low"] == pytest.approx(1.5 * 0.99 / 1.01)
    assert line["growth"] == pytest.approx(1.05)


def test_flatness_without_an_end_is_undecided():
    line = only(models.flatness(frame(cell(8, 20), cell(128, 20))))
    assert line["verdict"] == "undecided"
    assert math.isnan(line["growth"])
    with pytest.raises(ValueError, match="least must be above 0 and below most, got 8 and 8"):
        models.flatness(frame(cell(8, 20)), 8, 8)


def test_failed_cells_count_nowhere_and_the_last_run_counts():
    again = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    table = frame(cell(8, 30, **again), cell(8, 20), cell(256, 30), cell(64, 900, status="wrong"))
    line = only(models.flatness(table))
    assert (line["points"], line["growth"], line["spread"]) == (2, 1, 1)


def test_speedups_pair_rows_and_average_ratios():
    table = frame(
        *(cell(n, t, variant="block512") for n, t in ((8, 40), (64, 20), (256, 10), (512, 7))),
        *(cell(n, 10) for n in (8, 64, 256)),
    )
    line = only(models.speedups(table, "block512", "block1024"))
    assert line["speedup"] == pytest.approx(2)  # of 4, 2 and 1
    assert (line["least"], line["greatest"], line["pairs"]) == (1, 4, 3)
    assert line["low"] < 2 < line["high"]
    assert (line["num_cols"], line["cache"], line["device"]) == (32768, "warm", H200)


def test_speedups_never_divide_times_of_two_runs():
    other = {"run": "second", "recorded": "2026-11-30T10:00:00Z"}
    slow = cell(8, 16, variant="block512")
    table = frame(slow, cell(8, 10), cell(8, 5, **other))
    assert only(models.speedups(table, "block512", "block1024"))["speedup"] == pytest.approx(1.6)
    with pytest.raises(ValueError, match="got 1 and 1 that pair with none"):
        models.speedups(frame(slow, cell(8, 5, **other)), "block512", "block1024")


def test_bandwidth_share_is_of_the_best_read_in_the_same_cell():
    table = frame(
        cell(8, 40),
        cell(8, 25, variant="read_rows", k=None),
        cell(8, 20, variant="read_floor[split=4]", k=None),
        cell(8, 5, variant="read_floor[split=4]", k=None, cache="cold"),
        cell(64, 40),
    )
    shares = models.bandwidth_share(table)
    first, second = shares.to_dict("records")
    assert (first["num_rows"], first["floor"]) == (8, "read_floor[split=4]")
    assert first["share"] == pytest.approx(0.5)
    # 8 rows of 128 KiB in 40 us and in 20 us.
    assert first["bytes_per_s"] == pytest.approx(8 * 131072 / 40e-6)
    assert first["floor_bytes_per_s"] == pytest.approx(8 * 131072 / 20e-6)
    assert pd.isna(second["floor"])
    assert math.isnan(second["share"])
    assert second["bytes_per_s"] == pytest.approx(64 * 131072 / 40e-6)


@pytest.mark.parametrize(
    "model", [models.fit_waves, models.flatness, models.bandwidth_share], ids=lambda f: f.__name__
)
def test_no_records_give_no_lines_and_other_tables_are_refused(model):
    assert model(results.load([])).empty
    with pytest.raises(ValueError, match="frame must hold records, got no column kind"):
        model(pd.DataFrame({"num_rows": [1]}))


def test_step_share_of_the_published_profile():
    share = models.step_share(30, 431, 21500, 36.8)
    assert share.saved_per_launch_us == pytest.approx(14.367, abs=1e-3)
    assert share.after_us == pytest.approx(22.433, abs=1e-3)
    assert share.speedup == pytest.approx(1.6404, abs=1e-4)
    assert share.share == pytest.approx(0.020047, abs=1e-6)
    assert share.throughput_gain == pytest.approx(431 / 21069)
    assert share.kernel_share == pytest.approx(1104 / 21500)
    assert share.greatest_gain == pytest.approx(1104 / 20396)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 431, 21500, 36.8), "launches must be above 0"),
        ((30, -1, 21500, 36.8), "saved_us must be above 0"),
        ((30, 1104, 21500, 36.8), "saved_us must be below launches"),
        ((30, 431, 1000, 36.8), "step_us must be above launches"),
    ],
)
def test_step_share_refuses_what_no_step_does(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.step_share(*arguments)


def test_published_gains_lie_on_both_sides_of_the_profile():
    table = models.published_step_share()
    sides = {
        (line["quantity"], line["condition"].split()[1], line["published"]): line["verdict"]
        for line in table.to_dict("records")
    }
    assert sides == {
        ("kernel_speedup", "131072", 1.6): "agrees",
        ("throughput_gain", "16", 3.0): "above the model",
        ("throughput_gain", "64", 1.6): "below the model",
        ("tpot_gain_low", "16-64", 1.6): "below the model",
        ("tpot_gain_high", "16-64", 2.9): "above the model",
        ("saved_share", "step", 2.0): "agrees",
    }
    model = table.set_index("quantity")["model"]
    assert model["kernel_speedup"] == pytest.approx(1.6404, abs=1e-4)
    assert model["throughput_gain"].tolist() == pytest.approx([2.0457] * 2, abs=1e-4)
    assert "pull request 36004" in results.provenance(table)
    # 1.60 lies 2.5 % under 1.6404.
    strict = models.published_step_share(tolerance=0.02).set_index("quantity")["verdict"]
    assert strict["kernel_speedup"] == "below the model"


def test_published_times_are_points_of_the_batch_axis():
    points = models.published_times()
    names = ["num_rows", "num_cols", "block_size", "time_us"]
    assert points[names].to_numpy().tolist() == [[8, 32768, 512, 36.8], [256, 32768, 512, 36.8]]
    assert results.only_kind(points) == "published"


@pytest.mark.parametrize(
    ("counts", "recall"),
    [
        pytest.param((1024, 0, 16491, 5120), 0.3105, id="uniform"),
        pytest.param((1024, 512, 2048, 1024), 0.75, id="half-are-safe"),
        pytest.param((512, 100, 5120, 5120), 1, id="all-fit"),
        pytest.param((512, 100, 5120, 0), 100 / 512, id="no-stash"),
        pytest.param((512, 512, 0, 0), 1, id="none-in-the-bin"),
    ],
)
def test_expected_recall(counts, recall):
    assert models.expected_recall(*counts) == pytest.approx(recall, abs=5e-5)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ((0, 0, 1, 1), "k must be"),
        ((4, 5, 1, 1), "above must be"),
        ((4, 1, 2, 1), "population must be at least k - above = 3, got 2"),
        ((4, 1, 3, -1), "capacity must be"),
    ],
)
def test_expected_recall_refuses_counts_that_no_row_has(counts, message):
    with pytest.raises(ValueError, match=message):
        models.expected_recall(*counts)


def test_recalls_of_the_numpy_model_are_one_where_the_stash_holds_the_bin():
    table = models.published_recall()
    assert len(table) == 21
    whole = table["capacity"] >= table["population"]
    assert (table.loc[whole, "recall"] == 1).all()
    assert table["expected"].isna().all(), "the table does not say what lies above the bin"
    partial = table[~whole]
    assert len(partial) == 8
    # Winners above the bin are safe, so at least as many come back as of the bin itself.
    assert (partial["recall"] > 0.9 * partial["capacity"] / partial["population"]).all()
    uniform = table[(table["num_cols"] == 131072) & (table["capacity"] == 6144)]
    assert (only(uniform)["recall"], only(uniform)["workload"]) == (0.384, "uniform")


def test_waves_may_be_of_one_block_a_unit():
    # 10 us, and 5 us for each further 132 rows, whatever is resident.
    rows = (8, 132, 133, 264, 265, 528)
    table = frame(*(cell(n, 5 + 5 * math.ceil(n / 132)) for n in rows))
    by_residency = only(models.fit_waves(table))
    by_units = only(models.fit_waves(table, at_once="units"))
    assert (by_units["at_once"], by_residency["at_once"]) == (132, 264)
    assert by_units["fixed_us"] == pytest.approx(5)
    assert by_units["per_wave_us"] == pytest.approx(5)
    assert (by_units["verdict"], by_residency["verdict"]) == ("fits", "does not fit")
    with pytest.raises(ValueError, match="at_once must be resident_blocks or units, got 'blocks'"):
        models.fit_waves(table, at_once="blocks")


def test_elasticity_is_one_where_time_is_proportional_to_rows():
    line = only(models.flatness(frame(cell(8, 2), cell(256, 64))))
    assert line["elasticity"] == pytest.approx(1)
    assert line["verdict"] == "throughput-bound"


def profile(variant, block_size, waves, *, target="gfx950", num_cols=32768, **counters):
    counts = {
        "blocks": [8],
        "waves": [waves],
        "valu_instructions": [3200],
        "global_instructions": [320],
        "lds_atomic_lanes": [6400],
        "lds_atomic_serialized_lanes": [800],
        "barrier_instructions": [10 * waves],
        "histograms_neg_inf": 0,
    }
    return {
        "kind": "emulated",
        "target": target,
        "variant": variant,
        "policy": {"block_size": block_size, "stash_kib": 40},
        "num_rows": 8,
        "num_cols": num_cols,
        "k": 1024,
        "workload": "normal",
        "recorded": "2026-11-29T10:00:00Z",
        "counters": counts | counters,
    }


def test_work_is_divided_by_blocks_or_by_waves():
    older = profile("a", 512, 64, valu_instructions=[1]) | {"recorded": "2026-11-28T10:00:00Z"}
    table = frame(profile("b", 1024, 128), older, profile("a", 512, 64))
    work = models.work_by_block_size(table)
    assert work["block_size"].is_monotonic_increasing
    value = work.set_index(["counter", "block_size"])["value"]
    assert value["waves a block"].tolist() == [8, 16]
    assert value["row logits a lane"].tolist() == [64, 32]
    assert value["VALU instructions a wave"].tolist() == [50, 25]
    assert value["lanes serialized a block"].tolist() == [100, 100]
    assert value["barriers of a wave"].tolist() == [10, 10]
    assert value["waits at barriers a block"].tolist() == [80, 160]


def test_work_of_several_shapes_or_of_none_is_refused():
    mixed = frame(profile("a", 512, 64), profile("a", 512, 64, num_cols=2048))
    with pytest.raises(ValueError, match="one target, shape and workload, got 2 of them"):
        models.work_by_block_size(mixed)
    other = frame(profile("a", 512, 64) | {"policy": {"block_size": 512}})
    with pytest.raises(ValueError, match="got 0 of them"):
        models.work_by_block_size(other)


def test_recorded_recalls_stand_beside_what_their_own_counts_let_expect():
    counters = {
        "mean_recall": 0.5,
        "capacity": 100,
        "above": [0, 20],
        "bin_population": [400, 100],
    }
    lost = {
        "workload": "uniform",
        "num_cols": 1000,
        "k": 40,
        "policy": {"overflow": "drop"},
        "counters": counters,
        "target": "numba",
        "kind": "measured",
        "device": "a CPU",
    }
    kept = lost | {"policy": {"overflow": "rescan"}, "target": "gfx950", "kind": "emulated"}
    table = models.recorded_recall(frame(lost, kept))
    # A quarter of the winners of the first row, all of the second.
    assert table["expected"].iloc[0] == pytest.approx((0.25 + 1) / 2)
    assert math.isnan(table["expected"].iloc[1])
    assert table["hardware"].tolist() == ["a CPU", "gfx950"]
    assert table["recall"].tolist() == [0.5, 0.5]
