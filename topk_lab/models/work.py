"""What is counted of a selection: work by the size of its blocks, bytes by what the rows hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topk_lab import schedules

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TRAFFIC_SLACK", "traffic", "work_by_block_size"]

TRAFFIC_SLACK = 0.05
"""What lengths and the ends of segments may add to the traffic that the algorithm states."""

# Name -> emulated counter, and what it is divided by.
_WORK = {
    "waves a block": ("waves", "blocks"),
    "row logits a lane": ("row_logits", "lanes"),
    "VALU instructions a wave": ("valu_instructions", "waves"),
    "global loads and stores a wave": ("global_instructions", "waves"),
    "LDS atomic lanes a wave": ("lds_atomic_lanes", "waves"),
    "lanes serialized a block": ("lds_atomic_serialized_lanes", "blocks"),
    "barriers of a wave": ("barrier_instructions", "waves"),
    "waits at barriers a block": ("barrier_instructions", "blocks"),
}
LANES = 64


def work_by_block_size(frame: pd.DataFrame) -> pd.DataFrame:
    """Lay out the emulated counters of one-block-a-row selections by their block size.

    Parameters
    ----------
    frame : pandas.DataFrame
        Records of the experiment ``profile``, as `topk_lab.results.load` returns them: of variants
        whose policy has a stash, on one target, shape and workload. Of a cell that was run more
        than once the last run counts.

    Returns
    -------
    pandas.DataFrame
        One row a variant and counter, by block size: ``variant``, ``block_size``, ``counter``,
        ``value``, ``kind``, ``target``.

    Raises
    ------
    ValueError
        No such record, or records of several targets, shapes or workloads.
    """
    import pandas as pd

    cells = frame[frame["policy"].map(lambda policy: "stash_kib" in policy).astype(bool)]
    place = ["target", "num_rows", "num_cols", "k", "workload"]
    if cells.empty or len(cells[place].drop_duplicates()) > 1:
        raise ValueError(
            "frame must hold profiles of stash policies on one target, shape and workload, got "
            f"{len(cells[place].drop_duplicates())} of them"
        )
    last = cells.sort_values("recorded", kind="stable").drop_duplicates("variant", keep="last")
    rows: list[dict[str, Any]] = []
    for cell in last.to_dict("records"):
        counts = {name: value[0] for name, value in cell["counters"].items() if _listed(value)}
        counts["row_logits"] = cell["num_rows"] * cell["num_cols"]
        counts["lanes"] = LANES * counts["waves"]
        rows += [
            {
                "variant": cell["variant"],
                "block_size": cell["policy"]["block_size"],
                "counter": name,
                "value": counts[counter] / counts[per],
                "kind": cell["kind"],
                "target": cell["target"],
            }
            for name, (counter, per) in _WORK.items()
        ]
    order = pd.DataFrame(rows)
    return order.sort_values("block_size", kind="stable").reset_index(drop=True)


def _listed(value: Any) -> bool:
    """Whether a counter has one number a launch."""
    return isinstance(value, list)


def traffic(profiles: pd.DataFrame) -> pd.DataFrame:
    """Say how many bytes a selection asks for, and how many lanes wait, on each workload.

    Parameters
    ----------
    profiles : pandas.DataFrame
        Records of ``profile``, as `topk_lab.results.load` returns them: emulated counts.

    Returns
    -------
    pandas.DataFrame
        A row for each target, shape, workload and variant: ``live_bytes`` of the rows; ``bytes``
        that all launches read and write, and ``reads``, the same as a multiple of live_bytes;
        ``bound``, what the delegate selection's should not pass, as such a multiple too (NaN for
        others, and for rows that are kept whole), and whether it is ``within``;
        ``serialized_lanes`` that find their address of LDS taken by an earlier lane of the wave;
        ``global_atomic_lanes``; ``kind``.

    Raises
    ------
    ValueError
        No profile.

    Notes
    -----
    The bound is ``(1 + 2 / s)`` times the live bytes, for a row is read once and its delegates, one
    for each segment of s columns, are written and read; and the segments that a block can keep;
    and `TRAFFIC_SLACK`. Whatever passes over delegates or segments again is beyond it.
    """
    import pandas as pd

    found = profiles[(profiles["experiment"] == "profile") & (profiles["status"] == "ok")]
    if found.empty:
        raise ValueError("profiles must hold records of profile, got none")
    place = ["target", "num_rows", "num_cols", "k", "workload", "variant"]
    last = found.sort_values("recorded", kind="stable").drop_duplicates(place, keep="last")
    rows = []
    for cell in last.to_dict("records"):
        counts = {name: sum(cell["counters"][name]) for name in _COUNTED}
        live = 4 * int(cell["num_rows"]) * int(cell["num_cols"])
        moved = counts["global_bytes_read"] + counts["global_bytes_written"]
        bound = _traffic_bound(cell) / live
        rows.append(
            {name: cell[name] for name in place}
            | {
                "live_bytes": live,
                "bytes": moved,
                "reads": moved / live,
                "bound": bound,
                "within": None if math.isnan(bound) else moved / live <= bound,
                "serialized_lanes": counts["lds_atomic_serialized_lanes"],
                "global_atomic_lanes": counts["global_atomic_lanes"],
                "kind": cell["kind"],
            }
        )
    return pd.DataFrame(rows).sort_values(place, ignore_index=True)


_COUNTED = (
    *("global_bytes_read", "global_bytes_written"),
    *("lds_atomic_serialized_lanes", "global_atomic_lanes"),
)


def _traffic_bound(cell: Mapping[str, Any]) -> float:
    """Bytes that a delegate selection should not pass; NaN where none is stated."""
    chosen = schedules.parse_variant(cell["variant"])
    if not isinstance(chosen.policy, schedules.DelegateChoice):
        return float("nan")
    shape = (int(cell["num_rows"]), int(cell["num_cols"]), int(cell["k"]))
    _, policy = schedules.delegate_policy(chosen, *shape)
    if shape[1] <= policy.whole_columns:
        return float("nan")
    live = 4 * shape[0] * shape[1]
    gathered = 4 * shape[0] * policy.segment_capacity * policy.segment
    return (1 + TRAFFIC_SLACK) * ((1 + 2 / policy.segment) * live + gathered)
