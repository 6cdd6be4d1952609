"""Do the figures show the numbers they were given, and nothing of another kind?"""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from topk_lab import claims, figures, results
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
