"""Do the models of contention, and the figures of it, say what records hold?"""

import math

import numpy as np
import pandas as pd
import pytest

from topk_lab import crowds, figures, models, results, schedules
from topk_lab.models import contention

EACH, COUNTED, OURS = contention.UNCOUNTED, contention.COUNTED, "vllm_k512_uncrowded"


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row_len", "splits", "masked", "counted", "compiled"),
    [
        (16_385, 8, 1792, 512, 8),
        (131_072, 8, 14_336, 1024, 16),
        (262_144, 10, 22_937.25, 1024, 16),
        (1_048_576, 16, 57_344, 1024, 16),
    ],
)
def test_hot_bin_is_the_derived_table(row_len, splits, masked, counted, compiled):
    made = models.hot_bin(row_len, 7 / 8, splits)
    assert (made.masked, made.counted, made.compiled) == (masked, counted, compiled)
    # Evenly masked, each wave instruction meets -inf and one of its lanes does not wait.
    assert made.serialized == pytest.approx(masked - math.ceil(row_len // splits / 64), rel=1e-3)


def test_hot_bin_of_rows_without_a_mask_and_with_nothing_else():
    assert models.hot_bin(16_384, 0, 1) == models.HotBin(0, 0, 0, 0)
    made = models.hot_bin(16_384, 1, 1)
    assert made == models.HotBin(16_384, 1024, 16, 16_384 - 256)
    assert models.hot_bin(100, 1 / 100, 1).counted == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0.5, 1), "row_len must be at least 1, got 0"),
        ((math.nan, 0.5, 1), "row_len must be at least 1, got nan"),
        ((8, 0.5, 0), "splits must be at least 1, got 0"),
        ((8, 0.5, 1, 0), "threads must be at least 1, got 0"),
        ((8, 1.5, 1), r"fraction must be in \[0, 1\], got 1.5"),
        ((8, math.nan, 1), r"fraction must be in \[0, 1\], got nan"),
    ],
)
def test_hot_bin_refuses_what_no_row_has(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.hot_bin(*arguments)


def test_striped_reads_put_pads_before_items():
    assert models.striped_pads(700, 212, 512, 4) == 106
    # 175 threads, each with two items and two pads.
    assert models.striped_pads(700, 700, 512, 4) == 350
    assert models.striped_pads(700, 212, 1024, 1) == 0
    assert models.striped_pads(2048, 212, 512, 4) == 0
    assert models.striped_pads(0, 5, 512, 4) == 5
    with pytest.raises(ValueError, match=r"num_items must be in \[0, 2048\], got 2049"):
        models.striped_pads(2049, 1, 512, 4)
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        models.striped_pads(0, 0, 0, 4)
    with pytest.raises(ValueError, match=r"slots must be in \[0, 4\], got 5"):
        models.striped_pads(1, 5, 4, 1)


# ---- records -------------------------------------------------------------------------------------


def timed(variant, num_cols, workload, arguments, time_us, **more):
    return {
        "kind": "measured",
        "device": "a device",
        "target": "cuda",
        "variant": variant,
        "policy": vars(schedules.parse_variant(variant).policy),
        "num_rows": 24,
        "num_cols": num_cols,
        "workload": workload,
        "workload_args": arguments,
        "cache": "warm",
        "status": "ok",
        "median_us": time_us,
        "counters": {},
    } | more


def invented(each_ns, fixed_us=1.0):
    """Times that follow the atomics of the fullest of 8 blocks, and their counts, by length."""
    times, counts = [], []
    for num_cols, cost_ns in zip(crowds.LENGTHS, each_ns, strict=False):
        for workload, arguments in crowds.masks(num_cols):
            fraction = crowds.masked_fraction(workload, arguments, num_cols)
            # The last block of a masked prefix holds nothing else.
            hot = int(num_cols / 8 * (1 if workload == "masked_prefix" else fraction))
            for variant, atomics in ((EACH, hot), (COUNTED, 0)):
                counters = {"hot_most": atomics, "splits": [8]}
                emulated = {
                    **{"kind": "emulated", "target": "gfx950", "device": "none: gfx950"},
                    **{"num_rows": 1, "counters": counters, "cache": None},
                }
                counts.append(timed(variant, num_cols, workload, arguments, None, **emulated))
            for variant, cost in ((EACH, 0.0), (contention.OPAQUE, cost_ns)):
                spent = 20 + fixed_us + 1e-3 * cost * hot
                times.append(timed(variant, num_cols, workload, arguments, spent))
            times.append(timed(COUNTED, num_cols, workload, arguments, 20.0))
    return pd.DataFrame(times), pd.DataFrame(counts)


def test_the_fit_finds_what_an_atomic_costs():
    times, counts = invented(each_ns=(2.5, 0.5))
    costs = models.contention_costs(times, counts, draws=50).set_index(["variant", "num_cols"])
    for num_cols, cost in zip(crowds.LENGTHS, (2.5, 0.5), strict=False):
        hidden = costs.loc[contention.OPAQUE, num_cols]
        assert hidden[["ns_per_atomic", "low", "high"]].tolist() == pytest.approx([cost] * 3)
        assert hidden["r2"] == pytest.approx(1)
        assert costs.loc[(EACH, num_cols), "ns_per_atomic"] == pytest.approx(0, abs=1e-9)
    assert costs["fixed_us"].tolist() == pytest.approx([1] * 4)
    assert set(costs["inputs"]) == {14}
    assert set(costs["splits"]) == {8}
    assert set(costs["kind"]) == {"measured"}


def test_records_that_would_mix_are_refused():
    times, counts = invented(each_ns=(2.5,))
    again = times.iloc[:1].assign(median_us=1.0)
    with pytest.raises(ValueError, match=r"each cell once, got .* on normal of 16384 twice"):
        models.remedies(pd.concat([times, again]))
    with pytest.raises(ValueError, match="records must be of one device, got a device, another"):
        models.remedies(pd.concat([times, times.assign(device="another")]))
    with pytest.raises(ValueError, match="records must be of one target, got gfx942, gfx950"):
        models.contention_costs(times, pd.concat([counts, counts.assign(target="gfx942")]))
    with pytest.raises(ValueError, match=r"counts must hold vllm_k512, .*, got none of vllm_k512"):
        models.contention_costs(times, counts[counts["variant"] != COUNTED])
    with pytest.raises(ValueError, match="a warm time of every step, got none"):
        models.ablation_steps(times)
    # Other arguments are another input.
    other = times.iloc[:1].assign(workload_args=[{"of": 3}], workload="masked_blocks")
    baseline = timed(COUNTED, 16_384, "masked_blocks", {"of": 3}, 20.0)
    frame = models.remedies(pd.concat([times, other, pd.DataFrame([baseline])]))
    assert len(frame) == len(times) + 2


def test_ratios_are_those_of_one_input():
    times, _ = invented(each_ns=(2.5,))
    wrong = timed(OURS, 16_384, "normal", {}, None, status="wrong")
    frame = models.remedies(pd.concat([times, pd.DataFrame([wrong])]))
    assert (frame.loc[frame["variant"] == COUNTED, "ratio"] == 1).all()
    assert OURS not in set(frame["variant"])
    masked = frame[(frame["workload"] == "all_neg_inf") & (frame["num_cols"] == 16_384)]
    found = masked.set_index("variant")["ratio"]
    assert found[contention.OPAQUE] == pytest.approx((21 + 2.5 * 2.048) / 20)
    assert set(masked["fraction"]) == {1.0}
    assert set(masked["pattern"]) == {"all"}
    with pytest.raises(ValueError, match="records must hold times of vllm_generic, got vllm_k512"):
        models.remedies(times, baseline="vllm_generic")


def test_steps_add_up_to_the_whole():
    cells = [
        timed(variant, 16_384, workload, {}, 10.0 - place)
        for workload in ("normal", "all_neg_inf")
        for place, variant in enumerate(contention.STEPS.values())
        if not (workload == "all_neg_inf" and place == 3)  # one lacks: no walk
    ]
    walk = models.ablation_steps(pd.DataFrame(cells))
    assert set(walk["workload"]) == {"normal"}
    assert walk["step"].tolist() == list(contention.STEPS)
    assert math.isnan(walk["change_us"].iloc[0])
    assert walk["change_us"].iloc[1:].tolist() == [-1.0] * (len(contention.STEPS) - 1)
    assert walk["time_us"].iloc[-1] == 10.0 - (len(contention.STEPS) - 1)


def test_each_step_differs_from_the_one_before_and_is_compiled_and_sound():
    chosen = [schedules.parse_variant(text) for text in contention.STEPS.values()]
    assert [str(variant) for variant in chosen] == list(contention.STEPS.values())
    assert all(variant.ablation is not None and variant.policy.sound for variant in chosen)
    assert len({variant.policy for variant in chosen}) == len(chosen)


# ---- committed records ---------------------------------------------------------------------------


def committed(experiment, kind):
    records = results.load_committed()
    return records[(records["experiment"] == experiment) & (records["kind"] == kind)]


def test_the_model_counts_what_the_emulator_counted():
    frame = models.hot_bin_counts(committed("neg_inf_atomics", "emulated"))
    assert set(frame["target"]) >= {"gfx950", "gfx942"}
    np.testing.assert_allclose(frame["source"], frame["source_model"], rtol=0.13)
    each = frame[frame["variant"] == EACH]
    np.testing.assert_allclose(each["source"], each["source_model"], rtol=5e-5)
    np.testing.assert_allclose(each["compiled"], each["compiled_model"], rtol=1e-4)
    # Whole groups of blocks, and a share for every wave.
    exact = frame[frame["num_cols"] > 16_385]
    assert (exact["compiled"] == exact["compiled_model"]).all()


def test_counts_of_another_experiment_are_refused():
    other = committed("neg_inf_contention", "emulated")
    for records, got in ((other, "neg_inf_contention"), (other.iloc[:0], "none")):
        with pytest.raises(ValueError, match=f"records must be of neg_inf_atomics, got {got}"):
            models.hot_bin_counts(records)


def test_every_timed_mask_was_counted_too():
    times = committed("neg_inf_contention", "measured")
    counts = committed("neg_inf_contention", "emulated")
    for target in ("gfx950", "gfx942"):
        mine = counts[counts["target"] == target]
        timed_inputs, counted_inputs = (
            {(cell.num_cols, cell.workload, str(cell.workload_args)) for cell in frame.itertuples()}
            for frame in (times, mine)
        )
        assert timed_inputs == counted_inputs
        assert len(counted_inputs) == 18 * len(crowds.LENGTHS)
    assert set(counts["status"]) == set(times["status"]) == {"ok"}


# ---- figures -------------------------------------------------------------------------------------


def ratio_lines():
    return pd.DataFrame(
        [
            {"variant": variant, "num_cols": num_cols, "pattern": pattern, "fraction": fraction,
             "ratio": ratio, "kind": "measured"}
            for variant in (EACH, OURS)
            for num_cols in (16_384, 1 << 20)
            for pattern, fraction, ratio in (
                ("none", 0.0, 1.0), ("prefix", 0.875, 2.5),
                ("all", 1.0, 0.4), ("constant", 0.0, 0.9),
            )
        ]
    )  # fmt: skip


def test_heat_map_writes_each_ratio_where_it_belongs():
    axes = figures.ratio_heat_map(ratio_lines())
    assert [ax.get_title(loc="left") for ax in axes] == ["vllm_k512\n[count_neg_inf=false]", OURS]
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert labels == ["no mask", "87.5% prefix", "all masked", "constant"]
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["16Ki", "1Mi"]
    written = {text.get_position(): text.get_text() for text in axes[0].texts}
    assert [written[0, line] for line in range(4)] == ["1.00", "2.50", "0.40", "0.90"]


def test_heat_map_refuses_two_ratios_in_one_place_and_kinds_that_mix():
    twice = pd.concat([ratio_lines(), ratio_lines()])
    with pytest.raises(ValueError, match="one ratio for each variant, length and mask"):
        figures.ratio_heat_map(twice)
    mixed = ratio_lines()
    mixed.loc[0, "kind"] = "emulated"
    with pytest.raises(ValueError, match="numbers of one kind"):
        figures.ratio_heat_map(mixed)


def test_waterfall_hangs_each_change_from_the_time_before():
    walk = pd.DataFrame(
        {
            "num_rows": 24, "num_cols": 16_384, "pattern": "none", "fraction": 0.0,
            "step": ["a", "b", "c"], "time_us": [10.0, 7.0, 8.0],
            "change_us": [math.nan, -3.0, 1.0], "kind": "measured",
        }
    )  # fmt: skip
    (ax,) = figures.ablation_waterfall(walk)
    spans = [sorted((bar.get_x(), bar.get_x() + bar.get_width())) for bar in ax.patches]
    assert spans == [[0, 10], [7, 10], [7, 8], [0, 8]]
    assert [text.get_text().strip() for text in ax.texts] == ["10.0 us", "-3.0", "+1.0", "8.0 us"]
    assert ax.get_title(loc="left") == "no mask"
    with pytest.raises(ValueError, match="inputs of one shape, got 2 shapes"):
        figures.ablation_waterfall(pd.concat([walk, walk.assign(num_cols=1)]))


def test_slot_map_tells_pads_from_logits():
    row = np.array([1.0, -np.inf, 2.0], np.float32)
    answers = {"right": np.array([0, 2, 1]), "wrong": np.array([0, 2, -1])}
    axes = figures.slot_map(answers, row)
    assert [ax.get_title(loc="left") for ax in axes] == [
        "right: 2 finite, 1 masked, 0 pad",
        "wrong: 2 finite, 0 masked, 1 pad",
    ]
    with pytest.raises(ValueError, match="indices from -1 to 2, got 'far'"):
        figures.slot_map({"far": np.array([3])}, row)
    with pytest.raises(ValueError, match=r"shapes \(num_cols,\) and \(k,\), got \(1, 3\)"):
        figures.slot_map({"flat": np.array([0])}, row[None])
    with pytest.raises(ValueError, match="at least one answer"):
        figures.slot_map({}, row)
