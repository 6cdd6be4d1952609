"""Do the figures show the numbers they were given, and nothing of another kind?"""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from topk_lab import claims, figures, models, results
from topk_lab.reference import trace

matplotlib.use("agg")


def cells(*lines):
    names = ("target", "variant", "workload", "workload_args", "status")
    return pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines])


def texts(ax):
    return [text.get_text() for text in ax.texts]


def test_overview_counts_every_claim_once():
    frame = pd.DataFrame(
        {
            "source": ["v", "v", "v", "w", "v"],
            "kind": ["exact", "exact", "time", "time", "exact"],
            "outcome": [
                "reproduced",
                "not reproduced",
                "published only",
                "same direction",
                "reproduced",
            ],
        }
    )
    ax = figures.claims_overview(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "v, exact",
        "v, time",
        "w, time",
    ]
    bars = [
        (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
        for bar in ax.patches
    ]
    assert bars == [(0, 0, 2), (0, 2, 1), (1, 0, 1), (2, 0, 1)]
    colours = [to_hex(bar.get_facecolor()) for bar in ax.patches]
    assert colours == [figures.BLUE, figures.VERMILION, figures.GREY, figures.SKY]
    assert texts(ax) == ["2", "1", "1", "1"]


def test_overview_draws_all_claims_of_the_package():
    frame = claims.evaluate(results.load([]))
    ax = figures.claims_overview(frame)
    assert sum(bar.get_width() for bar in ax.patches) == len(frame)


def test_grid_shows_the_worst_status_and_leaves_gaps_empty():
    frame = cells(
        ("gfx950", "vllm_k512", "normal", {}, "ok"),
        ("numba", "vllm_k512", "normal", {}, "ok"),
        ("numba", "vllm_k512", "normal", {}, "wrong"),
        ("numba", "vllm_k512", "pivot_bins", {"count": 128}, "skipped"),
        ("gfx950", "vllm_k512", None, {"case": "large-row"}, "error"),
    )
    ax = figures.exactness_grid(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "normal",
        "pivot_bins(count=128)",
        "large-row",
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["numba", "gfx950"]
    codes = ax.collections[0].get_array().reshape(3, 2)
    shown = [
        [None if np.ma.is_masked(c) else results.STATUSES[int(c)] for c in row] for row in codes
    ]
    assert shown == [["wrong", "ok"], ["skipped", None], [None, "error"]]
    assert sorted(texts(ax)[:4]) == sorted(["✓", "✗", "-", "!"])


def test_grid_labels_hold_what_tells_lines_apart():
    shared = {"poison": "nan", "row_ends": [5, 6]}
    frame = cells(
        ("numba", "v", "normal", shared, "ok"),
        ("numba", "v", "pivot_bins", shared | {"count": 128}, "ok"),
        ("numba", "v", "pivot_bins", shared | {"count": 129, "row_ends": [7]}, "ok"),
    )
    ax = figures.exactness_grid(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "normal",
        "pivot_bins(count=128)",
        "pivot_bins(count=129)",
    ]


def test_grid_names_each_variant_once_over_its_targets():
    frame = cells(
        ("numba", "vllm_k512", "normal", {}, "ok"),
        ("gfx950", "vllm_k512", "normal", {}, "ok"),
        ("numba", "vllm_generic", "normal", {}, "ok"),
    )
    ax = figures.exactness_grid(frame)
    named = [text for text in ax.texts if text.get_text().startswith("vllm")]
    assert [(text.get_text(), text.xy[0]) for text in named] == [
        ("vllm_generic", 0.0),
        ("vllm_k512", 1.5),
    ]


@pytest.mark.parametrize("time", ["warm_us", "cold_us"])
def test_peers_stand_right_of_the_floor(time):
    frame = results.load_published("peers_h200")
    ax = figures.peers_times(frame, time=time)
    *points, floor = ax.lines
    limits = floor.get_xdata()
    assert len(limits) == 18
    assert list(limits) == sorted(limits)
    assert len(points) == 194 - 3 * 18
    for point in points:
        line = int(point.get_ydata()[0])
        assert point.get_xdata()[0] > limits[line]
    by_line = {int(point.get_ydata()[0]): [] for point in points}
    for point in points:
        by_line[int(point.get_ydata()[0])].append(point.get_xdata()[0])
    ratios = [f"{min(by_line[line]) / limit:.1f}x" for line, limit in enumerate(limits)]
    assert texts(ax) == [*ratios, "best / floor"]
    assert "published" in ax.get_xlabel()
    assert ax.get_xscale() == "log"


def test_peers_refuse_kinds_on_one_axis_and_a_missing_floor():
    frame = results.load_published("peers_h200")
    mixed = frame.assign(kind=["measured"] + ["published"] * (len(frame) - 1))
    with pytest.raises(ValueError, match="numbers of one kind, got measured, published"):
        figures.peers_times(mixed)
    with pytest.raises(ValueError, match="must hold the kernel read_once_floor"):
        figures.peers_times(frame[frame["kernel"] != "read_once_floor"])
    with pytest.raises(ValueError, match="without hot_us"):
        figures.peers_times(frame, time="hot_us")


@pytest.fixture(scope="module")
def masked_trace():
    row = np.full(1000, -np.inf, np.float32)
    row[:300] = np.arange(300)
    return trace(row, 512, variant="vllm_k512")


def test_trace_bins_hold_every_logit_that_a_step_counted(masked_trace):
    bins = figures.trace_bins(masked_trace)
    assert bins.groupby("step")["count"].sum().tolist() == [1000, 1000, 700, 700]
    at_threshold = bins[bins["bin"] == bins["threshold_bin"]]
    assert at_threshold["bin"].tolist() == [2016, 2044, 0, 0]
    assert at_threshold["count"].tolist() == at_threshold["bin_size"].tolist() == [700] * 4


def test_trace_marks_the_threshold_bin_of_each_step(masked_trace):
    axes = figures.trace_histograms(figures.trace_bins(masked_trace))
    assert len(axes) == 4
    marks = [(ax.lines[-1].get_xdata()[0], ax.lines[-1].get_ydata()[0]) for ax in axes]
    assert marks == [(2016, 700), (2044, 700), (0, 700), (0, 700)]
    assert axes[0].get_title("right") == "threshold bin 2016: 300 above, 700 in it, refine"
    assert axes[3].get_title("right") == "threshold bin 0: 300 above, 700 in it, equal logits"
    selected, rejected = axes[0].patches
    heights = selected.get_data().values
    assert heights[heights > 0.5].sum() == 300
    assert np.all(rejected.get_data().values == 0.5)


@pytest.mark.parametrize(
    ("variant", "titles"),
    [
        ("aiter_one_block", ["bits 31-20", "bits 19-8", "bits 7-0"]),
        ("aiter_one_block[digit_bits=11]", ["bits 31-21", "bits 20-10", "bits 9-0"]),
    ],
)
def test_trace_of_one_block_a_row_names_the_bits_of_its_passes(variant, titles):
    row = np.ones(1000, np.float32)
    row[:3] = 2.0
    ties = figures.trace_histograms(figures.trace_bins(trace(row, 100, variant=variant)))
    assert [ax.get_title("left") for ax in ties] == [
        f"pass {number}: float key, {bits}" for number, bits in enumerate(titles)
    ]
    said = [ax.get_title("right").partition(": ")[2] for ax in ties]
    assert said == [f"3 above, 997 in it, {word}" for word in ("too many",) * 2 + ("equal logits",)]
    (wanted,) = figures.trace_histograms(figures.trace_bins(trace(row, 3, variant=variant)))
    assert wanted.get_title("right").endswith(": 0 above, 3 in it, all wanted")


def test_trace_of_a_shared_histogram_is_drawn_block_by_block_and_for_the_row():
    row = np.full(41_000, -np.inf, np.float32)
    row[:3], row[1000::100] = 2.0, 1.0  # 400 ones among 41,000
    bins = figures.trace_bins(trace(row, 100, variant="shared_histogram"))
    assert list(dict.fromkeys(bins["block"])) == [*(f"split {n}" for n in range(32)), "merge"]
    chunk = figures.trace_histograms(bins, block="split 7")
    assert [ax.get_title("left") for ax in chunk] == ["step 0: half key, upper 12 bits"]
    whole = figures.trace_histograms(bins)
    assert [ax.get_title("left") for ax in whole[1:]] == [
        "step 1: first digit of the key in its bin",
        "step 2: second digit of the key in its bin",
    ]
    said = [ax.get_title("right").partition(": ")[2] for ax in whole]
    assert said[0] == "3 above, 400 in it, fits in the list"
    assert said[1:] == ["3 above, 400 in it, too many"] * 2


def test_trace_of_the_delegate_selection_counts_keys_of_a_range():
    # Groups that lie close together but for one, and the items among them.
    row = -1 - np.random.default_rng(0).random(40_000, np.float32)
    row[17] = 1e30
    drawn = figures.trace_histograms(figures.trace_bins(trace(row, 512, variant="delegate")))
    assert [ax.get_title("left") for ax in drawn] == [
        f"pass {number}: keys of a range, by their distance to its top"
        for number in range(len(drawn))
    ]
    assert {ax.get_ylabel() for ax in drawn} == {"keys"}
    said = [ax.get_title("right").rpartition(", ")[2] for ax in drawn]
    assert set(said) == {"more than are compared", "few enough to compare"}
    assert (said[0], said[-1]) == ("more than are compared", "few enough to compare")


def test_trace_draws_one_block_at_a_time():
    row = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    bins = figures.trace_bins(trace(row, 512, variant="vllm_k512"))
    merge = figures.trace_histograms(bins)
    assert sum(
        mine["count"].sum() for _, mine in bins[bins["block"] == "merge"].groupby("step")
    ) == (512 * 8 * len(merge))
    split = figures.trace_histograms(bins, block="split 3")
    title = split[0].get_title("right")
    first = bins[bins["block"] == "split 3"].iloc[0]
    assert title.startswith(f"threshold bin {first['threshold_bin']}: {first['above']} above")
    with pytest.raises(ValueError, match="got 0 lines"):
        figures.trace_histograms(bins, block="split 99")


def test_given_axes_are_drawn_on_and_pyplot_is_left_alone(masked_trace):
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    figure = Figure()
    ax = figure.subplots()
    frame = claims.evaluate(results.load([]))
    assert figures.claims_overview(frame, ax=ax) is ax
    axes = Figure().subplots(4)
    assert list(figures.trace_histograms(figures.trace_bins(masked_trace), axes=axes)) == list(axes)
    figures.peers_times(results.load_published("peers_h200"), ax=Figure().subplots())
    figures.exactness_grid(cells(("numba", "v", "w", {}, "ok")), ax=Figure().subplots())
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_an_empty_frame_is_refused():
    with pytest.raises(ValueError, match="frame must hold lines with columns target"):
        figures.exactness_grid(results.load([]))


def sweep(*lines, cache="warm"):
    """Records of times; one resident block on each of 132 units, two of 512 threads."""
    names = ("block_size", "num_rows", "num_cols", "median_us")
    return pd.DataFrame(
        [
            dict(zip(names, line, strict=True))
            | {
                "policy": {"block_size": line[0]},
                "q1_us": line[3] - 1,
                "q3_us": line[3] + 2,
                "cache": cache,
                "kind": "measured",
                "device": "NVIDIA H200",
                "workload_args": {},
                "counters": {"resident_blocks": 132 * 1024 // line[0]},
            }
            for line in lines
        ]
    ).drop(columns="block_size")


def points(line):
    return list(zip(line.get_xdata(), line.get_ydata(), strict=True))


def legend(ax):
    return [text.get_text() for legend in ax.figure.legends for text in legend.get_texts()]


TIMES = (
    (512, 8, 2048, 10.0),
    (512, 300, 2048, 20.0),
    (1024, 8, 2048, 7.0),
    (1024, 300, 2048, 22.0),
    (512, 8, 32768, 40.0),
)


def test_latency_has_a_panel_a_length_and_a_line_a_block_size():
    frame = pd.concat([sweep(*TIMES), sweep((512, 8, 32768, 50.0), cache="cold")])
    held = sweep((512, 16, 2048, 99.0)).assign(workload_args=[{"blocks_per_unit": 1}])
    axes = figures.latency_by_rows(pd.concat([frame, held]))
    assert [ax.get_title("left") for ax in axes] == ["2048 columns", "32768 columns"]
    drawn = [
        {c.get_label(): points(c.lines[0]) for c in ax.containers if c.get_label()} for ax in axes
    ]
    assert drawn == [
        {
            "512 threads, warm": [(8, 10), (300, 20)],
            "1024 threads, warm": [(8, 7), (300, 22)],
        },
        {"512 threads, cold": [(8, 50)], "512 threads, warm": [(8, 40)]},
    ]
    (whiskers,) = axes[0].containers[0].lines[2]
    assert [segment[:, 1].tolist() for segment in whiskers.get_segments()] == [[9, 12], [19, 22]]
    assert (axes[0].get_xscale(), axes[0].get_yscale()) == ("log", "log")
    assert legend(axes[0]) == [
        "512 threads, warm: measured, NVIDIA H200",
        "512 threads, cold: measured, NVIDIA H200",
        "1024 threads, warm: measured, NVIDIA H200",
        "rows pass a multiple of the resident blocks",
    ]


def test_latency_marks_where_another_wave_begins():
    axes = figures.latency_by_rows(sweep(*TIMES))
    hairlines = [
        (to_hex(line.get_color()), line.get_xdata()[0])
        for line in axes[0].lines
        if line.get_linewidth() < 1
    ]
    # 512 threads: 264 resident blocks, 1024 threads: 132, both below 300 rows.
    assert hairlines == [
        (figures.BLUE, 264),
        (figures.VERMILION, 132),
        (figures.VERMILION, 264),
    ]
    assert not [line for line in axes[1].lines if line.get_linewidth() < 1]


def test_latency_shows_published_points_hollow_where_they_belong():
    axes = figures.latency_by_rows(sweep(*TIMES), models.published_times())
    hollow = [[line for line in ax.lines if line.get_markerfacecolor() == "white"] for ax in axes]
    assert hollow[0] == []
    (line,) = hollow[1]
    assert points(line) == [(8, 36.8), (256, 36.8)]
    assert line.get_linestyle() == "None"
    assert to_hex(line.get_markeredgecolor()) == figures.BLUE
    assert "512 threads: published, AMD Instinct MI355X (gfx950)" in legend(axes[0])


def test_latency_draws_the_steps_of_a_fit_and_no_fit_that_is_none():
    fit = {
        "block_size": 1024,
        "num_cols": 2048,
        "cache": "warm",
        "held": False,
        "resident_blocks": 132,
        "fixed_us": 2.0,
        "per_wave_us": 5.0,
    }
    model = pd.DataFrame([fit, fit | {"num_cols": 32768, "fixed_us": np.nan}, fit | {"held": True}])
    axes = figures.latency_by_rows(sweep(*TIMES), model=model)
    (steps,) = axes[0].patches
    values, edges, _ = steps.get_data()
    assert values.tolist() == [7, 12, 17]
    assert edges.tolist() == [1, 132, 264, 300]
    assert not axes[1].patches
    assert "model: fixed + per wave of blocks" in legend(axes[0])


def test_latency_refuses_two_devices_two_kinds_and_too_few_axes():
    frame = sweep(*TIMES)
    with pytest.raises(ValueError, match="measured must hold one device"):
        figures.latency_by_rows(frame.assign(device=["a", "b", "b", "b", "b"]))
    with pytest.raises(ValueError, match="numbers of one kind"):
        figures.latency_by_rows(frame.assign(kind=["measured"] + ["published"] * 4))
    with pytest.raises(ValueError, match="one time a block size, cache and shape"):
        figures.latency_by_rows(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match="variants with a block size only"):
        figures.latency_by_rows(frame.assign(policy=[{}] * 5))
    with pytest.raises(ValueError, match="axes must be one for each of 2 lengths, got 1"):
        figures.latency_by_rows(frame, axes=[Figure().subplots()])
    with pytest.raises(ValueError, match="lines with columns num_rows"):
        figures.latency_by_rows(frame[:0])


def ratios(*lines):
    names = ("cache", "num_cols", "speedup", "low", "high")
    return pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines]).assign(
        baseline="block512", candidate="block1024", kind="measured", device="NVIDIA H200"
    )


def test_speedups_stand_beside_the_published_ones():
    measured = ratios(
        ("warm", 32768, 1.5, 1.4, 1.7), ("warm", 2048, 1.0, 0.9, 1.1), ("cold", 2048, 1.1, 1.0, 1.2)
    )
    ax = figures.speedup_by_length(measured, results.load_published("sglang_36004_kernel"))
    warm, cold = ax.containers
    assert warm.lines[0].get_ydata().tolist() == [1.0, 1.5]
    assert warm.lines[0].get_xdata() == pytest.approx([2048, 32768], rel=0.02)
    assert cold.lines[0].get_xdata()[0] > 2048 > warm.lines[0].get_xdata()[0]
    segments = [segment[:, 1].tolist() for segment in warm.lines[2][0].get_segments()]
    assert segments == [pytest.approx([0.9, 1.1]), pytest.approx([1.4, 1.7])]
    (published,) = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert points(published) == [(2048, 1.07), (8192, 1.30), (16384, 1.43), (32768, 1.60)]
    assert texts(ax) == ["1.07x", "1.30x", "1.43x", "1.60x"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "published, AMD Instinct MI355X (gfx950)",
        "warm: measured, NVIDIA H200",
        "cold: measured, NVIDIA H200",
    ]
    assert ax.get_ylabel() == "time of block512 /\ntime of block1024"


def test_speedups_of_several_pairs_or_kinds_are_refused():
    measured = ratios(("warm", 2048, 1.0, 0.9, 1.1), ("warm", 4096, 1.0, 0.9, 1.1))
    with pytest.raises(ValueError, match="measured must hold one pair of variants"):
        figures.speedup_by_length(measured.assign(candidate=["a", "b"]))
    with pytest.raises(ValueError, match="numbers of one kind"):
        figures.speedup_by_length(measured.assign(kind=["measured", "emulated"]))


def counts(*lines):
    names = ("variant", "block_size", "counter", "value")
    return pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines]).assign(
        kind="emulated", target="gfx950"
    )


