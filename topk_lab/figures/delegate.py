"""How near to one read does the delegate selection come, and what of it depends on the rows?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topk_lab.figures.peers import FLOOR_LABEL, time_axis
from topk_lab.figures.style import (
    AMBER,
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MUTED,
    PURPLE,
    SKY,
    VERMILION,
    fill_of,
    new_axes,
    new_panels,
    place_label,
    plain,
    require_columns,
)
from topk_lab.results import only_kind

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["growth_lines", "row_ratios", "shape_times", "time_parts", "traffic_by_workload"]

SHAPE = ["num_rows", "num_cols", "workload"]
LINES = (BLUE, VERMILION, GREEN, PURPLE, AMBER)
MARKERS = "osD^vP"
# A part that others published is hatched.
PARTS = ((INK, None), (SKY, None), ("white", "////"), (VERMILION, None))


def _shape_label(num_rows: int, num_cols: int, workload: str) -> str:
    tail = "" if workload == "normal" else f", {workload.replace('_', ' ')}"
    return f"{num_rows} x {num_cols}{tail}"


def _one_cache(shapes: pd.DataFrame) -> None:
    if shapes.duplicated(SHAPE).any():
        raise ValueError("shapes must hold one state of the caches, got a shape twice")


def _legend(ax: Axes, handles: Sequence[Any], columns: int) -> None:
    ax.figure.legend(
        handles=handles, loc="outside upper left", ncols=columns, frameon=False, fontsize=8.5
    )


def shape_times(shapes: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw a variant's time between the floor and the best peer, a line for each shape.

    Parameters
    ----------
    shapes : pandas.DataFrame
        As `topk_lab.bench.ratios.against_peers` returns it, one state of the caches, with
        ``allowed_us``, where a bar stands: ``num_rows``, ``num_cols``, ``workload``, ``variant``,
        ``time_us``, ``floor_us``, ``peer``, ``peer_us``, ``peer_kind``, ``speedup``, ``kind``,
        ``device``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        In the order of the floor, which is a tick; the bar is a bracket. A peer that others timed
        is hollow. At the right edge: the peer's name, and its time over the variant's.

    Raises
    ------
    ValueError
        A missing column, several kinds, or several states of the caches.
    """
    from matplotlib.lines import Line2D

    require_columns(shapes, *SHAPE, "variant", "time_us", "floor_us", "allowed_us", "kind")
    require_columns(shapes, "peer", "peer_us", "peer_kind", "speedup", "device")
    only_kind(shapes)
    _one_cache(shapes)
    ordered = shapes.sort_values("floor_us", kind="stable").reset_index(drop=True)
    if ax is None:
        ax = new_axes(9.5, 1.4 + 0.34 * len(ordered))[0]
    for line, shape in ordered.iterrows():
        ax.hlines(line, shape["floor_us"], max(shape["time_us"], shape["allowed_us"]),
                  color=FAINT, linewidth=1.2, zorder=1)  # fmt: skip
        missed = shape["time_us"] > shape["allowed_us"]
        ax.plot(shape["allowed_us"], line, marker="$]$", color=MUTED, markersize=9)
        ax.plot(shape["time_us"], line, "o", color=VERMILION if missed else BLUE, markersize=6)
        said = "no peer"
        if shape["peer_us"] == shape["peer_us"]:
            ax.plot(shape["peer_us"], line, "D", markersize=5.5, markeredgecolor=PURPLE,
                    markerfacecolor=fill_of(shape["peer_kind"], PURPLE))  # fmt: skip
            said = f"{shape['peer']}: {shape['speedup']:.2f}x"
        ax.annotate(said, (1.01, line), xycoords=("axes fraction", "data"), va="center",
                    fontsize=8.5, color=INK)  # fmt: skip
    ax.plot(ordered["floor_us"], range(len(ordered)), "|", color=INK, markersize=13,
            markeredgewidth=2)  # fmt: skip
    ax.set_yticks(range(len(ordered)), [_shape_label(*one) for one in ordered[SHAPE].to_numpy()])
    ax.set_ylim(len(ordered) - 0.4, -0.6)
    time_axis(ax, f"time of a call (us); {place_label(ordered)}")
    variant = ordered["variant"].iloc[0]
    marks = [
        {"marker": "|", "color": INK, "markersize": 12, "label": FLOOR_LABEL},
        {"marker": "o", "color": BLUE, "label": f"{variant}, within the bar"},
        {"marker": "o", "color": VERMILION, "label": f"{variant}, beyond it"},
        {"marker": "$]$", "color": MUTED, "label": "bar"},
    ]
    for kind in sorted(set(ordered["peer_kind"].dropna())):
        fill = fill_of(kind, PURPLE)
        marks.append({"marker": "D", "color": PURPLE, "markerfacecolor": fill,
                      "label": f"best peer, {kind}, by torch.topk"})  # fmt: skip
    _legend(ax, [Line2D([], [], linestyle="", **mark) for mark in marks], 5)
    return ax


