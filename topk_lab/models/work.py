"""What does a block do, and what does each of its waves, when it has more threads?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["work_by_block_size"]

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
