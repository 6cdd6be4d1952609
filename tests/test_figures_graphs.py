"""Do the figures of replays and speed-ups show the numbers they were given, each in its place?"""

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from topk_lab import figures, models

matplotlib.use("agg")

PLACE = {"kind": "measured", "device": "NVIDIA H200"}
LENGTHS = [16_384, 65_536, 131_072, 262_144, 2**19, 2**20]


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(ax):
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


def test_the_map_writes_each_area_s_splits_once():
    frame = models.split_map("vllm_k512", range(1, 385), LENGTHS)
    launch, work = figures.split_map(frame)
    assert texts(launch) == ["1", "16", "1", "10", "1", "3", "1", "2", "1"]
    assert texts(work) == ["1", "8", "10", "16", "1", "4", "10", "1", "3", "1", "2", "1"]
    assert launch.get_title(loc="left").startswith("vllm_k512: at launch")
    (mesh,) = work.collections
    assert mesh.get_array().reshape(384, 6)[0].tolist() == [1, 8, 8, 10, 16, 16]
    # 16 from the bound on, not from halfway to it.
    sixteen = next(text for text in work.texts if text.get_text() == "16")
    assert sixteen.get_position()[0] == pytest.approx(2**19)


def test_the_map_draws_a_line_of_panels_for_each_variant():
    variants = ("vllm_k512", "vllm_k512[splits=h200]")
    frame = pd.concat([models.split_map(name, [1, 8, 64], LENGTHS) for name in variants])
    axes = figures.split_map(frame)
    assert len(axes) == 4
    assert "32" in texts(axes[3])
    with pytest.raises(ValueError, match="each shape of vllm_k512 once, got one twice"):
        figures.split_map(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match=r"full grid of shapes, vllm_k512\[splits=h200\] lacks"):
        figures.split_map(frame[:-1])


def timeline(variant, times, active):
    return pd.DataFrame(
        {
            "variant": variant,
            "replay": range(4),
            "length": [200_000, 1000, 2**20, 20_000],
            "time_us": times,
            "active": active,
            "num_rows": 24,
            **PLACE,
        }
    )


GRAPH = timeline("vllm_k512", [30.0, 8.0, 80.0, 15.0], [10, 1, 16, 8])
ONE = timeline("vllm_k512[splits=fixed_1]", [45.0, 5.0, 220.0, 9.0], 1)


def test_replays_are_points_in_the_colour_of_their_splits_and_frozen_ones_a_line():
    above, below = figures.replay_timeline(pd.concat([GRAPH, ONE]), "vllm_k512")
    (order,), (points,) = above.collections, below.collections
    assert order.get_offsets().tolist() == [[1000, 1], [20_000, 3], [200_000, 0], [2**20, 2]]
    assert points.get_offsets()[:, 1].tolist() == [8, 15, 30, 80]
    assert len({to_hex(colour) for colour in points.get_facecolors()}) == 4
    line = below.lines[0]
    assert line.get_ydata().tolist() == [5, 9, 45, 220]
    assert legend(below) == [
        "vllm_k512[splits=fixed_1]",
        "vllm_k512, 1 split due",
        "vllm_k512, 8 splits due",
        "vllm_k512, 10 splits due",
        "vllm_k512, 16 splits due",
    ]
    bounds = [line.get_xdata()[0] for line in below.lines[1:]]
    between = ((1000, 20_000), (20_000, 200_000), (200_000, 2**20))
    assert bounds == pytest.approx([(low * high) ** 0.5 for low, high in between])
    assert "24 rows: measured, NVIDIA H200" in above.get_title(loc="left")


def test_replays_of_several_shapes_or_without_the_graph_are_refused():
    with pytest.raises(ValueError, match=r"one number of rows, got \[24, 48\]"):
        figures.replay_timeline(pd.concat([GRAPH, ONE.assign(num_rows=48)]), "vllm_k512")
    with pytest.raises(ValueError, match="must hold vllm_k512 and up to 5 other variants"):
        figures.replay_timeline(ONE, "vllm_k512")
    with pytest.raises(ValueError, match="numbers of one kind"):
        figures.replay_timeline(pd.concat([GRAPH, ONE.assign(kind="emulated")]), "vllm_k512")
    others = [ONE.assign(variant=f"vllm_k512[splits=fixed_{count}]") for count in range(1, 7)]
    with pytest.raises(ValueError, match="up to 5 other variants"):
        figures.replay_timeline(pd.concat([GRAPH, *others]), "vllm_k512")


def regret(*lines):
    names = ("policy", "num_rows", "length", "regret")
    return pd.DataFrame([dict(zip(names, line, strict=True)) for line in lines]).assign(**PLACE)


