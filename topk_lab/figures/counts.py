"""What does a block do at each size, and what does it lose when its stash is full?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topk_lab.figures.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    VERMILION,
    block_size_colour,
    fill_of,
    new_axes,
    new_panels,
    place_label,
    plain,
    require_columns,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["counts_by_threads", "recall_by_distribution"]

KIND_COLOURS = {"measured": BLUE, "emulated": VERMILION, "published": INK, "derived": INK}
CAPACITY_MARKERS = "osD^vP"
RESCAN = "rescan"
BARS = 0.76  # part of the room of a block size that its bars use
SERIES_ALPHAS = (1.0, 0.55, 0.3)
LANE = 0.8  # part of a line's height that its marks use


def counts_by_threads(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw counts of the emulator at each block size, one panel a counter.

    Parameters
    ----------
    frame : pandas.DataFrame
        ``variant``, ``block_size``, ``counter``, ``value``, ``kind``, ``target``; one line for each
        variant and counter. Panels come in the order of the counters.
    axes : sequence of Axes, optional
        One for each counter.

    Returns
    -------
    array of Axes
        One bar a variant, its value written above it; variants that differ in more than the block
        size stand side by side.

    Raises
    ------
    ValueError
        A missing column, several kinds, or two values for one bar.
    """
    import numpy as np

    require_columns(frame, "variant", "block_size", "counter", "value", "kind", "target")
    if frame.duplicated(["variant", "block_size", "counter"]).any():
        raise ValueError("frame must hold one value for each variant and counter, got several")
    place = place_label(frame)
    frame = frame.assign(series=_series(frame))
    counters = list(dict.fromkeys(frame["counter"]))
    series = list(dict.fromkeys(frame["series"]))
    sizes = sorted({int(size) for size in frame["block_size"]})
    if axes is None:
        # Six digits above a bar need about 0.7 inches of the 9.5.
        columns = max(1, 13 // (len(sizes) * len(series)))
        axes = new_panels(len(counters), min(columns, 4), 2.1)
    width = BARS / len(series)
    for ax, counter in zip(axes, counters, strict=True):
        mine = frame[frame["counter"] == counter].set_index(["series", "block_size"])["value"]
        for number, name in enumerate(series):
            places = np.arange(len(sizes)) + width * (number - (len(series) - 1) / 2)
            values = np.array([mine.get((name, size), np.nan) for size in sizes], float)
            bars = ax.bar(
                places,
                values,
                width=0.94 * width,
                color=[block_size_colour(size) for size in sizes],
                alpha=SERIES_ALPHAS[number % len(SERIES_ALPHAS)],
            )
            labels = [_count_text(value) for value in values]  # not written where there is no bar
            ax.bar_label(bars, labels, padding=2, fontsize=8.5, color=INK)
        ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        ax.set_yticks([])
        ax.set_ylim(0, 1.18 * max(mine.max(), 1e-9))
        ax.set_title(counter.replace("_", " "), loc="left", fontsize=9.5, color=INK)
        plain(ax)
        ax.axhline(0, color=MUTED, linewidth=0.8)
    title = f"{place}, by threads a block"
    if len(series) > 1:
        title += f"; from dark to light: {', '.join(series)}"
    axes[0].figure.suptitle(title, x=0.008, ha="left", fontsize=9, color=MUTED)
    return np.asarray(axes)


def _series(frame: pd.DataFrame) -> list[str]:
    """Variants that differ in the block size alone have one name: ``block512`` is ``blockN``."""
    if frame.groupby("block_size")["variant"].nunique().max() == 1:
        return ["N threads"] * len(frame)
    return [
        re.sub(rf"(?<!\d){int(size)}(?!\d)", "N", variant, count=1)
        for variant, size in zip(frame["variant"], frame["block_size"], strict=True)
    ]


def _count_text(value: float) -> str:
    return f"{value:,.0f}" if value.is_integer() or value >= 1000 else f"{value:.4g}"


def recall_by_distribution(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw which part of the winners comes back when a stash overflows.

    Parameters
    ----------
    frame : pandas.DataFrame
        ``workload``, ``num_cols``, ``k``, ``overflow`` (drop or rescan), ``capacity``, ``recall``,
        ``expected`` (by `models.expected_recall`; NaN where there is none), ``kind``, and
        ``device``, ``hardware`` or ``target``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        One line a workload and shape. In it one lane for each capacity of the drop and one for the
        rescan; markers tell these apart, colours the kinds, and published or derived marks are
        hollow. A tick shows the expected recall of the drop.
    """
    require_columns(
        frame, "workload", "num_cols", "k", "overflow", "capacity", "recall", "expected", "kind"
    )
    shapes = list(dict.fromkeys(zip(frame["workload"], frame["num_cols"], frame["k"], strict=True)))
    lanes = sorted(
        {_lane(line) for line in frame.to_dict("records")},
        key=lambda lane: (lane[0] == RESCAN, lane[1], tuple(KIND_COLOURS).index(lane[2])),
    )
    markers = _lane_markers(lanes)
    if ax is None:
        ax = new_axes(9.0, 1.5 + len(shapes) * max(0.34, 0.085 * len(lanes)))[0]
    for number in range(len(shapes) - 1):
        ax.axhline(number + 0.5, color=FAINT, linewidth=0.8, zorder=0)
    for line in frame.to_dict("records"):
        lane = _lane(line)
        number = shapes.index((line["workload"], line["num_cols"], line["k"]))
        y = number + LANE * ((lanes.index(lane) + 0.5) / len(lanes) - 0.5)
        colour = KIND_COLOURS[line["kind"]]
        if line["overflow"] != RESCAN and line["expected"] == line["expected"]:
            ax.plot(line["expected"], y, "|", color=MUTED, markersize=9, markeredgewidth=1.2)
        ax.plot(
            line["recall"],
            y,
            markers[lane[:2]],
            markersize=9 if lane[0] == RESCAN else 5,
            markeredgecolor=colour,
            markerfacecolor=fill_of(line["kind"], colour),
            clip_on=False,
        )
    ax.set_yticks(
        range(len(shapes)), [f"{name}\n{cols} columns, k {k}" for name, cols, k in shapes]
    )
    ax.set_ylim(len(shapes) - 0.5, -0.5)
    ax.set_xlim(0, 1.02)
    ax.set_xlabel("recall: part of the k winners that comes back", fontsize=9, color=INK)
    plain(ax, grid="x")
    _recall_legend(ax, frame, markers)
    return ax


def _lane(line: dict[str, Any]) -> tuple[str, int, str]:
    rescan = line["overflow"] == RESCAN
    return (line["overflow"], 0 if rescan else int(line["capacity"]), line["kind"])


def _lane_markers(lanes: Sequence[tuple[str, int, str]]) -> dict[tuple[str, int], str]:
    capacities = sorted({capacity for overflow, capacity, _ in lanes if overflow != RESCAN})
    shapes = dict(zip(capacities, CAPACITY_MARKERS, strict=False))
    return {
        (overflow, capacity): "*" if overflow == RESCAN else shapes[capacity]
        for overflow, capacity, _ in lanes
    }


def _recall_legend(ax: Axes, frame: pd.DataFrame, markers: dict[tuple[str, int], str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="", marker=marker, color=MUTED,
               markersize=9 if overflow == RESCAN else 5,
               label="rescan" if overflow == RESCAN else f"drop beyond {capacity}")
        for (overflow, capacity), marker in markers.items()
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="", marker="|", color=MUTED, markersize=9, label="expected")
    )
    for kind in KIND_COLOURS:
        mine = frame[frame["kind"] == kind]
        if len(mine):
            colour = KIND_COLOURS[kind]
            handles.append(
                Line2D([], [], linestyle="", marker="s", markersize=7, markeredgecolor=colour,
                       markerfacecolor=fill_of(kind, colour), label=place_label(mine))
            )  # fmt: skip
    ax.figure.legend(
        handles=handles, loc="outside upper left", ncols=4, frameon=False, fontsize=8.5
    )