def time_parts(parts: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw what the time of a call is made of, a bar for each shape.

    Parameters
    ----------
    parts : pandas.DataFrame
        As `models.time_parts` returns it, one state of the caches: ``num_rows``, ``num_cols``,
        ``workload``, ``floor_us``, ``part``, ``part_us``, ``kind``, ``device``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        Parts from left to right, in the order of the frame; shapes in the order of the floor. What
        others published is hatched.

    Raises
    ------
    ValueError
        A missing column, several kinds, several states of the caches, or more parts than colours.
    """
    import numpy as np

    require_columns(parts, *SHAPE, "floor_us", "part", "part_us", "kind", "device")
    only_kind(parts)
    if parts.duplicated([*SHAPE, "part"]).any():
        raise ValueError("parts must hold one state of the caches, got a part of a shape twice")
    names = list(dict.fromkeys(parts["part"]))
    if len(names) > len(PARTS):
        raise ValueError(f"parts must be at most {len(PARTS)} of a shape, got {len(names)}")
    floors = parts.drop_duplicates(SHAPE).sort_values("floor_us", kind="stable")
    shapes = [tuple(one) for one in floors[SHAPE].to_numpy()]
    if ax is None:
        ax = new_axes(9.5, 1.3 + 0.3 * len(shapes))[0]
    table = parts.pivot(index=SHAPE, columns="part", values="part_us").loc[shapes, names]
    ends = np.zeros(len(shapes))
    for (colour, hatch), name in zip(PARTS, names, strict=False):
        width = table[name].to_numpy(float)
        ax.barh(range(len(shapes)), width, left=ends, height=0.68, color=colour, hatch=hatch,
                edgecolor=MUTED if hatch else colour, linewidth=0.6, label=name)  # fmt: skip
        ends += width
    for line, end in enumerate(ends):
        ax.text(end, line, f" {end:.1f}", va="center", fontsize=8.5, color=INK)
    ax.set_yticks(range(len(shapes)), [_shape_label(*shape) for shape in shapes])
    ax.set_ylim(len(shapes) - 0.4, -0.6)
    ax.set_xlabel(f"time of a call (us); {place_label(parts)}", fontsize=9, color=INK)
    plain(ax, grid="x")
    _legend(ax, ax.get_legend_handles_labels()[0], 4)
    return ax


def growth_lines(times: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw time, and bytes a second, against the bytes of a call, beside the floor's.

    Parameters
    ----------
    times : pandas.DataFrame
        As `models.growth_times` returns it: ``num_rows``, ``input_bytes``, ``line``, ``time_us``,
        ``bytes_per_s``, ``kind``, ``device``.
    axes : sequence of two Axes, optional
        For the time and for the bytes a second.

    Returns
    -------
    array of Axes
        A colour for each number of rows; the floor is dashed.

    Raises
    ------
    ValueError
        A missing column, several kinds, or more numbers of rows than colours.
    """
    import numpy as np
    from matplotlib.ticker import LogLocator, NullLocator

    require_columns(times, "num_rows", "input_bytes", "line", "time_us", "bytes_per_s", "kind")
    require_columns(times, "device")
    place = place_label(times)
    counts = sorted(set(times["num_rows"]))
    if len(counts) > len(LINES):
        raise ValueError(f"times must hold at most {len(LINES)} numbers of rows, got {len(counts)}")
    if axes is None:
        axes = new_panels(2, 2, 3.0)
    for (num_rows, line), mine in times.groupby(["num_rows", "line"]):
        mine = mine.sort_values("input_bytes")
        is_floor = line == "floor"
        style = {
            "color": LINES[counts.index(num_rows)],
            "linestyle": (0, (4, 2)) if is_floor else "-",
            "marker": "|" if is_floor else "o",
            "markersize": 4,
            "linewidth": 1.3,
            "label": f"{num_rows} rows, {line}",
        }
        x = mine["input_bytes"].to_numpy(float)
        axes[0].plot(x, mine["time_us"].to_numpy(), **style)
        axes[1].plot(x, mine["bytes_per_s"].to_numpy() / 1e12, **style)
    for ax in axes:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlabel(f"bytes of logits; {place}", fontsize=9, color=INK)
        plain(ax, grid="y")
    axes[0].set_yscale("log")
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0].yaxis.set_major_formatter("{x:g}")
    axes[0].yaxis.set_minor_locator(NullLocator())
    axes[0].set_ylabel("time of a call (us)", fontsize=9, color=INK)
    axes[1].set_ylabel("logits read (TB/s)", fontsize=9, color=INK)
    _legend(axes[0], axes[0].get_legend_handles_labels()[0], 3)
    return np.asarray(axes)


