"""What does a crowded bin cost, which change saves what, and which slots go wrong without it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from topk_lab.figures.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    MUTED,
    SKY,
    VERMILION,
    new_axes,
    new_panels,
    plain,
    require_columns,
)
from topk_lab.results import only_kind

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["ablation_waterfall", "ratio_heat_map", "slot_map"]

SLOTS_A_LINE = 64
SLOT_KINDS = {"finite": BLUE, "masked": SKY, "pad": VERMILION}
GREATEST_RATIO = 3.0  # where the colours end, and its inverse


def _share(fraction: float) -> str:
    return f"{100 * fraction:.4g}%"


def ratio_heat_map(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw times as multiples of a baseline's, a panel for each variant.

    Parameters
    ----------
    frame : pandas.DataFrame
        Some variants of `models.remedies`, one cache and number of rows: ``variant``,
        ``num_cols``, ``pattern``, ``fraction``, ``ratio``, ``kind``.
    axes : sequence of Axes, optional
        One for each variant, in their order in the frame.

    Returns
    -------
    array of Axes
        Columns are row lengths; lines are masks, the share that is -inf rising, below them what
        crowds without a mask. Blue is faster than the baseline, vermilion slower.

    Raises
    ------
    ValueError
        A missing column, several kinds, or several ratios in one place.
    """
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    require_columns(frame, "variant", "num_cols", "pattern", "fraction", "ratio", "kind")
    only_kind(frame)
    place = ["variant", "num_cols", "pattern", "fraction"]
    if frame.duplicated(place).any():
        raise ValueError("frame must hold one ratio for each variant, length and mask, got several")
    masked = frame["fraction"] > 0
    named = frame.assign(
        line=np.where(
            masked,
            frame["fraction"].map(_share) + " " + frame["pattern"],
            frame["pattern"].replace("none", "no mask"),
        ),
        order=np.where(masked | (frame["pattern"] == "none"), frame["fraction"].round(3), 2.0),
    ).replace({"line": {"100% all": "all masked"}})
    # A prefix masks a share to the nearest column, which is rounded here.
    lines = list(dict.fromkeys(named.sort_values(["order", "pattern"])["line"]))
    variants = list(dict.fromkeys(frame["variant"]))
    if axes is None:
        axes = new_panels(len(variants), 4, 0.6 + 0.27 * len(lines), sharey=True)
    colours = LinearSegmentedColormap.from_list("ratio", [BLUE, "white", VERMILION])
    norm = LogNorm(1 / GREATEST_RATIO, GREATEST_RATIO)
    for ax, variant in zip(axes, variants, strict=True):
        mine = named[named["variant"] == variant]
        table = mine.pivot(index="line", columns="num_cols", values="ratio").reindex(lines)
        ax.pcolormesh(
            np.arange(table.shape[1] + 1) - 0.5,
            np.arange(table.shape[0] + 1) - 0.5,
            table.to_numpy(),
            cmap=colours,
            norm=norm,
            edgecolors="white",
            linewidth=1.2,
        )
        for (y, x), ratio in np.ndenumerate(table.to_numpy()):
            if ratio == ratio:
                strong = not 0.55 < ratio < 1.8
                ax.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize=7.5,
                        color="white" if strong else INK)  # fmt: skip
        ax.set_xticks(range(table.shape[1]), [_columns(cols) for cols in table.columns])
        ax.set_yticks(range(len(lines)), lines)
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.xaxis.tick_top()
        ax.set_title(_title(variant), fontsize=9, color=INK, loc="left")
        plain(ax)
    return np.asarray(axes)


def _columns(num_cols: int) -> str:
    return f"{num_cols // 1024}Ki" if num_cols < 1 << 20 else f"{num_cols >> 20}Mi"


def _title(variant: str) -> str:
    return variant.replace("[", "\n[").replace(",", ",\n")