def test_counts_are_bars_with_their_value_written():
    frame = counts(
        ("block1024", 1024, "waves", 16),
        ("block512", 512, "waves", 8),
        ("block512", 512, "atomics_per_wave", 4123.25),
        ("block1024", 1024, "atomics_per_wave", 512.5),
    )
    axes = figures.counts_by_threads(frame)
    assert [ax.get_title("left") for ax in axes] == ["waves", "atomics per wave"]
    assert [[bar.get_height() for bar in ax.patches] for ax in axes] == [[8, 16], [4123.25, 512.5]]
    assert [texts(ax) for ax in axes] == [["8", "16"], ["4,123", "512.5"]]
    assert [to_hex(bar.get_facecolor()) for bar in axes[0].patches] == [
        figures.BLUE,
        figures.VERMILION,
    ]
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["512", "1024"]
    assert axes[0].figure.get_suptitle() == "emulated, gfx950, by threads a block"


def test_counts_stand_by_block_size_however_the_variant_spells_it():
    frame = counts(("block1024", 1024, "waves", 16), ("block1024[block_size=256]", 256, "waves", 4))
    (ax,) = figures.counts_by_threads(frame)
    assert [bar.get_height() for bar in ax.patches] == [4, 16]
    assert ax.figure.get_suptitle() == "emulated, gfx950, by threads a block"


