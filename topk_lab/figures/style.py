"""What do all figures share? Colours, bare axes, and the line that says where numbers are from."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topk_lab.results import only_kind

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "block_size_colour",
    "block_sizes",
    "fill_of",
    "new_axes",
    "new_panels",
    "place_label",
    "plain",
    "require_columns",
    "with_provenance",
]

INK = "#1f2430"
MUTED = "#5b6272"
FAINT = "#d9dce3"
BLUE, SKY, VERMILION, GREY = "#0072b2", "#7cc0e8", "#d55e00", "#b8bcc6"
GREEN, PURPLE, AMBER = "#009e73", "#8c3fa0", "#e69f00"

BLOCK_SIZE_COLOURS = {256: GREEN, 512: BLUE, 1024: VERMILION}
CHARACTERS_AN_INCH = 14  # of the text below a figure
HOLLOW_KINDS = ("published", "derived")


def new_axes(width: float, height: float, rows: int = 1) -> np.ndarray:
    """Make a figure that pyplot does not know, with one axes in each of its rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots(rows, 1, squeeze=False)[:, 0]


def new_panels(count: int, columns: int, height: float, *, sharey: bool = False) -> np.ndarray:
    """Make `count` axes side by side at notebook width, at most `columns` in a line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, count)
    lines = -(-count // columns)
    figure = Figure(figsize=(9.5, 0.8 + height * lines), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(lines, columns, squeeze=False, sharey=sharey).ravel()
    for unused in axes[count:]:
        unused.remove()
    return axes[:count]


def plain(ax: Axes, *, grid: str | None = None) -> None:
    """Drop the frame, mute what is left, and put a grid behind the marks."""
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(which="both", length=0, colors=INK, labelsize=9)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.8)
        ax.set_axisbelow(True)


def require_columns(frame: pd.DataFrame, *names: str) -> None:
    """Refuse a frame that is empty or lacks a column."""
    missing = [name for name in names if name not in frame]
    if missing or frame.empty:
        raise ValueError(
            f"frame must hold lines with columns {', '.join(names)}, "
            f"got {len(frame)} lines without {', '.join(missing) or 'none missing'}"
        )


def block_sizes(frame: pd.DataFrame) -> list[int]:
    """Threads a block of each line: its column ``block_size``, else that of its policy."""
    if "block_size" in frame:
        return [int(size) for size in frame["block_size"]]
    require_columns(frame, "policy")
    if not all("block_size" in policy for policy in frame["policy"]):
        raise ValueError("frame must hold variants with a block size only, got a policy without")
    return [int(policy["block_size"]) for policy in frame["policy"]]


def block_size_colour(block_size: int) -> str:
    """Colour that stands for a block size in every figure."""
    return BLOCK_SIZE_COLOURS.get(block_size, PURPLE)


def place_label(frame: pd.DataFrame) -> str:
    """Kind of a frame's numbers and where they were found, for a legend.

    Raises
    ------
    ValueError
        Numbers of several kinds.
    """
    kind = only_kind(frame)
    column = next((name for name in ("device", "hardware", "target") if name in frame), None)
    places = [] if column is None else sorted({str(name) for name in frame[column]})
    return ", ".join([kind, *(name.split(";")[0].removeprefix("none: ") for name in places)])


def fill_of(kind: str, colour: str) -> str:
    """Fill of a marker: none for what others published, the colour for what was found here."""
    return "white" if kind in HOLLOW_KINDS else colour


def with_provenance(axes: Axes | Sequence[Axes], provenance: str) -> Figure:
    """Write below a figure where its numbers come from.

    Parameters
    ----------
    axes : Axes or sequence of Axes
        As a function of this module returns them.
    provenance : str
        For example from `results.provenance`; wrapped to the figure's width.

    Returns
    -------
    Figure
        The axes' figure, which a notebook shows when it is the last value of a cell.
    """
    import numpy as np

    figure = np.ravel(axes)[0].figure
    width = int(CHARACTERS_AN_INCH * figure.get_size_inches()[0])
    text = "\n".join(textwrap.wrap(provenance, width))
    figure.supxlabel(text, x=0.008, ha="left", fontsize=8, color=MUTED)
    return figure
