"""How does each step of a trace find the threshold bin?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from topk_lab import schedules
from topk_lab.figures.style import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    new_axes,
    plain,
    require_columns,
)
from topk_lab.keys import NUM_DELEGATE_PASSES, RANGE_BITS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["trace_bins", "trace_histograms", "trace_table"]

EQUAL = "equal logits"


class _Step(NamedTuple):
    """What a step of a lineage counts."""

    title: str
    num_bins: int
    best_bin: int  # the first or the last
    unless_it_fits: str  # what its threshold bin is
    if_it_fits: str = "fits on chip"
    counted: str = "logits"


VLLM_STEPS = (
    _Step("step 0: half key, upper 11 bits", 2048, 0, "refine"),
    _Step("step 1: float key, bits 31-21", 2048, 0, "refine"),
    _Step("step 2: float key, bits 20-10", 2048, 0, "refine"),
    _Step("step 3: float key, bits 9-0", 1024, 0, EQUAL),
)
STASH_PASSES = (
    _Step("pass 0: half key, upper 8 bits", 256, 255, "too many"),
    *(
        _Step(f"pass {number}: float key, bits {high}-{high - 7}", 256, 255, said)
        for number, high, said in (
            (1, 31, "too many"),
            (2, 23, "too many"),
            (3, 15, "too many"),
            (4, 7, EQUAL),
        )
    ),
)
SHARED_STEPS = (
    _Step("step 0: half key, upper 12 bits", 4096, 0, "read the row again", "fits in the list"),
    *(
        _Step(f"step {number}: {which} digit of the key in its bin", 4096, 0, said, "all wanted")
        for number, which, said in (
            (1, "first", "too many"),
            (2, "second", "too many"),
            (3, "third", EQUAL),
        )
    ),
)

# Groups of keys, delegates, items or kept logits: which of them a record does not say.
DELEGATE_PASSES = tuple(
    _Step(
        f"pass {number}: keys of a range, by their distance to its top",
        1 << RANGE_BITS,
        0,
        "more than are compared",
        "few enough to compare",
        "keys",
    )
    for number in range(NUM_DELEGATE_PASSES)
)


def _digit_passes(digit_bits: int) -> tuple[_Step, ...]:
    """What the passes of the AITER lineage count: `digit_bits` each, the last what is left."""
    edges = [*range(32, 0, -digit_bits), 0]
    return tuple(
        _Step(
            f"pass {number}: float key, bits {upper - 1}-{lower}",
            2 ** (upper - lower),
            0,
            "too many" if lower else EQUAL,
            "all wanted",
        )
        for number, (upper, lower) in enumerate(itertools.pairwise(edges))
    )


def _counted(policy: Any) -> tuple[_Step, ...]:
    """What each step of a policy's lineage counts."""
    if isinstance(policy, schedules.OneBlockPolicy):
        return _digit_passes(policy.digit_bits)
    if isinstance(policy, schedules.SharedHistogramPolicy):
        return SHARED_STEPS
    if isinstance(policy, schedules.DelegateChoice):
        return DELEGATE_PASSES
    return STASH_PASSES if isinstance(policy, schedules.StashPolicy) else VLLM_STEPS


def trace_bins(trace: Any) -> pd.DataFrame:
    """Lay out the histograms of a trace, one line a bin that holds something.

    Parameters
    ----------
    trace : reference.twins.Trace
        What `topk_lab.trace` returns.

    Returns
    -------
    pandas.DataFrame
        The columns of ``trace.frame()``, ``bin`` and ``count``; and of the step its ``title``,
        ``num_bins``, ``best_bin`` (the first or the last), ``unless_it_fits`` and ``if_it_fits``
        (what its threshold bin is then), ``counted`` (what the bins hold).
    """
    import numpy as np
    import pandas as pd

    counted = _counted(schedules.parse_variant(trace.variant).policy)
    steps = trace.frame()
    described = pd.DataFrame([counted[step] for step in steps["step"]], columns=_Step._fields)
    steps = pd.concat([steps, described], axis=1)
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
    trace : reference.twins.Trace
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
        ``bin_size``, ``above``, ``fits``, ``title``, ``num_bins``, ``best_bin``,
        ``unless_it_fits``, ``if_it_fits``, ``counted``.
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

    require_columns(
        frame, "block", "step", "bin", "count", "threshold_bin", "bin_size", "above", "fits"
    )
    require_columns(frame, *_Step._fields)
    block = frame["block"].iloc[-1] if block is None else block
    mine = frame[frame["block"] == block]
    require_columns(mine, "step")
    steps = list(dict.fromkeys(mine["step"]))
    if axes is None:
        axes = new_axes(8.5, 0.6 + 1.5 * len(steps), rows=len(steps))
    for ax, step in zip(axes, steps, strict=True):
        _draw_histogram(ax, mine[mine["step"] == step])
    axes[-1].set_xlabel("bin (best left)", fontsize=9, color=INK)
    _histogram_legend(axes[0])
    return np.asarray(axes)


def _draw_histogram(ax: Axes, bins: pd.DataFrame) -> None:
    import numpy as np

    first = bins.iloc[0]
    num_bins, best = int(first["num_bins"]), int(first["best_bin"])
    threshold = int(first["threshold_bin"])
    counts = np.zeros(num_bins)
    counts[bins["bin"].to_numpy()] = bins["count"]
    place = np.arange(num_bins)
    edges = np.arange(num_bins + 1) - 0.5
    better, worse = (BLUE, GREY) if best == 0 else (GREY, BLUE)
    for chosen, colour in ((place < threshold, better), (place > threshold, worse)):
        # 0.5 stands for "empty" on the logarithmic axis.
        ax.stairs(np.where(chosen & (counts > 0), counts, 0.5), edges, baseline=0.5, fill=True,
                  color=colour)  # fmt: skip
    # One bin of many is thinner than a pixel: the threshold bin gets a line of its own.
    ax.vlines(threshold, 0.5, counts[threshold], color=VERMILION, linewidth=2.2)
    ax.plot(threshold, counts[threshold], "o", color=VERMILION, markersize=5)
    ax.set_yscale("log")
    ax.set_ylim(0.5, max(counts.max() * 3, 10))
    ends = (-0.01 * num_bins, 1.01 * num_bins)
    ax.set_xlim(ends if best == 0 else ends[::-1])
    ax.set_ylabel(first["counted"], fontsize=9, color=INK)
    ax.set_title(first["title"], loc="left", fontsize=9.5, color=INK)
    ax.set_title(_threshold_text(first), loc="right", fontsize=9, color=VERMILION)
    plain(ax, grid="y")


def _threshold_text(step: pd.Series) -> str:
    size, above = int(step["bin_size"]), int(step["above"])
    after = step["unless_it_fits"]
    if step["fits"] and after != EQUAL:
        after = step["if_it_fits"]
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
