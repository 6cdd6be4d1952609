"""How many reads of its input does a selection on a CPU take?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topk_lab.figures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    VERMILION,
    new_axes,
    place_label,
    plain,
    require_columns,
)
from topk_lab.results import only_kind

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["cpu_over_floor"]

LINES = (
    ("time_us", "cpu_delegate", BLUE, "o"),
    ("torch_us", "torch.topk", VERMILION, "s"),
    ("numpy_us", "numpy.argpartition", GREEN, "D"),
)


def cpu_over_floor(times: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw times as multiples of that of one read, against the bytes of the input.

    Parameters
    ----------
    times : pandas.DataFrame
        As `models.cpu_times` returns it, one k, number of threads and workload: ``num_rows``,
        ``num_cols``, ``k``, ``threads``, ``workload``, ``input_bytes``, ``time_us``, ``torch_us``,
        ``numpy_us``, ``floor_us``, ``kind``, ``device``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        A mark for each shape and selection; where one was not timed there is none.

    Raises
    ------
    ValueError
        A missing column, several kinds, or a shape that is there twice.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    require_columns(times, "num_rows", "num_cols", "k", "threads", "workload", "input_bytes")
    require_columns(times, *(column for column, *_ in LINES), "floor_us", "kind", "device")
    only_kind(times)
    if times.duplicated(["num_rows", "num_cols"]).any():
        raise ValueError("times must hold one k, number of threads and workload, got a shape twice")
    if ax is None:
        ax = new_axes(9.5, 4.2)[0]
    for column, label, colour, marker in LINES:
        there = times[times[column].notna()]
        ax.plot(
            there["input_bytes"].to_numpy() / 1e6,
            (there[column] / there["floor_us"]).to_numpy(),
            *(marker,),
            color=colour,
            markersize=5.5,
            label=label,
        )
    ax.axhline(1, color=MUTED, linewidth=1, zorder=0)
    for set_scale, axis in ((ax.set_xscale, ax.xaxis), (ax.set_yscale, ax.yaxis)):
        set_scale("log")
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    first = times.iloc[0]
    ax.set_xlabel(
        f"input (MB); k {first['k']}, {first['threads']} threads, {first['workload']}; "
        f"{place_label(times)}",
        fontsize=9,
        color=INK,
    )
    ax.set_ylabel("time of a call, in reads by torch.amax", fontsize=9, color=INK)
    plain(ax, grid="y")
    ax.figure.legend(loc="outside upper left", ncols=len(LINES), frameon=False, fontsize=8.5)
    return ax
