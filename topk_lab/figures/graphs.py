"""Which splits does a policy choose, what does one graph for all lengths take, and who loses?"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

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
    from matplotlib.colors import Colormap

__all__ = [
    "regret_heat_map",
    "replay_timeline",
    "speedup_by_axis",
    "speedup_distributions",
    "split_map",
]

MOST_SPLITS = 48
MAPS = {
    "exact_width": "at launch, were the buffer as wide as the row",
    "active": "at work, in one buffer for all lengths",
}
FROZEN = (
    (VERMILION, "-"),
    (PURPLE, (0, (4, 1.6))),
    (GREY, "-"),
    (AMBER, (0, (1.2, 1.4))),
    (GREEN, (0, (6, 2, 1, 2))),
)
BUFFERS = {"live": (BLUE, "o"), "full": (VERMILION, "D"), "ragged": (GREEN, "s")}
CACHES = ("warm", "pressure_256MiB", "cold")
GREATEST_REGRET = 2.0  # where the colours end
GOLDEN = 0.618034  # multiples of it, modulo 1, fill a lane evenly


def _splits_colours() -> Colormap:
    """From few splits to many, light to dark."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("splits", ["#f1f5fa", SKY, BLUE, "#08306b"])


def _columns(length: float) -> str:
    if length < 1024:
        return f"{length:g}"
    return f"{length / 1024:g}Ki" if length < 1 << 20 else f"{length / (1 << 20):g}Mi"


def _length_axis(ax: Axes, shortest: float, longest: float, label: str) -> None:
    import numpy as np
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    powers = range(int(np.ceil(np.log2(shortest))), int(np.log2(longest)) + 1)
    ticks = [2**power for power in powers if power % 2 == 0]
    ax.set_xticks(ticks, [_columns(tick) for tick in ticks])
    ax.set_xlim(shortest, longest)
    ax.set_xlabel(label, fontsize=9, color=INK)


