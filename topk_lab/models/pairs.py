"""How much faster is one variant than another over many cells, and where is it slower?

Both times of a pair come from one run. Of a cell that was run more than once the last pair counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab import results, schedules
from topk_lab.models.bootstrap import drawn_medians, geomean, geomean_interval
from topk_lab.models.occupancy import DEVICES, resident_blocks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "LOSING",
    "agreement",
    "distribution",
    "distribution_by_axis",
    "losing_cells",
    "losses_by_kernels",
    "paired",
    "published_distribution",
    "side_by_side",
    "timed_cells",
]

LOSING = 0.98
"""Speed-up below which a cell is slower by more than what timing leaves open."""

PLACE = (
    *("experiment", "kind", "target", "device", "num_rows", "num_cols", "k", "next_n"),
    *("workload", "seed", "mode", "cache", "calls_per_graph"),
)
SHAPE = ("kind", "device", "num_rows", "num_cols", "k", "workload", "cache")
AXES = ("concurrency", "speculative_tokens", "context", "compression_ratio", "logits")
CASE = ("context", "compression_ratio", "concurrency")
SIDES = ("baseline", "candidate")
RAGGED = "ragged"  # of the matrix: sequence b of B is as long as (b + 1) / B of the context


def timed_cells(records: pd.DataFrame, experiment: str) -> pd.DataFrame:
    """Cells of an experiment that have a time, the last recorded last.

    Parameters
    ----------
    records : pandas.DataFrame
        As `topk_lab.results.load` returns them.
    experiment : str

    Returns
    -------
    pandas.DataFrame

    Raises
    ------
    ValueError
        No such cell.
    """
    timed = records[
        (records["experiment"] == experiment)
        & (records["status"] == "ok")
        & records["median_us"].notna()
    ]
    if timed.empty:
        raise ValueError(f"records must hold times of {experiment}, got none")
    return timed.sort_values("recorded", kind="stable")


def side_by_side(
    timed: pd.DataFrame,
    more: Sequence[str] = (),
    counts: Callable[[Set[str]], bool] = lambda names: True,
) -> Iterator[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    """Each shape with the variants that were timed on it in one run, the last.

    Parameters
    ----------
    timed : pandas.DataFrame
        As `timed_cells` returns them.
    more : sequence of str
        Columns that tell shapes apart beside `SHAPE`.
    counts : callable
        Whether a run counts, by the names of the variants that it timed on a shape. Default: any.

    Yields
    ------
    dict, dict
        Where: ``run``, ``recorded`` and the columns; and each variant's cell by its name.
    """
    names = ("recorded", "run", *SHAPE, *more)
    found: dict[tuple, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    for key, cells in timed.groupby(list(names), sort=False, dropna=False):
        variants = {cell["variant"]: cell for cell in cells.to_dict("records")}
        if counts(variants.keys()):
            found[key[2:]] = dict(zip(names, key, strict=True)), variants
    yield from found.values()


def paired(records: pd.DataFrame, baseline: str, candidate: str) -> pd.DataFrame:
    """Put the times of two variants on the same cell in the same run side by side.

    Parameters
    ----------
    records : pandas.DataFrame
        As `topk_lab.results.load` returns them, of one experiment or several.
    baseline, candidate : str
        Variants as the records spell them.

    Returns
    -------
    pandas.DataFrame
        A row a cell: ``experiment``, ``kind``, ``target``, ``device``, ``num_rows``, ``num_cols``,
        ``k``, ``next_n``, ``workload``, ``seed``, ``mode``, ``cache``, ``calls_per_graph``; a
        column for each argument of the workloads; ``baseline`` and ``candidate``;
        ``baseline_us``, ``candidate_us``, ``speedup`` (baseline / candidate);
        ``baseline_samples``, ``candidate_samples``, ``baseline_counters``,
        ``candidate_counters``; ``run``, ``recorded``. In the order of the records.

    Raises
    ------
    ValueError
        No pair at all, or an argument of a workload that is named as a column.
    """
    import pandas as pd

    timed = records[(records["status"] == "ok") & records["median_us"].notna()]
    wanted = timed[timed["variant"].isin([baseline, candidate])].reset_index(drop=True)
    arguments = pd.DataFrame(list(wanted["workload_args"]), index=wanted.index)
    taken = sorted(set(arguments) & set(wanted))
    if taken:
        raise ValueError(f"records must name no argument as a column, got {', '.join(taken)}")
    cells = wanted.join(arguments)
    place = [*PLACE, *arguments.columns]
    values = {"median_us": "us", "samples_us": "samples", "counters": "counters"}
    halves = []
    for side, variant in zip(SIDES, (baseline, candidate), strict=True):
        named = {column: f"{side}_{name}" for column, name in values.items()}
        mine = cells[cells["variant"] == variant]
        mine = mine.drop_duplicates(["run", "recorded", *place], keep="last")
        halves.append(mine[[*place, "run", "recorded", *values]].rename(columns=named))
    pairs = halves[0].merge(halves[1], on=[*place, "run", "recorded"])
    if pairs.empty:
        raise ValueError(
            f"records must hold times of baseline {baseline!r} and candidate {candidate!r} on one "
            f"cell in one run, got {len(halves[0])} and {len(halves[1])} that pair with none"
        )
    last = pairs.sort_values("recorded", kind="stable").drop_duplicates(place, keep="last")
    last = last.sort_index().assign(
        baseline=baseline,
        candidate=candidate,
        speedup=last["baseline_us"] / last["candidate_us"],
    )
    shown = [f"{side}_{name}" for name in values.values() for side in SIDES]
    columns = [*place, *SIDES, *shown[:2], "speedup", *shown[2:], "run", "recorded"]
    return last[columns].reset_index(drop=True)


def distribution(
    pairs: pd.DataFrame,
    by: Sequence[str] = ("buffer", "cache"),
    *,
    draws: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """Summarize speed-ups, with what a mean alone would hide.

    Parameters
    ----------
    pairs : pandas.DataFrame
        As `paired` returns them, of one pair of variants.
    by : sequence of str
        Columns that tell groups apart; none for one group.
    draws : int, default 500
        Of the bootstrap over cells and over the samples of both sides.
    seed : int, default 0

    Returns
    -------
    pandas.DataFrame
        A row a group: the columns of `by`; ``cases``; ``geomean`` with its 95 % interval ``low``,
        ``high``; ``median``, ``least``, ``greatest``; ``slower``, the cells with a speed-up below
        1, and ``losing``, those below `LOSING`; ``kind``, ``device``.

    Raises
    ------
    ValueError
        No pair, no such column, or several kinds, devices or pairs of variants.
    """
    import pandas as pd

    _one_of_each(pairs, by)
    rows = []
    for key, group in pairs.groupby(list(by), sort=True) if by else [((), pairs)]:
        rng = np.random.default_rng(seed)
        before, after = (drawn_medians(group[f"{side}_samples"], draws, rng) for side in SIDES)
        low, high = geomean_interval(before / after, rng)
        ratios = group["speedup"]
        rows.append(
            dict(zip(by, key, strict=True))
            | {
                "cases": len(group),
                "geomean": geomean(ratios),
                "low": low,
                "high": high,
                "median": float(ratios.median()),
                "least": float(ratios.min()),
                "greatest": float(ratios.max()),
                "slower": int((ratios < 1).sum()),
                "losing": int((ratios < LOSING).sum()),
            }
        )
    first = pairs.iloc[0]
    return pd.DataFrame(rows).assign(kind=first["kind"], device=first["device"])


def _one_of_each(pairs: pd.DataFrame, by: Sequence[str] = ()) -> None:
    missing = [name for name in by if name not in pairs]
    if missing or pairs.empty:
        raise ValueError(
            f"pairs must hold cells with columns {', '.join(by)}, "
            f"got {len(pairs)} without {', '.join(missing) or 'none missing'}"
        )
    for name in ("kind", "device", *SIDES):
        found = sorted(set(pairs[name]))
        if len(found) != 1:
            raise ValueError(f"pairs must hold one {name}, got {', '.join(found)}")


def distribution_by_axis(
    pairs: pd.DataFrame,
    axes: Sequence[str] = AXES,
    by: Sequence[str] = ("buffer", "cache"),
    *,
    draws: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """Summarize speed-ups for each value of each axis, over all others.

    Parameters
    ----------
    pairs : pandas.DataFrame
        As for `distribution`.
    axes : sequence of str
        Columns of `pairs`; default: the axes of ``vllm_matrix``.
    by, draws, seed
        As for `distribution`.

    Returns
    -------
    pandas.DataFrame
        As `distribution` returns it, with ``axis`` and ``value`` before it.

    Raises
    ------
    ValueError
        As `distribution`.
    """
    import pandas as pd

    tables = []
    for axis in axes:
        found = distribution(pairs, [axis, *by], draws=draws, seed=seed)
        tables.append(found.rename(columns={axis: "value"}).assign(axis=axis))
    found = pd.concat([table.astype({"value": object}) for table in tables], ignore_index=True)
    return found[["axis", "value", *(name for name in found if name not in ("axis", "value"))]]


def published_distribution() -> pd.DataFrame:
    """What vLLM #56743 publishes of its speed-ups, in the columns of `distribution`.

    Returns
    -------
    pandas.DataFrame
        A row for each of ``warm``, ``pressure_256MiB`` and ``gpu_trace`` (profiled pairs) in
        ``cache``: ``cases``, ``geomean``, ``median``, ``least``, ``greatest``, ``slower``,
        ``kind``, ``hardware``. What is not published is NaN.
    """
    table = results.load_published("vllm_56743_summary")
    speedups = table[table["condition"].isin(["warm", "pressure_256MiB", "gpu_trace"])]
    wide = speedups.pivot(index="condition", columns="statistic", values="value")
    names = {"min": "least", "max": "greatest"}
    wide = wide.rename(columns=names)[["geomean", "median", "least", "greatest", "slower"]]
    wide.insert(0, "cases", speedups.groupby("condition")["cases"].first().astype(int))
    first = table.iloc[0]
    found = wide.reindex(dict.fromkeys(speedups["condition"])).rename_axis("cache").reset_index()
    found.columns.name = None
    return found.assign(kind=first["kind"], hardware=first["hardware"])


def losing_cells(pairs: pd.DataFrame, below: float = 1.0) -> pd.DataFrame:
    """List the cells where the candidate is slower, worst first, with what ran on either side.

    Parameters
    ----------
    pairs : pandas.DataFrame
        Of ``vllm_matrix``, as `paired` returns them.
    below : float, default 1
        Speed-ups below this are losing.

    Returns
    -------
    pandas.DataFrame
        Rows of `pairs` with these columns more: ``length``, the live columns of the longest
        sequence (its last token, rounded down); and for either side ``_threads`` of a block,
        ``_launched`` splits a row, ``_active`` splits of the longest sequence, ``_blocks`` that
        work on all rows, ``_resident``, as many blocks as the device holds at once at most (by its
        threads; NaN for a device that `DEVICES` doesn't list), ``_rounds`` of resident blocks, and
        ``_kernels``, the same in words.

    Raises
    ------
    ValueError
        Cells without the columns of the matrix.
    """
    missing = [name for name in CASE if name not in pairs]
    if missing:
        raise ValueError(f"pairs must be of vllm_matrix, got no column {', '.join(missing)}")
    lost = pairs[pairs["speedup"] < below].sort_values("speedup", kind="stable")
    lost = lost.reset_index(drop=True)
    cells = lost.to_dict("records")
    lost = lost.assign(length=[max(_lengths(cell)) for cell in cells])
    for side in SIDES:
        ran = [_kernels(cell, cell[side]) for cell in cells]
        names = ("threads", "launched", "active", "blocks", "resident", "rounds", "kernels")
        lost = lost.assign(**{f"{side}_{name}": [one[name] for one in ran] for name in names})
    return lost


def _lengths(cell: dict[str, Any]) -> list[int]:
    """Live columns of each sequence of a cell of the matrix; its tokens differ by one at most."""
    batch = int(cell["concurrency"])
    whole = int(cell["context"])
    of = range(1, batch + 1) if cell.get("buffer") == RAGGED else [batch] * batch
    return [whole * part // batch // int(cell["compression_ratio"]) for part in of]


def _kernels(cell: dict[str, Any], variant: str) -> dict[str, Any]:
    """What a variant launches on a cell of the matrix, and how many blocks of it work."""
    policy = schedules.parse_variant(variant).policy
    num_rows, num_cols = int(cell["num_rows"]), int(cell["num_cols"])
    launched = schedules.max_splits(variant, num_rows, num_cols)
    lengths = _lengths(cell)
    active = [schedules.active_splits(variant, num_rows, one, launched) for one in lengths]
    blocks = sum(active) * num_rows // len(active)
    threads = policy.block_size
    resident = next(
        (
            resident_blocks({}, threads, 0, limits).resident_blocks
            for limits in DEVICES.values()
            if limits.name == cell["device"]
        ),
        float("nan"),
    )
    words = f"{max(active)} of {launched} blocks of {threads} a row"
    if launched == 1:
        words = f"a block of {threads} a row"
        if (
            getattr(policy, "splits", "") == "generic"
            and num_cols < schedules.GENERIC_RANK_COUNT_COLUMNS
        ):
            words += ", final items ranked"
    return {
        "threads": threads,
        "launched": launched,
        "active": max(active),
        "blocks": blocks,
        "resident": resident,
        "rounds": blocks / resident,
        "kernels": words,
    }


def losses_by_kernels(lost: pd.DataFrame) -> pd.DataFrame:
    """Count losing cells by what ran on either side: where they lie, and why.

    Parameters
    ----------
    lost : pandas.DataFrame
        As `losing_cells` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each ``buffer``, ``baseline_kernels`` and ``candidate_kernels``, most cells first:
        ``cells``; ``least``, the worst speed-up; the ranges ``rows`` and ``lengths`` as text;
        ``baseline_rounds`` and ``candidate_rounds``, medians. Empty if no cell loses.
    """
    import pandas as pd

    key = ["buffer", "baseline_kernels", "candidate_kernels"]
    rows = [
        dict(zip(key, place, strict=True))
        | {
            "cells": len(group),
            "least": group["speedup"].min(),
            "rows": _range(group["num_rows"]),
            "lengths": _range(group["length"]),
            "baseline_rounds": group["baseline_rounds"].median(),
            "candidate_rounds": group["candidate_rounds"].median(),
        }
        for place, group in lost.groupby(key, sort=True)
    ]
    columns = [*key, "cells", "least", "rows", "lengths", "baseline_rounds", "candidate_rounds"]
    found = pd.DataFrame(rows, columns=columns)
    return found.sort_values("cells", ascending=False, kind="stable", ignore_index=True)


def _range(values: pd.Series) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least}" if least == most else f"{least} to {most}"


def agreement(pairs: pd.DataFrame) -> pd.DataFrame:
    """Hold the times by events against those of the device's profiler.

    Parameters
    ----------
    pairs : pandas.DataFrame
        Of ``profiled_pairs``, as `paired` returns them.

    Returns
    -------
    pandas.DataFrame
        The cells with ``baseline_ratio`` and ``candidate_ratio``, time by events over the kernels'
        time by the profiler, and ``kernel_speedup``, the speed-up of the latter;
        ``difference``, speedup / kernel_speedup - 1.

    Raises
    ------
    ValueError
        A cell without the profiler's time.
    """
    counters = [f"{side}_counters" for side in SIDES]
    kernel_us = {
        name: [one.get("kernel_us") for one in pairs[name]] for name in counters if name in pairs
    }
    if len(kernel_us) < len(counters) or any(None in times for times in kernel_us.values()):
        raise ValueError("pairs must be of profiled_pairs, got a cell without counters.kernel_us")
    before, after = (np.asarray(kernel_us[name], float) for name in counters)
    kernel_speedup = before / after
    return pairs.assign(
        baseline_ratio=pairs["baseline_us"] / before,
        candidate_ratio=pairs["candidate_us"] / after,
        kernel_speedup=kernel_speedup,
        difference=pairs["speedup"] / kernel_speedup - 1,
    )