def row_ratios(ratios: pd.DataFrame, *, bar: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the time on each workload as a multiple of that on normal rows.

    Parameters
    ----------
    ratios : pandas.DataFrame
        As `models.adversarial_ratios` returns it: ``num_rows``, ``num_cols``, ``workload``,
        ``variant``, ``ratio``, ``kind``, ``device``.
    bar : float, optional
        Where a line stands.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        A line for each workload, the last variant's worst first; a colour for each variant, a
        marker for each shape.

    Raises
    ------
    ValueError
        A missing column, several kinds, several ratios in one place, or more variants than
        colours or shapes than markers.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    require_columns(ratios, *SHAPE, "variant", "ratio", "kind", "device")
    only_kind(ratios)
    if ratios.duplicated([*SHAPE, "variant"]).any():
        raise ValueError("ratios must hold one of each shape, workload and variant, got several")
    variants = sorted(set(ratios["variant"]), reverse=True)
    shapes = list(dict.fromkeys(zip(ratios["num_rows"], ratios["num_cols"], strict=True)))
    if len(variants) > len(LINES) or len(shapes) > len(MARKERS):
        raise ValueError(
            f"ratios must hold at most {len(LINES)} variants and {len(MARKERS)} shapes, "
            f"got {len(variants)} and {len(shapes)}"
        )
    colours = dict(zip(variants, (GREY, *LINES) if len(variants) > 1 else LINES, strict=False))
    worst = ratios[ratios["variant"] == variants[-1]].groupby("workload")["ratio"].max()
    order = worst.sort_values(ascending=False, kind="stable").index.tolist()
    if ax is None:
        ax = new_axes(9.5, 1.3 + 0.24 * len(order))[0]
    for variant in variants:
        for shape, marker in zip(shapes, MARKERS, strict=False):
            mine = ratios[
                (ratios["variant"] == variant)
                & (ratios["num_rows"] == shape[0])
                & (ratios["num_cols"] == shape[1])
                & ratios["workload"].isin(order)
            ]
            lines = [order.index(name) for name in mine["workload"]]
            ax.plot(mine["ratio"].to_numpy(), lines, marker, color=colours[variant], markersize=5,
                    alpha=0.85)  # fmt: skip
    ax.axvline(1, color=MUTED, linewidth=1, zorder=0)
    if bar is not None:
        ax.axvline(bar, color=VERMILION, linewidth=1, linestyle=(0, (4, 2)), zorder=0)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:g}x")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yticks(range(len(order)), [name.replace("_", " ") for name in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlabel(f"time over that on normal rows; {place_label(ratios)}", fontsize=9, color=INK)
    plain(ax, grid="x")
    handles = [
        *(Line2D([], [], linestyle="", marker="s", color=colours[name], label=name)
          for name in variants),
        *(Line2D([], [], linestyle="", marker=marker, color=MUTED, label=f"{rows} x {cols}")
          for (rows, cols), marker in zip(shapes, MARKERS, strict=False)),
    ]  # fmt: skip
    if bar is not None:
        handles.append(Line2D([], [], color=VERMILION, linestyle=(0, (4, 2)), label="bar"))
    _legend(ax, handles, 4)
    return ax


