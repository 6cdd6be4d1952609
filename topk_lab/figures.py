"""What do the numbers look like? One function a figure: tidy frame in, Axes out.

No function here opens a file, times anything or touches pyplot's current figure: without ``ax`` a
function makes a figure of its own (``ax.figure``), which a notebook shows when it is the last value
of a cell. Numbers of several kinds (measured, emulated, published) are refused where they would
share an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topk_lab.claims import NOT_REPRODUCED, OUTCOMES, PUBLISHED_ONLY, REPRODUCED, SAME_DIRECTION
from topk_lab.results import STATUSES, only_kind

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "claims_overview",
    "exactness_grid",
    "peers_times",
    "trace_bins",
    "trace_histograms",
    "trace_table",
    "with_provenance",
]

INK = "#1f2430"
MUTED = "#5b6272"
FAINT = "#d9dce3"
BLUE, SKY, VERMILION, GREY = "#0072b2", "#7cc0e8", "#d55e00", "#b8bcc6"

OUTCOME_COLOURS = {
    REPRODUCED: BLUE,
    SAME_DIRECTION: SKY,
    NOT_REPRODUCED: VERMILION,
    PUBLISHED_ONLY: GREY,
}
STATUS_COLOURS = {"ok": BLUE, "wrong": VERMILION, "error": "#8c3fa0", "skipped": GREY}
STATUS_SIGNS = {"ok": "✓", "wrong": "✗", "error": "!", "skipped": "-"}

STEP_TITLES = (
    "step 0: half key, upper 11 bits",
    "step 1: float key, bits 31-21",
    "step 2: float key, bits 20-10",
    "step 3: float key, bits 9-0",
)
LAST_STEP_BINS = 1024
STEP_BINS = 2048

FLOORS = ("read_once_floor", "one_empty_kernel", "two_empty_kernels")


def _new_axes(width: float, height: float, rows: int = 1) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure.subplots(rows, 1, squeeze=False)[:, 0]


def _plain(ax: Axes, *, grid: str | None = None) -> None:
    """Drop the frame, mute what is left, and put a grid behind the marks."""
    for side in ("top", "right", "left", "bottom"):
        ax.spines[side].set_visible(False)
    ax.tick_params(which="both", length=0, colors=INK, labelsize=9)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.8)
        ax.set_axisbelow(True)


def _require_columns(frame: pd.DataFrame, *names: str) -> None:
    missing = [name for name in names if name not in frame]
    if missing or frame.empty:
        raise ValueError(
            f"frame must hold lines with columns {', '.join(names)}, "
            f"got {len(frame)} lines without {', '.join(missing) or 'none missing'}"
        )


def with_provenance(axes: Axes | Sequence[Axes], provenance: str) -> Figure:
    """Write below a figure where its numbers come from.

    Parameters
    ----------
    axes : Axes or sequence of Axes
        As a function of this module returns them.
    provenance : str
        One line, for example from `results.provenance`.

    Returns
    -------
    Figure
        The axes' figure, which a notebook shows when it is the last value of a cell.
    """
    import numpy as np

    figure = np.ravel(axes)[0].figure
    figure.supxlabel(provenance, x=0.008, ha="left", fontsize=8, color=MUTED)
    return figure


def claims_overview(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Count the verdicts on the claims of each source and kind.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `claims.evaluate` returns it: ``source``, ``kind``, ``outcome``.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        One bar for each source and kind, its segments the outcomes.
    """
    _require_columns(frame, "source", "kind", "outcome")
    groups = list(dict.fromkeys(zip(frame["source"], frame["kind"], strict=True)))
    counts = frame.groupby(["source", "kind", "outcome"]).size()
    if ax is None:
        ax = _new_axes(8.0, 0.9 + 0.34 * len(groups))[0]
    for line, (source, kind) in enumerate(groups):
        start = 0
        for outcome in OUTCOMES:
            count = int(counts.get((source, kind, outcome), 0))
            if not count:
                continue
            colour = OUTCOME_COLOURS[outcome]
            ax.barh(line, count, left=start, height=0.66, color=colour, edgecolor="white")
            dark = outcome in (REPRODUCED, NOT_REPRODUCED)
            ax.text(
                start + count / 2,
                line,
                str(count),
                ha="center",
                va="center",
                fontsize=9,
                color="white" if dark else INK,
            )
            start += count
    ax.set_yticks(range(len(groups)), [f"{source}, {kind}" for source, kind in groups])
    ax.set_ylim(len(groups) - 0.5, -0.5)
    ax.set_xticks([])
    ax.set_xlabel("number of claims", color=INK, fontsize=9)
    _plain(ax)
    _outcome_legend(ax)
    return ax


def _outcome_legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    ax.legend(
        handles=[Patch(color=OUTCOME_COLOURS[outcome], label=outcome) for outcome in OUTCOMES],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(OUTCOMES),
        frameon=False,
        fontsize=9,
    )