def test_counts_of_variants_of_one_block_size_stand_side_by_side():
    frame = counts(
        ("block512", 512, "waves", 8),
        ("block1024", 1024, "waves", 16),
        ("block1024[overflow=rescan]", 1024, "waves", 17),
    )
    (ax,) = figures.counts_by_threads(frame)
    heights = [bar.get_height() for bar in ax.patches]
    assert heights[:2] == [8, 16]
    assert np.isnan(heights[2])
    assert heights[3] == 17
    assert texts(ax) == ["8", "16", "", "17"]
    first, second = ax.patches[1], ax.patches[3]
    assert first.get_x() + first.get_width() < second.get_x()
    assert ax.figure.get_suptitle().endswith("light: blockN, blockN[overflow=rescan]")
    with pytest.raises(ValueError, match="one value for each variant and counter"):
        figures.counts_by_threads(pd.concat([frame, frame]))


def recalls(kind, device, *lines):
    names = ("workload", "overflow", "capacity", "recall", "expected")
    return pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines]).assign(
        num_cols=32768, k=1024, kind=kind, device=device
    )


def test_recall_has_a_line_a_distribution_and_a_lane_a_capacity():
    frame = pd.concat(
        [
            recalls(
                "emulated",
                "gfx950",
                ("tiny", "drop", 5120, 0.31, 0.313),
                ("tiny", "drop", 16384, 0.99, 1.0),
                ("tiny", "rescan", 5120, 1.0, np.nan),
                ("normal", "drop", 5120, 1.0, 1.0),
            ),
            recalls("measured", "NVIDIA H200", ("tiny", "drop", 5120, 0.32, 0.313)),
        ]
    )
    ax = figures.recall_by_distribution(frame)
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "tiny\n32768 columns, k 1024",
        "normal\n32768 columns, k 1024",
    ]
    marks = [line for line in ax.lines if line.get_marker() not in ("|", "None")]
    shown = [
        (line.get_marker(), to_hex(line.get_markerfacecolor()), line.get_xdata()[0])
        for line in marks
    ]
    emulated, measured = figures.VERMILION, figures.BLUE
    assert shown == [
        ("o", emulated, 0.31),
        ("s", emulated, 0.99),
        ("*", emulated, 1.0),
        ("o", emulated, 1.0),
        ("o", measured, 0.32),
    ]
    heights = [line.get_ydata()[0] for line in marks]
    assert [round(height) for height in heights] == [0, 0, 0, 1, 0]
    assert len({heights[0], heights[1], heights[2], heights[4]}) == 4
    ticks = [points(line)[0] for line in ax.lines if line.get_marker() == "|"]
    assert [x for x, _ in ticks] == [0.313, 1.0, 1.0, 0.313]
    assert ticks[0][1] == heights[0]
    assert legend(ax) == [
        "drop beyond 5120",
        "drop beyond 16384",
        "rescan",
        "expected",
        "measured, NVIDIA H200",
        "emulated, gfx950",
    ]


def test_recall_of_the_numpy_model_is_hollow():
    ax = figures.recall_by_distribution(models.published_recall())
    marks = [line for line in ax.lines if line.get_marker() not in ("|", "None")]
    assert len(marks) == 21
    assert {line.get_markerfacecolor() for line in marks} == {"white"}
    assert min(line.get_xdata()[0] for line in marks) == 0.262
    assert legend(ax)[-1] == "derived, a NumPy model"


def test_new_figures_leave_pyplot_alone():
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    axes = Figure().subplots(2)
    assert list(figures.latency_by_rows(sweep(*TIMES), axes=axes)) == list(axes)
    for draw, frame in (
        (figures.speedup_by_length, ratios(("warm", 2048, 1.0, 0.9, 1.1))),
        (figures.recall_by_distribution, models.published_recall()),
    ):
        ax = Figure().subplots()
        assert draw(frame, ax=ax) is ax
    (ax,) = figures.counts_by_threads(
        counts(("block512", 512, "waves", 8)), axes=[Figure().subplots()]
    )
    assert ax.patches[0].get_height() == 8
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before
