"""What does a faster launch save in a served step, and how many winners does a full stash lose?

Arithmetic on published figures, and what records say of the same quantities.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topk_lab import results

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "StepShare",
    "expected_recall",
    "published_recall",
    "published_step_share",
    "published_times",
    "recorded_recall",
    "step_share",
]

FIGURES = "sglang_36004_figures"
KERNEL = "sglang_36004_kernel"
STASH = "stash_overflow_recall"
COMPRESSION = 4  # tokens of context a column
CAPACITY = "capacity_"
ORIGIN = ["kind", "origin", "hardware", "date"]


@dataclass(frozen=True)
class StepShare:
    """What a saving on each launch means for the whole step.

    Attributes
    ----------
    saved_per_launch_us, after_us : float
        What one launch saves, and the time that is left of it.
    speedup : float
        Time of a launch before / after.
    share : float
        Saved part of the step.
    throughput_gain : float
        Steps a second, relative: 1 / (1 - share) - 1.
    kernel_share : float
        Part of the step that the launches took before.
    greatest_gain : float
        The throughput gain if they took no time at all.
    """

    saved_per_launch_us: float
    after_us: float
    speedup: float
    share: float
    throughput_gain: float
    kernel_share: float
    greatest_gain: float


def step_share(launches: int, saved_us: float, step_us: float, before_us: float) -> StepShare:
    """Derive a launch's speed-up and the gain of the step from what a step saves.

    Parameters
    ----------
    launches : int
        Launches a step, all of one length.
    saved_us : float
        What they save together.
    step_us, before_us : float
        Times of a step and of one launch before the change.

    Returns
    -------
    StepShare

    Raises
    ------
    ValueError
        A value that is not above 0, launches that take longer than the step, or a saving that is
        not less than what they take.

    Examples
    --------
    >>> from topk_lab.models import step_share
    >>> round(step_share(30, 431, 21500, 36.8).speedup, 2)
    1.64
    """
    for name, value in (("launches", launches), ("saved_us", saved_us), ("before_us", before_us)):
        if not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    taken = launches * before_us
    if not saved_us < taken:
        raise ValueError(f"saved_us must be below launches * before_us = {taken}, got {saved_us}")
    if not taken < step_us:
        raise ValueError(f"step_us must be above launches * before_us = {taken}, got {step_us}")
    saved = saved_us / launches
    return StepShare(
        saved_per_launch_us=saved,
        after_us=before_us - saved,
        speedup=before_us / (before_us - saved),
        share=saved_us / step_us,
        throughput_gain=step_us / (step_us - saved_us) - 1,
        kernel_share=taken / step_us,
        greatest_gain=step_us / (step_us - taken) - 1,
    )


def published_step_share(tolerance: float = 0.05) -> pd.DataFrame:
    """Hold the published gains of SGLang pull request 36004 against its own profile.

    Parameters
    ----------
    tolerance : float, default 0.05
        Relative difference up to which two figures agree.

    Returns
    -------
    pandas.DataFrame
        One row a published figure: ``quantity``, ``condition``, ``unit``, ``published``; ``model``,
        what `step_share` derives from launches, saving, step and kernel time; ``difference``,
        published / model - 1; ``verdict``: agrees, above the model, below the model; and ``kind``
        (derived), ``origin``, ``hardware``, ``date``.

    Notes
    -----
    A profiled step saves the same whatever the concurrency, so the model has one gain where two
    were measured. The time of an output token falls by the saved share of the step.
    """
    import pandas as pd

    figures = results.load_published(FIGURES)
    values = figures.set_index("quantity")["value"]
    model = step_share(
        launches=int(values["launches_per_decode_step"]),
        saved_us=values["saved_per_decode_step"],
        step_us=values["decode_step"],
        before_us=values["kernel_time"].iloc[0],
    )
    derived = {
        "saved_share": 100 * model.share,
        "throughput_gain": 100 * model.throughput_gain,
        "tpot_gain_low": 100 * model.share,
        "tpot_gain_high": 100 * model.share,
    }
    kernel = results.load_published(KERNEL).sort_values("context").iloc[-1]
    rows = [
        {
            "quantity": "kernel_speedup",
            "condition": f"context {kernel['context']}",
            "unit": "x",
            "published": kernel["speedup"],
            "model": model.speedup,
        }
    ]
    rows += [
        {
            "quantity": line["quantity"],
            "condition": line["condition"],
            "unit": line["unit"],
            "published": line["value"],
            "model": derived[line["quantity"]],
        }
        for line in figures.to_dict("records")
        if line["quantity"] in derived
    ]
    frame = pd.DataFrame(rows)
    frame["difference"] = frame["published"] / frame["model"] - 1
    frame["verdict"] = [_side(difference, tolerance) for difference in frame["difference"]]
    return _with_origin(frame, figures, "derived")


def _side(difference: float, tolerance: float) -> str:
    if abs(difference) <= tolerance:
        return "agrees"
    return "above the model" if difference > 0 else "below the model"


def _with_origin(frame: pd.DataFrame, source: pd.DataFrame, kind: str) -> pd.DataFrame:
    first = source.iloc[0]
    return frame.assign(**{name: first[name] for name in ORIGIN} | {"kind": kind})


def published_times() -> pd.DataFrame:
    """Lay out the published times of SGLang pull request 36004 as points.

    Returns
    -------
    pandas.DataFrame
        One row a time: ``num_rows``, ``num_cols``, ``block_size``, ``time_us``, ``kind``,
        ``origin``, ``hardware``, ``date``.
    """
    figures = results.load_published(FIGURES)
    times = figures[figures["quantity"] == "kernel_time"]
    read = (
        times["condition"]
        .str.extract(
            r"batch (?P<num_rows>\d+) context (?P<context>\d+) (?P<block_size>\d+) threads"
        )
        .astype(int)
    )
    frame = read.assign(num_cols=read["context"] // COMPRESSION, time_us=times["value"])
    frame = frame[["num_rows", "num_cols", "block_size", "time_us"]].reset_index(drop=True)
    return _with_origin(frame, figures, times["kind"].iloc[0])


def expected_recall(k: int, above: int, population: int, capacity: int) -> float:
    """Recall of a selection that drops what its stash can't hold.

    Parameters
    ----------
    k : int
        Winners of the row.
    above : int
        Winners in bins above the threshold bin, which are never stashed.
    population : int
        Candidates in the threshold bin.
    capacity : int
        How many the stash holds: the first in the order of arrival.

    Returns
    -------
    float
        Expected part of the k winners that come back.

    Raises
    ------
    ValueError
        Counts that no row has.

    Notes
    -----
    Arrival doesn't depend on the value, so each of the other k - above winners is stashed with
    probability capacity / population. What is stashed is ordered exactly.

    Examples
    --------
    >>> from topk_lab.models import expected_recall
    >>> round(expected_recall(1024, 0, 16491, 5120), 4)
    0.3105
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if not 0 <= above <= k:
        raise ValueError(f"above must be from 0 to k = {k}, got {above}")
    if population < k - above:
        raise ValueError(f"population must be at least k - above = {k - above}, got {population}")
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0, got {capacity}")
    if capacity >= population:
        return 1.0
    return (above + (k - above) * capacity / population) / k


