"""How near to one read is the selection on a CPU, and is it as fast as was wanted?

The frames come from records of ``cpu_selection``; times that are divided by one another come from
one run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from topk_lab.models.bootstrap import geomean
from topk_lab.models.pairs import side_by_side, timed_cells

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LONG_COLUMNS", "cpu_summary", "cpu_times", "cpu_workloads"]

EXPERIMENT = "cpu_selection"
SELECTION, FLOOR, NORMAL = "cpu_delegate", "read_amax", "normal"
CPU_PEERS = {"torch": "torch.topk", "numpy": "numpy.argpartition"}

LONG_COLUMNS = 16_384
"""Columns from which on a row is called long."""

LARGE_BYTES = 64 * 10**6  # of an input that no cache holds


def cpu_times(records: pd.DataFrame) -> pd.DataFrame:
    """Put the time of the selection on each cell beside the floor's and the others'.

    Parameters
    ----------
    records : pandas.DataFrame
        As `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row a cell, of the last run that has the selection: ``num_rows``, ``num_cols``, ``k``,
        ``threads``, ``workload``, ``input_bytes``, ``time_us``, ``floor_us``, ``over_floor``
        (time_us / floor_us), ``extra_bytes``, ``kind``, ``device``, ``run``; for torch and numpy
        ``..._us`` and ``..._speedup`` (that over time_us). NaN where another was not timed.

    Raises
    ------
    ValueError
        No time of the experiment, or none of the selection.
    """
    import pandas as pd

    timed = timed_cells(records, EXPERIMENT)
    timed = timed.assign(threads=[arguments["threads"] for arguments in timed["workload_args"]])
    rows = []
    for where, cells in side_by_side(timed, ["threads"], {SELECTION}.issubset):
        ours = cells[SELECTION]
        median_us = {variant: cell["median_us"] for variant, cell in cells.items()}
        time_us, floor_us = ours["median_us"], median_us.get(FLOOR, math.nan)
        row = {
            **{name: int(where[name]) for name in ("num_rows", "num_cols", "k", "threads")},
            "workload": where["workload"],
            "input_bytes": ours["counters"]["input_bytes"],
            "time_us": time_us,
            "floor_us": floor_us,
            "over_floor": time_us / floor_us,
            "extra_bytes": ours["counters"]["extra_bytes"],
            **{name: where[name] for name in ("kind", "device", "run")},
        }
        for name, variant in CPU_PEERS.items():
            peer_us = median_us.get(variant, math.nan)
            row |= {f"{name}_us": peer_us, f"{name}_speedup": peer_us / time_us}
        rows.append(row)
    if not rows:
        raise ValueError(f"records must hold times of {SELECTION}, got none")
    order = ["threads", "k", "workload", "num_rows", "num_cols"]
    return pd.DataFrame(rows).sort_values(order, ignore_index=True)


def cpu_workloads(times: pd.DataFrame) -> pd.DataFrame:
    """Hold the time on each workload against that on normal rows of the same run.

    Parameters
    ----------
    times : pandas.DataFrame
        As `cpu_times` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each workload but normal, shape, k and number of threads: these, ``time_us``,
        ``normal_us``, ``ratio``; the slowest first.
    """
    place = ["run", "num_rows", "num_cols", "k", "threads"]
    is_normal = times["workload"] == NORMAL
    normal = times[is_normal].set_index(place)["time_us"].rename("normal_us")
    beside = times[~is_normal].join(normal, on=place, how="inner")
    found = beside[[*place[1:], "workload", "time_us", "normal_us"]]
    found = found.assign(ratio=found["time_us"] / found["normal_us"])
    return found.sort_values("ratio", ascending=False, ignore_index=True)


def cpu_summary(times: pd.DataFrame) -> pd.DataFrame:
    """Condense the times of long normal rows, by threads and k.

    Parameters
    ----------
    times : pandas.DataFrame
        As `cpu_times` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each: ``threads``, ``k``, ``shapes``; ``torch_speedup`` (geometric mean),
        ``least_speedup``, ``numpy_speedup`` and ``numpy_shapes``; ``over_floor``, the greatest of
        inputs that no cache holds, and ``extra_share`` of memory, the greatest of these; NaN where
        there is none.
    """
    import pandas as pd

    long = times[(times["workload"] == NORMAL) & (times["num_cols"] >= LONG_COLUMNS)]
    rows = []
    for (threads, k), group in long.groupby(["threads", "k"]):
        large = group[group["input_bytes"] >= LARGE_BYTES]
        numpy = group["numpy_speedup"].dropna()
        rows.append(
            {
                "threads": threads,
                "k": k,
                "shapes": len(group),
                "torch_speedup": geomean(group["torch_speedup"]),
                "least_speedup": group["torch_speedup"].min(),
                "numpy_speedup": geomean(numpy) if len(numpy) else math.nan,
                "numpy_shapes": len(numpy),
                "over_floor": large["over_floor"].max(),
                "extra_share": (large["extra_bytes"] / large["input_bytes"]).max(),
            }
        )
    return pd.DataFrame(rows)
