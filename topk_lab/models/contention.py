"""How many atomics meet at the bin of the masked logits, and what do they cost?

The counts are arithmetic: row length, masked share, splits, threads. Whether the emulator counts
the same, and what a device's times say, is read from records of ``neg_inf_atomics`` and
``neg_inf_contention``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from topk_lab.crowds import masked_fraction
from topk_lab.models.bootstrap import interval

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COUNTED",
    "OPAQUE",
    "UNCOUNTED",
    "UNCROWDED",
    "HotBin",
    "ablation_steps",
    "contention_costs",
    "hot_bin",
    "hot_bin_counts",
    "remedies",
    "striped_pads",
]

LANES = 64
PATTERNS = {
    "masked_random": "random",
    "masked_prefix": "prefix",
    "masked_blocks": "blocks of 8",
    "normal": "none",
    "all_neg_inf": "all",
}
COUNTED = "vllm_k512"
UNCOUNTED = "vllm_k512[count_neg_inf=false]"
OPAQUE = "vllm_k512[count_neg_inf=false,increments=opaque]"
UNCROWDED = "vllm_k512_uncrowded"
TIMED_ROWS = 24
# From none of the source's changes to bins and final items to all of them, and on to the remedies
# of this package. Splits and threads are those of the source throughout.
STEPS = {
    "no change to bins or items": (
        "vllm_k512[final_capacity=2048,count_neg_inf=false,fits_rule=false,"
        "final_pad=after_all,final_order=radix_sort]"
    ),
    "1024 final items": (
        "vllm_k512[count_neg_inf=false,fits_rule=false,final_pad=after_all,final_order=radix_sort]"
    ),
    "few items ranked": "vllm_k512[count_neg_inf=false,fits_rule=false,final_pad=after_all]",
    "-inf never sorted": UNCOUNTED,
    "-inf counted": COUNTED,
    "equal logits not refined": "vllm_k512[equal_shortcut=true]",
    "-inf not counted, other crowds kept": UNCROWDED,
}


@dataclass(frozen=True)
class HotBin:
    """Atomics of one histogram pass of one split on the bin of the masked logits.

    Attributes
    ----------
    masked : float
        -inf logits of a split: so many atomics, where each is added by itself.
    counted : float
        At most so many where each thread adds its count once: one a thread that has logits.
    compiled : float
        At most so many lanes that execute these on an AMD target: the compiler lets one lane add
        for its wave.
    serialized : float
        Lanes that wait for another of their wave, where each logit is added by itself and the
        masked ones lie at random.
    """

    masked: float
    counted: float
    compiled: float
    serialized: float


def hot_bin(row_len: int, fraction: float, splits: int, threads: int = 1024) -> HotBin:
    """Atomics on the -inf bin, from the shape of a row and its masked share.

    Parameters
    ----------
    row_len : int
        Live logits of the row.
    fraction : float
        Share of them that is -inf, spread evenly.
    splits : int
        Blocks that work on the row.
    threads : int, default 1024
        Threads of a block.

    Returns
    -------
    HotBin

    Raises
    ------
    ValueError
        A number out of range.

    Examples
    --------
    >>> from topk_lab.models import hot_bin
    >>> made = hot_bin(131_072, 7 / 8, 8)
    >>> made.masked, made.counted, made.compiled
    (14336.0, 1024, 16)
    """
    for name, value in (("row_len", row_len), ("splits", splits), ("threads", threads)):
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in [0, 1], got {fraction}")
    share = row_len // splits
    masked = fraction * share
    busy = min(threads, math.ceil(share / 4))  # threads that take four logits at least
    visits = math.ceil(share / LANES)  # wave instructions that add logits
    some = 1 - (1 - fraction) ** LANES  # of which so many meet a masked one
    return HotBin(
        masked=masked,
        counted=min(busy, masked),
        compiled=min(math.ceil(busy / LANES), masked),
        serialized=max(0.0, masked - some * visits),
    )


def hot_bin_counts(records: pd.DataFrame) -> pd.DataFrame:
    """Hold the model against what the emulator counted.

    Parameters
    ----------
    records : pandas.DataFrame
        Of ``neg_inf_atomics``, as `topk_lab.results.load` returns them.

    Returns
    -------
    pandas.DataFrame
        A row for each target, variant and length: ``target``, ``variant``, ``num_cols``,
        ``splits``, ``steps``; ``source`` and ``source_model``, atomics a split of the first
        histogram on the -inf bin; ``compiled`` and ``compiled_model``, lanes that executed one on
        it, of all steps and splits; ``serialized``, lanes that waited for another, whatever the
        bin; ``kind``.

    Raises
    ------
    ValueError
        No record, or one of another experiment.
    """
    import pandas as pd

    experiments = sorted(set(records["experiment"]))
    if experiments != ["neg_inf_atomics"]:
        raise ValueError(
            f"records must be of neg_inf_atomics, got {', '.join(experiments) or 'none'}"
        )
    rows = []
    for cell in records.to_dict("records"):
        counters = cell["counters"]
        (splits,) = counters["splits"]
        each = not cell["policy"]["count_neg_inf"]
        threads = cell["policy"]["block_size"]
        model = hot_bin(cell["num_cols"], 7 / 8, splits, threads)
        # The last split takes what the division leaves, so one by one the row is what counts.
        whole = hot_bin(cell["num_cols"], 7 / 8, 1, threads)
        lanes = whole.masked if each else model.compiled * splits
        rows.append(
            {
                "target": cell["target"],
                "variant": cell["variant"],
                "num_cols": cell["num_cols"],
                "splits": splits,
                "steps": counters["steps"],
                "source": counters["neg_inf_atomics_per_split"],
                "source_model": model.masked if each else model.counted,
                "compiled": counters["compiled_hot"],
                "compiled_model": lanes * counters["steps"],
                "serialized": counters["lds_atomic_serialized_lanes"],
                "kind": cell["kind"],
            }
        )
    return pd.DataFrame(rows).sort_values(["variant", "target", "num_cols"], ignore_index=True)


def _timed(records: pd.DataFrame) -> pd.DataFrame:
    """Exact cells with a time on rows of the masked list, with their share and pattern."""
    cells = records[(records["status"] == "ok") & records["median_us"].notna()]
    return _described(cells)


def _described(cells: pd.DataFrame) -> pd.DataFrame:
    arguments = zip(cells["workload"], cells["workload_args"], cells["num_cols"], strict=True)
    return cells.assign(
        arguments=[json.dumps(one, sort_keys=True) for one in cells["workload_args"]],
        fraction=[masked_fraction(*one) for one in arguments],
        pattern=[PATTERNS.get(name, name) for name in cells["workload"]],
    )


def _side_by_side(cells: pd.DataFrame, value: str) -> pd.DataFrame:
    """A column for each variant, a row for each input and cache, all of one device or target."""
    for name in ("device", "target", "k"):
        if name in cells and cells[name].nunique() != 1:
            found = ", ".join(map(str, sorted(set(cells[name])))) or "none"
            raise ValueError(f"records must be of one {name}, got {found}")
    place = ["num_rows", "num_cols", "workload", "arguments", "pattern", "fraction"]
    if "cache" in cells and cells["cache"].notna().all():
        place.append("cache")
    twice = cells.duplicated([*place, "variant"])
    if twice.any():
        one = cells[twice].iloc[0]
        raise ValueError(
            f"records must hold each cell once, got {one['variant']} on {one['workload']} of "
            f"{one['num_cols']} twice"
        )
    return cells.pivot(index=place, columns="variant", values=value)


def remedies(records: pd.DataFrame, baseline: str = COUNTED) -> pd.DataFrame:
    """Times of each variant as multiples of a baseline's, on the same input in the same run.

    Parameters
    ----------
    records : pandas.DataFrame
        Times of ``neg_inf_contention`` on one device, as `topk_lab.results.load` returns them.
    baseline : str, default "vllm_k512"
        Which variant is 1.

    Returns
    -------
    pandas.DataFrame
        One row an input, cache and variant: ``num_rows``, ``num_cols``, ``workload``,
        ``arguments`` (JSON), ``pattern``, ``fraction``, ``cache``, ``variant``, ``baseline_us``,
        ``ratio`` (below 1 is faster), ``kind``, ``device``.

    Raises
    ------
    ValueError
        No time of the baseline, several devices, or a cell twice.
    """
    cells = _timed(records)
    table = _side_by_side(cells, "median_us")
    if baseline not in table:
        raise ValueError(f"records must hold times of {baseline}, got {', '.join(table) or 'none'}")
    ratios = table.div(table[baseline], axis=0).stack().dropna().rename("ratio").reset_index()
    times = table[baseline].rename("baseline_us").reset_index()
    found = ratios.merge(times, on=[name for name in times if name != "baseline_us"])
    first = cells.iloc[0]
    return found.assign(kind=first["kind"], device=first["device"])


def ablation_steps(records: pd.DataFrame) -> pd.DataFrame:
    """Times from none of the source's changes to all of them, and on to our remedies.

    Parameters
    ----------
    records : pandas.DataFrame
        As for `remedies`; cells of one shape are told apart by their workload.

    Returns
    -------
    pandas.DataFrame
        One row an input and step, in order: ``num_rows``, ``num_cols``, ``workload``,
        ``arguments``, ``pattern``, ``fraction``, ``cache``, ``step``, ``variant``, ``time_us``,
        ``change_us`` (NaN for the first), ``kind``, ``device``. Warm caches.

    Raises
    ------
    ValueError
        No input with a time of every step, several devices, or a cell twice.
    """
    import pandas as pd

    cells = _timed(records)
    cells = cells[cells["cache"] == "warm"]
    table = _side_by_side(cells, "median_us")
    rows = []
    for place, times in table.iterrows():
        before = math.nan
        if times.reindex(list(STEPS.values())).isna().any():
            continue
        for step, variant in STEPS.items():
            row: dict[str, Any] = dict(zip(table.index.names, place, strict=True))
            row |= {"step": step, "variant": variant, "time_us": times[variant]}
            rows.append(row | {"change_us": times[variant] - before})
            before = times[variant]
    if not rows:
        raise ValueError("records must hold an input with a warm time of every step, got none")
    first = cells.iloc[0]
    return pd.DataFrame(rows).assign(kind=first["kind"], device=first["device"])


def contention_costs(
    records: pd.DataFrame, counts: pd.DataFrame, *, draws: int = 2000, seed: int = 0
) -> pd.DataFrame:
    """Fit what an atomic on the hot bin costs: time against the atomics that are spared.

    Parameters
    ----------
    records : pandas.DataFrame
        As for `remedies`; warm caches are taken.
    counts : pandas.DataFrame
        Emulated records of ``neg_inf_contention`` on one target: the atomics of one row.
    draws, seed : int
        Of the bootstrap over the inputs of a length.

    Returns
    -------
    pandas.DataFrame
        A row for each length, and for increments as nvcc compiles them and those that it can't see
        through: ``variant``, ``num_cols``, ``splits``; ``ns_per_atomic``, the slope of time without
        counting -inf minus time with it (ns), over the atomics on the hot bin that the fullest
        block is spared in all its passes, with its 95 % interval ``low``, ``high``; ``fixed_us``,
        the intercept; ``r2``; ``inputs``; ``kind``, ``device``.

    Raises
    ------
    ValueError
        Records or counts without these variants, of several devices or targets, or with a cell
        twice.

    Notes
    -----
    A call ends with its fullest block. Blocks that share a compute unit also share what serves
    atomics, so that a length with more blocks than units has a slope of its own: lengths are not
    pooled.
    """
    import pandas as pd

    cells = _timed(records[records["cache"] == "warm"])
    cells = cells[cells["workload"].isin(list(PATTERNS)) & (cells["num_rows"] == TIMED_ROWS)]
    counted = _described(counts[counts["workload"].isin(list(PATTERNS))])
    hot = [counters["hot_most"] for counters in counted["counters"]]
    cut = counted[counted["variant"] == UNCOUNTED]
    splits = dict(zip(cut["num_cols"], (one["splits"][0] for one in cut["counters"]), strict=True))
    for name, frame, needed in (
        ("records", cells, (COUNTED, UNCOUNTED, OPAQUE)),
        ("counts", counted, (COUNTED, UNCOUNTED)),
    ):
        missing = set(needed) - set(frame["variant"])
        if missing:
            raise ValueError(f"{name} must hold {', '.join(needed)}, got none of {min(missing)}")
    times = _side_by_side(cells, "median_us").droplevel(["num_rows", "cache"])
    atomics = _side_by_side(counted.assign(hot=hot), "hot").droplevel("num_rows")
    spared = atomics[UNCOUNTED] - atomics[COUNTED]
    rng = np.random.default_rng(seed)
    rows = []
    for variant in (UNCOUNTED, OPAQUE):
        pairs = pd.DataFrame({"spared": spared, "saved_us": times[variant] - times[COUNTED]})
        for num_cols, mine in pairs.dropna().groupby("num_cols"):
            x, y = mine["spared"].to_numpy(), mine["saved_us"].to_numpy()
            slope, fixed = np.polyfit(x, y, 1)
            residual = y - (slope * x + fixed)
            drawn = rng.integers(len(x), size=(draws, len(x)))
            slopes = [np.polyfit(x[one], y[one], 1)[0] for one in drawn if np.ptp(x[one]) > 0]
            low, high = interval(np.array(slopes))
            rows.append(
                {
                    "variant": variant,
                    "num_cols": num_cols,
                    "splits": splits[num_cols],
                    "ns_per_atomic": 1e3 * slope,
                    "low": 1e3 * low,
                    "high": 1e3 * high,
                    "fixed_us": fixed,
                    "r2": 1 - residual.var() / y.var() if np.ptp(y) > 1e-9 else math.nan,
                    "inputs": len(x),
                }
            )
    first = cells.iloc[0]
    return pd.DataFrame(rows).assign(kind=first["kind"], device=first["device"])


def striped_pads(num_items: int, slots: int, threads: int, items_per_thread: int) -> int:
    """Pads that a stable sort puts before real items of the same key, if threads read in stripes.

    Parameters
    ----------
    num_items : int
        Final items, all of one key, that of the pads.
    slots : int
        How many of the sorted are taken.
    threads, items_per_thread : int
        Of the block that sorts: thread t reads places t, t + threads, ..., and these are then
        ordered as if they were neighbours.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        No threads or items, or more items or slots than places.

    Examples
    --------
    >>> from topk_lab.models import striped_pads
    >>> striped_pads(700, 212, threads=512, items_per_thread=4)
    106
    >>> striped_pads(700, 212, threads=1024, items_per_thread=1)
    0
    """
    for name, value in (("threads", threads), ("items_per_thread", items_per_thread)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    places = threads * items_per_thread
    for name, value in (("num_items", num_items), ("slots", slots)):
        if not 0 <= value <= places:
            raise ValueError(f"{name} must be in [0, {places}], got {value}")
    order = np.arange(places).reshape(items_per_thread, threads).T.ravel()
    return int((order[:slots] >= num_items).sum())