def ablation_waterfall(frame: pd.DataFrame, *, axes: Sequence[Axes] | None = None) -> np.ndarray:
    """Draw what each change saves, one after another, a panel for each input.

    Parameters
    ----------
    frame : pandas.DataFrame
        Of `models.ablation_steps`, inputs of one shape: ``num_rows``, ``num_cols``, ``pattern``,
        ``fraction``, ``step``, ``time_us``, ``change_us``, ``kind``.
    axes : sequence of Axes, optional
        One for each input, in their order in the frame.

    Returns
    -------
    array of Axes
        The first and the last bar stand on the ground; those between hang from one time to the
        next: blue where the step saves time, vermilion where it costs some.

    Raises
    ------
    ValueError
        A missing column, several kinds, or several shapes.
    """
    import numpy as np

    require_columns(
        frame, "num_rows", "num_cols", "pattern", "fraction", "step", "time_us", "change_us", "kind"
    )
    only_kind(frame)
    shapes = frame[["num_rows", "num_cols"]].drop_duplicates()
    if len(shapes) > 1:
        raise ValueError(f"frame must hold inputs of one shape, got {len(shapes)} shapes")
    inputs = list(frame.groupby(["pattern", "fraction"], sort=False))
    if axes is None:
        axes = new_panels(len(inputs), 3, 2.9, sharey=True)
    for ax, ((pattern, fraction), steps) in zip(axes, inputs, strict=True):
        steps = steps.reset_index(drop=True)
        for line, step in steps.iterrows():
            after, change = step["time_us"], step["change_us"]
            if line == 0:
                ax.barh(line, after, color=GREY, height=0.62)
                said = f"{after:.1f} us"
            else:
                colour = BLUE if change < 0 else VERMILION
                ax.barh(line, change, left=after - change, color=colour, height=0.62)
                said = f"{change:+.1f}"
                ax.plot(
                    [after - change] * 2, [line - 1, line], color=FAINT, linewidth=0.8, zorder=0
                )
            right = max(after, after - (change if change == change else 0))
            ax.text(right, line, f" {said}", va="center", fontsize=8, color=INK)
        last = len(steps)
        ax.barh(last, steps["time_us"].iloc[-1], color=GREY, height=0.62)
        ax.text(steps["time_us"].iloc[-1], last, f" {steps['time_us'].iloc[-1]:.1f} us",
                va="center", fontsize=8, color=INK)  # fmt: skip
        ax.set_yticks(range(last + 1), [*steps["step"], "all of these"])
        ax.set_ylim(last + 0.6, -0.6)
        ax.set_xlim(0, 1.22 * float(frame["time_us"].max()))
        ax.set_title(_input(pattern, fraction), fontsize=9, color=INK, loc="left")
        ax.set_xlabel("us a call", fontsize=8.5, color=MUTED)
        plain(ax, grid="x")
    return np.asarray(axes)


def _input(pattern: str, fraction: float) -> str:
    if fraction == 0:
        return "no mask" if pattern == "none" else pattern
    return "all masked" if fraction == 1 else f"{_share(fraction)} masked, {pattern}"


def slot_map(
    answers: Mapping[str, np.ndarray], row: np.ndarray, *, axes: Sequence[Axes] | None = None
) -> np.ndarray:
    """Draw what stands in each slot of an answer, an answer a panel.

    Parameters
    ----------
    answers : mapping of str to (k,) int array
        Title -> indices; -1 for a pad.
    row : (num_cols,) float array
        The logits that were selected from.
    axes : sequence of Axes, optional
        One for each answer.

    Returns
    -------
    array of Axes
        A cell a slot, line by line: a finite logit, a masked one, or a pad.

    Raises
    ------
    ValueError
        No answer, another shape, or an index outside the row.
    """
    import numpy as np
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    if not answers:
        raise ValueError("answers must hold at least one answer, got none")
    if axes is None:
        axes = new_axes(9.5, 0.9 + 1.15 * len(answers), rows=len(answers))
    for ax, (title, indices) in zip(axes, answers.items(), strict=True):
        if row.ndim != 1 or indices.ndim != 1 or not indices.size:
            raise ValueError(
                f"row and answers must have shapes (num_cols,) and (k,), got {row.shape} and "
                f"{indices.shape} for {title!r}"
            )
        if indices.max() >= row.size or indices.min() < -1:
            raise ValueError(f"answers must hold indices from -1 to {row.size - 1}, got {title!r}")
        codes = np.where(indices < 0, 2, np.isneginf(row[np.maximum(indices, 0)]).astype(int))
        lines = -(-codes.size // SLOTS_A_LINE)
        cells = np.full(lines * SLOTS_A_LINE, np.nan)
        cells[: codes.size] = codes
        ax.pcolormesh(
            cells.reshape(lines, SLOTS_A_LINE),
            cmap=ListedColormap(list(SLOT_KINDS.values())),
            vmin=-0.5,
            vmax=2.5,
            edgecolors="white",
            linewidth=0.6,
        )
        ax.set_ylim(lines, 0)
        ax.set_xticks([])
        ax.set_yticks(
            [line + 0.5 for line in range(0, lines, 2)],
            [str(SLOTS_A_LINE * line) for line in range(0, lines, 2)],
        )
        counts = ", ".join(
            f"{int((codes == code).sum())} {kind}" for code, kind in enumerate(SLOT_KINDS)
        )
        ax.set_title(f"{title}: {counts}", fontsize=9, color=INK, loc="left")
        plain(ax)
    axes[0].figure.legend(
        handles=[Patch(color=colour, label=kind) for kind, colour in SLOT_KINDS.items()],
        loc="outside upper right", ncols=3, frameon=False, fontsize=8.5,
    )  # fmt: skip
    return np.asarray(axes)