def exactness_grid(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Show which cells of an experiment were exact on which target.

    Parameters
    ----------
    frame : pandas.DataFrame
        Cells of one experiment as `results.load` returns them: ``target``, ``variant``,
        ``workload``, ``workload_args``, ``status``. Where ``workload_args`` names a ``case``, the
        case is the line, else the workload with the arguments that not all cells share. Of several
        cells at one place the worst shows.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
        Lines: cases or workloads. Columns: variants on targets. An empty place has no record.
    """
    import numpy as np

    _require_columns(frame, "target", "variant", "workload", "workload_args", "status")
    severity = {"skipped": 0, "ok": 1, "error": 2, "wrong": 3}
    worst: dict[tuple[str, tuple[str, str]], str] = {}
    shown = frame.to_dict("records")
    shared = _shared_arguments(shown) if len(shown) > 1 else {}
    for cell in shown:
        place = (_line_label(cell, shared), (cell["variant"], cell["target"]))
        worst[place] = max(worst.get(place, "skipped"), cell["status"], key=severity.__getitem__)
    lines = list(dict.fromkeys(line for line, _ in worst))
    columns = sorted({column for _, column in worst}, key=_column_order)
    if ax is None:
        ax = _new_axes(2.6 + 1.1 * len(columns), 1.2 + 0.24 * len(lines))[0]
    codes = np.full((len(lines), len(columns)), np.nan)
    for (line, column), status in worst.items():
        y, x = lines.index(line), columns.index(column)
        codes[y, x] = STATUSES.index(status)
        ax.text(x, y, STATUS_SIGNS[status], ha="center", va="center", color="white", fontsize=9)
    _draw_statuses(ax, codes)
    ax.set_yticks(range(len(lines)), lines)
    ax.set_xticks(range(len(columns)), [target for _, target in columns])
    ax.xaxis.tick_top()
    _name_variants(ax, [variant for variant, _ in columns])
    _plain(ax)
    _status_legend(ax)
    return ax


def _line_label(cell: dict[str, Any], shared: dict[str, Any]) -> str:
    arguments = cell["workload_args"]
    if "case" in arguments:
        return str(arguments["case"])
    workload = cell["workload"] if isinstance(cell["workload"], str) else "input"
    shown = ", ".join(
        f"{name}={value}"
        for name, value in arguments.items()
        if name not in shared and name != "wave_seed" and not isinstance(value, list)
    )
    return f"{workload}({shown})" if shown else workload


def _shared_arguments(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Workload arguments that all cells have alike: they tell no line from another."""
    first = cells[0]["workload_args"]
    return {
        name: value
        for name, value in first.items()
        if all(cell["workload_args"].get(name) == value for cell in cells)
    }


def _column_order(column: tuple[str, str]) -> tuple[str, int]:
    variant, target = column
    order = ("numba", "torch", "gfx950", "gfx942", "gfx90a", "hip", "cuda")
    return variant, order.index(target)


def _draw_statuses(ax: Axes, codes: np.ndarray) -> None:
    import numpy as np
    from matplotlib.colors import ListedColormap

    ax.pcolormesh(
        np.arange(codes.shape[1] + 1) - 0.5,
        np.arange(codes.shape[0] + 1) - 0.5,
        codes,
        cmap=ListedColormap([STATUS_COLOURS[status] for status in STATUSES]),
        vmin=-0.5,
        vmax=len(STATUSES) - 0.5,
        edgecolors="white",
        linewidth=1.5,
    )
    ax.set_xlim(-0.5, codes.shape[1] - 0.5)
    ax.set_ylim(codes.shape[0] - 0.5, -0.5)


def _name_variants(ax: Axes, variants: Sequence[str]) -> None:
    """Write each variant once, above its targets."""
    for variant in dict.fromkeys(variants):
        places = [x for x, name in enumerate(variants) if name == variant]
        ax.annotate(
            variant.replace("[", "\n[").replace(",", ",\n"),
            (sum(places) / len(places), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 22),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=9,
            fontweight="bold",
            color=INK,
        )


def _status_legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    ax.legend(
        handles=[
            Patch(color=STATUS_COLOURS[status], label=f"{STATUS_SIGNS[status]} {status}")
            for status in STATUSES
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=len(STATUSES),
        frameon=False,
        fontsize=9,
    )


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
    from matplotlib.ticker import LogLocator, NullLocator

    _require_columns(frame, "rows", "cols", "distribution", "kernel", time, "kind")
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
        ax = _new_axes(9.0, 1.4 + 0.34 * len(floor))[0]
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
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_yticks(range(len(floor)), [_shape_label(*shape) for shape in floor.index])
    ax.set_ylim(len(floor) - 0.4, -0.6)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_xlabel(f"time of a call (us, {time.removesuffix('_us')}, {kind})", fontsize=9, color=INK)
    _plain(ax, grid="x")
    _peers_legend(ax, colours, markers)
    return ax


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
        ["read each row once (floor)", *(_peer_label(name) for name in colours)],
        loc="upper center",
        bbox_to_anchor=(0.4, -0.09),
        ncols=4,
        frameon=False,
        fontsize=8.5,
    )


def trace_bins(trace: Any) -> pd.DataFrame:
    """Lay out the histograms of a trace, one line a bin that holds something.

    Parameters
    ----------
    trace : reference.vllm.Trace
        What `topk_lab.trace` returns.

    Returns
    -------
    pandas.DataFrame
        The columns of ``trace.frame()``, and ``bin`` and ``count``.
    """
    import numpy as np
    import pandas as pd

    steps = trace.frame()
    made = trace.steps[trace.steps["step"] >= 0]
    parts = []
    for line, record in zip(steps.to_dict("records"), made, strict=True):
        filled = np.flatnonzero(record["histogram"])
        parts.append(pd.DataFrame({**line, "bin": filled, "count": record["histogram"][filled]}))
    return pd.concat(parts, ignore_index=True) if parts else steps.assign(bin=0, count=0)


def trace_table(trace: Any) -> pd.DataFrame:
    """Lay out the steps of a trace for reading.

    Parameters
    ----------
    trace : reference.vllm.Trace
        What `topk_lab.trace` returns.

    Returns
    -------
    pandas.DataFrame
        As ``trace.frame()``, the prefix in hexadecimal digits.
    """
    frame = trace.frame()
    return frame.assign(prefix=[f"{prefix:#010x}" for prefix in frame["prefix"]])


def trace_histograms(
    frame: pd.DataFrame, *, block: str | None = None, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Draw the histogram of each step of one block, with the threshold bin.

    Parameters
    ----------
    frame : pandas.DataFrame
        As `trace_bins` returns it: ``block``, ``step``, ``bin``, ``count``, ``threshold_bin``,
        ``bin_size``, ``above``, ``fits``.
    block : str, optional
        "row", "split 0", ..., "merge". Default: the last one.
    axes : sequence of Axes, optional
        One for each step that the block made.

    Returns
    -------
    array of Axes
        Best bins left. The bins before the threshold bin, it, and those behind differ in colour.
    """
    import numpy as np

    _require_columns(
        frame, "block", "step", "bin", "count", "threshold_bin", "bin_size", "above", "fits"
    )
    block = frame["block"].iloc[-1] if block is None else block
    mine = frame[frame["block"] == block]
    _require_columns(mine, "step")
    steps = list(dict.fromkeys(mine["step"]))
    if axes is None:
        axes = _new_axes(8.5, 0.6 + 1.5 * len(steps), rows=len(steps))
    for ax, step in zip(axes, steps, strict=True):
        _draw_histogram(ax, mine[mine["step"] == step])
    axes[-1].set_xlabel("bin (best left)", fontsize=9, color=INK)
    _histogram_legend(axes[0])
    return np.asarray(axes)


def _draw_histogram(ax: Axes, bins: pd.DataFrame) -> None:
    import numpy as np

    first = bins.iloc[0]
    step, threshold = int(first["step"]), int(first["threshold_bin"])
    num_bins = LAST_STEP_BINS if step == len(STEP_TITLES) - 1 else STEP_BINS
    counts = np.zeros(num_bins)
    counts[bins["bin"].to_numpy()] = bins["count"]
    place = np.arange(num_bins)
    edges = np.arange(num_bins + 1) - 0.5
    for chosen, colour in ((place < threshold, BLUE), (place > threshold, GREY)):
        # 0.5 stands for "empty" on the logarithmic axis.
        ax.stairs(np.where(chosen & (counts > 0), counts, 0.5), edges, baseline=0.5, fill=True,
                  color=colour)  # fmt: skip
    # One bin of 2048 is thinner than a pixel: the threshold bin gets a line of its own.
    ax.vlines(threshold, 0.5, counts[threshold], color=VERMILION, linewidth=2.2)
    ax.plot(threshold, counts[threshold], "o", color=VERMILION, markersize=5)
    ax.set_yscale("log")
    ax.set_ylim(0.5, max(counts.max() * 3, 10))
    ax.set_xlim(-0.01 * num_bins, 1.01 * num_bins)
    ax.set_ylabel("logits", fontsize=9, color=INK)
    ax.set_title(STEP_TITLES[step], loc="left", fontsize=9.5, color=INK)
    ax.set_title(_threshold_text(first), loc="right", fontsize=9, color=VERMILION)
    _plain(ax, grid="y")


def _threshold_text(step: pd.Series) -> str:
    size, above = int(step["bin_size"]), int(step["above"])
    if int(step["step"]) == len(STEP_TITLES) - 1:
        after = "equal logits"
    else:
        after = "fits on chip" if step["fits"] else "refine"
    return f"threshold bin {int(step['threshold_bin'])}: {above} above, {size} in it, {after}"


def _histogram_legend(ax: Axes) -> None:
    from matplotlib.patches import Patch

    ax.figure.legend(
        handles=[
            Patch(color=BLUE, label="ordered before it"),
            Patch(color=VERMILION, label="threshold bin"),
            Patch(color=GREY, label="ordered behind it"),
        ],
        loc="outside upper right",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