def traffic_by_workload(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw how often the bytes of a row move, on each workload, a panel for each length.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `models.traffic` returns it, of one target and number of rows: ``num_rows``,
        ``num_cols``, ``workload``, ``variant``, ``reads``, ``bound``, ``kind``, ``target``.
    axes : sequence of Axes, optional
        One for each length.

    Returns
    -------
    array of Axes
        A colour for each variant; a hairline at 1, and a dashed line where the bound is.

    Raises
    ------
    ValueError
        A missing column, several kinds, targets or numbers of rows, or more variants than colours.
    """
    import numpy as np
    from matplotlib.lines import Line2D

    require_columns(frame, *SHAPE, "variant", "reads", "bound", "kind", "target")
    place = place_label(frame)
    for name in ("target", "num_rows"):
        if frame[name].nunique() != 1:
            raise ValueError(f"frame must hold one {name}, got {sorted(set(frame[name]))}")
    variants = sorted(set(frame["variant"]))
    if len(variants) > len(LINES):
        raise ValueError(f"frame must hold at most {len(LINES)} variants, got {len(variants)}")
    lengths = sorted(set(frame["num_cols"]))
    order = list(dict.fromkeys(frame.sort_values("reads", kind="stable")["workload"]))[::-1]
    if axes is None:
        axes = new_panels(len(lengths), 2, 0.6 + 0.2 * len(order), sharey=True)
    for ax, num_cols in zip(axes, lengths, strict=True):
        here = frame[frame["num_cols"] == num_cols]
        for variant, colour in zip(variants, LINES, strict=False):
            mine = here[here["variant"] == variant]
            lines = [order.index(name) for name in mine["workload"]]
            ax.plot(mine["reads"].to_numpy(), lines, "o", color=colour, markersize=5)
        for bound in sorted(set(here["bound"].dropna())):
            ax.axvline(bound, color=MUTED, linewidth=1.1, linestyle=(0, (4, 2)), zorder=0)
        ax.axvline(1, color=MUTED, linewidth=0.8, zorder=0)
        ax.set_xlim(0, 1.05 * float(frame["reads"].max()))
        ax.set_yticks(range(len(order)), [name.replace("_", " ") for name in order])
        ax.set_ylim(len(order) - 0.4, -0.6)
        title = f"{here['num_rows'].iloc[0]} x {num_cols}"
        ax.set_title(title, fontsize=9, color=INK, loc="left")
        ax.set_xlabel(f"bytes moved over live bytes; {place}", fontsize=9, color=INK)
        plain(ax, grid="x")
    handles = [
        Line2D([], [], linestyle="", marker="o", color=colour, label=variant)
        for variant, colour in zip(variants, LINES, strict=False)
    ]
    handles.append(Line2D([], [], color=MUTED, linestyle=(0, (4, 2)), label="bound"))
    _legend(axes[0], handles, 4)
    return np.asarray(axes)