def test_regret_stands_by_rows_and_length():
    frame = regret(
        ("vllm_k512", 24, 4096, 1.5),
        ("vllm_k512", 24, 2**20, 1.0),
        ("vllm_k512", 1, 4096, 12.4),
        ("other", 24, 4096, 0.9),
    )
    ours, other = figures.regret_heat_map(frame)
    assert sorted(texts(ours)) == ["1.00", "1.50", "12"]
    at = {text.get_text(): text.get_position() for text in ours.texts}
    assert at == {"12": (0, 0), "1.50": (0, 1), "1.00": (1, 1)}
    assert [tick.get_text() for tick in ours.get_yticklabels()] == ["1", "24"]
    assert [tick.get_text() for tick in ours.get_xticklabels()] == ["4Ki", "1Mi"]
    assert texts(other) == ["0.90"]
    with pytest.raises(ValueError, match="one value for each policy and shape, got several"):
        figures.regret_heat_map(pd.concat([frame, frame]))
    with pytest.raises(ValueError, match="without choice"):
        figures.regret_heat_map(frame, "choice")


def pairs(buffer, cache, speedups):
    return pd.DataFrame(
        {
            "buffer": buffer,
            "cache": cache,
            "speedup": speedups,
            "baseline": "vllm_generic",
            "candidate": "vllm_k512",
            "baseline_samples": [[ratio, ratio] for ratio in speedups],
            "candidate_samples": [[1.0, 1.0] for _ in speedups],
            **PLACE,
        }
    )


MATRIX = pd.concat(
    [
        pairs("full", "warm", [2.0, 4.0, 8.0]),
        pairs("live", "warm", [0.5, 1.0, 2.0]),
        pairs("live", "cold", [1.5, 3.0]),
    ],
    ignore_index=True,
)


def test_each_lane_holds_its_speedups_and_the_published_ones_are_hollow():
    summary = models.distribution(MATRIX)
    ax = figures.speedup_distributions(MATRIX, summary, models.published_distribution())
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "warm\npublished, AMD Instinct MI355X (gfx950)",
        "warm\nlive buffer",
        "warm\nfull buffer",
        "cold\nlive buffer",
    ]
    assert texts(ax)[:4] == [
        "2.31x, 0 of 1008 slower",
        "1.00x, 1 of 3 slower",
        "4.00x, 0 of 3 slower",
        "2.12x, 0 of 2 slower",
    ]
    dots = [one.get_offsets() for one in ax.collections]
    assert [sorted(one[:, 0]) for one in dots] == [[0.5, 1, 2], [2, 4, 8], [1.5, 3]]
    assert all(np.abs(one[:, 1] - lane).max() < 0.35 for lane, one in enumerate(dots, start=1))
    diamonds = [line for line in ax.lines if line.get_marker() == "D"]
    assert [line.get_xdata()[0] for line in diamonds] == pytest.approx([2.31, 1, 4, 4.5**0.5])
    assert [line.get_markerfacecolor() == "white" for line in diamonds] == [True, *[False] * 3]
    assert ax.get_xlim()[0] < 0.5
    alone = figures.speedup_distributions(MATRIX, summary, ax=Figure().subplots())
    assert len(alone.get_yticklabels()) == 3
    with pytest.raises(ValueError, match="numbers of one kind"):
        figures.speedup_distributions(MATRIX.assign(kind=["emulated", *["measured"] * 7]), summary)


def test_axes_have_a_panel_each_and_a_line_for_each_buffer():
    frame = MATRIX[MATRIX["cache"] == "warm"].assign(
        context=[10_000, 1_000_000, 1_000_000] * 2, logits=["dense", "masked", "masked"] * 2
    )
    found = models.distribution_by_axis(frame, ["context", "logits"])
    context, logits = figures.speedup_by_axis(found)
    assert context.get_title(loc="left") == "context"
    assert [tick.get_text() for tick in context.get_xticklabels()] == ["10k", "1M"]
    assert [tick.get_text() for tick in logits.get_xticklabels()] == ["dense", "masked"]
    live, full = (bars.lines[0].get_ydata() for bars in context.containers)
    assert live == pytest.approx([0.5, 2**0.5])
    assert full == pytest.approx([2, 32**0.5])
    assert legend(context) == [
        "live buffer: measured, NVIDIA H200",
        "full buffer: measured, NVIDIA H200",
    ]
    with pytest.raises(ValueError, match="one state of the caches"):
        figures.speedup_by_axis(pd.concat([found, found]))


def test_these_figures_leave_pyplot_alone():
    from matplotlib import pyplot

    axes = Figure().subplots(1, 2)
    frame = models.split_map("vllm_k512", [1, 8], LENGTHS)
    assert list(figures.split_map(frame, axes=axes)) == list(axes)
    assert list(figures.replay_timeline(GRAPH, "vllm_k512", axes=Figure().subplots(2)))
    assert pyplot.get_fignums() == []