def published_recall() -> pd.DataFrame:
    """Lay out the recalls of a full stash that a NumPy model of the steps found.

    Returns
    -------
    pandas.DataFrame
        One row a workload, shape and capacity: ``distribution``, ``workload``, ``num_cols``, ``k``,
        ``population``, ``capacity``, ``overflow`` (drop), ``recall``, ``expected`` (NaN: the table
        does not say how many winners lie above the threshold bin), ``kind``, ``origin``,
        ``hardware``, ``date``.
    """
    table = results.load_published(STASH)
    capacities = [name for name in table if name.startswith(CAPACITY)]
    frame = table.melt(
        id_vars=["distribution", "workload", "num_cols", "k", "population"],
        value_vars=capacities,
        var_name="capacity",
        value_name="recall",
    )
    frame["capacity"] = frame["capacity"].str.removeprefix(CAPACITY).astype(int)
    frame["overflow"] = "drop"
    frame["expected"] = math.nan
    return _with_origin(frame, table, table["kind"].iloc[0])


def recorded_recall(records: pd.DataFrame) -> pd.DataFrame:
    """Lay out the recalls that records of ``exactness_under_overflow`` hold.

    Parameters
    ----------
    records : pandas.DataFrame
        As `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        One row a record: ``workload``, ``num_cols``, ``k``, ``capacity``, ``overflow``, ``recall``
        (mean over its rows), ``expected`` (by `expected_recall` from each row's own counts; NaN
        for the rescan), ``target``, ``kind``, ``hardware``.
    """
    import pandas as pd

    rows = []
    for cell in records.to_dict("records"):
        counters, overflow = cell["counters"], cell["policy"]["overflow"]
        capacity, k = int(counters["capacity"]), int(cell["k"])
        bins = zip(counters["above"], counters["bin_population"], strict=True)
        survivors = [expected_recall(k, above, population, capacity) for above, population in bins]
        rows.append(
            {
                "workload": cell["workload"],
                "num_cols": int(cell["num_cols"]),
                "k": k,
                "capacity": capacity,
                "overflow": overflow,
                "recall": counters["mean_recall"],
                "expected": statistics.fmean(survivors) if overflow == "drop" else math.nan,
                "target": cell["target"],
                "kind": cell["kind"],
                "hardware": cell["device"] if cell["kind"] == "measured" else cell["target"],
            }
        )
    return pd.DataFrame(rows)
