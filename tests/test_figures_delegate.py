"""Do the figures of the delegate selection show the numbers they were given, each in its place?"""

import matplotlib
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from topk_lab import figures

matplotlib.use("agg")

PLACE = {"kind": "measured", "device": "NVIDIA H200"}


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(ax):
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


def labels(axis):
    return [tick.get_text() for tick in axis]


SHAPES = pd.DataFrame(
    {
        "num_rows": [24, 6, 1],
        "num_cols": [262_144, 10_240, 131_072],
        "workload": ["normal", "masked_random", "normal"],
        "variant": "delegate",
        "time_us": [16.0, 5.0, 7.0],
        "floor_us": [9.0, 2.0, 1.5],
        "allowed_us": [14.9, 4.2, 7.0],
        "peer": ["sglang_topk_v2", "peer:deep_select", None],
        "peer_us": [24.0, 4.0, float("nan")],
        "peer_kind": ["published", "measured", None],
        "speedup": [1.5, 0.8, float("nan")],
        **PLACE,
    }
)


def test_shapes_stand_in_the_order_of_the_floor_with_peer_and_bar():
    ax = figures.shape_times(SHAPES)
    assert labels(ax.get_yticklabels()) == [
        "1 x 131072",
        "6 x 10240, masked random",
        "24 x 262144",
    ]
    assert texts(ax) == ["no peer", "peer:deep_select: 0.80x", "sglang_topk_v2: 1.50x"]
    dots = [line for line in ax.lines if len(line.get_xdata()) == 1]
    at = [(float(dot.get_xdata()[0]), float(dot.get_ydata()[0])) for dot in dots]
    marked = {
        marker: {
            place: dot for place, dot in zip(at, dots, strict=True) if dot.get_marker() == marker
        }
        for marker in ("o", "D", "$]$")
    }
    # At the bar is within it.
    assert {place: to_hex(dot.get_color()) for place, dot in marked["o"].items()} == {
        (7.0, 0.0): figures.BLUE,
        (5.0, 1.0): figures.VERMILION,
        (16.0, 2.0): figures.VERMILION,
    }
    hollow = {place: dot.get_markerfacecolor() == "white" for place, dot in marked["D"].items()}
    assert hollow == {(4.0, 1.0): False, (24.0, 2.0): True}
    assert set(marked["$]$"]) == {(4.2, 1.0), (7.0, 0.0), (14.9, 2.0)}
    (floor,) = (line for line in ax.lines if len(line.get_xdata()) == 3)
    assert list(floor.get_xdata()) == [1.5, 2, 9]
    assert "measured, NVIDIA H200" in ax.get_xlabel()
    assert legend(ax)[-2:] == [
        "best peer, measured, by torch.topk",
        "best peer, published, by torch.topk",
    ]
    with pytest.raises(ValueError, match="one state of the caches, got a shape twice"):
        figures.shape_times(pd.concat([SHAPES, SHAPES]))
    with pytest.raises(ValueError, match="without allowed_us"):
        figures.shape_times(SHAPES.drop(columns="allowed_us"))


def test_parts_are_stacked_to_the_time():
    names = ["read at the floor", "beyond", "a second launch (published)", "finish"]
    parts = SHAPES.merge(pd.DataFrame({"part": names, "share": [0.5, 0.1, 0.1, 0.3]}), how="cross")
    parts = parts.assign(part_us=parts["share"] * parts["time_us"])
    ax = figures.time_parts(parts)
    bars = [[round(bar.get_x(), 6) for bar in group] for group in ax.containers]
    assert bars[0] == [0, 0, 0]
    assert bars[3] == [4.9, 3.5, 11.2]
    assert texts(ax) == [" 7.0", " 5.0", " 16.0"]
    assert [group[0].get_hatch() for group in ax.containers] == [None, None, "////", None]
    assert legend(ax) == names
    with pytest.raises(ValueError, match="at most 4 of a shape, got 5"):
        figures.time_parts(pd.concat([parts, parts[:1].assign(part="more")]))
    with pytest.raises(ValueError, match="got a part of a shape twice"):
        figures.time_parts(pd.concat([parts, parts[:1]]))


