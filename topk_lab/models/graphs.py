"""What does a policy of splits cost that one captured graph has to serve every length with?

Two prices. The *choice*: another count might have been faster on this length. And *one graph for
all lengths*: a launch that holds the most splits starts blocks that return at once, and a merge
that finds nothing to merge. Both are read from records of ``split_policy``, where every count was
timed on every shape; what replays take on changing lengths is read from those of ``graph_replay``,
and what a graph saves at all from those of ``graph_calls``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import schedules
from topk_lab.models.bootstrap import drawn_medians, fit_line, interval
from topk_lab.models.pairs import side_by_side, timed_cells

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["graph_saving", "idle_costs", "replays", "split_map", "split_regret"]

FIXED = "fixed_"
MERGE, BLOCK = "a merge without work", "a block that returns at once"


def split_map(
    variant: str,
    num_rows: Iterable[int],
    lengths: Iterable[int],
    num_cols: int = schedules.K512_MAX_COLUMNS,
) -> pd.DataFrame:
    """Splits of a row under a variant's policy, on every shape: nothing is run.

    Parameters
    ----------
    variant : str
        As `topk_lab.schedules.parse_variant` reads it.
    num_rows, lengths : iterable of int
    num_cols : int, default 1048576
        Columns of the buffer that all lengths share.

    Returns
    -------
    pandas.DataFrame
        A row for each number of rows and length: ``variant``, ``num_rows``, ``length``;
        ``exact_width``, splits at launch if the buffer were as wide as the row is long;
        ``launched``, those of the shared buffer; ``active``, those that work on the row.

    Examples
    --------
    >>> from topk_lab.models import split_map
    >>> split_map("vllm_k512", [24], [16_384, 16_385])[["launched", "active"]].values.tolist()
    [[16, 1], [16, 8]]
    """
    import pandas as pd

    lengths = list(lengths)
    rows = []
    for rows_of_call in num_rows:
        launched = schedules.max_splits(variant, rows_of_call, num_cols)
        for length in lengths:
            rows.append(
                {
                    "variant": variant,
                    "num_rows": rows_of_call,
                    "length": length,
                    "exact_width": schedules.max_splits(variant, rows_of_call, length),
                    "launched": launched,
                    "active": schedules.active_splits(variant, rows_of_call, length, launched),
                }
            )
    return pd.DataFrame(rows)


def split_regret(records: pd.DataFrame) -> pd.DataFrame:
    """Hold the time of each policy against the best fixed split count, and say what the rest is.

    Parameters
    ----------
    records : pandas.DataFrame
        Times of ``split_policy``, as `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each shape and policy: ``policy``, ``workload``, ``num_rows``, ``length``,
        ``num_cols``; ``launched`` and ``active`` splits of a row; ``time_us``; ``best_us`` and
        ``best_splits`` of the fixed counts; ``regret``, time_us / best_us. Where the policy's own
        count was timed as a fixed one, ``fixed_us`` is its time, ``choice`` is fixed_us / best_us
        and ``one_graph`` is time_us / fixed_us, so that regret = choice * one_graph; NaN
        elsewhere. ``idle_merges`` (0 or 1) and ``retired_blocks`` that a call launches;
        ``time_samples``, ``fixed_samples``; ``kind``, ``device``.

    Raises
    ------
    ValueError
        No time of the experiment, or no shape with a policy and a fixed count in one run.

    Notes
    -----
    A fixed count is limited to one split for each 512 live columns, as every policy's is.
    """
    import pandas as pd

    timed = timed_cells(records, "split_policy")
    timed = timed.assign(length=[int(one["length"]) for one in timed["workload_args"]])
    rows = []
    for where, variants in side_by_side(timed, ("length",)):
        known = {name: schedules.parse_variant(name) for name in variants}
        # A fixed count and a policy of splits are comparable where nothing else differs.
        splits = {
            name: one.policy.splits
            for name, one in known.items()
            if one.name == "vllm_k512" and set(one.changes) <= {"splits"}
        }
        fixed = {
            int(value.removeprefix(FIXED)): variants[name]
            for name, value in splits.items()
            if value.startswith(FIXED)
        }
        if not fixed:
            continue
        best = min(fixed, key=lambda count: fixed[count]["median_us"])
        for policy in variants:
            if splits.get(policy, "").startswith(FIXED):
                continue
            cell = variants[policy]
            shape = (where["num_rows"], where["num_cols"])
            launched = schedules.max_splits(policy, *shape)
            active = schedules.active_splits(policy, shape[0], where["length"], launched)
            own = fixed.get(active) if policy in splits else None
            fixed_us = own["median_us"] if own else float("nan")
            best_us = fixed[best]["median_us"]
            rows.append(
                {
                    "policy": policy,
                    **{name: where[name] for name in ("workload", "num_rows", "length")},
                    "num_cols": where["num_cols"],
                    "launched": launched,
                    "active": active,
                    "time_us": cell["median_us"],
                    "best_us": best_us,
                    "best_splits": best,
                    "regret": cell["median_us"] / best_us,
                    "fixed_us": fixed_us,
                    "choice": fixed_us / best_us,
                    "one_graph": cell["median_us"] / fixed_us,
                    "idle_merges": int(launched > 1 and active == 1),
                    "retired_blocks": shape[0] * (launched - active),
                    "time_samples": cell["samples_us"],
                    "fixed_samples": own["samples_us"] if own else None,
                    "kind": where["kind"],
                    "device": where["device"],
                }
            )
    if not rows:
        raise ValueError("records must hold a policy and a fixed count in one run, got none")
    place = ["policy", "workload", "num_rows", "length"]
    return pd.DataFrame(rows).sort_values(place, kind="stable", ignore_index=True)


def idle_costs(regret: pd.DataFrame, *, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Fit what one graph for all lengths costs: idle merges and blocks that return at once.

    Parameters
    ----------
    regret : pandas.DataFrame
        As `split_regret` returns it, or some of its shapes; rows without ``fixed_us`` count for
        nothing.
    draws : int, default 2000
        Of the bootstrap over shapes and over the samples of both sides.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row for each policy and part: ``policy``, ``part``; ``cost`` with its 95 % interval
        ``low``, ``high``, in ``unit``; NaN where no shape, or every one in the same proportion,
        has the part. ``shapes``; of the fit ``r2`` (against no cost at all), ``rms_us``, and its
        greatest miss: ``worst_us`` (measured minus fitted), at ``worst_rows`` and
        ``worst_length``.

    Notes
    -----
    ``time_us - fixed_us = merge * idle_merges + block * retired_blocks``, by least squares without
    a constant. What else differs, such as where the working blocks come to lie, is what the fit
    misses.
    """
    import pandas as pd

    rows = []
    for policy, group in regret[regret["fixed_us"].notna()].groupby("policy", sort=True):
        parts = group[["idle_merges", "retired_blocks"]].to_numpy(float)
        extra = (group["time_us"] - group["fixed_us"]).to_numpy(float)
        rng = np.random.default_rng(seed)
        times, fixed = (
            drawn_medians(group[name], draws, rng) for name in ("time_samples", "fixed_samples")
        )
        costs = _least_squares(parts, extra)
        chosen = rng.integers(len(group), size=times.shape)
        drawn = np.array(
            [
                _least_squares(parts[mine], one[mine])
                for mine, one in zip(chosen, times - fixed, strict=True)
            ]
        )
        missed = extra - np.nansum(parts * costs, axis=1)
        worst = int(np.abs(missed).argmax())
        spread = (extra**2).sum()
        fit = {
            "shapes": len(group),
            "r2": float(1 - (missed**2).sum() / spread) if spread else float("nan"),
            "rms_us": float(np.sqrt((missed**2).mean())),
            "worst_us": float(missed[worst]),
            "worst_rows": int(group["num_rows"].iloc[worst]),
            "worst_length": int(group["length"].iloc[worst]),
        }
        for column, (part, unit, scale) in enumerate(((MERGE, "us", 1), (BLOCK, "ns", 1e3))):
            low, high = interval(drawn[:, column] * scale)
            cost = float(costs[column] * scale)
            found = {"cost": cost, "low": low, "high": high, "unit": unit}
            rows.append({"policy": policy, "part": part} | found | fit)
    return pd.DataFrame(rows)


def _least_squares(parts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Cost of each part; NaN for one that no value has, or that another can't be told from."""
    costs = np.full(parts.shape[1], np.nan)
    there = np.flatnonzero(parts.any(axis=0))
    if len(there) and np.linalg.matrix_rank(parts[:, there]) == len(there):
        costs[there] = np.linalg.lstsq(parts[:, there], values, rcond=None)[0]
    return costs


def replays(records: pd.DataFrame) -> pd.DataFrame:
    """Times of one captured graph on one length after another.

    Parameters
    ----------
    records : pandas.DataFrame
        Of ``graph_replay``, as `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each variant and replay: ``variant``, ``replay`` (from 0), ``length``,
        ``time_us``; ``launched`` splits of a row and ``active`` ones, as the variant's policy has
        them for the length; ``num_rows``, ``num_cols``, ``kind``, ``device``.

    Raises
    ------
    ValueError
        No time of the experiment, or another number of times than of lengths.
    """
    import pandas as pd

    rows = []
    last = timed_cells(records, "graph_replay").drop_duplicates(
        ["kind", "device", "variant", "num_rows", "num_cols", "cache"], keep="last"
    )
    for cell in last.to_dict("records"):
        variant, num_rows, num_cols = cell["variant"], int(cell["num_rows"]), int(cell["num_cols"])
        lengths, times = cell["counters"]["lengths"], cell["samples_us"]
        if len(lengths) != len(times):
            raise ValueError(
                f"records must hold a time a length, got {len(times)} of {variant} for "
                f"{len(lengths)} lengths"
            )
        launched = schedules.max_splits(variant, num_rows, num_cols)
        for replay, (length, time_us) in enumerate(zip(lengths, times, strict=True)):
            rows.append(
                {
                    "variant": variant,
                    "replay": replay,
                    "length": int(length),
                    "time_us": time_us,
                    "launched": launched,
                    "active": schedules.active_splits(variant, num_rows, int(length), launched),
                    "num_rows": num_rows,
                    "num_cols": num_cols,
                    "kind": cell["kind"],
                    "device": cell["device"],
                }
            )
    return pd.DataFrame(rows)


def graph_saving(records: pd.DataFrame, *, draws: int = 2000, seed: int = 0) -> pd.DataFrame:
    """Say what a captured graph saves: ``time of a call = kernel + launch / calls in the graph``.

    Parameters
    ----------
    records : pandas.DataFrame
        Times of ``graph_calls``, as `topk_lab.results.load` returns them.
    draws : int, default 2000
        Of the bootstrap over points and over the samples of each.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row for each variant and shape: ``variant``, ``num_rows``, ``num_cols``, ``cache``;
        ``eager_us``, the time of an eager call (NaN if none was timed); ``kernel_us`` and
        ``launch_us`` of the fit, each with ``_low`` and ``_high`` in place of ``_us``;
        ``residual``, the largest relative one; ``points``; ``kind``, ``device``.

    Raises
    ------
    ValueError
        No time of the experiment.
    """
    import pandas as pd

    place = ["kind", "device", "variant", "num_rows", "num_cols", "cache"]
    rows = []
    for key, cells in timed_cells(records, "graph_calls").groupby(place, sort=True):
        eager = cells[cells["mode"] == "eager"]["median_us"]
        points = cells[cells["mode"] == "graph"].drop_duplicates("calls_per_graph", keep="last")
        if len(points) < 3:
            continue
        x, y = 1 / points["calls_per_graph"].to_numpy(float), points["median_us"].to_numpy(float)
        (kernel,), (launch,) = fit_line(x[None], y[None])
        rng = np.random.default_rng(seed)
        chosen = rng.integers(len(points), size=(draws, len(points)))
        medians = drawn_medians(points["samples_us"], draws, rng)
        kernels, launches = fit_line(x[chosen], np.take_along_axis(medians, chosen, axis=1))
        fit: dict[str, Any] = {"kernel_us": kernel}
        fit["kernel_low"], fit["kernel_high"] = interval(kernels)
        fit["launch_us"] = launch
        fit["launch_low"], fit["launch_high"] = interval(launches)
        rows.append(
            dict(zip(place, key, strict=True))
            | {"eager_us": eager.iloc[-1] if len(eager) else float("nan")}
            | fit
            | {"residual": np.abs(kernel + launch * x - y).max() / y.min(), "points": len(points)}
        )
    if not rows:
        raise ValueError("records must hold graphs of three numbers of calls or more, got fewer")
    return pd.DataFrame(rows)
