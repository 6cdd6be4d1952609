"""How far is each selection kernel from reading its rows once?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topk_lab.figures.style import FAINT, INK, new_axes, plain, require_columns
from topk_lab.results import only_kind

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FLOOR_LABEL", "peers_times", "time_axis"]

FLOOR_LABEL = "read each row once (floor)"
FLOORS = ("read_once_floor", "one_empty_kernel", "two_empty_kernels")


def peers_times(frame: pd.DataFrame, *, time: str = "warm_us", ax: Axes | None = None) -> Axes:
    """Compare selection kernels with the time that reading each row once takes.

    Parameters
    ----------
    frame : pandas.DataFrame
        ``rows``, ``cols``, ``distribution``, ``kernel``, the time column, ``kind``; the kernel
        ``read_once_floor`` is the floor (as in the published table ``peers_h200``).
    time : str
        Column with the time (us).
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        One line a shape, ordered by the floor; time on a logarithmic axis. At the right edge: the
        best kernel as a multiple of the floor.

    Raises
    ------
    ValueError
        A missing column, or numbers of several kinds.
    """
    import seaborn

    require_columns(frame, "rows", "cols", "distribution", "kernel", time, "kind")
    kind = only_kind(frame)
    shapes = ["rows", "cols", "distribution"]
    floor = frame[frame["kernel"] == "read_once_floor"].set_index(shapes)[time].sort_values()
    if floor.empty:
        raise ValueError("frame must hold the kernel read_once_floor, got none")
    kernels = [name for name in dict.fromkeys(frame["kernel"]) if name not in FLOORS]
    colours = dict(
        zip(kernels, seaborn.color_palette("colorblind", len(kernels)).as_hex(), strict=True)
    )
    markers = dict(zip(kernels, "osD^vPX<>*"[: len(kernels)], strict=True))
    if ax is None:
        ax = new_axes(9.0, 1.4 + 0.34 * len(floor))[0]
    for line, (shape, limit) in enumerate(floor.items()):
        mine = frame[(frame[shapes] == list(shape)).all(axis=1)].set_index("kernel")[time]
        times = mine[[name for name in kernels if name in mine]]
        ax.hlines(line, limit, times.max(), color=FAINT, linewidth=1.2, zorder=1)
        for name, value in times.items():
            ax.plot(value, line, markers[name], color=colours[name], markersize=5.5, alpha=0.9)
        best = times.min() / limit
        ax.annotate(
            f"{best:.1f}x",
            (1.01, line),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=INK,
        )
    ax.plot(floor.to_numpy(), range(len(floor)), "|", color=INK, markersize=13, markeredgewidth=2)
    ax.annotate(
        "best / floor",
        (1.01, 1.0),
        xycoords="axes fraction",
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=8.5,
        color=INK,
    )
    ax.set_yticks(range(len(floor)), [_shape_label(*shape) for shape in floor.index])
    ax.set_ylim(len(floor) - 0.4, -0.6)
    time_axis(ax, f"time of a call (us, {time.removesuffix('_us')}, {kind})")
    _peers_legend(ax, colours, markers)
    return ax


def time_axis(ax: Axes, label: str) -> None:
    """Put times on a logarithmic axis below the marks."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel(label, fontsize=9, color=INK)
    plain(ax, grid="x")


def _shape_label(rows: int, cols: int, distribution: str) -> str:
    masked = distribution.removeprefix("neg_inf_").replace("_", " ")
    tail = "" if distribution == "normal" else f", -inf {masked}"
    return f"{rows} x {cols}{tail}"


def _peer_label(name: str) -> str:
    """Say whose kernel it is: vLLM's have the names of this package's variants."""
    return f"vLLM's own {name}" if name.startswith("vllm_") else name


def _peers_legend(ax: Axes, colours: dict[str, str], markers: dict[str, str]) -> None:
    from matplotlib.lines import Line2D

    floor = Line2D([], [], linestyle="", marker="|", color=INK, markersize=12, markeredgewidth=2)
    marks = [
        Line2D([], [], linestyle="", marker=markers[name], color=colours[name]) for name in colours
    ]
    ax.legend(
        [floor, *marks],
        [FLOOR_LABEL, *(_peer_label(name) for name in colours)],
        loc="upper center",
        bbox_to_anchor=(0.4, -0.09),
        ncols=4,
        frameon=False,
        fontsize=8.5,
    )