def split_map(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw a policy of splits over rows and lengths, a line of two panels for each variant.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `models.split_map` returns it, for one variant or several, on a full grid: ``variant``,
        ``num_rows``, ``length``, ``exact_width``, ``active``.
    axes : sequence of Axes, optional
        Two for each variant, in their order in the frame.

    Returns
    -------
    array of Axes
        Left the splits that a launch would have in a buffer as wide as the row, right those that
        work on it in a buffer for all lengths. Each area has its number of splits written in it.

    Raises
    ------
    ValueError
        A missing column, or a shape that is missing or there twice.
    """
    import numpy as np
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import NullLocator

    require_columns(frame, "variant", "num_rows", "length", *MAPS)
    variants = list(dict.fromkeys(frame["variant"]))
    if axes is None:
        axes = new_panels(2 * len(variants), 2, 2.6, sharey=True)
    colours, norm = _splits_colours(), LogNorm(1, MOST_SPLITS)
    for ax, (variant, (column, title)) in zip(
        axes, itertools.product(variants, MAPS.items()), strict=True
    ):
        mine = frame[frame["variant"] == variant]
        if mine.duplicated(["num_rows", "length"]).any():
            raise ValueError(f"frame must hold each shape of {variant} once, got one twice")
        table = mine.pivot(index="num_rows", columns="length", values=column)
        if table.isna().any(axis=None):
            raise ValueError(f"frame must hold a full grid of shapes, {variant} lacks some")
        values = table.to_numpy()
        x, y = _edges(table.columns.to_numpy(float)), _edges(table.index.to_numpy(float))
        ax.pcolormesh(x, y, values, cmap=colours, norm=norm)
        for top, bottom, left, right in _areas(values):
            width, height = np.log2(x[right] / x[left]), np.log2(y[bottom] / y[top])
            ax.plot(x[[left, right, right, left, left]], y[[top, top, bottom, bottom, top]],
                    color="white", linewidth=1, scalex=False, scaley=False)  # fmt: skip
            if width < 0.45 or height < 0.3:
                continue
            splits = int(values[top, left])
            ax.text(np.sqrt(x[left] * x[right]), np.sqrt(y[top] * y[bottom]), str(splits),
                    ha="center", va="center", fontsize=8.5,
                    color="white" if norm(splits) > 0.5 else INK)  # fmt: skip
        _length_axis(ax, x[0], x[-1], "live columns of a row")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_minor_locator(NullLocator())
        ticks = [rows for rows in (1, 4, 16, 64, 256) if y[0] <= rows <= y[-1]]
        ax.set_yticks(ticks, [str(rows) for rows in ticks])
        ax.set_ylim(y[0], y[-1])
        ax.set_title(f"{variant}: {title}", fontsize=9, color=INK, loc="left")
        plain(ax)
        if column == "exact_width":
            ax.set_ylabel("rows", fontsize=9, color=INK)
    return np.asarray(axes)


def _edges(centres: np.ndarray) -> np.ndarray:
    """Bounds of cells around ascending values: a policy changes just above a value."""
    import numpy as np

    first = centres[0] / (centres[1] / centres[0]) if len(centres) > 1 else centres[0] / 2
    return np.concatenate(([first], centres))


def _areas(values: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Rectangles of equal values: top, bottom, left, right; bottom and right are behind the last.

    Neighbouring lines that are alike from end to end make one band.
    """
    top = 0
    for _, lines in itertools.groupby(values.tolist()):
        band = list(lines)
        left = 0
        for _, cells in itertools.groupby(band[0]):
            right = left + len(list(cells))
            yield top, top + len(band), left, right
            left = right
        top += len(band)


def replay_timeline(
    frame: pd.DataFrame, variant: str, *, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Draw the replays of one captured graph over the lengths that they met.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `models.replays` returns it, of one number of rows: ``variant``, ``replay``, ``length``,
        ``time_us``, ``active``, ``kind``, ``device``.
    variant : str
        Whose replays are points, in the colour of the splits that were due. The other variants are
        lines for comparison.
    axes : sequence of two Axes, optional
        For the lengths and for the times.

    Returns
    -------
    array of Axes
        Above, in which order the lengths came; below, what each took. A hairline stands where the
        splits that are due change.

    Raises
    ------
    ValueError
        A missing column, several kinds or numbers of rows, more variants than lines can be told
        apart, or none named `variant`.
    """
    import numpy as np
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    require_columns(frame, "variant", "replay", "length", "time_us", "active", "kind", "device")
    place = place_label(frame)
    if frame["num_rows"].nunique() != 1:
        raise ValueError(
            f"frame must hold one number of rows, got {sorted(set(frame['num_rows']))}"
        )
    others = [name for name in dict.fromkeys(frame["variant"]) if name != variant]
    if len(others) == frame["variant"].nunique() or len(others) > len(FROZEN):
        raise ValueError(
            f"frame must hold {variant} and up to {len(FROZEN)} other variants, "
            f"got {', '.join(others)}"
        )
    if axes is None:
        axes = new_axes(9.5, 5.6, rows=2)
        axes[0].get_gridspec().set_height_ratios([1, 2.6])
    above, below = axes
    mine = frame[frame["variant"] == variant].sort_values("length")
    due = sorted(set(mine["active"]))
    # By rank, not by number: ten splits must not look like eight.
    steps = np.linspace(0, 1, len(due)) if len(due) > 1 else [0.5]
    colours = dict(zip(due, _splits_colours()(steps), strict=True))
    point = {"c": [colours[splits] for splits in mine["active"]], "edgecolors": INK}
    above.scatter(mine["length"], mine["replay"], s=9, linewidths=0.3, **point)
    handles = []
    for name, (colour, dashes) in zip(others, FROZEN, strict=False):
        line = frame[frame["variant"] == name].sort_values("length")
        below.plot(line["length"].to_numpy(), line["time_us"].to_numpy(), color=colour,
                   linestyle=dashes, linewidth=1.4)  # fmt: skip
        handles.append(Line2D([], [], color=colour, linestyle=dashes, label=name))
    below.scatter(mine["length"], mine["time_us"], s=20, linewidths=0.5, zorder=4, **point)
    for splits in due:
        style = {"marker": "o", "linestyle": "", "markersize": 5.5, "markeredgecolor": INK}
        fill = {"markerfacecolor": colours[splits], "markeredgewidth": 0.5}
        label = f"{variant}, {splits} split{'s' if splits > 1 else ''} due"
        handles.append(Line2D([], [], label=label, **style, **fill))
    lengths, active = mine["length"].to_numpy(float), mine["active"].to_numpy()
    for change in np.flatnonzero(np.diff(active)):
        for ax in axes:
            ax.axvline(np.sqrt(lengths[change] * lengths[change + 1]), color=FAINT, zorder=0)
    shortest, longest = 0.93 * lengths[0], 1.07 * lengths[-1]
    _length_axis(below, shortest, longest, "live columns of every row at this replay")
    _length_axis(above, shortest, longest, "")
    above.tick_params(labelbottom=False)
    above.set_ylabel("replay", fontsize=9, color=INK)
    below.set_yscale("log")
    below.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    below.yaxis.set_major_formatter("{x:g}")
    below.yaxis.set_minor_locator(NullLocator())
    below.set_ylabel("time of a call (us)", fontsize=9, color=INK)
    plain(above)
    plain(below, grid="y")
    title = f"one captured graph a variant, {frame['num_rows'].iloc[0]} rows: {place}"
    above.set_title(title, fontsize=9, color=INK, loc="left")
    below.figure.legend(
        handles=handles, loc="outside upper left", ncols=2, frameon=False, fontsize=8.5
    )
    return np.asarray(axes)


def regret_heat_map(
    frame: pd.DataFrame, value: str = "regret", *, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Draw times as multiples of the best split count's, a panel for each policy.

    Parameters
    ----------
    frame : pandas.DataFrame
        Of `models.split_regret`, one workload: ``policy``, ``num_rows``, ``length``, ``kind`` and
        `value`.
    value : {"regret", "choice", "one_graph"}
        What is drawn.
    axes : sequence of Axes, optional
        One for each policy, in their order in the frame.

    Returns
    -------
    array of Axes
        Columns are lengths, lines are rows. White is as fast as the best, vermilion slower; blue
        is faster than any fixed count.

    Raises
    ------
    ValueError
        A missing column, several kinds, or several values in one place.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    require_columns(frame, "policy", "num_rows", "length", "kind", value)
    only_kind(frame)
    if frame.duplicated(["policy", "num_rows", "length"]).any():
        raise ValueError("frame must hold one value for each policy and shape, got several")
    policies = list(dict.fromkeys(frame["policy"]))
    lines = sorted(set(frame["num_rows"]))
    if axes is None:
        axes = new_panels(len(policies), 3, 0.5 + 0.21 * len(lines), sharey=True)
    colours = LinearSegmentedColormap.from_list("regret", [BLUE, "white", VERMILION])
    norm = LogNorm(1 / GREATEST_REGRET, GREATEST_REGRET)
    for ax, policy in zip(axes, policies, strict=True):
        mine = frame[frame["policy"] == policy]
        table = mine.pivot(index="num_rows", columns="length", values=value).reindex(lines)
        ax.pcolormesh(
            np.arange(table.shape[1] + 1) - 0.5,
            np.arange(table.shape[0] + 1) - 0.5,
            table.to_numpy(),
            cmap=colours,
            norm=norm,
            edgecolors="white",
            linewidth=1,
        )
        for (y, x), ratio in np.ndenumerate(table.to_numpy()):
            if ratio == ratio:
                said = f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"
                ax.text(x, y, said, ha="center", va="center", fontsize=6.5,
                        color="white" if not 0.6 < ratio < 1.7 else INK)  # fmt: skip
        ax.set_xticks(range(table.shape[1]), [_columns(one) for one in table.columns])
        ax.set_yticks(range(len(lines)), [str(rows) for rows in lines])
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.xaxis.tick_top()
        ax.set_title(policy, fontsize=9, color=INK, loc="left")
        plain(ax)
        ax.tick_params(axis="x", labelsize=7)
    axes[0].set_ylabel("rows", fontsize=9, color=INK)
    return np.asarray(axes)


def speedup_distributions(
    pairs: pd.DataFrame,
    summary: pd.DataFrame,
    published: pd.DataFrame | None = None,
    *,
    ax: Axes | None = None,
) -> Axes:
    """Draw every speed-up of a matrix, a lane for each buffer and state of the caches.

    Parameters
    ----------
    pairs : pandas.DataFrame
        As `models.paired` returns them: ``buffer``, ``cache``, ``speedup``, ``kind``, ``device``.
    summary : pandas.DataFrame
        Of the same, as `models.distribution` returns it by ``buffer`` and ``cache``.
    published : pandas.DataFrame, optional
        As `models.published_distribution` returns it; states of the caches that `pairs` lacks are
        left out.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        A dot a cell, a diamond at the geometric mean with its 95 % interval, a bar at the median.
        What is published is hollow, its line reaching from the least to the greatest. Left of 1
        the candidate is slower.

    Raises
    ------
    ValueError
        A missing column, or numbers of several kinds in `pairs`.
    """
    import numpy as np
    from matplotlib.ticker import NullLocator

    require_columns(pairs, "buffer", "cache", "speedup", "kind", "device", "baseline", "candidate")
    require_columns(summary, "buffer", "cache", "geomean", "low", "high", "median", "slower")
    place = place_label(pairs)
    lanes: list[tuple[str, str, pd.DataFrame | None]] = []
    for cache in [name for name in CACHES if name in set(pairs["cache"])]:
        told = [] if published is None else published[published["cache"] == cache]
        lanes += [(cache, "", told)] if len(told) else []
        here = pairs[pairs["cache"] == cache]
        lanes += [(cache, name, None) for name in BUFFERS if name in set(here["buffer"])]
    if ax is None:
        ax = new_axes(9.5, 1.1 + 0.52 * len(lanes))[0]
    names = []
    greatest = max(float(pairs["speedup"].max()), 0 if published is None else
                   float(published["greatest"].max()))  # fmt: skip
    for lane, (cache, buffer, told) in enumerate(lanes):
        if told is not None:
            line = told.iloc[0]
            ax.plot([line["least"], line["greatest"]], [lane, lane], color=INK, linewidth=1)
            ax.plot([line["median"]] * 2, [lane - 0.26, lane + 0.26], color=INK, linewidth=1.6)
            ax.plot(line["geomean"], lane, marker="D", markersize=7, markeredgecolor=INK,
                    markerfacecolor=fill_of(line["kind"], INK), linestyle="")  # fmt: skip
            names.append(f"{cache}\n{place_label(told)}")
        else:
            colour = BUFFERS[buffer][0]
            mine = np.sort(pairs.loc[
                (pairs["cache"] == cache) & (pairs["buffer"] == buffer), "speedup"
            ].to_numpy())  # fmt: skip
            spread = (np.arange(mine.size) * GOLDEN) % 1 - 0.5
            ax.scatter(mine, lane + 0.62 * spread, s=6, color=colour, alpha=0.35, linewidths=0)
            line = summary[(summary["cache"] == cache) & (summary["buffer"] == buffer)].iloc[0]
            ax.plot([line["median"]] * 2, [lane - 0.36, lane + 0.36], color=INK, linewidth=1.6)
            ax.plot([line["low"], line["high"]], [lane, lane], color=INK, linewidth=2.5)
            ax.plot(line["geomean"], lane, marker="D", markersize=6, color=colour,
                    markeredgecolor=INK, linestyle="", zorder=5)  # fmt: skip
            names.append(f"{cache}\n{buffer} buffer")
        said = f"{line['geomean']:.2f}x, {int(line['slower'])} of {int(line['cases'])} slower"
        ax.text(1.02, lane, said, transform=ax.get_yaxis_transform(), va="center", fontsize=8.5,
                color=INK)  # fmt: skip
    least = min(0.8, 0.95 * float(pairs["speedup"].min()))
    ax.set_xscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if least <= tick <= greatest]
    ax.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    ax.set_xlim(least, 1.1 * greatest)
    ax.axvspan(least, 1, color=VERMILION, alpha=0.1, linewidth=0, zorder=0)
    ax.axvline(1, color=MUTED, linewidth=1, zorder=1)
    ax.set_yticks(range(len(lanes)), names)
    ax.set_ylim(len(lanes) - 0.4, -0.6)
    sides = f"time of {pairs['baseline'].iloc[0]} / time of {pairs['candidate'].iloc[0]}"
    ax.set_xlabel(f"{sides}; {place} unless said otherwise", fontsize=9, color=INK)
    ax.text(1, -0.62, "slower ", ha="right", va="bottom", fontsize=8.5, color=VERMILION)
    plain(ax, grid="x")
    return ax


def speedup_by_axis(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw what the speed-up depends on, a panel for each axis of a matrix.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `models.distribution_by_axis` returns it, one state of the caches: ``axis``, ``value``,
        ``buffer``, ``geomean``, ``low``, ``high``, ``least``, ``greatest``, ``kind``, ``device``.
    axes : sequence of Axes, optional
        One for each axis, in their order in the frame.

    Returns
    -------
    array of Axes
        A line for each buffer: geometric means with their 95 % intervals, and behind them, faint,
        the range from the least speed-up to the greatest.

    Raises
    ------
    ValueError
        A missing column, several kinds, or several states of the caches.
    """
    import numpy as np
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    require_columns(frame, "axis", "value", "buffer", "geomean", "low", "high", "least", "greatest")
    place = place_label(frame)
    if frame.duplicated(["axis", "value", "buffer"]).any():
        raise ValueError("frame must hold one state of the caches, got several lines of a value")
    named = list(dict.fromkeys(frame["axis"]))
    buffers = [name for name in BUFFERS if name in set(frame["buffer"])]
    if axes is None:
        axes = new_panels(len(named), 3, 2.1, sharey=True)
    for ax, axis in zip(axes, named, strict=True):
        mine = frame[frame["axis"] == axis]
        values = list(dict.fromkeys(mine.sort_values("value")["value"]))
        ax.axhline(1, color=MUTED, linewidth=1, zorder=1)
        for position, buffer in enumerate(buffers):
            colour, marker = BUFFERS[buffer]
            line = mine[mine["buffer"] == buffer]
            x = np.array([values.index(value) for value in line["value"]])
            x = x + 0.16 * (position - (len(buffers) - 1) / 2)
            ax.vlines(x, line["least"], line["greatest"], color=colour, alpha=0.3, linewidth=1.2)
            ax.errorbar(
                x,
                line["geomean"].to_numpy(),
                yerr=[line["geomean"] - line["low"], line["high"] - line["geomean"]],
                color=colour,
                marker=marker,
                markersize=4.5,
                linewidth=1.2,
                elinewidth=2.4,
            )
        ax.set_xticks(range(len(values)), [_short(value) for value in values])
        ax.set_xlim(-0.5, len(values) - 0.5)
        ax.set_title(axis.replace("_", " "), fontsize=9, color=INK, loc="left")
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_locator(LogLocator(base=2))
        ax.yaxis.set_major_formatter("{x:g}x")
        ax.yaxis.set_minor_locator(NullLocator())
        plain(ax, grid="y")
    handles = [
        Line2D([], [], color=BUFFERS[name][0], marker=BUFFERS[name][1], markersize=4.5,
               label=f"{name} buffer: {place}")
        for name in buffers
    ]  # fmt: skip
    axes[0].figure.legend(
        handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8.5
    )
    return np.asarray(axes)


def _short(value: object) -> str:
    if isinstance(value, int) and value >= 10_000:
        return f"{value / 1e6:g}M" if value >= 1_000_000 else f"{value // 1000}k"
    return str(value)
