"""Where does the time of the delegate selection go, and what does it depend on?

Every function takes the records of one of the experiments ``delegate_...``, or a table made of
them. Times that are divided by one another come from one run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from topk_lab.models.bootstrap import drawn_medians, fit_line, interval
from topk_lab.models.pairs import side_by_side, timed_cells
from topk_lab.models.times import is_read

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "LARGE_BYTES",
    "adversarial_ratios",
    "growth_slopes",
    "growth_times",
    "member_regret",
    "time_parts",
]

NORMAL = "normal"
DELEGATE = "delegate"

LARGE_BYTES = 64 * 10**6
"""Bytes of a call from which its time should grow as the floor's: more than an H200's L2 holds."""

READ, BEYOND, LAUNCH, FINISH = (
    "read at the floor",
    "first launch beyond the floor",
    "a second launch (published)",
    "choose, gather and finish",
)


def time_parts(shapes: pd.DataFrame) -> pd.DataFrame:
    """Cut the time of a call into a read, what the launches add to it, and the rest.

    Parameters
    ----------
    shapes : pandas.DataFrame
        As `topk_lab.bench.ratios.against_peers` returns it.

    Returns
    -------
    pandas.DataFrame
        Rows of `shapes` with ``part`` and ``part_us``, which add up to ``time_us``: a read at the
        floor; what the first launch takes beyond it; a second launch, as an empty kernel's was
        published; and what is left, to choose segments, gather and finish. Rows that are kept
        whole, or reduced by the block that selects from them, have no first launch of their own;
        where no launch is published, it is in what is left.
    """
    import pandas as pd

    parts = []
    for number, shape in enumerate(shapes.to_dict("records")):
        two_launches = not math.isnan(shape["reduce_us"])
        launch_us = 0.0 if math.isnan(shape["launch_us"]) else shape["launch_us"]
        spent = {
            READ: shape["floor_us"],
            BEYOND: shape["reduce_us"] - shape["floor_us"] if two_launches else 0.0,
            LAUNCH: launch_us if two_launches else 0.0,
        }
        spent[FINISH] = shape["time_us"] - sum(spent.values())
        parts += [
            {"number": number, "part": part, "part_us": part_us} for part, part_us in spent.items()
        ]
    found = pd.DataFrame(parts, columns=["number", "part", "part_us"])
    placed = shapes.reset_index(drop=True)
    return placed.merge(found, left_index=True, right_on="number").drop(columns="number")


def adversarial_ratios(records: pd.DataFrame) -> pd.DataFrame:
    """Hold the time on each workload against that on normal rows of the same shape and run.

    Parameters
    ----------
    records : pandas.DataFrame
        Times of ``delegate_rows``, as `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each shape, workload and variant: ``num_rows``, ``num_cols``, ``k``,
        ``workload``, ``variant``, ``time_us``, ``normal_us``, ``ratio``, ``kind``, ``device``.

    Raises
    ------
    ValueError
        No time of the experiment, or none beside a normal row's.
    """
    import pandas as pd

    timed = timed_cells(records, "delegate_rows")
    place = ["kind", "device", "num_rows", "num_cols", "k", "variant", "run"]
    normal = timed[timed["workload"] == NORMAL].drop_duplicates(place, keep="last")
    beside = timed.merge(normal[[*place, "median_us"]], on=place, suffixes=("", "_normal"))
    if beside.empty:
        raise ValueError("records must hold normal rows beside others in one run, got none")
    last = beside.drop_duplicates([*place[:-1], "workload"], keep="last")
    found = pd.DataFrame(
        {
            **{name: last[name] for name in ("num_rows", "num_cols", "k", "workload", "variant")},
            "time_us": last["median_us"],
            "normal_us": last["median_us_normal"],
            "ratio": last["median_us"] / last["median_us_normal"],
            "kind": last["kind"],
            "device": last["device"],
        }
    )
    order = ["num_cols", "num_rows", "variant", "workload"]
    return found.sort_values(order, ignore_index=True)


def growth_times(records: pd.DataFrame, variant: str = DELEGATE) -> pd.DataFrame:
    """Put the time of each call of ``delegate_growth`` beside the floor, with its bytes.

    Parameters
    ----------
    records : pandas.DataFrame
        As `topk_lab.results.load` returns them.
    variant : str, default "delegate"

    Returns
    -------
    pandas.DataFrame
        A row for each shape and line, the variant's and ``floor``: ``num_rows``, ``num_cols``,
        ``input_bytes``, ``line``, ``ran`` (the variant, or the best read kernel), ``time_us``,
        ``bytes_per_s``, ``samples_us``, ``kind``, ``device``. Of several runs, the last that holds
        both.

    Raises
    ------
    ValueError
        No time of the experiment, or no run with both.
    """
    import pandas as pd

    timed = timed_cells(records, "delegate_growth")
    rows = []
    for where, cells in side_by_side(
        timed, counts=lambda names: variant in names and any(map(is_read, names))
    ):
        floor = min(filter(is_read, cells), key=lambda name: cells[name]["median_us"])
        for line, name in (("floor", floor), (variant, variant)):
            cell = cells[name]
            input_bytes = cell["counters"]["input_bytes"]
            rows.append(
                {
                    "num_rows": int(where["num_rows"]),
                    "num_cols": int(where["num_cols"]),
                    "input_bytes": input_bytes,
                    "line": line,
                    "ran": name,
                    "time_us": cell["median_us"],
                    "bytes_per_s": 1e6 * input_bytes / cell["median_us"],
                    "samples_us": cell["samples_us"],
                    "kind": where["kind"],
                    "device": where["device"],
                }
            )
    if not rows:
        raise ValueError(f"records must hold {variant} beside a read kernel in one run, got none")
    return pd.DataFrame(rows).sort_values(["num_rows", "line", "num_cols"], ignore_index=True)


def growth_slopes(
    times: pd.DataFrame, least_bytes: int = LARGE_BYTES, *, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Fit ``time = fixed + slope * bytes`` to long calls, for a variant and for the floor.

    Parameters
    ----------
    times : pandas.DataFrame
        As `growth_times` returns them, of one variant.
    least_bytes : int, default 64000000
        Calls that read less are left out.
    draws : int, default 2000
        Of the bootstrap over the samples of each call.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row for each number of rows with two such calls or more: ``num_rows``, ``points``;
        ``slope_us`` and ``floor_slope_us`` of a GB (10^9 bytes), ``fixed_us`` and
        ``floor_fixed_us``; ``ratio`` of the slopes with its 95 % interval ``low``, ``high``;
        ``kind``, ``device``.

    Raises
    ------
    ValueError
        Several variants, or no number of rows with two calls.
    """
    import pandas as pd

    lines = sorted(set(times["line"]) - {"floor"})
    if len(lines) != 1:
        raise ValueError(f"times must hold one variant beside the floor, got {', '.join(lines)}")
    rows = []
    for num_rows, group in times[times["input_bytes"] >= least_bytes].groupby("num_rows"):
        ours, floor = (
            group[group["line"] == line].sort_values("input_bytes") for line in (*lines, "floor")
        )
        if len(ours) < 2:
            continue
        gigabytes = ours["input_bytes"].to_numpy(float)[None] / 1e9
        rng = np.random.default_rng(seed)
        fits, drawn = [], []
        for line in (ours, floor):
            fits.append(fit_line(gigabytes, line["time_us"].to_numpy(float)[None]))
            medians = drawn_medians(line["samples_us"], draws, rng)
            drawn.append(fit_line(np.broadcast_to(gigabytes, medians.shape), medians)[1])
        (fixed, slope), (floor_fixed, floor_slope) = fits
        low, high = interval(drawn[0] / drawn[1])
        rows.append(
            {
                "num_rows": num_rows,
                "points": len(ours),
                "slope_us": slope[0],
                "floor_slope_us": floor_slope[0],
                "fixed_us": fixed[0],
                "floor_fixed_us": floor_fixed[0],
                "ratio": slope[0] / floor_slope[0],
                "low": low,
                "high": high,
                "kind": ours["kind"].iloc[0],
                "device": ours["device"].iloc[0],
            }
        )
    if not rows:
        raise ValueError(f"times must hold two calls of {least_bytes} bytes or more, got fewer")
    return pd.DataFrame(rows)


def member_regret(records: pd.DataFrame) -> pd.DataFrame:
    """Hold the time of each member, and of the choice by shape, against the best on each shape.

    Parameters
    ----------
    records : pandas.DataFrame
        Times of ``delegate_members``, as `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each shape and variant: ``policy`` (the variant), ``num_rows``, ``length`` (the
        columns), ``member`` that ran, ``time_us``, ``best``, the fastest member by name,
        ``best_us``, ``regret`` (time_us / best_us), ``kind``, ``device``. All of one run, the last.

    Raises
    ------
    ValueError
        No time of the experiment.
    """
    import pandas as pd

    rows = []
    for where, cells in side_by_side(timed_cells(records, "delegate_members")):
        named = {name: cell for name, cell in cells.items() if "[member=" in name} or cells
        best = min(named, key=lambda name: named[name]["median_us"])
        best_us = named[best]["median_us"]
        rows += [
            {
                "policy": name,
                "num_rows": int(where["num_rows"]),
                "length": int(where["num_cols"]),
                "member": cell["counters"]["member"],
                "time_us": cell["median_us"],
                "best": named[best]["counters"]["member"],
                "best_us": best_us,
                "regret": cell["median_us"] / best_us,
                "kind": where["kind"],
                "device": where["device"],
            }
            for name, cell in cells.items()
        ]
    return pd.DataFrame(rows).sort_values(["policy", "num_rows", "length"], ignore_index=True)