def test_growth_has_a_line_for_rows_and_floor():
    times = pd.DataFrame(
        [
            (rows, line, nbytes, factor * nbytes / 1e6, 1e12 / factor)
            for rows in (1, 24)
            for line, factor in (("floor", 1.0), ("delegate", 1.5))
            for nbytes in (10**6, 10**8)
        ],
        columns=["num_rows", "line", "input_bytes", "time_us", "bytes_per_s"],
    ).assign(**PLACE)
    time, rate = figures.growth_lines(times)
    assert legend(time) == [
        "1 rows, delegate",
        "1 rows, floor",
        "24 rows, delegate",
        "24 rows, floor",
    ]
    drawn = {line.get_label(): line for line in time.lines}
    assert list(drawn["24 rows, delegate"].get_ydata()) == [1.5, 150]
    assert list(drawn["24 rows, floor"].get_xdata()) == [1e6, 1e8]
    assert drawn["1 rows, floor"].get_linestyle() == "--"
    assert drawn["1 rows, floor"].get_color() == drawn["1 rows, delegate"].get_color()
    assert {round(float(line.get_ydata()[0]), 3) for line in rate.lines} == {1, 0.667}
    many = pd.concat([times.assign(num_rows=rows) for rows in range(6)])
    with pytest.raises(ValueError, match="at most 5 numbers of rows, got 6"):
        figures.growth_lines(many)


def test_rows_stand_by_their_worst_ratio():
    ratios = pd.DataFrame(
        [
            (24, 262_144, "normal", "delegate", 1.0),
            (24, 262_144, "constant", "delegate", 1.1),
            (1, 131_072, "constant", "delegate", 0.9),
            (24, 262_144, "relu_zeros", "delegate", 1.4),
            (24, 262_144, "constant", "vllm_k512", 3.0),
        ],
        columns=["num_rows", "num_cols", "workload", "variant", "ratio"],
    ).assign(**PLACE)
    ax = figures.row_ratios(ratios, bar=1.3)
    assert labels(ax.get_yticklabels()) == ["relu zeros", "constant", "normal"]
    points = {
        (to_hex(line.get_color()), line.get_marker()): dict(
            zip(line.get_ydata(), line.get_xdata(), strict=True)
        )
        for line in ax.lines[:4]
    }
    assert points[(figures.BLUE, "o")] == {2: 1.0, 1: 1.1, 0: 1.4}
    assert points[(figures.BLUE, "s")] == {1: 0.9}
    assert points[(figures.GREY, "o")] == {1: 3.0}
    assert [line.get_xdata()[0] for line in ax.lines[4:]] == [1, 1.3]
    assert legend(ax) == ["vllm_k512", "delegate", "24 x 262144", "1 x 131072", "bar"]
    assert legend(figures.row_ratios(ratios))[-1] == "1 x 131072"
    with pytest.raises(ValueError, match="one of each shape, workload and variant, got several"):
        figures.row_ratios(pd.concat([ratios, ratios]))


def test_traffic_has_a_panel_for_each_length_and_the_bound():
    frame = pd.DataFrame(
        [
            (1, 2048, "normal", "delegate", 1.1, 1.2),
            (1, 2048, "constant", "delegate", 1.3, 1.2),
            (1, 2048, "constant", "shared_histogram", 6.0, float("nan")),
            (1, 4096, "normal", "delegate", 1.05, 1.15),
        ],
        columns=["num_rows", "num_cols", "workload", "variant", "reads", "bound"],
    ).assign(kind="emulated", target="gfx950")
    short, long = figures.traffic_by_workload(frame)
    assert labels(short.get_yticklabels()) == ["constant", "normal"]
    ours, other, bound, once = short.lines
    assert dict(zip(ours.get_ydata(), ours.get_xdata(), strict=True)) == {1: 1.1, 0: 1.3}
    assert dict(zip(other.get_ydata(), other.get_xdata(), strict=True)) == {0: 6}
    assert (bound.get_xdata()[0], once.get_xdata()[0]) == (1.2, 1)
    assert long.get_title(loc="left") == "1 x 4096"
    assert "emulated, gfx950" in long.get_xlabel()
    assert legend(short) == ["delegate", "shared_histogram", "bound"]
    with pytest.raises(ValueError, match=r"one target, got \['gfx942', 'gfx950'\]"):
        figures.traffic_by_workload(pd.concat([frame, frame.assign(target="gfx942")]))
