"""Does the time grow with the rows, and what do more threads a block gain?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topk_lab.figures.style import (
    GREEN,
    GREY,
    INK,
    MUTED,
    PURPLE,
    SKY,
    block_size_colour,
    block_sizes,
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

__all__ = ["latency_by_rows", "speedup_by_length"]

CACHE_DASHES = {"warm": "-", "pressure_256MiB": (0, (4, 1.6)), "cold": (0, (1.2, 1.4))}
CACHE_MARKERS = {"warm": "o", "pressure_256MiB": "D", "cold": "s"}
CACHE_COLOURS = {"warm": GREEN, "pressure_256MiB": SKY, "cold": PURPLE}
PUBLISHED_MARKER = "^"
UNITS_DASHES = (0, (4, 3))


def latency_by_rows(
    measured: pd.DataFrame,
    published: pd.DataFrame | None = None,
    model: pd.DataFrame | None = None,
    *,
    axes: Sequence[Axes] | None = None,
) -> np.ndarray:
    """Draw time against rows, a line for each block size and cache, a panel for each length.

    Parameters
    ----------
    measured : pandas.DataFrame
        Records of one device: ``num_rows``, ``num_cols``, ``cache``, ``median_us``, ``q1_us``,
        ``q3_us``, ``counters`` (``resident_blocks``), ``workload_args``, ``kind``, ``device``, and
        ``block_size`` or ``policy``. Drawn are cells with a time; the occupancy axis (any
        ``workload_args``) is left out.
    published : pandas.DataFrame, optional
        Points as `models.published_times` returns them: ``num_rows``, ``num_cols``,
        ``block_size``, ``time_us``, ``kind``, ``hardware``.
    model : pandas.DataFrame, optional
        Fits as `models.fit_waves` returns them, with ``block_size``: ``num_cols``, ``cache``,
        ``held``, ``resident_blocks``, ``fixed_us``, ``per_wave_us``. What is not identifiable is
        not drawn.
    axes : sequence of Axes, optional
        One for each length, ascending.

    Returns
    -------
    array of Axes
        Whiskers are quartiles. A hairline in a block size's colour stands where the rows pass a
        multiple of its resident blocks, a dashed one where they are as many as the compute units.

    Raises
    ------
    ValueError
        A missing column, several kinds or devices, several times of one block size, cache and
        shape, a variant without a block size, or a number of axes that is not that of lengths.
    """
    import numpy as np

    require_columns(measured, "num_rows", "num_cols", "cache", "median_us", "q1_us", "q3_us")
    require_columns(measured, "counters", "workload_args", "kind", "device")
    sweep = measured[measured["median_us"].notna() & ~measured["workload_args"].map(bool)]
    require_columns(sweep, "num_rows")
    if sweep["device"].nunique() != 1:
        raise ValueError(f"measured must hold one device, got {sorted(set(sweep['device']))}")
    sweep = sweep.assign(block_size=block_sizes(sweep))
    if sweep.duplicated(["block_size", "cache", "num_cols", "num_rows"]).any():
        raise ValueError("measured must hold one time a block size, cache and shape, got several")
    lengths = sorted(set(sweep["num_cols"]))
    if axes is None:
        axes = new_panels(len(lengths), 2, 2.5, sharey=True)
    if len(axes) != len(lengths):
        raise ValueError(f"axes must be one for each of {len(lengths)} lengths, got {len(axes)}")
    for ax, num_cols in zip(axes, lengths, strict=True):
        mine = sweep[sweep["num_cols"] == num_cols]
        _draw_resident(ax, mine)
        _draw_sweep(ax, mine)
        if model is not None:
            _draw_fits(ax, model[model["num_cols"] == num_cols], mine["num_rows"].max())
        if published is not None:
            _draw_points(ax, published[published["num_cols"] == num_cols])
        ax.set_title(f"{num_cols} columns", loc="left", fontsize=9.5, color=INK)
        _row_axes(ax)
    for ax in axes:
        if ax.get_subplotspec() is None or ax.get_subplotspec().is_first_col():
            ax.set_ylabel("time of a call (us)", fontsize=9, color=INK)
    _latency_legend(axes[0], sweep, published, model)
    return np.asarray(axes)


def _draw_resident(ax: Axes, cells: pd.DataFrame) -> None:
    most = cells["num_rows"].max()
    for block_size, mine in cells.groupby("block_size"):
        colour = block_size_colour(block_size)
        found = {counters.get("resident_blocks") for counters in mine["counters"]} - {None}
        for resident in sorted(found):
            for rows in range(int(resident), int(most), int(resident)):
                ax.axvline(rows, color=colour, linewidth=0.6, alpha=0.35, zorder=0)
    for units in _units(cells):
        ax.axvline(units, color=INK, linewidth=0.9, linestyle=UNITS_DASHES, zorder=0)


def _units(cells: pd.DataFrame) -> list[int]:
    """Compute units of the device, where the records say how many."""
    return sorted({counters.get("units") for counters in cells["counters"]} - {None})


def _draw_sweep(ax: Axes, cells: pd.DataFrame) -> None:
    for (block_size, cache), mine in cells.groupby(["block_size", "cache"]):
        line = mine.sort_values("num_rows")
        colour = block_size_colour(block_size)
        whiskers = [line["median_us"] - line["q1_us"], line["q3_us"] - line["median_us"]]
        ax.errorbar(
            line["num_rows"].to_numpy(),
            line["median_us"].to_numpy(),
            yerr=whiskers,
            color=colour,
            linestyle=CACHE_DASHES[cache],
            marker=CACHE_MARKERS[cache],
            markersize=4,
            linewidth=1.4,
            elinewidth=1,
            label=f"{block_size} threads, {cache}",
        )


def _draw_fits(ax: Axes, fits: pd.DataFrame, most: int) -> None:
    import numpy as np

    for fit in fits[fits["fixed_us"].notna() & ~fits["held"].astype(bool)].to_dict("records"):
        ends = np.arange(0, most + fit["resident_blocks"], fit["resident_blocks"])
        waves = np.arange(1, len(ends))
        edges = np.clip(ends, 1, most)
        ax.stairs(
            fit["fixed_us"] + fit["per_wave_us"] * waves,
            edges,
            baseline=None,
            color=block_size_colour(fit["block_size"]),
            linewidth=3.5,
            alpha=0.25,
        )


def _draw_points(ax: Axes, points: pd.DataFrame) -> None:
    for block_size, mine in points.groupby("block_size"):
        style = _point_style(only_kind(mine), block_size_colour(block_size))
        ax.plot(mine["num_rows"].to_numpy(), mine["time_us"].to_numpy(), zorder=5, **style)


def _point_style(kind: str, colour: str) -> dict[str, Any]:
    return {
        "linestyle": "",
        "marker": PUBLISHED_MARKER,
        "markersize": 8,
        "markerfacecolor": fill_of(kind, colour),
        "markeredgecolor": colour,
        "markeredgewidth": 1.4,
    }


def _row_axes(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(LogLocator(base=4, numticks=12))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("rows", fontsize=9, color=INK)
    plain(ax, grid="y")


def _latency_legend(
    ax: Axes, sweep: pd.DataFrame, published: pd.DataFrame | None, model: pd.DataFrame | None
) -> None:
    from matplotlib.lines import Line2D

    place = place_label(sweep)
    lines = set(zip(sweep["block_size"], sweep["cache"], strict=True))
    caches = list(CACHE_DASHES)
    handles: list[Any] = []
    for size, cache in sorted(lines, key=lambda line: (line[0], caches.index(line[1]))):
        style = {"linestyle": CACHE_DASHES[cache], "marker": CACHE_MARKERS[cache], "markersize": 4}
        label = f"{size} threads, {cache}: {place}"
        handles.append(Line2D([], [], color=block_size_colour(size), label=label, **style))
    for size, points in [] if published is None else published.groupby("block_size"):
        style = _point_style(only_kind(points), block_size_colour(size))
        handles.append(Line2D([], [], label=f"{size} threads: {place_label(points)}", **style))
    if model is not None:
        label = "model: fixed + per wave of blocks"
        handles.append(Line2D([], [], color=GREY, linewidth=3.5, label=label))
    label = "rows pass a multiple of the resident blocks"
    handles.append(Line2D([], [], color=GREY, marker="|", markersize=11, linestyle="", label=label))
    if _units(sweep):
        style = {"color": INK, "linewidth": 0.9, "linestyle": UNITS_DASHES}
        handles.append(Line2D([], [], label="as many rows as compute units", **style))
    ax.figure.legend(
        handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8.5
    )


def speedup_by_length(
    measured: pd.DataFrame, published: pd.DataFrame | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the ratio of two variants' times against the length of a row.

    Parameters
    ----------
    measured : pandas.DataFrame
        As `models.speedups` returns it: ``num_cols``, ``cache``, ``speedup``, ``low``, ``high``,
        ``baseline``, ``candidate``, ``kind``, ``device``.
    published : pandas.DataFrame, optional
        As the published table ``sglang_36004_kernel``: ``c4_len``, ``baseline_threads``,
        ``candidate_threads``, ``speedup``, ``kind``, ``hardware``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        One line for each cache, with 95 % intervals; published ratios hollow. Ratios are written
        beside the published marks.

    Raises
    ------
    ValueError
        A missing column, or numbers of several kinds or pairs of variants in `measured`.
    """
    from matplotlib.ticker import NullLocator

    require_columns(measured, "num_cols", "cache", "speedup", "low", "high", "kind", "device")
    pairs = sorted(set(zip(measured["baseline"], measured["candidate"], strict=True)))
    if len(pairs) != 1:
        raise ValueError(f"measured must hold one pair of variants, got {pairs}")
    if ax is None:
        ax = new_axes(9.0, 4.0)[0]
    place = place_label(measured)
    ax.axhline(1, color=MUTED, linewidth=1, zorder=1)
    caches = [name for name in CACHE_MARKERS if name in set(measured["cache"])]
    for position, cache in enumerate(caches):
        line = measured[measured["cache"] == cache].sort_values("num_cols")
        # A few per cent aside, so that whiskers at one length stand beside one another.
        shift = 1.03 ** (position - (len(caches) - 1) / 2)
        ax.errorbar(
            line["num_cols"].to_numpy() * shift,
            line["speedup"].to_numpy(),
            yerr=[line["speedup"] - line["low"], line["high"] - line["speedup"]],
            color=CACHE_COLOURS[cache],
            linestyle=CACHE_DASHES[cache],
            marker=CACHE_MARKERS[cache],
            markersize=6,
            linewidth=1.4,
            capsize=3,
            label=f"{cache}: {place}",
        )
    lengths = set(measured["num_cols"])
    if published is not None:
        require_columns(published, "c4_len", "speedup", "kind", "hardware")
        _draw_published_ratios(ax, published)
        lengths |= set(published["c4_len"])
    ax.set_xscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(sorted(lengths), [str(length) for length in sorted(lengths)])
    ax.set_xlim(min(lengths) / 1.25, max(lengths) * 1.25)
    ax.set_xlabel("columns of a row", fontsize=9, color=INK)
    baseline, candidate = pairs[0]
    ax.set_ylabel(f"time of {baseline} /\ntime of {candidate}", fontsize=9, color=INK)
    plain(ax, grid="y")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=3, frameon=False, fontsize=8.5)
    return ax


def _draw_published_ratios(ax: Axes, table: pd.DataFrame) -> None:
    line = table.sort_values("c4_len")
    ax.plot(
        line["c4_len"].to_numpy(),
        line["speedup"].to_numpy(),
        linestyle="-",
        linewidth=1,
        color=MUTED,
        marker=PUBLISHED_MARKER,
        markersize=8,
        markerfacecolor=fill_of(only_kind(table), MUTED),
        markeredgecolor=INK,
        markeredgewidth=1.4,
        label=place_label(table),
    )
    for length, ratio in zip(line["c4_len"], line["speedup"], strict=True):
        ax.annotate(
            f"{ratio:.2f}x",
            (length, ratio),
            xytext=(0, 9),
            textcoords="offset points",
            ha="center",
            fontsize=8.5,
            color=INK,
        )
