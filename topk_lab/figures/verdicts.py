"""Which claims do the records bear out, and which cells were exact?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topk_lab.claims import (
    NOT_REPRODUCED,
    OTHER_DIRECTION,
    OUTCOMES,
    PUBLISHED_ONLY,
    REPRODUCED,
    SAME_DIRECTION,
)
from topk_lab.figures.style import (
    AMBER,
    BLUE,
    GREY,
    INK,
    SKY,
    VERMILION,
    new_axes,
    plain,
    require_columns,
)
from topk_lab.results import STATUSES

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["claims_overview", "exactness_grid"]

OUTCOME_COLOURS = {
    REPRODUCED: BLUE,
    SAME_DIRECTION: SKY,
    OTHER_DIRECTION: AMBER,
    NOT_REPRODUCED: VERMILION,
    PUBLISHED_ONLY: GREY,
}
STATUS_COLOURS = {"ok": BLUE, "wrong": VERMILION, "error": "#8c3fa0", "skipped": GREY}
STATUS_SIGNS = {"ok": "✓", "wrong": "✗", "error": "!", "skipped": "-"}


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
    require_columns(frame, "source", "kind", "outcome")
    groups = list(dict.fromkeys(zip(frame["source"], frame["kind"], strict=True)))
    counts = frame.groupby(["source", "kind", "outcome"]).size()
    if ax is None:
        ax = new_axes(8.0, 0.9 + 0.34 * len(groups))[0]
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
    plain(ax)
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

    require_columns(frame, "target", "variant", "workload", "workload_args", "status")
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
        ax = new_axes(2.6 + 1.1 * len(columns), 1.2 + 0.24 * len(lines))[0]
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
    plain(ax)
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
